//! `killCursors`: closes cursors.

use bson::{RawArrayBuf, rawdoc};

use crate::arguments::{Known, integer, invalid_bson, wrong_type};
use crate::cursors::Closed;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::request::Request;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "killCursors",
    help: "closes cursors",
    known: Known::Only(&["cursors"]),
    effect: Effect::Reads,
    run: Run::Now(run),
};

fn run(request: &Request<'_>) -> Reply {
    let namespace = request.cursor_namespace("killCursors")?;
    let owner = request.owner();
    let ids = request
        .arguments
        .array("cursors")?
        .ok_or_else(|| request.arguments.missing("cursors"))?;
    let mut killed = RawArrayBuf::new();
    let mut not_found = RawArrayBuf::new();
    for id in ids {
        let id = id.map_err(|error| invalid_bson(&error))?;
        let id = integer(id).ok_or_else(|| wrong_type("killCursors.cursors", id, "long"))?;
        match request.documents.cursors().kill(id, &namespace, &owner) {
            Closed::Yes => killed.push(id),
            Closed::NotFound => not_found.push(id),
        }
    }
    Ok(rawdoc! {
        "cursorsKilled": killed,
        "cursorsNotFound": not_found,
        "cursorsAlive": RawArrayBuf::new(),
        "cursorsUnknown": RawArrayBuf::new(),
        "ok": 1.0,
    })
}
