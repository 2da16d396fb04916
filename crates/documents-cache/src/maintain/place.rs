//! Putting buckets where the placement says.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{iter, mem, thread};

use forebay_device::{Device, DeviceId};

use super::work::{Begun, begin};
use crate::CollectionCache;
use crate::bucket::Bucket;
use crate::cache::Shared;
use crate::gpu::is_gpu;
use crate::segment::{Copying, Replica};

/// A device and a bucket's copies on it.
type Copies<T> = (Arc<Device>, Vec<T>);

/// Moves every bucket of a field to its device: that of the placement, or another one with room, or none.
pub(super) fn place(collection: &CollectionCache, field: usize) {
    let begun = begin(collection, field);
    let count = begun.state.directory.buckets().len();
    let next = AtomicUsize::new(0);
    let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|position| *position < count);
    // Each thread lays out a bucket while the copies of the one before are on their way.
    let settle = || {
        let mut before = None;
        let moves = iter::from_fn(take).map(|position| Move::begin(collection, &begun, position));
        for now in moves.chain([None]) {
            if let Some(before) = mem::replace(&mut before, now) {
                before.finish(collection, &begun);
            }
        }
    };
    let devices = collection.shared.devices.list();
    if devices.iter().any(|device| is_gpu(device)) {
        thread::scope(|scope| {
            for _ in 0..count.min(forebay_device::cores()) {
                scope.spawn(settle);
            }
        });
    } else {
        settle();
    }
}

/// A bucket on its way to another device, or to none.
struct Move {
    position: usize,
    copies: Option<Copies<Copying>>,
}

impl Move {
    /// None if the bucket is where it should be.
    fn begin(collection: &CollectionCache, begun: &Begun, position: usize) -> Option<Move> {
        let shared = &collection.shared;
        let bucket = &begun.state.directory.buckets()[position];
        if bucket.segments.is_empty() {
            shared.placement.lock().assign(bucket.id(), 0, None);
            return None;
        }
        shared.placement.lock().resize(bucket.id(), load(bucket));
        if is_settled(shared, bucket) {
            return None;
        }
        let copies = copies_at_home(shared, bucket).or_else(|| copies_elsewhere(shared, bucket));
        Some(Move { position, copies })
    }

    /// Waits for the copies, and puts the bucket there.
    fn finish(self, collection: &CollectionCache, begun: &Begun) {
        let shared = &collection.shared;
        let bucket = &begun.state.directory.buckets()[self.position];
        let copies = self.copies.and_then(|copies| {
            // A device that was lost on the way is drawn no more.
            wait(copies).or_else(|| copies_elsewhere(shared, bucket).and_then(wait))
        });
        begun.install(collection, |state| {
            let bucket = Arc::make_mut(&mut state.directory).bucket_mut(self.position);
            match copies {
                Some((device, copies)) => bucket.place(&device, copies),
                None => bucket.release(),
            }
        });
    }
}

fn wait((device, copies): Copies<Copying>) -> Option<Copies<Arc<Replica>>> {
    Copying::wait_all(copies)
        .inspect_err(|error| tracing::debug!(%error))
        .ok()
        .map(|copies| (device, copies))
}

/// What a bucket is to its device: most scans take time by the byte.
fn load(bucket: &Bucket) -> u64 {
    bucket.bytes() as u64
}

/// Whether the bucket is where the placement says, and the device still works.
fn is_settled(shared: &Shared, bucket: &Bucket) -> bool {
    let home = shared.placement.lock().home(bucket.id());
    bucket
        .device()
        .is_some_and(|device| home == Some(device.id().0) && device.is_ready())
}

fn copies_at_home(shared: &Shared, bucket: &Bucket) -> Option<Copies<Copying>> {
    let home = shared.placement.lock().home(bucket.id())?;
    copies_on(shared, bucket, home)
}

/// Draws another device with room for the bucket.
fn copies_elsewhere(shared: &Shared, bucket: &Bucket) -> Option<Copies<Copying>> {
    let mut made = None;
    shared
        .placement
        .lock()
        .draw(bucket.id(), load(bucket), |home| {
            made = copies_on(shared, bucket, home);
            made.is_some()
        });
    made
}

fn copies_on(shared: &Shared, bucket: &Bucket, home: u32) -> Option<Copies<Copying>> {
    let device = shared
        .devices
        .get(DeviceId(home))
        .filter(|device| device.is_ready())?;
    let copies = bucket.begin_copies(&device);
    copies
        .inspect_err(|error| tracing::debug!(%error, bucket = %bucket.id()))
        .ok()
        .map(|copies| (device, copies))
}
