//! Allocator of ranges within one large allocation.

use std::collections::{BTreeMap, BTreeSet};

/// An allocated range. Its owner must return it with `give_back`; ranges in use do not overlap.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// The free ranges of an allocation. A request takes memory from the smallest free range that is large enough;
/// neighbouring free ranges are merged.
#[derive(Debug)]
pub(crate) struct Ranges {
    granule_bytes: u64,
    bytes_by_offset: BTreeMap<u64, u64>,
    by_bytes: BTreeSet<(u64, u64)>,
}

impl Ranges {
    /// Returns an allocator of `bytes` free bytes, rounded down to whole granules. Offsets and sizes are multiples of a
    /// granule.
    pub(crate) fn new(bytes: u64, granule_bytes: u64) -> Ranges {
        let mut ranges = Ranges {
            granule_bytes,
            bytes_by_offset: BTreeMap::new(),
            by_bytes: BTreeSet::new(),
        };
        let bytes = bytes - bytes % granule_bytes;
        if bytes > 0 {
            ranges.insert(0, bytes);
        }
        ranges
    }

    /// Returns the number of bytes that a request of `bytes` takes: whole granules, at least one; `None` on overflow.
    pub(crate) fn rounded(&self, bytes: u64) -> Option<u64> {
        bytes.max(1).checked_next_multiple_of(self.granule_bytes)
    }

    /// Takes `bytes` from the smallest free range that has room; returns `None` if no free range has room.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<Range> {
        let bytes = self.rounded(bytes)?;
        let &(found_bytes, offset) = self.by_bytes.range((bytes, 0)..).next()?;
        self.remove(offset, found_bytes);
        if found_bytes > bytes {
            self.insert(offset + bytes, found_bytes - bytes);
        }
        Some(Range { offset, bytes })
    }

    /// Frees a range and merges it with its free neighbours.
    pub(crate) fn give_back(&mut self, range: Range) {
        let Range {
            mut offset,
            mut bytes,
        } = range;
        if let Some((before, before_bytes)) = self.free_part_that_ends_at(offset) {
            self.remove(before, before_bytes);
            offset = before;
            bytes += before_bytes;
        }
        if let Some(after_bytes) = self.bytes_by_offset.get(&(offset + bytes)).copied() {
            self.remove(offset + bytes, after_bytes);
            bytes += after_bytes;
        }
        self.insert(offset, bytes);
    }

    /// Returns the number of bytes of the largest request that would succeed.
    pub(crate) fn largest_free_bytes(&self) -> u64 {
        self.by_bytes.last().map_or(0, |(bytes, _)| *bytes)
    }

    fn free_part_that_ends_at(&self, end: u64) -> Option<(u64, u64)> {
        let (&offset, &bytes) = self.bytes_by_offset.range(..end).next_back()?;
        (offset + bytes == end).then_some((offset, bytes))
    }

    fn insert(&mut self, offset: u64, bytes: u64) {
        self.bytes_by_offset.insert(offset, bytes);
        self.by_bytes.insert((bytes, offset));
    }

    fn remove(&mut self, offset: u64, bytes: u64) {
        self.bytes_by_offset.remove(&offset);
        self.by_bytes.remove(&(bytes, offset));
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const GRANULE_BYTES: u64 = 256;
    const TOTAL_BYTES: u64 = 64 * GRANULE_BYTES;

    /// Takes or frees a range in each step, as `steps` says. Checks after each step that no two ranges overlap.
    fn play(steps: &[(bool, u64)]) {
        let mut ranges = Ranges::new(TOTAL_BYTES, GRANULE_BYTES);
        let mut taken: Vec<Range> = Vec::new();
        for &(takes, number) in steps {
            if takes {
                taken.extend(ranges.take(number));
            } else if !taken.is_empty() {
                let index = number as usize % taken.len();
                ranges.give_back(taken.swap_remove(index));
            }
            assert_disjoint(&taken);
        }
        taken.into_iter().for_each(|range| ranges.give_back(range));
        assert_eq!(
            ranges.take(TOTAL_BYTES),
            Some(Range {
                offset: 0,
                bytes: TOTAL_BYTES
            })
        );
    }

    fn assert_disjoint(taken: &[Range]) {
        let mut sorted: Vec<_> = taken.iter().collect();
        sorted.sort_by_key(|range| range.offset);
        let mut end = 0;
        for range in sorted {
            assert!(range.offset >= end && range.offset % GRANULE_BYTES == 0);
            end = range.offset + range.bytes;
        }
        assert!(end <= TOTAL_BYTES);
    }

    proptest! {
        #[test]
        fn parts_never_overlap_and_all_come_back(steps in vec((any::<bool>(), 0..TOTAL_BYTES / 4), 0..200)) {
            play(&steps);
        }
    }

    #[test]
    fn the_smallest_part_that_fits_is_taken() {
        let mut ranges = Ranges::new(10 * GRANULE_BYTES, GRANULE_BYTES);
        let large = ranges.take(5 * GRANULE_BYTES).expect("free");
        let _wall = ranges.take(1).expect("free");
        let small = ranges.take(2 * GRANULE_BYTES).expect("free");
        let _other_wall = ranges.take(1).expect("free");
        ranges.give_back(large);
        let small_offset = small.offset;
        ranges.give_back(small);
        assert_eq!(
            ranges.take(GRANULE_BYTES + 1).map(|range| range.offset),
            Some(small_offset)
        );
        assert_eq!(ranges.largest_free_bytes(), 5 * GRANULE_BYTES);
    }

    #[test]
    fn impossible_requests_are_refused() {
        let mut ranges = Ranges::new(GRANULE_BYTES + 1, GRANULE_BYTES);
        assert_eq!(ranges.take(u64::MAX), None);
        assert_eq!(ranges.take(GRANULE_BYTES + 1), None);
        assert!(ranges.take(0).is_some(), "nothing is one granule");
        assert_eq!((ranges.take(0), ranges.largest_free_bytes()), (None, 0));
    }
}
