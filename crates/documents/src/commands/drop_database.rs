//! `dropDatabase`: removes all collections of a database.

use bson::rawdoc;

use crate::arguments::Known;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::places::blocking;
use crate::request::Request;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "dropDatabase",
    help: "removes a database",
    known: Known::Only(&["dropDatabase"]),
    effect: Effect::Writes,
    run: Run::Now(run),
};

fn run(request: &Request<'_>) -> Reply {
    let db = &request.command.db;
    crate::namespace::check_db(db)?;
    let dropped = blocking(|| request.documents.collections().drop_database(db))?;
    for collection in &dropped {
        request
            .documents
            .cursors()
            .kill_namespace(&collection.namespace);
    }
    if dropped.is_empty() {
        return Ok(rawdoc! { "ok": 1.0 });
    }
    Ok(rawdoc! { "dropped": db.as_str(), "ok": 1.0 })
}
