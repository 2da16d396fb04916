//! The same tables in host memory: built and probed by all cores.

mod bucketed;
mod builder;
mod copy;
mod linear;
mod partitions;
mod perfect;
mod runs;

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;

use crate::column::HostRows;
use crate::error::IndexError;
use crate::index::{Contents, check_room};
use crate::kernels::{JoinTotals, Outcome};
use crate::shape::{TableMethod, TableShape, Width, hash_of, hash_of_composite};

use bucketed::Bucketed;
pub use builder::HostBuilder;
pub use copy::{CopyInFlight, HostCopy};
use linear::Linear;
pub use partitions::HostPartitions;
use perfect::Perfect;
pub use runs::{HostSieve, HostSlices};

/// Rows that a thread asks the table for ahead of their turn.
///
/// PERF: `forebay bench joins --only cpu --scale 0.03125`, two cores of an AMD EPYC, November 28, 2026, G probes/s of
/// workload A with linear probing: 0.061 with the first reads of 16 rows at once and no prefetch, 0.094 with it.
const ROWS_AHEAD: usize = 16;

/// Steps after which a long search for a free slot looks whether another thread gave up.
const STEPS_BETWEEN_LOOKS: u64 = 64;

/// A number in a column.
trait Word: Copy + fmt::Debug + Send + Sync + 'static {
    const BYTES: usize;
    /// The largest number: the key of an empty slot of this width. Rows with this key are kept aside.
    const EMPTY: u64;

    /// Reads a number, which has this many bytes.
    fn read(bytes: &[u8]) -> u64;
}

impl Word for u32 {
    const BYTES: usize = 4;
    const EMPTY: u64 = u32::MAX as u64;

    #[inline]
    fn read(bytes: &[u8]) -> u64 {
        bytes
            .first_chunk()
            .map_or(0, |bytes| u32::from_le_bytes(*bytes))
            .into()
    }
}

impl Word for u64 {
    const BYTES: usize = 8;
    const EMPTY: u64 = u64::MAX;

    #[inline]
    fn read(bytes: &[u8]) -> u64 {
        bytes
            .first_chunk()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

/// The types of a row's key and payload.
trait Row: fmt::Debug + Send + Sync + 'static {
    /// A key, as tables work on it.
    type Key: Copy + PartialEq;
    const KEY_BYTES: usize;
    const PAYLOAD_BYTES: usize;

    /// Reads a key, which has this many bytes.
    fn read_key(bytes: &[u8]) -> Self::Key;

    /// Reads a payload, which has this many bytes.
    fn read_payload(bytes: &[u8]) -> u64;

    /// Returns the hash of a key.
    fn hash(key: Self::Key) -> u64;

    /// Returns a key that is a single number; `None` if keys are composite.
    fn single(key: Self::Key) -> Option<u64>;
}

impl<K: Word, P: Word> Row for (K, P) {
    type Key = u64;
    const KEY_BYTES: usize = K::BYTES;
    const PAYLOAD_BYTES: usize = P::BYTES;

    #[inline]
    fn read_key(bytes: &[u8]) -> u64 {
        K::read(bytes)
    }

    #[inline]
    fn read_payload(bytes: &[u8]) -> u64 {
        P::read(bytes)
    }

    #[inline]
    fn hash(key: u64) -> u64 {
        hash_of(key)
    }

    #[inline]
    fn single(key: u64) -> Option<u64> {
        Some(key)
    }
}

/// A row with a composite key, whose first number is the lower half.
type CompositeRow = (u128, u64);

impl Row for CompositeRow {
    type Key = u128;
    const KEY_BYTES: usize = 16;
    const PAYLOAD_BYTES: usize = 8;

    #[inline]
    fn read_key(bytes: &[u8]) -> u128 {
        bytes
            .first_chunk()
            .map_or(0, |bytes| u128::from_le_bytes(*bytes))
    }

    #[inline]
    fn read_payload(bytes: &[u8]) -> u64 {
        u64::read(bytes)
    }

    #[inline]
    fn hash(key: u128) -> u64 {
        hash_of_composite(key)
    }

    #[inline]
    fn single(_: u128) -> Option<u64> {
        None
    }
}

/// The type of the keys of a table.
type KeyOf<T> = <<T as Lookup>::Row as Row>::Key;

/// A number in a table that threads share.
trait Cell: Word {
    /// The type that threads share.
    type Shared: Sync + Send + Default + fmt::Debug;

    fn store(to: &Self::Shared, payload: u64);
    fn load(from: &Self::Shared) -> u64;

    /// Returns the key of an empty slot.
    fn empty() -> Self::Shared;

    /// Stores a key if the slot is empty. Returns the key that was there.
    fn take(slot: &Self::Shared, key: u64) -> u64;
}

impl Cell for u32 {
    type Shared = AtomicU32;

    #[inline]
    fn store(to: &AtomicU32, payload: u64) {
        to.store(payload as u32, Ordering::Relaxed);
    }

    #[inline]
    fn load(from: &AtomicU32) -> u64 {
        from.load(Ordering::Relaxed).into()
    }

    fn empty() -> AtomicU32 {
        AtomicU32::new(u32::MAX)
    }

    #[inline]
    fn take(slot: &AtomicU32, key: u64) -> u64 {
        let new = key as u32;
        let taken = slot.compare_exchange(u32::MAX, new, Ordering::Relaxed, Ordering::Relaxed);
        taken.unwrap_or_else(|before| before).into()
    }
}

impl Cell for u64 {
    type Shared = AtomicU64;

    #[inline]
    fn store(to: &AtomicU64, payload: u64) {
        to.store(payload, Ordering::Relaxed);
    }

    #[inline]
    fn load(from: &AtomicU64) -> u64 {
        from.load(Ordering::Relaxed)
    }

    fn empty() -> AtomicU64 {
        AtomicU64::new(u64::MAX)
    }

    #[inline]
    fn take(slot: &AtomicU64, key: u64) -> u64 {
        let new = key;
        let taken = slot.compare_exchange(u64::MAX, new, Ordering::Relaxed, Ordering::Relaxed);
        taken.unwrap_or_else(|before| before)
    }
}

/// A table that threads probe.
trait Lookup: Sync {
    /// The types of keys and payloads.
    type Row: Row;

    /// Asks the processor for the memory that a search for a key reads first.
    fn prefetch(&self, key: KeyOf<Self>);

    /// Returns the number of matches of a key, and the sum of their payloads.
    fn probe(&self, key: KeyOf<Self>, contents: &Contents) -> (u64, u64);
}

/// A table that threads fill together, and then probe.
trait Table: Lookup {
    /// Inserts a row. A failure sets a bit of `failures`.
    fn insert(&self, row: (KeyOf<Self>, u64), inserted: &mut Outcome, failures: &AtomicU32);

    /// Returns the bytes of all slots of a table with linear probing.
    #[cfg(test)]
    fn bytes(&self) -> Box<[u8]> {
        panic!("a table that is not copied")
    }
}

/// A table of any layout, for rows of any width.
trait AnyTable: fmt::Debug + Send + Sync {
    /// Inserts rows on `threads` threads.
    fn insert_all(&self, rows: HostRows<'_>, threads: usize) -> Outcome;

    /// Inserts rows on the calling thread. A failure sets a bit of `failures`.
    fn insert_some(&self, rows: HostRows<'_>, failures: &AtomicU32) -> Outcome;

    /// Returns the matches of rows, on `threads` threads.
    fn probe_all(&self, rows: HostRows<'_>, contents: &Contents, threads: usize) -> JoinTotals;

    /// Returns the matches of rows, on the calling thread.
    fn probe_some(&self, rows: HostRows<'_>, contents: &Contents) -> JoinTotals;

    /// As [`Table::bytes`].
    #[cfg(test)]
    fn slot_bytes(&self) -> Box<[u8]>;
}

impl<T: Table + fmt::Debug + Send> AnyTable for T {
    fn insert_all(&self, rows: HostRows<'_>, threads: usize) -> Outcome {
        insert(self, rows, threads)
    }

    fn insert_some(&self, rows: HostRows<'_>, failures: &AtomicU32) -> Outcome {
        insert_rows(self, rows, failures)
    }

    fn probe_all(&self, rows: HostRows<'_>, contents: &Contents, threads: usize) -> JoinTotals {
        probe(self, rows, contents, threads)
    }

    fn probe_some(&self, rows: HostRows<'_>, contents: &Contents) -> JoinTotals {
        probe_rows(self, rows, contents)
    }

    #[cfg(test)]
    fn slot_bytes(&self) -> Box<[u8]> {
        self.bytes()
    }
}

/// Returns an empty table for rows whose keys are single numbers. `threads` threads write it. A bucket has `N` slots of
/// numbers of the type `W`.
fn single<K: Word, P: Cell, W: Cell, const N: usize>(
    shape: TableShape,
    threads: usize,
) -> Box<dyn AnyTable> {
    match shape.method() {
        TableMethod::Perfect { .. } => Box::new(Perfect::<K, P>::new(shape, threads)),
        TableMethod::LinearProbing => Box::new(Linear::<(K, P)>::new(shape, 0, threads)),
        TableMethod::Bucketed => Box::new(Bucketed::<(K, P), W, N>::new(shape, (0, true), threads)),
    }
}

/// A table in host memory.
#[derive(Debug)]
pub struct HostIndex {
    table: Box<dyn AnyTable>,
    contents: Contents,
    shape: TableShape,
}

impl HostIndex {
    /// Allocates an empty table. One thread writes all of it.
    pub fn new(shape: TableShape) -> HostIndex {
        HostIndex::by_threads(shape, 1)
    }

    /// Allocates an empty table, which `threads` threads write.
    fn by_threads(shape: TableShape, threads: usize) -> HostIndex {
        let table: Box<dyn AnyTable> = match shape.width() {
            Width::Four => single::<u32, u32, u32, 8>(shape, threads),
            Width::Eight => single::<u64, u64, u64, 4>(shape, threads),
            Width::FourEight => single::<u32, u64, u64, 4>(shape, threads),
            Width::EightFour => single::<u64, u32, u64, 4>(shape, threads),
            // No other table has composite keys.
            Width::Composite => Box::new(Linear::<CompositeRow>::new(shape, 0, threads)),
        };
        HostIndex {
            table,
            contents: Contents::default(),
            shape,
        }
    }

    /// Inserts the rows of a build side into an empty table, on `threads` threads.
    ///
    /// # Errors
    /// [`IndexError::TooManyRows`], [`IndexError::ChainTooLong`], [`IndexError::KeyOutOfRange`],
    /// [`IndexError::DuplicateKeys`].
    ///
    /// # Panics
    /// If the columns are not as [`HostRows::count`] says.
    pub fn build(mut self, rows: HostRows<'_>, threads: usize) -> Result<HostIndex, IndexError> {
        check_room(&self.shape, rows.count(self.shape.width()))?;
        let outcome = self.table.insert_all(rows, threads);
        self.contents = Contents::of(&self.shape, &outcome)?;
        Ok(self)
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.contents.rows
    }

    /// Returns the matches of rows, on `threads` threads.
    ///
    /// # Panics
    /// If the columns are not as [`HostRows::count`] says.
    pub fn probe(&self, rows: HostRows<'_>, threads: usize) -> JoinTotals {
        rows.count(self.shape.width());
        self.table.probe_all(rows, &self.contents, threads)
    }

    /// Returns the matches of rows, on the calling thread. Several threads may call this at the same time.
    ///
    /// # Panics
    /// If the columns are not as [`HostRows::count`] says.
    pub fn probe_here(&self, rows: HostRows<'_>) -> JoinTotals {
        rows.count(self.shape.width());
        self.table.probe_some(rows, &self.contents)
    }
}

/// Calls a function with the part of the rows of each thread, and returns its results.
fn on_threads<R: Row, T: Send>(
    rows: HostRows<'_>,
    threads: usize,
    work: impl Fn(HostRows<'_>) -> T + Sync,
) -> Vec<T> {
    let count = rows.keys.len() / R::KEY_BYTES;
    let parts = chunks::<R>(rows, count.div_ceil(threads.max(1)).max(1));
    thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = parts.map(|part| scope.spawn(move || work(part))).collect();
        let results = running.into_iter().map(|each| each.join());
        results
            .map(|result| result.expect("a table does not panic"))
            .collect()
    })
}

/// Divides rows into parts of `count` rows; the last part may have fewer.
fn chunks<R: Row>(rows: HostRows<'_>, count: usize) -> impl Iterator<Item = HostRows<'_>> {
    let keys = rows.keys.chunks(count * R::KEY_BYTES);
    keys.zip(rows.payloads.chunks(count * R::PAYLOAD_BYTES))
        .map(|(keys, payloads)| HostRows { keys, payloads })
}

/// Returns the bytes of each key and its payload.
fn values<R: Row>(rows: HostRows<'_>) -> impl Iterator<Item = (&[u8], &[u8])> {
    let keys = rows.keys.chunks_exact(R::KEY_BYTES);
    keys.zip(rows.payloads.chunks_exact(R::PAYLOAD_BYTES))
}

/// Returns keys and payloads as numbers.
fn numbers<R: Row>(rows: HostRows<'_>) -> impl Iterator<Item = (R::Key, u64)> {
    values::<R>(rows).map(|(key, payload)| (R::read_key(key), R::read_payload(payload)))
}

/// Calls `work` with each row, some rows after the table was asked for its key.
#[inline]
fn each_row<T: Lookup>(table: &T, rows: HostRows<'_>, mut work: impl FnMut((KeyOf<T>, u64))) {
    let key_bytes = T::Row::KEY_BYTES;
    let ask = |keys: Option<&[u8]>| {
        let keys = keys.unwrap_or_default().chunks_exact(key_bytes);
        keys.for_each(|key| table.prefetch(T::Row::read_key(key)));
    };
    let mut ahead = rows.keys.chunks(ROWS_AHEAD * key_bytes);
    ask(ahead.next());
    for some in chunks::<T::Row>(rows, ROWS_AHEAD) {
        ask(ahead.next());
        numbers::<T::Row>(some).for_each(&mut work);
    }
}

fn insert<T: Table>(table: &T, rows: HostRows<'_>, threads: usize) -> Outcome {
    let failures = AtomicU32::new(0);
    let parts = on_threads::<T::Row, _>(rows, threads, |part| insert_rows(table, part, &failures));
    Outcome::of_all(&parts, &failures)
}

/// Inserts rows on the calling thread. A failure sets a bit of `failures`.
fn insert_rows<T: Table>(table: &T, rows: HostRows<'_>, failures: &AtomicU32) -> Outcome {
    let mut inserted = no_rows();
    each_row(table, rows, |row| {
        table.insert(row, &mut inserted, failures);
    });
    inserted
}

impl Outcome {
    /// Returns the outcome of the inserts of all threads.
    fn of_all(parts: &[Outcome], failures: &AtomicU32) -> Outcome {
        let mut all = no_rows();
        parts.iter().for_each(|part| all.add(part));
        all.failures = failures.load(Ordering::Relaxed);
        all
    }

    /// Adds the rows of other inserts.
    fn add(&mut self, part: &Outcome) {
        self.stored += part.stored;
        self.duplicates += part.duplicates;
        self.aside_count += part.aside_count;
        self.aside_sum = self.aside_sum.wrapping_add(part.aside_sum);
    }
}

/// Returns the outcome of no insert.
fn no_rows() -> Outcome {
    Outcome {
        stored: 0,
        duplicates: 0,
        aside_count: 0,
        aside_sum: 0,
        failures: 0,
        unused: 0,
    }
}

fn probe<T: Lookup>(
    table: &T,
    rows: HostRows<'_>,
    contents: &Contents,
    threads: usize,
) -> JoinTotals {
    let parts = on_threads::<T::Row, _>(rows, threads, |part| probe_rows(table, part, contents));
    let mut all = JoinTotals::default();
    parts.into_iter().for_each(|part| all.add(part));
    all
}

/// Returns the matches of rows, on the calling thread.
fn probe_rows<T: Lookup>(table: &T, rows: HostRows<'_>, contents: &Contents) -> JoinTotals {
    let mut totals = JoinTotals::default();
    each_row(table, rows, |(key, payload)| {
        add(&mut totals, table.probe(key, contents), payload);
    });
    totals
}

/// Adds matches of a row: their number and the sum of their payloads on the build side.
#[inline]
fn add(totals: &mut JoinTotals, (count, build_sum): (u64, u64), payload: u64) {
    totals.add(JoinTotals {
        count,
        build_sum,
        probe_sum: count.wrapping_mul(payload),
    });
}
