//! Both passes of a join.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use forebay_cancel::Stop;
use forebay_device::cuda::{Cuda, DeviceView, HostRegistration, Part, Priority, Stream};
use forebay_device::{AlignedBytes, Device, DeviceFault, DeviceState, available_host_bytes};
use forebay_hash_index::{
    Column, DevicePartitions, IndexError, JoinTotals, PartitionJoin, Slices, TableMemory,
};
use forebay_movement::method::run_on_device;
use forebay_movement::{Source, StagingRing};

use crate::divide::{DivideChunks, Place, RunMemory};
use crate::plan::BUFFERS;
use crate::{JoinError, JoinPlan, PinnedColumns};

/// Maximum number of steps in flight while the host queues the next one.
const STEPS_QUEUED: usize = 2;
/// Bytes of a small page of the host.
const PAGE_BYTES: usize = 4096;

/// Pinned host memory that copies from a device write.
pub(crate) type Spill = HostRegistration<AlignedBytes>;

/// Joins of sides in pinned host memory, by partitions on a GPU. It holds all memory of a join, which can run several
/// times.
#[derive(Debug)]
pub struct PartitionedJoin {
    device: Arc<Device>,
    plan: JoinPlan,
    ring: StagingRing,
    memory: JoinMemory,
    /// The host memory to which runs spill; `None` after a join that failed. The next one pins new memory.
    spill: Option<Spill>,
}

/// Device memory of a join, and its streams.
#[derive(Debug)]
struct JoinMemory {
    resident: Vec<DeviceView<u8>>,
    buffers: Vec<DeviceView<u8>>,
    table: TableMemory,
    /// The stream of the kernels of the second pass.
    kernels: Stream,
    /// The stream of copies: from the buffers to host memory, and then from there to the staging memory.
    copies: Stream,
}

/// What a join did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JoinReport {
    /// The matches.
    pub totals: JoinTotals,
    /// The time until both sides were divided, and what spills was in host memory.
    pub divide: Duration,
    /// The time after that.
    pub join: Duration,
    /// Number of tables that were built.
    pub tables: usize,
}

/// Runs work on the thread of a GPU, and returns its result. Blocks.
///
/// # Errors
/// If the work fails, or the device is not a GPU or is lost.
pub fn on_gpu<T: Send + 'static>(
    device: &Device,
    work: impl FnOnce(&mut Cuda) -> Result<T, IndexError> + Send + 'static,
) -> Result<T, JoinError> {
    let result = run_on_device(device, move |cuda| match work(cuda) {
        Err(IndexError::Device(error)) => Err(error),
        result => Ok(result),
    })?;
    result.map_err(JoinError::Index)
}

impl PartitionedJoin {
    /// Takes the memory of a join: device memory and a ring on this GPU, and pinned host memory to which runs spill
    /// ([`JoinPlan::spill_bytes`]). Blocks.
    ///
    /// # Errors
    /// If memory of the device or the host is too small or cannot be pinned, or the device is not a GPU or is lost.
    pub fn new(device: &Arc<Device>, plan: JoinPlan) -> Result<PartitionedJoin, JoinError> {
        let ring = StagingRing::lease(device, plan.ring)?;
        let (run_bytes, resident) = (plan.run.bytes() as usize, plan.resident);
        let (slots, staging) = (plan.table_bytes as usize, plan.staging_bytes() as usize);
        let memory = on_gpu(device, move |cuda| {
            let runs = |count| -> Result<Vec<_>, IndexError> {
                let one = |_| Ok(cuda.buffer::<u8>(run_bytes)?.all());
                (0..count).map(one).collect()
            };
            Ok(JoinMemory {
                resident: runs(resident)?,
                buffers: runs(BUFFERS)?,
                table: TableMemory {
                    slots: cuda.buffer::<u8>(slots)?.all(),
                    staging: [
                        cuda.buffer::<u8>(staging)?.all(),
                        cuda.buffer::<u8>(staging)?.all(),
                        cuda.buffer::<u8>(staging)?.all(),
                    ],
                },
                kernels: cuda.stream(Priority::Normal)?,
                copies: cuda.stream(Priority::Normal)?,
            })
        })?;
        Ok(PartitionedJoin {
            spill: Some(pinned(device, plan.spill_bytes())?),
            device: Arc::clone(device),
            plan,
            ring,
            memory,
        })
    }

    /// Joins both sides. Blocks; must not be called on an async worker thread or on a device's thread.
    ///
    /// # Errors
    /// The first error: if a key has more than about 4,096 rows in one table, the join is stopped, or the device is
    /// lost; after a join that failed, also if the host cannot pin as much memory again.
    ///
    /// # Panics
    /// If a side has other rows than the plan says.
    pub fn run(
        &mut self,
        (build, probe): (&PinnedColumns, &PinnedColumns),
        stop: &Stop,
    ) -> Result<JoinReport, JoinError> {
        let began = Instant::now();
        let spill = match self.spill.take() {
            Some(spill) => spill,
            None => pinned(&self.device, self.plan.spill_bytes())?,
        };
        let width = self.plan.run.width().bytes();
        let bytes = [build, probe].map(|side| side.bytes());
        assert_eq!(bytes, self.plan.rows.map(|rows| 2 * rows * width), "bytes");
        let memory = self.run_memory(spill);
        let (shape, runs) = (self.plan.run, self.plan.runs);
        let stream = self.memory.kernels.clone();
        let [of_build, of_probe] = on_gpu(&self.device, move |cuda| {
            let slices = |runs| Slices::new(cuda, shape, runs, &stream);
            Ok([slices(runs[0])?, slices(runs[1])?])
        })?;
        let (build, memory) = self.divide(build, of_build, memory, stop)?;
        let (probe, memory) = self.divide(probe, of_probe, memory, stop)?;
        let (sides, spill) = gathered([build, probe], memory)
            .map_err(|fault| JoinError::lost(&self.device, &fault))?;
        let divided = Instant::now();
        let (totals, tables) = self.join(sides, stop)?;
        self.spill = Arc::into_inner(spill);
        Ok(JoinReport {
            totals,
            divide: divided - began,
            join: divided.elapsed(),
            tables,
        })
    }

    /// Returns the memory of runs, with the spill memory in a part for each run.
    fn run_memory(&self, spill: Spill) -> RunMemory {
        let bytes = self.plan.run.bytes() as usize;
        let cuts: Vec<usize> = (1..=self.plan.spilled()).map(|run| run * bytes).collect();
        let mut spill = Part::divide(spill, &cuts);
        let buffers = self.memory.buffers.iter();
        RunMemory {
            resident: self.memory.resident.clone(),
            buffers: buffers.map(|buffer| (buffer.clone(), None)).collect(),
            rest: spill.pop().expect("one part more than there are cuts"),
            spill,
            stream: self.memory.copies.clone(),
        }
    }

    /// Brings a side to the GPU, which divides it into runs. Returns them and the memory that is left.
    fn divide(
        &mut self,
        side: &PinnedColumns,
        slices: Slices,
        memory: RunMemory,
        stop: &Stop,
    ) -> Result<(Side<Place>, RunMemory), JoinError> {
        let dividing = Arc::new(DivideChunks::new(slices, memory));
        let moved = self.ring.run(side, &dividing, stop);
        let divided = dividing.take();
        moved?;
        let (slices, runs, memory) = divided.into_runs();
        Ok((Side { slices, runs }, memory))
    }

    /// Joins all partitions. Returns the matches and the number of tables.
    fn join(
        &self,
        [build, probe]: [Side<Column>; 2],
        stop: &Stop,
    ) -> Result<(JoinTotals, usize), JoinError> {
        let table = self.memory.table.clone();
        let streams = [&self.memory.kernels, &self.memory.copies].map(Stream::clone);
        let partitions = 0..self.plan.partitions();
        let mut join = on_gpu(&self.device, move |cuda| {
            let side = |side: Side<Column>| {
                DevicePartitions::new(cuda, side.slices, side.runs, &streams[0])
            };
            let sides = (side(build)?, side(probe)?);
            PartitionJoin::new(cuda, sides, partitions, table, streams)
        })?;
        let mut queued = VecDeque::new();
        loop {
            stop.check()?;
            let step;
            (join, step) = on_gpu(&self.device, move |cuda| {
                let step = join.next_async(cuda)?;
                Ok((join, step))
            })?;
            let Some(step) = step else {
                break;
            };
            if queued.len() == STEPS_QUEUED {
                // Waits for the oldest one.
                queued.pop_front();
            }
            queued.push_back(step);
        }
        drop(queued);
        let tables = join.steps();
        let totals = on_gpu(&self.device, move |cuda| join.finish(cuda))?;
        Ok((totals, tables))
    }
}

/// A side in runs.
struct Side<T> {
    slices: Slices,
    runs: Vec<T>,
}

/// Where a run is after its copy.
enum Ended {
    Device(DeviceView<u8>),
    Host(Range<usize>),
}

/// Waits for all copies. Returns the sides as kernels read them, and the spill memory.
fn gathered(
    sides: [Side<Place>; 2],
    memory: RunMemory,
) -> Result<([Side<Column>; 2], Arc<Spill>), DeviceFault> {
    let mut parts = memory.spill;
    parts.push(memory.rest);
    let mut ended = |place| match place {
        Place::Device(view) => Ok(Ended::Device(view)),
        Place::Spilled(copy) => {
            let (_, part) = copy.finish()?;
            let range = part.offset()..part.offset() + part.len();
            parts.push(part);
            Ok(Ended::Host(range))
        }
    };
    let [build, probe] = sides.map(|side| {
        let runs = side.runs.into_iter().map(&mut ended);
        let runs = runs.collect::<Result<Vec<Ended>, DeviceFault>>();
        (side.slices, runs)
    });
    let sides = [(build.0, build.1?), (probe.0, probe.1?)];
    let spill = Arc::new(Part::join(parts));
    let column = |run| match run {
        Ended::Device(view) => Column::Device(view),
        Ended::Host(range) => Column::Pinned(Arc::clone(&spill), range),
    };
    let sides = sides.map(|(slices, runs)| Side {
        slices,
        runs: runs.into_iter().map(column).collect(),
    });
    Ok((sides, spill))
}

/// Checks that the host has this much memory left.
///
/// # Errors
/// [`JoinError::HostMemory`] if it has not.
pub(crate) fn check_host_memory(needed: u64) -> Result<(), JoinError> {
    let available = available_host_bytes();
    match needed <= available {
        true => Ok(()),
        false => Err(JoinError::HostMemory { needed, available }),
    }
}

/// Pins host memory for copies from a device. All cores access it first: pinning fresh pages would zero them on one.
///
/// # Errors
/// If the host has too little memory, the driver cannot pin it, or the device is lost.
pub(crate) fn pinned(device: &Device, bytes: u64) -> Result<Spill, JoinError> {
    if let DeviceState::Lost { why } = device.state() {
        // The driver would refuse to pin, or pin for nothing.
        return Err(JoinError::lost(device, why));
    }
    check_host_memory(bytes)?;
    let mut memory = AlignedBytes::in_huge_pages(bytes as usize);
    let share = memory
        .len()
        .div_ceil(forebay_device::cores())
        .max(PAGE_BYTES);
    thread::scope(|scope| {
        for part in memory.chunks_mut(share) {
            let zero = move || {
                part.iter_mut()
                    .step_by(PAGE_BYTES)
                    .for_each(|byte| *byte = 0)
            };
            // Pinning accesses the pages of a thread that the system refuses.
            let _ = Builder::new().spawn_scoped(scope, zero);
        }
    });
    let pinned = device.register(memory).map_err(|(_, error)| error);
    Ok(pinned?)
}
