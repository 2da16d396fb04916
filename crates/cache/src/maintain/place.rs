//! Putting buckets where the placement says.

use std::sync::Arc;

use forebay_device::{Device, DeviceId};

use super::work::{Begun, begin};
use crate::CollectionCache;
use crate::bucket::Bucket;
use crate::cache::Shared;
use crate::segment::Replica;

/// A device and a bucket's copies on it.
type Copies = (Arc<Device>, Vec<Arc<Replica>>);

/// Moves every bucket of a field to its device: that of the placement, or another one with room, or none.
pub(super) fn place(collection: &CollectionCache, field: usize) {
    let begun = begin(collection, field);
    for (position, bucket) in begun.state.directory.buckets().iter().enumerate() {
        settle(collection, &begun, position, bucket);
    }
}

fn settle(collection: &CollectionCache, begun: &Begun, position: usize, bucket: &Bucket) {
    let shared = &collection.shared;
    if bucket.segments.is_empty() {
        shared.placement.lock().assign(bucket.id(), 0, None);
        return;
    }
    // Most scans take time by the byte.
    let load = bucket.bytes() as u64;
    shared.placement.lock().resize(bucket.id(), load);
    if is_settled(shared, bucket) {
        return;
    }
    let copies = copies_at_home(shared, bucket).or_else(|| copies_elsewhere(shared, bucket, load));
    begun.install(collection, |state| {
        let bucket = Arc::make_mut(&mut state.directory).bucket_mut(position);
        match copies {
            Some((device, copies)) => bucket.place(&device, copies),
            None => bucket.release(),
        }
    });
}

/// Whether the bucket is where the placement says, and the device still works.
fn is_settled(shared: &Shared, bucket: &Bucket) -> bool {
    let home = shared.placement.lock().home(bucket.id());
    bucket
        .device()
        .is_some_and(|device| home == Some(device.id().0) && device.is_ready())
}

fn copies_at_home(shared: &Shared, bucket: &Bucket) -> Option<Copies> {
    let home = shared.placement.lock().home(bucket.id())?;
    copies_on(shared, bucket, home)
}

/// Draws another device with room for the bucket.
fn copies_elsewhere(shared: &Shared, bucket: &Bucket, load: u64) -> Option<Copies> {
    let mut made = None;
    shared.placement.lock().draw(bucket.id(), load, |home| {
        made = copies_on(shared, bucket, home);
        made.is_some()
    });
    made
}

fn copies_on(shared: &Shared, bucket: &Bucket, home: u32) -> Option<Copies> {
    let device = shared
        .devices
        .get(DeviceId(home))
        .filter(|device| device.is_ready())?;
    let copies = bucket.copies(&device);
    copies
        .inspect_err(|error| tracing::debug!(%error, bucket = %bucket.id()))
        .ok()
        .map(|copies| (device, copies))
}
