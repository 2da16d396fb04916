//! Both passes of a join.

mod by_cpu;
mod divider;
mod sample;

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use forebay_cancel::Stop;
use forebay_device::cuda::{Cuda, DeviceView, HostRegistration, Part, Priority, Stream};
use forebay_device::{
    AlignedBytes, Device, DeviceFault, DeviceState, PAGE_BYTES, available_host_bytes,
};
use forebay_hash_index::{
    Column, DevicePartitions, IndexError, JoinTotals, LoadedRows, PartitionJoin, Side as JoinSide,
    Slices, StoredRuns, TableMemory,
};
use forebay_movement::method::run_on_device;
use forebay_movement::storage::{DataFile, FileError, PageCache};
use forebay_movement::{Source, StagingRing};

use crate::crew::Crew;
use crate::divide::{DivideChunks, Ended, Place, RunMemory, SpillPart};
use crate::heavy::heavy_keys;
use crate::loads::{Load, LoadOfSide, loads};
use crate::plan::BUFFERS;
use crate::run_file::RunFile;
use crate::{JoinError, JoinPlan, PinnedColumns};

use divider::Divider;
pub use sample::SampleTimes;

/// Maximum number of steps in flight while the host queues the next one.
const STEPS_QUEUED: usize = 2;
/// The sides of a join, in the order in which they are divided.
const SIDES: [JoinSide; 2] = [JoinSide::Build, JoinSide::Probe];

/// Pinned host memory that copies from a device write.
pub(crate) type Spill = HostRegistration<AlignedBytes>;

/// Makes the file of runs in a folder.
pub(crate) type MakeFile = fn(&Path) -> Result<DataFile, FileError>;

/// Joins of sides in pinned host memory, by partitions on a GPU. It keeps the memory of runs and tables from one join
/// to the next. Each join allocates the rest of the device memory that the plan counts: for the filter, for heavy
/// keys, and for the slices of runs.
#[derive(Debug)]
pub struct PartitionedJoin {
    device: Arc<Device>,
    plan: JoinPlan,
    ring: StagingRing,
    memory: JoinMemory,
    /// Pinned host memory; `None` after a join that failed. The next one pins new memory.
    host: Option<HostMemory>,
    /// The times of a sample, if a join has measured them.
    sample: Option<SampleTimes>,
    /// Creates a temporary file in a folder. Tests replace it by a function whose file cannot be written.
    pub(crate) make_file: MakeFile,
}

/// Pinned host memory of a join.
#[derive(Debug)]
struct HostMemory {
    /// For the runs that stay in host memory.
    runs: Spill,
    /// Runs pass through these to disk: while the runs in one are written, the next go to the other. In the second
    /// pass, the rows in one are joined while the next are read into the other.
    halves: [Spill; 2],
    /// The CPU divides runs here that stay in device memory.
    staging: Spill,
}

impl HostMemory {
    /// Pins the memory. Checks before each part that the join is not stopped.
    fn pin(device: &Device, plan: &JoinPlan, stop: &Stop) -> Result<HostMemory, JoinError> {
        let part = |bytes: u64| -> Result<Spill, JoinError> {
            stop.check()?;
            pinned(device, bytes)
        };
        let half = plan.half_bytes();
        Ok(HostMemory {
            runs: part(plan.in_host as u64 * plan.run_bytes())?,
            halves: [part(half)?, part(half)?],
            staging: part(plan.cpu_staging_bytes())?,
        })
    }
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
    /// The time until both sides were divided, and what spills was in host memory or on disk.
    pub divide: Duration,
    /// The time after that.
    pub join: Duration,
    /// Number of tables that were built.
    pub tables: usize,
    /// Number of heavy keys, whose rows on both sides were kept apart.
    pub heavy_keys: usize,
    /// Number of rows of the probe side that the filter dropped, without those of heavy keys.
    pub filtered_rows: u64,
    /// Whether the CPU divided both sides.
    pub is_by_cpu: bool,
    /// The times from which the processor was chosen; `None` if it was not, or the sides are too small for a sample.
    pub sample: Option<SampleTimes>,
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
    /// Takes the memory of runs and tables: device memory and a ring on this GPU, pinned host memory to which runs
    /// spill ([`JoinPlan::host_bytes`]), and if the CPU may divide the sides, a pinned run for each thread. Blocks.
    ///
    /// # Errors
    /// If memory of the device or the host is too small or cannot be pinned, or the device is not a GPU or is lost.
    pub fn new(device: &Arc<Device>, plan: JoinPlan) -> Result<PartitionedJoin, JoinError> {
        let ring = StagingRing::lease(device, plan.ring)?;
        let (run_bytes, resident) = (plan.run_bytes() as usize, plan.resident);
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
            host: Some(HostMemory::pin(device, &plan, &Stop::never())?),
            device: Arc::clone(device),
            plan,
            ring,
            memory,
            sample: None,
            make_file: |folder| DataFile::temporary(folder, PageCache::Bypass),
        })
    }

    /// Joins both sides. Blocks; must not be called on an async worker thread or on a device's thread. Runs on disk are
    /// in an unnamed file, whose disk space is freed after the call or when the process ends.
    ///
    /// Heavy keys are kept apart: those with at least 64 rows on the build side, as estimated from a sample of its
    /// rows. There are at most 2,048, those with the most rows. If a table has no room for the rows of other keys,
    /// the join takes a larger sample, and starts again if that shows other heavy keys. The larger sample takes at
    /// most 256 MiB of host memory.
    ///
    /// # Errors
    /// The first error: if keys that are not kept apart have too many rows in one table
    /// ([`IndexError::ChainTooLong`]), device memory is too small, the join is stopped, the disk is full or fails, or
    /// the device is lost; after a join that failed, also if the host cannot pin as much memory again. A later call
    /// can succeed, unless the device is lost.
    ///
    /// # Panics
    /// If a side has other rows than the plan says.
    pub fn run(
        &mut self,
        (build, probe): (&PinnedColumns, &PinnedColumns),
        stop: &Stop,
    ) -> Result<JoinReport, JoinError> {
        let began = Instant::now();
        let (sides, width) = ([build, probe], self.plan.run.width());
        let expected = self.plan.rows.map(|rows| (width, rows * width.row_bytes()));
        let found = sides.map(|side| (side.width(), side.bytes()));
        assert_eq!(found, expected, "width and bytes");
        let [first, second] = self.plan.samples.map(|rows| rows.min(self.plan.rows[0]));
        let sampled = |rows| heavy_keys(build.host_rows(), width, rows, stop);
        let of_first = sampled(first)?;
        let error = match self.run_apart(&of_first, sides, (began, stop)) {
            Err(error @ JoinError::Index(IndexError::ChainTooLong { .. })) if first < second => {
                error
            }
            result => return result,
        };
        let of_second = sampled(second)?;
        match of_second == of_first {
            true => Err(error),
            false => self.run_apart(&of_second, sides, (began, stop)),
        }
    }

    /// Joins both sides, with these keys kept apart. Chooses the processor of the first pass, if the plan names none.
    /// Allocates device memory before it takes the pinned host memory, because the join frees the pinned memory if it
    /// fails later.
    fn run_apart(
        &mut self,
        heavy_keys: &[u64],
        sides: [&PinnedColumns; 2],
        (began, stop): (Instant, &Stop),
    ) -> Result<JoinReport, JoinError> {
        let file = self.file()?;
        let is_by_cpu = self.choose_cpu(heavy_keys, sides, stop)?;
        let divider = self.divider(is_by_cpu, heavy_keys)?;
        let [in_memory, on_disk] = self.slices(&divider)?;
        let HostMemory {
            runs,
            halves,
            staging,
        } = self.host_memory(stop)?;
        let pass = (&divider, stop);
        let ((in_memory, runs), staging) =
            self.divide_in_memory(sides, in_memory, (runs, staging), pass)?;
        let (on_disk, halves) = match &file {
            Some(file) => self.divide_to_disk(sides, on_disk, halves, (file, pass))?,
            None => (on_disk, halves),
        };
        let divided = Instant::now();
        let sides = self.divided(in_memory, on_disk)?;
        let sifted = self.sifted(divider)?;
        let (mut totals, tables, halves) = self.join(&sides, halves, file.as_ref(), stop)?;
        totals.add(sifted.totals);
        drop(sides);
        self.host = Arc::into_inner(runs).map(|runs| HostMemory {
            runs,
            halves,
            staging,
        });
        Ok(JoinReport {
            totals,
            divide: divided - began,
            join: divided.elapsed(),
            tables,
            heavy_keys: heavy_keys.len(),
            filtered_rows: sifted.filtered_rows,
            is_by_cpu,
            sample: self.sample,
        })
    }

    /// Takes the pinned memory, or pins it again after a join that failed.
    fn host_memory(&mut self, stop: &Stop) -> Result<HostMemory, JoinError> {
        match self.host.take() {
            Some(host) => Ok(host),
            None => HostMemory::pin(&self.device, &self.plan, stop),
        }
    }

    /// Makes the file of the runs on disk; `None` if there are none.
    fn file(&self) -> Result<Option<RunFile>, JoinError> {
        match &self.plan.spill_directory {
            Some(folder) if self.plan.disk_bytes() > 0 => {
                let file = (self.make_file)(folder)?;
                Ok(Some(RunFile::new(file, self.plan.run_bytes())))
            }
            _ => Ok(None),
        }
    }

    /// Takes device memory for the slices of both sides' runs: of those in memory, and of those on disk.
    fn slices(&self, divider: &Divider) -> Result<[[Slices; 2]; 2], JoinError> {
        let of_sides = |[build, probe]: [usize; 2]| -> Result<[Slices; 2], JoinError> {
            Ok([
                self.slices_of(divider, (0, build))?,
                self.slices_of(divider, (1, probe))?,
            ])
        };
        Ok([
            of_sides(self.plan.in_memory())?,
            of_sides(self.plan.on_disk())?,
        ])
    }

    /// Returns memory of runs, with a part of host memory for each that spills.
    fn run_memory(&self, resident: Vec<DeviceView<u8>>, spill: Vec<SpillPart>) -> RunMemory {
        let buffers = self.memory.buffers.iter();
        RunMemory {
            resident,
            buffers: buffers.map(|buffer| (buffer.clone(), None)).collect(),
            spill,
            staging: Vec::new(),
            stream: self.memory.copies.clone(),
        }
    }

    /// Splits host memory into parts of the size of a run; one part if it is empty.
    fn parts(&self, memory: Spill) -> Vec<SpillPart> {
        let run_bytes = self.plan.run_bytes() as usize;
        let cuts: Vec<usize> = (run_bytes..memory.len()).step_by(run_bytes).collect();
        Part::divide(memory, &cuts)
    }

    /// Divides chunks of a side into these runs. Returns the runs and the memory that is left.
    fn divide(
        &mut self,
        chunks: &PinnedColumns,
        (slices, side, runs): (Slices, usize, &Range<usize>),
        memory: RunMemory,
        (divider, stop): (&Divider, &Stop),
    ) -> Result<(Side<Place>, RunMemory), JoinError> {
        if let Divider::Cpu(sieve) = divider {
            let sieve = sieve.as_ref().map(|sieve| (sieve, SIDES[side]));
            return self.divide_by_cpu(chunks, (slices, runs), memory, (sieve, stop));
        }
        let dividing = Arc::new(DivideChunks::new(slices, runs, memory));
        let moved = self.ring.run(chunks, &dividing, stop);
        let divided = dividing.take();
        moved?;
        let (slices, runs, memory) = divided.into_runs();
        Ok((Side { slices, runs }, memory))
    }

    /// Divides the first chunks of both sides, whose runs stay in device memory or in host memory. Returns the sides as
    /// kernels read them, the memory of the runs, and the staging memory.
    fn divide_in_memory(
        &mut self,
        [build, probe]: [&PinnedColumns; 2],
        [of_build, of_probe]: [Slices; 2],
        (runs, staging): (Spill, Spill),
        pass: (&Divider, &Stop),
    ) -> Result<(Gathered, Spill), JoinError> {
        let mut memory = self.run_memory(self.memory.resident.clone(), self.parts(runs));
        memory.staging = self.parts(staging);
        let slot_bytes = self.plan.ring.slot_bytes;
        let [build_runs, probe_runs] = self.plan.in_memory().map(|runs| 0..runs);
        let build = build.chunks(slot_bytes, build_runs.clone());
        let probe = probe.chunks(slot_bytes, probe_runs.clone());
        let (build, memory) = self.divide(&build, (of_build, 0, &build_runs), memory, pass)?;
        let (probe, memory) = self.divide(&probe, (of_probe, 1, &probe_runs), memory, pass)?;
        let gathered = gathered([build, probe], memory.spill);
        let gathered = gathered.map_err(|fault| JoinError::lost(&self.device, &fault))?;
        Ok((gathered, Part::join(memory.staging)))
    }

    /// Divides the other chunks of both sides, and writes their runs to the file: those in one half of the memory while
    /// the next ones go to the other half.
    fn divide_to_disk(
        &mut self,
        sides: [&PinnedColumns; 2],
        slices: [Slices; 2],
        halves: [Spill; 2],
        (file, pass): (&RunFile, (&Divider, &Stop)),
    ) -> Result<([Slices; 2], [Spill; 2]), JoinError> {
        let (_, stop) = pass;
        let slot_bytes = self.plan.ring.slot_bytes;
        let in_memory = self.plan.in_memory();
        let [mut to_fill, mut to_write] = halves.map(|half| Half {
            free: self.parts(half),
            full: Vec::new(),
        });
        let mut divided = Vec::new();
        for (side, mut slices) in slices.into_iter().enumerate() {
            for runs in self.plan.rounds(side) {
                let first = in_memory[side];
                let chunks = sides[side].chunks(slot_bytes, first + runs.start..first + runs.end);
                let (written, (same, filled)) = Crew::new(stop).beside(
                    |crew| to_write.write(file, crew),
                    |_| self.fill(to_fill, &chunks, (slices, side, runs), pass),
                )?;
                (slices, to_write, to_fill) = (same, filled, written);
            }
            divided.push(slices);
        }
        let crew = Crew::new(stop);
        let halves = [to_fill, to_write.write(file, &crew)];
        crew.end()?;
        file.end_writes()?;
        let divided: Result<[Slices; 2], _> = divided.try_into();
        Ok((
            divided.expect("both sides"),
            halves.map(|half| Part::join(half.free)),
        ))
    }

    /// Divides chunks of a side into runs in a half of the memory. Blocks until they are there.
    fn fill(
        &mut self,
        half: Half,
        chunks: &PinnedColumns,
        (slices, side, runs): (Slices, usize, Range<usize>),
        pass: (&Divider, &Stop),
    ) -> Result<(Slices, Half), JoinError> {
        // Runs of the build side are first in the file.
        let first_in_file = side * self.plan.on_disk()[0];
        let memory = self.run_memory(Vec::new(), half.free);
        let (divided, memory) = self.divide(chunks, (slices, side, &runs), memory, pass)?;
        let (slices, stream) = (divided.slices, self.memory.kernels.clone());
        let of_runs = runs.clone();
        let (slices, used) = on_gpu(&self.device, move |cuda| {
            let used = slices.used_bytes(cuda, of_runs, &stream)?;
            Ok((slices, used))
        })?;
        let mut full = Vec::new();
        for ((run, place), used) in runs.zip(divided.runs).zip(used) {
            let ended = place.finish();
            let ended = ended.map_err(|fault| JoinError::lost(&self.device, &fault))?;
            if let Some(part) = ended.into_host() {
                let bytes = (used as usize).next_multiple_of(PAGE_BYTES);
                full.push((first_in_file + run, part, bytes));
            }
        }
        let free = memory.spill;
        Ok((slices, Half { free, full }))
    }

    /// Reads where partitions are in the runs of both sides.
    fn divided(
        &self,
        in_memory: [Side<Column>; 2],
        on_disk: [Slices; 2],
    ) -> Result<[DividedSide; 2], JoinError> {
        let stream = self.memory.kernels.clone();
        on_gpu(&self.device, move |cuda| {
            let side = |side: Side<Column>, on_disk: &Slices| -> Result<DividedSide, IndexError> {
                Ok(DividedSide {
                    in_memory: DevicePartitions::new(cuda, side.slices, side.runs, &stream)?,
                    on_disk: StoredRuns::new(cuda, on_disk, &stream)?,
                })
            };
            let [build, probe] = in_memory;
            Ok([side(build, &on_disk[0])?, side(probe, &on_disk[1])?])
        })
    }

    /// Joins all partitions: each load while the next one is read from disk. Returns the matches, the number of tables,
    /// and the memory.
    fn join(
        &self,
        sides: &[DividedSide; 2],
        halves: [Spill; 2],
        file: Option<&RunFile>,
        stop: &Stop,
    ) -> Result<(JoinTotals, usize, [Spill; 2]), JoinError> {
        let bytes = |side: usize, run: usize, partitions: Range<usize>| {
            sides[side].on_disk.bytes(run, partitions)
        };
        let (on_disk, room) = (self.plan.on_disk(), self.plan.half_bytes());
        let loads = loads(self.plan.partitions(), on_disk, room, bytes);
        let [mut half, mut next_half] = halves;
        let crew = Crew::new(stop);
        read(file, loads.first(), &mut half, &crew);
        crew.end()?;
        let (mut totals, mut tables) = (JoinTotals::default(), 0);
        for (index, load) in loads.iter().enumerate() {
            let loaded = Arc::new(half);
            let ((), (found, built)) = Crew::new(stop).beside(
                |crew| read(file, loads.get(index + 1), &mut next_half, crew),
                |crew| self.join_load(sides, load, &loaded, crew),
            )?;
            totals.add(found);
            tables += built;
            half = next_half;
            next_half = Arc::into_inner(loaded).expect("no kernel reads it");
        }
        Ok((totals, tables, [half, next_half]))
    }

    /// Joins the partitions of a load. Returns the matches and the number of tables.
    fn join_load(
        &self,
        sides: &[DividedSide; 2],
        load: &Load,
        loaded: &Arc<Spill>,
        crew: &Crew<'_>,
    ) -> Result<(JoinTotals, usize), JoinError> {
        let table = self.memory.table.clone();
        let streams = [&self.memory.kernels, &self.memory.copies].map(Stream::clone);
        let partitions = load.partitions.clone();
        let [build, probe] = [0, 1].map(|side| sides[side].with(&load.sides[side], loaded));
        let mut join = on_gpu(&self.device, move |cuda| {
            PartitionJoin::new(cuda, (build, probe), partitions, table, streams)
        })?;
        let mut queued = VecDeque::new();
        loop {
            crew.check()?;
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

/// A side after the first pass.
struct DividedSide {
    /// The runs in device memory and in host memory.
    in_memory: DevicePartitions,
    on_disk: StoredRuns,
}

impl DividedSide {
    /// Returns the runs that a load joins, for its partitions.
    fn with(&self, load: &LoadOfSide, loaded: &Arc<Spill>) -> DevicePartitions {
        let copies = load.pages.iter().map(|pages| LoadedRows {
            run: pages.run,
            first: pages.first,
            rows: Column::Pinned(Arc::clone(loaded), pages.at.clone()),
        });
        let on_disk = self.on_disk.loaded(copies);
        if !load.with_memory {
            return on_disk;
        }
        let mut all = self.in_memory.clone();
        all.append(&on_disk);
        all
    }
}

/// Both sides as kernels read them, and the host memory of their runs.
type Gathered = ([Side<Column>; 2], Arc<Spill>);

/// A half of the memory through which runs pass to disk.
struct Half {
    free: Vec<SpillPart>,
    /// The parts that have a run, with its index in the file and the bytes of its used pages.
    full: Vec<(usize, SpillPart, usize)>,
}

impl Half {
    /// Writes the used pages of all runs. Blocks. Returns the half with all its parts free. An error goes to the
    /// crew.
    fn write(mut self, file: &RunFile, crew: &Crew<'_>) -> Half {
        let runs = self.full.iter();
        let runs: Vec<(usize, &[u8])> = runs
            .map(|(run, part, bytes)| (*run, &part[..*bytes]))
            .collect();
        file.write(&runs, crew);
        let written = self.full.drain(..).map(|(_, part, _)| part);
        self.free.extend(written);
        self
    }
}

/// Reads a load, if there is one, into a half of the memory. Blocks. An error goes to the crew.
fn read(file: Option<&RunFile>, load: Option<&Load>, half: &mut Spill, crew: &Crew<'_>) {
    if let (Some(file), Some(load)) = (file, load) {
        file.read(load, half, crew);
    }
}

/// Waits for all copies. Returns the sides as kernels read them, and the host memory, of which `parts` is the rest.
fn gathered(sides: [Side<Place>; 2], mut parts: Vec<SpillPart>) -> Result<Gathered, DeviceFault> {
    let mut ended = |place: Place| -> Result<Ended<Range<usize>>, DeviceFault> {
        Ok(match place.finish()? {
            Ended::Device(view) => Ended::Device(view),
            Ended::Host(part) => {
                let range = part.offset()..part.offset() + part.len();
                parts.push(part);
                Ended::Host(range)
            }
        })
    };
    let [build, probe] = sides.map(|side| {
        let runs = side.runs.into_iter().map(&mut ended);
        let runs = runs.collect::<Result<Vec<Ended<Range<usize>>>, DeviceFault>>();
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
        // The driver would refuse, or pin memory that no join can use.
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
            // If the system refuses a thread, pinning accesses its pages.
            let _ = Builder::new().spawn_scoped(scope, zero);
        }
    });
    let pinned = device.register(memory).map_err(|(_, error)| error);
    Ok(pinned?)
}
