//! `getCmdLineOpts`: how the process was started.

use bson::{RawArrayBuf, rawdoc};

use crate::arguments::Known;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::request::Request;

/// The command.
pub const SPEC: Spec = Spec {
    name: "getCmdLineOpts",
    help: "shows how the process was started",
    known: Known::Any,
    effect: Effect::Reads,
    run: Run::Now(run),
};

fn run(request: &Request<'_>) -> Reply {
    request.admin_only()?;
    let arguments: RawArrayBuf = std::env::args().collect();
    Ok(rawdoc! { "argv": arguments, "parsed": {}, "ok": 1.0 })
}
