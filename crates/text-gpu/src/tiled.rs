//! The rows of a block in the memory of a device.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use forebay_device::cuda::{DeviceMemory, DevicePointer, DeviceView, TransferJob};
use forebay_device::{Device, OutOfMemory, SubmitError};

use crate::arguments::{Chunk, Segment};
use crate::tiles::{ChunkOfRows, Layout, Part};
use forebay_text::Rows;

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
    pub fn load(device: &Arc<Device>, rows: Rows<'_>) -> Result<TiledRows, LoadError> {
        TiledRows::begin(device, rows)?.wait()
    }

    /// Begins to copy rows to a GPU; when this returns, nobody reads them any more. Blocks while the device's pinned pool is
    /// full; not for async threads, nor for the device's own.
    ///
    /// # Errors
    /// [`LoadError`]; nothing stays on the device.
    pub fn begin(device: &Arc<Device>, rows: Rows<'_>) -> Result<Loading, LoadError> {
        let layout = Layout::new(rows);
        let memory = Arc::new(device.allocate(layout.bytes() as u64)?);
        let (done, copied) = channel();
        let pieces = copy(device, &layout, rows, &memory, &done)?;
        let at = |range: Range<usize>| memory.address() + range.start as u64;
        let tiled = TiledRows {
            rows: rows.len(),
            chunks: layout.chunks().collect(),
            rows_at: (!layout.row_numbers().is_empty()).then(|| at(layout.row_numbers())),
            aside: layout.aside,
            memory,
        };
        Ok(Loading {
            tiled,
            device: Arc::clone(device),
            pieces,
            copied,
        })
    }

    /// Bytes of the device's memory.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Rows, those left to the host included.
    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    /// Rows left to the host, ascending.
    pub fn aside(&self) -> &[u32] {
        &self.aside
    }

    pub(crate) fn chunks(&self) -> &[ChunkOfRows] {
        &self.chunks
    }

    /// A chunk as a kernel takes it.
    pub(crate) fn chunk(&self, chunk: &ChunkOfRows, segment: usize, has_dead: bool) -> Chunk {
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
    pub(crate) fn segment(&self, first_row: u32, dead_at: u64) -> Segment {
        Segment {
            rows: DevicePointer::new(self.rows_at.unwrap_or(0)),
            dead: DevicePointer::new(dead_at),
            first_row,
            ..Segment::default()
        }
    }
}

/// Rows on their way to the memory of a GPU. If this is dropped, they go there for nothing.
#[derive(Debug)]
pub struct Loading {
    tiled: TiledRows,
    device: Arc<Device>,
    /// Copies that were begun.
    pieces: usize,
    /// One for each that is done.
    copied: Receiver<()>,
}

impl Loading {
    /// Waits until the rows are there.
    ///
    /// # Errors
    /// [`LoadError::Lost`]; nothing stays on the device.
    pub fn wait(self) -> Result<TiledRows, LoadError> {
        match self.copied.iter().take(self.pieces).count() == self.pieces {
            true => Ok(self.tiled),
            false => Err(lost(&self.device)),
        }
    }
}

/// Begins to copy a block in pieces, each on its way while the next is written; how many they are.
fn copy(
    device: &Device,
    layout: &Layout,
    rows: Rows<'_>,
    memory: &Arc<DeviceMemory>,
    done: &Sender<()>,
) -> Result<usize, LoadError> {
    let parts = layout.parts(PART_BYTES);
    let mut rest = parts.as_slice();
    let mut pieces = 0;
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
        let done = done.clone();
        // Nobody listens if the loader gave up.
        let told = move |_, _| {
            let _ = done.send(());
        };
        let to = DeviceView::of(memory, offset..offset + bytes);
        device.submit(Box::new(TransferJob::new(from, to, told)))?;
        pieces += 1;
        rest = behind;
    }
    Ok(pieces)
}

fn lost(device: &Device) -> LoadError {
    LoadError::Lost {
        device: device.name().to_owned(),
        why: device.state().to_string(),
    }
}
