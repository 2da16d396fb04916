//! `collStats`: sizes of a collection, its indexes and its cached fields.

use bson::raw::CString;
use bson::{RawArrayBuf, RawBson, RawDocumentBuf, cstr, rawdoc};

use crate::arguments::Known;
use crate::collections::OpenCollection;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::request::Request;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "collStats",
    help: "shows the sizes of a collection",
    known: Known::Any,
    effect: Effect::Reads,
    run: Run::Now(run),
};

/// The older, lower-case spelling of the command.
pub const LOWER_CASE: Spec = Spec {
    name: "collstats",
    ..SPEC
};

fn run(request: &Request<'_>) -> Reply {
    let namespace = request.namespace()?;
    let scale = scale(request)?;
    let mut reply = match request.documents.collections().get(&namespace) {
        Some(collection) => figures(&collection, scale),
        None => {
            rawdoc! { "ns": namespace.to_string(), "size": 0, "count": 0, "storageSize": 0, "nindexes": 0, "totalIndexSize": 0 }
        }
    };
    reply.append(cstr!("scaleFactor"), scale);
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

/// Returns the divisor of sizes (`scale`).
///
/// # Errors
/// `TypeMismatch`, or `BadValue` for less than one.
pub fn scale(request: &Request<'_>) -> Result<i64, CommandError> {
    match request.arguments.integer("scale")?.unwrap_or(1) {
        scale @ 1.. => Ok(scale),
        scale => Err(CommandError::bad_value(format!(
            "scale has to be > 0, not {scale}"
        ))),
    }
}

/// Returns the statistics of a collection, with sizes divided by `scale`.
pub fn figures(collection: &OpenCollection, scale: i64) -> RawDocumentBuf {
    let store = &collection.store;
    let indexes = store.indexes();
    let count = store.document_count() as i64;
    let bytes = store.document_bytes() as i64;
    let (mut index_bytes, mut index_sizes) = (0, RawDocumentBuf::new());
    for index in &indexes {
        let bytes = store.index_bytes(&index.spec.name) as i64;
        index_bytes += bytes;
        let name = CString::try_from(index.spec.name.as_str())
            .expect("names with NUL are refused at creation");
        index_sizes.append(name, bytes / scale);
    }
    rawdoc! {
        "ns": collection.namespace.to_string(),
        "size": bytes / scale,
        "count": count,
        "avgObjSize": bytes.checked_div(count).unwrap_or(0),
        "numOrphanDocs": 0,
        "insertsLeft": store.inserts_left() as i64,
        "storageSize": store.storage_bytes() as i64 / scale,
        "freeStorageSize": 0,
        "capped": false,
        "nindexes": indexes.len() as i32,
        "totalIndexSize": index_bytes / scale,
        "totalSize": (store.storage_bytes() as i64 + index_bytes) / scale,
        "indexSizes": index_sizes,
        "cacheIndexes": cache_states(collection),
    }
}

/// Returns the states of all cache indexes of a collection.
pub fn cache_states(collection: &OpenCollection) -> RawArrayBuf {
    let states = collection.search.status().into_iter().map(|status| {
        let mut state = rawdoc! { "name": status.name.as_str() };
        for field in status.to_document().iter().flatten() {
            state.append(field.0, RawBson::from(field.1));
        }
        state
    });
    states.collect()
}
