//! The staging ring: moves a source of any length through a few slots of memory to a device, chunk by chunk.
//!
//! Several chunks are in flight at once: while one chunk is read into the pinned memory of its slot, another is copied
//! to the device, and the kernels of a third run. Events order copies and kernels on the device; the host waits only to
//! reuse the pinned memory of a slot. On a host device, the CPU consumes the chunks where they were read.

mod chunk;
mod feed;
mod job;
mod lease;
mod run;
mod slots;
mod time;

use std::error::Error;
use std::sync::Arc;

use forebay_cancel::Stop;
use forebay_device::cuda::{Cuda, DeviceView, Stream};
use forebay_device::{Device, JobError};

use crate::MoveError;

pub use chunk::Chunk;
pub use feed::{Feed, Kept, Pageable, PinnedSource};
pub use slots::{Next, Slot, Slots};
pub use time::RingReport;

/// Alignment in bytes of slots and of reads that bypass the page cache.
pub use forebay_device::PAGE_BYTES;

/// Shape of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingOptions {
    /// Number of slots, at least 1. With 3 slots, a read, a copy and a kernel can run at the same time; a source that
    /// keeps several reads in flight needs more.
    pub slots: usize,
    /// Bytes of a slot, rounded up to whole pages.
    pub slot_bytes: usize,
}

impl RingOptions {
    /// Returns the shape that a ring has: at least one slot, of whole pages.
    pub fn rounded(self) -> RingOptions {
        RingOptions {
            slots: self.slots.max(1),
            slot_bytes: self.slot_bytes.max(1).next_multiple_of(PAGE_BYTES),
        }
    }
}

impl Default for RingOptions {
    fn default() -> RingOptions {
        RingOptions {
            slots: 8,
            slot_bytes: 8 << 20,
        }
    }
}

/// Bytes that a ring moves, in order of their offsets, from a file or from host memory.
pub trait Source: Send + Sync {
    /// Returns the name of the source for errors, such as the path of a file.
    fn name(&self) -> String;

    /// Returns the number of bytes.
    fn bytes(&self) -> u64;

    /// Returns how many bytes of the first slot the source does not use, less than a slot, so that the later chunks
    /// begin at aligned offsets.
    fn lead_bytes(&self) -> usize {
        0
    }

    /// Returns how many threads call [`Source::fill`] at the same time.
    fn threads(&self) -> usize;

    /// Takes free slots and fills them, until there are no more chunks. Called once on each thread.
    ///
    /// # Errors
    /// [`Unread`], if a chunk cannot be read; the move then fails with [`MoveError::Source`].
    fn fill(&self, slots: &Slots<'_>) -> Result<(), Unread>;
}

/// A chunk that could not be read.
#[derive(Debug)]
pub struct Unread {
    /// Offset in the source of the first byte that could not be read.
    pub offset: u64,
    /// The cause, with what to do about it.
    pub why: Box<dyn Error + Send + Sync>,
}

/// Work on the chunks of a source. Chunks arrive in no particular order.
///
/// If a read fails, the consumer may have been called with bytes that are not the source's; the move then returns an
/// error.
pub trait Consumer: Send + Sync + 'static {
    /// Queues work on a stream of a GPU that reads `bytes`, the chunk in device memory. The memory is reused when the
    /// work that this call queued on the stream is done. Runs on the device's thread and must not block.
    ///
    /// # Errors
    /// Any error ends the move.
    fn enqueue(
        &self,
        cuda: &mut Cuda,
        stream: &Stream,
        chunk: Chunk,
        bytes: &DeviceView<u8>,
    ) -> Result<(), JobError>;

    /// Works on a chunk in host memory, on the CPU. Several threads call this at the same time.
    ///
    /// # Errors
    /// Any error ends the move.
    fn process(&self, chunk: Chunk, bytes: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// Slots of pinned and device memory through which sources move to a device.
///
/// A ring leases all its memory at once, and so two rings cannot wait for each other. It moves one source at a time.
/// After an error it can be used again.
#[derive(Debug)]
pub struct StagingRing {
    device: Arc<Device>,
    options: RingOptions,
    /// `None` after a move that lost slots; the next move leases new ones.
    leased: Option<lease::Lease>,
}

impl StagingRing {
    /// Leases a ring: on a GPU, pinned memory from the device's pool and as much device memory; on a host device, heap
    /// memory. Blocks while other rings hold the pinned memory.
    ///
    /// # Errors
    /// [`MoveError::PinnedMemory`] or [`MoveError::DeviceMemory`] if the ring does not fit;
    /// [`MoveError::DeviceLost`].
    pub fn lease(device: &Arc<Device>, options: RingOptions) -> Result<StagingRing, MoveError> {
        let options = options.rounded();
        Ok(StagingRing {
            leased: Some(lease::Lease::take(device, options)?),
            device: Arc::clone(device),
            options,
        })
    }

    /// Returns the shape of the ring.
    pub fn options(&self) -> RingOptions {
        self.options
    }

    /// Moves all bytes of a source through the ring to the consumer. Blocks until the last work of the consumer is
    /// done. Must not be called on an async worker thread or on a device's thread.
    ///
    /// # Errors
    /// The first error of any stage. All other work has ended by then.
    pub fn run<C: Consumer>(
        &mut self,
        source: &dyn Source,
        consumer: &Arc<C>,
        stop: &Stop,
    ) -> Result<RingReport, MoveError> {
        let lease = match self.leased.take() {
            Some(lease) => lease,
            None => lease::Lease::take(&self.device, self.options)?,
        };
        let (lease, result) = run::run(&self.device, lease, source, consumer, stop);
        self.leased = lease;
        result
    }
}
