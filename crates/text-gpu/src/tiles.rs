//! Layout of rows on a device: tiles of 32 rows with equal numbers of words.
//!
//! Rows are grouped by their number of 8-byte words. A tile holds 32 rows of a group with their words interleaved: word
//! `w` of row `r` has index `w * 32 + r`, so the lanes of a warp read contiguous memory and finish together.
//! [`SEPARATOR`]s fill the bytes after a value. Very long rows, whose padding would waste memory, stay on the host.
//!
//! # Sources
//! Sitaridi and Ross, "GPU-accelerated string matching for database applications", VLDB Journal 2016.

use std::ops::Range;

use forebay_text::{Rows, SEPARATOR};

use crate::policy::Policy;

/// Rows of a tile: the lanes of a warp.
pub(crate) const TILE_ROWS: usize = 32;

/// Bytes of a word.
const WORD_BYTES: usize = 8;

/// Maximum words of a row on the device; longer rows stay on the host, because a tile with a single such row would be
/// 128 KiB of padding.
const WORDS_MAX: usize = 512;

/// Maximum words of rows that are not padded to a larger word count. Longer rows are padded to one of a few word
/// counts, each at most an eighth larger than the previous one.
const WORDS_EXACT_MAX: usize = 32;

/// The rows of a block that have the same number of words on the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    words: usize,
    rows: usize,
    /// Position of the group's first row, a multiple of [`TILE_ROWS`].
    position: usize,
    /// Index of the group's first word.
    word: usize,
}

impl Group {
    fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    /// Returns the rows as chunks (units of work).
    pub(crate) fn chunks(&self, policy: &Policy) -> impl Iterator<Item = ChunkOfRows> {
        let tile_bytes = self.words.max(1) * TILE_ROWS * WORD_BYTES;
        // At least one tile for each warp.
        let tiles = (policy.chunk_bytes / tile_bytes).max(policy.warps());
        let step = tiles * TILE_ROWS;
        (0..self.rows).step_by(step).map(move |from| ChunkOfRows {
            word: self.word + from * self.words,
            words_per_row: self.words,
            rows: step.min(self.rows - from),
            position: self.position + from,
        })
    }
}

/// A range of a group's tiles: the unit of work of a thread block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkOfRows {
    /// Index of the chunk's first word.
    pub(crate) word: usize,
    pub(crate) words_per_row: usize,
    pub(crate) rows: usize,
    /// Position of the chunk's first row.
    pub(crate) position: usize,
}

/// Positions of a block's rows on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) groups: Vec<Group>,
    /// Rows that stay on the host, ascending.
    pub(crate) oversize_rows: Vec<u32>,
    words: usize,
    positions: usize,
    /// Row number at each position, or [`NO_ROW`]; empty if positions equal row numbers.
    row_at: Vec<u32>,
    /// Length of each value in bytes, if all values have the same length.
    length: Option<usize>,
}

/// Marks a position without a row in the last tile of a group.
const NO_ROW: u32 = u32::MAX;

/// A range of a block's bytes on a device, which can be written independently of other parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// Byte range on the device.
    pub(crate) bytes: Range<usize>,
    content: Content,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Content {
    /// Index of a group, and a range of its tiles.
    Tiles(usize, Range<usize>),
    /// Row numbers of a range of positions.
    Rows(Range<usize>),
}

impl Layout {
    pub(crate) fn new(rows: Rows<'_>) -> Layout {
        let (shortest, longest) = extremes(rows);
        let mut layout = Layout {
            groups: Vec::new(),
            oversize_rows: Vec::new(),
            words: 0,
            positions: 0,
            row_at: Vec::new(),
            length: (shortest == longest).then_some(shortest),
        };
        let (fewest, most) = (words_of(shortest), words_of(longest));
        if fewest == most && most <= WORDS_MAX {
            layout.add(most, rows.len());
        } else {
            layout.sort(rows);
        }
        layout
    }

    /// Groups rows with different numbers of words.
    fn sort(&mut self, rows: Rows<'_>) {
        let mut counts = vec![0usize; WORDS_MAX + 1];
        for (row, length) in lengths(rows).enumerate() {
            match counts.get_mut(words_of(length)) {
                Some(count) => *count += 1,
                None => self.oversize_rows.push(row as u32),
            }
        }
        let mut next = vec![0; WORDS_MAX + 1];
        for (words, rows) in counts.into_iter().enumerate().filter(|(_, rows)| *rows > 0) {
            next[words] = self.positions;
            self.add(words, rows);
        }
        self.row_at = vec![NO_ROW; self.positions];
        for (row, length) in lengths(rows).enumerate() {
            if let Some(position) = next.get_mut(words_of(length)) {
                self.row_at[*position] = row as u32;
                *position += 1;
            }
        }
    }

    fn add(&mut self, words: usize, rows: usize) {
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

    /// Returns the number of bytes on the device: words, then row numbers by position if they differ from the
    /// positions.
    pub(crate) fn bytes(&self) -> usize {
        self.row_numbers().end
    }

    /// Returns the byte range of the row numbers; empty if row numbers equal positions.
    pub(crate) fn row_numbers(&self) -> Range<usize> {
        let start = self.words * WORD_BYTES;
        start..start + self.row_at.len() * size_of::<u32>()
    }

    /// Splits all bytes on the device into consecutive parts of about `bytes` bytes; each part is whole tiles, or the
    /// row numbers of whole tiles.
    pub(crate) fn parts(&self, bytes: usize) -> Vec<Part> {
        let mut parts = Vec::new();
        for (index, group) in self.groups.iter().enumerate() {
            let tile_bytes = group.words * TILE_ROWS * WORD_BYTES;
            let start = group.word * WORD_BYTES;
            for tiles in pieces(group.tiles(), bytes / tile_bytes.max(1)) {
                parts.push(Part {
                    bytes: start + tiles.start * tile_bytes..start + tiles.end * tile_bytes,
                    content: Content::Tiles(index, tiles),
                });
            }
        }
        let numbers = (bytes / size_of::<u32>())
            .max(1)
            .next_multiple_of(TILE_ROWS);
        let start = self.row_numbers().start;
        parts.extend(pieces(self.row_at.len(), numbers).map(|positions| Part {
            bytes: start + positions.start * size_of::<u32>()
                ..start + positions.end * size_of::<u32>(),
            content: Content::Rows(positions),
        }));
        parts
    }

    /// Writes a part in the device's layout.
    ///
    /// # Panics
    /// If `out` and the part differ in length, or the rows are not those of the layout.
    pub(crate) fn write(&self, rows: Rows<'_>, part: &Part, out: &mut [u8]) {
        assert_eq!(out.len(), part.bytes.len());
        match &part.content {
            Content::Tiles(group, tiles) => {
                let group = &self.groups[*group];
                let tile_bytes = group.words * TILE_ROWS * WORD_BYTES;
                if group.words == 1 && self.row_at.is_empty() {
                    self.write_words(rows, tiles.start * TILE_ROWS, out);
                } else if tile_bytes > 0 {
                    for (tile, out) in tiles.clone().zip(out.chunks_exact_mut(tile_bytes)) {
                        self.write_tile(rows, group.position + tile * TILE_ROWS, out);
                    }
                }
            }
            Content::Rows(positions) => write_numbers(out, &self.row_at[positions.clone()]),
        }
    }

    /// Writes one-word rows in order, starting with row `first`, and fills the rest of `out` with separators.
    fn write_words(&self, rows: Rows<'_>, first: usize, out: &mut [u8]) {
        let count = (rows.len() - first).min(out.len() / WORD_BYTES);
        let (out, rest) = out.split_at_mut(count * WORD_BYTES);
        let write = |start: usize, length: usize, slot: &mut [u8]| {
            let word = word_at(rows.bytes, start, length, 0);
            slot.copy_from_slice(&word.to_le_bytes());
        };
        let slots = out.chunks_exact_mut(WORD_BYTES);
        match self.length {
            // The offset of each value follows from the first one, so `offsets` need not be read.
            Some(length) => {
                let start = rows.offsets[first] as usize;
                for (start, slot) in (start..).step_by(length + 1).zip(slots) {
                    write(start, length, slot);
                }
            }
            None => {
                for (&[start, next], slot) in rows.offsets[first..].array_windows().zip(slots) {
                    write(start as usize, (next - start) as usize - 1, slot);
                }
            }
        }
        rest.fill(SEPARATOR);
    }

    /// Writes the words of the rows at 32 positions, starting at `position`.
    fn write_tile(&self, rows: Rows<'_>, position: usize, out: &mut [u8]) {
        let mut lanes = [(0, 0); TILE_ROWS];
        let lane_of = |&[from, to]: &[u32; 2]| (from as usize, (to - from) as usize - 1);
        if self.row_at.is_empty() {
            let ends = rows.offsets[position..].array_windows();
            lanes
                .iter_mut()
                .zip(ends)
                .for_each(|(lane, ends)| *lane = lane_of(ends));
        } else {
            for (lane, &row) in lanes.iter_mut().zip(&self.row_at[position..]) {
                let ends = rows.offsets.get(row as usize..);
                *lane = ends.and_then(<[u32]>::first_chunk).map_or((0, 0), lane_of);
            }
        }
        for (word, out) in out.chunks_exact_mut(TILE_ROWS * WORD_BYTES).enumerate() {
            for (slot, (start, length)) in out.chunks_exact_mut(WORD_BYTES).zip(lanes) {
                let word = word_at(rows.bytes, start, length, word * WORD_BYTES);
                slot.copy_from_slice(&word.to_le_bytes());
            }
        }
    }
}

/// Splits `0..count` into ranges of at most `of`.
fn pieces(count: usize, of: usize) -> impl Iterator<Item = Range<usize>> {
    let step = of.max(1);
    (0..count)
        .step_by(step)
        .map(move |start| start..count.min(start + step))
}

/// Returns the eight bytes of a value at byte `from`, with separators after its end.
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

fn write_numbers(out: &mut [u8], numbers: &[u32]) {
    for (slot, number) in out.chunks_exact_mut(size_of::<u32>()).zip(numbers) {
        slot.copy_from_slice(&number.to_le_bytes());
    }
}

/// Returns the lengths of the shortest and the longest value.
fn extremes(rows: Rows<'_>) -> (usize, usize) {
    let spans = rows.offsets.array_windows().map(|[start, end]| end - start);
    let first = spans.clone().next().unwrap_or(1);
    // The compiler vectorises this fold with instructions that every processor has.
    let differences = spans.clone().fold(0, |all, span| all | (span ^ first));
    let (shortest, longest) = match differences {
        0 => (first, first),
        _ => spans.fold((first, first), |(shortest, longest), span| {
            (shortest.min(span), longest.max(span))
        }),
    };
    (shortest as usize - 1, longest as usize - 1)
}

/// Returns the lengths of the values.
fn lengths(rows: Rows<'_>) -> impl Iterator<Item = usize> + '_ {
    rows.offsets
        .windows(2)
        .map(|pair| (pair[1] - pair[0]) as usize - 1)
}

/// Returns the number of words of a value of `length` bytes on a device.
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
    use forebay_device::cuda::Arch;

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

    /// Returns the value of row `row` of a chunk in the device's layout.
    fn read(out: &[u8], chunk: &ChunkOfRows, row: usize) -> Vec<u8> {
        let (tile, lane) = (row / TILE_ROWS, row % TILE_ROWS);
        let mut value = Vec::new();
        for word in 0..chunk.words_per_row {
            let index = chunk.word + (tile * chunk.words_per_row + word) * TILE_ROWS + lane;
            value.extend_from_slice(&out[index * 8..index * 8 + 8]);
        }
        let end = value.iter().position(|&byte| byte == SEPARATOR);
        value.truncate(end.unwrap_or(value.len()));
        value
    }

    #[test]
    fn every_row_is_read_back_once() {
        let mut rng = fastrand::Rng::with_seed(7);
        let policy = Policy::of(Arch { major: 9, minor: 0 });
        for count in [0, 1, 31, 32, 33, 255, 256, 257, 5_000].repeat(20) {
            let longest = [0, 8, 9, 300, 6_000][rng.usize(..5)];
            let value = |rng: &mut fastrand::Rng| {
                (0..rng.usize(..=longest)).map(|_| rng.u8(..128)).collect()
            };
            let values: Vec<Vec<u8>> = (0..count).map(|_| value(&mut rng)).collect();
            let (bytes, offsets) = block(&values);
            let rows = Rows {
                bytes: &bytes,
                offsets: &offsets,
            };
            let layout = Layout::new(rows);
            let mut out = vec![0; layout.bytes()];
            let mut written = 0;
            for part in layout.parts(rng.usize(1..20_000)) {
                assert_eq!(part.bytes.start, written);
                written = part.bytes.end;
                layout.write(rows, &part, &mut out[part.bytes.clone()]);
            }
            assert_eq!(written, out.len());
            let mut seen: Vec<u32> = layout.oversize_rows.clone();
            for chunk in layout.groups.iter().flat_map(|group| group.chunks(&policy)) {
                for row in 0..chunk.rows {
                    let position = chunk.position + row;
                    let original = if layout.row_at.is_empty() {
                        position as u32
                    } else {
                        number(&out[layout.row_numbers()], position)
                    };
                    let expected = &values[original as usize];
                    assert_eq!(&read(&out, &chunk, row), expected);
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
        assert_eq!(layout.bytes(), 128 * 8);
    }
}
