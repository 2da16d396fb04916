//! `currentOp`: the operations in progress, including background index builds and their progress.

use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use forebay_documents_query::Filter;

use super::read;
use crate::arguments::Known;
use crate::dispatch::{BoxFuture, Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::operations::cache_build;
use crate::request::Request;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "currentOp",
    help: "lists operations in progress",
    known: Known::Any,
    effect: Effect::Reads,
    run: Run::Async(start),
};

/// Fields of the command that are options. All other fields are conditions on the operations to list.
const OPTIONS: &[&str] = &[
    "currentOp",
    "$all",
    "$ownOps",
    "$truncateOps",
    "$db",
    "lsid",
    "$clusterTime",
    "$readPreference",
    "comment",
];

fn start<'a>(request: &'a Request<'a>) -> BoxFuture<'a> {
    Box::pin(run(request))
}

async fn run(request: &Request<'_>) -> Reply {
    request.admin_only()?;
    let filter = Filter::parse(&conditions(&request.command.body)?, &read::limits(request)?)?;
    let listed = if request.arguments.flag("$ownOps")? {
        own_operations(request)
    } else {
        self::operations(request)
    };
    let wanted = read::those_that_match(request, &filter, listed).await?;
    Ok(rawdoc! { "inprog": RawArrayBuf::from_iter(wanted), "ok": 1.0 })
}

/// Returns the operations of the client's user or, without authentication, of its connection.
fn own_operations(request: &Request<'_>) -> Vec<RawDocumentBuf> {
    let operations = request.documents.operations();
    operations.report(|operation| operation.is_of(request.client))
}

/// Returns the operations in progress that the client may see. A client with all privileges sees all of them, including
/// builds of caches.
pub fn operations(request: &Request<'_>) -> Vec<RawDocumentBuf> {
    if !request.client.rights.is_root() {
        return own_operations(request);
    }
    let collections = request.documents.collections().all();
    let builds = collections
        .iter()
        .filter_map(|collection| collection.search.build_progress());
    let builds = builds.map(|build| cache_build(&build));
    request
        .documents
        .operations()
        .report(|_| true)
        .into_iter()
        .chain(builds)
        .collect()
}

fn conditions(body: &RawDocument) -> Result<RawDocumentBuf, CommandError> {
    let mut conditions = RawDocumentBuf::new();
    for field in body {
        let (name, value): (_, RawBsonRef<'_>) =
            field.map_err(|error| crate::arguments::invalid_bson(&error))?;
        if !OPTIONS.contains(&name.as_str()) {
            conditions.append(name, value);
        }
    }
    Ok(conditions)
}
