//! An engine that refuses writes while its disk is nearly full, so that the engine below never meets a full disk.
//!
//! After a failed write, fjall takes no writes until it is opened again. Writes that are refused here have not
//! failed: writes continue as soon as there is space.

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

/// Time after which the free space is read again, as other programs write to the disk too.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum bytes on the disk for each byte of a batch: in the journal, in a table, and in tables merged from it.
const BYTES_PER_BYTE: u64 = 4;
/// Writes that free space may use the reserve down to one `SHRINKING_PART`th.
const SHRINKING_PART: u64 = 4;

/// Returns the free bytes of a disk.
pub type FreeBytes = Box<dyn Fn() -> io::Result<u64> + Send + Sync>;

/// Wraps an engine and keeps some bytes of its disk free.
pub struct ReserveEngine {
    inner: Arc<dyn Engine>,
    reserve_bytes: u64,
    free_bytes: FreeBytes,
    seen: Mutex<Seen>,
}

/// The free space as it was read.
struct Seen {
    until: Instant,
    /// Bytes that may be written until then.
    bytes_left: u64,
}

impl ReserveEngine {
    /// Wraps an engine whose disk has `free_bytes`; writes are refused when that falls below `reserve_bytes`.
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

    /// Refuses a batch of `bytes` if it would leave less than the reserve.
    fn admit(&self, bytes: u64) -> Result<()> {
        let bytes = bytes.saturating_mul(BYTES_PER_BYTE);
        let mut seen = self.seen.lock();
        let now = Instant::now();
        if now >= seen.until || bytes > seen.bytes_left {
            // If `room` fails, the next batch reads the free space again.
            seen.until = now;
            seen.bytes_left = self.room()?;
            seen.until = now + LOOK_INTERVAL;
        }
        match seen.bytes_left.checked_sub(bytes) {
            Some(left) => seen.bytes_left = left,
            None => return Err(full()),
        }
        Ok(())
    }

    /// Bytes that may be written now.
    fn room(&self) -> Result<u64> {
        self.free()?
            .checked_sub(self.reserve_bytes)
            .ok_or_else(full)
    }

    fn free(&self) -> Result<u64> {
        (self.free_bytes)()
            .map_err(|error| StoreError::io("read the free space of the disk", error))
    }

    /// Admits a batch that frees space, as long as enough of the reserve is left.
    fn admit_shrinking(&self) -> Result<()> {
        if self.free()? < self.reserve_bytes / SHRINKING_PART {
            return Err(full());
        }
        Ok(())
    }
}

fn full() -> StoreError {
    StoreError::io("write a batch", io::Error::from(io::ErrorKind::StorageFull))
}

/// Reads the free bytes of the disk of this directory.
pub fn free_bytes_of(directory: PathBuf) -> FreeBytes {
    Box::new(move || {
        let disk = rustix::fs::statvfs(&directory)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    })
}

impl Batch {
    /// Bytes of keys and values to be written.
    fn bytes(&self) -> u64 {
        let bytes = |write: &super::Write| {
            write.key.len() + write.value.as_ref().map_or(0, |value| value.len())
        };
        self.writes.iter().map(bytes).sum::<usize>() as u64
    }

    /// Returns whether the batch frees space: at least half of its writes are removals. Those of a deletion are,
    /// beside its updates of statistics and history.
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
