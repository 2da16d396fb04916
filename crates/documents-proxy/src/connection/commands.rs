//! Determines from the name and the arguments of a command how it affects caches.

use bson::RawDocument;
use bytes::Bytes;
use forebay_documents::{Namespace, namespace};
use forebay_wire_mongo::{Body, Limits, Message, OpMsg};

use crate::replicas::fields;

/// Commands whose changes cannot be derived from the command and its reply. Replicas that follow no change stream are
/// loaded again after such a command.
pub(super) const UNFOLLOWED: &[&str] = &[
    "applyOps",
    "bulkWrite",
    "cloneCollectionAsCapped",
    "collMod",
    "convertToCapped",
    "create",
    "mapReduce",
    "mapreduce",
    "renameCollection",
];
/// Commands after which the client may be another user, or have different rights.
pub(super) const CHANGES_RIGHTS: &[&str] = &["saslStart", "saslContinue", "authenticate", "logout"];
/// Commands that end a transaction.
pub(super) const ENDS_TRANSACTION: &[&str] = &["commitTransaction", "abortTransaction"];

/// Decodes the command in a message; `None` if it is malformed.
pub fn decode(message: &Bytes) -> Option<OpMsg> {
    match Message::decode(message.clone(), &Limits::default())
        .ok()?
        .body
    {
        Body::Msg(message) => Some(message),
        Body::Query(_) | Body::Reply(_) => None,
    }
}

/// Returns the collection that a command's first field names.
pub fn namespace(body: &RawDocument) -> Option<Namespace> {
    let (_, collection) = body.into_iter().next()?.ok()?;
    namespace::checked(body.get_str("$db").ok()?, collection.as_str()?).ok()
}

/// Returns whether a pipeline writes its results to a collection (`$out` or `$merge`).
pub(super) fn writes_out(body: &RawDocument) -> bool {
    let stages = body.get_array("pipeline").into_iter().flatten().flatten();
    let mut stages = stages.filter_map(|stage| stage.as_document());
    let none = |stage: &RawDocument, name| matches!(stage.get(name), Ok(None));
    stages.any(|stage| !none(stage, "$out") || !none(stage, "$merge"))
}

/// Returns whether a command creates a TTL index, which makes the upstream delete documents.
pub(super) fn expires(body: &RawDocument) -> bool {
    let indexes = body.get_array("indexes").into_iter().flatten().flatten();
    let mut indexes = indexes.filter_map(|index| index.as_document());
    indexes.any(|index| !matches!(index.get("expireAfterSeconds"), Ok(None)))
}

/// Returns whether a command creates caches.
pub(super) fn declares(name: &str, body: &RawDocument) -> bool {
    let indexes = body.get_array("indexes").into_iter().flatten().flatten();
    let mut indexes = indexes.filter_map(|index| index.as_document());
    name == "createIndexes" && indexes.any(fields::is_cache)
}
