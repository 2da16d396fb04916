//! The rows of a block in the memory of a device.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use forebay_device::cuda::{DeviceMemory, DevicePointer, DeviceView, TransferJob};
use forebay_device::{Device, MemoryPool, OutOfMemory, SubmitError};

use crate::arguments::{Chunk, Segment};
use crate::policy::Policy;
use crate::tiles::{ChunkOfRows, Group, Layout, Part};
use forebay_text::Rows;

/// Maximum bytes of one copy to a device; larger blocks are copied in pieces.
const PIECE_BYTES: usize = 8 << 20;

/// Bytes of a part, the unit in which a piece is laid out.
const PART_BYTES: usize = PIECE_BYTES / 16;

/// A block's rows in the memory of one GPU, in the layout of the module `tiles`; dropping them frees the memory. Values
/// longer than 4,096 bytes are not included; see [`oversize_rows`](TiledRows::oversize_rows).
#[derive(Debug)]
pub struct TiledRows {
    /// Shared with the job that copies the rows, which may hold the memory for a moment after the copy is done.
    memory: Arc<DeviceMemory>,
    rows: usize,
    groups: Vec<Group>,
    /// Address of the row numbers; `None` if positions equal row numbers.
    rows_at: Option<u64>,
    oversize_rows: Vec<u32>,
}

/// Why rows could not be loaded on a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The device has too little memory for the rows.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The device refused the copy job.
    #[error(transparent)]
    Refused(#[from] SubmitError),
    /// The device was lost during the copy, or its pinned pool is too small.
    #[error("device {device} did not load the rows: {why}")]
    Lost {
        /// Name of the device.
        device: String,
        /// State of the device.
        why: String,
    },
}

impl TiledRows {
    /// Copies rows to a GPU. Blocks until the copy is done, so it must not be called on async threads or on the
    /// device's thread.
    ///
    /// # Errors
    /// [`LoadError`]; nothing stays on the device.
    pub fn load(device: &Arc<Device>, rows: Rows<'_>) -> Result<TiledRows, LoadError> {
        TiledRows::begin(device, rows)?.wait()
    }

    /// Starts copying rows to a GPU. The rows are not read after this returns. Blocks while the device's pinned pool is
    /// full, so it must not be called on async threads or on the device's thread.
    ///
    /// # Errors
    /// [`LoadError`]; nothing stays on the device.
    pub fn begin(device: &Arc<Device>, rows: Rows<'_>) -> Result<Loading, LoadError> {
        TiledRows::begin_in(device, rows, |bytes| device.allocate(bytes))
    }

    /// As [`TiledRows::begin`], with memory from a tenant's pool. If there is no room,
    /// [claims](MemoryPool::claim) memory for the tenant.
    ///
    /// # Errors
    /// [`LoadError`]; nothing stays on the device.
    pub fn begin_in_pool(
        device: &Arc<Device>,
        pool: &MemoryPool,
        rows: Rows<'_>,
    ) -> Result<Loading, LoadError> {
        TiledRows::begin_in(device, rows, |bytes| pool.allocate_or_claim(bytes))
    }

    fn begin_in(
        device: &Arc<Device>,
        rows: Rows<'_>,
        allocate: impl FnOnce(u64) -> Result<DeviceMemory, OutOfMemory>,
    ) -> Result<Loading, LoadError> {
        let layout = Layout::new(rows);
        let memory = Arc::new(allocate(layout.bytes() as u64)?);
        let (done, copied) = channel();
        let pieces = copy(device, &layout, rows, &memory, &done)?;
        let at = |range: Range<usize>| memory.address() + range.start as u64;
        let tiled = TiledRows {
            rows: rows.len(),
            rows_at: (!layout.row_numbers().is_empty()).then(|| at(layout.row_numbers())),
            groups: layout.groups,
            oversize_rows: layout.oversize_rows,
            memory,
        };
        Ok(Loading {
            tiled,
            device: Arc::clone(device),
            pieces,
            copied,
        })
    }

    /// Returns the number of bytes of device memory.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Returns the number of rows, including those that stay on the host.
    pub fn row_count(&self) -> usize {
        self.rows
    }

    /// Returns the rows that stay on the host, ascending.
    pub fn oversize_rows(&self) -> &[u32] {
        &self.oversize_rows
    }

    /// Returns the rows as chunks (units of work).
    pub(crate) fn chunks(&self, policy: &Policy) -> impl Iterator<Item = ChunkOfRows> {
        self.groups.iter().flat_map(|group| group.chunks(policy))
    }

    /// Returns the description of a chunk that kernels read.
    pub(crate) fn chunk(&self, chunk: &ChunkOfRows, segment: usize, has_deleted: bool) -> Chunk {
        Chunk {
            words: DevicePointer::new(
                self.memory.address() + (chunk.word * size_of::<u64>()) as u64,
            ),
            words_per_row: chunk.words_per_row as u32,
            rows: chunk.rows as u32,
            position: chunk.position as u32,
            segment: segment as u32,
            has_deleted: has_deleted.into(),
        }
    }

    /// Returns the description of the block that kernels read.
    pub(crate) fn segment(&self, first_row: u32, deleted_at: u64) -> Segment {
        Segment {
            rows: DevicePointer::new(self.rows_at.unwrap_or(0)),
            deleted: DevicePointer::new(deleted_at),
            first_row,
        }
    }
}

/// Rows that are being copied to a GPU. If this is dropped, the copies continue, and their memory is freed afterwards.
#[derive(Debug)]
pub struct Loading {
    tiled: TiledRows,
    device: Arc<Device>,
    /// Number of copies.
    pieces: usize,
    /// Receives one message for each finished copy.
    copied: Receiver<()>,
}

impl Loading {
    /// Blocks until the copy is done.
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

/// Starts copying a block in pieces: while one piece is copied to the device, the next piece is written to pinned
/// memory. Returns the number of pieces.
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
        let (piece, later) = rest.split_at(count);
        let bytes = piece[count - 1].bytes.end - offset;
        let mut from = device.stage(bytes).ok_or_else(|| lost(device))?;
        for part in piece {
            let out = &mut from[part.bytes.start - offset..part.bytes.end - offset];
            layout.write(rows, part, out);
        }
        let done = done.clone();
        // The receiver is gone if the caller dropped the [`Loading`].
        let report = move |_, _| {
            let _ = done.send(());
        };
        let to = DeviceView::of(memory, offset..offset + bytes);
        device.submit(Box::new(TransferJob::new(from, to, report)))?;
        pieces += 1;
        rest = later;
    }
    Ok(pieces)
}

fn lost(device: &Device) -> LoadError {
    LoadError::Lost {
        device: device.name().to_owned(),
        why: device.state().to_string(),
    }
}
