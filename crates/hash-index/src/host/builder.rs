//! A table in host memory into which threads insert rows as they take them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{HostIndex, no_rows};
use crate::column::HostRows;
use crate::error::IndexError;
use crate::index::{Contents, check_room};
use crate::kernels::Outcome;
use crate::shape::TableShape;

/// A table in host memory into which rows are inserted. It cannot be probed before [`HostBuilder::finish`].
#[derive(Debug)]
pub struct HostBuilder {
    index: HostIndex,
    inserted: Mutex<Outcome>,
    failures: AtomicU32,
    /// Rows of all inserts so far.
    rows: AtomicU64,
}

impl HostBuilder {
    /// Allocates an empty table, which `threads` threads write. The process ends if the system has no memory for it.
    ///
    /// # Panics
    /// If the system refuses a thread.
    pub fn new(shape: TableShape, threads: usize) -> HostBuilder {
        HostBuilder {
            index: HostIndex::by_threads(shape, threads),
            inserted: Mutex::new(no_rows()),
            failures: AtomicU32::new(0),
            rows: AtomicU64::new(0),
        }
    }

    /// Inserts rows, on the calling thread. Several threads may call this at the same time. Rows that cannot be
    /// inserted are an error of [`HostBuilder::finish`].
    ///
    /// # Errors
    /// [`IndexError::TooManyRows`], before any of the rows is inserted.
    ///
    /// # Panics
    /// If the columns are not as [`HostRows::count`] says.
    pub fn insert(&self, rows: HostRows<'_>) -> Result<(), IndexError> {
        let shape = &self.index.shape;
        let count = rows.count(shape.width());
        let before = self.rows.fetch_add(count, Ordering::Relaxed);
        check_room(shape, before + count)?;
        let outcome = self.index.table.insert_some(rows, &self.failures);
        let mut inserted = self.inserted.lock().expect("sums do not panic");
        inserted.add(&outcome);
        Ok(())
    }

    /// Returns the table.
    ///
    /// # Errors
    /// If a row could not be inserted: [`IndexError::TooManyRows`], [`IndexError::ChainTooLong`],
    /// [`IndexError::KeyOutOfRange`], [`IndexError::DuplicateKeys`].
    pub fn finish(self) -> Result<HostIndex, IndexError> {
        check_room(&self.index.shape, self.rows.into_inner())?;
        let mut outcome = self.inserted.into_inner().expect("sums do not panic");
        outcome.failures = self.failures.into_inner();
        let mut index = self.index;
        index.contents = Contents::of(&index.shape, &outcome)?;
        Ok(index)
    }
}
