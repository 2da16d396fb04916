//! Linear probing, as `linear.cuh`.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use forebay_device::{prefetch, vec_in_huge_pages};

use super::{Lookup, STEPS_BETWEEN_LOOKS, Table, Word};
use crate::index::Contents;
use crate::kernels::{CHAIN_TOO_LONG, Outcome};
use crate::shape::{TableShape, hash_of};

/// How values lie in the slots, which are words of 64 bits.
pub(super) trait Slot: Word {
    /// Words of a slot.
    const WORDS: usize;

    /// Stores a row in a slot if the slot is empty. Returns the key that was there.
    fn take(slot: &[AtomicU64], row: (u64, u64)) -> u64;

    /// Returns key and payload of a slot.
    fn load(slot: &[AtomicU64]) -> (u64, u64);
}

fn exchange(word: &AtomicU64, new: u64) -> u64 {
    let exchanged = word.compare_exchange(u64::MAX, new, Ordering::Relaxed, Ordering::Relaxed);
    exchanged.unwrap_or_else(|before| before)
}

impl Slot for u64 {
    const WORDS: usize = 2;

    #[inline]
    fn take(slot: &[AtomicU64], (key, payload): (u64, u64)) -> u64 {
        let before = exchange(&slot[0], key);
        if before == Self::EMPTY {
            // Nothing reads payloads before the threads of the build have ended.
            slot[1].store(payload, Ordering::Relaxed);
        }
        before
    }

    #[inline]
    fn load(slot: &[AtomicU64]) -> (u64, u64) {
        (
            slot[0].load(Ordering::Relaxed),
            slot[1].load(Ordering::Relaxed),
        )
    }
}

impl Slot for u32 {
    const WORDS: usize = 1;

    #[inline]
    fn take(slot: &[AtomicU64], (key, payload): (u64, u64)) -> u64 {
        exchange(&slot[0], payload << 32 | key) & Self::EMPTY
    }

    #[inline]
    fn load(slot: &[AtomicU64]) -> (u64, u64) {
        let row = slot[0].load(Ordering::Relaxed);
        (row & Self::EMPTY, row >> 32)
    }
}

/// The slots in which a key may be: the slot of its hash, and those that follow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chains {
    slot_count: u64,
    shift: u32,
    steps_max: u64,
}

impl Chains {
    pub(super) fn new(shape: TableShape) -> Chains {
        Chains {
            slot_count: shape.slots(),
            shift: shape.shift(),
            steps_max: shape.steps_max(),
        }
    }

    /// Returns the first slot in which a key may be.
    #[inline]
    pub(super) fn home(&self, key: u64) -> u64 {
        hash_of(key) >> self.shift
    }

    #[inline]
    fn next(&self, slot: u64) -> u64 {
        (slot + 1) & (self.slot_count - 1)
    }

    /// Returns the number of matches of a key, and the sum of their payloads. `load` returns key and payload of a
    /// slot.
    #[inline]
    pub(super) fn probe<W: Word>(
        &self,
        key: u64,
        contents: &Contents,
        load: impl Fn(u64) -> (u64, u64),
    ) -> (u64, u64) {
        if key == W::EMPTY {
            return (contents.aside_count, contents.aside_sum);
        }
        let mut slot = self.home(key);
        let (mut matches, mut sum) = (0, 0_u64);
        for _ in 0..self.steps_max {
            let found = load(slot);
            if found.0 == W::EMPTY {
                break;
            }
            if found.0 == key {
                matches += 1;
                sum = sum.wrapping_add(found.1);
                if contents.is_unique {
                    break;
                }
            }
            slot = self.next(slot);
        }
        (matches, sum)
    }
}

/// A table.
#[derive(Debug)]
pub(super) struct Linear<W> {
    slots: Vec<AtomicU64>,
    chains: Chains,
    word: PhantomData<W>,
}

impl<W: Slot> Linear<W> {
    /// Returns an empty table, which `threads` threads write.
    pub(super) fn new(shape: TableShape, threads: usize) -> Linear<W> {
        let words = shape.slots() as usize * W::WORDS;
        Linear {
            slots: vec_in_huge_pages(words, threads, || AtomicU64::new(u64::MAX)),
            chains: Chains::new(shape),
            word: PhantomData,
        }
    }

    #[inline]
    fn slot(&self, slot: u64) -> &[AtomicU64] {
        let first = slot as usize * W::WORDS;
        &self.slots[first..first + W::WORDS]
    }

    /// Returns the bytes of all slots.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> Box<[u8]> {
        let words = self.slots.iter().map(|word| word.load(Ordering::Relaxed));
        words.flat_map(u64::to_le_bytes).collect()
    }
}

impl<W: Slot> Lookup for Linear<W> {
    type Word = W;

    #[inline]
    fn prefetch(&self, key: u64) {
        prefetch(&self.slot(self.chains.home(key))[0]);
    }

    #[inline]
    fn probe(&self, key: u64, contents: &Contents) -> (u64, u64) {
        let load = |slot| W::load(self.slot(slot));
        self.chains.probe::<W>(key, contents, load)
    }
}

impl<W: Slot> Table for Linear<W> {
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
        let mut slot = self.chains.home(key);
        let mut is_duplicate = false;
        let mut steps = 1;
        loop {
            let before = W::take(self.slot(slot), row);
            if before == W::EMPTY {
                break;
            }
            is_duplicate |= before == key;
            let looks = steps % STEPS_BETWEEN_LOOKS == 0;
            if steps == self.chains.steps_max || (looks && failures.load(Ordering::Relaxed) != 0) {
                failures.fetch_or(CHAIN_TOO_LONG, Ordering::Relaxed);
                return;
            }
            slot = self.chains.next(slot);
            steps += 1;
        }
        inserted.stored += 1;
        inserted.duplicates += u64::from(is_duplicate);
    }
}
