//! Putting buckets where the placement says.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use forebay_device::{Device, DeviceId};

use super::work::{Begun, begin};
use crate::CollectionCache;
use crate::bucket::Bucket;
use crate::cache::Shared;
use crate::gpu::is_gpu;
use crate::segment::Replica;

/// A device and a bucket's copies on it.
type Copies = (Arc<Device>, Vec<Arc<Replica>>);

/// Threads a core that copy buckets to GPUs: while one waits for its copy, another lays out the next.
const LOADERS_PER_CORE: usize = 2;

/// Moves every bucket of a field to its device: that of the placement, or another one with room, or none.
pub(super) fn place(collection: &CollectionCache, field: usize) {
    let begun = begin(collection, field);
    let buckets = begun.state.directory.buckets();
    let settle = |position: usize| settle(collection, &begun, position, &buckets[position]);
    let devices = collection.shared.devices.list();
    if devices.iter().any(|device| is_gpu(device)) {
        in_parallel(buckets.len(), settle);
    } else {
        (0..buckets.len()).for_each(settle);
    }
}

/// Does `work` for each number below `count`, several at a time.
fn in_parallel(count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|index| *index < count);
    let cores = forebay_device::cores();
    thread::scope(|scope| {
        for _ in 0..count.min(cores * LOADERS_PER_CORE) {
            scope.spawn(|| iter::from_fn(take).for_each(&work));
        }
    });
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
