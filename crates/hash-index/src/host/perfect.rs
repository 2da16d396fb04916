//! A table by key, as `perfect.cuh`.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_device::{prefetch, vec_in_huge_pages};

use super::{Cell, Lookup, Table, Word};
use crate::index::Contents;
use crate::kernels::{KEY_OUT_OF_RANGE, Outcome};
use crate::shape::{TableMethod, TableShape};

/// A table for rows of keys and payloads of these types.
#[derive(Debug)]
pub(super) struct Perfect<K, P: Cell> {
    payloads: Vec<P::Shared>,
    /// A bit for each key that occurs.
    taken: Vec<AtomicU32>,
    first_key: u64,
    key: PhantomData<K>,
}

impl<K: Word, P: Cell> Perfect<K, P> {
    /// Returns an empty table, whose payloads `threads` threads write.
    pub(super) fn new(shape: TableShape, threads: usize) -> Perfect<K, P> {
        let first_key = match shape.method() {
            TableMethod::Perfect { first_key } => first_key,
            TableMethod::LinearProbing | TableMethod::Bucketed => 0,
        };
        Perfect {
            payloads: vec_in_huge_pages(shape.slots() as usize, threads, P::Shared::default),
            taken: (0..shape.taken_words())
                .map(|_| AtomicU32::new(0))
                .collect(),
            first_key,
            key: PhantomData,
        }
    }

    /// Returns the slot of a key; one beyond the table if the key is out of its range.
    #[inline]
    fn slot_of(&self, key: u64) -> usize {
        key.wrapping_sub(self.first_key) as usize
    }

    #[inline]
    fn is_taken(&self, slot: usize) -> bool {
        self.taken[slot / 32].load(Ordering::Relaxed) >> (slot % 32) & 1 == 1
    }
}

impl<K: Word, P: Cell> Lookup for Perfect<K, P> {
    type Row = (K, P);

    #[inline]
    fn prefetch(&self, key: u64) {
        if let Some(cell) = self.payloads.get(self.slot_of(key)) {
            prefetch(cell);
        }
    }

    #[inline]
    fn probe(&self, key: u64, contents: &Contents) -> (u64, u64) {
        let slot = self.slot_of(key);
        let value = self.payloads.get(slot).map(P::load);
        let value = value.filter(|_| !contents.has_holes || self.is_taken(slot));
        value.map_or((0, 0), |value| (1, value))
    }
}

impl<K: Word, P: Cell> Table for Perfect<K, P> {
    #[inline]
    fn insert(&self, (key, payload): (u64, u64), inserted: &mut Outcome, failures: &AtomicU32) {
        if failures.load(Ordering::Relaxed) != 0 {
            return;
        }
        let slot = self.slot_of(key);
        let Some(cell) = self.payloads.get(slot) else {
            failures.fetch_or(KEY_OUT_OF_RANGE, Ordering::Relaxed);
            return;
        };
        let bit = 1 << (slot % 32);
        if self.taken[slot / 32].fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            inserted.duplicates += 1;
            return;
        }
        P::store(cell, payload);
        inserted.stored += 1;
    }
}
