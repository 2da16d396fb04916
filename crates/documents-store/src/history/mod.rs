//! The history of changes: every change of a document or a collection, in one order for the whole store.
//!
//! | key | value |
//! |---|---|
//! | the change's [`ClusterTime`], eight bytes in big-endian order | an [`entry`] |
//!
//! A change is committed in the same batch as the documents that it changes, so that history and documents agree after
//! a kill. Readers see the changes of a batch once the batch is committed, in order and without gaps.

mod entry;
mod time;
mod trim;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bson::DateTime;
use parking_lot::Mutex;

use crate::engine::{Batch, Bytes, Direction, Engine, KeyRange, PageLimit, PartitionId};
use crate::error::{Result, StoreError};
use watch::Watches;

pub use entry::{ChangeEvent, ChangeKind};
pub use time::ClusterTime;
pub use watch::{Interest, Watch};

pub(crate) use entry::Changes;
pub(crate) use trim::start as start_trimming;

/// Name of the engine partition that holds the history.
pub(crate) const PARTITION: &str = "history";

/// Limits of a page that [`History::read`] returns.
const PAGE: PageLimit = PageLimit {
    entries: 256,
    bytes: 1 << 20,
};

/// A store's history of changes.
pub struct History {
    engine: Arc<dyn Engine>,
    partition: PartitionId,
    bytes_max: u64,
    /// Locked while changes get their times and are committed, so that no reader sees a later change before an earlier
    /// one.
    order: Mutex<()>,
    /// Lower bound for the times of the changes that this process makes.
    floor: ClusterTime,
    /// Time of the earliest change that is kept.
    first: AtomicU64,
    /// Time of the latest committed change.
    last: AtomicU64,
    /// Total bytes of all changes ever recorded, including deleted ones.
    recorded_bytes: AtomicU64,
    /// Total bytes of the deleted changes.
    deleted_bytes: AtomicU64,
    watches: Arc<Watches>,
    excess: trim::Excess,
}

impl History {
    /// Opens the history in `partition`, or creates it if the partition is empty.
    pub(crate) fn open(
        engine: Arc<dyn Engine>,
        partition: PartitionId,
        bytes_max: u64,
    ) -> Result<Arc<Self>> {
        let mut history = Self {
            engine,
            partition,
            bytes_max,
            order: Mutex::default(),
            floor: ClusterTime::new(0),
            first: AtomicU64::new(0),
            last: AtomicU64::new(0),
            recorded_bytes: AtomicU64::new(0),
            deleted_bytes: AtomicU64::new(0),
            watches: Arc::default(),
            excess: trim::Excess::default(),
        };
        let last = history.end_entry(Direction::Backward)?;
        let last_time = last.as_ref().map_or(ClusterTime::new(0), |(at, _)| *at);
        history.floor = last_time.after_opening(DateTime::now());
        if let Some((last, value)) = last {
            let bytes = entry::bytes_before(&value)? + entry::bytes(&value);
            history.last.store(last.number(), Ordering::Release);
            history.recorded_bytes.store(bytes, Ordering::Release);
        } else {
            history.record(Batch::default(), Changes::beginning())?;
        }
        if let Some((first, value)) = history.end_entry(Direction::Forward)? {
            history.set_first(first, entry::bytes_before(&value)?);
        }
        Ok(Arc::new(history))
    }

    /// Returns the oldest entry of the history if `direction` is forward, and the newest if it is backward.
    fn end_entry(&self, direction: Direction) -> Result<Option<(ClusterTime, Bytes)>> {
        self.entry_in(&KeyRange::all(), direction)
    }

    fn entry_in(
        &self,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Option<(ClusterTime, Bytes)>> {
        let one = PageLimit {
            entries: 1,
            bytes: 1,
        };
        let page = self.engine.page(self.partition, range, direction, one)?;
        let found = page.into_iter().next();
        found
            .map(|(key, value)| Ok((ClusterTime::from_key(&key)?, value)))
            .transpose()
    }

    /// Commits a batch together with the history entries of its changes.
    pub(crate) fn record(&self, mut batch: Batch, mut changes: Changes) -> Result<()> {
        let order = self.order.lock();
        let now = DateTime::now();
        let mut bytes = self.recorded_bytes.load(Ordering::Acquire);
        let first = self.last().next(now).max(self.floor);
        let mut last = first;
        for (step, mut value) in (0..).zip(changes.values.drain(..)) {
            last = first.plus(step);
            entry::stamp(&mut value, bytes, now);
            bytes += entry::bytes(&value);
            batch.put(self.partition, last.key(), value);
        }
        self.engine.commit(batch)?;
        self.recorded_bytes.store(bytes, Ordering::Release);
        self.watches.notify(&changes.namespaces, first, || {
            self.last.store(last.number(), Ordering::Release)
        });
        drop(order);
        if self.is_too_large() {
            self.excess.signal();
        }
        Ok(())
    }

    /// Returns the time of the earliest change that is kept. At least one change is always kept.
    pub fn first(&self) -> ClusterTime {
        ClusterTime::new(self.first.load(Ordering::Acquire))
    }

    /// Returns the time of the latest change.
    pub fn last(&self) -> ClusterTime {
        ClusterTime::new(self.last.load(Ordering::Acquire))
    }

    /// Returns the change at this time, if it is kept.
    pub fn get(&self, at: ClusterTime) -> Result<Option<ChangeEvent>> {
        if at > self.last() {
            return Ok(None);
        }
        let found = self.engine.get(self.partition, &at.key())?;
        found
            .map(|value| ChangeEvent::decode(at, &value))
            .transpose()
    }

    /// Returns the time of the latest change before `at`, if that change is kept.
    pub fn before(&self, at: ClusterTime) -> Result<Option<ClusterTime>> {
        let range = KeyRange {
            start: Vec::new(),
            end: Some(at.min(self.last().plus(1)).key().to_vec()),
        };
        let found = self.entry_in(&range, Direction::Backward)?;
        Ok(found.map(|(at, _)| at))
    }

    /// Returns a page of the changes in `(after, until]`, oldest first. The page is empty only if the range has no
    /// changes.
    ///
    /// # Errors
    /// [`StoreError::HistoryLost`] if some changes of the range are deleted.
    pub fn read(&self, after: ClusterTime, until: ClusterTime) -> Result<Vec<ChangeEvent>> {
        let range = KeyRange {
            start: after.plus(1).key().to_vec(),
            end: Some(until.min(self.last()).plus(1).key().to_vec()),
        };
        let page = self
            .engine
            .page(self.partition, &range, Direction::Forward, PAGE)?;
        // Check `first` after reading the page: a change that is deleted after this check is already in the page.
        if after.plus(1) < self.first() {
            return Err(StoreError::HistoryLost);
        }
        page.into_iter()
            .map(|(key, value)| ChangeEvent::decode(ClusterTime::from_key(&key)?, &value))
            .collect()
    }

    /// Starts a watch for changes that match `interest`.
    pub fn watch(&self, interest: Interest) -> Watch {
        self.watches.add(interest)
    }

    /// Returns the time of the first change that has matched the watch's interest since the last call, or `None` if no
    /// change has matched. Also returns the time of the store's latest change.
    pub fn news(&self, watch: &Watch) -> (Option<ClusterTime>, ClusterTime) {
        watch.take(|| self.last())
    }

    fn set_first(&self, first: ClusterTime, bytes: u64) {
        self.first.store(first.number(), Ordering::Release);
        self.deleted_bytes.store(bytes, Ordering::Release);
    }

    fn is_too_large(&self) -> bool {
        self.kept_bytes() > self.bytes_max
    }

    /// Returns the total bytes of the changes that are kept.
    pub fn kept_bytes(&self) -> u64 {
        let recorded = self.recorded_bytes.load(Ordering::Acquire);
        recorded.saturating_sub(self.deleted_bytes.load(Ordering::Acquire))
    }
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("History")
            .field("first", &self.first())
            .field("last", &self.last())
            .field("kept_bytes", &self.kept_bytes())
            .finish_non_exhaustive()
    }
}
