//! The same tables in host memory: built and probed by all cores.

mod linear;
mod perfect;

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use crate::column::HostRows;
use crate::error::IndexError;
use crate::index::{Contents, check_room};
use crate::kernels::{JoinTotals, Outcome};
use crate::shape::{TableMethod, TableShape, Width};

use linear::Linear;
use perfect::Perfect;

/// Rows that a thread works on at once: their reads of the table are in flight together.
const ROWS_AHEAD: usize = 16;

/// A value of a column.
trait Word: Copy + Send + Sync + 'static {
    const BYTES: usize;

    /// Reads a value, which has this many bytes.
    fn read(bytes: &[u8]) -> u64;
}

impl Word for u32 {
    const BYTES: usize = 4;

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

    #[inline]
    fn read(bytes: &[u8]) -> u64 {
        bytes
            .first_chunk()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

/// A table that threads fill together, and then probe.
trait Table: Sync {
    /// The type of keys and payloads.
    type Word: Word;

    /// Inserts a row. A failure sets a bit of `failures`.
    fn insert(&self, row: (u64, u64), inserted: &mut Outcome, failures: &AtomicU32);

    /// Adds the matches of rows.
    fn probe(&self, rows: &[(u64, u64)], contents: &Contents, totals: &mut JoinTotals);
}

/// The layouts.
#[derive(Debug)]
enum Slots {
    Perfect4(Perfect<u32>),
    Perfect8(Perfect<u64>),
    Linear4(Linear<u32>),
    Linear8(Linear<u64>),
}

/// Calls a function with the table of a layout.
macro_rules! with_table {
    ($slots:expr, $table:ident => $call:expr) => {
        match $slots {
            Slots::Perfect4($table) => $call,
            Slots::Perfect8($table) => $call,
            Slots::Linear4($table) => $call,
            Slots::Linear8($table) => $call,
        }
    };
}

/// A table in host memory.
#[derive(Debug)]
pub struct HostIndex {
    slots: Slots,
    contents: Contents,
    shape: TableShape,
}

impl HostIndex {
    /// Allocates an empty table. One thread writes all of it.
    pub fn new(shape: TableShape) -> HostIndex {
        let slots = match (shape.method(), shape.width()) {
            (TableMethod::Perfect { .. }, Width::Four) => Slots::Perfect4(Perfect::new(shape)),
            (TableMethod::Perfect { .. }, Width::Eight) => Slots::Perfect8(Perfect::new(shape)),
            (TableMethod::LinearProbing, Width::Four) => Slots::Linear4(Linear::new(shape)),
            (TableMethod::LinearProbing, Width::Eight) => Slots::Linear8(Linear::new(shape)),
        };
        HostIndex {
            slots,
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
    /// If the columns differ in length or are not whole values of the table's width.
    pub fn build(mut self, rows: HostRows<'_>, threads: usize) -> Result<HostIndex, IndexError> {
        check_room(&self.shape, rows.count(self.shape.width()))?;
        let outcome = with_table!(&self.slots, table => insert(table, rows, threads));
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
    /// If the columns differ in length or are not whole values of the table's width.
    pub fn probe(&self, rows: HostRows<'_>, threads: usize) -> JoinTotals {
        rows.count(self.shape.width());
        with_table!(&self.slots, table => probe(table, rows, &self.contents, threads))
    }
}

/// Calls a function with the part of the rows of each thread, and returns its results.
fn on_threads<T: Send>(
    rows: HostRows<'_>,
    (value_bytes, threads): (usize, usize),
    work: impl Fn(HostRows<'_>) -> T + Sync,
) -> Vec<T> {
    let share_rows = (rows.keys.len() / value_bytes).div_ceil(threads.max(1));
    let share_bytes = share_rows.max(1) * value_bytes;
    let parts = rows
        .keys
        .chunks(share_bytes)
        .zip(rows.payloads.chunks(share_bytes));
    thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = parts
            .map(|(keys, payloads)| scope.spawn(move || work(HostRows { keys, payloads })))
            .collect();
        let results = running.into_iter().map(|each| each.join());
        results
            .map(|result| result.expect("a table does not panic"))
            .collect()
    })
}

/// Returns keys and payloads as numbers.
fn numbers<W: Word>(rows: HostRows<'_>) -> impl Iterator<Item = (u64, u64)> {
    let keys = rows.keys.chunks_exact(W::BYTES).map(W::read);
    keys.zip(rows.payloads.chunks_exact(W::BYTES).map(W::read))
}

fn insert<T: Table>(table: &T, rows: HostRows<'_>, threads: usize) -> Outcome {
    let failures = AtomicU32::new(0);
    let parts = on_threads(rows, (T::Word::BYTES, threads), |part| {
        let mut inserted = no_rows();
        for row in numbers::<T::Word>(part) {
            table.insert(row, &mut inserted, &failures);
        }
        inserted
    });
    let mut all = no_rows();
    for part in parts {
        all.stored += part.stored;
        all.duplicates += part.duplicates;
        all.aside_count += part.aside_count;
        all.aside_sum = all.aside_sum.wrapping_add(part.aside_sum);
    }
    all.failures = failures.load(Ordering::Relaxed);
    all
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

fn probe<T: Table>(
    table: &T,
    rows: HostRows<'_>,
    contents: &Contents,
    threads: usize,
) -> JoinTotals {
    let parts = on_threads(rows, (T::Word::BYTES, threads), |part| {
        let mut totals = JoinTotals::default();
        let mut batch = [(0, 0); ROWS_AHEAD];
        let mut rows = numbers::<T::Word>(part);
        loop {
            let filled = batch.iter_mut().zip(&mut rows);
            let count = filled.map(|(to, row)| *to = row).count();
            table.probe(&batch[..count], contents, &mut totals);
            if count < ROWS_AHEAD {
                return totals;
            }
        }
    });
    let mut all = JoinTotals::default();
    parts.into_iter().for_each(|part| all.add(part));
    all
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
