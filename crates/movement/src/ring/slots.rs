//! The slots of a running move, as its readers see them, and the state that all stages share.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_cancel::Stop;
use forebay_device::cuda::{DeviceView, Event, PinnedPart, Transfer};
use forebay_device::{Device, DeviceFault};
use parking_lot::{Condvar, Mutex};

use super::chunk::Split;
use super::feed::{Feed, Kept};
use super::job::ChunkJob;
use super::lease::{HostBytes, SlotMemory, Streams};
use super::time::Times;
use super::{Chunk, Consumer};
use crate::MoveError;

/// How often a thread that waits checks the cancellation token.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// State that the readers, the device's jobs and the CPU workers of a move share.
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    pub(super) times: Times,
    pub(super) consumer: Arc<dyn Consumer>,
    pub(super) device: Arc<Device>,
    pub(super) streams: Option<Streams>,
    stop: Stop,
}

struct State {
    /// Slots to fill, oldest first.
    free: VecDeque<Returned>,
    /// Filled slots of a host device.
    filled: VecDeque<HostChunk>,
    split: Split,
    /// Index of the next chunk to read.
    next: u64,
    /// Chunks that the consumer has taken.
    consumed: u64,
    /// Readers that still run.
    readers: usize,
    /// Slots that were lost with a failed job.
    lost: usize,
    error: Option<MoveError>,
}

/// A chunk in host memory, to be processed by the CPU.
pub(super) struct HostChunk {
    pub(super) memory: SlotMemory,
    pub(super) range: Range<usize>,
    pub(super) chunk: Chunk,
}

/// A slot that a reader may fill once its last copy is done.
pub(super) enum Returned {
    Free(SlotMemory),
    /// The copy from the slot's pinned memory is in flight.
    Staged {
        transfer: Transfer<PinnedPart, DeviceView<u8>>,
        device: DeviceView<u8>,
        consumed: Arc<Event>,
    },
    /// A copy that the source queued is in flight.
    Queued {
        memory: SlotMemory,
        kept: Kept,
        copied: Arc<Event>,
    },
}

impl Returned {
    fn is_ready(&self) -> Result<bool, DeviceFault> {
        match self {
            Returned::Free(_) => Ok(true),
            Returned::Staged { transfer, .. } => transfer.event().is_done(),
            Returned::Queued { copied, .. } => copied.is_done(),
        }
    }

    /// Waits for the copy.
    fn finish(self) -> Result<SlotMemory, DeviceFault> {
        match self {
            Returned::Free(memory) => Ok(memory),
            Returned::Staged {
                transfer,
                device,
                consumed,
            } => {
                let (part, _) = transfer.finish()?;
                Ok(SlotMemory {
                    host: HostBytes::Pinned(part.into_buffer()),
                    device: Some(device),
                    consumed: Some(consumed),
                })
            }
            Returned::Queued {
                memory,
                kept,
                copied,
            } => {
                copied.wait()?;
                drop(kept);
                Ok(memory)
            }
        }
    }
}

impl Shared {
    pub(super) fn new(
        device: &Arc<Device>,
        slots: Vec<SlotMemory>,
        streams: Option<Streams>,
        split: Split,
        (consumer, stop): (Arc<dyn Consumer>, &Stop),
    ) -> Arc<Shared> {
        let state = State {
            free: slots.into_iter().map(Returned::Free).collect(),
            filled: VecDeque::new(),
            split,
            next: 0,
            consumed: 0,
            readers: 0,
            lost: 0,
            error: None,
        };
        Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            times: Times::default(),
            consumer,
            device: Arc::clone(device),
            streams,
            stop: stop.clone(),
        })
    }

    /// Ends the move with this error, unless it has ended with another one.
    pub(super) fn fail(&self, error: MoveError) {
        self.state.lock().error.get_or_insert(error);
        self.changed.notify_all();
    }

    pub(super) fn has_failed(&self) -> bool {
        self.state.lock().error.is_some()
    }

    pub(super) fn take_error(&self) -> Option<MoveError> {
        self.state.lock().error.take()
    }

    pub(super) fn give_back(&self, slot: Returned) {
        self.state.lock().free.push_back(slot);
        self.changed.notify_all();
    }

    /// Counts a slot that will not come back.
    pub(super) fn lose_slot(&self) {
        self.state.lock().lost += 1;
        self.changed.notify_all();
    }

    /// Registers a reader, until the result is dropped. CPU workers run as long as there are readers.
    pub(super) fn reader(self: &Arc<Self>) -> Reader {
        self.state.lock().readers += 1;
        Reader {
            shared: Arc::clone(self),
        }
    }

    /// Counts a chunk that the consumer has taken.
    pub(super) fn count_consumed(&self) {
        self.state.lock().consumed += 1;
    }

    /// Returns the number of chunks; `None` if the consumer has not taken all of them.
    pub(super) fn all_consumed(&self) -> Option<u64> {
        let state = self.state.lock();
        (state.consumed == state.split.count()).then_some(state.consumed)
    }

    /// Records a fault of the device and a lost slot.
    fn lose(&self, fault: &DeviceFault) {
        self.lose_slot();
        self.fail(MoveError::lost(&self.device, fault));
    }

    /// Waits until all `count` slots are back or lost, and returns those that are back.
    pub(super) fn collect(&self, count: usize) -> Vec<SlotMemory> {
        let mut state = self.state.lock();
        // Without CPU workers, filled slots are left.
        let left: Vec<HostChunk> = state.filled.drain(..).collect();
        let left = left.into_iter().map(|filled| Returned::Free(filled.memory));
        state.free.extend(left);
        while state.free.len() + state.lost < count {
            self.changed.wait(&mut state);
        }
        let back = std::mem::take(&mut state.free);
        drop(state);
        let finished = back.into_iter().map(Returned::finish);
        let slots = finished.filter_map(|memory| {
            let memory = memory.and_then(|memory| {
                memory
                    .consumed
                    .as_ref()
                    .map_or(Ok(()), |event| event.wait())?;
                Ok(memory)
            });
            memory.map_err(|fault| self.lose(&fault)).ok()
        });
        slots.collect()
    }

    /// Returns the next chunk for a CPU worker; `None` when all chunks are processed.
    pub(super) fn next_filled(&self) -> Option<HostChunk> {
        let mut state = self.state.lock();
        loop {
            if let Some(filled) = state.filled.pop_front() {
                return Some(filled);
            }
            if state.readers == 0 {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }
}

/// A registered reader.
pub(super) struct Reader {
    pub(super) shared: Arc<Shared>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.state.lock().readers -= 1;
        self.shared.changed.notify_all();
    }
}

/// The free slots of a running move; see [`Source::fill`](super::Source::fill).
pub struct Slots<'a> {
    pub(super) shared: &'a Arc<Shared>,
}

impl fmt::Debug for Slots<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").finish_non_exhaustive()
    }
}

/// What [`Slots::try_next`] found.
#[derive(Debug)]
pub enum Next<'a> {
    /// A slot to fill.
    Slot(Slot<'a>),
    /// All slots are in use now.
    Busy,
    /// There are no more chunks, or the move has ended.
    End,
}

impl<'a> Slots<'a> {
    /// Returns a slot to fill, with the chunk that it must hold. Blocks until a slot is free. Returns `None` when there
    /// are no more chunks, and when the move has ended by an error.
    pub fn next(&self) -> Option<Slot<'a>> {
        let began = Instant::now();
        loop {
            match self.take(|_| Ok(true)) {
                Next::Slot(slot) => {
                    self.shared.times.waited(began.elapsed());
                    return Some(slot);
                }
                Next::End => return None,
                Next::Busy => {
                    let mut state = self.shared.state.lock();
                    if state.free.is_empty() && state.error.is_none() {
                        self.shared.changed.wait_for(&mut state, CHECK_INTERVAL);
                    }
                }
            }
        }
    }

    /// Returns a slot to fill if one is free now.
    pub fn try_next(&self) -> Next<'a> {
        self.take(Returned::is_ready)
    }

    fn take(&self, is_ready: impl Fn(&Returned) -> Result<bool, DeviceFault>) -> Next<'a> {
        if let Err(stopped) = self.shared.stop.check() {
            self.shared.fail(stopped.into());
        }
        let mut state = self.shared.state.lock();
        let Some(chunk) = state.split.chunk(state.next) else {
            return Next::End;
        };
        if state.error.is_some() {
            return Next::End;
        }
        let ready = match state.free.front().map(is_ready) {
            None | Some(Ok(false)) => return Next::Busy,
            Some(Ok(true)) => state.free.pop_front(),
            Some(Err(fault)) => {
                drop(state);
                let error = MoveError::lost(&self.shared.device, fault);
                self.shared.fail(error);
                return Next::End;
            }
        };
        state.next += 1;
        drop(state);
        match ready.map(Returned::finish) {
            Some(Ok(memory)) => Next::Slot(Slot {
                memory: Some(memory),
                chunk,
                shared: self.shared,
                taken: Instant::now(),
            }),
            Some(Err(fault)) => {
                self.shared.lose(&fault);
                Next::End
            }
            None => Next::Busy,
        }
    }

    /// Passes a filled slot on: to the device's queue, or to the CPU workers of a host device.
    ///
    /// # Panics
    /// If the feed's range is not as long as the slot's chunk, or exceeds the slot.
    pub fn filled(&self, mut slot: Slot<'a>, feed: Feed) {
        if let Feed::Host(range) = &feed {
            let (chunk, slot_bytes) = (slot.chunk, slot.host().len());
            let fits = range.len() == chunk.bytes && range.end <= slot_bytes;
            assert!(fits, "{range:?} of {slot_bytes} bytes for {chunk:?}");
        }
        self.shared.times.filled(slot.taken.elapsed());
        let Some(memory) = slot.memory.take() else {
            return;
        };
        match (&self.shared.streams, feed) {
            (Some(_), feed) => self.submit(memory, slot.chunk, feed),
            (None, Feed::Host(range)) => {
                let chunk = slot.chunk;
                let filled = HostChunk {
                    memory,
                    range,
                    chunk,
                };
                self.shared.state.lock().filled.push_back(filled);
                self.shared.changed.notify_all();
            }
            (None, Feed::Device | Feed::Enqueue(_)) => {
                self.shared.give_back(Returned::Free(memory));
                self.shared.fail(MoveError::Chunk {
                    device: self.shared.device.name().to_owned(),
                    offset: slot.chunk.offset,
                    why: "this source needs a GPU; use a source that fills host memory".into(),
                });
            }
        }
    }

    fn submit(&self, memory: SlotMemory, chunk: Chunk, feed: Feed) {
        let job = ChunkJob::new(self.shared, memory, chunk, feed);
        // A job that is not queued counts its slot as lost when it is dropped.
        if let Err(error) = self.shared.device.submit_when_free(Box::new(job)) {
            self.shared
                .fail(MoveError::lost(&self.shared.device, error));
        }
    }
}

/// A slot that a reader fills. Dropped without [`Slots::filled`], it becomes free again, and its chunk is not moved.
pub struct Slot<'a> {
    memory: Option<SlotMemory>,
    chunk: Chunk,
    shared: &'a Arc<Shared>,
    taken: Instant,
}

impl Slot<'_> {
    /// Returns the chunk that the slot must hold.
    pub fn chunk(&self) -> Chunk {
        self.chunk
    }

    /// Returns the slot's host memory: whole pages, pinned if the device is a GPU.
    pub fn host(&mut self) -> &mut [u8] {
        self.memory
            .as_mut()
            .map_or(&mut [], |memory| &mut memory.host)
    }

    /// Waits until the consumer no longer uses the slot's device memory, and returns the memory; `None` on a host
    /// device.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn device(&self) -> Result<Option<DeviceView<u8>>, DeviceFault> {
        let Some(memory) = &self.memory else {
            return Ok(None);
        };
        if let Some(consumed) = &memory.consumed {
            consumed.wait()?;
        }
        Ok(memory.device.clone())
    }

    /// Loses the slot: its memory is never used again or freed, because the kernel or a library may still write it.
    pub(crate) fn abandon(mut self) {
        if let Some(memory) = self.memory.take() {
            std::mem::forget(memory);
            self.shared.lose_slot();
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.shared.give_back(Returned::Free(memory));
        }
    }
}

impl fmt::Debug for Slot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("chunk", &self.chunk)
            .finish_non_exhaustive()
    }
}
