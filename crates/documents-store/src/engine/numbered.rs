//! An in-memory map from record numbers to values, stored as an array of pages.
//!
//! A search tree of many keys costs a cache miss per level. Record numbers count up from 0, so no tree is needed: the
//! list of pages is an array, which fits into the processor's caches, and each page is an array of values.

use std::ops::Range;

use super::{Bytes, KeyRange};

/// Record numbers per page.
const PAGE_NUMBERS: u64 = 4096;

/// Values by key. Every key is a record number, eight bytes in big-endian order. Memory is allocated up to the highest
/// number, so numbers should be dense.
#[derive(Default)]
pub(super) struct Numbered {
    pages: Vec<Page>,
}

/// Values of consecutive record numbers, up to the highest number inserted.
#[derive(Default)]
struct Page {
    values: Vec<Option<Bytes>>,
    count: usize,
}

/// Returns the page of a number, and the index within the page.
fn place(number: u64) -> (usize, usize) {
    let page = number / PAGE_NUMBERS;
    (page as usize, (number % PAGE_NUMBERS) as usize)
}

fn number(key: &[u8]) -> Option<u64> {
    key.try_into().ok().map(u64::from_be_bytes)
}

impl Numbered {
    /// Returns the value of a key.
    pub(super) fn get(&self, key: &[u8]) -> Option<&Bytes> {
        let (page, index) = place(number(key)?);
        self.pages.get(page)?.values.get(index)?.as_ref()
    }

    /// Sets a value. Returns the old value, if there was one.
    ///
    /// # Panics
    /// If the key is not eight bytes long.
    pub(super) fn insert(&mut self, key: &[u8], value: Bytes) -> Option<Bytes> {
        let (page, index) = place(number(key).expect("the key of a record has eight bytes"));
        if page >= self.pages.len() {
            self.pages.resize_with(page + 1, Page::default);
        }
        let page = &mut self.pages[page];
        if index >= page.values.len() {
            page.values.resize(index + 1, None);
        }
        let before = page.values[index].replace(value);
        page.count += usize::from(before.is_none());
        before
    }

    /// Removes a value. Returns it, if there was one.
    pub(super) fn remove(&mut self, key: &[u8]) -> Option<Bytes> {
        let (page, index) = place(number(key)?);
        let page = self.pages.get_mut(page)?;
        let before = page.values.get_mut(index)?.take()?;
        page.count -= 1;
        if page.count == 0 {
            *page = Page::default();
        }
        Some(before)
    }

    /// Iterates over the entries of a range, in order of their numbers.
    pub(super) fn range(&self, keys: &KeyRange) -> impl DoubleEndedIterator<Item = (u64, &Bytes)> {
        let numbers = numbers(keys);
        let end = self.pages.len().min(place(numbers.end).0 + 1);
        // The end of a range may lie before its start, which slices do not allow.
        let first = end.min(place(numbers.start).0);
        let pages = self.pages[first..end].iter().enumerate();
        pages.flat_map(move |(page, values)| {
            let base = (first + page) as u64 * PAGE_NUMBERS;
            values.range(base, &numbers)
        })
    }
}

impl Page {
    /// Iterates over the values of `numbers` on this page. `base` is the first number of the page.
    fn range(
        &self,
        base: u64,
        numbers: &Range<u64>,
    ) -> impl DoubleEndedIterator<Item = (u64, &Bytes)> + use<'_> {
        let index = |number: u64| self.values.len().min(number.saturating_sub(base) as usize);
        let (start, end) = (index(numbers.start), index(numbers.end));
        let values = self.values[start.min(end)..end].iter().enumerate();
        values.filter_map(move |(index, value)| {
            Some((base + (start + index) as u64, value.as_ref()?))
        })
    }
}

/// Returns the numbers whose keys are in a range. Excludes `u64::MAX`, which has no successor to bound the range.
fn numbers(keys: &KeyRange) -> Range<u64> {
    first_from(&keys.start)..keys.end.as_deref().map_or(u64::MAX, first_from)
}

/// Returns the lowest number whose key is equal to `bytes` or above.
fn first_from(bytes: &[u8]) -> u64 {
    let mut key = [0; 8];
    let kept = bytes.len().min(key.len());
    key[..kept].copy_from_slice(&bytes[..kept]);
    u64::from_be_bytes(key).saturating_add(u64::from(bytes.len() > key.len()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Random writes and ranges agree with a `BTreeMap`.
    #[test]
    fn it_agrees_with_a_tree() {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut numbered, mut tree) = (Numbered::default(), BTreeMap::new());
        for round in 0..20_000_u64 {
            let key = (random.u64(..8) * 4000 + random.u64(..300)).to_be_bytes();
            if random.u8(..3) == 0 {
                assert_eq!(numbered.remove(&key), tree.remove(&key));
            } else {
                let value = Bytes::from(round.to_be_bytes());
                assert_eq!(
                    numbered.insert(&key, value.clone()),
                    tree.insert(key, value)
                );
            }
            assert_eq!(numbered.get(&key), tree.get(&key));
            if round % 100 == 0 {
                check_range(&numbered, &tree, &mut random);
            }
        }
        tree.keys().for_each(|key| drop(numbered.remove(key)));
        assert!(numbered.pages.iter().all(|page| page.values.is_empty()));
        assert_eq!(numbered.get(b"no number"), None);
    }

    fn check_range(
        numbered: &Numbered,
        tree: &BTreeMap<[u8; 8], Bytes>,
        random: &mut fastrand::Rng,
    ) {
        let keys = KeyRange {
            start: bytes(random),
            end: random.bool().then(|| bytes(random)),
        };
        let inside = |key: &[u8]| {
            keys.start.as_slice() <= key && keys.end.as_deref().is_none_or(|end| key < end)
        };
        let expected: Vec<(u64, &Bytes)> = tree
            .iter()
            .filter(|(key, _)| inside(*key))
            .map(|(key, value)| (u64::from_be_bytes(*key), value))
            .collect();
        assert!(
            numbered.range(&keys).eq(expected.iter().copied()),
            "{keys:?}"
        );
        let backward = expected.iter().rev().copied();
        assert!(numbered.range(&keys).rev().eq(backward), "{keys:?}");
    }

    /// Returns a random bound of a range: a key, a prefix of a key, or the position immediately after a key.
    fn bytes(random: &mut fastrand::Rng) -> Vec<u8> {
        let mut bytes = random.u64(..33_000).to_be_bytes().to_vec();
        match random.u8(..4) {
            0 => bytes.push(0),
            1 => bytes.truncate(random.usize(..8)),
            _ => {}
        }
        bytes
    }
}
