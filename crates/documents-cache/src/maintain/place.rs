//! Copying buckets to the devices that own them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{iter, mem, thread};

use forebay_device::{Device, DeviceId};
use forebay_text_gpu::LoadError;

use super::work::{Begun, begin};
use crate::CollectionCache;
use crate::bucket::Bucket;
use crate::cache::Shared;
use crate::gpu::is_gpu;
use crate::segment::{Copying, Replica};

/// A device, and a bucket's copies on the device.
type Copies<T> = (Arc<Device>, Vec<T>);

/// Moves each bucket of a field to the device that owns it. If the owner has no free memory, moves the bucket to
/// another device or to the host.
pub(super) fn place(collection: &CollectionCache, field: usize) {
    let begun = begin(collection, field);
    let count = begun.state.directory.buckets().len();
    let next = AtomicUsize::new(0);
    let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|position| *position < count);
    // Each thread prepares the next bucket while the copies of the previous bucket are in flight.
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

/// A bucket's move to another device or to the host.
///
/// The placement is locked for each random draw of an owner, but never while a bucket is laid out or copied, because
/// both may wait for a device. A draw adds the bucket's load to the device at once, so that draws by other threads take
/// it into account. The owner is read again after the copies are done, because devices may join, leave or fail
/// meanwhile.
struct Move {
    position: usize,
    /// Copies in flight; `None` if no device has enough free memory.
    copies: Option<Copies<Copying>>,
    /// Devices that failed or had too little free memory.
    refused: Vec<DeviceId>,
}

impl Move {
    /// Starts the move of a bucket. Returns `None` if the bucket need not move.
    fn begin(collection: &CollectionCache, begun: &Begun, position: usize) -> Option<Move> {
        let shared = &collection.shared;
        let bucket = &begun.state.directory.buckets()[position];
        if bucket.segments.is_empty() {
            shared.owners.lock().unassign(bucket.id());
            return None;
        }
        shared.owners.lock().resize(bucket.id(), load(bucket));
        if bucket
            .device()
            .is_some_and(|device| owns(device, shared, bucket))
        {
            return None;
        }
        let mut moved = Move {
            position,
            copies: None,
            refused: Vec::new(),
        };
        moved.begin_copies(shared, bucket);
        Some(moved)
    }

    /// Starts copying the bucket to its owner. If the owner has too little memory, draws another device as the owner.
    fn begin_copies(&mut self, shared: &Arc<Shared>, bucket: &Bucket) {
        self.copies = None;
        while self.copies.is_none() {
            let is_open = |owner: &DeviceId| !self.refused.contains(owner);
            let owner = shared.owners.lock().owner(bucket.id()).filter(is_open);
            let draw = || {
                let mut placement = shared.owners.lock();
                placement.draw(bucket.id(), load(bucket), &self.refused)
            };
            let Some(owner) = owner.or_else(draw) else {
                return;
            };
            self.copies = copies_on(shared, bucket, owner);
            if self.copies.is_none() {
                self.refused.push(owner);
            }
        }
    }

    /// Waits for the copies and installs them.
    fn finish(mut self, collection: &CollectionCache, begun: &Begun) {
        let bucket = &begun.state.directory.buckets()[self.position];
        let copies = self.finish_copies(&collection.shared, bucket);
        begun.install(collection, |state| {
            let bucket = Arc::make_mut(&mut state.directory).bucket_mut(self.position);
            match copies {
                Some((device, copies)) => bucket.place(&device, copies),
                None => bucket.release(),
            }
        });
    }

    /// Waits for the copies. Starts again on another device each time the owner fails or changes.
    fn finish_copies(
        &mut self,
        shared: &Arc<Shared>,
        bucket: &Bucket,
    ) -> Option<Copies<Arc<Replica>>> {
        while let Some((device, copies)) = self.copies.take() {
            let copied = Copying::wait_all(copies).inspect_err(|error| tracing::debug!(%error));
            if !device.is_ready() || copied.is_err() {
                self.refused.push(device.id());
            }
            match copied {
                Ok(copies) if owns(&device, shared, bucket) => return Some((device, copies)),
                _ => self.begin_copies(shared, bucket),
            }
        }
        None
    }
}

/// Returns the load of a bucket on its device: its bytes, because the time of most scans is proportional to them.
fn load(bucket: &Bucket) -> u64 {
    bucket.bytes() as u64
}

/// Returns whether the device owns the bucket and is ready.
fn owns(device: &Device, shared: &Shared, bucket: &Bucket) -> bool {
    device.is_ready() && shared.owners.lock().owner(bucket.id()) == Some(device.id())
}

fn copies_on(shared: &Arc<Shared>, bucket: &Bucket, owner: DeviceId) -> Option<Copies<Copying>> {
    let device = shared
        .devices
        .get(owner)
        .filter(|device| device.is_ready())?;
    let pool = shared.pool(&device).map_err(LoadError::from);
    pool.and_then(|pool| bucket.begin_copies(&device, &pool))
        .inspect_err(|error| tracing::debug!(%error, bucket = %bucket.id()))
        .ok()
        .map(|copies| (device, copies))
}
