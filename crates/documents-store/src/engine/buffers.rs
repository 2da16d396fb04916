//! A limit on the total size of all partitions' write buffers.
//!
//! fjall limits the write buffer of each partition separately. It also keeps a flushed buffer in memory until a later
//! write releases the version that refers to it. If later writes wait for that memory, nothing would release it, so the
//! server also calls [`Engine::free_memory`](super::Engine::free_memory).

use std::sync::atomic::{AtomicBool, Ordering};

use fjall::{AbstractTree, Database};
use parking_lot::Mutex;

use super::sealing::{AT_ONCE_MAX, Buffer};

/// Number of closed snapshots after which fjall recomputes which versions are no longer read.
const CLOSED_SNAPSHOTS: usize = 10_000;
/// Bytes that fjall counts for an entry besides its key and its value.
const ENTRY_BYTES: usize = 56;
/// After this number of consecutive checks that find neither space nor a flush in progress, a batch is admitted anyway,
/// because waiting longer would not free space.
const IDLE_LOOKS_MAX: u32 = 500;

/// The limit on the total size of write buffers, and their current total size.
pub(super) struct Buffers {
    /// Maximum bytes of unflushed buffers, as fjall counts bytes. It is a quarter of the memory limit for two reasons.
    /// Flushed buffers that fjall has not released take up to the same number of bytes. Small entries take up to twice
    /// the bytes that fjall counts.
    bytes_max: u64,
    held: Mutex<Held>,
    /// Whether flushed buffers are still in memory.
    keeps_written: AtomicBool,
}

#[derive(Default)]
struct Held {
    /// Bytes of all unflushed buffers at the last measurement, plus the bytes of the batches written after it.
    buffered: u64,
    /// Bytes of batches that are being written.
    in_flight: u64,
    /// Number of consecutive checks that found no space and no flush in progress.
    idle_looks: u32,
}

/// Whether a batch may be written now.
pub(super) enum Admission<'a> {
    /// The batch may be written.
    Granted(Admitted<'a>),
    /// The batch must wait. The caller seals these buffers, then tries again.
    Full(Vec<Buffer>),
}

/// Reservation for an admitted batch. Dropping the reservation counts the batch as written to the buffers.
pub(super) struct Admitted<'a> {
    buffers: &'a Buffers,
    bytes: u64,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        let mut held = self.buffers.held.lock();
        held.in_flight -= self.bytes;
        held.buffered += self.bytes;
    }
}

/// Measurement of all buffers.
#[derive(Default)]
struct Look {
    /// Bytes that are not flushed yet.
    buffered: u64,
    /// Whether a sealed buffer is being flushed or waits for its flush.
    is_writing: bool,
    /// Whether flushed buffers are still in memory.
    keeps_written: bool,
    /// The active buffers, which take new writes, with their bytes.
    active: Vec<(u64, Buffer)>,
}

impl Look {
    fn at(database: &Database) -> Look {
        let keyspaces = database.supervisor.keyspaces.read();
        let keyspaces = keyspaces.unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut look = Look::default();
        for keyspace in keyspaces.values() {
            let (active, all) = (
                keyspace.tree.active_memtable().size(),
                keyspace.tree.version_memtable_size_sum(),
            );
            let has_sealed = keyspace.tree.sealed_memtable_count() > 0;
            look.buffered += if has_sealed { all } else { active };
            look.is_writing |= has_sealed;
            look.keeps_written |= !has_sealed && all > active;
            if active > 0 {
                look.active.push((active, Buffer::of(keyspace)));
            }
        }
        look
    }
}

/// Returns the bytes that a batch adds to the buffers, as fjall counts them.
pub(super) fn batch_bytes(batch: &super::Batch) -> u64 {
    let bytes = batch.writes.iter().map(|write| {
        ENTRY_BYTES + write.key.len() + write.value.as_ref().map_or(0, |value| value.len())
    });
    bytes.sum::<usize>() as u64
}

impl Buffers {
    /// Limits the buffers to `memory_bytes`. Only a batch larger than `memory_bytes / 4` may exceed the limit.
    pub(super) fn new(memory_bytes: u64) -> Buffers {
        Buffers {
            bytes_max: memory_bytes / 4,
            held: Mutex::default(),
            keeps_written: AtomicBool::new(false),
        }
    }

    /// Admits a batch if there is space for it. Otherwise, returns the largest buffers for the caller to seal.
    pub(super) fn admit(&self, database: &Database, bytes: u64) -> Admission<'_> {
        let mut held = self.held.lock();
        if !self.has_room(&held, bytes) {
            let look = self.measure(&mut held, database);
            if !self.has_room(&held, bytes) && held.idle_looks < IDLE_LOOKS_MAX {
                held.idle_looks = if look.is_writing {
                    0
                } else {
                    held.idle_looks + 1
                };
                return Admission::Full(self.largest(look.active));
            }
        }
        held.idle_looks = 0;
        held.in_flight += bytes;
        Admission::Granted(Admitted {
            buffers: self,
            bytes,
        })
    }

    /// Returns whether a batch may be admitted. A batch of any size may be admitted if half of the limit is free.
    /// Otherwise, the batch must fit into the limit.
    fn has_room(&self, held: &Held, bytes: u64) -> bool {
        let taken = held.buffered + held.in_flight;
        taken + bytes <= self.bytes_max || taken <= self.bytes_max / 2
    }

    /// Returns the largest buffers. Stops when the remaining buffers take at most a quarter of the limit, or after
    /// `AT_ONCE_MAX` buffers.
    fn largest(&self, mut active: Vec<(u64, Buffer)>) -> Vec<Buffer> {
        active.sort_unstable_by_key(|(bytes, _)| *bytes);
        let mut left: u64 = active.iter().map(|(bytes, _)| bytes).sum();
        let mut largest = Vec::new();
        while left > self.bytes_max / 4
            && largest.len() < AT_ONCE_MAX
            && let Some((bytes, buffer)) = active.pop()
        {
            largest.push(buffer);
            left -= bytes;
        }
        largest
    }

    /// Measures the buffers. If they exceed the limit, returns the largest ones for the caller to seal. A batch larger
    /// than the limit leaves such buffers behind.
    pub(super) fn surplus(&self, database: &Database) -> Vec<Buffer> {
        let look = self.measure(&mut self.held.lock(), database);
        if look.buffered <= self.bytes_max || look.is_writing {
            return Vec::new();
        }
        self.largest(look.active)
    }

    fn measure(&self, held: &mut Held, database: &Database) -> Look {
        let look = Look::at(database);
        held.buffered = look.buffered;
        self.keeps_written
            .store(look.keeps_written, Ordering::Relaxed);
        look
    }

    /// Returns whether the last measurement found flushed buffers in memory.
    pub(super) fn keeps_written(&self) -> bool {
        self.keeps_written.load(Ordering::Relaxed)
    }

    /// Releases flushed buffers if the last measurement found any. The engine calls this function after a write,
    /// because fjall refers to flushed buffers until a later write.
    pub(super) fn release_written(&self, database: &Database) {
        if !self.keeps_written.swap(false, Ordering::Relaxed) {
            return;
        }
        let snapshots = &database.supervisor.snapshot_tracker;
        for _ in 0..CLOSED_SNAPSHOTS {
            drop(snapshots.open());
        }
        let unread_below = snapshots.get_seqno_safe_to_gc();
        let keyspaces = database.supervisor.keyspaces.read();
        let keyspaces = keyspaces.unwrap_or_else(std::sync::PoisonError::into_inner);
        for keyspace in keyspaces.values() {
            let mut versions = keyspace.tree.get_version_history_lock();
            if let Err(error) = versions.maintenance(keyspace.path(), unread_below) {
                tracing::warn!(%error, "cannot release old versions of a partition");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::fjall::FjallEngine;
    use crate::engine::{Batch, Engine, PartitionKind};
    use crate::options::StoreOptions;

    const MEMORY_BYTES: u64 = 16 << 20;
    const VALUE_BYTES: usize = 1 << 20;

    /// Returns the bytes of all buffers, including flushed ones that are still in memory.
    fn all_bytes(database: &Database) -> u64 {
        let keyspaces = database.supervisor.keyspaces.read().expect("no panic");
        let sizes = keyspaces
            .values()
            .map(|it| it.tree.version_memtable_size_sum());
        sizes.sum()
    }

    fn batch(partitions: &[crate::engine::Partition], number: u32) -> Batch {
        let mut batch = Batch::default();
        for partition in partitions {
            let key = number.to_be_bytes();
            batch.put(
                partition.id,
                key.as_slice(),
                vec![7; VALUE_BYTES].as_slice(),
            );
        }
        batch
    }

    #[test]
    fn buffers_of_all_partitions_stay_within_their_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = StoreOptions {
            write_buffers_bytes_max: MEMORY_BYTES,
            ..StoreOptions::directory(folder.path())
        };
        let engine = FjallEngine::open(folder.path(), &options).expect("opens");
        let create = |_| engine.create_partition(PartitionKind::Records);
        let partitions: Vec<_> = (0..3)
            .map(create)
            .collect::<Result<_, _>>()
            .expect("creates");
        let mut most = 0;
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (engine, partitions) = (&engine, &partitions);
                scope.spawn(move || {
                    for number in 0..10 {
                        let batch = batch(partitions, thread * 100 + number);
                        engine.commit(batch).expect("writes");
                    }
                });
            }
            for number in 0..20 {
                engine
                    .commit(batch(&partitions, 900 + number))
                    .expect("writes");
                most = most.max(all_bytes(engine.database()));
            }
        });
        // The other half of the memory is reserved for the overhead of small entries.
        assert!(
            most <= MEMORY_BYTES / 2 + 3 * VALUE_BYTES as u64,
            "{most} bytes"
        );
        assert_eq!(engine.buffers().held.lock().in_flight, 0);
        let value = engine.get(partitions[2].id, &919_u32.to_be_bytes());
        assert_eq!(value.expect("reads").expect("is there").len(), VALUE_BYTES);
    }

    /// One batch larger than the limit must not keep its memory when no other batch follows.
    #[test]
    fn a_large_batch_is_released_without_a_later_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = StoreOptions {
            write_buffers_bytes_max: 4 * VALUE_BYTES as u64,
            ..StoreOptions::directory(folder.path())
        };
        let engine = FjallEngine::open(folder.path(), &options).expect("opens");
        let create = |_| engine.create_partition(PartitionKind::Records);
        let partitions: Vec<_> = (0..3)
            .map(create)
            .collect::<Result<_, _>>()
            .expect("creates");
        // The second batch has the keys of the first, whose table it does not replace.
        for _ in 0..2 {
            engine.commit(batch(&partitions, 1)).expect("writes");
            assert!(all_bytes(engine.database()) >= 3 * VALUE_BYTES as u64);
            let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while all_bytes(engine.database()) > 0 {
                assert!(std::time::Instant::now() < until, "still in memory");
                engine.free_memory().expect("frees");
                std::thread::yield_now();
            }
        }
        let value = engine.get(partitions[2].id, &1_u32.to_be_bytes());
        assert_eq!(value.expect("reads").expect("is there").len(), VALUE_BYTES);
    }
}
