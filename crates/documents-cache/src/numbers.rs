//! Sets of document numbers with cheap snapshots for searches while writes continue.

use std::sync::Arc;

use roaring::RoaringBitmap;

/// Size of a set's parts: each covers a range of 2^`PART_BITS` numbers. A write concurrent with a search copies one
/// part, at most 128 KiB.
const PART_BITS: u32 = 20;

/// A set of document numbers. Cloning copies one pointer. The first write to a part after that copies the part.
#[derive(Debug, Clone, Default)]
pub(crate) struct NumberSet {
    parts: Arc<Vec<Arc<RoaringBitmap>>>,
    count: u64,
}

impl NumberSet {
    /// Adds a number. Returns false if the set already contains it.
    pub(crate) fn insert(&mut self, number: u32) -> bool {
        let index = (number >> PART_BITS) as usize;
        let parts = Arc::make_mut(&mut self.parts);
        if parts.len() <= index {
            parts.resize_with(index + 1, Arc::default);
        }
        let added = Arc::make_mut(&mut parts[index]).insert(number);
        self.count += u64::from(added);
        added
    }

    /// Removes a number. Returns false if the set does not contain it.
    pub(crate) fn remove(&mut self, number: u32) -> bool {
        if !self.contains(number) {
            return false;
        }
        let part = &mut Arc::make_mut(&mut self.parts)[(number >> PART_BITS) as usize];
        Arc::make_mut(part).remove(number);
        self.count -= 1;
        true
    }

    pub(crate) fn contains(&self, number: u32) -> bool {
        let part = self.parts.get((number >> PART_BITS) as usize);
        part.is_some_and(|part| part.contains(number))
    }

    pub(crate) fn len(&self) -> u64 {
        self.count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the whole set as one bitmap.
    pub(crate) fn to_bitmap(&self) -> RoaringBitmap {
        let mut whole = RoaringBitmap::new();
        for part in self.parts.iter() {
            whole |= &**part;
        }
        whole
    }

    /// Returns the number of bytes of memory that the set takes, estimated by the serialised size of its parts. The
    /// error is a few bytes per Roaring container.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let parts: usize = self.parts.iter().map(|part| part.serialized_size()).sum();
        (parts + self.parts.len() * size_of::<(usize, RoaringBitmap)>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_numbers_across_parts() {
        let mut set = NumberSet::default();
        let numbers = [
            0,
            1,
            (1 << PART_BITS) - 1,
            1 << PART_BITS,
            5 << PART_BITS,
            u32::MAX,
        ];
        for number in numbers {
            assert!(set.insert(number));
            assert!(!set.insert(number));
        }
        assert_eq!(set.to_bitmap().iter().collect::<Vec<_>>(), numbers);
        assert!(set.remove(u32::MAX));
        assert!(!set.remove(u32::MAX));
        assert!(!set.remove(7));
        assert_eq!(set.len(), 5);
    }

    #[test]
    fn a_copy_does_not_see_later_writes() {
        let mut set = NumberSet::default();
        set.insert(1);
        let before = set.clone();
        set.insert(2);
        set.remove(1);
        assert!(before.contains(1) && !before.contains(2));
        assert!(!set.contains(1) && set.contains(2));
    }
}
