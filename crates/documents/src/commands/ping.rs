//! `ping`: checks that the server answers.

use bson::rawdoc;

use crate::arguments::Known;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::request::Request;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "ping",
    help: "answers ok",
    known: Known::Any,
    effect: Effect::Reads,
    run: Run::Now(run),
};

fn run(_: &Request<'_>) -> Reply {
    Ok(rawdoc! { "ok": 1.0 })
}
