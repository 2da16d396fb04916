//! A job that moves chunk after chunk, with several in flight.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use forebay_device::cuda::{
    Cuda, DeviceView, Divisible, Event, Managed, Part, Place, Stream, Transfer,
};
use forebay_device::{Class, Device, DeviceContext, DeviceFault, Job, JobError, JobFailure, Step};

use super::Direction;
use super::job::{Reply, answer, submit};
use crate::MoveError;
use crate::kernels;
use crate::kernels::launch::{Engine, KernelCopy};

/// Maximum chunks in flight.
const IN_FLIGHT_MAX: usize = 256;

/// Time after which a step that begins chunks lets other jobs run.
const STEP_TIME: Duration = Duration::from_millis(1);

/// A chunk in flight.
pub(super) struct ChunkInFlight<M> {
    event: Arc<Event>,
    end: Box<dyn FnOnce() -> Result<Part<M>, DeviceFault> + Send>,
}

/// Begins to move a chunk: a part of host memory and as much device memory.
type Begin<M> =
    Box<dyn FnMut(&mut Cuda, Part<M>, DeviceView<u8>) -> Result<ChunkInFlight<M>, JobError> + Send>;

/// All parts, and the time from the first to the last.
type Chunked<M> = (Vec<Part<M>>, Duration);

/// The job.
struct Chunks<M> {
    waiting: VecDeque<(Part<M>, DeviceView<u8>)>,
    in_flight: VecDeque<ChunkInFlight<M>>,
    moved: Vec<Part<M>>,
    begin: Begin<M>,
    /// When the first chunk was begun.
    began: Option<Instant>,
    reply: Reply<Chunked<M>>,
}

impl<M: Divisible> Chunks<M> {
    /// Begins chunks until enough are in flight or the step has taken long enough.
    fn begin_some(&mut self, cuda: &mut Cuda) -> Result<(), JobError> {
        let start = Instant::now();
        self.began.get_or_insert(start);
        while self.in_flight.len() < IN_FLIGHT_MAX && start.elapsed() < STEP_TIME {
            let Some((part, view)) = self.waiting.pop_front() else {
                break;
            };
            self.in_flight.push_back((self.begin)(cuda, part, view)?);
        }
        Ok(())
    }

    /// Ends the chunks that have arrived; they arrive in order.
    fn end_some(&mut self) -> Result<(), JobError> {
        while let Some(first) = self.in_flight.front() {
            if !first.event.is_done()? {
                break;
            }
            if let Some(arrived) = self.in_flight.pop_front() {
                self.moved.push((arrived.end)()?);
            }
        }
        Ok(())
    }
}

impl<M: Divisible> Job for Chunks<M> {
    fn class(&self) -> Class {
        Class::Load
    }

    fn run(&mut self, context: &mut DeviceContext) -> Result<Step, JobError> {
        let Some(cuda) = context.parts().cuda else {
            return Ok(Step::Done);
        };
        if let Some(compiled) = cuda.load(kernels::bytes(cuda.arch()))? {
            return Ok(Step::wait_for(compiled));
        }
        self.end_some()?;
        self.begin_some(cuda)?;
        // The job continues when half of the chunks are done; the other half keeps the device busy.
        let middle = if self.waiting.is_empty() {
            self.in_flight.back()
        } else if self.in_flight.len() < IN_FLIGHT_MAX {
            return Ok(Step::Again);
        } else {
            self.in_flight.get(IN_FLIGHT_MAX / 2)
        };
        if let Some(chunk) = middle {
            return Ok(Step::wait_for(Arc::clone(&chunk.event)));
        }
        let took = self.began.map_or(Duration::ZERO, |began| began.elapsed());
        self.reply.send(Ok((std::mem::take(&mut self.moved), took)));
        Ok(Step::Done)
    }

    fn fail(&mut self, failure: &JobFailure) {
        self.reply.fail(failure);
    }
}

/// Moves all parts; returns them, and the time. Blocks the calling thread.
pub(super) fn run<M: Divisible>(
    device: &Device,
    parts: Vec<Part<M>>,
    device_memory: &DeviceView<u8>,
    begin: Begin<M>,
) -> Result<Chunked<M>, MoveError> {
    let (sender, receiver) = channel();
    let job = Chunks {
        waiting: parts
            .into_iter()
            .map(|part| with_view(part, device_memory))
            .collect(),
        in_flight: VecDeque::new(),
        moved: Vec::new(),
        begin,
        began: None,
        reply: Reply::new(device, sender),
    };
    submit(device, Box::new(job))?;
    answer(device, &receiver)
}

/// Returns a part with the device memory at the same offset.
pub(super) fn with_view<M: Divisible>(
    part: Part<M>,
    device_memory: &DeviceView<u8>,
) -> (Part<M>, DeviceView<u8>) {
    let view = device_memory.view(part.offset()..part.offset() + part.len());
    (part, view)
}

/// Returns the stream of the copies in a direction.
pub(super) fn stream_of(cuda: &Cuda, direction: Direction) -> Stream {
    match direction {
        Direction::ToDevice => cuda.uploads().clone(),
        Direction::ToHost => cuda.downloads().clone(),
    }
}

/// Moves chunks by the copy engine. From and to pageable memory, the driver's thread copies too.
pub(super) fn by_copies<M: Divisible>(direction: Direction) -> Begin<M> {
    Box::new(move |cuda, part, view| {
        let stream = stream_of(cuda, direction);
        Ok(match direction {
            Direction::ToDevice => {
                let transfer = Transfer::begin(cuda, part, view, &stream)?;
                ChunkInFlight {
                    event: Arc::clone(transfer.event()),
                    end: Box::new(|| Ok(transfer.finish()?.0)),
                }
            }
            Direction::ToHost => {
                let transfer = Transfer::begin(cuda, view, part, &stream)?;
                ChunkInFlight {
                    event: Arc::clone(transfer.event()),
                    end: Box::new(|| Ok(transfer.finish()?.1)),
                }
            }
        })
    })
}

/// Moves chunks by kernels.
pub(super) fn by_kernels<M: Divisible>(direction: Direction, engine: Engine) -> Begin<M> {
    Box::new(move |cuda, part, view| {
        let stream = stream_of(cuda, direction);
        let copy = KernelCopy::begin(cuda, part, view, (direction, engine), &stream)?;
        Ok(in_flight(copy))
    })
}

fn in_flight<M: Divisible>(copy: KernelCopy<M>) -> ChunkInFlight<M> {
    ChunkInFlight {
        event: Arc::clone(copy.event()),
        end: Box::new(|| copy.finish()),
    }
}

/// Moves chunks of unified memory by prefetches. Kernels copy between the pages and the device memory while those are
/// on the device; they run on `kernels`, and the prefetches of later chunks run on the stream of the direction.
pub(super) fn by_prefetch(direction: Direction, kernels: Stream) -> Begin<Managed> {
    Box::new(move |cuda, part, view| {
        let stream = stream_of(cuda, direction);
        let engine = (direction, Engine::Plain);
        if direction == Direction::ToDevice {
            part.prefetch(cuda, Place::Device, &stream)?;
            let arrived = cuda.mark(&stream)?;
            cuda.wait(&kernels, &arrived)?;
            let copy = KernelCopy::begin(cuda, part, view, engine, &kernels)?;
            return Ok(in_flight(copy));
        }
        let copy = KernelCopy::begin(cuda, part, view, engine, &kernels)?;
        cuda.wait(&stream, copy.event())?;
        copy.host().prefetch(cuda, Place::Host, &stream)?;
        Ok(ChunkInFlight {
            event: cuda.mark(&stream)?,
            end: Box::new(|| copy.finish()),
        })
    })
}
