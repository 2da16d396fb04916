//! The blocks that searches of one moment read on a device.

use std::sync::Arc;

use crate::arguments::{Chunk, Segment};
use crate::tiled::TiledRows;

/// Blocks on one device, with the rows of each that are dead, in the order they are searched. It is a description in
/// host memory; the device thread copies it to the device once, however many searches use it.
#[derive(Debug)]
pub struct ScanTable {
    segments: Vec<ScanSegment>,
    /// The number of the first row of each segment, then the number of rows.
    first_rows: Vec<u32>,
}

#[derive(Debug)]
struct ScanSegment {
    rows: Arc<TiledRows>,
    /// Dead rows as bits, or none.
    dead: Vec<u32>,
}

/// A table as it is copied to a device.
pub(crate) struct Image {
    pub(crate) bytes: Vec<u8>,
    /// Where the segments begin, in bytes; chunks begin at 0.
    pub(crate) segments_at: usize,
}

impl ScanTable {
    /// Maximum rows of a table, which are counted in 32 bits.
    pub const ROWS_MAX: u64 = u32::MAX as u64;

    /// A table of blocks that are on one device. The second part of each has bit `row % 32` of word `row / 32` set where
    /// a row is dead; it is empty if none is.
    ///
    /// # Panics
    /// If there are more rows than [`ROWS_MAX`](ScanTable::ROWS_MAX), or too few words for the rows of a block.
    pub fn new(segments: impl IntoIterator<Item = (Arc<TiledRows>, Vec<u32>)>) -> ScanTable {
        let mut table = ScanTable {
            segments: Vec::new(),
            first_rows: vec![0],
        };
        for (rows, dead) in segments {
            assert!(dead.is_empty() || dead.len() * 32 >= rows.len());
            let first = u64::from(table.row_count()) + rows.len() as u64;
            let next = u32::try_from(first).expect("the caller keeps to the most rows of a table");
            table.first_rows.push(next);
            table.segments.push(ScanSegment { rows, dead });
        }
        table
    }

    /// Rows of all blocks, dead ones and those left to the host included.
    pub fn row_count(&self) -> u32 {
        *self.first_rows.last().expect("there is one entry at least")
    }

    /// The block and the row in it of a row of the table.
    pub fn locate(&self, row: u32) -> (usize, u32) {
        let segment = self.first_rows.partition_point(|&first| first <= row) - 1;
        (segment, row - self.first_rows[segment])
    }

    /// Rows that are left to the host, by block.
    pub fn aside(&self) -> impl Iterator<Item = (usize, &[u32])> {
        let each = self.segments.iter().enumerate();
        each.map(|(index, segment)| (index, segment.rows.aside()))
            .filter(|(_, rows)| !rows.is_empty())
    }

    /// The shares of work, in the order in which [`image`](ScanTable::image) has them, as counts of rows.
    pub(crate) fn chunk_rows(&self) -> Vec<u32> {
        let chunks = self
            .segments
            .iter()
            .flat_map(|segment| segment.rows.chunks());
        chunks.map(|chunk| chunk.rows as u32).collect()
    }

    pub(crate) fn image_bytes(&self) -> usize {
        let dead: usize = self.segments.iter().map(|segment| segment.dead.len()).sum();
        let chunks: usize = self
            .segments
            .iter()
            .map(|segment| segment.rows.chunks().len())
            .sum();
        chunks * size_of::<Chunk>()
            + self.segments.len() * size_of::<Segment>()
            + dead * size_of::<u32>()
    }

    /// The table as it stands at an address of the device: chunks, segments, dead rows.
    pub(crate) fn image(&self, address: u64) -> Image {
        let mut bytes = Vec::with_capacity(self.image_bytes());
        for (index, segment) in self.segments.iter().enumerate() {
            let has_dead = !segment.dead.is_empty();
            for chunk in segment.rows.chunks() {
                segment.rows.chunk(chunk, index, has_dead).write(&mut bytes);
            }
        }
        let segments_at = bytes.len();
        let mut dead_at =
            address + (segments_at + self.segments.len() * size_of::<Segment>()) as u64;
        for (segment, &first_row) in self.segments.iter().zip(&self.first_rows) {
            let dead = if segment.dead.is_empty() { 0 } else { dead_at };
            segment.rows.segment(first_row, dead).write(&mut bytes);
            dead_at += (segment.dead.len() * size_of::<u32>()) as u64;
        }
        let dead = self.segments.iter().flat_map(|segment| &segment.dead);
        bytes.extend(dead.flat_map(|word| word.to_le_bytes()));
        Image { bytes, segments_at }
    }
}
