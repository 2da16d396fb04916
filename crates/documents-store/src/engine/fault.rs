//! An engine with injected faults, for tests.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::{
    Batch, Bytes, Direction, Engine, KeyRange, Page, PageLimit, Partition, PartitionId,
    PartitionKind,
};
use crate::error::{Result, StoreError};

/// Error of an injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No space left on the disk.
    DiskFull,
    /// An I/O error of the disk.
    Broken,
}

impl Fault {
    fn error(self, action: &'static str) -> StoreError {
        let kind = match self {
            Self::DiskFull => io::ErrorKind::StorageFull,
            Self::Broken => io::ErrorKind::Other,
        };
        StoreError::io(action, io::Error::new(kind, "injected fault"))
    }
}

/// Countdown to one fault.
#[derive(Debug)]
struct Fuse {
    left: AtomicI64,
    fault: parking_lot::Mutex<Fault>,
}

impl Fuse {
    const OUT: i64 = -1;

    fn new() -> Self {
        Self {
            left: AtomicI64::new(Self::OUT),
            fault: parking_lot::Mutex::new(Fault::Broken),
        }
    }

    fn set(&self, after: u32, fault: Fault) {
        *self.fault.lock() = fault;
        self.left.store(i64::from(after), Ordering::SeqCst);
    }

    /// Counts an operation. Returns the fault if this operation is the one to fail.
    fn count(&self) -> Option<Fault> {
        let step = |left: i64| (left > Self::OUT).then(|| left - 1);
        let before = self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, step);
        (before == Ok(0)).then(|| *self.fault.lock())
    }
}

/// Wraps an engine, and makes single operations fail before they have any effect.
pub struct FaultEngine {
    inner: Arc<dyn Engine>,
    commits: Fuse,
    syncs: Fuse,
    reads: Fuse,
}

impl FaultEngine {
    /// Wraps an engine without any fault set.
    pub fn new(inner: Arc<dyn Engine>) -> Self {
        Self {
            inner,
            commits: Fuse::new(),
            syncs: Fuse::new(),
            reads: Fuse::new(),
        }
    }

    /// Lets `after` commits succeed, then makes one fail.
    pub fn fail_commit(&self, after: u32, fault: Fault) {
        self.commits.set(after, fault);
    }

    /// Lets `after` syncs succeed, then makes one fail.
    pub fn fail_sync(&self, after: u32, fault: Fault) {
        self.syncs.set(after, fault);
    }

    /// Lets `after` reads succeed, then makes one fail.
    pub fn fail_read(&self, after: u32, fault: Fault) {
        self.reads.set(after, fault);
    }

    /// Returns whether a fault is set that has not occurred yet.
    pub fn has_fault(&self) -> bool {
        [&self.commits, &self.syncs, &self.reads]
            .iter()
            .any(|fuse| fuse.left.load(Ordering::SeqCst) > Fuse::OUT)
    }

    fn check(fuse: &Fuse, action: &'static str) -> Result<()> {
        fuse.count()
            .map_or(Ok(()), |fault| Err(fault.error(action)))
    }
}

impl Engine for FaultEngine {
    fn create_partition(&self, kind: PartitionKind) -> Result<Partition> {
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
        Self::check(&self.reads, "read a key")?;
        self.inner.get(partition, key)
    }

    fn page(
        &self,
        partition: PartitionId,
        range: &KeyRange,
        direction: Direction,
        limit: PageLimit,
    ) -> Result<Page> {
        Self::check(&self.reads, "read a page")?;
        self.inner.page(partition, range, direction, limit)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        Self::check(&self.commits, "write a batch")?;
        self.inner.commit(batch)
    }

    fn free_memory(&self) -> Result<()> {
        self.inner.free_memory()
    }

    fn check_writable(&self) -> Result<()> {
        self.inner.check_writable()
    }

    fn sync(&self) -> Result<()> {
        Self::check(&self.syncs, "sync the journal")?;
        self.inner.sync()
    }

    fn bytes(&self, partition: PartitionId) -> u64 {
        self.inner.bytes(partition)
    }
}
