//! Moves bytes by a method.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_device::Device;
use forebay_device::cuda::{DeviceView, Divisible, Managed, Part, Pinned, Place, Priority, Stream};

use super::available::lacks;
use super::chunks::{self, by_copies, by_kernels, by_prefetch};
use super::job::run_on_device;
use super::staged::StagedOptions;
use super::{Direction, HostBuffer, TransferMethod, pinning, staged};
use crate::MoveError;
use crate::kernels::launch::Engine;
use crate::ring::PAGE_BYTES;

/// A move: all bytes of host memory to or from as much device memory.
#[derive(Debug)]
pub struct MoveRequest {
    /// How the bytes are moved.
    pub method: TransferMethod,
    /// Where they go.
    pub direction: Direction,
    /// The host memory, of the method's [tier](TransferMethod::tier).
    pub host: HostBuffer,
    /// The device memory.
    pub device_memory: DeviceView<u8>,
    /// Bytes that one copy, prefetch or kernel moves; rounded up to whole pages.
    pub chunk_bytes: usize,
    /// Shape of a staged copy.
    pub staged: StagedOptions,
}

/// A move that is done.
#[derive(Debug)]
pub struct Moved {
    /// The host memory of the request.
    pub host: HostBuffer,
    /// Time from the first to the last byte. A migration to the host ends when the CPU has touched all pages.
    pub took: Duration,
    /// Time within `took` in which memory was pinned or unpinned.
    pub pinning: Duration,
}

/// Moves bytes, and returns when all have arrived. Blocks the calling thread, which must not be an async worker or the
/// device's own.
///
/// # Errors
/// [`MoveError`]; the host memory is then dropped.
///
/// # Panics
/// If the host memory is of another tier than the method's, or differs in length from the device memory.
pub fn move_bytes(device: &Arc<Device>, request: MoveRequest) -> Result<Moved, MoveError> {
    check(device, &request)?;
    let MoveRequest {
        method,
        direction,
        host,
        device_memory,
        chunk_bytes,
        staged,
    } = request;
    assert_eq!(
        host.len(),
        device_memory.len(),
        "both ends of a move have one length"
    );
    // A chunk is no larger than the memory, so rounding it up does not overflow.
    let chunk_bytes = whole_pages(chunk_bytes.min(host.len()));
    let to = Target {
        device,
        device_memory,
        direction,
        chunk_bytes,
    };
    match host {
        HostBuffer::Pageable(bytes) => to.pageable(method, bytes, &staged),
        HostBuffer::Pinned(pinned) => to.pinned(method, pinned),
        HostBuffer::Managed(managed) => to.managed(method, managed),
    }
}

/// Returns an error if the device lacks the method.
fn check(device: &Device, request: &MoveRequest) -> Result<(), MoveError> {
    let method = request.method;
    let tier = method.tier();
    assert_eq!(request.host.tier(), tier, "{method} works on {tier}");
    match lacks(device, method) {
        None => Ok(()),
        Some(why) => Err(MoveError::Method {
            device: device.name().to_owned(),
            method,
            why,
        }),
    }
}

/// The device's end of a move.
struct Target<'a> {
    device: &'a Arc<Device>,
    device_memory: DeviceView<u8>,
    direction: Direction,
    chunk_bytes: usize,
}

impl Target<'_> {
    fn pageable(
        &self,
        method: TransferMethod,
        bytes: Box<[u8]>,
        options: &StagedOptions,
    ) -> Result<Moved, MoveError> {
        let (device, device_memory, direction) = (self.device, &self.device_memory, self.direction);
        let (chunk_bytes, options) = match method {
            TransferMethod::StagedCopy => staged_shape(self.chunk_bytes, options),
            _ => (self.chunk_bytes, *options),
        };
        let parts = match method {
            TransferMethod::DynamicPinning => whole_pages_of(bytes, chunk_bytes),
            _ => parts_of(bytes, chunk_bytes),
        };
        let start = Instant::now();
        let mut pinning = Duration::ZERO;
        let (parts, took) = match method {
            TransferMethod::StagedCopy => {
                let parts = staged::run(device, parts, device_memory, direction, &options)?;
                (parts, start.elapsed())
            }
            TransferMethod::DynamicPinning => {
                let (parts, pinned) = pinning::run(device, parts, device_memory, direction)?;
                pinning = pinned;
                (parts, start.elapsed())
            }
            TransferMethod::Coherence => chunks::run(
                device,
                parts,
                device_memory,
                by_kernels(direction, Engine::Plain),
            )?,
            _ => chunks::run(device, parts, device_memory, by_copies(direction))?,
        };
        Ok(Moved {
            took,
            pinning,
            host: HostBuffer::Pageable(Part::join(parts)),
        })
    }

    fn pinned(&self, method: TransferMethod, pinned: Pinned) -> Result<Moved, MoveError> {
        let begin = match method {
            TransferMethod::ZeroCopy => by_kernels(self.direction, Engine::Plain),
            TransferMethod::ZeroCopyBulk => by_kernels(self.direction, Engine::Bulk),
            _ => by_copies(self.direction),
        };
        let parts = parts_of(pinned, self.chunk_bytes);
        let (parts, took) = chunks::run(self.device, parts, &self.device_memory, begin)?;
        Ok(Moved {
            took,
            pinning: Duration::ZERO,
            host: HostBuffer::Pinned(Part::join(parts)),
        })
    }

    fn managed(&self, method: TransferMethod, managed: Managed) -> Result<Moved, MoveError> {
        let (managed, kernels) = self.place(managed)?;
        let begin = match method {
            TransferMethod::UnifiedPrefetch => by_prefetch(self.direction, kernels),
            _ => by_kernels(self.direction, Engine::Plain),
        };
        let parts = parts_of(managed, self.chunk_bytes);
        let (parts, mut took) = chunks::run(self.device, parts, &self.device_memory, begin)?;
        let managed = Part::join(parts);
        if (method, self.direction) == (TransferMethod::UnifiedMigration, Direction::ToHost) {
            let start = Instant::now();
            touch(&managed);
            took += start.elapsed();
        }
        Ok(Moved {
            took,
            pinning: Duration::ZERO,
            host: HostBuffer::Managed(managed),
        })
    }

    /// Moves the pages to the side where the move begins; returns them, and a stream for kernels.
    fn place(&self, managed: Managed) -> Result<(Managed, Stream), MoveError> {
        let place = match self.direction {
            Direction::ToDevice => Place::Host,
            Direction::ToHost => Place::Device,
        };
        run_on_device(self.device, move |cuda| {
            let stream = cuda.stream(Priority::Normal)?;
            managed.prefetch(cuda, 0..managed.len(), place, &stream)?;
            cuda.synchronize(&stream)?;
            Ok((managed, stream))
        })
    }
}

/// Reads a byte of each page, so that the page moves to the host.
fn touch(bytes: &[u8]) {
    let sum: u64 = bytes
        .iter()
        .step_by(PAGE_BYTES)
        .map(|byte| u64::from(*byte))
        .sum();
    std::hint::black_box(sum);
}

/// Returns a number of bytes rounded up to whole pages, at least one.
fn whole_pages(bytes: usize) -> usize {
    bytes.max(1).next_multiple_of(PAGE_BYTES)
}

/// Returns the chunk size of a staged copy and its shape: buffers of whole pages that are no larger than a chunk, as
/// each chunk passes through one buffer.
fn staged_shape(chunk_bytes: usize, options: &StagedOptions) -> (usize, StagedOptions) {
    let buffer_bytes = whole_pages(options.buffer_bytes.min(chunk_bytes));
    let options = StagedOptions {
        buffer_bytes,
        ..*options
    };
    (buffer_bytes, options)
}

/// Divides memory into chunks.
fn parts_of<M: Divisible + Deref<Target = [u8]>>(memory: M, chunk_bytes: usize) -> Vec<Part<M>> {
    let cuts = cuts(
        memory.as_ptr().align_offset(PAGE_BYTES),
        memory.len(),
        chunk_bytes,
    );
    Part::divide(memory, &cuts)
}

/// Divides memory into chunks of whole pages, and parts of the first and the last page, which other memory may share.
fn whole_pages_of(memory: Box<[u8]>, chunk_bytes: usize) -> Vec<Part<Box<[u8]>>> {
    let first = memory.as_ptr().align_offset(PAGE_BYTES).min(memory.len());
    let last = memory.len() - (memory.len() - first) % PAGE_BYTES;
    let mut cuts: Vec<usize> = (first..last).step_by(chunk_bytes).collect();
    cuts.push(last);
    Part::divide(memory, &cuts)
}

/// Returns whether memory consists of whole pages.
pub(super) fn is_whole_pages(memory: &[u8]) -> bool {
    memory.as_ptr().addr().is_multiple_of(PAGE_BYTES) && memory.len().is_multiple_of(PAGE_BYTES)
}

/// Returns the offsets at which chunks begin, except the first, in memory whose first page begins at offset
/// `page_start`. Each chunk begins at a page, because pages are pinned whole.
fn cuts(page_start: usize, len: usize, chunk_bytes: usize) -> Vec<usize> {
    let first = match page_start {
        0 => chunk_bytes,
        _ => page_start + chunk_bytes - PAGE_BYTES,
    };
    (first..len).step_by(chunk_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_begin_at_pages_and_are_no_larger_than_asked() {
        assert_eq!(cuts(0, 20_000, 8192), [8192, 16_384]);
        assert_eq!(cuts(4080, 20_000, 8192), [8176, 16_368]);
        assert_eq!(cuts(4080, 10_000, 4096), [4080, 8176]);
        assert_eq!(cuts(0, 8192, 8192), [0_usize; 0]);
        assert_eq!(cuts(16, 16, 4096), [0_usize; 0]);
    }

    #[test]
    fn chunks_and_buffers_of_any_size_are_whole_pages() {
        assert_eq!(
            [0, 1, 4096, 4097].map(whole_pages),
            [4096, 4096, 4096, 8192]
        );
        let shape = |chunk_bytes, buffer_bytes| {
            let options = StagedOptions {
                buffer_bytes,
                ..StagedOptions::default()
            };
            let (chunk_bytes, options) = staged_shape(chunk_bytes, &options);
            assert_eq!(chunk_bytes, options.buffer_bytes, "a chunk fits a buffer");
            chunk_bytes
        };
        for buffer_bytes in [0, 10, 4095] {
            let chunk_bytes = shape(1 << 20, buffer_bytes);
            assert_eq!(chunk_bytes, 4096);
            assert_eq!(cuts(4080, 9000, chunk_bytes), [4080, 8176]);
        }
        assert_eq!(shape(8192, usize::MAX), 8192);
        assert_eq!(shape(1 << 20, 5000), 8192);
    }

    #[test]
    fn only_the_ends_are_not_whole_pages() {
        for len in [1, 100, 4096, 8192, 100_000] {
            let parts = whole_pages_of(vec![1_u8; len].into_boxed_slice(), 8192);
            let [first, middle @ .., last] = &parts[..] else {
                panic!("{len} bytes: too few parts");
            };
            assert!(
                first.len() < PAGE_BYTES && last.len() < PAGE_BYTES,
                "{len} bytes"
            );
            assert!(
                middle
                    .iter()
                    .all(|part| is_whole_pages(part) && part.len() <= 8192)
            );
            assert_eq!(Part::join(parts).len(), len);
        }
    }

    #[test]
    fn a_buffer_is_divided_and_joined() {
        let memory = vec![1_u8; 100_000].into_boxed_slice();
        let parts = parts_of(memory, 8192);
        assert!(parts.iter().all(|part| part.len() <= 8192));
        assert!(
            parts[1..]
                .iter()
                .all(|part| part.as_ptr().addr().is_multiple_of(PAGE_BYTES))
        );
        assert_eq!(Part::join(parts).len(), 100_000);
    }
}
