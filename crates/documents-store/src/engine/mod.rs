//! Ordered key-value engines: partitions of sorted keys, written by atomic batches across partitions.
//!
//! Reads return pages, not long-lived iterators. A page copies nothing (its bytes are shared) and holds no lock and no
//! snapshot once it is returned. A scan requests each further page by the page's first key, so a slow scan does not
//! hold up writers.

pub(crate) mod archive;
mod buffers;
mod creation;
pub mod fault;
pub mod fjall;
pub(crate) mod journal;
pub(crate) mod manifest;
pub mod memory;
mod numbered;
pub mod reserve;
mod sealing;
mod synced;

use std::collections::HashSet;
use std::sync::Arc;

use crate::error::Result;

/// Shared immutable bytes.
pub type Bytes = ::fjall::Slice;

/// Maximum bytes of a key.
pub const KEY_BYTES_MAX: usize = 60_000;

/// Identifies a partition of an open engine. Ids are not stored: after opening, partitions are found by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionId(pub(crate) u32);

/// An open partition and its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Id of the partition, valid until the engine is closed or the partition is dropped. Ids are not reused while the
    /// engine is open.
    pub id: PartitionId,
    /// Name of the partition, kept across restarts. May be reused once the partition is dropped.
    pub name: String,
}

/// Order in which a range is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    /// Ascending keys.
    #[default]
    Forward,
    /// Descending keys.
    Backward,
}

/// The keys in `[start, end)`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyRange {
    /// The first key of the range.
    pub start: Vec<u8>,
    /// The first key after the range; `None` extends the range to the end of the partition.
    pub end: Option<Vec<u8>>,
}

impl KeyRange {
    /// Returns the range of all keys.
    pub fn all() -> Self {
        Self::default()
    }

    /// Returns the range of the keys that begin with `prefix`.
    pub fn prefix(prefix: &[u8]) -> Self {
        Self {
            start: prefix.to_vec(),
            end: successor(prefix),
        }
    }

    /// Returns whether no key can be in the range.
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }

    /// Shortens the range to the keys that follow `key` in this direction.
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

    /// Extends the range, so that `key` is the next key in this direction.
    fn return_to(&mut self, key: &[u8], direction: Direction) {
        match direction {
            Direction::Forward => self.start = key.to_vec(),
            Direction::Backward => self.end = Some([key, &[0]].concat()),
        }
    }
}

/// Returns the lowest key above every key that begins with `prefix`, or `None` if no such key exists.
pub fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|byte| *byte != 0xFF)?;
    let mut key = prefix[..=kept].to_vec();
    key[kept] += 1;
    Some(key)
}

/// Limits of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLimit {
    /// Maximum number of entries.
    pub entries: usize,
    /// Total bytes of keys and values at which the page is full. The page's last entry may exceed this total.
    pub bytes: usize,
}

/// Keys and values in reading order.
pub type Page = Vec<(Bytes, Bytes)>;

/// Sets or removes the value of one key.
#[derive(Debug, Clone)]
pub struct Write {
    /// The partition.
    pub partition: PartitionId,
    /// The key.
    pub key: Bytes,
    /// The new value; `None` removes the key.
    pub value: Option<Bytes>,
}

/// Writes that are committed together or not at all. Each key of a partition appears at most once.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// The writes, in any order.
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
/// All methods may be called from any thread at any time. Reads see every batch committed before them.
pub trait Engine: Send + Sync + 'static {
    /// Creates an empty partition. The engine chooses its name.
    fn create_partition(&self, kind: PartitionKind) -> Result<Partition>;

    /// Opens the partition with this name. Creates it if it does not exist.
    fn open_partition(&self, name: &str, kind: PartitionKind) -> Result<Partition>;

    /// Opens the partition with this name. Returns `None` if it does not exist.
    fn existing_partition(&self, name: &str) -> Result<Option<Partition>>;

    /// Drops a partition and frees its space. Ignores unknown ids. The caller must not write to the partition any more.
    fn drop_partition(&self, partition: PartitionId) -> Result<()>;

    /// Returns whether there are partitions other than the one with this name.
    fn has_other_partitions(&self, name: &str) -> bool;

    /// Drops all partitions except those with these names. Must be called before any of the dropped partitions is
    /// opened.
    fn retain_partitions(&self, names: &HashSet<String>) -> Result<()>;

    /// Returns the value of a key.
    ///
    /// # Errors
    /// [`StoreError::PartitionDropped`](crate::StoreError::PartitionDropped).
    fn get(&self, partition: PartitionId, key: &[u8]) -> Result<Option<Bytes>>;

    /// Returns the first page of a range's entries: the lowest keys if `direction` is forward, the highest if it is
    /// backward.
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

    /// Commits a batch atomically. The operating system has the changes when the function returns; they may not be
    /// synced yet.
    fn commit(&self, batch: Batch) -> Result<()>;

    /// Frees memory that only a later batch would free: flushes the buffers of batches larger than the buffers' limit,
    /// in the background, and releases flushed buffers.
    ///
    /// # Errors
    /// The errors of a sync, [`StoreError::DiskFull`](crate::StoreError::DiskFull) and
    /// [`StoreError::ReadOnly`](crate::StoreError::ReadOnly).
    fn free_memory(&self) -> Result<()>;

    /// Checks whether the engine accepts batches. Checks the disk, but writes nothing to the tables.
    ///
    /// # Errors
    /// [`StoreError::DiskFull`](crate::StoreError::DiskFull) or [`StoreError::ReadOnly`](crate::StoreError::ReadOnly).
    fn check_writable(&self) -> Result<()>;

    /// Waits until every batch committed before the call is on disk.
    fn sync(&self) -> Result<()>;

    /// Returns the approximate bytes of a partition.
    fn bytes(&self, partition: PartitionId) -> u64;
}

/// Kind of a partition's content, used to tune the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionKind {
    /// Documents in ascending order of record numbers, mostly appended and scanned. Keys are the numbers, eight bytes
    /// in big-endian order.
    Records,
    /// Small entries in any order, mostly looked up.
    Index,
    /// A few small entries that are always in memory.
    Catalogue,
    /// Entries that are appended at one end, read in order, and removed at the other end.
    History,
}

/// Iterator over the entries of a range. Reads them page by page.
pub struct Entries {
    engine: Arc<dyn Engine>,
    partition: PartitionId,
    range: KeyRange,
    direction: Direction,
    limit: PageLimit,
    page: std::vec::IntoIter<(Bytes, Bytes)>,
    ended: bool,
}

/// Maximum entries of the first page: enough for a look-up. Later pages are larger, for scans.
const FIRST_PAGE_ENTRIES: usize = 16;
/// Maximum entries of a later page.
const PAGE_ENTRIES_MAX: usize = 1_024;
/// Maximum bytes of a page.
const PAGE_BYTES: usize = 1 << 20;
/// Maximum unread bytes of a page that [`Entries::rest`] keeps.
const RESTING_BYTES_MAX: usize = 64 << 10;
/// Limits of the first page.
const FIRST_PAGE: PageLimit = PageLimit {
    entries: FIRST_PAGE_ENTRIES,
    bytes: PAGE_BYTES,
};

impl Entries {
    /// Starts reading a range.
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
            limit: FIRST_PAGE,
            page: Vec::new().into_iter(),
        }
    }

    /// Drops the entries that were read in advance if they have many bytes. They are read again later. A caller that
    /// does not read for some time calls this function.
    pub fn rest(&mut self) {
        let unread = self.page.as_slice();
        let bytes: usize = unread
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        let Some((key, _)) = unread.first().filter(|_| bytes > RESTING_BYTES_MAX) else {
            return;
        };
        self.range.return_to(key, self.direction);
        self.limit = FIRST_PAGE;
        self.page = Vec::new().into_iter();
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
