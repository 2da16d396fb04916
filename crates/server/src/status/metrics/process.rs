//! The metrics of the process: build, uptime, memory and devices.

use std::sync::Arc;

use forebay_device::{Change, Device, PoolFigures};

use super::{Figure, Page};
use crate::status::process::ProcessStatus;

/// Appends the metrics of the process.
pub fn append(page: &mut Page, status: &ProcessStatus) {
    process(page, status);
    memory(page, status);
    devices(page, status);
}

fn process(page: &mut Page, status: &ProcessStatus) {
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    page.gauge(
        "forebay_build_info",
        "Always 1; the label is the version of the server.",
    )
    .sample(&version, 1);
    page.gauge("forebay_uptime_seconds", "Time since the start.")
        .sample(&[], status.uptime.as_secs_f64());
    page.gauge(
        "process_resident_memory_bytes",
        "Resident memory of the process.",
    )
    .sample(&[], status.resident_bytes);
}

fn memory(page: &mut Page, status: &ProcessStatus) {
    let figures = status.memory;
    page.gauge(
        "forebay_memory_limit_bytes",
        "Maximum memory of the process.",
    )
    .sample(&[], figures.limit_bytes);
    page.gauge(
        "forebay_memory_used_bytes",
        "Memory held for clients' requests.",
    )
    .sample(&[], figures.used_bytes);
    page.gauge(
        "forebay_memory_outside_bytes",
        "Other memory of the process: code, caches, buffers of the store.",
    )
    .sample(&[], figures.outside_bytes);
    page.gauge(
        "forebay_memory_peak_bytes",
        "Largest amount of memory that clients' requests have held at once.",
    )
    .sample(&[], figures.peak_bytes);
    page.counter(
        "forebay_memory_refused_total",
        "Requests refused because there was no memory left.",
    )
    .sample(&[], figures.refused);
}

const DEVICE_FIGURES: [Figure<Arc<Device>>; 5] = [
    (
        "forebay_device_memory_used_bytes",
        "gauge",
        "Device memory used for cached values.",
        |it| it.memory_used_bytes() as f64,
    ),
    (
        "forebay_device_memory_budget_bytes",
        "gauge",
        "Maximum device memory for cached values.",
        |it| it.memory_budget_bytes() as f64,
    ),
    (
        "forebay_device_queued_jobs",
        "gauge",
        "Jobs waiting or running on a device.",
        |it| it.queued_jobs() as f64,
    ),
    (
        "forebay_device_jobs_total",
        "counter",
        "Jobs finished by a device.",
        |it| it.finished_jobs() as f64,
    ),
    (
        "forebay_device_busy_seconds_total",
        "counter",
        "Time that the device's thread spent in jobs.",
        |it| it.busy_time().as_secs_f64(),
    ),
];

fn devices(page: &mut Page, status: &ProcessStatus) {
    let mut states = page.gauge(
        "forebay_device_state",
        "1 for the current state of a device, 0 for its other states.",
    );
    for device in &status.devices {
        let state = device.state().name();
        for known in ["ready", "leaving", "lost"] {
            let labels = [("device", device.name()), ("state", known)];
            states.sample(&labels, u8::from(known == state));
        }
    }
    for (name, kind, help, figure) in DEVICE_FIGURES {
        let mut family = page.family(name, kind, help);
        for device in &status.devices {
            family.sample(&[("device", device.name())], figure(device));
        }
    }
    pools(page, status);
    let mut events = page.counter(
        "forebay_device_events_total",
        "Devices that joined, left or were lost.",
    );
    for (change, count) in Change::NAMES.iter().zip(status.device_event_counts) {
        events.sample(&[("event", change)], count);
    }
}

/// Appends the memory of each tenant of each device.
fn pools(page: &mut Page, status: &ProcessStatus) {
    let of_devices = status.devices.iter().map(|it| (it.name(), it.pools()));
    let of_devices: Vec<_> = of_devices.collect();
    let figures: [Figure<PoolFigures>; 2] = [
        (
            "forebay_device_pool_used_bytes",
            "gauge",
            "Device memory that a tenant uses; the tenant is \"other\" for memory that is in no pool.",
            |it| it.used_bytes as f64,
        ),
        (
            "forebay_device_pool_max_bytes",
            "gauge",
            "Maximum device memory that a tenant may use, if no other tenant needs it.",
            |it| it.max_bytes as f64,
        ),
    ];
    for (name, kind, help, figure) in figures {
        let mut family = page.family(name, kind, help);
        for (device, pools) in &of_devices {
            for pool in pools {
                let labels = [("device", *device), ("tenant", pool.name.as_str())];
                family.sample(&labels, figure(pool));
            }
        }
    }
}
