//! `listDatabases`: the databases that hold collections.

use std::collections::BTreeMap;

use bson::{RawArrayBuf, RawDocumentBuf, cstr, rawdoc};

use super::read;
use crate::access::Action;
use crate::arguments::Known;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::request::Request;

/// The command.
pub const SPEC: Spec = Spec {
    name: "listDatabases",
    help: "lists the databases",
    known: Known::Only(&["filter", "nameOnly", "authorizedDatabases"]),
    effect: Effect::Reads,
    run: Run::Now(run),
};

fn run(request: &Request<'_>) -> Reply {
    request.admin_only()?;
    let name_only = request.arguments.flag("nameOnly")?;
    let filter = read::filter(request, "filter")?;
    let mut databases = RawArrayBuf::new();
    let mut total = 0;
    let may_see = |db: &str| request.client.rights.allow_on(Action::Inspect, db);
    for (name, bytes) in sizes(request).into_iter().filter(|(name, _)| may_see(name)) {
        let entry = rawdoc! { "name": name.as_str(), "sizeOnDisk": bytes, "empty": false };
        if filter.matches(&entry) {
            total += bytes;
            databases.push(if name_only {
                rawdoc! { "name": name }
            } else {
                entry
            });
        }
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
