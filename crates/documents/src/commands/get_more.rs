//! `getMore`: the next batch of a cursor.

use crate::arguments::Known;
use crate::batch;
use crate::dispatch::{BoxFuture, Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::request::Request;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "getMore",
    help: "fetches the next batch of a cursor",
    known: Known::Only(&[
        "collection",
        "batchSize",
        "term",
        "lastKnownCommittedOpTime",
    ]),
    effect: Effect::Reads,
    run: Run::Async(start),
};

fn start<'a>(request: &'a Request<'a>) -> BoxFuture<'a> {
    Box::pin(run(request))
}

async fn run(request: &Request<'_>) -> Reply {
    let id = request
        .arguments
        .integer("getMore")?
        .ok_or_else(|| request.arguments.missing("getMore"))?;
    let namespace = request.cursor_namespace("collection")?;
    let size = request
        .arguments
        .unsigned("batchSize")?
        .filter(|size| *size > 0);
    if id <= 0 {
        return Err(CommandError::refused(
            forebay_documents_query::Code::CursorNotFound,
            format!("cursor id {id} not found"),
        ));
    }
    batch::next(request, id, &namespace, size).await
}
