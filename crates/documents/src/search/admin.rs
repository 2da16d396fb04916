//! The replies to Forebay's own commands about devices, buckets and patterns.

use std::sync::Arc;

use bson::{RawArrayBuf, RawBsonRef, RawDocumentBuf, cstr, rawdoc};
use forebay_device::{Device, DeviceSpec, DeviceState};
use forebay_documents_cache::Cache;
use forebay_documents_query::{Code, pattern_error};
use forebay_text::{Limits, Options, Pattern, Program};

use super::collection::CollectionSearch;
use crate::arguments::integer;
use crate::error::CommandError;

/// Replies to `{forebayDevices: 1}` with the devices that hold the cache.
pub fn devices_reply(cache: &Cache) -> RawDocumentBuf {
    let devices = cache.devices().list();
    let devices = RawArrayBuf::from_iter(devices.iter().map(|device| device_document(device)));
    rawdoc! { "devices": devices, "ok": 1.0 }
}

/// Replies to `{forebayDevices: 1, add: "host:2"}`: adds devices and moves their share of the buckets to them.
///
/// Blocks until the buckets have moved; searches continue.
///
/// # Errors
/// `BadValue` if the machine has no such devices.
pub fn add_devices(cache: &Cache, spec: &str) -> Result<RawDocumentBuf, CommandError> {
    let spec: DeviceSpec = spec
        .parse()
        .map_err(|error| CommandError::bad_value(format!("{error}")))?;
    let added = cache
        .devices()
        .add(&spec)
        .map_err(|error| CommandError::bad_value(error.to_string()))?;
    let moved: usize = added
        .iter()
        .map(|device| cache.wait_for_moves(device.id()))
        .sum();
    let added = RawArrayBuf::from_iter(added.iter().map(|device| device_document(device)));
    Ok(rawdoc! { "added": added, "bucketsMoved": moved as i64, "ok": 1.0 })
}

/// Replies to `{forebayDevices: 1, remove: 3}` or `remove: "host:3"`: removes a device and moves its buckets to the
/// others.
///
/// Blocks until the buckets have moved; searches continue.
///
/// # Errors
/// `BadValue` if there is no such device, or it is the last one and `even_last` is false.
pub fn remove_device(
    cache: &Cache,
    named: RawBsonRef<'_>,
    even_last: bool,
) -> Result<RawDocumentBuf, CommandError> {
    let devices = cache.devices().list();
    let is_meant = |device: &&Arc<Device>| match named {
        RawBsonRef::String(name) => device.name() == name,
        number => integer(number) == Some(i64::from(device.id().0)),
    };
    let id = devices.iter().find(is_meant).map(|device| device.id());
    let id = id.ok_or_else(|| no_device(named, &devices))?;
    if devices.len() == 1 && !even_last {
        let message = "this is the last device; without a device, each search uses one core. To remove the device, run `forebay devices remove --yes`, or send the command with `last: true`";
        return Err(CommandError::bad_value(message));
    }
    let removed = cache.devices().remove(id);
    let removed = removed.map_err(|error| CommandError::bad_value(error.to_string()))?;
    let moved = cache.wait_for_moves(removed.id());
    Ok(rawdoc! { "removed": device_document(&removed), "bucketsMoved": moved as i64, "ok": 1.0 })
}

fn no_device(named: RawBsonRef<'_>, devices: &[Arc<Device>]) -> CommandError {
    let named = match named {
        RawBsonRef::String(name) => name.to_owned(),
        number => integer(number).map_or_else(|| "none".to_owned(), |id| id.to_string()),
    };
    let names: Vec<&str> = devices.iter().map(|device| device.name()).collect();
    let message = format!(
        "there is no device {named}: the devices are {}",
        names.join(", ")
    );
    CommandError::bad_value(message)
}

fn device_document(device: &Device) -> RawDocumentBuf {
    let mut document = rawdoc! {
        "id": i64::from(device.id().0),
        "name": device.name(),
        "kind": device.kind().to_string(),
        "state": device.state().name(),
        "memoryBudgetBytes": device.memory_budget_bytes() as i64,
        "memoryUsedBytes": device.memory_used_bytes() as i64,
        "queuedJobs": device.queued_jobs() as i64,
    };
    if let Some(gpu) = device.details() {
        document.append(cstr!("gpu"), gpu.to_string());
    }
    if let DeviceState::Lost { why } = device.state() {
        document.append(cstr!("reason"), why.to_string());
    }
    document
}

/// Replies to `{forebayBuckets: "db.collection.field"}` with the buckets of a cached field in order of value.
///
/// Names of collections and fields may contain dots, so the callback `find` is called with each possible collection
/// name.
///
/// # Errors
/// `BadValue` if the name has too few parts, `NamespaceNotFound`, or `IndexNotFound` if the field is not cached.
pub fn buckets_reply(
    name: &str,
    find: impl Fn(&str) -> Option<Arc<CollectionSearch>>,
) -> Result<RawDocumentBuf, CommandError> {
    if name.matches('.').count() < 2 {
        let message = format!("'{name}' names no field: write DATABASE.COLLECTION.FIELD");
        return Err(CommandError::bad_value(message));
    }
    let mut collection_found = false;
    for (dot, _) in name.match_indices('.') {
        let Some(search) = find(&name[..dot]) else {
            continue;
        };
        collection_found = true;
        if let Some(buckets) = search.bucket_documents(&name[dot + 1..]) {
            return Ok(
                rawdoc! { "field": name, "buckets": RawArrayBuf::from_iter(buckets), "ok": 1.0 },
            );
        }
    }
    Err(if collection_found {
        CommandError::refused(Code::IndexNotFound, format!("no cached field '{name}'"))
    } else {
        CommandError::refused(
            Code::NamespaceNotFound,
            format!("the collection of the field '{name}' does not exist"),
        )
    })
}

/// Replies to `{forebayPattern: "^a.*b", options: "i"}` with the matching tier of a pattern, and the reason why no
/// faster tier is possible.
///
/// # Errors
/// Code 51091 for an invalid pattern, code 51108 for an unknown option.
pub fn pattern_reply(
    source: &str,
    options: &str,
    limits: &Limits,
) -> Result<RawDocumentBuf, CommandError> {
    let options = Options::parse(options).map_err(pattern_error)?;
    let pattern = Pattern::new(source, options, limits).map_err(pattern_error)?;
    let program = Program::compile(pattern, limits);
    Ok(
        rawdoc! { "tier": program.tier().name(), "description": program.describe().to_string(), "ok": 1.0 },
    )
}
