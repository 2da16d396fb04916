//! Ordered key-value engines: partitions of sorted keys, written by atomic batches across partitions.
//!
//! Reads come in pages, not in iterators that live on: a page copies nothing (bytes are shared), holds no lock and no
//! snapshot when it is returned, and the next page starts at a key, so that a scan goes on beside writers for as long
//! as it likes.

pub(crate) mod archive;
mod creation;
pub mod fault;
pub mod fjall;
pub(crate) mod journal;
pub(crate) mod manifest;
pub mod memory;
mod numbered;
pub mod reserve;
mod synced;

use std::collections::HashSet;
use std::sync::Arc;

use crate::error::Result;

/// Shared immutable bytes.
pub type Bytes = ::fjall::Slice;

/// Longest key an engine takes, in bytes.
pub const KEY_BYTES_MAX: usize = 60_000;

/// A partition of an open engine. Ids are not stored: a partition is found by its name after opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionId(pub(crate) u32);

/// An open partition with the name by which it is found again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Valid as long as the engine is open and the partition is not dropped; never given again.
    pub id: PartitionId,
    /// Kept over restarts. May be given again once the partition is dropped.
    pub name: String,
}

/// Which way a range is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    /// From the lowest key up.
    #[default]
    Forward,
    /// From the highest key down.
    Backward,
}

/// Keys from `start` on, up to and without `end`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyRange {
    /// The first key of the range.
    pub start: Vec<u8>,
    /// The first key behind the range; `None` is the end of the partition.
    pub end: Option<Vec<u8>>,
}

impl KeyRange {
    /// All keys.
    pub fn all() -> Self {
        Self::default()
    }

    /// The keys that begin with `prefix`.
    pub fn prefix(prefix: &[u8]) -> Self {
        Self {
            start: prefix.to_vec(),
            end: successor(prefix),
        }
    }

    /// Whether no key can be in the range.
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }

    /// Takes away everything up to `key` in the given direction.
    pub fn advance_past(&mut self, key: &[u8], direction: Direction) {
        match direction {
            Direction::Forward => {
                self.start.clear();
                self.start.extend_from_slice(key);
                self.start.push(0);
            }
            Direction::Backward => self.end = Some(key.to_vec()),
        }
    }
}

/// The lowest key above every key that begins with `prefix`; `None` if there is none.
pub fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|byte| *byte != 0xFF)?;
    let mut key = prefix[..=kept].to_vec();
    key[kept] += 1;
    Some(key)
}

/// How much one page may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLimit {
    /// At most this many entries.
    pub entries: usize,
    /// No further entry once keys and values reach this many bytes.
    pub bytes: usize,
}

/// A page: keys and values in the order of reading.
pub type Page = Vec<(Bytes, Bytes)>;

/// One change of a batch.
#[derive(Debug, Clone)]
pub struct Write {
    /// Where.
    pub partition: PartitionId,
    /// Which key.
    pub key: Bytes,
    /// Its new value; `None` removes the key.
    pub value: Option<Bytes>,
}

/// Changes that happen together or not at all. A key of a partition appears at most once.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// The changes.
    pub writes: Vec<Write>,
}

impl Batch {
    /// Sets a key.
    pub fn put(&mut self, partition: PartitionId, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.writes.push(Write {
            partition,
            key: key.into(),
            value: Some(value.into()),
        });
    }

    /// Removes a key.
    pub fn remove(&mut self, partition: PartitionId, key: impl Into<Bytes>) {
        self.writes.push(Write {
            partition,
            key: key.into(),
            value: None,
        });
    }
}

/// An ordered key-value engine.
///
/// All methods may be called from any thread at any time. Reads see every batch that was committed before them.
pub trait Engine: Send + Sync + 'static {
    /// Makes an empty partition of a name of the engine's choice.
    fn create_partition(&self, kind: PartitionKind) -> Result<Partition>;

    /// Opens the partition of this name, creating it when it does not exist.
    fn open_partition(&self, name: &str, kind: PartitionKind) -> Result<Partition>;

    /// Opens the partition of this name, if there is one.
    fn existing_partition(&self, name: &str) -> Result<Option<Partition>>;

    /// Empties a partition for good and frees its space. Unknown ids are ignored. Nobody writes to it any more.
    fn drop_partition(&self, partition: PartitionId) -> Result<()>;

    /// Whether there are partitions besides the one of this name.
    fn has_other_partitions(&self, name: &str) -> bool;

    /// Drops all partitions but those of these names. Called before any of the others is opened.
    fn retain_partitions(&self, names: &HashSet<String>) -> Result<()>;

    /// The value of a key.
    ///
    /// # Errors
    /// [`StoreError::PartitionDropped`](crate::StoreError::PartitionDropped).
    fn get(&self, partition: PartitionId, key: &[u8]) -> Result<Option<Bytes>>;

    /// The first entries of a range in a direction.
    ///
    /// # Errors
    /// [`StoreError::PartitionDropped`](crate::StoreError::PartitionDropped).
    fn page(
        &self,
        partition: PartitionId,
        range: &KeyRange,
        direction: Direction,
        limit: PageLimit,
    ) -> Result<Page>;

    /// Makes all changes of a batch, atomically. When it returns, they are in the hands of the operating system.
    fn commit(&self, batch: Batch) -> Result<()>;

    /// Whether a batch would be taken now; asks the disk, but writes nothing to the tables.
    ///
    /// # Errors
    /// [`StoreError::DiskFull`](crate::StoreError::DiskFull) or [`StoreError::ReadOnly`](crate::StoreError::ReadOnly).
    fn check_writable(&self) -> Result<()>;

    /// Returns when every batch committed before the call is on the disk.
    fn sync(&self) -> Result<()>;

    /// Bytes a partition takes, about.
    fn bytes(&self, partition: PartitionId) -> u64;
}

/// What a partition holds, by which an engine tunes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionKind {
    /// Documents by ascending numbers, mostly appended and scanned. Keys are the numbers, eight bytes in big-endian order.
    Records,
    /// Small entries in any order, mostly looked up.
    Index,
    /// A few small entries that are always in memory.
    Catalogue,
    /// Entries that are appended at one end, read in order, and removed at the other end.
    History,
}

/// Reads a range page by page, as one iterator.
pub struct Entries {
    engine: Arc<dyn Engine>,
    partition: PartitionId,
    range: KeyRange,
    direction: Direction,
    limit: PageLimit,
    page: std::vec::IntoIter<(Bytes, Bytes)>,
    ended: bool,
}

/// Entries of a first page: a look-up reads little, a scan soon reads much.
const FIRST_PAGE_ENTRIES: usize = 16;
/// Entries of a later page at most.
const PAGE_ENTRIES_MAX: usize = 1_024;
/// Bytes of a page.
const PAGE_BYTES: usize = 1 << 20;

impl Entries {
    /// Starts to read a range.
    pub fn new(
        engine: Arc<dyn Engine>,
        partition: PartitionId,
        range: KeyRange,
        direction: Direction,
    ) -> Self {
        Self {
            engine,
            partition,
            ended: range.is_empty(),
            range,
            direction,
            limit: PageLimit {
                entries: FIRST_PAGE_ENTRIES,
                bytes: PAGE_BYTES,
            },
            page: Vec::new().into_iter(),
        }
    }

    fn next_page(&mut self) -> Result<()> {
        let page = self
            .engine
            .page(self.partition, &self.range, self.direction, self.limit)?;
        self.limit.entries = (self.limit.entries * 8).min(PAGE_ENTRIES_MAX);
        match page.last() {
            Some((key, _)) => self.range.advance_past(key, self.direction),
            None => self.ended = true,
        }
        self.page = page.into_iter();
        Ok(())
    }
}

impl Iterator for Entries {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.page.next() {
                return Some(Ok(entry));
            }
            if self.ended {
                return None;
            }
            if let Err(error) = self.next_page() {
                self.ended = true;
                return Some(Err(error));
            }
        }
    }
}
