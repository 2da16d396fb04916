//! `drop`: removes a collection.

use bson::rawdoc;

use crate::arguments::Known;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::places::blocking;
use crate::request::Request;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "drop",
    help: "removes a collection",
    known: Known::Only(&["drop"]),
    effect: Effect::Writes,
    run: Run::Now(run),
};

fn run(request: &Request<'_>) -> Reply {
    let namespace = request.namespace()?;
    let dropped = blocking(|| request.documents.collections().drop_collection(&namespace))?;
    request.documents.cursors().kill_namespace(&namespace);
    let Some(dropped) = dropped else {
        return Ok(rawdoc! { "ok": 1.0 });
    };
    let indexes = i32::try_from(dropped.store.indexes().len()).unwrap_or(i32::MAX);
    Ok(rawdoc! { "nIndexesWas": indexes, "ns": namespace.to_string(), "ok": 1.0 })
}
