//! Buckets of a cache line, as `bucketed.cuh`.

use std::array;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_device::{prefetch, vec_in_huge_pages};

use super::{Cell, Lookup, Row, STEPS_BETWEEN_LOOKS, Table};
use crate::index::Contents;
use crate::kernels::{CHAIN_TOO_LONG, Outcome};
use crate::shape::TableShape;

/// A cache line of `N` slots, which are taken in order.
#[derive(Debug)]
#[repr(align(64))]
struct Bucket<S, const N: usize> {
    keys: [S; N],
    payloads: [S; N],
}

impl<S, const N: usize> Bucket<S, N> {
    /// Returns a bit for each slot with this key. All keys are compared, because it cannot be foreseen which one is
    /// equal.
    #[inline]
    fn equal<W: Cell<Shared = S>>(&self, key: u64) -> u32 {
        let slots = self.keys.iter().enumerate();
        slots.fold(0, |equal, (slot, found)| {
            equal | u32::from(W::load(found) == key) << slot
        })
    }
}

/// A table of buckets of `N` slots, whose keys and payloads are numbers of the type `W`, for rows of the type `R`.
#[derive(Debug)]
pub(super) struct Bucketed<R, W: Cell, const N: usize> {
    buckets: Vec<Bucket<W::Shared, N>>,
    /// Whether several threads insert rows.
    is_shared: bool,
    skipped_bits: u32,
    shift: u32,
    steps_max: u64,
    row: PhantomData<R>,
}

impl<R: Row<Key = u64>, W: Cell, const N: usize> Bucketed<R, W, N> {
    /// Returns an empty table for keys whose hashes have the same upper `skipped_bits`. `threads` threads write it.
    pub(super) fn new(
        shape: TableShape,
        (skipped_bits, is_shared): (u32, bool),
        threads: usize,
    ) -> Bucketed<R, W, N> {
        let empty = || Bucket {
            keys: array::from_fn(|_| W::empty()),
            payloads: array::from_fn(|_| W::Shared::default()),
        };
        Bucketed {
            buckets: vec_in_huge_pages(shape.homes() as usize, threads, empty),
            is_shared,
            skipped_bits,
            shift: shape.shift(),
            steps_max: shape.steps_max(),
            row: PhantomData,
        }
    }

    /// Empties the table.
    pub(super) fn clear(&mut self) {
        for bucket in &mut self.buckets {
            bucket.keys = array::from_fn(|_| W::empty());
        }
    }

    #[inline]
    fn home(&self, key: u64) -> usize {
        (R::hash(key) << self.skipped_bits >> self.shift) as usize
    }

    #[inline]
    fn next(&self, bucket: usize) -> usize {
        (bucket + 1) & (self.buckets.len() - 1)
    }
}

impl<R: Row<Key = u64>, W: Cell, const N: usize> Lookup for Bucketed<R, W, N> {
    type Row = R;

    #[inline]
    fn prefetch(&self, key: u64) {
        prefetch(&self.buckets[self.home(key)]);
    }

    #[inline]
    fn probe(&self, key: u64, contents: &Contents) -> (u64, u64) {
        if key == W::EMPTY {
            return (contents.aside_count, contents.aside_sum);
        }
        let mut at = self.home(key);
        let (mut matches, mut sum) = (0, 0_u64);
        for _ in 0..self.steps_max {
            let bucket = &self.buckets[at];
            let mut equal = bucket.equal::<W>(key);
            while equal != 0 {
                let slot = equal.trailing_zeros() as usize % N;
                let payload = W::load(&bucket.payloads[slot]);
                if contents.is_unique {
                    return (1, payload);
                }
                matches += 1;
                sum = sum.wrapping_add(payload);
                equal &= equal - 1;
            }
            if W::load(&bucket.keys[N - 1]) == W::EMPTY {
                break;
            }
            at = self.next(at);
        }
        (matches, sum)
    }
}

impl<R: Row<Key = u64>, W: Cell, const N: usize> Table for Bucketed<R, W, N> {
    #[inline]
    fn insert(&self, row: (u64, u64), inserted: &mut Outcome, failures: &AtomicU32) {
        if failures.load(Ordering::Relaxed) != 0 {
            return;
        }
        let (key, payload) = row;
        if key == W::EMPTY {
            inserted.aside_count += 1;
            inserted.aside_sum = inserted.aside_sum.wrapping_add(payload);
            return;
        }
        let mut at = self.home(key);
        let mut is_duplicate = false;
        for steps in 1..=self.steps_max {
            let bucket = &self.buckets[at];
            for (slot, payloads) in bucket.keys.iter().zip(&bucket.payloads) {
                let before = match W::load(slot) {
                    before if before == W::EMPTY && self.is_shared => W::take(slot, key),
                    before if before == W::EMPTY => {
                        W::store(slot, key);
                        before
                    }
                    before => before,
                };
                if before == W::EMPTY {
                    // Nothing reads payloads before the threads of the build have ended.
                    W::store(payloads, payload);
                    inserted.stored += 1;
                    inserted.duplicates += u64::from(is_duplicate);
                    return;
                }
                is_duplicate |= before == key;
            }
            if steps % STEPS_BETWEEN_LOOKS == 0 && failures.load(Ordering::Relaxed) != 0 {
                return;
            }
            at = self.next(at);
        }
        failures.fetch_or(CHAIN_TOO_LONG, Ordering::Relaxed);
    }
}
