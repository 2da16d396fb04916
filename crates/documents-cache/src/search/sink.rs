//! Sinks for matching rows: they produce a count or a set of documents.

use std::ops::Range;

use forebay_memory::{Full, Share};
use roaring::RoaringBitmap;

use super::FREE_BYTES_MAX;
use crate::segment::Segment;

/// Matches found so far.
#[derive(Debug, Clone)]
pub(super) enum Sink {
    /// Only the number of rows.
    Count(u64),
    /// The documents of the rows.
    Numbers(Numbers),
    /// A set of documents as a bitmap, such as the documents without the field.
    Set(RoaringBitmap),
}

/// The documents of rows, in any order. A document may occur more than once.
#[derive(Debug, Clone)]
pub(super) struct Numbers {
    rows: u64,
    /// Documents that are not in `set` yet.
    recent: Vec<u32>,
    /// Length of `recent` at which its documents are moved to `set`.
    fold_at: usize,
    set: RoaringBitmap,
}

/// Minimum value of `fold_at`.
const FOLD_MIN: usize = 65_536;
/// `fold_at` is the number of documents in the collection divided by this constant. Moving documents then costs in
/// total at most four times as much as building the set, and `recent` takes at most four times the memory of the set.
const FOLD_PART: u64 = 8;

impl Numbers {
    /// Creates an empty sink for a collection of `documents` documents.
    fn among(documents: u64) -> Numbers {
        let part = usize::try_from(documents / FOLD_PART).unwrap_or(usize::MAX);
        Numbers {
            rows: 0,
            recent: Vec::new(),
            fold_at: part.max(FOLD_MIN),
            set: RoaringBitmap::new(),
        }
    }

    fn add(&mut self, number: u32) {
        self.rows += 1;
        self.recent.push(number);
        self.fold_if_many();
    }

    fn extend(&mut self, numbers: &[u32]) {
        self.rows += numbers.len() as u64;
        for part in numbers.chunks(self.fold_at) {
            self.recent.extend_from_slice(part);
            self.fold_if_many();
        }
    }

    fn merge(&mut self, other: Numbers) {
        if self.rows == 0 {
            *self = other;
            return;
        }
        self.set |= other.set;
        self.rows += other.rows - other.recent.len() as u64;
        self.extend(&other.recent);
    }

    fn fold_if_many(&mut self) {
        if self.recent.len() >= self.fold_at {
            self.set |= bitmap(&mut self.recent);
            self.recent.clear();
        }
    }

    fn into_bitmap(mut self) -> RoaringBitmap {
        if self.set.is_empty() {
            bitmap(&mut self.recent)
        } else {
            self.set | bitmap(&mut self.recent)
        }
    }

    fn bytes(&self) -> usize {
        self.recent.capacity() * size_of::<u32>() + self.set.serialized_size()
    }
}

impl Sink {
    /// Creates an empty sink of the same kind.
    pub(super) fn empty_like(&self) -> Sink {
        match self {
            Sink::Count(_) => Sink::Count(0),
            Sink::Numbers(numbers) => Sink::Numbers(Numbers {
                fold_at: numbers.fold_at,
                ..Numbers::among(0)
            }),
            Sink::Set(_) => Sink::numbers_among(0),
        }
    }

    /// Creates an empty sink of documents for a collection of `documents` documents.
    pub(super) fn numbers_among(documents: u64) -> Sink {
        Sink::Numbers(Numbers::among(documents))
    }

    /// Returns the number of bytes of memory that the sink takes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Sink::Count(_) => 0,
            Sink::Numbers(numbers) => numbers.bytes(),
            Sink::Set(set) => set.serialized_size(),
        }
    }

    /// Charges the sink's growth to the memory account. A small sink is not charged. `charged` is the number of bytes
    /// charged so far, and is updated.
    pub(super) fn charge(&self, charged: &mut usize, held: &Share) -> Result<(), Full> {
        let more = self.bytes().saturating_sub(*charged);
        if more <= FREE_BYTES_MAX {
            return Ok(());
        }
        held.try_grow(more)?;
        *charged += more;
        Ok(())
    }

    /// Adds one live row.
    pub(super) fn add_row(&mut self, segment: &Segment, row: usize) {
        match self {
            Sink::Count(count) => *count += 1,
            Sink::Numbers(numbers) => numbers.add(segment.block().number(row)),
            Sink::Set(set) => drop(set.insert(segment.block().number(row))),
        }
    }

    /// Adds the live rows in a range.
    pub(super) fn add_rows(&mut self, segment: &Segment, rows: Range<usize>) {
        match self {
            Sink::Count(count) => *count += segment.live_rows_in(rows) as u64,
            Sink::Numbers(numbers) if !segment.has_deleted() => {
                numbers.extend(segment.block().numbers(rows));
            }
            _ => rows
                .filter(|row| !segment.is_deleted(*row))
                .for_each(|row| self.add_row(segment, row)),
        }
    }

    /// Returns the number of rows found.
    pub(super) fn count(&self) -> u64 {
        match self {
            Sink::Count(count) => *count,
            Sink::Numbers(numbers) => numbers.rows,
            Sink::Set(set) => set.len(),
        }
    }

    /// Adds the matches of another sink of the same kind.
    pub(super) fn merge(&mut self, other: Sink) {
        match (self, other) {
            (Sink::Count(count), other) => *count += other.count(),
            (Sink::Numbers(numbers), Sink::Numbers(more)) => numbers.merge(more),
            (sink, other) => *sink = Sink::Set(sink.take_bitmap() | other.into_bitmap()),
        }
    }

    fn take_bitmap(&mut self) -> RoaringBitmap {
        std::mem::replace(self, Sink::Count(0)).into_bitmap()
    }

    /// Returns the documents found; an empty set for a count.
    pub(super) fn into_bitmap(self) -> RoaringBitmap {
        match self {
            Sink::Count(_) => RoaringBitmap::new(),
            Sink::Set(set) => set,
            Sink::Numbers(numbers) => numbers.into_bitmap(),
        }
    }
}

/// Minimum length of a list of document numbers that is first converted to an uncompressed bitmap, if the numbers are
/// dense.
const PLAIN_BITMAP_FROM: usize = 4096;

fn bitmap(numbers: &mut Vec<u32>) -> RoaringBitmap {
    let greatest = numbers.iter().max().copied().unwrap_or(0);
    if numbers.len() >= PLAIN_BITMAP_FROM && (greatest / 64) as usize <= numbers.len() * 4 {
        return dense_bitmap(numbers, greatest);
    }
    numbers.sort_unstable();
    numbers.dedup();
    RoaringBitmap::from_sorted_iter(numbers.iter().copied()).expect("sorted and distinct")
}

fn dense_bitmap(numbers: &[u32], greatest: u32) -> RoaringBitmap {
    let mut bytes = vec![0u8; greatest as usize / 8 + 1];
    for number in numbers {
        bytes[*number as usize / 8] |= 1 << (number % 8);
    }
    RoaringBitmap::from_lsb0_bytes(0, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_and_sparse_numbers_make_the_same_set() {
        let mut rng = fastrand::Rng::with_seed(1);
        for greatest in [1, 100, 20_000, 300_000, 50_000_000] {
            let mut numbers: Vec<u32> = (0..10_000).map(|_| rng.u32(..greatest)).collect();
            let expected: RoaringBitmap = numbers.iter().copied().collect();
            assert_eq!(bitmap(&mut numbers), expected, "up to {greatest}");
        }
        assert!(bitmap(&mut Vec::new()).is_empty());
    }

    #[test]
    fn many_numbers_take_no_more_than_a_part_of_the_collection() {
        let documents = 1_000_000;
        let mut rng = fastrand::Rng::with_seed(2);
        let mut parts = [(); 3].map(|()| Numbers::among(documents));
        let mut expected = RoaringBitmap::new();
        for _ in 0..1_000_000 {
            let number = rng.u32(..documents as u32);
            expected.insert(number);
            parts[rng.usize(..3)].add(number);
        }
        for numbers in &parts {
            assert!(
                numbers.bytes() as u64 <= documents * 9 / 8,
                "{}",
                numbers.bytes()
            );
        }
        let whole = parts.into_iter().reduce(|mut a, b| {
            a.merge(b);
            a
        });
        let whole = whole.expect("there are three");
        assert_eq!(whole.rows, 1_000_000);
        assert_eq!(whole.into_bitmap(), expected);
    }
}
