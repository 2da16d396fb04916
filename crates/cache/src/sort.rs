//! Sorting rows of several blocks into one order: by value, then by document.
//!
//! Eight bytes of each value make a key, so that most comparisons touch no value. Rows whose keys are equal and whose
//! values go on are sorted again by the next eight bytes. The sort is stable and adaptive: blocks that are sorted
//! already are merged.

use std::ops::Range;

use crate::block::{BLOCK_BYTES_MAX, Block};
use crate::segment::Segment;

/// Bytes of a value that make a key.
const KEY_BYTES: usize = 8;
/// Class of values that go on behind their key; a smaller class is the length of the rest.
const LONGER: u64 = KEY_BYTES as u64 + 1;
/// Groups of equal keys up to this size are sorted by comparing values.
const SMALL_GROUP: usize = 16;

/// A row in the order being made.
#[derive(Debug, Clone, Copy)]
struct Entry {
    key: u64,
    /// Class of the value's length, then the document where nothing else decides.
    rank: u64,
    source: u32,
    row: u32,
}

/// The live rows of some segments in order of value and document.
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
        for row in 0..segment.block().len() {
            if !segment.is_dead(row) {
                let mut entry = Entry {
                    key: 0,
                    rank: 0,
                    source,
                    row: row as u32,
                };
                self.load(&mut entry, 0);
                self.entries.push(entry);
            }
        }
    }

    /// Sets key and rank of an entry from the bytes of its value behind `depth`.
    fn load(&self, entry: &mut Entry, depth: usize) {
        let block = self.sources[entry.source as usize].block();
        let rest = &block.value(entry.row as usize)[depth..];
        if rest.len() > KEY_BYTES {
            entry.key = u64::from_be_bytes(rest[..KEY_BYTES].try_into().expect("eight bytes"));
            entry.rank = LONGER << 32;
        } else {
            let mut key = [0; KEY_BYTES];
            key[..rest.len()].copy_from_slice(rest);
            entry.key = u64::from_be_bytes(key);
            entry.rank = (rest.len() as u64) << 32 | u64::from(block.number(entry.row as usize));
        }
    }

    fn sort(&mut self) {
        let mut entries = std::mem::take(&mut self.entries);
        entries.sort_by_key(|entry| (entry.key, entry.rank));
        let mut groups = Vec::new();
        find_groups(&entries, 0, 0, &mut groups);
        while let Some((range, depth)) = groups.pop() {
            let group = &mut entries[range.clone()];
            if group.len() <= SMALL_GROUP {
                group.sort_unstable_by(|a, b| self.compare(a, b, depth));
            } else {
                group.iter_mut().for_each(|entry| self.load(entry, depth));
                group.sort_by_key(|entry| (entry.key, entry.rank));
                find_groups(group, range.start, depth, &mut groups);
            }
        }
        self.entries = entries;
    }

    fn compare(&self, a: &Entry, b: &Entry, depth: usize) -> std::cmp::Ordering {
        let rest = |entry: &Entry| {
            let block = self.sources[entry.source as usize].block();
            (
                &block.value(entry.row as usize)[depth..],
                block.number(entry.row as usize),
            )
        };
        rest(a).cmp(&rest(b))
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The value at a place of the order.
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

    /// Bytes that a stretch of the order takes in a block.
    pub(crate) fn bytes(&self, range: Range<usize>) -> usize {
        range.map(|index| self.value_len(index) + 1).sum()
    }

    /// The end of the values at and after `start` that `below` holds for.
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

    /// Copies a stretch of the order into new segments: one, unless it takes more bytes than a block may have.
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

    /// How far one block reaches into `range`, and its bytes.
    fn block_end(&self, range: &Range<usize>) -> (usize, usize) {
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

/// Finds the stretches of sorted `entries` that the key at `depth` does not decide, and where they go on.
fn find_groups(
    entries: &[Entry],
    offset: usize,
    depth: usize,
    groups: &mut Vec<(Range<usize>, usize)>,
) {
    let mut start = 0;
    for group in entries.chunk_by(|a, b| a.key == b.key && a.rank == b.rank) {
        if group.len() > 1 && group[0].rank == LONGER << 32 {
            groups.push((
                offset + start..offset + start + group.len(),
                depth + KEY_BYTES,
            ));
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

    /// Values that agree in long prefixes, end inside a key, and hold NUL.
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
    fn leaves_out_dead_rows() {
        let mut source = segment(&[(b"b".to_vec(), 1), (b"a".to_vec(), 2), (b"c".to_vec(), 3)]);
        source.kill(0);
        assert_eq!(order(&[source]), [(b"a".to_vec(), 2), (b"c".to_vec(), 3)]);
    }
}
