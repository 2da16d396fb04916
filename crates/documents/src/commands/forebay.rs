//! Forebay's own commands, for the command line and tests: devices, buckets, patterns, statistics.

use bson::{RawArrayBuf, RawDocumentBuf, cstr, rawdoc};

use super::coll_stats::cache_states;
use crate::arguments::Known;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::namespace;
use crate::places::blocking;
use crate::request::Request;
use crate::search::admin;

/// The command `{forebayDevices: 1}`. The argument `add: "host:1"` adds one host device. `remove: 3` removes the device
/// with this id, `remove: "host:3"` the device with this name.
pub const DEVICES: Spec = Spec {
    name: "forebayDevices",
    help: "lists, adds or removes devices",
    known: Known::Only(&["add", "remove", "last"]),
    effect: Effect::Reads,
    run: Run::Now(devices),
};

/// The command `{forebayBuckets: "db.collection.field"}`.
pub const BUCKETS: Spec = Spec {
    name: "forebayBuckets",
    help: "lists the buckets of a cached field",
    known: Known::Only(&[]),
    effect: Effect::Reads,
    run: Run::Now(buckets),
};

/// The command `{forebayPattern: "regex", options: "i"}`.
pub const PATTERN: Spec = Spec {
    name: "forebayPattern",
    help: "shows how a pattern would be matched",
    known: Known::Only(&["options"]),
    effect: Effect::Reads,
    run: Run::Now(pattern),
};

/// The command `{forebayStats: 1}`.
pub const STATS: Spec = Spec {
    name: "forebayStats",
    help: "shows the devices and the state of every cache",
    known: Known::Only(&[]),
    effect: Effect::Reads,
    run: Run::Now(stats),
};

fn devices(request: &Request<'_>) -> Reply {
    request.admin_only()?;
    let cache = request.documents.cache();
    if let Some(spec) = request.arguments.string("add")? {
        return blocking(|| admin::add_devices(cache, spec));
    }
    let even_last = request.arguments.flag("last")?;
    match request.arguments.get("remove") {
        Some(named) => blocking(|| admin::remove_device(cache, named, even_last)),
        None => Ok(admin::devices_reply(cache)),
    }
}

fn buckets(request: &Request<'_>) -> Reply {
    request.admin_only()?;
    let name = request.arguments.required_string("forebayBuckets")?;
    let find = |namespace: &str| {
        let namespace = namespace::parse(namespace).ok()?;
        Some(
            request
                .documents
                .collections()
                .get(&namespace)?
                .search
                .clone(),
        )
    };
    blocking(|| admin::buckets_reply(name, find))
}

fn pattern(request: &Request<'_>) -> Reply {
    request.admin_only()?;
    let source = request.arguments.required_string("forebayPattern")?;
    let options = request.arguments.string("options")?.unwrap_or("");
    let limits = &request.documents.settings().pattern;
    blocking(|| admin::pattern_reply(source, options, limits))
}

fn stats(request: &Request<'_>) -> Reply {
    request.admin_only()?;
    let mut reply: RawDocumentBuf = admin::devices_reply(request.documents.cache());
    let mut collections = RawArrayBuf::new();
    for collection in request.documents.collections().all() {
        let states = cache_states(&collection);
        collections.push(rawdoc! {
            "ns": collection.namespace.to_string(),
            "count": collection.store.document_count() as i64,
            "cacheIndexes": states,
        });
    }
    reply.append(cstr!("collections"), collections);
    Ok(reply)
}
