//! `count`: how many documents match.

use std::sync::Arc;

use bson::{RawDocumentBuf, rawdoc};

use super::read;
use crate::arguments::Known;
use crate::dispatch::{Effect, Later, Reply, Run, Spec};
use crate::error::CommandError;
use crate::plan::{Plan, Wishes};
use crate::request::Request;
use crate::searches::Search;

/// The command.
pub const SPEC: Spec = Spec {
    name: "count",
    help: "counts matching documents",
    known: Known::Only(&["query", "limit", "skip", "hint", "fields", "collation"]),
    effect: Effect::Reads,
    run: Run::Later(start),
};

fn start<'a>(request: &'a Request<'a>) -> Later<'a> {
    Box::pin(run(request))
}

async fn run(request: &Request<'_>) -> Reply {
    let count = match plan(request)? {
        Some(plan) => {
            request.begin_search(Search::Documents(plan.clone()));
            plan.count(request.stop()).await?
        }
        None => 0,
    };
    let (skip, limit) = window(request)?;
    let count = count.saturating_sub(skip).min(limit.unwrap_or(u64::MAX));
    Ok(reply(count))
}

/// The plan of a `count`; none where there is no collection.
///
/// # Errors
/// Whatever is wrong with the arguments.
pub fn plan(request: &Request<'_>) -> Result<Option<Arc<Plan>>, CommandError> {
    request.arguments.simple_collation()?;
    let namespace = request.namespace()?;
    window(request)?;
    let filter = read::filter(request, "query")?;
    let Some(collection) = request.documents.collections().get(&namespace) else {
        return Ok(None);
    };
    let hint = crate::plan::hint(&collection, request.arguments.get("hint"))?;
    let wishes = Wishes {
        hint,
        strict: request.strict(),
        ..Wishes::default()
    };
    Plan::new(collection, filter, &wishes).map(Some)
}

/// `skip` and `limit`; a negative limit means its absolute value, zero none.
fn window(request: &Request<'_>) -> Result<(u64, Option<u64>), CommandError> {
    let skip = request.arguments.unsigned("skip")?.unwrap_or(0);
    let limit = request
        .arguments
        .integer("limit")?
        .map(i64::unsigned_abs)
        .filter(|limit| *limit > 0);
    Ok((skip, limit))
}

fn reply(count: u64) -> RawDocumentBuf {
    match i32::try_from(count) {
        Ok(count) => rawdoc! { "n": count, "ok": 1.0 },
        Err(_) => rawdoc! { "n": count as i64, "ok": 1.0 },
    }
}
