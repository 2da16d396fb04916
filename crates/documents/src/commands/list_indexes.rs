//! `listIndexes`: the indexes of a collection, as they were created.

use super::read;
use crate::arguments::Known;
use crate::batch::{self, BatchOptions};
use crate::dispatch::{BoxFuture, Effect, Reply, Run, Spec};
use crate::request::Request;
use crate::streams::List;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "listIndexes",
    help: "lists the indexes of a collection",
    known: Known::Only(&["cursor", "includeBuildUUIDs", "includeIndexBuildInfo"]),
    effect: Effect::Reads,
    run: Run::Async(start),
};

fn start<'a>(request: &'a Request<'a>) -> BoxFuture<'a> {
    Box::pin(run(request))
}

async fn run(request: &Request<'_>) -> Reply {
    let namespace = request.namespace()?;
    let collection = request.documents.collections().existing(&namespace)?;
    let definitions = collection
        .store
        .indexes()
        .into_iter()
        .map(|index| index.spec.definition.clone());
    let size = Some(read::cursor_batch_size(request)?.unwrap_or(u64::MAX));
    batch::open(
        request,
        &namespace,
        Box::new(List::built(definitions)),
        BatchOptions {
            size,
            ..BatchOptions::default()
        },
    )
    .await
}
