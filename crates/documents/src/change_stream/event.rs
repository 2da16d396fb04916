//! The event documents of a change stream.

use bson::{RawBson, RawDocumentBuf, Timestamp, cstr, rawdoc};
use forebay_documents_store::{ChangeEvent, ChangeKind, Interest, Namespace};

use super::options::INTERNAL_DATABASES;
use super::token::{Mark, ResumeToken};
use crate::error::CommandError;

/// Returns whether a change concerns a stream of this scope.
pub fn concerns(scope: &Interest, change: &ChangeEvent) -> bool {
    if change.kind == ChangeKind::Beginning {
        return false;
    }
    let is_in = |namespace: &Namespace| match scope {
        Interest::Everything => !INTERNAL_DATABASES.contains(&namespace.db.as_str()),
        Interest::Database(db) => namespace.db == *db,
        Interest::Collection(collection) => namespace == collection,
    };
    let is_shown =
        |namespace: &Namespace| !namespace.collection.starts_with("system.") && is_in(namespace);
    is_shown(&change.namespace) || renamed_to(change).is_some_and(|to| is_shown(&to))
}

/// Returns whether a change in a stream's scope invalidates (ends) the stream.
pub fn invalidates(scope: &Interest, change: &ChangeEvent) -> bool {
    match scope {
        Interest::Everything => false,
        Interest::Database(_) => change.kind == ChangeKind::DropDatabase,
        Interest::Collection(_) => matches!(change.kind, ChangeKind::Drop | ChangeKind::Rename),
    }
}

fn renamed_to(change: &ChangeEvent) -> Option<Namespace> {
    if change.kind != ChangeKind::Rename {
        return None;
    }
    let to = change.detail.get_document("to").ok()?;
    Some(Namespace::new(
        to.get_str("db").ok()?,
        to.get_str("coll").ok()?,
    ))
}

/// Returns the event document of a change. `looked_up` is the current version of an updated document, if the stream
/// looks it up.
///
/// # Errors
/// Malformed BSON in the change history.
pub fn event(
    change: &ChangeEvent,
    looked_up: Option<RawBson>,
) -> Result<RawDocumentBuf, CommandError> {
    let token = ResumeToken::new(change.at, Mark::Event);
    let mut event = head(token, operation(change.kind), change);
    match change.kind {
        ChangeKind::Insert | ChangeKind::Replace => {
            event.append(cstr!("fullDocument"), change.detail.raw());
        }
        _ => {
            if let Some(document) = looked_up {
                event.append(cstr!("fullDocument"), document);
            }
        }
    }
    event.append(cstr!("ns"), name(&change.namespace));
    append_detail(&mut event, change).map_err(|error| crate::arguments::invalid_bson(&error))?;
    Ok(event)
}

/// Returns the `invalidate` event, the last one of a stream.
pub fn invalidate(change: &ChangeEvent) -> RawDocumentBuf {
    let token = ResumeToken::new(change.at, Mark::Invalidate);
    head(token, "invalidate", change)
}

fn head(token: ResumeToken, operation: &str, change: &ChangeEvent) -> RawDocumentBuf {
    rawdoc! {
        "_id": token.to_document(),
        "operationType": operation,
        "clusterTime": Timestamp::from(change.at),
        "wallTime": change.wall_time,
    }
}

fn operation(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Beginning => "beginning",
        ChangeKind::Insert => "insert",
        ChangeKind::Update => "update",
        ChangeKind::Replace => "replace",
        ChangeKind::Delete => "delete",
        ChangeKind::Drop => "drop",
        ChangeKind::Rename => "rename",
        ChangeKind::DropDatabase => "dropDatabase",
    }
}

fn name(namespace: &Namespace) -> RawDocumentBuf {
    match namespace.collection.as_str() {
        "" => rawdoc! { "db": namespace.db.as_str() },
        name => rawdoc! { "db": namespace.db.as_str(), "coll": name },
    }
}

fn append_detail(event: &mut RawDocumentBuf, change: &ChangeEvent) -> bson::error::Result<()> {
    match change.kind {
        ChangeKind::Insert | ChangeKind::Replace => {
            let mut key = RawDocumentBuf::new();
            if let Some(id) = change.detail.get("_id")? {
                key.append(cstr!("_id"), id);
            }
            event.append(cstr!("documentKey"), key);
        }
        ChangeKind::Delete => event.append(cstr!("documentKey"), change.detail.raw()),
        ChangeKind::Update | ChangeKind::Rename => {
            for field in change.detail.iter() {
                let (name, value) = field?;
                event.append(name, value);
            }
        }
        ChangeKind::Beginning | ChangeKind::Drop | ChangeKind::DropDatabase => {}
    }
    Ok(())
}
