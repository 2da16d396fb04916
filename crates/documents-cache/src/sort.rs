//! Sorting the rows of several blocks by value, then by document.
//!
//! Eight bytes of each value form a key, so that most comparisons do not read the values. If the keys of several rows
//! are equal and their values are longer, these rows are sorted again by the next eight bytes. The sort is stable and
//! adaptive: it merges blocks that are already sorted.

use std::cmp::Ordering;
use std::ops::Range;

use crate::block::{BLOCK_BYTES_MAX, Block};
use crate::segment::Segment;

/// Bytes of a value that form a key.
const KEY_BYTES: usize = 8;
/// Maximum size of a group of equal keys that is sorted by comparing whole values.
const SMALL_GROUP: usize = 16;

/// A row in the sorted order.
#[derive(Debug, Clone, Copy)]
struct Entry {
    key: u64,
    source: u32,
    row: u32,
}

/// The live rows of some segments, in order of value and document.
pub(crate) struct Sorted<'a> {
    sources: &'a [Segment],
    entries: Vec<Entry>,
}

impl<'a> Sorted<'a> {
    /// Sorts the live rows of `sources`.
    pub(crate) fn new(sources: &'a [Segment]) -> Sorted<'a> {
        let live = sources.iter().map(Segment::live_rows).sum();
        let mut sorted = Sorted {
            sources,
            entries: Vec::with_capacity(live),
        };
        for (source, segment) in sources.iter().enumerate() {
            sorted.collect(source as u32, segment);
        }
        sorted.sort();
        sorted
    }

    fn collect(&mut self, source: u32, segment: &Segment) {
        let block = segment.block();
        let entry = |row| Entry {
            key: key(block.value(row)),
            source,
            row: row as u32,
        };
        let rows = 0..block.len();
        if segment.has_deleted() {
            let live = rows.filter(|row| !segment.is_deleted(*row));
            self.entries.extend(live.map(entry));
        } else {
            self.entries.extend(rows.map(entry));
        }
    }

    fn sort(&mut self) {
        let mut entries = std::mem::take(&mut self.entries);
        entries.sort_by_key(|entry| entry.key);
        let mut groups = Vec::new();
        find_groups(&entries, 0, KEY_BYTES, &mut groups);
        while let Some((range, depth)) = groups.pop() {
            self.sort_group(&mut entries, range, depth, &mut groups);
        }
        self.entries = entries;
    }

    /// Sorts entries whose values, padded with zeros, are equal in their first `depth` bytes.
    fn sort_group(
        &self,
        entries: &mut [Entry],
        range: Range<usize>,
        depth: usize,
        groups: &mut Vec<(Range<usize>, usize)>,
    ) {
        let group = &mut entries[range.clone()];
        if group.len() <= SMALL_GROUP {
            group.sort_unstable_by(|a, b| self.compare(a, b));
            return;
        }
        // Values that end within the first `depth` bytes come before longer values.
        group.sort_by_key(|entry| self.entry_value(entry).len() > depth);
        let ended = group.partition_point(|entry| self.entry_value(entry).len() <= depth);
        group[..ended]
            .sort_by_key(|entry| (self.entry_value(entry).len(), self.entry_number(entry)));
        let longer = &mut group[ended..];
        for entry in longer.iter_mut() {
            entry.key = key(&self.entry_value(entry)[depth..]);
        }
        longer.sort_by_key(|entry| entry.key);
        find_groups(longer, range.start + ended, depth + KEY_BYTES, groups);
    }

    fn entry_value(&self, entry: &Entry) -> &'a [u8] {
        self.sources[entry.source as usize]
            .block()
            .value(entry.row as usize)
    }

    fn entry_number(&self, entry: &Entry) -> u32 {
        self.sources[entry.source as usize]
            .block()
            .number(entry.row as usize)
    }

    fn compare(&self, a: &Entry, b: &Entry) -> Ordering {
        let values = self.entry_value(a).cmp(self.entry_value(b));
        values.then_with(|| self.entry_number(a).cmp(&self.entry_number(b)))
    }

    /// Returns the number of rows.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the value of sorted row `index`.
    pub(crate) fn value(&self, index: usize) -> &'a [u8] {
        let entry = self.entries[index];
        self.sources[entry.source as usize]
            .block()
            .value(entry.row as usize)
    }

    fn value_len(&self, index: usize) -> usize {
        let entry = self.entries[index];
        self.sources[entry.source as usize]
            .block()
            .value_len(entry.row as usize)
    }

    /// Returns the index of the first value in `range` for which `below` returns false; the end of `range` if there is
    /// none.
    pub(crate) fn end_of(&self, range: Range<usize>, below: impl Fn(&[u8]) -> bool) -> usize {
        let within = &self.entries[range.clone()];
        range.start
            + within.partition_point(|entry| {
                below(
                    self.sources[entry.source as usize]
                        .block()
                        .value(entry.row as usize),
                )
            })
    }

    /// Copies a range of the sorted rows into new segments: one segment, unless the range has more bytes than a block
    /// may hold.
    pub(crate) fn segments(&self, range: Range<usize>) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut rest = range;
        while !rest.is_empty() {
            let (end, bytes) = self.block_end(&rest);
            let mut block = Block::with_capacity(end - rest.start, bytes - (end - rest.start));
            for entry in &self.entries[rest.start..end] {
                let source = self.sources[entry.source as usize].block();
                block.push(
                    source.value(entry.row as usize),
                    source.number(entry.row as usize),
                );
            }
            segments.push(Segment::new(block));
            rest.start = end;
        }
        segments
    }

    /// Returns the end of the first block in `range`, and the block's number of bytes.
    fn block_end(&self, range: &Range<usize>) -> (usize, usize) {
        let whole = self.sources.iter().map(|source| source.block().bytes_len());
        let whole = whole.sum::<usize>();
        let has_deleted = self.sources.iter().any(Segment::has_deleted);
        if range.len() == self.entries.len() && !has_deleted && whole <= BLOCK_BYTES_MAX {
            return (range.end, whole);
        }
        let mut bytes = 0;
        for index in range.clone() {
            let more = self.value_len(index) + 1;
            if bytes > 0 && bytes + more > BLOCK_BYTES_MAX {
                return (index, bytes);
            }
            bytes += more;
        }
        (range.end, bytes)
    }
}

/// Returns the first bytes of a value as a number with the same order as the bytes. Short values are padded with zeros.
#[inline]
fn key(value: &[u8]) -> u64 {
    match value.first_chunk::<KEY_BYTES>() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; KEY_BYTES];
            bytes[..value.len()].copy_from_slice(value);
            u64::from_be_bytes(bytes)
        }
    }
}

/// Finds the groups of entries with equal keys in the sorted `entries`, the first of which has index `offset`. Appends
/// the index range of each group, and `depth`: the number of leading bytes in which the values of a group are equal.
fn find_groups(
    entries: &[Entry],
    offset: usize,
    depth: usize,
    groups: &mut Vec<(Range<usize>, usize)>,
) {
    let mut start = offset;
    for group in entries.chunk_by(|a, b| a.key == b.key) {
        if group.len() > 1 {
            groups.push((start..start + group.len(), depth));
        }
        start += group.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(rows: &[(Vec<u8>, u32)]) -> Segment {
        let mut block = Block::with_capacity(rows.len(), 0);
        rows.iter()
            .for_each(|(value, number)| block.push(value, *number));
        Segment::new(block)
    }

    fn order(sources: &[Segment]) -> Vec<(Vec<u8>, u32)> {
        let sorted = Sorted::new(sources);
        let segments = sorted.segments(0..sorted.len());
        let rows = segments.iter().flat_map(|segment| {
            let block = segment.block();
            (0..block.len()).map(|row| (block.value(row).to_vec(), block.number(row)))
        });
        rows.collect()
    }

    /// Generates values that share long prefixes, end within a key, or contain NUL.
    fn value(rng: &mut fastrand::Rng) -> Vec<u8> {
        let alphabet = [0, b'a', b'b', b'\n'];
        let prefix = [
            &b""[..],
            b"aaaaaaa",
            b"aaaaaaaa",
            b"aaaaaaaaaaaaaaaabbbbbbbbb",
        ];
        let mut value = prefix[rng.usize(..prefix.len())].to_vec();
        value.extend((0..rng.usize(..4)).map(|_| alphabet[rng.usize(..alphabet.len())]));
        value
    }

    #[test]
    fn sorts_as_the_naive_order() {
        for seed in 0..40 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut expected = Vec::new();
            let mut sources = Vec::new();
            for source in 0..rng.u32(1..5) {
                let rows: Vec<_> = (0..rng.u32(..200))
                    .map(|n| (value(&mut rng), n * 8 + source))
                    .collect();
                sources.push(segment(&rows));
                expected.extend(rows);
            }
            expected.sort();
            assert_eq!(order(&sources), expected, "seed {seed}");
        }
    }

    #[test]
    fn leaves_out_deleted_rows() {
        let mut source = segment(&[(b"b".to_vec(), 1), (b"a".to_vec(), 2), (b"c".to_vec(), 3)]);
        source.delete(0);
        assert_eq!(order(&[source]), [(b"a".to_vec(), 2), (b"c".to_vec(), 3)]);
    }
}
