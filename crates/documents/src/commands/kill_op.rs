//! `killOp`: stops an operation in progress.

use bson::rawdoc;

use crate::arguments::Known;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::request::Request;

/// The command.
pub const SPEC: Spec = Spec {
    name: "killOp",
    help: "stops an operation in progress",
    known: Known::Only(&["op"]),
    effect: Effect::Reads,
    run: Run::Now(run),
};

fn run(request: &Request<'_>) -> Reply {
    request.admin_only()?;
    let id = request
        .arguments
        .integer("op")?
        .ok_or_else(|| request.arguments.missing("op"))?;
    if let Ok(id) = i32::try_from(id) {
        request.documents.operations().kill(id);
    }
    Ok(rawdoc! { "info": "attempting to kill op", "ok": 1.0 })
}
