//! Which device owns which bucket.

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
    /// Receives the ids of buckets that are gone. A guard may be dropped on an async worker, so dropping it takes no
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
    /// A placement without devices and buckets; `seed` determines its random draws.
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

    /// Locks the placement and removes the buckets that are gone from it. Hold it for one call, never while waiting for
    /// a device.
    pub(crate) fn lock(&self) -> MappedMutexGuard<'_, Placement<DeviceId>> {
        let mut locked = self.locked.lock();
        let Locked { placement, gone } = &mut *locked;
        gone.try_iter().for_each(|id| placement.remove(id));
        MutexGuard::map(locked, |locked| &mut locked.placement)
    }

    /// Adds a device with its weight; returns the number of buckets that it now owns.
    pub(crate) fn join(&self, device: &Device) -> usize {
        self.lock().join(device.id(), weight(device)).len()
    }

    /// A new bucket id, registered with the placement without an owner.
    pub(crate) fn new_bucket(self: &Arc<Self>) -> Arc<BucketIdGuard> {
        let id = ShardId(self.next_id.fetch_add(1, Ordering::Relaxed));
        self.lock().unassign(id);
        Arc::new(BucketIdGuard {
            id,
            owners: Arc::clone(self),
        })
    }
}

/// The id of a bucket. The placement removes it some time after the last state of the bucket that any search can see
/// has been dropped.
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
        // The receiver lives as long as `owners`.
        let _ = self.owners.gone.send(self.id);
    }
}

/// Bytes that a host device searches per second.
const HOST_BYTES_PER_S: u64 = 4_000_000_000;
/// Bytes per second assumed for a GPU's memory if the driver does not report it: those of an old card.
const GPU_BYTES_PER_S_UNKNOWN: u64 = 300_000_000_000;
/// Part of its memory's bandwidth at which a GPU searches, in percent.
const GPU_BANDWIDTH_PERCENT: u64 = 73;

/// The weight of a device in the placement: the bytes that it searches in a millisecond.
///
/// A host device takes about the same time for each byte; a GPU is bound by its memory.
///
/// PERF: an H100 (3,352 GB/s by its clock and width) searches 40 M values of 100 letters at 2,423 to 2,468 GB/s for
/// four regular expressions, median 2,465: 73.5 % (`cargo bench -p forebay-text-gpu --bench scan`, 2026-11-23, commit
/// 9c34e28, `bench/record/2026-11-23-h100.jsonl`). One host device takes 11 to 124 ms for twelve patterns over 4.5 M
/// package names of 92 MB, median 21 ms: 4.3 GB/s (`forebay bench documents --host`, Intel Xeon, 2026-11-22, commit
/// c80f07e, `bench/record/2026-11-22-host.jsonl`).
fn weight(device: &Device) -> u64 {
    let gpu = device.details();
    bytes_per_s(gpu.map(|gpu| gpu.memory_bytes_per_s)) / 1000
}

/// Bytes that a device searches per second; for a GPU, from the bandwidth of its memory.
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
        // The placement is locked, and the drop does not wait for it.
        drop(dropped);
        drop(locked);
        assert_eq!(owners.lock().load_on(DeviceId(0)), 10);
        assert_eq!(owners.lock().shard_count(), 1);
    }
}
