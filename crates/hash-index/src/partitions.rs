//! Sides of a join in partitions, for kernels: each partition has a table of its own.

mod by_host;
pub(crate) mod sieve;
mod stored;
pub(crate) mod written;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use forebay_device::cuda::{
    Cuda, DevicePointer, DevicePointerMut, DeviceType, DeviceView, Event, Fill, Part,
    RegisteredPart, Stream, Transfer,
};
use forebay_device::{AlignedBytes, JobError};

use crate::column::{Column, DeviceRows};
use crate::error::IndexError;
use crate::index::{Contents, Totals, fill, read_all};
use crate::kernels::{
    HashIndexRef, InsertingPartition, JoinTotals, Outcome, PARTITION_BITS_MAX, PartitionRows,
    ProbingPartition, Run, SLICE_ROWS, Slice,
};
use crate::launch::{self, InFlight};
use crate::shape::{TableShape, Width};
use crate::workload::Side;

pub use sieve::{Sieve, Sifted};
pub use stored::{LoadedRows, StoredRuns};
pub use written::RunCopy;

/// Maximum number of rows of a run, whose slices are counted by 32-bit numbers.
const RUN_ROWS_MAX: u64 = 1 << 30;
/// Rows of a slice for which a block has enough to do.
const BLOCK_ROWS: u64 = 4096;
/// Number of staging memories: copies run two tables ahead, so that the bus is busy while a table is built.
pub const STAGES: usize = 3;

/// The layout of a run: some rows of a side, in the order of their partitions. The keys of a partition are followed by
/// its payloads, so that one copy moves both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunShape {
    width: Width,
    rows: u64,
    bits: u32,
}

impl RunShape {
    /// Returns the layout of runs of at most `rows` rows in 2^`bits` partitions.
    ///
    /// # Panics
    /// If the rows exceed 2^30 or the bits 10.
    pub fn new(width: Width, rows: u64, bits: u32) -> RunShape {
        assert!(rows <= RUN_ROWS_MAX, "{rows} rows");
        assert!(bits <= PARTITION_BITS_MAX, "{bits} bits");
        RunShape { width, rows, bits }
    }

    /// Returns the bytes of a key, and of a payload.
    pub fn width(&self) -> Width {
        self.width
    }

    /// Returns the maximum number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the number of bits of the hash that tell the partition.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// Returns the number of partitions.
    pub fn partitions(&self) -> usize {
        1 << self.bits
    }

    /// Returns the bytes of the memory of a run.
    pub fn bytes(&self) -> u64 {
        let rows = self.rows + u64::from(SLICE_ROWS << self.bits);
        rows.next_multiple_of(u64::from(SLICE_ROWS)) * self.width.row_bytes()
    }
}

/// Where the rows of each partition are in the runs of a side: in device memory.
#[derive(Debug)]
pub struct Slices {
    shape: RunShape,
    /// Whether each run was divided.
    divided: Vec<bool>,
    slices: DeviceView<Slice>,
    /// Where the next row of each partition goes, while a run is divided.
    next: DeviceView<u32>,
    /// Drops rows of this side before they are divided.
    sieve: Option<(Sieve, Side)>,
}

impl Slices {
    /// Returns memory for the slices of this many runs. Blocks until it is zeroed.
    ///
    /// # Errors
    /// If device memory is too small, or the device fails.
    pub fn new(
        cuda: &Cuda,
        shape: RunShape,
        runs: usize,
        stream: &Stream,
    ) -> Result<Slices, JobError> {
        let count = runs.max(1) * shape.partitions();
        let slices = cuda.buffer::<Slice>(count)?.all();
        let next = cuda.buffer::<u32>(count)?.all();
        drop(fill(cuda, 0, slices.clone(), stream)?);
        Ok(Slices {
            shape,
            divided: vec![false; runs],
            slices,
            next,
            sieve: None,
        })
    }

    /// Returns the layout of a run.
    pub fn shape(&self) -> RunShape {
        self.shape
    }

    /// Returns the number of runs.
    pub fn runs(&self) -> usize {
        self.divided.len()
    }

    /// Returns the bytes of device memory that the slices of this many runs take, with the places where kernels find
    /// them in a join.
    pub fn bytes(shape: RunShape, runs: usize) -> u64 {
        // On the build side, each table has places of its own.
        let of_slice = size_of::<Slice>() + size_of::<u32>() + size_of::<Run>();
        (runs * shape.partitions() * of_slice) as u64
    }

    /// Queues kernels that copy rows, or those that a sieve keeps, into the memory of a run, and returns at once. All
    /// runs with one sieve must be divided on one stream.
    ///
    /// # Errors
    /// If a kernel does not compile, or the device fails.
    ///
    /// # Panics
    /// If there is no such run, it was divided before, has too many rows, or the memory is too small; if the columns
    /// differ in length, are not whole values of the width or not aligned to it, or memory is that of another device.
    pub fn divide_async(
        &mut self,
        cuda: &mut Cuda,
        rows: &DeviceRows,
        run: usize,
        to: &DeviceView<u8>,
        stream: &Stream,
    ) -> Result<InFlight, JobError> {
        let count = rows.count(self.shape.width);
        assert!(count <= self.shape.rows, "{count} rows in {:?}", self.shape);
        let was_divided = std::mem::replace(&mut self.divided[run], true);
        assert!(!was_divided, "run {run} is divided a second time");
        let of_run = self.of_run(run);
        let (slices, next) = (self.slices.view(of_run.clone()), self.next.view(of_run));
        let to = to.view(0..self.shape.bytes() as usize);
        assert_is_aligned(to.pointer());
        let kept = match &self.sieve {
            None => None,
            Some((sieve, side)) => Some(sieve.sift_async(cuda, (rows, *side), stream)?),
        };
        let rows = (rows, self.shape, kept);
        launch::divide(cuda, rows, (slices, next), to, stream)
    }

    /// Returns the indexes of the slices of a run.
    fn of_run(&self, run: usize) -> Range<usize> {
        let partitions = self.shape.partitions();
        run * partitions..(run + 1) * partitions
    }

    /// Reads the slices of each run. Blocks until the earlier work of the stream is done.
    ///
    /// # Errors
    /// If the device fails.
    fn read(&self, cuda: &Cuda, stream: &Stream) -> Result<Vec<RunSlices>, JobError> {
        let known = read_all(cuda, self.slices.clone(), stream)?;
        let known = known.chunks(self.shape.partitions());
        let slices = (0..self.runs()).zip(known).map(|(run, known)| RunSlices {
            view: self.slices.view(self.of_run(run)),
            known: known.into(),
        });
        Ok(slices.collect())
    }
}

/// The slices of a run, one for each partition. Clones share memory.
#[derive(Debug, Clone)]
struct RunSlices {
    /// For kernels.
    view: DeviceView<Slice>,
    /// The same, for the host.
    known: Arc<[Slice]>,
}

/// Returns the byte range of a run that contains the rows of adjacent slices; empty if they have none.
fn bytes_of(slices: &[Slice], width: Width) -> Range<u64> {
    let (Some(first), Some(last)) = (slices.first(), slices.last()) else {
        return 0..0;
    };
    let room = u64::from(last.count).next_multiple_of(u64::from(SLICE_ROWS));
    let rows = u64::from(first.begin)..u64::from(last.begin) + room;
    rows.start * width.row_bytes()..rows.end * width.row_bytes()
}

/// A side in partitions. Clones are the same side.
#[derive(Debug, Clone)]
pub struct DevicePartitions {
    shape: RunShape,
    runs: Vec<DividedRun>,
}

/// A run in the order of its partitions.
#[derive(Debug, Clone)]
struct DividedRun {
    rows: Column,
    /// Offset in the run of the first byte of the column.
    first: u64,
    slices: RunSlices,
}

impl DevicePartitions {
    /// Takes the memory of all runs, which [`Slices::divide_async`] has written: in the device or, after a copy, in
    /// pinned host memory. Blocks until the earlier work of the stream is done.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If the number of runs is not that of the slices, or memory is too small or that of another device.
    pub fn new(
        cuda: &Cuda,
        slices: Slices,
        runs: Vec<Column>,
        stream: &Stream,
    ) -> Result<Self, JobError> {
        let shape = slices.shape;
        assert_eq!(runs.len(), slices.divided.len());
        for memory in &runs {
            memory.assert_reaches(cuda);
            assert!(memory.bytes() >= shape.bytes(), "{memory:?}");
            assert_is_aligned(memory.pointer());
        }
        let runs = runs.into_iter().zip(slices.read(cuda, stream)?);
        let runs = runs.map(|(rows, slices)| DividedRun {
            rows,
            first: 0,
            slices,
        });
        Ok(DevicePartitions {
            shape,
            runs: runs.collect(),
        })
    }

    /// Appends the runs of another part of the same side, which may be in memory of another device.
    ///
    /// # Panics
    /// If the parts differ in width or in the number of partitions.
    pub fn append(&mut self, other: &DevicePartitions) {
        assert_eq!(self.width_and_bits(), other.width_and_bits());
        self.runs.extend_from_slice(&other.runs);
    }

    /// Returns the number of rows of the largest partition.
    pub fn largest(&self) -> u64 {
        let rows = |partition| self.of_partition(partition).map(|it| u64::from(it.count));
        let partitions = 0..self.shape.partitions();
        partitions.map(|it| rows(it).sum()).max().unwrap_or(0)
    }

    fn width_and_bits(&self) -> (Width, u32) {
        (self.shape.width, self.shape.bits)
    }

    /// Asserts that kernels of a device can read all rows of these partitions.
    fn assert_reaches(&self, cuda: &Cuda, partitions: &Range<usize>) {
        for run in &self.runs {
            run.rows.assert_reaches(cuda);
            cuda.assert_reaches(&run.slices.view);
            let bytes = bytes_of(&run.slices.known[partitions.clone()], self.shape.width);
            let has = run.first..run.first + run.rows.bytes();
            let is_there = has.start <= bytes.start && bytes.end <= has.end;
            assert!(bytes.is_empty() || is_there, "{bytes:?} of {has:?}");
        }
    }

    /// Returns the slice that a partition has of each run.
    fn of_partition(&self, partition: usize) -> impl Iterator<Item = Slice> {
        self.runs.iter().map(move |run| run.slices.known[partition])
    }

    /// Returns where kernels find a run in its column.
    fn place(&self, run: usize) -> Run {
        let run = &self.runs[run];
        // The column starts `first` bytes into the run.
        let address = run.rows.pointer().address().wrapping_sub(run.first);
        Run {
            rows: DevicePointer::new(address),
            slices: run.slices.view.pointer(),
        }
    }
}

/// Asserts that kernels may read and write vectors of 16 bytes at an address.
///
/// # Panics
/// If they may not.
fn assert_is_aligned(address: DevicePointer<u8>) {
    let address = address.address();
    assert!(address.is_multiple_of(16), "memory at {address:#x}");
}

/// Copies values to new device memory. Blocks until they are there.
fn uploaded<T: DeviceType + 'static>(
    cuda: &Cuda,
    values: &[T],
    stream: &Stream,
) -> Result<DeviceView<T>, JobError> {
    let to = cuda.buffer::<T>(values.len().max(1))?.all();
    if values.is_empty() {
        return Ok(to.view(0..0));
    }
    upload(cuda, values, to.clone(), stream)?;
    Ok(to)
}

/// Copies values to device memory. Blocks until they are there.
fn upload<T: DeviceType + 'static>(
    cuda: &Cuda,
    values: &[T],
    to: DeviceView<T>,
    stream: &Stream,
) -> Result<(), JobError> {
    let host = Part::divide(T::bytes_of(values).into_boxed_slice(), &[]);
    let host = host.into_iter().next().expect("one part");
    Transfer::begin(cuda, host, to, stream)?.finish()?;
    Ok(())
}

/// Device memory in which a join builds its tables, one after another. Nothing else may use it during the join.
#[derive(Debug, Clone)]
pub struct TableMemory {
    /// The slots.
    pub slots: DeviceView<u8>,
    /// Copies of the rows of a table that are in host memory: of one table while it is built, and of the next two. Each
    /// has half the bytes of the slots, and those of 32 rows more for each run of the build side.
    pub staging: [DeviceView<u8>; STAGES],
}

/// A join of two sides in partitions, step by step. A step builds a table from a partition's rows on the build side, or
/// from those of some runs if all have no room, and probes it with the partition's rows on the probe side.
///
/// Rows of the build side that are in host memory are copied to the device first: a kernel that inserts waits for each
/// access to the table, and on a multiprocessor these accesses seem to wait behind other threads' reads from the host.
/// A probe rarely goes on to a second slot that is not in its cache, and reads its rows where they are.
///
/// PERF: one H100, November 28, 2026, 8 million rows into 2^24 slots. By `ncu` of `forebay bench joins --only spilled
/// --tables partitioned --scale 0.25 --device-bytes 2G` shortly before 535befe3: an insert that reads 61 % of its rows
/// in host memory takes 7.4 ms, in which the bus brings 11 GB/s; a probe that reads all there 2.5 ms, 50 GB/s. By a
/// program that does nothing else: an insert that reads device memory takes 1.4 ms.
#[derive(Debug)]
pub struct PartitionJoin {
    memory: Arc<JoinMemory>,
    steps: Vec<TableRows>,
    /// The stream of the kernels, and that of the copies to the staging memory.
    streams: [Stream; 2],
    /// The next step; `None` after one that could not be queued.
    next: Option<usize>,
    /// The copies for the next steps.
    staged: VecDeque<Staged>,
    /// The last insert from each staging memory.
    inserted: [Option<Arc<Event>>; STAGES],
}

/// What the kernels of a join use.
#[derive(Debug)]
pub(crate) struct JoinMemory {
    build: DevicePartitions,
    probe: DevicePartitions,
    table: TableMemory,
    /// Where kernels find the runs of the probe side, then those of each step.
    places: DeviceView<Run>,
    outcomes: DeviceView<Outcome>,
    totals: Totals,
}

/// The rows of a table.
#[derive(Debug)]
struct TableRows {
    partition: usize,
    shape: TableShape,
    rows: u64,
    /// Indexes of its runs' places.
    places: Range<usize>,
    /// What is copied before; taken when it is queued.
    copies: Vec<SliceCopy>,
}

/// A copy of a slice from host memory to a range of the staging memory.
#[derive(Debug)]
struct SliceCopy {
    from: RegisteredPart<AlignedBytes>,
    to: Range<usize>,
}

/// Copies in flight, and the event after them.
#[derive(Debug)]
struct Staged {
    _copies: Vec<Transfer<RegisteredPart<AlignedBytes>, DeviceView<u8>>>,
    event: Arc<Event>,
}

/// The work of a step. Dropping it waits for the step.
#[derive(Debug)]
#[must_use = "dropping it waits for the step"]
pub struct StepInFlight {
    _probing: InFlight,
    _inserting: InFlight,
    _emptied: Transfer<Fill, DeviceView<u8>>,
    _staged: Staged,
}

impl JoinMemory {
    /// Asserts that it is in memory of this device.
    ///
    /// # Panics
    /// If it is in that of another one.
    pub(crate) fn assert_is_of(&self, cuda: &Cuda) {
        // The rest was allocated beside it.
        cuda.assert_owns(&self.outcomes);
    }
}

impl PartitionJoin {
    /// Plans the join of some partitions of both sides. Kernels run on the first stream, copies on the second. Blocks
    /// until totals are zeroed.
    ///
    /// # Errors
    /// [`IndexError::TooManyRows`] if the rows that a run has of one partition have no room in the table; if device
    /// memory is too small, or the device fails.
    ///
    /// # Panics
    /// If the sides differ in width or in the number of partitions, or lack some of these partitions or of their
    /// rows; if memory is too small, is not aligned to 16 bytes, or belongs to another device (a side: to one that
    /// this device does not reach).
    pub fn new(
        cuda: &Cuda,
        (build, probe): (DevicePartitions, DevicePartitions),
        partitions: Range<usize>,
        table: TableMemory,
        streams: [Stream; 2],
    ) -> Result<PartitionJoin, IndexError> {
        let width = build.shape.width;
        assert_eq!(build.width_and_bits(), probe.width_and_bits());
        build.assert_reaches(cuda, &partitions);
        probe.assert_reaches(cuda, &partitions);
        cuda.assert_owns(&table.slots);
        table.staging.iter().for_each(|it| cuda.assert_owns(it));
        assert_is_aligned(table.slots.pointer());
        table
            .staging
            .iter()
            .for_each(|it| assert_is_aligned(it.pointer()));
        let mut places: Vec<Run> = (0..probe.runs.len()).map(|run| probe.place(run)).collect();
        let mut steps = Vec::new();
        for partition in partitions {
            let slices: Vec<Slice> = build.of_partition(partition).collect();
            let counts: Vec<u64> = slices.iter().map(|it| u64::from(it.count)).collect();
            for (runs, shape) in tables(&counts, width, table.slots.len() as u64)? {
                let begin = places.len();
                let staging = &table.staging[steps.len() % STAGES];
                let copies = staged(&build, staging, (&slices, runs.clone()), &mut places);
                steps.push(TableRows {
                    partition,
                    shape,
                    rows: counts[runs].iter().sum(),
                    places: begin..places.len(),
                    copies,
                });
            }
        }
        let stream = &streams[0];
        let outcomes = cuda.buffer::<Outcome>(steps.len().max(1))?.all();
        drop(fill(cuda, 0, outcomes.clone(), stream)?);
        let memory = JoinMemory {
            build,
            probe,
            table,
            places: uploaded(cuda, &places, stream)?,
            outcomes,
            totals: Totals::zero(cuda, stream)?,
        };
        Ok(PartitionJoin {
            memory: Arc::new(memory),
            steps,
            streams,
            next: Some(0),
            staged: VecDeque::new(),
            inserted: [const { None }; STAGES],
        })
    }

    /// Returns the number of steps.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Queues the kernels of the next step and copies for those after it, and returns at once. Returns `None` after the
    /// last one.
    ///
    /// # Errors
    /// If a kernel does not compile, or the device fails.
    ///
    /// # Panics
    /// After an error.
    pub fn next_async(&mut self, cuda: &mut Cuda) -> Result<Option<StepInFlight>, JobError> {
        let step = self.next.take().expect("no step has failed");
        if step == self.steps.len() {
            self.next = Some(step);
            return Ok(None);
        }
        for ahead in self.staged.len()..STAGES.min(self.steps.len() - step) {
            let staged = self.stage(cuda, step + ahead)?;
            self.staged.push_back(staged);
        }
        let staged = self.staged.pop_front().expect("at least one step is left");
        let (memory, of_step, stream) = (&self.memory, &self.steps[step], &self.streams[0]);
        let shape = of_step.shape;
        let slots = memory.table.slots.view(0..shape.slot_bytes() as usize);
        let at = (slots.pointer_mut(), DevicePointerMut::new(0));
        let emptied = Transfer::begin(cuda, Fill(0xFF), slots, stream)?;
        cuda.wait(stream, &staged.event)?;
        let index = HashIndexRef::new(&shape, at, &Contents::default());
        let index = index.after(memory.build.shape.bits);
        let outcome = memory.outcomes.view(step..step + 1);
        let inserting = InsertingPartition {
            rows: memory.rows(of_step.partition, of_step.places.clone(), of_step.rows),
            index,
            outcome: outcome.pointer_mut(),
        };
        let inserting = launch::insert_partition(cuda, (&shape, memory), inserting, stream)?;
        self.inserted[step % STAGES] = Some(cuda.mark(stream)?);
        let probe = memory.probe.of_partition(of_step.partition);
        let rows = probe.map(|slice| u64::from(slice.count)).sum();
        let probing = ProbingPartition {
            rows: memory.rows(of_step.partition, 0..memory.probe.runs.len(), rows),
            index,
            outcome: outcome.pointer(),
            totals: memory.totals.view().pointer_mut(),
        };
        let probing = launch::probe_partition(cuda, (&shape, memory), probing, stream)?;
        self.next = Some(step + 1);
        Ok(Some(StepInFlight {
            _probing: probing,
            _inserting: inserting,
            _emptied: emptied,
            _staged: staged,
        }))
    }

    /// Queues the copies for a step, after the insert that used the same staging memory.
    fn stage(&mut self, cuda: &Cuda, step: usize) -> Result<Staged, JobError> {
        let (stream, to) = (&self.streams[1], &self.memory.table.staging[step % STAGES]);
        if let Some(inserted) = &self.inserted[step % STAGES] {
            cuda.wait(stream, inserted)?;
        }
        let copies = std::mem::take(&mut self.steps[step].copies);
        let copies = copies.into_iter().map(|copy| {
            let SliceCopy { from, to: range } = copy;
            Transfer::begin(cuda, from, to.view(range), stream)
        });
        let copies = copies.collect::<Result<_, _>>()?;
        Ok(Staged {
            _copies: copies,
            event: cuda.mark(stream)?,
        })
    }

    /// Returns the matches of all steps. Blocks until they are there.
    ///
    /// # Errors
    /// [`IndexError::ChainTooLong`] if keys have too many rows in one table; if the device fails.
    ///
    /// # Panics
    /// If a step was not queued.
    pub fn finish(&self, cuda: &Cuda) -> Result<JoinTotals, IndexError> {
        assert_eq!(self.next, Some(self.steps.len()), "steps that were queued");
        let stream = &self.streams[0];
        let outcomes = read_all(cuda, self.memory.outcomes.clone(), stream)?;
        for (step, outcome) in self.steps.iter().zip(&outcomes) {
            Contents::of(&step.shape, outcome)?;
        }
        Ok(self.memory.totals.read(cuda, stream)?)
    }
}

impl JoinMemory {
    /// Returns what kernels take to read the `rows` rows of a partition in the runs at some places.
    fn rows(&self, partition: usize, places: Range<usize>, rows: u64) -> PartitionRows {
        let runs = places.len();
        PartitionRows {
            runs: self.places.view(places).pointer(),
            run_count: runs as u32,
            partition: partition as u32,
            blocks_of_run: (rows / runs.max(1) as u64).div_ceil(BLOCK_ROWS).max(1) as u32,
        }
    }
}

/// Returns the copies that bring the slices of some runs of a partition from host memory to the staging memory, and
/// appends where kernels then find the runs.
fn staged(
    build: &DevicePartitions,
    staging: &DeviceView<u8>,
    (slices, runs): (&[Slice], Range<usize>),
    places: &mut Vec<Run>,
) -> Vec<SliceCopy> {
    let row_bytes = build.shape.width.row_bytes();
    let (mut copies, mut end) = (Vec::new(), 0);
    for run in runs {
        let mut place = build.place(run);
        let Slice { begin, count } = slices[run];
        if let (Column::Pinned(memory, range), 1..) = (&build.runs[run].rows, count) {
            let room = u64::from(count.next_multiple_of(SLICE_ROWS));
            let (begin, bytes) = (u64::from(begin) * row_bytes, room * row_bytes);
            let from = range.start + (begin - build.runs[run].first) as usize;
            let to = end..end + bytes as usize;
            end = to.end;
            // The slice begins at `begin` of the run.
            let address = staging.pointer().address() + to.start as u64;
            place.rows = DevicePointer::new(address.wrapping_sub(begin));
            let from = RegisteredPart::new(memory, from..from + bytes as usize);
            copies.push(SliceCopy { from, to });
        }
        places.push(place);
    }
    assert!(end <= staging.len(), "{end} bytes of {}", staging.len());
    copies
}

/// Divides the runs of a partition, whose rows are given, among as few tables as possible of at most `bytes` bytes.
pub(crate) fn tables(
    counts: &[u64],
    width: Width,
    bytes: u64,
) -> Result<Vec<(Range<usize>, TableShape)>, IndexError> {
    let shape = |rows| TableShape::linear_probing(width, rows);
    let mut found: Vec<(Range<usize>, TableShape)> = Vec::new();
    let (mut begin, mut rows) = (0, 0);
    for (run, count) in counts.iter().enumerate() {
        if shape(rows + count).slot_bytes() > bytes && rows > 0 {
            found.push((begin..run, shape(rows)));
            (begin, rows) = (run, 0);
        }
        rows += count;
        if shape(rows).slot_bytes() > bytes {
            let slots = bytes / shape(0).bytes_of_slot();
            return Err(IndexError::TooManyRows { rows, slots });
        }
    }
    if rows > 0 {
        found.push((begin..counts.len(), shape(rows)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_partitions_are_those_from_the_first_slice_to_the_last_payload() {
        let slice = |begin, count| Slice { begin, count };
        // Slices have room for 32, 0, 64 and 32 rows.
        let slices = [slice(0, 5), slice(32, 0), slice(32, 33), slice(96, 32)];
        assert_eq!(bytes_of(&slices, Width::Eight), 0..2048);
        assert_eq!(bytes_of(&slices[1..3], Width::Four), 256..768);
        assert_eq!(bytes_of(&slices[2..], Width::Composite), 768..3072);
        assert!(bytes_of(&slices[1..2], Width::Four).is_empty());
        assert!(bytes_of(&[], Width::Four).is_empty());
    }

    #[test]
    fn runs_share_tables_that_have_room_for_them() {
        let divided = |counts: &[u64], slots: u64| {
            let tables = tables(counts, Width::Eight, 16 * slots).expect("room for a run");
            let tables = tables
                .into_iter()
                .map(|(runs, shape)| (runs, shape.slots()));
            tables.collect::<Vec<_>>()
        };
        assert_eq!(divided(&[], 64), []);
        assert_eq!(divided(&[0, 0], 64), []);
        assert_eq!(divided(&[10, 0, 6], 64), [(0..3, 32)]);
        assert_eq!(divided(&[10, 0, 7], 64), [(0..3, 64)]);
        assert_eq!(
            divided(&[20, 12, 1, 31, 32], 64),
            [(0..2, 64), (2..4, 64), (4..5, 64)]
        );
        let error = tables(&[3, 33], Width::Four, 8 * 64).expect_err("no room");
        assert!(
            error.to_string().contains("64 slots has no room for 33"),
            "{error}"
        );
    }
}
