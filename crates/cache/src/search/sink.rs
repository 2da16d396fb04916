//! Where found rows go: into a count or into a set of documents.

use std::ops::Range;

use roaring::RoaringBitmap;

use crate::segment::Segment;

/// What a search has found so far.
#[derive(Debug, Clone)]
pub(super) enum Sink {
    /// Only how many rows.
    Count(u64),
    /// Whose rows, in any order; a document may come more than once.
    Numbers(Vec<u32>),
    /// A set that was there before the search.
    Set(RoaringBitmap),
}

impl Sink {
    /// An empty sink of the same sort.
    pub(super) fn empty_like(&self) -> Sink {
        match self {
            Sink::Count(_) => Sink::Count(0),
            Sink::Numbers(_) | Sink::Set(_) => Sink::Numbers(Vec::new()),
        }
    }

    /// Adds one live row.
    pub(super) fn add_row(&mut self, segment: &Segment, row: usize) {
        match self {
            Sink::Count(count) => *count += 1,
            Sink::Numbers(numbers) => numbers.push(segment.block().number(row)),
            Sink::Set(set) => drop(set.insert(segment.block().number(row))),
        }
    }

    /// Adds the live ones of some rows.
    pub(super) fn add_rows(&mut self, segment: &Segment, rows: Range<usize>) {
        match self {
            Sink::Count(count) => *count += segment.live_rows_in(rows) as u64,
            Sink::Numbers(numbers) if !segment.has_dead() => {
                numbers.extend_from_slice(segment.block().numbers(rows));
            }
            _ => rows
                .filter(|row| !segment.is_dead(*row))
                .for_each(|row| self.add_row(segment, row)),
        }
    }

    /// Rows found.
    pub(super) fn count(&self) -> u64 {
        match self {
            Sink::Count(count) => *count,
            Sink::Numbers(numbers) => numbers.len() as u64,
            Sink::Set(set) => set.len(),
        }
    }

    /// Adds what another sink of the same sort has found.
    pub(super) fn merge(&mut self, other: Sink) {
        match (self, other) {
            (Sink::Count(count), other) => *count += other.count(),
            (Sink::Numbers(numbers), Sink::Numbers(more)) if numbers.is_empty() => *numbers = more,
            (Sink::Numbers(numbers), Sink::Numbers(more)) => numbers.extend(more),
            (sink, other) => *sink = Sink::Set(sink.take_bitmap() | other.into_bitmap()),
        }
    }

    fn take_bitmap(&mut self) -> RoaringBitmap {
        std::mem::replace(self, Sink::Count(0)).into_bitmap()
    }

    /// The documents found; none of a count.
    pub(super) fn into_bitmap(self) -> RoaringBitmap {
        match self {
            Sink::Count(_) => RoaringBitmap::new(),
            Sink::Set(set) => set,
            Sink::Numbers(numbers) => bitmap(numbers),
        }
    }
}

/// Numbers from this many on are set in a plain bitmap first, if they are dense enough.
const PLAIN_BITMAP_FROM: usize = 4096;

fn bitmap(mut numbers: Vec<u32>) -> RoaringBitmap {
    let greatest = numbers.iter().max().copied().unwrap_or(0);
    if numbers.len() >= PLAIN_BITMAP_FROM && (greatest / 64) as usize <= numbers.len() * 4 {
        return dense_bitmap(&numbers, greatest);
    }
    numbers.sort_unstable();
    numbers.dedup();
    RoaringBitmap::from_sorted_iter(numbers).expect("sorted and distinct")
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
            let numbers: Vec<u32> = (0..10_000).map(|_| rng.u32(..greatest)).collect();
            let expected: RoaringBitmap = numbers.iter().copied().collect();
            assert_eq!(bitmap(numbers), expected, "up to {greatest}");
        }
        assert!(bitmap(Vec::new()).is_empty());
    }
}
