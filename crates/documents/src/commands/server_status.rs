//! `serverStatus`: statistics of the process.

use bson::raw::CString;
use bson::{DateTime, RawDocumentBuf, Timestamp, rawdoc};

use crate::arguments::Known;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::host;
use crate::request::Request;
use crate::settings::MONGODB_VERSION;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "serverStatus",
    help: "shows statistics of the process",
    known: Known::Any,
    effect: Effect::Reads,
    run: Run::Now(run),
};

fn run(request: &Request<'_>) -> Reply {
    let documents = request.documents;
    let uptime = documents.started().elapsed();
    let (open, no_timeout) = documents.cursors().counts();
    let sizes = documents.store().sizes();
    Ok(rawdoc! {
        "host": host::name(),
        "version": MONGODB_VERSION,
        "process": "forebay",
        "pid": i64::from(std::process::id()),
        "uptime": uptime.as_secs_f64(),
        "uptimeMillis": uptime.as_millis() as i64,
        "uptimeEstimate": uptime.as_secs() as i64,
        "localTime": DateTime::now(),
        "mem": {
            "bits": usize::BITS as i32,
            "resident": (forebay_memory::resident_bytes() >> 20) as i32,
            "virtual": (forebay_memory::virtual_bytes() >> 20) as i32,
            "supported": true,
            "requests": memory(request),
        },
        "metrics": {
            "commands": commands(request),
            "cursor": { "open": { "total": open as i64, "noTimeout": no_timeout as i64 } },
        },
        "opcounters": opcounters(request),
        "storageEngine": { "name": "forebay", "persistent": documents.settings().location != crate::settings::Location::Memory },
        "forebay": {
            "version": documents.settings().version.as_str(),
            "collections": sizes.collections as i64,
            "documents": sizes.documents as i64,
            "documentBytes": sizes.document_bytes as i64,
            "devices": documents.devices().list().len() as i32,
            "changeHistory": change_history(request),
            "journalDropped": journal_dropped(request),
        },
        "ok": 1.0,
    })
}

/// Returns the memory account's statistics.
fn memory(request: &Request<'_>) -> RawDocumentBuf {
    let figures = request.documents.settings().memory.figures();
    let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    rawdoc! {
        "limitBytes": bytes(figures.limit_bytes),
        "usedBytes": bytes(figures.used_bytes),
        "outsideBytes": bytes(figures.outside_bytes),
        "peakBytes": bytes(figures.peak_bytes),
        "refused": bytes(figures.refused),
    }
}

/// Returns the journal bytes and batches that the last start discarded because they were incomplete.
fn journal_dropped(request: &Request<'_>) -> RawDocumentBuf {
    let dropped = request.documents.store().dropped();
    rawdoc! { "bytes": dropped.bytes as i64, "batches": dropped.batches as i64 }
}

/// Returns the first and last time of the change history and its size, or an empty document if the store keeps no
/// history.
fn change_history(request: &Request<'_>) -> RawDocumentBuf {
    match request.documents.store().history() {
        None => rawdoc! {},
        Some(history) => rawdoc! {
            "first": Timestamp::from(history.first()),
            "last": Timestamp::from(history.last()),
            "bytes": history.kept_bytes() as i64,
        },
    }
}

fn commands(request: &Request<'_>) -> RawDocumentBuf {
    let mut commands = RawDocumentBuf::new();
    for (name, total) in request.documents.counters().all() {
        let name = CString::try_from(name).expect("command names hold no NUL");
        commands.append(name, rawdoc! { "total": total as i64 });
    }
    commands
}

fn opcounters(request: &Request<'_>) -> RawDocumentBuf {
    let counters = request.documents.counters();
    let of = |name: &str| counters.of(name) as i64;
    let all: i64 = counters.all().iter().map(|(_, count)| *count as i64).sum();
    let named = ["insert", "find", "update", "delete", "getMore"]
        .iter()
        .map(|name| of(name))
        .sum::<i64>();
    rawdoc! {
        "insert": of("insert"),
        "query": of("find"),
        "update": of("update"),
        "delete": of("delete"),
        "getmore": of("getMore"),
        "command": all - named,
    }
}
