//! Joins of partitions, whose tables fit in the caches.

use std::sync::Mutex;
use std::sync::atomic::AtomicU32;
use std::thread;

use forebay_device::AlignedBytes;

use super::bucketed::Bucketed;
use super::{Cell, Lookup, Table, Word, add, each_row, no_rows, numbers};
use crate::column::HostRows;
use crate::error::IndexError;
use crate::index::Contents;
use crate::kernels::{JoinTotals, Outcome, PARTITION_BITS_MAX, SLICE_ROWS, Slice};
use crate::shape::{TableShape, Width, hash_of};

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
    /// The keys of all runs, each of which begins at a multiple of [`run_bytes`].
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

/// Returns the bytes of a column of a run.
fn run_bytes(width: Width, bits: u32) -> usize {
    (RUN_ROWS + ((SLICE_ROWS as usize) << bits)) * width.bytes() as usize
}

impl HostPartitions {
    /// Returns for how many bits of the hash the tables of the partitions of a build side fit in the caches of a core.
    /// There are at most 1,024 partitions.
    pub fn bits_for(width: Width, build_rows: u64) -> u32 {
        let bytes = TableShape::bucketed(width, build_rows).bytes();
        (bytes / TABLE_BYTES).max(1).ilog2().min(PARTITION_BITS_MAX)
    }

    /// Copies the rows of a side into 2^`bits` partitions, on `threads` threads. The copy has up to 1.13 times the
    /// bytes of the side, and at least those of 2^18 rows; the process ends if the system has no memory for it.
    ///
    /// # Panics
    /// If the columns differ in length or are not whole values of this width, keys are composite, or `bits` exceeds
    /// 10.
    pub fn of(rows: HostRows<'_>, width: Width, bits: u32, threads: usize) -> HostPartitions {
        width.assert_is_single("partitions");
        rows.count(width);
        assert!(bits <= PARTITION_BITS_MAX, "{bits} bits");
        let part_bytes = RUN_ROWS * width.bytes() as usize;
        let from = rows.keys.chunks(part_bytes);
        let from = from.zip(rows.payloads.chunks(part_bytes));
        let run_bytes = run_bytes(width, bits);
        let column = || AlignedBytes::in_huge_pages(from.len() * run_bytes);
        let (mut keys, mut payloads) = (column(), column());
        let to = keys.chunks_mut(run_bytes);
        let to = to.zip(payloads.chunks_mut(run_bytes));
        let parts = from.zip(to).enumerate();
        let work = |runs: &mut Vec<Run>, (number, (from, to)): (usize, (_, _))| {
            let (keys, payloads) = from;
            let rows = HostRows { keys, payloads };
            let slices = match width {
                Width::Four => divide::<u32>(rows, bits, to),
                // Keys are not composite.
                Width::Eight | Width::Composite => divide::<u64>(rows, bits, to),
            };
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
            Width::Four => join::<u32, 8>((self, probe), threads),
            Width::Eight | Width::Composite => join::<u64, 4>((self, probe), threads),
        }
    }

    /// Returns the rows of a partition, in pieces that threads take in turn.
    fn slices(&self, partition: usize) -> impl Iterator<Item = HostRows<'_>> {
        let value_bytes = self.width.bytes() as usize;
        let run_bytes = run_bytes(self.width, self.bits);
        let turn_bytes = TURN_ROWS * value_bytes;
        self.runs.iter().flat_map(move |run| {
            let slice = run.slices[partition];
            let begin = run.number * run_bytes + slice.begin as usize * value_bytes;
            let bytes = begin..begin + slice.count as usize * value_bytes;
            let keys = self.keys[bytes.clone()].chunks(turn_bytes);
            let payloads = self.payloads[bytes].chunks(turn_bytes);
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

/// Copies rows to two columns in the order of their partitions. Returns where each partition is.
fn divide<W: Word>(
    rows: HostRows<'_>,
    bits: u32,
    (keys, payloads): (&mut [u8], &mut [u8]),
) -> Vec<Slice> {
    let partition_of = |key: u64| match bits {
        0 => 0,
        bits => (hash_of(key) >> (u64::BITS - bits)) as usize,
    };
    let mut slices = vec![Slice { begin: 0, count: 0 }; 1 << bits];
    for key in rows.keys.chunks_exact(W::BYTES).map(W::read) {
        slices[partition_of(key)].count += 1;
    }
    let mut end = 0;
    for slice in &mut slices {
        slice.begin = end;
        end = (end + slice.count).next_multiple_of(SLICE_ROWS);
    }
    let mut next: Vec<u32> = slices.iter().map(|slice| slice.begin).collect();
    for (key, payload) in numbers::<W>(rows) {
        let next = &mut next[partition_of(key)];
        let begin = *next as usize * W::BYTES;
        *next += 1;
        W::write(&mut keys[begin..begin + W::BYTES], key);
        W::write(&mut payloads[begin..begin + W::BYTES], payload);
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
fn join<W: Cell, const N: usize>(
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
    let mut together = Joining::<W, N>::new(build, probe, threads);
    heavy.iter().for_each(|(_, each)| together.add(*each));
    let begin = || Joining::<W, N>::new(build, probe, 1);
    let side_by_side = in_turn(light.iter(), threads, begin, |joining, (_, each)| {
        joining.add(*each);
    });
    let mut totals = together.totals?;
    for joining in side_by_side {
        totals.add(joining.totals?);
    }
    Ok(totals)
}

/// The joins of some partitions.
struct Joining<'a, W: Cell, const N: usize> {
    build: &'a HostPartitions,
    probe: &'a HostPartitions,
    /// The table of the last partition, whose memory the next one uses.
    table: Option<(TableShape, Bucketed<W, N>)>,
    threads: usize,
    totals: Result<JoinTotals, IndexError>,
}

impl<'a, W: Cell, const N: usize> Joining<'a, W, N> {
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
        let shape = TableShape::bucketed(self.build.width, rows);
        let table = match self.table.take() {
            Some((last, mut table)) if last == shape => {
                table.clear();
                table
            }
            _ => Bucketed::new(shape, (self.build.bits, self.threads > 1), 1),
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
