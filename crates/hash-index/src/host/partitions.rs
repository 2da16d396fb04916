//! Joins of partitions, whose tables fit in the caches.

use std::sync::Mutex;
use std::sync::atomic::AtomicU32;
use std::thread;

use forebay_device::AlignedBytes;

use super::bucketed::Bucketed;
use super::linear::{Linear, Slot};
use super::runs::partition_of;
use super::{Cell, CompositeRow, Row, Table, add, each_row, no_rows, values};
use crate::column::HostRows;
use crate::error::IndexError;
use crate::index::Contents;
use crate::kernels::{JoinTotals, Outcome, PARTITION_BITS_MAX, SLICE_ROWS, Slice};
use crate::shape::{TableShape, Width};

/// Rows of a run, which a thread divides while they are in its caches.
const RUN_ROWS: usize = 1 << 18;
/// Bytes of a partition's table, if there are enough partitions.
///
/// PERF: `forebay bench joins --only cpu --tables partitioned --scale 0.03125`, two cores of an AMD EPYC with 1 MiB of
/// L2 cache each, November 28, 2026, G tuples/s of workloads A and C: 0.156 and 0.098 with 256 KiB, 0.164 and 0.099
/// with 512 KiB, 0.168 and 0.107 with 1 MiB, 0.153 and 0.116 with 2 MiB, 0.140 and 0.115 with 4 MiB.
const TABLE_BYTES: u64 = 1 << 20;
/// Partitions for each thread, from which on threads join partitions side by side.
const PARTITIONS_OF_THREAD: u64 = 4;
/// Rows that a thread takes of a partition that all threads join.
const TURN_ROWS: usize = 1 << 14;

/// The rows of a side in host memory, divided into partitions by the upper bits of their keys' hashes.
#[derive(Debug)]
pub struct HostPartitions {
    width: Width,
    bits: u32,
    /// The keys of all runs, each of which has room for [`run_rows`].
    keys: AlignedBytes,
    /// The payloads, likewise.
    payloads: AlignedBytes,
    runs: Vec<Run>,
}

/// Some rows of a side, in the order of their partitions.
#[derive(Debug)]
struct Run {
    number: usize,
    /// The rows of each partition, counted from the beginning of the run.
    slices: Vec<Slice>,
}

/// Returns the number of rows for which a run has room.
fn run_rows(bits: u32) -> usize {
    RUN_ROWS + ((SLICE_ROWS as usize) << bits)
}

/// Returns the shape of a partition's table for at most `rows` rows.
fn table_shape(width: Width, rows: u64) -> TableShape {
    match width.is_single() {
        true => TableShape::bucketed(width, rows),
        false => TableShape::linear_probing(width, rows),
    }
}

/// Copies rows to two columns in the order of their partitions. Returns where each partition is.
type Divide = fn(HostRows<'_>, u32, (&mut [u8], &mut [u8])) -> Vec<Slice>;

impl HostPartitions {
    /// Returns for how many bits of the hash the tables of the partitions of a build side fit in the caches of a core.
    /// There are at most 1,024 partitions.
    pub fn bits_for(width: Width, build_rows: u64) -> u32 {
        let bytes = table_shape(width, build_rows).bytes();
        (bytes / TABLE_BYTES).max(1).ilog2().min(PARTITION_BITS_MAX)
    }

    /// Copies the rows of a side into 2^`bits` partitions, on `threads` threads. The copy has up to 1.13 times the
    /// bytes of the side, and at least those of 2^18 rows; the process ends if the system has no memory for it.
    ///
    /// # Panics
    /// If the columns differ in their number of values or are not whole values of this width, or `bits` exceeds 10.
    pub fn of(rows: HostRows<'_>, width: Width, bits: u32, threads: usize) -> HostPartitions {
        rows.count(width);
        assert!(bits <= PARTITION_BITS_MAX, "{bits} bits");
        let (key_bytes, bytes) = (width.key_bytes() as usize, width.payload_bytes() as usize);
        let from = rows.keys.chunks(RUN_ROWS * key_bytes);
        let from = from.zip(rows.payloads.chunks(RUN_ROWS * bytes));
        let (run_rows, runs) = (run_rows(bits), from.len());
        let column = |of_value| AlignedBytes::in_huge_pages(runs * run_rows * of_value);
        let (mut keys, mut payloads) = (column(key_bytes), column(bytes));
        let to = keys.chunks_mut(run_rows * key_bytes);
        let to = to.zip(payloads.chunks_mut(run_rows * bytes));
        let divide: Divide = match width {
            Width::Four => divide::<(u32, u32)>,
            Width::Eight => divide::<(u64, u64)>,
            Width::FourEight => divide::<(u32, u64)>,
            Width::EightFour => divide::<(u64, u32)>,
            Width::Composite => divide::<CompositeRow>,
        };
        let parts = from.zip(to).enumerate();
        let work = |runs: &mut Vec<Run>, (number, (from, to)): (usize, (_, _))| {
            let (keys, payloads) = from;
            let slices = divide(HostRows { keys, payloads }, bits, to);
            runs.push(Run { number, slices });
        };
        let runs = in_turn(parts, threads, Vec::new, work);
        HostPartitions {
            width,
            bits,
            runs: runs.into_iter().flatten().collect(),
            keys,
            payloads,
        }
    }

    /// Returns the matches of these rows, those of the build side, with the rows of a probe side, on `threads` threads.
    ///
    /// # Errors
    /// [`IndexError::ChainTooLong`] if keys of the build side have too many rows in one table.
    ///
    /// # Panics
    /// If the sides differ in the width of their values or in the number of partitions.
    pub fn join(&self, probe: &HostPartitions, threads: usize) -> Result<JoinTotals, IndexError> {
        let shape = |side: &HostPartitions| (side.width, side.bits);
        assert_eq!(shape(self), shape(probe), "partitions of the sides");
        match self.width {
            Width::Four => join::<Bucketed<(u32, u32), u32, 8>>((self, probe), threads),
            Width::Eight => join::<Bucketed<(u64, u64), u64, 4>>((self, probe), threads),
            Width::FourEight => join::<Bucketed<(u32, u64), u64, 4>>((self, probe), threads),
            Width::EightFour => join::<Bucketed<(u64, u32), u64, 4>>((self, probe), threads),
            Width::Composite => join::<Linear<CompositeRow>>((self, probe), threads),
        }
    }

    /// Returns the rows of a partition, in pieces that threads take in turn.
    fn slices(&self, partition: usize) -> impl Iterator<Item = HostRows<'_>> {
        let (key_bytes, bytes) = (
            self.width.key_bytes() as usize,
            self.width.payload_bytes() as usize,
        );
        let run_rows = run_rows(self.bits);
        self.runs.iter().flat_map(move |run| {
            let slice = run.slices[partition];
            let first = run.number * run_rows + slice.begin as usize;
            let end = first + slice.count as usize;
            let keys = self.keys[first * key_bytes..end * key_bytes].chunks(TURN_ROWS * key_bytes);
            let payloads = &self.payloads[first * bytes..end * bytes];
            let payloads = payloads.chunks(TURN_ROWS * bytes);
            keys.zip(payloads)
                .map(|(keys, payloads)| HostRows { keys, payloads })
        })
    }

    fn rows(&self, partition: usize) -> u64 {
        let slices = self.runs.iter().map(|run| run.slices[partition]);
        slices.map(|slice| u64::from(slice.count)).sum()
    }
}

/// Calls `work` with each item, on threads that each take the next one, and returns the results of the threads.
fn in_turn<I: Send, T: Send>(
    items: impl Iterator<Item = I> + Send,
    threads: usize,
    begin: impl Fn() -> T + Sync,
    work: impl Fn(&mut T, I) + Sync,
) -> Vec<T> {
    let items = Mutex::new(items);
    let next = || items.lock().ok()?.next();
    let run = || {
        let mut result = begin();
        while let Some(item) = next() {
            work(&mut result, item);
        }
        result
    };
    if threads <= 1 {
        return vec![run()];
    }
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let results = running.into_iter().map(|each| each.join());
        results
            .map(|result| result.expect("partitions do not panic"))
            .collect()
    })
}

/// As [`Divide`] says.
fn divide<R: Row>(
    rows: HostRows<'_>,
    bits: u32,
    (keys, payloads): (&mut [u8], &mut [u8]),
) -> Vec<Slice> {
    let mut slices = vec![Slice { begin: 0, count: 0 }; 1 << bits];
    for key in rows.keys.chunks_exact(R::KEY_BYTES) {
        slices[partition_of::<R>(key, bits)].count += 1;
    }
    let mut end = 0;
    for slice in &mut slices {
        slice.begin = end;
        end = (end + slice.count).next_multiple_of(SLICE_ROWS);
    }
    let mut next: Vec<u32> = slices.iter().map(|slice| slice.begin).collect();
    for (key, payload) in values::<R>(rows) {
        let next = &mut next[partition_of::<R>(key, bits)];
        let (of_key, of_payload) = (
            *next as usize * R::KEY_BYTES,
            *next as usize * R::PAYLOAD_BYTES,
        );
        *next += 1;
        keys[of_key..of_key + R::KEY_BYTES].copy_from_slice(key);
        payloads[of_payload..of_payload + R::PAYLOAD_BYTES].copy_from_slice(payload);
    }
    slices
}

/// Returns the number of rows above which all threads join a partition together, of `all` rows of both sides. With few
/// partitions, these are all; otherwise those of more than twice the mean that would keep a thread busy for long.
fn heavy_rows(all: u64, bits: u32, threads: usize) -> u64 {
    let wanted = threads.max(1) as u64 * PARTITIONS_OF_THREAD;
    match wanted <= 1 << bits {
        true => (all / wanted).max(2 * (all >> bits)),
        false => 0,
    }
}

/// Joins all partitions: those with many rows one after another by all threads, the others side by side.
fn join<T: PartitionTable>(
    (build, probe): (&HostPartitions, &HostPartitions),
    threads: usize,
) -> Result<JoinTotals, IndexError> {
    let rows = |partition| build.rows(partition) + probe.rows(partition);
    let mut partitions: Vec<(u64, usize)> = (0..1 << build.bits)
        .map(|partition| (rows(partition), partition))
        .collect();
    partitions.sort_unstable_by(|left, right| right.cmp(left));
    let all: u64 = partitions.iter().map(|(rows, _)| rows).sum();
    let heavy_rows = heavy_rows(all, build.bits, threads);
    let heavy = partitions.partition_point(|(rows, _)| *rows > heavy_rows);
    let (heavy, light) = partitions.split_at(heavy);
    let mut together = Joining::<T>::new(build, probe, threads);
    heavy.iter().for_each(|(_, each)| together.add(*each));
    let begin = || Joining::<T>::new(build, probe, 1);
    let side_by_side = in_turn(light.iter(), threads, begin, |joining, (_, each)| {
        joining.add(*each);
    });
    let mut totals = together.totals?;
    for joining in side_by_side {
        totals.add(joining.totals?);
    }
    Ok(totals)
}

/// A table for the rows of one partition.
trait PartitionTable: Table + Send {
    /// Returns an empty table for keys whose hashes have the same upper `skipped_bits`. `is_shared` says whether
    /// several threads insert rows.
    fn empty(shape: TableShape, skipped_bits: u32, is_shared: bool) -> Self;

    /// Empties the table.
    fn clear(&mut self);
}

impl<R: Row<Key = u64>, W: Cell, const N: usize> PartitionTable for Bucketed<R, W, N> {
    fn empty(shape: TableShape, skipped_bits: u32, is_shared: bool) -> Self {
        Bucketed::new(shape, (skipped_bits, is_shared), 1)
    }

    fn clear(&mut self) {
        self.clear();
    }
}

impl<R: Slot> PartitionTable for Linear<R> {
    fn empty(shape: TableShape, skipped_bits: u32, _: bool) -> Self {
        Linear::new(shape, skipped_bits, 1)
    }

    fn clear(&mut self) {
        self.clear();
    }
}

/// The joins of some partitions.
struct Joining<'a, T> {
    build: &'a HostPartitions,
    probe: &'a HostPartitions,
    /// The table of the last partition, whose memory the next one uses.
    table: Option<(TableShape, T)>,
    threads: usize,
    totals: Result<JoinTotals, IndexError>,
}

impl<'a, T: PartitionTable> Joining<'a, T> {
    fn new(build: &'a HostPartitions, probe: &'a HostPartitions, threads: usize) -> Self {
        Joining {
            build,
            probe,
            table: None,
            threads,
            totals: Ok(JoinTotals::default()),
        }
    }

    /// Joins a partition, unless one before has failed.
    fn add(&mut self, partition: usize) {
        let Ok(totals) = &mut self.totals else {
            return;
        };
        let rows = self.build.rows(partition);
        let shape = table_shape(self.build.width, rows);
        let table = match self.table.take() {
            Some((last, mut table)) if last == shape => {
                table.clear();
                table
            }
            _ => T::empty(shape, self.build.bits, self.threads > 1),
        };
        let failures = AtomicU32::new(0);
        let slices = self.build.slices(partition);
        let inserted = in_turn(slices, self.threads, no_rows, |inserted, slice| {
            each_row(&table, slice, |row| table.insert(row, inserted, &failures));
        });
        let outcome = Outcome::of_all(&inserted, &failures);
        let contents = match Contents::of(&shape, &outcome) {
            Ok(contents) => contents,
            Err(error) => {
                self.totals = Err(error);
                return;
            }
        };
        let zero = JoinTotals::default;
        let slices = self.probe.slices(partition);
        let found = in_turn(slices, self.threads, zero, |found, slice| {
            each_row(&table, slice, |(key, payload)| {
                add(found, table.probe(key, &contents), payload);
            });
        });
        found.into_iter().for_each(|found| totals.add(found));
        self.table = Some((shape, table));
    }
}
