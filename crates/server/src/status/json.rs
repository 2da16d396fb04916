//! The status as JSON, for the status page.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_device::{Change, Device, DeviceEvent, DeviceId, DeviceState, PoolFigures};
use forebay_documents::{
    Cell, CollectionStatus, FieldStatus, Histogram, IndexState, SearchFigures, Status,
};
use forebay_documents_proxy::Proxy;
use serde_json::{Map, Value, json};

use super::Snapshot;
use crate::doors::documents::Door;

/// Maximum number of fields on the page; `/metrics` has all fields.
const FIELDS_MAX: usize = 60;

/// Returns the status as a JSON object, with that of the tables.
pub fn page(door: &Door, snapshot: &Snapshot, problems: &[String], tables: Value) -> Value {
    let connections = door.connections();
    let Snapshot {
        process,
        documents: status,
    } = snapshot;
    let device = |it: &Arc<Device>| device(it, status.buckets_on(it.id()));
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "now": seconds(SystemTime::now()),
        "uptimeSeconds": process.uptime.as_secs_f64(),
        "residentBytes": process.resident_bytes,
        "problems": problems,
        "upstream": door.proxy().map(|proxy| proxy.upstream().to_string()),
        "connections": {
            "open": connections.open,
            "max": connections.max,
            "taken": connections.taken,
            "refused": connections.refused,
        },
        "devices": process.devices.iter().map(device).collect::<Vec<_>>(),
        "deviceEvents": process.device_events.iter().map(event).collect::<Vec<_>>(),
        "caches": caches(status),
        "fieldsLeftOut": fields_of(status).saturating_sub(FIELDS_MAX),
        "searches": searches(&status.searches),
        "commands": counts(status.commands.iter().copied()),
        "forwarded": door.proxy().map(|proxy| counts(proxy.forwarded())),
        "cursors": status.cursors,
        "store": {
            "collections": status.store.collections,
            "documents": status.store.documents,
            "documentBytes": status.store.document_bytes,
        },
        "upstreamLagSeconds": lags(door),
        "tables": tables,
    })
}

/// Returns the seconds of a time since 1970.
pub fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

/// Returns the counts that are not zero, by name.
fn counts(counts: impl IntoIterator<Item = (&'static str, u64)>) -> Value {
    let counts = counts.into_iter().filter(|(_, count)| *count > 0);
    Value::Object(
        counts
            .map(|(name, count)| (name.to_owned(), count.into()))
            .collect(),
    )
}

fn lags(door: &Door) -> Value {
    let lags = door.proxy().map(Proxy::lags).unwrap_or_default();
    let lags = lags.into_iter();
    let seconds = lags.map(|(namespace, lag)| (namespace, lag.as_secs_f64().into()));
    Value::Object(seconds.collect())
}

fn device(device: &Device, buckets: u64) -> Value {
    let state = device.state();
    json!({
        "id": device.id().0,
        "name": device.name(),
        "kind": device.kind().to_string(),
        "state": state.name(),
        "reason": match &state {
            DeviceState::Lost { why } => Some(why),
            _ => None,
        },
        "gpu": device.details().map(ToString::to_string),
        "memoryBudgetBytes": device.memory_budget_bytes(),
        "memoryUsedBytes": device.memory_used_bytes(),
        "tenants": device.pools().iter().map(tenant).collect::<Vec<_>>(),
        "queuedJobs": device.queued_jobs(),
        "finishedJobs": device.finished_jobs(),
        "busySeconds": device.busy_time().as_secs_f64(),
        "buckets": buckets,
    })
}

fn tenant(pool: &PoolFigures) -> Value {
    json!({
        "name": pool.name,
        "usedBytes": pool.used_bytes,
        "maxBytes": pool.max_bytes,
    })
}

fn event(event: &DeviceEvent) -> Value {
    json!({
        "at": seconds(event.at),
        "device": event.device,
        "change": event.change.name(),
        "reason": match &event.change {
            Change::Lost { why } => Some(why),
            Change::Joined | Change::Left => None,
        },
    })
}

fn fields_of(status: &Status) -> usize {
    status.caches.iter().map(|cache| cache.fields.len()).sum()
}

fn caches(status: &Status) -> Vec<Value> {
    let mut room = FIELDS_MAX;
    let mut caches = Vec::new();
    for collection in &status.caches {
        let shown = collection.fields.len().min(room);
        room -= shown;
        let fields = &collection.fields[..shown];
        caches.push(json!({
            "ns": collection.namespace,
            "indexes": indexes(collection),
            "fields": fields.iter().map(field).collect::<Vec<_>>(),
        }));
        if room == 0 {
            break;
        }
    }
    caches
}

fn indexes(collection: &CollectionStatus) -> Vec<Value> {
    let index = |(name, state): &(String, IndexState)| {
        let mut index = json!({ "name": name, "state": state.name() });
        match state {
            IndexState::Ready => {}
            IndexState::Building { done, total } => {
                index["done"] = (*done).into();
                index["total"] = (*total).into();
            }
            IndexState::Failed { reason } => index["reason"] = reason.as_str().into(),
        }
        index
    };
    collection.indexes.iter().map(index).collect()
}

fn field(field: &FieldStatus) -> Value {
    json!({
        "path": field.path,
        "rows": field.rows,
        "valueBytes": field.value_bytes,
        "overheadBytes": field.overhead_bytes,
        "deltaRows": field.delta_rows,
        "recheckDocuments": field.recheck_documents,
        "buckets": by_device(&field.buckets),
        "cells": field.cells.iter().map(cell).collect::<Vec<_>>(),
        "searches": counts(field.searches.iter().map(|(tier, count)| (*tier, *count))),
    })
}

fn cell(cell: &Cell) -> Value {
    json!({ "rows": cell.rows, "buckets": by_device(&cell.buckets) })
}

/// Returns the number of buckets by device id; `host` for buckets that no device holds.
fn by_device(buckets: &BTreeMap<Option<DeviceId>, u64>) -> Value {
    let name = |device: &Option<DeviceId>| device.map_or("host".to_owned(), |id| id.to_string());
    let counts = buckets.iter();
    Value::Object(
        counts
            .map(|(device, count)| (name(device), (*count).into()))
            .collect::<Map<_, _>>(),
    )
}

fn searches(searches: &SearchFigures) -> Value {
    let kinds = searches.durations.iter().map(|(kind, durations)| {
        json!({
            "answeredBy": kind.answered_by.name(),
            "tier": kind.tier_name(),
            "counts": durations.counts,
            "sumSeconds": durations.sum.as_secs_f64(),
        })
    });
    json!({
        "boundsMicros": Histogram::BOUNDS_US,
        "kinds": kinds.collect::<Vec<_>>(),
        "cacheNotUsed": counts(searches.not_used.iter().copied()),
        "rows": searches.rows,
        "bytes": searches.bytes,
        "slow": searches.slow,
        "failed": searches.failed,
    })
}
