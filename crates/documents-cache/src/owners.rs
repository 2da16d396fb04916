//! The placement of buckets: which device owns which bucket.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use forebay_device::{Device, DeviceId};
use forebay_placement::{Placement, ShardId};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

/// The placement of all buckets of a cache.
#[derive(Debug)]
pub(crate) struct Owners {
    locked: Mutex<Locked>,
    /// Receives the ids of dropped buckets. A guard may be dropped on an async worker, so dropping it must not take a
    /// lock.
    gone: Sender<ShardId>,
    next_id: AtomicU64,
}

#[derive(Debug)]
struct Locked {
    placement: Placement<DeviceId>,
    gone: Receiver<ShardId>,
}

impl Owners {
    /// Creates a placement without devices and buckets. `seed` determines its random draws.
    pub(crate) fn new(seed: u64) -> Owners {
        let (sender, receiver) = channel();
        Owners {
            locked: Mutex::new(Locked {
                placement: Placement::new(seed),
                gone: receiver,
            }),
            gone: sender,
            next_id: AtomicU64::new(0),
        }
    }

    /// Locks the placement, and removes dropped buckets from it. Callers hold the lock for a single call, and never
    /// while they wait for a device.
    pub(crate) fn lock(&self) -> MappedMutexGuard<'_, Placement<DeviceId>> {
        let mut locked = self.locked.lock();
        let Locked { placement, gone } = &mut *locked;
        gone.try_iter().for_each(|id| placement.remove(id));
        MutexGuard::map(locked, |locked| &mut locked.placement)
    }

    /// Adds a device with its weight. Returns the number of buckets that the device now owns.
    pub(crate) fn join(&self, device: &Device) -> usize {
        self.lock().join(device.id(), weight(device)).len()
    }

    /// Creates a bucket id and registers it with the placement. The bucket has no owner yet.
    pub(crate) fn new_bucket(self: &Arc<Self>) -> Arc<BucketIdGuard> {
        let id = ShardId(self.next_id.fetch_add(1, Ordering::Relaxed));
        self.lock().unassign(id);
        Arc::new(BucketIdGuard {
            id,
            owners: Arc::clone(self),
        })
    }
}

/// Keeps a bucket's id in the placement. After the last version of the bucket is dropped, the next use of the placement
/// removes the id.
#[derive(Debug)]
pub(crate) struct BucketIdGuard {
    id: ShardId,
    owners: Arc<Owners>,
}

impl BucketIdGuard {
    pub(crate) fn id(&self) -> ShardId {
        self.id
    }
}

impl Drop for BucketIdGuard {
    fn drop(&mut self) {
        // Sending cannot fail: `owners` owns the receiver.
        let _ = self.owners.gone.send(self.id);
    }
}

/// Bytes per second that a host device searches.
const HOST_BYTES_PER_S: u64 = 4_000_000_000;
/// Memory bandwidth in bytes per second that is assumed for a GPU if the driver reports none. Old cards have this
/// bandwidth.
const GPU_BYTES_PER_S_UNKNOWN: u64 = 300_000_000_000;
/// Search speed of a GPU, in percent of its memory bandwidth.
const GPU_BANDWIDTH_PERCENT: u64 = 73;

/// Returns the weight of a device in the placement: the bytes that it searches in a millisecond.
///
/// A host device searches at about the same speed everywhere. The speed of a GPU is bound by its memory bandwidth.
///
/// PERF: an H100 (3,352 GB/s by its clock and width) searches 40 M values of 100 letters at 2,423 to 2,468 GB/s for
/// four regular expressions, median 2,465: 73.5 % (`cargo bench -p forebay-text-gpu --bench scan`, 2026-11-23, commit
/// 9c34e28, `bench/record/2026-11-23-h100.jsonl`). One host device takes 11 to 124 ms for twelve patterns over 4.5 M
/// package names (92 MB in total), median 21 ms: 4.3 GB/s (`forebay bench documents --host`, Intel Xeon, 2026-11-22,
/// commit c80f07e, `bench/record/2026-11-22-host.jsonl`).
fn weight(device: &Device) -> u64 {
    let gpu = device.details();
    bytes_per_s(gpu.map(|gpu| gpu.memory_bytes_per_s)) / 1000
}

/// Returns the bytes per second that a device searches: for a GPU, derived from its memory bandwidth.
fn bytes_per_s(gpu_memory_bytes_per_s: Option<u64>) -> u64 {
    match gpu_memory_bytes_per_s {
        None => HOST_BYTES_PER_S,
        Some(0) => GPU_BYTES_PER_S_UNKNOWN / 100 * GPU_BANDWIDTH_PERCENT,
        Some(bandwidth) => bandwidth / 100 * GPU_BANDWIDTH_PERCENT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_beside_an_h100_owns_what_it_searches_in_the_same_time() {
        let (gpu, core) = (bytes_per_s(Some(3_352_320_000_000)), bytes_per_s(None));
        assert_eq!(gpu / core, 611);
        let mut placement = Placement::new(7);
        placement.join("gpu", gpu);
        placement.join("core", core);
        const BUCKET_BYTES: u64 = 64 << 20;
        for bucket in 0..1300 {
            placement.draw(ShardId(bucket), BUCKET_BYTES, &[]);
        }
        assert_eq!(placement.count_on("core"), 2);
        assert!(
            bytes_per_s(Some(0)) > core,
            "a GPU of unknown bandwidth outweighs a core"
        );
    }

    #[test]
    fn a_bucket_that_is_gone_leaves_the_placement() {
        let owners = Arc::new(Owners::new(7));
        owners.lock().join(DeviceId(0), 1);
        let (kept, dropped) = (owners.new_bucket(), owners.new_bucket());
        owners.lock().draw(kept.id(), 10, &[]);
        owners.lock().draw(dropped.id(), 10, &[]);
        let locked = owners.locked.lock();
        // `locked` still holds the lock of the placement. Dropping the bucket must not wait for that lock.
        drop(dropped);
        drop(locked);
        assert_eq!(owners.lock().load_on(DeviceId(0)), 10);
        assert_eq!(owners.lock().shard_count(), 1);
    }
}
