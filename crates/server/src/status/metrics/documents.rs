//! The metrics of the documents server: connections, commands, searches, caches and the store.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_documents::{
    CollectionStatus, Durations, FieldStatus, Histogram, IndexState, SearchFigures, Status,
};
use forebay_documents_proxy::{Counters, Proxy};

use super::{Family, Figure, Labels, Page};
use crate::doors::documents::Door;
use crate::status::Snapshot;

/// Appends the metrics of the documents server.
pub fn append(page: &mut Page, door: &Door, snapshot: &Snapshot) {
    let status = &snapshot.documents;
    connections(page, door);
    searches(page, &status.searches);
    commands(page, door, status);
    device_buckets(page, snapshot);
    caches(page, snapshot);
    store(page, status);
    if let Some(proxy) = door.proxy() {
        upstream_lag(page, proxy);
    }
}

/// Label for the protocol of the connections.
const PROTOCOL: [(&str, &str); 1] = [("protocol", "mongodb")];

fn connections(page: &mut Page, door: &Door) {
    let connections = door.connections();
    page.gauge("forebay_connections_open", "Open connections.")
        .sample(&PROTOCOL, connections.open);
    page.gauge(
        "forebay_connections_max",
        "Maximum number of open connections.",
    )
    .sample(&[], connections.max);
    page.counter(
        "forebay_connections_accepted_total",
        "Connections accepted.",
    )
    .sample(&PROTOCOL, connections.taken);
    page.counter(
        "forebay_connections_refused_total",
        "Connections refused because the maximum was reached.",
    )
    .sample(&PROTOCOL, connections.refused);
    page.counter(
        "forebay_connections_evicted_total",
        "Unauthenticated connections closed to accept others.",
    )
    .sample(&[], connections.evicted);
    page.counter(
        "forebay_wrong_passwords_total",
        "Attempts to authenticate with a wrong password or as an unknown user.",
    )
    .sample(&[], connections.wrong_passwords);
}

fn searches(page: &mut Page, searches: &SearchFigures) {
    let mut totals = page.counter(
        "forebay_documents_searches_total",
        "Searches, by the source of their answer and the tier of the cache.",
    );
    for (kind, durations) in &searches.durations {
        let labels = [
            ("answered_by", kind.answered_by.name()),
            ("tier", kind.tier_name()),
        ];
        totals.sample(&labels, durations.count());
    }
    let mut times = page.family(
        "forebay_documents_search_duration_seconds",
        "histogram",
        "Latency of searches, from the command to the first batch.",
    );
    for (kind, durations) in &searches.durations {
        let labels = [
            ("answered_by", kind.answered_by.name()),
            ("tier", kind.tier_name()),
        ];
        histogram(&mut times, &labels, durations);
    }
    let mut reasons = page.counter(
        "forebay_documents_search_cache_not_used_total",
        "Searches that did not use the cache, by the reason that explain gives as cacheNotUsedCode.",
    );
    for (reason, count) in &searches.not_used {
        reasons.sample(&[("reason", reason)], count);
    }
    for (name, help, count) in [
        (
            "forebay_documents_search_rows_total",
            "Rows scanned in caches.",
            searches.rows,
        ),
        (
            "forebay_documents_search_bytes_total",
            "Bytes scanned in caches.",
            searches.bytes,
        ),
        (
            "forebay_documents_searches_slow_total",
            "Searches logged as slow.",
            searches.slow,
        ),
        (
            "forebay_documents_searches_failed_total",
            "Searches that failed.",
            searches.failed,
        ),
    ] {
        page.counter(name, help).sample(&[], count);
    }
}

fn histogram(family: &mut Family<'_>, labels: Labels<'_>, durations: &Durations) {
    let bounds = Histogram::BOUNDS_US.map(|us| (us as f64 / 1e6).to_string());
    let bounds = bounds.into_iter().chain(["+Inf".to_owned()]);
    let mut sum = 0;
    for (bound, count) in bounds.zip(durations.counts) {
        sum += count;
        let labels = [labels, &[("le", bound.as_str())]].concat();
        family.suffixed("_bucket", &labels, sum);
    }
    family.suffixed("_sum", labels, durations.sum.as_secs_f64());
    family.suffixed("_count", labels, sum);
}

fn commands(page: &mut Page, door: &Door, status: &Status) {
    let mut all = page.counter("forebay_documents_commands_total", "Commands run, by name.");
    for (name, count) in &status.commands {
        all.sample(&[("command", name)], count);
    }
    if let Some(proxy) = door.proxy() {
        let mut all = page.counter(
            "forebay_documents_upstream_commands_total",
            "Commands passed on to the upstream, by name.",
        );
        for (name, count) in proxy.forwarded() {
            all.sample(&[("command", name)], count);
        }
        upstream_reads(page, proxy.reads());
    }
    page.gauge("forebay_documents_cursors", "Open cursors.")
        .sample(&[], status.cursors);
}

fn upstream_reads(page: &mut Page, reads: &Counters) {
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let mut all = page.counter(
        "forebay_documents_upstream_reads_total",
        "Reads on cached collections of the upstream, by how they were answered.",
    );
    all.sample(&[("by", "cache")], of(&reads.answered));
    all.sample(&[("by", "id")], of(&reads.narrowed));
    all.sample(&[("by", "upstream")], of(&reads.forwarded));
    page.counter(
        "forebay_documents_upstream_slower_total",
        "Reads passed on because the upstream searches faster than it returns documents by _id.",
    )
    .sample(&[], of(&reads.slower));
}

fn device_buckets(page: &mut Page, snapshot: &Snapshot) {
    let mut buckets = page.gauge("forebay_documents_device_buckets", "Buckets on a device.");
    for device in &snapshot.process.devices {
        let count = snapshot.documents.buckets_on(device.id());
        buckets.sample(&[("device", device.name())], count);
    }
}

const FIELD_FIGURES: [Figure<FieldStatus>; 5] = [
    (
        "forebay_documents_cache_values",
        "gauge",
        "Cached values of a field.",
        |it| it.rows as f64,
    ),
    (
        "forebay_documents_cache_value_bytes",
        "gauge",
        "Bytes of the cached values of a field.",
        |it| it.value_bytes as f64,
    ),
    (
        "forebay_documents_cache_overhead_bytes",
        "gauge",
        "Host memory that a field's cache takes in addition to the bytes of its values.",
        |it| it.overhead_bytes as f64,
    ),
    (
        "forebay_documents_cache_delta_values",
        "gauge",
        "Values that are not in a bucket yet.",
        |it| it.delta_rows as f64,
    ),
    (
        "forebay_documents_cache_recheck_documents",
        "gauge",
        "Documents that the store must recheck, because the cache cannot hold their values of the field.",
        |it| it.recheck_documents as f64,
    ),
];

fn caches(page: &mut Page, snapshot: &Snapshot) {
    let status = &snapshot.documents;
    for (name, kind, help, figure) in FIELD_FIGURES {
        let mut family = page.family(name, kind, help);
        for (collection, field) in fields(status) {
            let labels = [
                ("namespace", collection.namespace.as_str()),
                ("field", field.path.as_str()),
            ];
            family.sample(&labels, figure(field));
        }
    }
    let mut buckets = page.gauge(
        "forebay_documents_cache_buckets",
        "Buckets of a field by the device that scans them; the label is \"host\" for buckets that no device holds.",
    );
    for (collection, field) in fields(status) {
        for (device, count) in &field.buckets {
            let labels = [
                ("namespace", collection.namespace.as_str()),
                ("field", field.path.as_str()),
                ("device", &snapshot.process.device_name(*device)),
            ];
            buckets.sample(&labels, count);
        }
    }
    let mut conditions = page.counter(
        "forebay_documents_cache_conditions_total",
        "Conditions on a field that its cache evaluated, by tier.",
    );
    for (collection, field) in fields(status) {
        for (tier, count) in &field.searches {
            let labels = [
                ("namespace", collection.namespace.as_str()),
                ("field", field.path.as_str()),
                ("tier", tier),
            ];
            conditions.sample(&labels, count);
        }
    }
    builds(page, status);
}

fn fields(status: &Status) -> impl Iterator<Item = (&CollectionStatus, &FieldStatus)> {
    let collections = status.caches.iter();
    collections.flat_map(|collection| {
        collection
            .fields
            .iter()
            .map(move |field| (collection, field))
    })
}

fn builds(page: &mut Page, status: &Status) {
    let mut states = page.gauge(
        "forebay_documents_cache_index_state",
        "1 for the current state of a cache index, 0 for its other states.",
    );
    each_index(status, |labels, state| {
        for known in ["ready", "building", "failed"] {
            let labels = [labels, &[("state", known)]].concat();
            states.sample(&labels, u8::from(known == state.name()));
        }
    });
    let mut done = page.gauge(
        "forebay_documents_cache_build_documents",
        "Documents cached by a build so far.",
    );
    each_index(status, |labels, state| {
        if let IndexState::Building {
            done: documents, ..
        } = state
        {
            done.sample(labels, documents);
        }
    });
    let mut expected = page.gauge(
        "forebay_documents_cache_build_documents_expected",
        "Number of documents in the collection when the build began.",
    );
    each_index(status, |labels, state| {
        if let IndexState::Building { total, .. } = state {
            expected.sample(labels, total);
        }
    });
}

fn each_index(status: &Status, mut visit: impl FnMut(Labels<'_>, &IndexState)) {
    for collection in &status.caches {
        for (name, state) in &collection.indexes {
            let labels = [
                ("namespace", collection.namespace.as_str()),
                ("index", name.as_str()),
            ];
            visit(&labels, state);
        }
    }
}

fn store(page: &mut Page, status: &Status) {
    let store = &status.store;
    for (name, help, figure) in [
        (
            "forebay_documents_store_collections",
            "Collections of the store.",
            store.collections,
        ),
        (
            "forebay_documents_store_documents",
            "Documents of the store.",
            store.documents,
        ),
        (
            "forebay_documents_store_document_bytes",
            "Bytes of all documents of the store.",
            store.document_bytes,
        ),
    ] {
        page.gauge(name, help).sample(&[], figure);
    }
    if let Some(left) = store.inserts_left {
        page.gauge(
            "forebay_documents_store_inserts_left",
            "Remaining inserts until a collection runs out of record numbers; the minimum of all collections.",
        )
        .sample(&[], left);
    }
}

fn upstream_lag(page: &mut Page, proxy: &Proxy) {
    let mut lags = page.gauge(
        "forebay_documents_upstream_lag_seconds",
        "Lag of the caches of a collection behind the upstream.",
    );
    for (namespace, lag) in proxy.lags() {
        lags.sample(&[("namespace", &namespace)], lag.as_secs_f64());
    }
}
