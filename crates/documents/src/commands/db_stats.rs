//! `dbStats`: sizes of a database.

use bson::rawdoc;
use forebay_documents_store::IndexStatus;

use super::coll_stats::scale;
use crate::arguments::Known;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::namespace::check_db;
use crate::request::Request;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "dbStats",
    help: "shows the sizes of a database",
    known: Known::Any,
    effect: Effect::Reads,
    run: Run::Now(run),
};

/// The older, lower-case spelling of the command.
pub const LOWER_CASE: Spec = Spec {
    name: "dbstats",
    ..SPEC
};

#[derive(Default)]
struct Sum {
    collections: i64,
    indexes: i64,
    objects: i64,
    bytes: i64,
    storage_bytes: i64,
    index_bytes: i64,
}

fn run(request: &Request<'_>) -> Reply {
    let db = &request.command.db;
    check_db(db)?;
    let scale = scale(request)?;
    let sum = sum(request, db);
    let average = if sum.objects == 0 {
        0.0
    } else {
        sum.bytes as f64 / sum.objects as f64
    };
    Ok(rawdoc! {
        "db": db.as_str(),
        "collections": sum.collections,
        "views": 0i64,
        "objects": sum.objects,
        "avgObjSize": average,
        "dataSize": sum.bytes as f64 / scale as f64,
        "storageSize": sum.storage_bytes as f64 / scale as f64,
        "indexes": sum.indexes,
        "indexSize": sum.index_bytes as f64 / scale as f64,
        "totalSize": (sum.storage_bytes + sum.index_bytes) as f64 / scale as f64,
        "scaleFactor": scale,
        "ok": 1.0,
    })
}

fn sum(request: &Request<'_>, db: &str) -> Sum {
    let mut sum = Sum::default();
    for collection in request.documents.collections().of_db(db) {
        let indexes = collection.store.indexes();
        sum.collections += 1;
        sum.indexes += indexes.len() as i64;
        sum.objects += collection.store.document_count() as i64;
        sum.bytes += collection.store.document_bytes() as i64;
        sum.storage_bytes += collection.store.storage_bytes() as i64;
        let index_bytes = |index: &IndexStatus| collection.store.index_bytes(&index.spec.name);
        sum.index_bytes += indexes.iter().map(index_bytes).sum::<u64>() as i64;
    }
    sum
}
