//! Rows as a device reads them: in tiles of 32 rows of the same number of words.
//!
//! Rows are grouped by their number of 8-byte words. A tile holds 32 rows of a group, their words interleaved: word `w` of
//! row `r` stands at index `w * 32 + r`, so that the lanes of a warp read contiguous memory and end together. Bytes after
//! a value are [`SEPARATOR`]s. Rows that would waste memory, as very long ones do, are left to the host.
//!
//! # Sources
//! Sitaridi and Ross, "GPU-accelerated string matching for database applications", VLDB Journal 2016.

use std::ops::Range;

use crate::rows::{Rows, SEPARATOR};

/// Rows of a tile: the lanes of a warp.
pub(super) const TILE_ROWS: usize = 32;

/// Bytes of a word.
const WORD_BYTES: usize = 8;

/// Rows with more words than this stay on the host: a tile of one such row would be 128 KiB of padding.
const WORDS_MAX: usize = 512;

/// Up to so many words every number of words has a group of its own; beyond, groups grow by an eighth.
const WORDS_EXACT_MAX: usize = 32;

/// Bytes of words that one chunk, the share of work of a thread block, should have.
const CHUNK_BYTES: usize = 16 << 10;

/// Tiles a chunk has at least, so that each warp of its block has one.
const CHUNK_TILES_MIN: usize = 8;

/// The rows of one number of words.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    words: usize,
    rows: usize,
    /// The position of its first row; positions of a group begin at a multiple of [`TILE_ROWS`].
    position: usize,
    /// The index of its first word.
    word: usize,
}

impl Group {
    fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    fn chunk_tiles(&self) -> usize {
        let tile_bytes = self.words.max(1) * TILE_ROWS * WORD_BYTES;
        (CHUNK_BYTES / tile_bytes).max(CHUNK_TILES_MIN)
    }
}

/// A share of a group's tiles: the work of one thread block at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkOfRows {
    /// The index of its first word.
    pub(super) word: usize,
    pub(super) words_per_row: usize,
    pub(super) rows: usize,
    /// The position of its first row.
    pub(super) position: usize,
}

/// Where the rows of a block stand on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    groups: Vec<Group>,
    /// The group of each number of words; none for those left to the host.
    group_of: Vec<usize>,
    /// Rows left to the host, ascending.
    pub(super) aside: Vec<u32>,
    words: usize,
    positions: usize,
    /// Whether the position of a row is its number.
    in_order: bool,
}

impl Layout {
    pub(super) fn new(rows: Rows<'_>) -> Layout {
        let mut counts = vec![0usize; WORDS_MAX + 1];
        let mut aside = Vec::new();
        for (row, length) in lengths(rows).enumerate() {
            match counts.get_mut(words_of(length)) {
                Some(count) => *count += 1,
                None => aside.push(row as u32),
            }
        }
        let mut layout = Layout {
            groups: Vec::new(),
            group_of: vec![usize::MAX; WORDS_MAX + 1],
            aside,
            words: 0,
            positions: 0,
            in_order: true,
        };
        for (words, rows) in counts.into_iter().enumerate().filter(|(_, rows)| *rows > 0) {
            layout.add(words, rows);
        }
        layout.in_order = layout.groups.len() <= 1 && layout.aside.is_empty();
        layout
    }

    fn add(&mut self, words: usize, rows: usize) {
        self.group_of[words] = self.groups.len();
        let group = Group {
            words,
            rows,
            position: self.positions,
            word: self.words,
        };
        self.positions += group.tiles() * TILE_ROWS;
        self.words += group.tiles() * TILE_ROWS * words;
        self.groups.push(group);
    }

    /// Bytes on the device: words, then document numbers by position, then row numbers by position unless in order.
    pub(super) fn bytes(&self) -> usize {
        self.row_numbers().end
    }

    fn word_bytes(&self) -> Range<usize> {
        0..self.words * WORD_BYTES
    }

    /// Where the document numbers stand, in bytes.
    pub(super) fn document_numbers(&self) -> Range<usize> {
        let start = self.word_bytes().end;
        start..start + self.positions * size_of::<u32>()
    }

    /// Where the row numbers stand, in bytes; nowhere if rows are in order.
    pub(super) fn row_numbers(&self) -> Range<usize> {
        let start = self.document_numbers().end;
        let positions = if self.in_order { 0 } else { self.positions };
        start..start + positions * size_of::<u32>()
    }

    /// The rows as shares of work.
    pub(super) fn chunks(&self) -> impl Iterator<Item = ChunkOfRows> + '_ {
        self.groups.iter().flat_map(|group| {
            let step = group.chunk_tiles() * TILE_ROWS;
            (0..group.rows).step_by(step).map(move |from| ChunkOfRows {
                word: group.word + from * group.words,
                words_per_row: group.words,
                rows: step.min(group.rows - from),
                position: group.position + from,
            })
        })
    }

    /// Writes the rows, and the document of each, as they stand on the device.
    ///
    /// # Panics
    /// If `out` has not [`bytes`](Layout::bytes) bytes, or the rows are not those of the layout.
    pub(super) fn write(&self, rows: Rows<'_>, documents: &[u32], out: &mut [u8]) {
        assert_eq!((rows.len(), out.len()), (documents.len(), self.bytes()));
        let (words, numbers) = out.split_at_mut(self.word_bytes().end);
        let (documents_out, rows_out) = numbers.split_at_mut(self.document_numbers().len());
        if let ([group], true) = (self.groups.as_slice(), self.in_order) {
            write_numbers(documents_out, documents);
            return group.write_in_order(rows, words);
        }
        let mut positions: Vec<usize> = self.groups.iter().map(|group| group.position).collect();
        for (row, length) in lengths(rows).enumerate() {
            let Some(&group) = self.group_of.get(words_of(length)) else {
                continue;
            };
            let position = positions[group];
            positions[group] += 1;
            let start = rows.offsets[row] as usize;
            self.groups[group].write_row(rows.bytes, start, length, position, words);
            write_number(documents_out, position, documents[row]);
            if !self.in_order {
                write_number(rows_out, position, row as u32);
            }
        }
        self.write_padding(&positions, words);
    }

    /// Fills the rows that the last tile of a group lacks, so that nothing on a device is undefined.
    fn write_padding(&self, ends: &[usize], words: &mut [u8]) {
        for (group, &end) in self.groups.iter().zip(ends) {
            let tiles_end = group.position + group.tiles() * TILE_ROWS;
            for position in end..tiles_end {
                group.write_row(&[], 0, 0, position, words);
            }
        }
    }
}

impl Group {
    /// Writes rows of which none has another position than its number: tile by tile, many times faster.
    fn write_in_order(&self, rows: Rows<'_>, words: &mut [u8]) {
        let tile_bytes = self.words * TILE_ROWS * WORD_BYTES;
        if tile_bytes == 0 {
            return;
        }
        for (tile, out) in words.chunks_exact_mut(tile_bytes).enumerate() {
            let from = tile * TILE_ROWS;
            let to = rows.len().min(from + TILE_ROWS);
            for (word, out) in out.chunks_exact_mut(TILE_ROWS * WORD_BYTES).enumerate() {
                let (slots, rest) = out.split_at_mut((to - from) * WORD_BYTES);
                for (slot, offsets) in slots
                    .chunks_exact_mut(WORD_BYTES)
                    .zip(rows.offsets[from..=to].windows(2))
                {
                    let (start, length) =
                        (offsets[0] as usize, (offsets[1] - offsets[0]) as usize - 1);
                    slot.copy_from_slice(
                        &word_at(rows.bytes, start, length, word * WORD_BYTES).to_le_bytes(),
                    );
                }
                rest.fill(SEPARATOR);
            }
        }
    }

    fn write_row(
        &self,
        bytes: &[u8],
        start: usize,
        length: usize,
        position: usize,
        words: &mut [u8],
    ) {
        let in_group = position - self.position;
        let (tile, lane) = (in_group / TILE_ROWS, in_group % TILE_ROWS);
        let first = self.word + tile * self.words * TILE_ROWS + lane;
        for word in 0..self.words {
            let at = (first + word * TILE_ROWS) * WORD_BYTES;
            let value = word_at(bytes, start, length, word * WORD_BYTES);
            words[at..at + WORD_BYTES].copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// Eight bytes of a value from `from` on, separators after its end.
#[inline]
fn word_at(bytes: &[u8], start: usize, length: usize, from: usize) -> u64 {
    let left = length.saturating_sub(from);
    if left == 0 {
        return u64::MAX;
    }
    let here = start + from;
    let word = match bytes.get(here..here + WORD_BYTES) {
        Some(word) => u64::from_le_bytes(word.try_into().expect("a word has eight bytes")),
        None => last_word(&bytes[here..]),
    };
    if left >= WORD_BYTES {
        word
    } else {
        word | u64::MAX << (left * 8)
    }
}

#[cold]
fn last_word(bytes: &[u8]) -> u64 {
    let mut word = [SEPARATOR; WORD_BYTES];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

fn write_number(out: &mut [u8], index: usize, number: u32) {
    out[index * 4..index * 4 + 4].copy_from_slice(&number.to_le_bytes());
}

fn write_numbers(out: &mut [u8], numbers: &[u32]) {
    for (slot, number) in out.chunks_exact_mut(size_of::<u32>()).zip(numbers) {
        slot.copy_from_slice(&number.to_le_bytes());
    }
}

/// Lengths of the values.
fn lengths(rows: Rows<'_>) -> impl Iterator<Item = usize> + '_ {
    rows.offsets
        .windows(2)
        .map(|pair| (pair[1] - pair[0]) as usize - 1)
}

/// Words that a value of so many bytes has on a device.
#[inline]
fn words_of(length: usize) -> usize {
    let words = length.div_ceil(WORD_BYTES);
    if words <= WORDS_EXACT_MAX {
        return words;
    }
    let step = 1 << (words.ilog2() - 3);
    words.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(values: &[Vec<u8>]) -> (Vec<u8>, Vec<u32>) {
        let (mut bytes, mut offsets) = (Vec::new(), vec![0]);
        for value in values {
            bytes.extend_from_slice(value);
            bytes.push(SEPARATOR);
            offsets.push(bytes.len() as u32);
        }
        (bytes, offsets)
    }

    fn number(bytes: &[u8], index: usize) -> u32 {
        u32::from_le_bytes(bytes[index * 4..index * 4 + 4].try_into().unwrap())
    }

    /// The value at a lane of a chunk, as a device reads it.
    fn read(layout: &Layout, out: &[u8], chunk: &ChunkOfRows, row: usize) -> Vec<u8> {
        let (tile, lane) = (row / TILE_ROWS, row % TILE_ROWS);
        let mut value = Vec::new();
        for word in 0..chunk.words_per_row {
            let index = chunk.word + (tile * chunk.words_per_row + word) * TILE_ROWS + lane;
            value.extend_from_slice(&out[index * 8..index * 8 + 8]);
        }
        assert!(layout.word_bytes().end <= out.len());
        let end = value.iter().position(|&byte| byte == SEPARATOR);
        value.truncate(end.unwrap_or(value.len()));
        value
    }

    #[test]
    fn every_row_is_read_back_once() {
        let mut rng = fastrand::Rng::with_seed(7);
        for count in [0, 1, 31, 32, 33, 255, 256, 257, 5_000] {
            let longest = [0, 8, 9, 300, 6_000][rng.usize(..5)];
            let value = |rng: &mut fastrand::Rng| {
                (0..rng.usize(..=longest)).map(|_| rng.u8(..128)).collect()
            };
            let values: Vec<Vec<u8>> = (0..count).map(|_| value(&mut rng)).collect();
            let documents: Vec<u32> = (0..count as u32).map(|row| row * 3 + 1).collect();
            let (bytes, offsets) = block(&values);
            let rows = Rows {
                bytes: &bytes,
                offsets: &offsets,
            };
            let layout = Layout::new(rows);
            let mut out = vec![0; layout.bytes()];
            layout.write(rows, &documents, &mut out);
            let mut seen: Vec<u32> = layout.aside.clone();
            for chunk in layout.chunks() {
                for row in 0..chunk.rows {
                    let position = chunk.position + row;
                    let original = if layout.in_order {
                        position as u32
                    } else {
                        number(&out[layout.row_numbers()], position)
                    };
                    let expected = &values[original as usize];
                    assert_eq!(&read(&layout, &out, &chunk, row), expected);
                    let document = number(&out[layout.document_numbers()], position);
                    assert_eq!(document, documents[original as usize]);
                    seen.push(original);
                }
            }
            seen.sort_unstable();
            assert!(
                seen.into_iter().eq(0..count as u32),
                "{count} rows of up to {longest} bytes"
            );
        }
    }

    #[test]
    fn rows_of_one_length_need_no_numbers() {
        let (bytes, offsets) = block(&vec![b"12345678".to_vec(); 100]);
        let layout = Layout::new(Rows {
            bytes: &bytes,
            offsets: &offsets,
        });
        assert_eq!(layout.bytes(), 128 * 8 + 128 * 4);
    }
}
