//! An engine that refuses writes while its disk is nearly full, so that the wrapped engine never meets a full disk.
//!
//! After a failed write, fjall refuses all writes until it is opened again. The writes that this engine refuses
//! never reach fjall, so writes continue as soon as there is free space.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{
    Batch, Bytes, Direction, Engine, KeyRange, Page, PageLimit, Partition, PartitionId,
    PartitionKind,
};
use crate::error::{Result, StoreError};

/// Maximum age of a measurement of the free space. It is short, because other programs write to the disk too.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum bytes that one byte of a batch takes on disk: in the journal, in a table, and in the tables that compactions
/// write.
const BYTES_PER_BYTE: u64 = 4;
/// Batches that mostly delete may use the reserve, but must leave 1/`SHRINKING_PART` of the reserve free.
const SHRINKING_PART: u64 = 4;

/// Function that returns the free bytes of a disk.
pub type FreeBytes = Box<dyn Fn() -> io::Result<u64> + Send + Sync>;

/// Wraps an engine and keeps some bytes of its disk free.
pub struct ReserveEngine {
    inner: Arc<dyn Engine>,
    reserve_bytes: u64,
    free_bytes: FreeBytes,
    seen: Mutex<Seen>,
}

/// The last measurement of the free space.
struct Seen {
    until: Instant,
    /// Bytes that may be written until `until`.
    bytes_left: u64,
}

impl ReserveEngine {
    /// Wraps an engine. Writes are refused when `free_bytes` returns less than `reserve_bytes`.
    pub fn new(inner: Arc<dyn Engine>, reserve_bytes: u64, free_bytes: FreeBytes) -> Self {
        let seen = Seen {
            until: Instant::now(),
            bytes_left: 0,
        };
        Self {
            inner,
            reserve_bytes,
            free_bytes,
            seen: Mutex::new(seen),
        }
    }

    /// Refuses a batch of `bytes` if it would use the reserve.
    fn admit(&self, bytes: u64) -> Result<()> {
        let bytes = bytes.saturating_mul(BYTES_PER_BYTE);
        let mut seen = self.seen.lock();
        let now = Instant::now();
        if now >= seen.until || bytes > seen.bytes_left {
            // The measurement is marked as expired first: if `room` fails, the next batch measures again.
            seen.until = now;
            seen.bytes_left = self.room()?;
            seen.until = now + LOOK_INTERVAL;
        }
        match seen.bytes_left.checked_sub(bytes) {
            Some(left) => seen.bytes_left = left,
            None => return Err(full(self.free()?, self.reserve_bytes.saturating_add(bytes))),
        }
        Ok(())
    }

    /// Returns the number of bytes that may be written now.
    fn room(&self) -> Result<u64> {
        let free = self.free()?;
        free.checked_sub(self.reserve_bytes)
            .ok_or_else(|| full(free, self.reserve_bytes))
    }

    fn free(&self) -> Result<u64> {
        (self.free_bytes)()
            .map_err(|error| StoreError::io("read the free space of the disk", error))
    }

    /// Admits a batch that mostly deletes if 1/`SHRINKING_PART` of the reserve is free. Returns an error otherwise.
    fn admit_shrinking(&self) -> Result<()> {
        let (free, needed) = (self.free()?, self.reserve_bytes / SHRINKING_PART);
        if free < needed {
            return Err(full(free, needed));
        }
        Ok(())
    }
}

/// Returns the error for a write that needs `needed` free bytes on a disk that has `free`.
fn full(free: u64, needed: u64) -> StoreError {
    let (free_mib, needed_mib) = (free >> 20, needed.div_ceil(1 << 20));
    let why =
        format!("the write needs {needed_mib} MiB of free space, but {free_mib} MiB are free");
    let error = io::Error::new(io::ErrorKind::StorageFull, why);
    StoreError::io("write a batch", error)
}

/// Returns a function that reads the free bytes of this directory's disk.
pub fn free_bytes_of(directory: PathBuf) -> FreeBytes {
    Box::new(move || {
        let disk = rustix::fs::statvfs(&directory)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    })
}

impl Batch {
    /// Returns the total bytes of the keys and values to write.
    fn bytes(&self) -> u64 {
        let bytes = |write: &super::Write| {
            write.key.len() + write.value.as_ref().map_or(0, |value| value.len())
        };
        self.writes.iter().map(bytes).sum::<usize>() as u64
    }

    /// Returns whether the batch frees space: at least half of its writes are removals. A deletion's batch qualifies
    /// although it also updates statistics and the history.
    fn is_shrinking(&self) -> bool {
        let removed = self.writes.iter().filter(|write| write.value.is_none());
        removed.count() * 2 >= self.writes.len()
    }
}

impl Engine for ReserveEngine {
    fn create_partition(&self, kind: PartitionKind) -> Result<Partition> {
        self.admit(0)?;
        self.inner.create_partition(kind)
    }

    fn open_partition(&self, name: &str, kind: PartitionKind) -> Result<Partition> {
        self.inner.open_partition(name, kind)
    }

    fn existing_partition(&self, name: &str) -> Result<Option<Partition>> {
        self.inner.existing_partition(name)
    }

    fn drop_partition(&self, partition: PartitionId) -> Result<()> {
        self.inner.drop_partition(partition)
    }

    fn has_other_partitions(&self, name: &str) -> bool {
        self.inner.has_other_partitions(name)
    }

    fn retain_partitions(&self, names: &HashSet<String>) -> Result<()> {
        self.inner.retain_partitions(names)
    }

    fn get(&self, partition: PartitionId, key: &[u8]) -> Result<Option<Bytes>> {
        self.inner.get(partition, key)
    }

    fn page(
        &self,
        partition: PartitionId,
        range: &KeyRange,
        direction: Direction,
        limit: PageLimit,
    ) -> Result<Page> {
        self.inner.page(partition, range, direction, limit)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        if batch.is_shrinking() {
            self.admit_shrinking()?
        } else {
            self.admit(batch.bytes())?
        }
        self.inner.commit(batch)
    }

    fn free_memory(&self) -> Result<()> {
        self.room()?;
        self.inner.free_memory()
    }

    fn check_writable(&self) -> Result<()> {
        self.room()?;
        self.inner.check_writable()
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn bytes(&self, partition: PartitionId) -> u64 {
        self.inner.bytes(partition)
    }
}
