//! The figures as Prometheus reads them: text, one line a sample.

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_device::Change;
use forebay_documents::{
    CollectionStatus, DeviceStatus, Durations, FieldStatus, Histogram, IndexState, SearchFigures,
    Status,
};

use super::json::device_name;
use crate::door::Door;
use crate::shadow::Counters;

/// The page.
pub fn page(door: &Door, status: &Status) -> String {
    let mut page = Page::default();
    process(&mut page, status);
    memory(&mut page, door);
    connections(&mut page, door);
    searches(&mut page, &status.searches);
    commands(&mut page, door, status);
    devices(&mut page, status);
    caches(&mut page, status);
    store(&mut page, status);
    page.text
}

/// A page that is being written.
#[derive(Default)]
struct Page {
    text: String,
}

/// Names and values of labels.
type Labels<'a> = &'a [(&'a str, &'a str)];

impl Page {
    /// Begins the samples of one name; the kind is `counter`, `gauge` or `histogram`.
    fn family(&mut self, name: &'static str, kind: &str, help: &str) -> Family<'_> {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
        Family { page: self, name }
    }

    fn counter(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "counter", help)
    }

    fn gauge(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "gauge", help)
    }

    fn line(&mut self, line: impl Display) {
        writeln!(self.text, "{line}").expect("memory takes every text");
    }
}

/// The samples of one name.
struct Family<'a> {
    page: &'a mut Page,
    name: &'static str,
}

impl Family<'_> {
    fn sample(&mut self, labels: Labels<'_>, value: impl Display) -> &mut Self {
        self.suffixed("", labels, value)
    }

    fn suffixed(&mut self, suffix: &str, labels: Labels<'_>, value: impl Display) -> &mut Self {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", escape(value)))
            .collect();
        let labels = match labels.is_empty() {
            true => String::new(),
            false => format!("{{{}}}", labels.join(",")),
        };
        let name = self.name;
        self.page
            .line(format_args!("{name}{suffix}{labels} {value}"));
        self
    }
}

fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

fn process(page: &mut Page, status: &Status) {
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    page.gauge("forebay_build_info", "The build that runs; always 1.")
        .sample(&version, 1);
    page.gauge("forebay_uptime_seconds", "Time since the start.")
        .sample(&[], status.uptime.as_secs_f64());
    page.gauge(
        "process_resident_memory_bytes",
        "Memory that the process occupies.",
    )
    .sample(&[], status.resident_bytes);
}

fn memory(page: &mut Page, door: &Door) {
    let figures = door.documents().settings().memory.figures();
    page.gauge(
        "forebay_memory_limit_bytes",
        "Maximum memory of the process.",
    )
    .sample(&[], figures.limit_bytes);
    page.gauge(
        "forebay_memory_used_bytes",
        "Memory held for what clients ask for.",
    )
    .sample(&[], figures.used_bytes);
    page.gauge(
        "forebay_memory_outside_bytes",
        "Memory that the process holds besides: code, caches, buffers of the store.",
    )
    .sample(&[], figures.outside_bytes);
    page.gauge(
        "forebay_memory_peak_bytes",
        "Most memory that was held for what clients ask for.",
    )
    .sample(&[], figures.peak_bytes);
    page.counter(
        "forebay_memory_refused_total",
        "Requests for memory that were refused because it was full.",
    )
    .sample(&[], figures.refused);
}

/// The listener that connections came through.
const PROTOCOL: [(&str, &str); 1] = [("protocol", "mongodb")];

fn connections(page: &mut Page, door: &Door) {
    let connections = door.connections();
    page.gauge("forebay_connections_open", "Connections of clients now.")
        .sample(&PROTOCOL, connections.open);
    page.gauge("forebay_connections_max", "Most connections at a time.")
        .sample(&[], connections.max);
    page.counter("forebay_connections_accepted_total", "Connections taken.")
        .sample(&PROTOCOL, connections.taken);
    page.counter(
        "forebay_connections_refused_total",
        "Connections refused because there were too many.",
    )
    .sample(&PROTOCOL, connections.refused);
    page.counter(
        "forebay_connections_given_away_total",
        "Connections closed to make room, as their clients had not authenticated.",
    )
    .sample(&[], connections.given_away);
    page.counter(
        "forebay_wrong_passwords_total",
        "Attempts to authenticate with a wrong password or as a user that is not there.",
    )
    .sample(&[], connections.wrong_passwords);
}

fn searches(page: &mut Page, searches: &SearchFigures) {
    let mut totals = page.counter(
        "forebay_documents_searches_total",
        "Searches, by where their documents came from and how the cache compared values.",
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
        "Time of a search from its command to its first batch.",
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
            "Rows of caches that were scanned.",
            searches.rows,
        ),
        (
            "forebay_documents_search_bytes_total",
            "Bytes of caches that were scanned.",
            searches.bytes,
        ),
        (
            "forebay_documents_searches_slow_total",
            "Searches that were logged as slow.",
            searches.slow,
        ),
        (
            "forebay_documents_searches_failed_total",
            "Searches that ended with an error.",
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
    if let Some(forwarded) = door.forwarded() {
        let mut all = page.counter(
            "forebay_documents_upstream_commands_total",
            "Commands passed on to the store behind, by name.",
        );
        for (name, count) in forwarded {
            all.sample(&[("command", name)], count);
        }
    }
    if let Some(reads) = door.upstream_reads() {
        upstream_reads(page, reads);
    }
    page.gauge("forebay_documents_cursors", "Open cursors.")
        .sample(&[], status.cursors);
}

fn upstream_reads(page: &mut Page, reads: &Counters) {
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let mut all = page.counter(
        "forebay_documents_upstream_reads_total",
        "Reads on cached collections of the store behind, by how they were answered.",
    );
    all.sample(&[("by", "cache")], of(&reads.answered));
    all.sample(&[("by", "id")], of(&reads.narrowed));
    all.sample(&[("by", "upstream")], of(&reads.forwarded));
    page.counter(
        "forebay_documents_upstream_slower_total",
        "Reads left to the store behind as it searches faster than it gives documents by their _id.",
    )
    .sample(&[], of(&reads.slower));
}

/// Name, kind and help of a family, and where its samples come from.
type Figure<T> = (&'static str, &'static str, &'static str, fn(&T) -> f64);

const DEVICE_FIGURES: [Figure<DeviceStatus>; 6] = [
    (
        "forebay_device_memory_used_bytes",
        "gauge",
        "Memory of a device that cached values take.",
        |it| it.device.memory_used_bytes() as f64,
    ),
    (
        "forebay_device_memory_budget_bytes",
        "gauge",
        "Memory of a device that cached values may take.",
        |it| it.device.memory_budget_bytes() as f64,
    ),
    (
        "forebay_device_queued_jobs",
        "gauge",
        "Jobs that wait or run on a device.",
        |it| it.device.queued_jobs() as f64,
    ),
    (
        "forebay_documents_device_buckets",
        "gauge",
        "Buckets on a device.",
        |it| it.buckets as f64,
    ),
    (
        "forebay_device_jobs_total",
        "counter",
        "Jobs that a device has finished.",
        |it| it.device.finished_jobs() as f64,
    ),
    (
        "forebay_device_busy_seconds_total",
        "counter",
        "Time that a device's thread has spent in jobs.",
        |it| it.device.busy_time().as_secs_f64(),
    ),
];

fn devices(page: &mut Page, status: &Status) {
    let mut states = page.gauge(
        "forebay_device_state",
        "1 for the state that a device is in.",
    );
    for device in &status.devices {
        let state = device.device.state().name();
        for known in ["ready", "leaving", "lost"] {
            let labels = [("device", device.device.name()), ("state", known)];
            states.sample(&labels, u8::from(known == state));
        }
    }
    for (name, kind, help, figure) in DEVICE_FIGURES {
        let mut family = page.family(name, kind, help);
        for device in &status.devices {
            family.sample(&[("device", device.device.name())], figure(device));
        }
    }
    let mut events = page.counter(
        "forebay_device_events_total",
        "Devices that joined, left or were lost.",
    );
    for (change, count) in Change::NAMES.iter().zip(status.device_event_counts) {
        events.sample(&[("event", change)], count);
    }
}

const FIELD_FIGURES: [Figure<FieldStatus>; 5] = [
    (
        "forebay_documents_cache_values",
        "gauge",
        "Values of a field that are cached.",
        |it| it.rows as f64,
    ),
    (
        "forebay_documents_cache_value_bytes",
        "gauge",
        "Bytes of those values.",
        |it| it.value_bytes as f64,
    ),
    (
        "forebay_documents_cache_overhead_bytes",
        "gauge",
        "Memory of this machine that they take above that.",
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
        "Documents whose field the store must judge.",
        |it| it.recheck_documents as f64,
    ),
];

fn caches(page: &mut Page, status: &Status) {
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
        "Buckets of a field by the device that scans them; host where none does.",
    );
    for (collection, field) in fields(status) {
        for (device, count) in &field.buckets {
            let labels = [
                ("namespace", collection.namespace.as_str()),
                ("field", field.path.as_str()),
                ("device", &device_name(status, *device)),
            ];
            buckets.sample(&labels, count);
        }
    }
    let mut conditions = page.counter(
        "forebay_documents_cache_conditions_total",
        "Conditions on a field that its cache answered, by how values were compared.",
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
        "1 for the state that a cache index is in.",
    );
    each_index(status, |labels, state| {
        for known in ["ready", "building", "failed"] {
            let labels = [labels, &[("state", known)]].concat();
            states.sample(&labels, u8::from(known == state.name()));
        }
    });
    let mut done = page.gauge(
        "forebay_documents_cache_build_documents",
        "Documents that a build has cached so far.",
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
        "Documents that the collection had when the build began.",
    );
    each_index(status, |labels, state| {
        if let IndexState::Building { total, .. } = state {
            expected.sample(labels, total);
        }
    });
}

fn each_index(status: &Status, mut told: impl FnMut(Labels<'_>, &IndexState)) {
    for collection in &status.caches {
        for (name, state) in &collection.indexes {
            let labels = [
                ("namespace", collection.namespace.as_str()),
                ("index", name.as_str()),
            ];
            told(&labels, state);
        }
    }
}

fn store(page: &mut Page, status: &Status) {
    let store = &status.store;
    for (name, help, figure) in [
        (
            "forebay_documents_store_collections",
            "Collections.",
            store.collections,
        ),
        (
            "forebay_documents_store_documents",
            "Documents.",
            store.documents,
        ),
        (
            "forebay_documents_store_document_bytes",
            "Size of all documents.",
            store.document_bytes,
        ),
    ] {
        page.gauge(name, help).sample(&[], figure);
    }
    if let Some(left) = store.inserts_left {
        page.gauge(
            "forebay_documents_store_inserts_left",
            "Inserts that the collection can still take that can take the fewest.",
        )
        .sample(&[], left);
    }
    if status.store_lag.is_empty() {
        return;
    }
    let mut lags = page.gauge(
        "forebay_documents_upstream_lag_seconds",
        "How far the caches of a collection are behind the store behind us.",
    );
    for (namespace, lag) in &status.store_lag {
        lags.sample(&[("namespace", namespace)], lag.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cannot_end_early() {
        let mut page = Page::default();
        let namespace = "a\"b\\c\nd";
        page.gauge("x", "Help.")
            .sample(&[("namespace", namespace)], 1);
        let expected = "# HELP x Help.\n# TYPE x gauge\nx{namespace=\"a\\\"b\\\\c\\nd\"} 1\n";
        assert_eq!(page.text, expected);
    }
}
