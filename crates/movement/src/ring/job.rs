//! The job of one chunk: on the device's thread, queues its copy and the consumer's work.

use std::sync::Arc;

use forebay_device::cuda::{Cuda, DeviceView, Event, PinnedPart, Transfer};
use forebay_device::{Class, DeviceContext, Job, JobError, JobFailure, Step};

use super::Chunk;
use super::feed::Feed;
use super::lease::{HostBytes, SlotMemory};
use super::slots::{Returned, Shared};
use super::time::Stage;
use crate::MoveError;

pub(super) struct ChunkJob {
    chunk: Chunk,
    /// The filled slot; `None` once its work is being queued.
    filled: Option<(SlotMemory, Feed)>,
    ticket: Ticket,
}

/// Counts the slot as lost when it is dropped, unless the slot was given back.
struct Ticket {
    shared: Arc<Shared>,
    is_back: bool,
}

impl Ticket {
    fn give_back(&mut self, slot: Returned) {
        self.is_back = true;
        self.shared.give_back(slot);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_back {
            if let Some(error) = MoveError::if_lost(&self.shared.device) {
                self.shared.fail(error);
            }
            self.shared.lose_slot();
        }
    }
}

impl ChunkJob {
    pub(super) fn new(
        shared: &Arc<Shared>,
        memory: SlotMemory,
        chunk: Chunk,
        feed: Feed,
    ) -> ChunkJob {
        ChunkJob {
            chunk,
            filled: Some((memory, feed)),
            ticket: Ticket {
                shared: Arc::clone(shared),
                is_back: false,
            },
        }
    }

    fn failed(&self, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> MoveError {
        MoveError::Chunk {
            device: self.ticket.shared.device.name().to_owned(),
            offset: self.chunk.offset,
            why: why.into(),
        }
    }

    /// Queues the copy on the ring's stream of copies and the consumer's work on the stream of kernels.
    fn queue(&mut self, cuda: &mut Cuda) -> Result<(), JobError> {
        let shared = Arc::clone(&self.ticket.shared);
        let (Some((memory, feed)), Some(streams)) = (self.filled.take(), &shared.streams) else {
            return Ok(());
        };
        if shared.has_failed() {
            self.ticket.give_back(Returned::Free(memory));
            return Ok(());
        }
        if let Some(consumed) = &memory.consumed {
            cuda.wait(&streams.copies, consumed)?;
        }
        let (Some(device), bytes) = (memory.device.clone(), self.chunk.bytes) else {
            return Ok(());
        };
        let view = device.view(0..bytes);
        let is_measured = shared.times.samples(self.chunk);
        let copying = shared.times.begin(cuda, &streams.copies, is_measured)?;
        let in_flight = match feed {
            Feed::Host(range) => match memory.host {
                HostBytes::Pinned(pinned) => {
                    let part = PinnedPart::new(pinned, range);
                    let transfer = Transfer::begin(cuda, part, view.clone(), &streams.copies)?;
                    cuda.wait(&streams.kernels, transfer.event())?;
                    InFlight::Staged(transfer)
                }
                HostBytes::Heap(_) => return Ok(()),
            },
            Feed::Device => InFlight::No(memory),
            Feed::Enqueue(enqueue) => {
                let kept = match enqueue(cuda, &streams.copies, &view) {
                    Ok(kept) => kept,
                    Err(error) => {
                        // Part of the work may be queued.
                        cuda.synchronize(&streams.copies)?;
                        self.ticket.give_back(Returned::Free(memory));
                        return Err(error);
                    }
                };
                let copied = cuda.mark(&streams.copies)?;
                cuda.wait(&streams.kernels, &copied)?;
                InFlight::Queued(memory, kept, copied)
            }
        };
        let times = &shared.times;
        times.end(Stage::Copy, cuda, &streams.copies, copying)?;
        let working = times.begin(cuda, &streams.kernels, is_measured)?;
        let queued = shared
            .consumer
            .enqueue(cuda, &streams.kernels, self.chunk, &view);
        times.end(Stage::Work, cuda, &streams.kernels, working)?;
        let consumed = cuda.mark(&streams.kernels)?;
        // Counted before the slot is back: the move may end with the last slot.
        if queued.is_ok() {
            shared.count_consumed();
        }
        self.ticket.give_back(in_flight.returned(device, consumed));
        queued
    }
}

/// The copy of a chunk, if there is one.
enum InFlight {
    No(SlotMemory),
    Staged(Transfer<PinnedPart, DeviceView<u8>>),
    Queued(SlotMemory, super::feed::Kept, Arc<Event>),
}

impl InFlight {
    /// Returns the slot, which is free again after the copy and the consumer's work.
    fn returned(self, device: DeviceView<u8>, consumed: Arc<Event>) -> Returned {
        let with_work = |memory: SlotMemory| SlotMemory {
            consumed: Some(Arc::clone(&consumed)),
            ..memory
        };
        match self {
            InFlight::No(memory) => Returned::Free(with_work(memory)),
            InFlight::Staged(transfer) => Returned::Staged {
                transfer,
                device,
                consumed,
            },
            InFlight::Queued(memory, kept, copied) => Returned::Queued {
                memory: with_work(memory),
                kept,
                copied,
            },
        }
    }
}

impl Job for ChunkJob {
    fn class(&self) -> Class {
        Class::Load
    }

    fn run(&mut self, context: &mut DeviceContext) -> Result<Step, JobError> {
        let Some(cuda) = context.parts().cuda else {
            return Ok(Step::Done);
        };
        match self.queue(cuda) {
            Ok(()) => Ok(Step::Done),
            Err(JobError::Failed(failure)) => {
                self.ticket.shared.fail(self.failed(failure));
                Ok(Step::Done)
            }
            Err(JobError::Fault(fault)) => {
                let shared = &self.ticket.shared;
                shared.fail(MoveError::lost(&shared.device, &fault));
                Err(fault.into())
            }
        }
    }

    fn fail(&mut self, failure: &JobFailure) {
        self.ticket.shared.fail(self.failed(failure.clone()));
    }
}
