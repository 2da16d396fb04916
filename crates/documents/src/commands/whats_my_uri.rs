//! `whatsmyuri`: the client's address as the server sees it.

use bson::rawdoc;

use crate::arguments::Known;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::request::Request;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "whatsmyuri",
    help: "shows the client's address",
    known: Known::Any,
    effect: Effect::Reads,
    run: Run::Now(run),
};

fn run(request: &Request<'_>) -> Reply {
    let address = request
        .client
        .peer
        .map_or_else(String::new, |peer| peer.to_string());
    Ok(rawdoc! { "you": address, "ok": 1.0 })
}
