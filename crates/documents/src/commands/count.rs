//! `count`: returns the number of documents that match.

use std::sync::Arc;

use bson::{RawDocumentBuf, rawdoc};

use super::read;
use crate::arguments::Known;
use crate::dispatch::{BoxFuture, Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::plan::{Plan, PlanRequirements};
use crate::request::Request;
use crate::searches::Search;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "count",
    help: "counts matching documents",
    known: Known::Only(&["query", "limit", "skip", "hint", "fields", "collation"]),
    effect: Effect::Reads,
    run: Run::Async(start),
};

fn start<'a>(request: &'a Request<'a>) -> BoxFuture<'a> {
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

/// Returns the plan of a `count`, or `None` if the collection does not exist.
///
/// # Errors
/// An error for invalid arguments.
pub fn plan(request: &Request<'_>) -> Result<Option<Arc<Plan>>, CommandError> {
    request.arguments.simple_collation()?;
    let namespace = request.namespace()?;
    window(request)?;
    let filter = read::filter(request, "query")?;
    let Some(collection) = request.documents.collections().get(&namespace) else {
        return Ok(None);
    };
    let hint = crate::plan::hint(&collection, request.arguments.get("hint"))?;
    let requirements = PlanRequirements {
        hint,
        strict: request.strict(),
        ..PlanRequirements::default()
    };
    Plan::new(collection, filter, &requirements).map(Some)
}

/// Reads `skip` and `limit`. A negative limit means its absolute value, zero means no limit.
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
