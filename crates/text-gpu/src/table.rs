//! Scan tables: the blocks on a device that the searches of one snapshot read.

use std::sync::Arc;

use forebay_device::cuda::DeviceType;

use crate::arguments::{Chunk, Segment};
use crate::policy::Policy;
use crate::tiled::TiledRows;
use crate::tiles::ChunkOfRows;

/// The blocks of one device in search order, with the deleted rows of each. The table is a description in host memory;
/// the device's thread copies it to the device once, for all searches that use it.
#[derive(Debug)]
pub struct ScanTable {
    segments: Vec<ScanSegment>,
    /// Number of the first row of each segment, then the total number of rows.
    first_rows: Vec<u32>,
}

#[derive(Debug)]
struct ScanSegment {
    rows: Arc<TiledRows>,
    /// Bitmap of deleted rows; empty if no row is deleted.
    deleted: Vec<u32>,
}

/// Content of a table in device memory.
pub(crate) struct Image {
    pub(crate) bytes: Vec<u8>,
    /// Byte offset of the segments; the chunks start at 0.
    pub(crate) segments_at: usize,
}

impl ScanTable {
    /// Maximum rows of a table, because row numbers have 32 bits.
    pub const ROWS_MAX: u64 = u32::MAX as u64;

    /// Creates a table of blocks on one device. Each block comes with a bitmap of its deleted rows (bit `row % 32` of
    /// word `row / 32`), which is empty if no row is deleted.
    ///
    /// # Panics
    /// If there are more than [`ROWS_MAX`](ScanTable::ROWS_MAX) rows, or a bitmap is too short for its block.
    pub fn new(segments: impl IntoIterator<Item = (Arc<TiledRows>, Vec<u32>)>) -> ScanTable {
        let mut table = ScanTable {
            segments: Vec::new(),
            first_rows: vec![0],
        };
        for (rows, deleted) in segments {
            assert!(deleted.is_empty() || deleted.len() * 32 >= rows.row_count());
            let first = u64::from(table.row_count()) + rows.row_count() as u64;
            let next = u32::try_from(first).expect("the caller passes at most `ROWS_MAX` rows");
            table.first_rows.push(next);
            table.segments.push(ScanSegment { rows, deleted });
        }
        table
    }

    /// Returns the number of rows of all blocks, including deleted rows and rows that stay on the host.
    pub fn row_count(&self) -> u32 {
        *self
            .first_rows
            .last()
            .expect("the list of first rows is never empty")
    }

    /// Returns the index of the block that contains a row of the table, and the row's number in the block.
    pub fn locate(&self, row: u32) -> (usize, u32) {
        let segment = self.first_rows.partition_point(|&first| first <= row) - 1;
        (segment, row - self.first_rows[segment])
    }

    /// Returns the rows that stay on the host, by block.
    pub fn oversize_rows(&self) -> impl Iterator<Item = (usize, &[u32])> {
        let each = self.segments.iter().enumerate();
        each.map(|(index, segment)| (index, segment.rows.oversize_rows()))
            .filter(|(_, rows)| !rows.is_empty())
    }

    /// Returns the chunks, each with the index of its segment.
    pub(crate) fn chunks(&self, policy: &Policy) -> Vec<(usize, ChunkOfRows)> {
        let segments = self.segments.iter().enumerate();
        let chunks = segments.flat_map(|(index, segment)| {
            let chunks = segment.rows.chunks(policy);
            chunks.map(move |chunk| (index, chunk))
        });
        chunks.collect()
    }

    /// Returns the number of bytes of a table with `chunks` chunks in device memory.
    pub(crate) fn image_bytes(&self, chunks: usize) -> usize {
        let deleted = self.segments.iter().map(|segment| segment.deleted.len());
        chunks * size_of::<Chunk>()
            + self.segments.len() * size_of::<Segment>()
            + deleted.sum::<usize>() * size_of::<u32>()
    }

    /// Returns the bytes of the table as they must be at a device address: chunks, segments, deleted rows.
    pub(crate) fn image(&self, address: u64, chunks: &[(usize, ChunkOfRows)]) -> Image {
        let mut bytes = Vec::with_capacity(self.image_bytes(chunks.len()));
        for (index, chunk) in chunks {
            let segment = &self.segments[*index];
            let has_deleted = !segment.deleted.is_empty();
            segment
                .rows
                .chunk(chunk, *index, has_deleted)
                .append(&mut bytes);
        }
        let segments_at = bytes.len();
        let mut deleted_at =
            address + (segments_at + self.segments.len() * size_of::<Segment>()) as u64;
        for (segment, &first_row) in self.segments.iter().zip(&self.first_rows) {
            let at = if segment.deleted.is_empty() {
                0
            } else {
                deleted_at
            };
            segment.rows.segment(first_row, at).append(&mut bytes);
            deleted_at += (segment.deleted.len() * size_of::<u32>()) as u64;
        }
        let deleted = self.segments.iter().flat_map(|segment| &segment.deleted);
        deleted.for_each(|word| word.append(&mut bytes));
        Image { bytes, segments_at }
    }
}
