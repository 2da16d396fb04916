//! `create`: creates an empty collection.

use bson::rawdoc;
use forebay_documents_query::Code;
use forebay_documents_store::CollectionOptions;

use crate::arguments::{Arguments, Known};
use crate::collections::OpenCollection;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::namespace::Namespace;
use crate::places::blocking;
use crate::request::Request;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "create",
    help: "creates a collection",
    known: Known::Only(&[
        "capped",
        "autoIndexId",
        "size",
        "max",
        "storageEngine",
        "validator",
        "validationLevel",
        "validationAction",
        "indexOptionDefaults",
        "viewOn",
        "pipeline",
        "collation",
        "timeseries",
        "expireAfterSeconds",
        "clusteredIndex",
        "changeStreamPreAndPostImages",
        "encryptedFields",
        "idIndex",
        "flags",
        "temp",
    ]),
    effect: Effect::Writes,
    run: Run::Now(run),
};

/// Options that are not implemented.
const UNSUPPORTED: &[&str] = &[
    "capped",
    "validator",
    "viewOn",
    "pipeline",
    "timeseries",
    "expireAfterSeconds",
    "clusteredIndex",
    "encryptedFields",
];

fn run(request: &Request<'_>) -> Reply {
    let namespace = request.namespace()?;
    request.arguments.unsupported(UNSUPPORTED)?;
    refuse_images(request)?;
    request.arguments.simple_collation()?;
    let collections = request.documents.collections();
    if let Some(existing) = collections.get(&namespace) {
        return same_again(&namespace, &existing);
    }
    blocking(|| collections.create(&namespace, CollectionOptions::default()))?;
    Ok(rawdoc! { "ok": 1.0 })
}

/// Rejects `changeStreamPreAndPostImages`, because the server does not record the versions of a document
/// before and after a change.
fn refuse_images(request: &Request<'_>) -> Result<(), CommandError> {
    const OPTION: &str = "changeStreamPreAndPostImages";
    let Some(options) = request.arguments.document(OPTION)? else {
        return Ok(());
    };
    let options = Arguments::parse_nested(OPTION, options, Known::Only(&["enabled"]))?;
    if options.flag("enabled")? {
        Err(CommandError::refused(
            Code::NotImplemented,
            format!("option '{OPTION}' of 'create' is not supported"),
        ))
    } else {
        Ok(())
    }
}

/// Returns the reply of `create` for a collection that already exists: an error if the collection has options, and
/// success otherwise.
fn same_again(namespace: &Namespace, existing: &OpenCollection) -> Reply {
    if existing.store.options().is_empty() {
        return Ok(rawdoc! { "ok": 1.0 });
    }
    let message = format!("namespace {namespace} already exists, but with different options");
    Err(CommandError::refused(Code::NamespaceExists, message))
}
