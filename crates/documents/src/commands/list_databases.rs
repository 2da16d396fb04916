//! `listDatabases`: the databases that have collections.

use std::collections::BTreeMap;

use bson::{RawArrayBuf, RawDocumentBuf, cstr, rawdoc};

use super::read;
use crate::access::Action;
use crate::arguments::Known;
use crate::dispatch::{BoxFuture, Effect, Reply, Run, Spec};
use crate::request::Request;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "listDatabases",
    help: "lists the databases",
    known: Known::Only(&["filter", "nameOnly", "authorizedDatabases"]),
    effect: Effect::Reads,
    run: Run::Async(start),
};

fn start<'a>(request: &'a Request<'a>) -> BoxFuture<'a> {
    Box::pin(run(request))
}

async fn run(request: &Request<'_>) -> Reply {
    request.admin_only()?;
    let name_only = request.arguments.flag("nameOnly")?;
    let filter = read::filter(request, "filter")?;
    let may_see = |db: &str| request.client.rights.allow_on(Action::Inspect, db);
    let seen = sizes(request).into_iter().filter(|(name, _)| may_see(name));
    let entry = |(name, bytes)| rawdoc! { "name": name, "sizeOnDisk": bytes, "empty": false };
    let all = seen.map(entry).collect();
    let mut databases = RawArrayBuf::new();
    let mut total = 0;
    for entry in read::those_that_match(request, &filter, all).await? {
        total += entry.get_i64("sizeOnDisk").unwrap_or_default();
        databases.push(if name_only {
            rawdoc! { "name": entry.get_str("name").unwrap_or_default() }
        } else {
            entry
        });
    }
    let mut reply = RawDocumentBuf::new();
    reply.append(cstr!("databases"), databases);
    if !name_only {
        reply.append(cstr!("totalSize"), total);
        reply.append(cstr!("totalSizeMb"), total >> 20);
    }
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

fn sizes(request: &Request<'_>) -> BTreeMap<String, i64> {
    let mut sizes = BTreeMap::new();
    for collection in request.documents.collections().all() {
        *sizes.entry(collection.namespace.db.clone()).or_default() +=
            collection.store.storage_bytes() as i64;
    }
    sizes
}
