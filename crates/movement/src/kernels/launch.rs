//! Launches of this crate's kernels. Each owns the memory that its kernel uses until the kernel has finished.

use std::sync::Arc;

use forebay_device::cuda::{
    Cuda, DevicePointer, DeviceView, Divisible, Event, LaunchShape, Part, Stream,
};
use forebay_device::{DeviceFault, JobError};

use super::arguments::{Copying, Reading, Summing};
use super::{BULK_STAGES, Total, bytes, reads};
use crate::measure::{Memory, Pattern, Reads};
use crate::method::Direction;

/// Threads of a block of the kernels that load and store plainly.
const THREADS: u32 = 256;

/// Bytes that a thread of a plain copy moves in one round.
const BYTES_PER_THREAD: u64 = 64;

/// Maximum blocks per multiprocessor of the plain kernels.
const BLOCKS: u64 = 4;

/// Bytes of a stage of a bulk copy.
///
/// PERF: reads of pinned memory on an H100 on PCIe 5, 23 November 2026: 51.0 GB/s with 4 blocks of two stages of 32 KiB
/// or of four stages of 16 KiB, and no more with more blocks.
const BULK_PIECE_BYTES: u32 = 16 << 10;

/// Alignment of both ends of a bulk copy.
const BULK_ALIGNMENT: u64 = 16;

/// Maximum blocks of a bulk copy.
const BULK_BLOCKS: u64 = 16;

/// The instructions of a copy kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    /// Loads and stores of threads.
    Plain,
    /// The bulk copy engine (sm_90).
    Bulk,
}

/// A copy by a kernel, in flight. It owns both memories; dropping it waits for the kernel.
pub(crate) struct KernelCopy<M> {
    /// `None` once the copy is finished.
    ends: Option<(Part<M>, DeviceView<u8>)>,
    event: Arc<Event>,
}

impl<M: Divisible> KernelCopy<M> {
    /// Queues a kernel that copies between host memory that the GPU can access and device memory. Memory that is
    /// neither pinned nor managed needs a GPU with [`uses_host_page_tables`](forebay_device::cuda::Gpu).
    ///
    /// # Panics
    /// If both ends differ in length.
    pub(crate) fn begin(
        cuda: &mut Cuda,
        mut host: Part<M>,
        device_memory: DeviceView<u8>,
        (direction, engine): (Direction, Engine),
        stream: &Stream,
    ) -> Result<KernelCopy<M>, JobError> {
        assert_eq!(
            host.len(),
            device_memory.len(),
            "both ends of a copy have one length"
        );
        let (bytes, host_at) = (host.len() as u64, host.device_pointer::<u8>());
        let (from, to) = match direction {
            Direction::ToDevice => (
                DevicePointer::new(host_at.address()),
                device_memory.pointer_mut(),
            ),
            Direction::ToHost => (device_memory.pointer(), host_at),
        };
        // Bulk copies need aligned ends.
        let is_aligned = (from.address() | to.address()).is_multiple_of(BULK_ALIGNMENT);
        let (entry, shape) = match engine {
            Engine::Bulk if is_aligned => ("copy_bulk", bulk_shape(bytes)),
            _ => ("copy_plain", plain_shape(cuda, bytes)),
        };
        let kernel = cuda.kernel(bytes_program(cuda), entry)?;
        let arguments = Copying {
            from,
            to,
            bytes,
            piece_bytes: BULK_PIECE_BYTES,
        };
        // SAFETY: both kernels take `Copying`, and copy `bytes` bytes between memories of this length. Both memories
        // are moved into the result, which gives them back only after the event; if there is no event, this function
        // waits for the stream. Bulk copies use the shared memory that their shape has.
        unsafe { cuda.launch(&kernel, &shape, &arguments, stream) }?;
        match cuda.mark(stream) {
            Ok(event) => Ok(KernelCopy {
                ends: Some((host, device_memory)),
                event,
            }),
            Err(fault) => {
                // The device is lost, whatever this call returns.
                let _ = cuda.synchronize(stream);
                Err(fault.into())
            }
        }
    }

    /// Returns the event that completes when the copy is done.
    pub(crate) fn event(&self) -> &Arc<Event> {
        &self.event
    }

    /// Returns the host memory, whose bytes must not be accessed yet.
    pub(crate) fn host(&self) -> &Part<M> {
        let ends = self.ends.as_ref();
        &ends.expect("a copy has both ends until it is finished").0
    }

    /// Blocks until the copy is done, and returns the host memory.
    pub(crate) fn finish(mut self) -> Result<Part<M>, DeviceFault> {
        self.event.wait()?;
        let ends = self.ends.take();
        Ok(ends.expect("a copy has both ends until it is finished").0)
    }
}

impl<M> Drop for KernelCopy<M> {
    fn drop(&mut self) {
        if self.ends.is_some() {
            // On a failed device no kernel runs, so the error is ignored.
            let _ = self.event.wait();
        }
    }
}

fn bytes_program(cuda: &Cuda) -> &'static forebay_device::cuda::Program {
    bytes(cuda.arch())
}

fn plain_shape(cuda: &Cuda, bytes: u64) -> LaunchShape {
    let wanted = bytes.div_ceil(BYTES_PER_THREAD * u64::from(THREADS));
    LaunchShape {
        blocks: wanted.min(u64::from(cuda.multiprocessors()) * BLOCKS),
        threads: THREADS,
        ..LaunchShape::default()
    }
}

fn bulk_shape(bytes: u64) -> LaunchShape {
    LaunchShape {
        blocks: bytes.div_ceil(BULK_PIECE_BYTES.into()).min(BULK_BLOCKS),
        threads: 32,
        shared_bytes: BULK_PIECE_BYTES * BULK_STAGES,
        ..LaunchShape::default()
    }
}

/// Returns the checksum of device memory that begins at a multiple of 8 bytes, after the earlier work of the stream.
/// Blocks until it is there.
pub(crate) fn checksum(
    cuda: &mut Cuda,
    from: &DeviceView<u8>,
    stream: &Stream,
) -> Result<u64, JobError> {
    let sum = Arc::new(Total::zero(cuda, stream)?);
    let _adding = PartSum::begin(cuda, (from.clone(), 0), &sum, stream)?;
    sum.read(cuda, stream)
}

/// A kernel in flight that adds the checksum of a part of a source to that of the source. It owns what the kernel uses;
/// dropping it waits for the kernel.
pub(crate) struct PartSum {
    _uses: (DeviceView<u8>, Arc<Total>),
    event: Arc<Event>,
}

impl PartSum {
    /// Queues the kernel. The part begins at this offset in the source, a multiple of 8 bytes, as is the address of its
    /// bytes.
    pub(crate) fn begin(
        cuda: &mut Cuda,
        (part, offset): (DeviceView<u8>, u64),
        sum: &Arc<Total>,
        stream: &Stream,
    ) -> Result<PartSum, JobError> {
        let kernel = cuda.kernel(bytes_program(cuda), "checksum")?;
        let shape = plain_shape(cuda, part.len() as u64);
        let arguments = Summing {
            from: part.pointer(),
            bytes: part.len() as u64,
            first: offset / size_of::<u64>() as u64,
            sum: sum.pointer_mut(),
        };
        // SAFETY: the kernel takes `Summing`, reads the bytes of the view and adds to one number. Both are moved into
        // the result, which drops them only after the event; if there is no event, this function waits for the stream.
        unsafe { cuda.launch(&kernel, &shape, &arguments, stream) }?;
        match cuda.mark(stream) {
            Ok(event) => Ok(PartSum {
                _uses: (part, Arc::clone(sum)),
                event,
            }),
            Err(fault) => {
                // The device is lost, whatever this call returns.
                let _ = cuda.synchronize(stream);
                Err(fault.into())
            }
        }
    }

    /// Returns whether the kernel is done.
    pub(crate) fn is_done(&self) -> Result<bool, DeviceFault> {
        self.event.is_done()
    }
}

impl Drop for PartSum {
    fn drop(&mut self) {
        // On a failed device no kernel runs, so the error is ignored.
        let _ = self.event.wait();
    }
}

/// Threads of a block that reads by the bulk copy engine.
const BULK_READ_THREADS: u32 = 512;

/// Bytes of a stage of a read of device memory by the bulk copy engine. The stages of a block take most of a
/// multiprocessor's shared memory, because device memory needs many bytes in flight.
const BULK_READ_PIECE_BYTES: u32 = 48 << 10;

/// Bytes of shared memory that a block keeps for its barriers.
const SHARED_BYTES_RESERVED: u32 = 1 << 10;

/// Maximum blocks per multiprocessor that read at random: as many as fit.
const RANDOM_BLOCKS: u64 = 8;

/// What a kernel does with memory.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Task {
    /// Writes what the pattern expects.
    Fill(Pattern),
    /// Reads.
    Read(Reads),
}

/// Runs a kernel over memory. Returns its time in milliseconds and the sum of what it read. Blocks until it is done.
///
/// # Panics
/// If the length of the memory is not a power of two of at least 128.
pub(crate) fn run(
    cuda: &mut Cuda,
    memory: &mut Memory,
    task: Task,
) -> Result<(f64, u64), JobError> {
    let bytes = memory.len() as u64;
    assert!(bytes.is_power_of_two() && bytes >= 128, "{bytes} bytes");
    let stream = cuda.downloads().clone();
    let sum = Total::zero(cuda, &stream)?;
    let (entry, shape) = entry_and_shape(cuda, memory, task);
    let kernel = cuda.kernel(reads(cuda.arch()), &entry)?;
    let (accesses, first_line) = match task {
        Task::Fill(_) => (0, 0),
        Task::Read(reads) => (reads.accesses, reads.first_line),
    };
    let arguments = Reading {
        words: memory.device_pointer(),
        bytes,
        accesses,
        first_line,
        sum: sum.pointer_mut(),
        piece_bytes: shape.shared_bytes / BULK_STAGES,
    };
    let (began, ended) = (cuda.event()?, cuda.event()?);
    cuda.record(&began, &stream)?;
    // SAFETY: the kernels take `Reading`, access `bytes` bytes of memory that the GPU can access, and add to one
    // number. The caller's borrow of the memory outlives the wait below; if that fails, the device is lost.
    let launched = unsafe { cuda.launch(&kernel, &shape, &arguments, &stream) };
    let recorded = launched.and_then(|()| Ok(cuda.record(&ended, &stream)?));
    cuda.synchronize(&stream)?;
    recorded?;
    Ok((ended.elapsed_ms(&began)?.into(), sum.read(cuda, &stream)?))
}

/// Returns the kernel of a task and its launch shape.
fn entry_and_shape(cuda: &Cuda, memory: &Memory, task: Task) -> (String, LaunchShape) {
    let bytes = memory.len() as u64;
    let plain = plain_shape(cuda, bytes);
    let with_blocks = |blocks| LaunchShape { blocks, ..plain };
    let reads = match task {
        Task::Fill(Pattern::Dependent) => return ("fill_cycle".to_owned(), plain),
        Task::Fill(_) => return ("fill_words".to_owned(), plain),
        Task::Read(reads) => reads,
    };
    match reads.pattern {
        Pattern::Sequential => ("read_plain".to_owned(), plain),
        Pattern::SequentialBulk => {
            let (blocks, piece_bytes) = match memory {
                Memory::Device(_) | Memory::Peer(_) => {
                    let most = cuda.shared_bytes_per_block_max() - SHARED_BYTES_RESERVED;
                    let piece_bytes = BULK_READ_PIECE_BYTES.min(most / BULK_STAGES / 128 * 128);
                    (cuda.multiprocessors().into(), piece_bytes)
                }
                Memory::Host(_) => (BULK_BLOCKS, BULK_PIECE_BYTES),
            };
            let shape = LaunchShape {
                blocks: bytes.div_ceil(piece_bytes.into()).min(blocks),
                threads: BULK_READ_THREADS,
                shared_bytes: piece_bytes * BULK_STAGES,
                ..LaunchShape::default()
            };
            ("read_bulk".to_owned(), shape)
        }
        Pattern::Random { bytes } => {
            let threads = reads.accesses.saturating_mul((bytes as u64).div_ceil(16));
            let most = u64::from(cuda.multiprocessors()) * RANDOM_BLOCKS;
            let blocks = threads.div_ceil(THREADS.into()).clamp(1, most);
            (format!("read_random<{bytes}>"), with_blocks(blocks))
        }
        Pattern::Dependent => {
            let shape = LaunchShape {
                blocks: 1,
                threads: 1,
                ..plain
            };
            ("read_dependent".to_owned(), shape)
        }
    }
}
