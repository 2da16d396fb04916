//! Runs that the CPU divides, in the layout in which kernels read them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{CompositeRow, Row, values};
use crate::column::HostRows;
use crate::kernels::{HeavyRows, PARTITION_BITS_MAX, SLICE_ROWS, Slice};
use crate::partitions::sieve::{EMPTY, filter_words, heavy_slots, matches};
use crate::partitions::{RunShape, Sifted};
use crate::shape::Width;
use crate::workload::Side;

/// Maximum number of partitions.
const PARTITIONS_MAX: usize = 1 << PARTITION_BITS_MAX;
/// Bytes of a line of the processor's caches.
const LINE_BYTES: usize = 64;
/// Maximum number of bits of the hash with which rows are written one by one. The caches of a core then hold the line
/// of each slice until it is full. With more bits, rows are written by software write-combining.
///
/// PERF: a program of 90 lines, of which no record was kept, on one core of an AMD EPYC with 32 KiB of L1 cache, while
/// other programs ran, November 30, 2026: runs of 2^20 rows of 16 bytes in huge pages, the best of nine, millions of
/// rows a second. 2^6 partitions: 227 one by one, 177 by lines, 168 by lines with non-temporal stores. 2^9: 220, 167
/// and 166. 2^10: 117, 153 and 166. Non-temporal stores need unsafe code, and gain little.
const UNBUFFERED_BITS_MAX: u32 = 9;

/// Where the rows of each partition are in a run that the CPU divided.
#[derive(Debug)]
pub struct HostSlices(pub(crate) Vec<Slice>);

/// Drops rows of both sides before the CPU divides them, as a [`Sieve`](crate::Sieve) does on a GPU: it has the same
/// results. Its filter is in host memory, where it takes a byte for each row of the build side.
///
/// Several threads may divide runs with it at the same time: all runs of the build side before the first run of the
/// probe side.
#[derive(Debug)]
pub struct HostSieve {
    /// Heavy keys: a table with linear probing.
    heavy_keys: Vec<u64>,
    /// The number of rows of the heavy key in each slot, and the sum of their payloads: those of the build side, then
    /// those of the probe side.
    heavy_rows: Vec<[AtomicU64; 2]>,
    /// A blocked Bloom filter; empty if there is none.
    filter: Vec<AtomicU64>,
    /// Number of rows that the filter dropped.
    filtered: AtomicU64,
    /// Memory for the rows of a run that stay, which no thread uses now. Fresh memory makes a fault for each page.
    ///
    /// PERF: a program of 20 lines, of which no record was kept, on one core of an AMD EPYC, beside other work,
    /// November 30, 2026: two columns of 8 MiB are copied in 2.1 ms to memory that was used before, in 12 ms to
    /// fresh memory.
    free: Mutex<Vec<[Vec<u8>; 2]>>,
}

impl RunShape {
    /// Copies rows, or those that a sieve keeps, into the memory of a run, on the calling thread. Kernels read the run
    /// where it is or in a copy, after [`Slices::write`](crate::Slices::write).
    ///
    /// # Panics
    /// If there are too many rows, the memory is too small, or the columns are not as [`HostRows::count`] says.
    pub fn divide(
        &self,
        rows: HostRows<'_>,
        sieve: Option<(&HostSieve, Side)>,
        to: &mut [u8],
    ) -> HostSlices {
        let count = rows.count(self.width());
        assert!(count <= self.rows(), "{count} rows in {self:?}");
        let to = &mut to[..self.bytes() as usize];
        let divide = match self.width() {
            Width::Four => divide_kept::<(u32, u32)>,
            Width::Eight => divide_kept::<(u64, u64)>,
            Width::FourEight => divide_kept::<(u32, u64)>,
            Width::EightFour => divide_kept::<(u64, u32)>,
            Width::Composite => divide_kept::<CompositeRow>,
        };
        HostSlices(divide(rows, sieve, self.bits(), to))
    }
}

fn divide_kept<R: Row>(
    rows: HostRows<'_>,
    sieve: Option<(&HostSieve, Side)>,
    bits: u32,
    to: &mut [u8],
) -> Vec<Slice> {
    let Some((sieve, side)) = sieve else {
        return divide::<R>(rows, bits, to);
    };
    let free = || sieve.free.lock().unwrap_or_else(PoisonError::into_inner);
    let mut columns = free().pop().unwrap_or_default();
    sieve.sift::<R>(rows, side, &mut columns);
    let [keys, payloads] = &columns;
    let slices = divide::<R>(HostRows { keys, payloads }, bits, to);
    free().push(columns);
    slices
}

/// Returns the partition of a key; as `partition_of` in `partitions.cu`.
#[inline]
pub(super) fn partition_of<R: Row>(key: &[u8], bits: u32) -> usize {
    let hash = R::hash(R::read_key(key));
    // With 0 bits, one shift would be by 64. The compiler knows from the remainder that the partition exists.
    (hash >> 1 >> (u64::BITS - 1 - bits)) as usize % PARTITIONS_MAX
}

/// Copies rows to a run in the order of their partitions. Returns where each partition is.
fn divide<R: Row>(rows: HostRows<'_>, bits: u32, to: &mut [u8]) -> Vec<Slice> {
    let mut counts = [0; PARTITIONS_MAX];
    for key in rows.keys.chunks_exact(R::KEY_BYTES) {
        counts[partition_of::<R>(key, bits)] += 1;
    }
    let mut places = [Place::default(); PARTITIONS_MAX];
    let mut slices = Vec::with_capacity(1 << bits);
    let mut begin = 0;
    for (place, count) in places.iter_mut().zip(counts).take(1 << bits) {
        let slice = Slice { begin, count };
        let [keys, payloads] = slice.columns(R::KEY_BYTES, R::PAYLOAD_BYTES);
        *place = Place { keys, payloads };
        slices.push(slice);
        begin += slice.room();
    }
    match bits <= UNBUFFERED_BITS_MAX {
        true => copy_rows::<R>(rows, bits, &mut places, to),
        false => copy_lines::<R>(rows, bits, &mut places, to),
    }
    slices
}

impl Slice {
    /// Returns the number of rows for which the slice has room.
    fn room(self) -> u32 {
        self.count.next_multiple_of(SLICE_ROWS)
    }

    /// Returns where keys and payloads of these bytes begin in a run that kernels read: at multiples of whole lines.
    fn columns(self, key_bytes: usize, payload_bytes: usize) -> [usize; 2] {
        let keys = self.begin as usize * (key_bytes + payload_bytes);
        [keys, keys + self.room() as usize * key_bytes]
    }

    /// Returns the keys and payloads of a slice of such a run, in ascending order of their bytes.
    #[cfg(test)]
    pub(crate) fn sorted_rows(self, run: &[u8], width: Width) -> Vec<(&[u8], &[u8])> {
        let (key_bytes, bytes) = (width.key_bytes() as usize, width.payload_bytes() as usize);
        let [keys, payloads] = self.columns(key_bytes, bytes);
        let rows = run[keys..].chunks(key_bytes);
        let rows = rows.zip(run[payloads..].chunks(bytes));
        let mut rows: Vec<_> = rows.take(self.count as usize).collect();
        rows.sort_unstable();
        rows
    }
}

/// Where the next key of a partition and its payload go, in bytes from the beginning of the run.
#[derive(Clone, Copy, Default)]
struct Place {
    keys: usize,
    payloads: usize,
}

type Places = [Place; PARTITIONS_MAX];

/// Copies rows one by one.
fn copy_rows<R: Row>(rows: HostRows<'_>, bits: u32, places: &mut Places, to: &mut [u8]) {
    for (key, payload) in values::<R>(rows) {
        let place = &mut places[partition_of::<R>(key, bits)];
        to[place.keys..place.keys + R::KEY_BYTES].copy_from_slice(key);
        to[place.payloads..place.payloads + R::PAYLOAD_BYTES].copy_from_slice(payload);
        place.keys += R::KEY_BYTES;
        place.payloads += R::PAYLOAD_BYTES;
    }
}

/// Values of a column that are not in the run yet: a buffer of a cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u8; LINE_BYTES]);

impl Line {
    /// Adds a value that goes to `next` in the run.
    #[inline]
    fn add(&mut self, value: &[u8], next: usize) {
        let at = next % LINE_BYTES;
        self.0[at..at + value.len()].copy_from_slice(value);
    }

    /// Copies the line to the run, in which its last value ends at `end`.
    #[inline]
    fn copy(&self, end: usize, to: &mut [u8]) {
        let begin = (end - 1) / LINE_BYTES * LINE_BYTES;
        to[begin..begin + LINE_BYTES].copy_from_slice(&self.0);
    }
}

/// Copies rows by software write-combining: they are collected in a buffer for each slice, which is copied when it is
/// full.
fn copy_lines<R: Row>(rows: HostRows<'_>, bits: u32, places: &mut Places, to: &mut [u8]) {
    let mut lines = Box::new([[Line([0; LINE_BYTES]); 2]; PARTITIONS_MAX]);
    for (key, payload) in values::<R>(rows) {
        let partition = partition_of::<R>(key, bits);
        let (place, [keys, payloads]) = (&mut places[partition], &mut lines[partition]);
        // A copy waits for earlier writes to its line, and they wait for earlier copies: both values are written first.
        keys.add(key, place.keys);
        payloads.add(payload, place.payloads);
        place.keys += R::KEY_BYTES;
        place.payloads += R::PAYLOAD_BYTES;
        if place.keys.is_multiple_of(LINE_BYTES) {
            keys.copy(place.keys, to);
        }
        if place.payloads.is_multiple_of(LINE_BYTES) {
            payloads.copy(place.payloads, to);
        }
    }
    // A column of a slice has room for whole lines.
    for (place, [keys, payloads]) in places.iter().zip(&*lines) {
        for (line, end) in [(keys, place.keys), (payloads, place.payloads)] {
            if !end.is_multiple_of(LINE_BYTES) {
                line.copy(end, to);
            }
        }
    }
}

impl HostSieve {
    /// Returns a sieve for these heavy keys, and for a filter of the keys of `filter_rows` rows; `None` for no
    /// filter. Composite keys are not kept apart. The process ends if the system has no memory for it.
    ///
    /// # Panics
    /// If 2^64 - 1 is among the heavy keys.
    pub fn new(heavy_keys: &[u64], filter_rows: Option<u64>) -> HostSieve {
        let heavy_keys = heavy_slots(heavy_keys);
        let zero = || AtomicU64::new(0);
        HostSieve {
            heavy_rows: (0..2 * heavy_keys.len())
                .map(|_| [zero(), zero()])
                .collect(),
            heavy_keys,
            filter: (0..filter_words(filter_rows)).map(|_| zero()).collect(),
            filtered: zero(),
            free: Mutex::default(),
        }
    }

    /// Replaces the contents of two columns by the rows of a run that are divided.
    fn sift<R: Row>(&self, rows: HostRows<'_>, side: Side, [keys, payloads]: &mut [Vec<u8>; 2]) {
        for (column, from) in [(&mut *keys, rows.keys), (&mut *payloads, rows.payloads)] {
            column.clear();
            column.reserve(from.len());
        }
        // Threads would wait for each other at the rows of one key, if all of them added each row.
        let mut heavy_rows = vec![[0; 2]; self.heavy_keys.len()];
        let mut filtered = 0;
        for (key, payload) in values::<R>(rows) {
            let number = R::read_key(key);
            let hash = R::hash(number);
            let slot = R::single(number).and_then(|number| self.heavy_slot(number, hash));
            if let Some(slot) = slot {
                let [count, sum] = &mut heavy_rows[slot];
                *count += 1;
                *sum = u64::wrapping_add(*sum, R::read_payload(payload));
            } else if self.has_or_adds(hash, side) {
                keys.extend_from_slice(key);
                payloads.extend_from_slice(payload);
            } else {
                filtered += 1;
            }
        }
        let first = match side {
            Side::Build => 0,
            Side::Probe => self.heavy_keys.len(),
        };
        for (to, rows) in self.heavy_rows[first..].iter().zip(heavy_rows) {
            for (to, number) in to.iter().zip(rows) {
                to.fetch_add(number, Ordering::Relaxed);
            }
        }
        self.filtered.fetch_add(filtered, Ordering::Relaxed);
    }

    /// Returns the slot of a heavy key; `None` if the key is not heavy. As `heavy_rows` in `sieve.cuh`.
    #[inline]
    fn heavy_slot(&self, key: u64, hash: u64) -> Option<usize> {
        let mask = self.heavy_keys.len() - 1;
        let mut slot = (hash >> 32) as usize & mask;
        loop {
            match self.heavy_keys[slot] {
                EMPTY => return None,
                found if found == key => return Some(slot),
                _ => slot = (slot + 1) & mask,
            }
        }
    }

    /// Adds a key of the build side to the filter and returns `true`, or returns whether the filter has a key of the
    /// probe side. Returns `true` if there is no filter. The bits of a key are those of `PlaceInFilter` in `sieve.cuh`.
    #[inline]
    fn has_or_adds(&self, hash: u64, side: Side) -> bool {
        if self.filter.is_empty() {
            return true;
        }
        let word = (u128::from(hash) * self.filter.len() as u128) >> u64::BITS;
        let word = &self.filter[word as usize];
        let bits = (0..4).fold(0, |bits, i| bits | 1_u64 << (hash >> (8 + 6 * i) & 63));
        let has = word.load(Ordering::Relaxed) & bits == bits;
        if side == Side::Build && !has {
            word.fetch_or(bits, Ordering::Relaxed);
        }
        has || side == Side::Build
    }

    /// Returns the results, after all runs of both sides were divided.
    pub fn finish(&self) -> Sifted {
        let rows = self.heavy_rows.iter().map(|[count, sum]| HeavyRows {
            count: count.load(Ordering::Relaxed),
            sum: sum.load(Ordering::Relaxed),
        });
        Sifted {
            totals: matches(&rows.collect::<Vec<_>>()),
            filtered_rows: self.filtered.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::shape::{hash_of, hash_of_composite};

    /// Returns a column of values of at most 16 bytes: numbers, followed by their complements.
    fn column(numbers: impl Iterator<Item = u64>, bytes: u64) -> Vec<u8> {
        let value = |number: u64| (u128::from(!number) << 64 | u128::from(number)).to_le_bytes();
        let values = numbers.map(value);
        values
            .flat_map(|it| it.into_iter().take(bytes as usize))
            .collect()
    }

    /// Returns the hash of a key.
    fn hash(key: &[u8]) -> u64 {
        let mut number = [0; 16];
        number[..key.len()].copy_from_slice(key);
        let number = u128::from_le_bytes(number);
        match key.len() {
            16 => hash_of_composite(number),
            _ => hash_of(number as u64),
        }
    }

    /// Asserts that each row is in the slice of its partition, once, and that slices do not overlap.
    fn assert_is_divided(shape: RunShape, keys: &[u8], payloads: &[u8]) {
        let (width, mut run) = (shape.width(), vec![0x5A; shape.bytes() as usize]);
        let slices = shape.divide(HostRows { keys, payloads }, None, &mut run).0;
        let mut expected = BTreeMap::<u64, Vec<(&[u8], &[u8])>>::new();
        let keys = keys.chunks(width.key_bytes() as usize);
        for (key, payload) in keys.zip(payloads.chunks(width.payload_bytes() as usize)) {
            let partition = (u128::from(hash(key)) << shape.bits() >> 64) as u64;
            expected.entry(partition).or_default().push((key, payload));
        }
        assert_eq!(slices.len(), shape.partitions());
        let mut end = 0;
        for (partition, slice) in (0..).zip(slices) {
            assert_eq!(slice.begin, end);
            end += slice.count.next_multiple_of(SLICE_ROWS);
            let mut of_partition = expected.remove(&partition).unwrap_or_default();
            of_partition.sort_unstable();
            let rows = slice.sorted_rows(&run, width);
            assert!(rows == of_partition, "partition {partition} of {shape:?}");
        }
        assert!(u64::from(end) * width.row_bytes() <= shape.bytes());
        assert!(expected.is_empty());
    }

    #[test]
    fn rows_are_in_the_slices_of_their_partitions() {
        let mut random = fastrand::Rng::with_seed(9);
        for width in Width::ALL {
            for bits in [0, 3, UNBUFFERED_BITS_MAX, UNBUFFERED_BITS_MAX + 1] {
                for (rows, keys) in [
                    (0, 1),
                    (1, 1),
                    (33, 2),
                    (3000, 1),
                    (9000, 7),
                    (20_000, u64::MAX),
                ] {
                    let mut random_column = |most, bytes| -> Vec<u8> {
                        column((0..rows).map(|_| random.u64(..most)), bytes)
                    };
                    let keys = random_column(keys, width.key_bytes());
                    let payloads = random_column(u64::MAX, width.payload_bytes());
                    // Of the two shapes, one has no room left over.
                    for room in [rows, rows + 1000] {
                        assert_is_divided(RunShape::new(width, room, bits), &keys, &payloads);
                    }
                }
            }
        }
    }

    /// Threads divide runs of both sides with one sieve. Half of the rows have the heavy key 7; of the others on the
    /// probe side, half have no match.
    #[test]
    fn threads_share_a_sieve() {
        let shape = RunShape::new(Width::Eight, 1000, 4);
        let key = |row: u64| if row.is_multiple_of(2) { 7 } else { 1000 + row };
        let sieve = HostSieve::new(&[7], Some(20_000));
        for (side, rows) in [(Side::Build, 20_000), (Side::Probe, 40_000)] {
            let (keys, payloads) = (column((0..rows).map(key), 8), column(0..rows, 8));
            let runs = keys.chunks(8000).zip(payloads.chunks(8000));
            let divided: u32 = std::thread::scope(|scope| {
                let divide = |rows: HostRows<'_>| -> u32 {
                    let mut to = vec![0; shape.bytes() as usize];
                    let slices = shape.divide(rows, Some((&sieve, side)), &mut to).0;
                    slices.iter().map(|slice| slice.count).sum()
                };
                let runs = runs.map(|(keys, payloads)| HostRows { keys, payloads });
                let running = runs.map(|rows| scope.spawn(move || divide(rows)));
                let running: Vec<_> = running.collect();
                let counts = running.into_iter().map(|it| it.join().expect("no panic"));
                counts.sum()
            });
            let filtered = sieve.finish().filtered_rows;
            assert_eq!(u64::from(divided) + filtered, rows / 2, "{side:?}");
            let expected = match side {
                Side::Build => 0..1,
                Side::Probe => 9000..10_001,
            };
            assert!(expected.contains(&filtered), "{filtered}");
        }
        let found = sieve.finish().totals;
        let even = |rows: u64| (0..rows).step_by(2).sum::<u64>();
        assert_eq!(found.count, 10_000 * 20_000);
        assert_eq!(found.build_sum, even(20_000) * 20_000);
        assert_eq!(found.probe_sum, even(40_000) * 10_000);
    }
}
