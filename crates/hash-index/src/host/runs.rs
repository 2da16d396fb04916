//! Runs that the CPU divides, in the layout in which kernels read them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Word, numbers};
use crate::column::HostRows;
use crate::kernels::{HeavyRows, PARTITION_BITS_MAX, SLICE_ROWS, Slice};
use crate::partitions::sieve::{EMPTY, filter_words, heavy_slots, matches};
use crate::partitions::{RunShape, Sifted};
use crate::shape::{Width, hash_of};
use crate::workload::Side;

/// Maximum number of partitions.
const PARTITIONS_MAX: usize = 1 << PARTITION_BITS_MAX;
/// Bytes of a line of the processor's caches.
const LINE_BYTES: usize = 64;
/// Maximum number of bits of the hash with which rows are written one by one. The caches of a core then hold the line
/// of each slice until it is full. With more bits, rows are first collected to whole lines.
///
/// PERF: a program of 90 lines, of which no record was kept, on one core of an AMD EPYC with 32 KiB of L1 cache, beside
/// other work, November 30, 2026: runs of 2^20 rows of 16 bytes in huge pages, the best of nine, millions of rows a
/// second. 2^6 partitions: 227 one by one, 177 by lines, 168 by lines with non-temporal stores. 2^9: 220, 167 and 166.
/// 2^10: 117, 153 and 166. Non-temporal stores need unsafe code, and gain little.
const BITS_OF_ROWS: u32 = 9;

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
        HostSlices(match self.width() {
            Width::Four => divide_kept::<u32>(rows, sieve, self.bits(), to),
            // Keys are not composite.
            Width::Eight | Width::Composite => divide_kept::<u64>(rows, sieve, self.bits(), to),
        })
    }
}

fn divide_kept<W: Word>(
    rows: HostRows<'_>,
    sieve: Option<(&HostSieve, Side)>,
    bits: u32,
    to: &mut [u8],
) -> Vec<Slice> {
    let Some((sieve, side)) = sieve else {
        return divide::<W>(rows, bits, to);
    };
    let [keys, payloads] = sieve.sift::<W>(rows, side);
    let kept = HostRows {
        keys: &keys,
        payloads: &payloads,
    };
    divide::<W>(kept, bits, to)
}

/// Returns the partition of a key; as `partition_of` in `partitions.cu`.
#[inline]
fn partition_of(key: u64, bits: u32) -> usize {
    // With 0 bits, one shift would be by 64. The compiler knows from the remainder that the partition exists.
    (hash_of(key) >> 1 >> (u64::BITS - 1 - bits)) as usize % PARTITIONS_MAX
}

/// Copies rows to a run in the order of their partitions. Returns where each partition is.
fn divide<W: Word>(rows: HostRows<'_>, bits: u32, to: &mut [u8]) -> Vec<Slice> {
    let mut counts = [0; PARTITIONS_MAX];
    for key in rows.keys.chunks_exact(W::BYTES).map(W::read) {
        counts[partition_of(key, bits)] += 1;
    }
    let mut places = [Place::default(); PARTITIONS_MAX];
    let mut slices = Vec::with_capacity(1 << bits);
    let mut end = 0;
    for (place, count) in places.iter_mut().zip(counts).take(1 << bits) {
        let room = u32::next_multiple_of(count, SLICE_ROWS);
        *place = Place { next: end, room };
        slices.push(Slice { begin: end, count });
        end += 2 * room;
    }
    match bits <= BITS_OF_ROWS {
        true => copy_rows::<W>(rows, bits, &mut places, to),
        false => copy_lines::<W>(rows, bits, &mut places, to),
    }
    slices
}

/// Where rows of a partition go.
#[derive(Clone, Copy, Default)]
struct Place {
    /// The next key, in values from the beginning of the run.
    next: u32,
    /// The payload of a key is this number of values behind it.
    room: u32,
}

impl Place {
    /// Returns where a key and its payload begin, in bytes, by the place of the key in values.
    #[inline]
    fn bytes_at<W: Word>(self, value: usize) -> [usize; 2] {
        [value, value + self.room as usize].map(|it| it * W::BYTES)
    }
}

type Places = [Place; PARTITIONS_MAX];

/// Copies rows one by one.
fn copy_rows<W: Word>(rows: HostRows<'_>, bits: u32, places: &mut Places, to: &mut [u8]) {
    for (key, payload) in numbers::<W>(rows) {
        let place = &mut places[partition_of(key, bits)];
        let [of_key, of_payload] = place.bytes_at::<W>(place.next as usize);
        place.next += 1;
        W::write(&mut to[of_key..of_key + W::BYTES], key);
        W::write(&mut to[of_payload..of_payload + W::BYTES], payload);
    }
}

/// Rows of a partition that are not in the run yet: a line of keys, and one of payloads.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Lines([[u8; LINE_BYTES]; 2]);

/// Copies rows by whole lines.
fn copy_lines<W: Word>(rows: HostRows<'_>, bits: u32, places: &mut Places, to: &mut [u8]) {
    let of_line = LINE_BYTES / W::BYTES;
    let mut all_lines = Box::new([Lines([[0; LINE_BYTES]; 2]); PARTITIONS_MAX]);
    let mut write = |place: Place, lines: &Lines| {
        let last = place.next as usize - 1;
        let begins = place.bytes_at::<W>(last / of_line * of_line);
        for (begin, line) in begins.into_iter().zip(&lines.0) {
            to[begin..begin + LINE_BYTES].copy_from_slice(line);
        }
    };
    for (key, payload) in numbers::<W>(rows) {
        let partition = partition_of(key, bits);
        let (place, lines) = (&mut places[partition], &mut all_lines[partition]);
        let at = place.next as usize % of_line * W::BYTES;
        W::write(&mut lines.0[0][at..at + W::BYTES], key);
        W::write(&mut lines.0[1][at..at + W::BYTES], payload);
        place.next += 1;
        if at + W::BYTES == LINE_BYTES {
            write(*place, lines);
        }
    }
    // A slice has room for whole lines.
    for (place, lines) in places.iter().zip(&*all_lines) {
        if !(place.next as usize).is_multiple_of(of_line) {
            write(*place, lines);
        }
    }
}

impl HostSieve {
    /// Returns a sieve for these heavy keys, and for a filter of the keys of `filter_rows` rows; `None` for no
    /// filter. The process ends if the system has no memory for it.
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
        }
    }

    /// Returns the columns of the rows of a run that are divided.
    fn sift<W: Word>(&self, rows: HostRows<'_>, side: Side) -> [Vec<u8>; 2] {
        let columns = [rows.keys, rows.payloads];
        let [mut keys, mut payloads] = columns.map(|it| Vec::with_capacity(it.len()));
        // Threads would wait for each other at the rows of one key, if all of them added each row.
        let mut heavy_rows = vec![[0; 2]; self.heavy_keys.len()];
        let mut filtered = 0;
        let [of_keys, of_payloads] = columns.map(|it| it.chunks_exact(W::BYTES));
        for (key, payload) in of_keys.zip(of_payloads) {
            let number = W::read(key);
            let hash = hash_of(number);
            if let Some(slot) = self.heavy_slot(number, hash) {
                let [count, sum] = &mut heavy_rows[slot];
                *count += 1;
                *sum = u64::wrapping_add(*sum, W::read(payload));
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
        [keys, payloads]
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

    /// Returns the bytes of numbers of this width.
    fn column(numbers: impl Iterator<Item = u64>, width: Width) -> Vec<u8> {
        let bytes = width.bytes() as usize;
        let numbers = numbers.map(u64::to_le_bytes);
        numbers.flat_map(|it| it.into_iter().take(bytes)).collect()
    }

    /// Asserts that each row is in the slice of its partition, once, and that slices do not overlap.
    fn assert_is_divided(shape: RunShape, keys: &[u8], payloads: &[u8]) {
        let (width, mut run) = (shape.width(), vec![0x5A; shape.bytes() as usize]);
        let slices = shape.divide(HostRows { keys, payloads }, None, &mut run).0;
        let bytes = width.bytes() as usize;
        let mut expected = BTreeMap::<u64, Vec<(&[u8], &[u8])>>::new();
        for (key, payload) in keys.chunks(bytes).zip(payloads.chunks(bytes)) {
            let mut number = [0; 8];
            number[..bytes].copy_from_slice(key);
            let hash = u128::from(hash_of(u64::from_le_bytes(number)));
            let partition = (hash << shape.bits() >> 64) as u64;
            expected.entry(partition).or_default().push((key, payload));
        }
        assert_eq!(slices.len(), shape.partitions());
        let mut end = 0;
        for (partition, slice) in (0..).zip(slices) {
            assert_eq!(slice.begin, end);
            let room = slice.count.next_multiple_of(SLICE_ROWS);
            end += 2 * room;
            let values = |first: u32| {
                let values = run.chunks(bytes).skip(first as usize);
                values.take(slice.count as usize)
            };
            let rows = values(slice.begin).zip(values(slice.begin + room));
            let mut rows: Vec<(&[u8], &[u8])> = rows.collect();
            let mut of_partition = expected.remove(&partition).unwrap_or_default();
            rows.sort_unstable();
            of_partition.sort_unstable();
            assert!(rows == of_partition, "partition {partition} of {shape:?}");
        }
        assert!(u64::from(end) * width.bytes() <= shape.bytes());
        assert!(expected.is_empty());
    }

    #[test]
    fn rows_are_in_the_slices_of_their_partitions() {
        let mut random = fastrand::Rng::with_seed(9);
        for width in [Width::Four, Width::Eight] {
            for bits in [0, 3, BITS_OF_ROWS, BITS_OF_ROWS + 1] {
                for (rows, keys) in [
                    (0, 1),
                    (1, 1),
                    (33, 2),
                    (3000, 1),
                    (9000, 7),
                    (40_000, u64::MAX),
                ] {
                    let mut numbers = |most: u64| -> Vec<u8> {
                        let numbers = (0..rows).map(|_| random.u64(..most));
                        column(numbers, width)
                    };
                    let (keys, payloads) = (numbers(keys), numbers(u64::MAX));
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
        let (width, shape) = (Width::Eight, RunShape::new(Width::Eight, 1000, 4));
        let key = |row: u64| if row % 2 == 0 { 7 } else { 1000 + row };
        let sieve = HostSieve::new(&[7], Some(20_000));
        for (side, rows) in [(Side::Build, 20_000), (Side::Probe, 40_000)] {
            let (keys, payloads) = (column((0..rows).map(key), width), column(0..rows, width));
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
