//! Linear probing, as `linear.cuh`.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use forebay_device::{prefetch, vec_in_huge_pages};

use super::{CompositeRow, Lookup, Row, STEPS_BETWEEN_LOOKS, Table, Word};
use crate::index::Contents;
use crate::kernels::{CHAIN_TOO_LONG, Outcome};
use crate::shape::{TableShape, hash_of_composite};

/// How rows lie in the slots, which are words of 64 bits.
pub(super) trait Slot: Row {
    /// Words of a slot.
    const WORDS: usize;

    /// Returns the mark of a key, the word that takes a slot for it: the key, or for a composite key its hash, which
    /// other keys may have too. `None` if rows with this key are kept aside.
    fn mark(key: Self::Key) -> Option<u64>;

    /// Stores a row in a slot if the slot is empty. Otherwise returns the mark of the key that took it.
    fn take(slot: &[AtomicU64], row: (Self::Key, u64)) -> Option<u64>;

    /// Returns key and payload of a slot, whose words `word` returns; `None` if the slot is empty.
    fn load(word: impl Fn(usize) -> u64) -> Option<(Self::Key, u64)>;
}

/// Writes a word if it is that of an empty slot. Otherwise returns the word.
fn exchange(word: &AtomicU64, new: u64) -> Option<u64> {
    let exchanged = word.compare_exchange(u64::MAX, new, Ordering::Relaxed, Ordering::Relaxed);
    exchanged.err()
}

/// Key and payload of 4 bytes are one word; otherwise, each is a word.
impl<K: Word, P: Word> Slot for (K, P) {
    const WORDS: usize = if K::BYTES + P::BYTES == 8 { 1 } else { 2 };

    #[inline]
    fn mark(key: u64) -> Option<u64> {
        let empty = match Self::WORDS {
            1 => u32::EMPTY,
            _ => u64::EMPTY,
        };
        (key != empty).then_some(key)
    }

    #[inline]
    fn take(slot: &[AtomicU64], (key, payload): (u64, u64)) -> Option<u64> {
        if Self::WORDS == 1 {
            let before = exchange(&slot[0], payload << 32 | key);
            return before.map(|row| row & u32::EMPTY);
        }
        let before = exchange(&slot[0], key);
        if before.is_none() {
            // Nothing reads payloads before the threads of the build have ended.
            slot[1].store(payload, Ordering::Relaxed);
        }
        before
    }

    #[inline]
    fn load(word: impl Fn(usize) -> u64) -> Option<(u64, u64)> {
        if Self::WORDS == 1 {
            let row = word(0);
            let key = row & u32::EMPTY;
            return (key != u32::EMPTY).then_some((key, row >> 32));
        }
        let key = word(0);
        (key != u64::EMPTY).then(|| (key, word(1)))
    }
}

/// Returns the mark of a composite key. No key has that of an empty slot, so none is kept aside.
#[inline]
fn mark_of_composite(key: u128) -> u64 {
    hash_of_composite(key).min(u64::MAX - 1)
}

impl Slot for CompositeRow {
    const WORDS: usize = 4;

    #[inline]
    fn mark(key: u128) -> Option<u64> {
        Some(mark_of_composite(key))
    }

    #[inline]
    fn take(slot: &[AtomicU64], (key, payload): (u128, u64)) -> Option<u64> {
        let before = exchange(&slot[0], mark_of_composite(key));
        if before.is_none() {
            // Nothing reads keys and payloads before the threads of the build have ended.
            let words = [key as u64, (key >> 64) as u64, payload];
            for (to, word) in slot[1..].iter().zip(words) {
                to.store(word, Ordering::Relaxed);
            }
        }
        before
    }

    #[inline]
    fn load(word: impl Fn(usize) -> u64) -> Option<(u128, u64)> {
        let key = || u128::from(word(2)) << 64 | u128::from(word(1));
        (word(0) != u64::MAX).then(|| (key(), word(3)))
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
    /// Returns those of keys whose hashes have the same upper `skipped_bits`.
    pub(super) fn new(shape: TableShape, skipped_bits: u32) -> Chains {
        Chains {
            slot_count: shape.slots(),
            shift: shape.shift() - skipped_bits,
            steps_max: shape.steps_max(),
        }
    }

    /// Returns the first slot in which a key may be.
    #[inline]
    pub(super) fn home<S: Slot>(&self, key: S::Key) -> u64 {
        S::hash(key) >> self.shift & (self.slot_count - 1)
    }

    #[inline]
    fn next(&self, slot: u64) -> u64 {
        (slot + 1) & (self.slot_count - 1)
    }

    /// Returns the number of matches of a key, and the sum of their payloads. `load` returns key and payload of a
    /// slot; `None` if it is empty.
    #[inline]
    pub(super) fn probe<S: Slot>(
        &self,
        key: S::Key,
        contents: &Contents,
        load: impl Fn(u64) -> Option<(S::Key, u64)>,
    ) -> (u64, u64) {
        if S::mark(key).is_none() {
            return (contents.aside_count, contents.aside_sum);
        }
        let mut slot = self.home::<S>(key);
        let (mut matches, mut sum) = (0, 0_u64);
        for _ in 0..self.steps_max {
            let Some((found, payload)) = load(slot) else {
                break;
            };
            if found == key {
                matches += 1;
                sum = sum.wrapping_add(payload);
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
pub(super) struct Linear<S> {
    slots: Vec<AtomicU64>,
    chains: Chains,
    slot: PhantomData<S>,
}

impl<S: Slot> Linear<S> {
    /// Returns an empty table for keys whose hashes have the same upper `skipped_bits`. `threads` threads write it.
    pub(super) fn new(shape: TableShape, skipped_bits: u32, threads: usize) -> Linear<S> {
        let words = shape.slots() as usize * S::WORDS;
        Linear {
            slots: vec_in_huge_pages(words, threads, || AtomicU64::new(u64::MAX)),
            chains: Chains::new(shape, skipped_bits),
            slot: PhantomData,
        }
    }

    /// Empties the table.
    pub(super) fn clear(&mut self) {
        for word in &mut self.slots {
            *word.get_mut() = u64::MAX;
        }
    }

    #[inline]
    fn slot(&self, slot: u64) -> &[AtomicU64] {
        let first = slot as usize * S::WORDS;
        &self.slots[first..first + S::WORDS]
    }
}

impl<S: Slot> Lookup for Linear<S> {
    type Row = S;

    #[inline]
    fn prefetch(&self, key: S::Key) {
        prefetch(&self.slot(self.chains.home::<S>(key))[0]);
    }

    #[inline]
    fn probe(&self, key: S::Key, contents: &Contents) -> (u64, u64) {
        let load = |slot| {
            let slot = self.slot(slot);
            S::load(|word| slot[word].load(Ordering::Relaxed))
        };
        self.chains.probe::<S>(key, contents, load)
    }
}

impl<S: Slot> Table for Linear<S> {
    #[inline]
    fn insert(&self, row: (S::Key, u64), inserted: &mut Outcome, failures: &AtomicU32) {
        if failures.load(Ordering::Relaxed) != 0 {
            return;
        }
        let (key, payload) = row;
        let Some(mark) = S::mark(key) else {
            inserted.aside_count += 1;
            inserted.aside_sum = inserted.aside_sum.wrapping_add(payload);
            return;
        };
        let mut slot = self.chains.home::<S>(key);
        let mut is_duplicate = false;
        let mut steps = 1;
        while let Some(before) = S::take(self.slot(slot), row) {
            // Another thread may not have written a composite key yet, so that its mark decides.
            is_duplicate |= before == mark;
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

    #[cfg(test)]
    fn bytes(&self) -> Box<[u8]> {
        let words = self.slots.iter().map(|word| word.load(Ordering::Relaxed));
        words.flat_map(u64::to_le_bytes).collect()
    }
}
