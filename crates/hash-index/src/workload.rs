//! The sides of a join, generated row by row, and the answer by the same formulas.
//!
//! The build side has each key below its number of rows once, in a shuffled order. The key of a row of the probe side
//! is a random key of the build side, or a key beyond them. So the answer is a sum over the rows of the probe side,
//! without a table. A composite key is made of such a number: the first of its numbers is the upper bits, the second
//! the lower ones. So different keys have the same first or the same second number.

use std::ops::Range;
use std::thread;

use forebay_device::JobError;
use forebay_device::cuda::{Cuda, DeviceView, Stream};

use crate::kernels::JoinTotals;
use crate::launch::{self, InFlight};
use crate::shape::Width;
use crate::zipf::Zipf;

const MIX_FIRST: u64 = 0xBF58_476D_1CE4_E5B9;
const MIX_SECOND: u64 = 0x94D0_49BB_1331_11EB;
const SHUFFLE_FIRST: u64 = 0x9E37_79B9_7F4A_7C15;
const SHUFFLE_SECOND: u64 = 0xD6E8_FEB8_6659_FD93;
const SHUFFLE_ADDEND: u64 = 0x7F4A_7C15_F39C_C060;
const FOREIGN_SEED: u64 = 0x2545_F491_4F6C_DD1D;
const BUILD_SEED: u64 = 0x5851_F42D_4C95_7F2D;
const PROBE_SEED: u64 = 0x1405_7B7E_F767_814F;
const MATCH_SEED: u64 = 0xA076_1D64_78BD_642F;
const RANK_SEED: u64 = 0xE703_7ED1_A0B4_28DB;

/// The limit of random numbers of 32 bits with which every row has a match.
const ALL_MATCH: u64 = 1 << 32;

/// The constants of the formulas, with their names in CUDA C++.
pub(crate) const CONSTANTS: [(&str, u64); 9] = [
    ("kMixFirst", MIX_FIRST),
    ("kMixSecond", MIX_SECOND),
    ("kShuffleFirst", SHUFFLE_FIRST),
    ("kShuffleSecond", SHUFFLE_SECOND),
    ("kShuffleAddend", SHUFFLE_ADDEND),
    ("kForeignSeed", FOREIGN_SEED),
    ("kBuildSeed", BUILD_SEED),
    ("kProbeSeed", PROBE_SEED),
    ("kMatchSeed", MATCH_SEED),
];

/// A side of a join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The side from which the table is built: R.
    Build,
    /// The side that probes the table: S.
    Probe,
}

/// The keys of the probe side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeKeys {
    /// Uniform random keys of the build side: each row has one match.
    Uniform,
    /// Uniform random keys of the build side in some rows; in the others, keys above all of the build side's.
    Matching {
        /// Thousandths of the rows that have a match, at most 1000.
        thousandths: u32,
    },
    /// Keys of the build side by Zipf's distribution: the probability of the k-th most frequent key is proportional
    /// to `1 / k^exponent`. The frequent keys are spread over the build side. Only the host generates such rows.
    Zipf {
        /// Hundredths of the exponent; with 0, all keys are equally frequent.
        hundredths: u32,
    },
}

/// A join of generated rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Bytes of a key, and of a payload. Below, "key" also means the number of which a composite key is made.
    pub width: Width,
    /// Rows of the build side; at most 2^32 with keys of 4 bytes, half as many if rows may have no match.
    pub build_rows: u64,
    /// Rows of the probe side; 0 if the build side has 0.
    pub probe_rows: u64,
    /// Keys of the probe side.
    pub probe_keys: ProbeKeys,
}

impl Workload {
    /// Returns the number of rows of a side.
    pub fn rows(&self, side: Side) -> u64 {
        match side {
            Side::Build => self.build_rows,
            Side::Probe => self.probe_rows,
        }
    }

    /// Returns the number of bits of the largest key of the build side, at least 1.
    pub(crate) fn key_bits(&self) -> u32 {
        let largest = self.build_rows.saturating_sub(1);
        (u64::BITS - largest.leading_zeros()).max(1)
    }

    /// Returns the limit of matches: a row has a match if its random number of 32 bits is below.
    pub(crate) fn match_limit(&self) -> u64 {
        match self.probe_keys {
            ProbeKeys::Uniform | ProbeKeys::Zipf { .. } => ALL_MATCH,
            ProbeKeys::Matching { thousandths } => u64::from(thousandths) * ALL_MATCH / 1000,
        }
    }

    /// Returns the key that is made of a number. The lower half of a composite key is its first number.
    pub(crate) fn key(&self, number: u64) -> u128 {
        if self.width.is_single() {
            return number.into();
        }
        let second_bits = self.key_bits() / 2;
        let second = number & ((1 << second_bits) - 1);
        u128::from(second) << 64 | u128::from(number >> second_bits)
    }

    /// Returns key and payload of a row; for a composite key, the number of which it is made. Payloads are truncated
    /// to the width.
    pub fn row(&self, side: Side, row: u64) -> (u64, u64) {
        self.row_by(self.zipf().as_ref(), side, row)
    }

    /// Returns the distribution of the probe side's keys if it is Zipf's.
    fn zipf(&self) -> Option<Zipf> {
        match self.probe_keys {
            ProbeKeys::Zipf { hundredths } if self.build_rows > 0 => {
                Some(Zipf::new(self.build_rows, f64::from(hundredths) / 100.0))
            }
            _ => None,
        }
    }

    /// Returns key and payload of a row, as [`Workload::row`] does. `zipf` is what [`Workload::zipf`] returns.
    fn row_by(&self, zipf: Option<&Zipf>, side: Side, row: u64) -> (u64, u64) {
        let (key, payload) = match side {
            Side::Build => {
                let key = self.build_key(row);
                (key, mixed(key ^ BUILD_SEED))
            }
            Side::Probe => {
                let key = match zipf {
                    Some(zipf) => self.frequent_key(zipf, row),
                    None => self.foreign_key(row),
                };
                (key, mixed(row ^ PROBE_SEED))
            }
        };
        (key, self.cut(payload))
    }

    /// Returns the answer of the join, computed from the formulas by `threads` threads.
    pub fn answer(&self, threads: usize) -> JoinTotals {
        let share = self.probe_rows.div_ceil(threads.max(1) as u64).max(1);
        let zipf = self.zipf();
        let part = |first: u64| {
            let mut totals = JoinTotals::default();
            for row in first..(first + share).min(self.probe_rows) {
                let (key, probe_sum) = self.row_by(zipf.as_ref(), Side::Probe, row);
                if key >= self.build_rows {
                    continue;
                }
                totals.add(JoinTotals {
                    count: 1,
                    build_sum: self.cut(mixed(key ^ BUILD_SEED)),
                    probe_sum,
                });
            }
            totals
        };
        thread::scope(|scope| {
            let firsts = (0..self.probe_rows).step_by(share as usize);
            let running: Vec<_> = firsts
                .map(|first| scope.spawn(move || part(first)))
                .collect();
            let mut totals = JoinTotals::default();
            for each in running {
                totals.add(each.join().expect("sums wrap"));
            }
            totals
        })
    }

    /// Writes both columns of a side to host memory by `threads` threads.
    ///
    /// # Panics
    /// If the columns are not as long as the side.
    pub fn generate(&self, side: Side, (keys, payloads): (&mut [u8], &mut [u8]), threads: usize) {
        let rows = self.rows(side) as usize;
        let key_bytes = self.width.key_bytes() as usize;
        let value_bytes = self.width.payload_bytes() as usize;
        let bytes = (rows * key_bytes, rows * value_bytes);
        assert_eq!((keys.len(), payloads.len()), bytes);
        let share_rows = rows.div_ceil(threads.max(1)).max(1);
        let zipf = self.zipf();
        thread::scope(|scope| {
            let parts = keys
                .chunks_mut(share_rows * key_bytes)
                .zip(payloads.chunks_mut(share_rows * value_bytes));
            for ((keys, payloads), first) in parts.zip((0..).step_by(share_rows)) {
                let zipf = zipf.as_ref();
                scope.spawn(move || {
                    let values = keys
                        .chunks_exact_mut(key_bytes)
                        .zip(payloads.chunks_exact_mut(value_bytes));
                    for ((key, payload), row) in values.zip(first..) {
                        let (number, value) = self.row_by(zipf, side, row);
                        key.copy_from_slice(&self.key(number).to_le_bytes()[..key_bytes]);
                        payload.copy_from_slice(&value.to_le_bytes()[..value_bytes]);
                    }
                });
            }
        });
    }

    /// Queues a kernel that writes both columns of some rows of a side to device memory.
    ///
    /// # Errors
    /// If the kernel does not compile, or the device fails.
    ///
    /// # Panics
    /// If the side does not have these rows, the columns are not as long, or the keys of the probe side are
    /// [`ProbeKeys::Zipf`].
    pub fn generate_async(
        &self,
        cuda: &mut Cuda,
        (side, rows): (Side, Range<u64>),
        columns: (&DeviceView<u8>, &DeviceView<u8>),
        stream: &Stream,
    ) -> Result<InFlight, JobError> {
        launch::generate(cuda, self, (side, rows), columns, stream)
    }

    fn build_key(&self, row: u64) -> u64 {
        let bits = self.key_bits();
        let mut key = shuffled(row, bits);
        while key >= self.build_rows {
            key = shuffled(key, bits);
        }
        key
    }

    /// Returns a uniform random key of the build side, or one above them if the row has no match.
    fn foreign_key(&self, row: u64) -> u64 {
        let random = mixed(row.wrapping_add(FOREIGN_SEED));
        let key = ((u128::from(random) * u128::from(self.build_rows)) >> 64) as u64;
        let has_match = mixed(row ^ MATCH_SEED) >> 32 < self.match_limit();
        match has_match {
            true => key,
            false => key + self.build_rows,
        }
    }

    /// Returns a key of the build side by Zipf's distribution.
    fn frequent_key(&self, zipf: &Zipf, row: u64) -> u64 {
        let mut state = mixed(row ^ RANK_SEED);
        let rank = zipf.rank(|| {
            state = state.wrapping_add(SHUFFLE_FIRST);
            // The upper 53 bits, as a fraction from 0 to 1.
            (mixed(state) >> 11) as f64 / (1_u64 << 53) as f64
        });
        // Shuffled twice: the first rows of the build side, which are shuffled once, are not the frequent ones.
        self.build_key(self.build_key(rank))
    }

    fn cut(&self, payload: u64) -> u64 {
        match self.width.payload_bytes() {
            4 => u64::from(payload as u32),
            _ => payload,
        }
    }
}

/// Returns a random number that depends on `x` alone.
fn mixed(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(MIX_FIRST);
    let x = (x ^ (x >> 27)).wrapping_mul(MIX_SECOND);
    x ^ (x >> 31)
}

/// Returns another number of as many bits; no two numbers have the same.
fn shuffled(x: u64, bits: u32) -> u64 {
    let mask = u64::MAX >> (u64::BITS - bits);
    let half = bits.div_ceil(2);
    let x = x.wrapping_mul(SHUFFLE_FIRST).wrapping_add(SHUFFLE_ADDEND) & mask;
    let x = (x ^ (x >> half)).wrapping_mul(SHUFFLE_SECOND) & mask;
    x ^ (x >> half)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn workload(width: Width, build_rows: u64, probe_rows: u64) -> Workload {
        Workload {
            width,
            build_rows,
            probe_rows,
            probe_keys: ProbeKeys::Uniform,
        }
    }

    #[test]
    fn the_build_side_has_each_key_once_in_another_order() {
        for rows in [1, 2, 3, 31, 32, 33, 1000, 1024, 1025, 5000] {
            let workload = workload(Width::Eight, rows, 0);
            let keys: Vec<u64> = (0..rows)
                .map(|row| workload.row(Side::Build, row).0)
                .collect();
            let mut sorted = keys.clone();
            sorted.sort_unstable();
            assert!(sorted.iter().copied().eq(0..rows), "{rows} rows: {keys:?}");
            assert!(rows < 31 || keys != sorted, "{rows} rows are in order");
        }
    }

    #[test]
    fn composite_keys_are_distinct_and_neither_of_their_numbers_is() {
        let workload = workload(Width::Composite, 1000, 0);
        let keys = (0..2 * workload.build_rows).map(|number| workload.key(number));
        let keys: BTreeSet<u128> = keys.collect();
        assert_eq!(keys.len(), 2000);
        let firsts: BTreeSet<u64> = keys.iter().map(|key| *key as u64).collect();
        let seconds: BTreeSet<u128> = keys.iter().map(|key| *key >> 64).collect();
        assert_eq!((firsts.len(), seconds.len()), (63, 32));
    }

    #[test]
    fn foreign_keys_are_spread_over_the_build_side() {
        let workload = workload(Width::Four, 10, 10_000);
        let mut counts = [0; 10];
        for row in 0..10_000 {
            counts[workload.row(Side::Probe, row).0 as usize] += 1;
        }
        assert!(
            counts.iter().all(|count| (850..1150).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn as_many_rows_match_as_wanted() {
        for (thousandths, matches) in [(0, 0..1), (250, 2300..2700), (1000, 10_000..10_001)] {
            let workload = Workload {
                probe_keys: ProbeKeys::Matching { thousandths },
                ..workload(Width::Eight, 100, 10_000)
            };
            let keys = (0..10_000).map(|row| workload.row(Side::Probe, row).0);
            let keys: Vec<u64> = keys.collect();
            assert!(keys.iter().all(|key| *key < 2 * workload.build_rows));
            let count = keys.iter().filter(|key| **key < 100).count() as u64;
            assert!(matches.contains(&count), "{count} of {thousandths}");
            assert_eq!(workload.answer(3).count, count);
        }
    }

    #[test]
    fn frequent_keys_are_those_of_the_build_side_and_differ_in_frequency() {
        for (hundredths, most) in [(0, 0..200), (100, 1300..2500), (175, 4000..6500)] {
            let workload = Workload {
                probe_keys: ProbeKeys::Zipf { hundredths },
                ..workload(Width::Eight, 100, 10_000)
            };
            let mut counts = [0; 100];
            for row in 0..10_000 {
                counts[workload.row(Side::Probe, row).0 as usize] += 1;
            }
            let largest = counts.into_iter().max().expect("100 keys");
            assert!(
                most.contains(&largest),
                "{largest}: {hundredths} hundredths"
            );
            assert_eq!(workload.answer(3).count, 10_000);
        }
    }

    #[test]
    fn threads_write_what_one_row_has_and_the_answer_does_not_depend_on_them() {
        for (width, threads) in [(Width::Four, 1), (Width::Four, 3), (Width::Eight, 7)] {
            let workload = workload(width, 100, 1001);
            let bytes = width.payload_bytes() as usize;
            let mut keys = vec![0; 1001 * bytes];
            let mut payloads = keys.clone();
            workload.generate(Side::Probe, (&mut keys, &mut payloads), threads);
            for row in 0..1001 {
                let (key, payload) = workload.row(Side::Probe, row as u64);
                let range = row * bytes..(row + 1) * bytes;
                assert_eq!(keys[range.clone()], key.to_le_bytes()[..bytes]);
                assert_eq!(payloads[range], payload.to_le_bytes()[..bytes]);
            }
            let answer = workload.answer(threads);
            assert_eq!(answer, workload.answer(2));
            assert_eq!(answer.count, 1001);
        }
        assert_eq!(workload(Width::Four, 0, 0).answer(4), JoinTotals::default());
    }
}
