//! Staged copy: threads copy between pageable memory and small pinned buffers, which the copy engine moves.
//!
//! Each thread owns a few buffers. To the device, it fills one while the others are copied; from the device, it empties
//! one. The device's thread only queues copies, so it is never the limit.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use forebay_device::Device;
use forebay_device::cuda::{DeviceView, Part, Pinned, PinnedPart, Transfer};
use parking_lot::Mutex;

use super::Direction;
use super::chunks::with_view;
use super::job::{answer, post};
use crate::MoveError;

type Bytes = Box<[u8]>;

/// Shape of a staged copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagedOptions {
    /// Number of threads that copy.
    pub threads: usize,
    /// Pinned buffers of each thread, at least 1.
    pub buffers: usize,
    /// Bytes of a buffer.
    pub buffer_bytes: usize,
}

impl Default for StagedOptions {
    /// Returns three quarters of the cores, at most 12, with three buffers of 1 MiB each, which stay in the processor's
    /// cache.
    fn default() -> StagedOptions {
        StagedOptions {
            threads: (forebay_device::cores() * 3 / 4).clamp(1, 12),
            buffers: 3,
            buffer_bytes: 1 << 20,
        }
    }
}

impl StagedOptions {
    /// Takes all buffers from the device's pinned pool at once.
    fn take(&self, device: &Device) -> Result<Vec<Pinned>, MoveError> {
        let count = self.threads.max(1) * self.buffers.max(1);
        let buffers = device.stage_ring(count, self.buffer_bytes);
        buffers.ok_or_else(|| MoveError::PinnedMemory {
            device: device.name().to_owned(),
            bytes: count * self.buffer_bytes,
        })
    }
}

/// The parts that no thread has taken yet, and what the threads share.
struct Work<'a> {
    device: &'a Device,
    device_memory: &'a DeviceView<u8>,
    waiting: Mutex<VecDeque<Part<Bytes>>>,
    has_failed: AtomicBool,
}

impl Work<'_> {
    /// Returns the next part; `None` if there is none or a thread has failed.
    fn next(&self) -> Option<Part<Bytes>> {
        let mut waiting = self.waiting.lock();
        let may_continue = !self.has_failed.load(Ordering::Relaxed);
        may_continue.then(|| waiting.pop_front()).flatten()
    }
}

/// Moves all parts, each of which is at most as large as a buffer, and returns them. Blocks the calling thread.
pub(super) fn run(
    device: &Arc<Device>,
    parts: Vec<Part<Bytes>>,
    device_memory: &DeviceView<u8>,
    direction: Direction,
    options: &StagedOptions,
) -> Result<Vec<Part<Bytes>>, MoveError> {
    let mut buffers = options.take(device)?;
    let work = Work {
        device,
        device_memory,
        waiting: Mutex::new(parts.into()),
        has_failed: AtomicBool::new(false),
    };
    let per_thread = options.buffers.max(1);
    thread::scope(|scope| {
        let mut threads = Vec::new();
        while !buffers.is_empty() {
            let own = buffers.split_off(buffers.len().saturating_sub(per_thread));
            let work = &work;
            let copy = move || {
                let moved = copy_parts(work, own, direction);
                work.has_failed.fetch_or(moved.is_err(), Ordering::Relaxed);
                moved
            };
            let started = thread::Builder::new()
                .name("staged copy".to_owned())
                .spawn_scoped(scope, copy);
            threads.push(started.map_err(MoveError::Thread)?);
        }
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().expect("a staged copy does not panic")?);
        }
        Ok(all)
    })
}

fn copy_parts(
    work: &Work<'_>,
    buffers: Vec<Pinned>,
    direction: Direction,
) -> Result<Vec<Part<Bytes>>, MoveError> {
    match direction {
        Direction::ToDevice => to_device(work, buffers),
        Direction::ToHost => to_host(work, buffers),
    }
}

type Upload = Transfer<PinnedPart, DeviceView<u8>>;
/// A download, and where its bytes go from the pinned buffer.
type Download = (Transfer<DeviceView<u8>, PinnedPart>, Part<Bytes>);

/// The answers to a thread's jobs, in the order in which the jobs ran.
struct Queue<T> {
    sender: Sender<Result<T, MoveError>>,
    receiver: Receiver<Result<T, MoveError>>,
}

impl<T> Queue<T> {
    fn new() -> Queue<T> {
        let (sender, receiver) = channel();
        Queue { sender, receiver }
    }
}

fn to_device(work: &Work<'_>, mut free: Vec<Pinned>) -> Result<Vec<Part<Bytes>>, MoveError> {
    let queue: Queue<Upload> = Queue::new();
    let (mut in_flight, mut moved) = (0, Vec::new());
    while let Some(part) = work.next() {
        let mut buffer = match free.pop() {
            Some(buffer) => buffer,
            None => {
                in_flight -= 1;
                uploaded(work, &queue)?
            }
        };
        let (part, view) = with_view(part, work.device_memory);
        let bytes = part.len();
        buffer[..bytes].copy_from_slice(&part);
        moved.push(part);
        let filled = PinnedPart::new(buffer, 0..bytes);
        post(work.device, queue.sender.clone(), move |cuda| {
            let stream = cuda.uploads();
            Ok(Transfer::begin(cuda, filled, view, stream)?)
        })?;
        in_flight += 1;
    }
    for _ in 0..in_flight {
        uploaded(work, &queue)?;
    }
    Ok(moved)
}

/// Waits for the next upload of this thread, and returns its buffer.
fn uploaded(work: &Work<'_>, queue: &Queue<Upload>) -> Result<Pinned, MoveError> {
    let upload = answer(work.device, &queue.receiver)?;
    let (filled, _) = upload
        .finish()
        .map_err(|fault| MoveError::lost(work.device, fault))?;
    Ok(filled.into_buffer())
}

fn to_host(work: &Work<'_>, mut free: Vec<Pinned>) -> Result<Vec<Part<Bytes>>, MoveError> {
    let queue: Queue<Download> = Queue::new();
    let (mut in_flight, mut moved) = (0, Vec::new());
    loop {
        while let Some(buffer) = free.pop() {
            let Some(part) = work.next() else {
                break;
            };
            let (part, view) = with_view(part, work.device_memory);
            let empty = PinnedPart::new(buffer, 0..part.len());
            post(work.device, queue.sender.clone(), move |cuda| {
                let stream = cuda.downloads();
                Ok((Transfer::begin(cuda, view, empty, stream)?, part))
            })?;
            in_flight += 1;
        }
        if in_flight == 0 {
            return Ok(moved);
        }
        let (download, mut part) = answer(work.device, &queue.receiver)?;
        in_flight -= 1;
        let finished = download.finish();
        let (_, filled) = finished.map_err(|fault| MoveError::lost(work.device, fault))?;
        let buffer = filled.into_buffer();
        let bytes = part.len();
        part.copy_from_slice(&buffer[..bytes]);
        moved.push(part);
        free.push(buffer);
    }
}
