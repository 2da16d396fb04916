//! A table by key, as `perfect.cuh`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use forebay_device::prefetch;

use super::{Table, Word};
use crate::index::Contents;
use crate::kernels::{KEY_OUT_OF_RANGE, Outcome};
use crate::shape::{TableMethod, TableShape};

/// A number in a table that threads share.
pub(super) trait Cell: Word {
    /// The type that threads share.
    type Shared: Sync + Send + Default + std::fmt::Debug;

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

/// A table.
#[derive(Debug)]
pub(super) struct Perfect<W: Cell> {
    payloads: Vec<W::Shared>,
    /// A bit for each key that occurs.
    taken: Vec<AtomicU32>,
    first_key: u64,
}

impl<W: Cell> Perfect<W> {
    pub(super) fn new(shape: TableShape) -> Perfect<W> {
        let first_key = match shape.method() {
            TableMethod::Perfect { first_key } => first_key,
            TableMethod::LinearProbing | TableMethod::Bucketed => 0,
        };
        Perfect {
            payloads: (0..shape.slots()).map(|_| W::Shared::default()).collect(),
            taken: (0..shape.taken_words())
                .map(|_| AtomicU32::new(0))
                .collect(),
            first_key,
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

impl<W: Cell> Table for Perfect<W> {
    type Word = W;

    #[inline]
    fn prefetch(&self, key: u64) {
        if let Some(cell) = self.payloads.get(self.slot_of(key)) {
            prefetch(cell);
        }
    }

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
        W::store(cell, payload);
        inserted.stored += 1;
    }

    #[inline]
    fn probe(&self, key: u64, contents: &Contents) -> (u64, u64) {
        let slot = self.slot_of(key);
        let value = self.payloads.get(slot).map(W::load);
        let value = value.filter(|_| !contents.has_holes || self.is_taken(slot));
        value.map_or((0, 0), |value| (1, value))
    }
}
