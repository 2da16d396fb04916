//! The rows of a block in the memory of a device.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use forebay_device::cuda::{DeviceMemory, DevicePointer, Pinned, Upload};
use forebay_device::{Device, OutOfMemory, SubmitError};

use super::arguments::{Chunk, Segment};
use super::tiles::{ChunkOfRows, Layout, Part};
use crate::rows::Rows;

/// Most bytes that are copied to a device at once; longer blocks go in pieces.
const PIECE_BYTES: usize = 8 << 20;

/// Bytes of a part that pieces are made of.
const PART_BYTES: usize = PIECE_BYTES / 16;

/// The rows of a block, laid out in the memory of one GPU; dropping them gives the memory back. See the module `tiles`
/// for the layout. Rows of values longer than 4,096 bytes are not among them: [`aside`](TiledRows::aside).
#[derive(Debug)]
pub struct TiledRows {
    /// Shared with the job that copies, which may end a little later than the copy.
    memory: Arc<DeviceMemory>,
    rows: usize,
    chunks: Vec<ChunkOfRows>,
    /// None if rows stand in order.
    rows_at: Option<u64>,
    aside: Vec<u32>,
}

/// Why rows are not on a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The device has no room for them.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The device takes no more work.
    #[error(transparent)]
    Refused(#[from] SubmitError),
    /// The device was lost on the way, or has no pinned memory to copy from.
    #[error("device {device} did not take the rows: {why}")]
    Lost {
        /// Name of the device.
        device: String,
        /// What is known of the reason.
        why: String,
    },
}

impl TiledRows {
    /// Copies rows to a GPU. Blocks until they are there; not for async threads,
    /// nor for the device's own.
    ///
    /// # Errors
    /// [`LoadError`]; nothing stays on the device.
    pub fn load(device: &Device, rows: Rows<'_>) -> Result<TiledRows, LoadError> {
        let layout = Layout::new(rows);
        let memory = Arc::new(device.allocate(layout.bytes() as u64)?);
        copy(device, &layout, rows, &memory)?;
        let at = |range: Range<usize>| memory.address() + range.start as u64;
        Ok(TiledRows {
            rows: rows.len(),
            chunks: layout.chunks().collect(),
            rows_at: (!layout.row_numbers().is_empty()).then(|| at(layout.row_numbers())),
            aside: layout.aside,
            memory,
        })
    }

    /// Bytes of the device's memory.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Rows, those left to the host included.
    pub(super) fn len(&self) -> usize {
        self.rows
    }

    /// Rows left to the host, ascending.
    pub fn aside(&self) -> &[u32] {
        &self.aside
    }

    pub(super) fn chunks(&self) -> &[ChunkOfRows] {
        &self.chunks
    }

    /// A chunk as a kernel takes it.
    pub(super) fn chunk(&self, chunk: &ChunkOfRows, segment: usize, has_dead: bool) -> Chunk {
        Chunk {
            words: DevicePointer::new(
                self.memory.address() + (chunk.word * size_of::<u64>()) as u64,
            ),
            words_per_row: chunk.words_per_row as u32,
            rows: chunk.rows as u32,
            position: chunk.position as u32,
            segment: segment as u32,
            has_dead: has_dead.into(),
            ..Chunk::default()
        }
    }

    /// The block as a kernel takes it.
    pub(super) fn segment(&self, first_row: u32, dead_at: u64) -> Segment {
        Segment {
            rows: DevicePointer::new(self.rows_at.unwrap_or(0)),
            dead: DevicePointer::new(dead_at),
            first_row,
            ..Segment::default()
        }
    }
}

/// Copies a block in pieces; one is on its way while the next is written.
fn copy(
    device: &Device,
    layout: &Layout,
    rows: Rows<'_>,
    memory: &Arc<DeviceMemory>,
) -> Result<(), LoadError> {
    let parts = layout.parts(PART_BYTES);
    let mut rest = parts.as_slice();
    let mut on_its_way: Option<Receiver<()>> = None;
    while let Some(first) = rest.first() {
        let offset = first.bytes.start;
        let fits = |part: &&Part| part.bytes.end - offset <= PIECE_BYTES;
        let count = rest.iter().take_while(fits).count().max(1);
        let (piece, behind) = rest.split_at(count);
        let bytes = piece[count - 1].bytes.end - offset;
        let mut from = device.stage(bytes).ok_or_else(|| lost(device))?;
        for part in piece {
            let out = &mut from[part.bytes.start - offset..part.bytes.end - offset];
            layout.write(rows, part, out);
        }
        let copied = upload(device, from, memory, offset)?;
        if let Some(before) = on_its_way.replace(copied) {
            before.recv().map_err(|_| lost(device))?;
        }
        rest = behind;
    }
    on_its_way.map_or(Ok(()), |last| last.recv().map_err(|_| lost(device)))
}

/// Begins to copy a piece to an offset of the memory; something is received when it is there.
fn upload(
    device: &Device,
    from: Pinned,
    memory: &Arc<DeviceMemory>,
    offset: usize,
) -> Result<Receiver<()>, LoadError> {
    let (done, copied) = sync_channel(1);
    // Nobody listens if the loader gave up.
    let told = move || {
        let _ = done.send(());
    };
    let upload = Upload::new(from, Arc::clone(memory), offset, told);
    device.submit(Box::new(upload))?;
    Ok(copied)
}

fn lost(device: &Device) -> LoadError {
    LoadError::Lost {
        device: device.name().to_owned(),
        why: device.state().to_string(),
    }
}
