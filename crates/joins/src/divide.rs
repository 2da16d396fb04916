//! The first pass by the GPU: each chunk of a side becomes a run, in device memory or, after a copy, in pinned host
//! memory. The runs of the CPU are in the same places.

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

use forebay_device::cuda::{Cuda, DeviceView, Event, HostRegistration, Part, Stream, Transfer};
use forebay_device::{AlignedBytes, DeviceFault, JobError};
use forebay_hash_index::{RunCopy, Slices};
use forebay_movement::{Chunk, Consumer};
use parking_lot::Mutex;

use crate::PinnedColumns;

/// The part of the spill memory that a run has.
pub(crate) type SpillPart = Part<HostRegistration<AlignedBytes>>;

/// Memory for the runs of both sides.
#[derive(Debug)]
pub(crate) struct RunMemory {
    /// Device memory of runs that stay there.
    pub(crate) resident: Vec<DeviceView<u8>>,
    /// Device memory of runs that are written back, in turn, with the last copy from each.
    pub(crate) buffers: Vec<(DeviceView<u8>, Option<Arc<Event>>)>,
    /// Host memory to which the buffers are copied: a part for each run.
    pub(crate) spill: Vec<SpillPart>,
    /// Host memory in which the CPU divides runs that stay in device memory.
    pub(crate) staging: Vec<SpillPart>,
    /// The stream of the copies.
    pub(crate) stream: Stream,
}

/// Where a run is.
#[derive(Debug)]
pub(crate) enum Place {
    Device(DeviceView<u8>),
    /// It is copied from a buffer to host memory.
    Spilled(Spilling),
    /// The CPU wrote it to host memory.
    Host(SpillPart),
}

/// Where a run is after its copy. `M` tells its host memory.
pub(crate) enum Ended<M> {
    Device(DeviceView<u8>),
    Host(M),
}

impl<M> Ended<M> {
    /// Returns the host memory of a run that is there.
    pub(crate) fn into_host(self) -> Option<M> {
        match self {
            Ended::Device(_) => None,
            Ended::Host(memory) => Some(memory),
        }
    }
}

impl Place {
    /// Blocks until the run is there.
    pub(crate) fn finish(self) -> Result<Ended<SpillPart>, DeviceFault> {
        Ok(match self {
            Place::Device(view) => Ended::Device(view),
            Place::Spilled(copy) => Ended::Host(copy.finish()?),
            Place::Host(part) => Ended::Host(part),
        })
    }
}

/// A copy of a run to host memory, in flight.
#[derive(Debug)]
pub(crate) enum Spilling {
    /// By the copy engine: the whole memory of the run.
    All(Transfer<DeviceView<u8>, SpillPart>),
    /// By a kernel: what is used of it, after rows were dropped.
    Used(RunCopy),
}

impl Spilling {
    fn event(&self) -> &Arc<Event> {
        match self {
            Spilling::All(copy) => copy.event(),
            Spilling::Used(copy) => copy.event(),
        }
    }

    /// Blocks until the copy is done, and returns the memory to which it went.
    pub(crate) fn finish(self) -> Result<SpillPart, DeviceFault> {
        match self {
            Spilling::All(copy) => copy.finish().map(|(_, to)| to),
            Spilling::Used(copy) => copy.finish(),
        }
    }
}

/// Divides chunks of a side.
pub(crate) struct DivideChunks {
    /// `None` after the move.
    state: Mutex<Option<State>>,
}

struct State {
    slices: Slices,
    memory: RunMemory,
    /// Index of the run of the first chunk, in the slices.
    first: usize,
    /// The runs of all chunks.
    runs: Vec<Option<Place>>,
}

impl DivideChunks {
    /// Returns a consumer that makes each chunk one of these runs, in order.
    pub(crate) fn new(slices: Slices, runs: &Range<usize>, memory: RunMemory) -> DivideChunks {
        let state = State {
            slices,
            memory,
            first: runs.start,
            runs: runs.clone().map(|_| None).collect(),
        };
        DivideChunks {
            state: Mutex::new(Some(state)),
        }
    }

    /// Takes what the move has used, on the thread of the caller: to drop it can take long.
    ///
    /// # Panics
    /// At the second call.
    pub(crate) fn take(&self) -> Divided {
        let state = self.state.lock().take().expect("the first call");
        Divided(state)
    }
}

/// What a move has used.
pub(crate) struct Divided(State);

impl Divided {
    /// Returns the slices, the runs of the chunks, and the memory that is left.
    ///
    /// # Panics
    /// If a chunk was not divided.
    pub(crate) fn into_runs(self) -> (Slices, Vec<Place>, RunMemory) {
        let State {
            slices,
            memory,
            runs,
            ..
        } = self.0;
        let runs = runs
            .into_iter()
            .map(|run| run.expect("every chunk is divided"));
        (slices, runs.collect(), memory)
    }
}

impl Consumer for DivideChunks {
    fn enqueue(
        &self,
        cuda: &mut Cuda,
        stream: &Stream,
        chunk: Chunk,
        bytes: &DeviceView<u8>,
    ) -> Result<(), JobError> {
        let mut state = self.state.lock();
        let State {
            slices,
            memory,
            first,
            runs,
        } = state.as_mut().expect("the move has not ended");
        let index = chunk.index as usize;
        let run = *first + index;
        let rows = PinnedColumns::rows_of_chunk(slices.shape().width(), bytes);
        let mut divide = |cuda: &mut Cuda, to: &DeviceView<u8>| -> Result<(), JobError> {
            let dividing = slices.divide_async(cuda, &rows, run, to, stream)?;
            dividing.leave(cuda);
            Ok(())
        };
        let place = match memory.resident.pop() {
            Some(to) => {
                divide(cuda, &to)?;
                Place::Device(to)
            }
            None => {
                let turn = index % memory.buffers.len();
                let (buffer, copied) = &mut memory.buffers[turn];
                if let Some(copied) = copied {
                    cuda.wait(stream, copied)?;
                }
                divide(cuda, buffer)?;
                let divided = cuda.mark(stream)?;
                cuda.wait(&memory.stream, &divided)?;
                let to = memory.spill.pop().expect("a part for each run");
                let stream = &memory.stream;
                let copy = match slices.may_drop() {
                    true => Spilling::Used(slices.copy_async(cuda, (run, &*buffer), to, stream)?),
                    false => Spilling::All(Transfer::begin(cuda, buffer.clone(), to, stream)?),
                };
                *copied = Some(Arc::clone(copy.event()));
                Place::Spilled(copy)
            }
        };
        runs[index] = Some(place);
        Ok(())
    }

    fn process(&self, _: Chunk, _: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        Err("the ring is on a GPU".into())
    }
}
