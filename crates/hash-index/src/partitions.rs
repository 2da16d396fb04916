//! Sides of a join in partitions, for kernels: each partition has a table of its own.

use std::ops::Range;
use std::sync::Arc;

use forebay_device::JobError;
use forebay_device::cuda::{
    Cuda, DevicePointer, DevicePointerMut, DeviceType, DeviceView, Fill, Part, Stream, Transfer,
};

use crate::column::{Column, DeviceRows};
use crate::error::IndexError;
use crate::index::{Contents, Totals, fill, read_all};
use crate::kernels::{
    HashIndexRef, JoinTotals, Outcome, PARTITION_BITS_MAX, PartitionRows, Run, SLICE_ROWS, Slice,
};
use crate::launch::{self, InFlight};
use crate::shape::{TableShape, Width};

/// Maximum number of rows of a run, whose slices are counted by 32-bit numbers.
const RUN_ROWS_MAX: u64 = 1 << 30;
/// Rows of a slice for which a block has enough to do.
const BLOCK_ROWS: u64 = 4096;

/// The layout of a run: some rows of a side, in the order of their partitions. A column of keys is followed by one of
/// payloads.
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
    /// If the rows exceed 2^30, or the bits 10.
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
        2 * self.column_bytes()
    }

    /// Returns the bytes of a column, whose slices begin at whole lines.
    fn column_bytes(&self) -> u64 {
        let rows = self.rows + u64::from(SLICE_ROWS << self.bits);
        rows.next_multiple_of(u64::from(SLICE_ROWS)) * self.width.bytes()
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
        })
    }

    /// Returns the number of runs.
    pub fn runs(&self) -> usize {
        self.divided.len()
    }

    /// Returns the bytes of device memory that the slices of this many runs take, with those of a side in partitions.
    pub fn bytes(shape: RunShape, runs: usize) -> u64 {
        let of_slice = size_of::<Slice>() + size_of::<u32>();
        (runs * (shape.partitions() * of_slice + size_of::<Run>())) as u64
    }

    /// Queues kernels that copy rows into the memory of a run, and returns at once.
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
        let column = self.shape.column_bytes() as usize;
        let to = [to.view(0..column), to.view(column..2 * column)];
        launch::divide(cuda, (rows, self.shape), (slices, next), to, stream)
    }

    /// Returns the indexes of the slices of a run.
    fn of_run(&self, run: usize) -> Range<usize> {
        let partitions = self.shape.partitions();
        run * partitions..(run + 1) * partitions
    }
}

/// A side in partitions.
#[derive(Debug)]
pub struct DevicePartitions {
    memory: Arc<RunMemory>,
    /// Numbers of rows: those of all partitions of the first run, then of the next one.
    counts: Vec<u32>,
}

/// What kernels that read the runs of a side use.
#[derive(Debug)]
pub(crate) struct RunMemory {
    slices: Slices,
    runs: Vec<Column>,
    /// Where kernels find each run.
    places: DeviceView<Run>,
}

impl DevicePartitions {
    /// Takes the memory of all runs, which [`Slices::divide_async`] has written: in the device or, after a copy, in
    /// pinned host memory. Blocks until the earlier work of the stream is done.
    ///
    /// # Errors
    /// If device memory is too small, or the device fails.
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
        let first = slices.slices.pointer().address();
        let of_run = (shape.partitions() * size_of::<Slice>()) as u64;
        let places = runs.iter().zip(0..).map(|(memory, run)| {
            memory.assert_is_of(cuda);
            assert!(memory.bytes() >= shape.bytes(), "{memory:?}");
            let keys = memory.pointer();
            Run {
                keys,
                payloads: DevicePointer::new(keys.address() + shape.column_bytes()),
                slices: DevicePointer::new(first + run * of_run),
            }
        });
        let places: Vec<Run> = places.collect();
        let counts = read_all(cuda, slices.slices.clone(), stream)?;
        Ok(DevicePartitions {
            counts: counts
                .into_iter()
                .map(|slice| slice.count)
                .take(runs.len() * shape.partitions())
                .collect(),
            memory: Arc::new(RunMemory {
                places: uploaded(cuda, &places, stream)?,
                slices,
                runs,
            }),
        })
    }

    /// Returns the rows of a partition in each run.
    fn counts(&self, partition: usize) -> impl Iterator<Item = u64> {
        let partitions = self.memory.slices.shape.partitions();
        let counts = self.counts.iter().skip(partition).step_by(partitions);
        counts.map(|count| u64::from(*count))
    }

    fn shape(&self) -> RunShape {
        self.memory.slices.shape
    }

    /// Returns what kernels take to read a partition of some runs.
    fn rows(&self, partition: usize, runs: Range<usize>) -> PartitionRows {
        let run_count = runs.len().max(1) as u64;
        let counts = self.counts(partition);
        let rows: u64 = counts.skip(runs.start).take(runs.len()).sum();
        let places = self.memory.places.view(runs.clone());
        PartitionRows {
            runs: places.pointer(),
            run_count: runs.len() as u32,
            partition: partition as u32,
            blocks_of_run: (rows / run_count).div_ceil(BLOCK_ROWS).max(1) as u32,
        }
    }
}

impl RunMemory {
    /// Asserts that it is in memory of this device.
    ///
    /// # Panics
    /// If it is in that of another one.
    pub(crate) fn assert_is_of(&self, cuda: &Cuda) {
        cuda.assert_owns(&self.places);
        cuda.assert_owns(&self.slices.slices);
        self.runs.iter().for_each(|run| run.assert_is_of(cuda));
    }
}

/// Copies values to device memory. Blocks until they are there.
fn uploaded<T: DeviceType + 'static>(
    cuda: &Cuda,
    values: &[T],
    stream: &Stream,
) -> Result<DeviceView<T>, JobError> {
    let to = cuda.buffer::<T>(values.len().max(1))?.all();
    if values.is_empty() {
        return Ok(to.view(0..0));
    }
    let host = Part::divide(T::bytes_of(values).into_boxed_slice(), &[]);
    let host = host.into_iter().next().expect("one part");
    Transfer::begin(cuda, host, to.clone(), stream)?.finish()?;
    Ok(to)
}

/// A join of two sides in partitions, step by step. A step builds a table from a partition's rows on the build side, or
/// from those of some runs if all have no room, and probes it with the partition's rows on the probe side.
#[derive(Debug)]
pub struct PartitionJoin {
    build: DevicePartitions,
    probe: DevicePartitions,
    table: DeviceView<u8>,
    steps: Vec<TableRows>,
    outcomes: DeviceView<Outcome>,
    totals: Totals,
    stream: Stream,
    /// The next step.
    next: usize,
}

/// The work of a step. Dropping it waits for the step.
#[derive(Debug)]
#[must_use = "dropping it waits for the step"]
pub struct StepInFlight {
    _probing: InFlight,
    _inserting: InFlight,
    _emptied: Transfer<Fill, DeviceView<u8>>,
}

/// The rows of a table.
#[derive(Debug)]
struct TableRows {
    partition: usize,
    runs: Range<usize>,
    shape: TableShape,
}

impl PartitionJoin {
    /// Plans the join of sides whose tables all use this memory, one after another on this stream. Blocks until totals
    /// are zeroed.
    ///
    /// # Errors
    /// [`IndexError::TooManyRows`] if the rows that a run has of one partition have no room in the table; if device
    /// memory is too small, or the device fails.
    ///
    /// # Panics
    /// If the sides differ in width or in the number of partitions, or memory is that of another device.
    pub fn new(
        cuda: &Cuda,
        (build, probe): (DevicePartitions, DevicePartitions),
        table: DeviceView<u8>,
        stream: &Stream,
    ) -> Result<PartitionJoin, IndexError> {
        let (ours, theirs) = (build.shape(), probe.shape());
        assert_eq!((ours.width, ours.bits), (theirs.width, theirs.bits));
        cuda.assert_owns(&table);
        let mut steps = Vec::new();
        for partition in 0..ours.partitions() {
            let counts: Vec<u64> = build.counts(partition).collect();
            let tables = tables(&counts, ours.width, table.len() as u64)?;
            steps.extend(tables.into_iter().map(|(runs, shape)| TableRows {
                partition,
                runs,
                shape,
            }));
        }
        let outcomes = cuda.buffer::<Outcome>(steps.len().max(1))?.all();
        drop(fill(cuda, 0, outcomes.clone(), stream)?);
        Ok(PartitionJoin {
            build,
            probe,
            table,
            steps,
            outcomes,
            totals: Totals::zero(cuda, stream)?,
            stream: stream.clone(),
            next: 0,
        })
    }

    /// Returns the number of steps.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Queues the kernels of the next step, and returns at once; `None` after the last one.
    ///
    /// # Errors
    /// If a kernel does not compile, or the device fails.
    pub fn next_async(&mut self, cuda: &mut Cuda) -> Result<Option<StepInFlight>, JobError> {
        let (step, stream) = (self.next, &self.stream);
        let Some(of_step) = self.steps.get(step) else {
            return Ok(None);
        };
        let TableRows {
            partition, shape, ..
        } = *of_step;
        let table = self.table.view(0..shape.slot_bytes() as usize);
        let emptied = Transfer::begin(cuda, Fill(0xFF), table.clone(), stream)?;
        let outcome = self.outcomes.view(step..step + 1);
        let places = (table.pointer_mut(), DevicePointerMut::new(0));
        let index = HashIndexRef::new(&shape, places, &Contents::default());
        let index = index.after(self.build.shape().bits);
        let build = (
            &self.build.memory,
            self.build.rows(partition, of_step.runs.clone()),
        );
        let to = (&shape, index, &table);
        let inserting = launch::insert_partition(cuda, to, build, &outcome, stream)?;
        let runs = 0..self.probe.memory.runs.len();
        let probe = (&self.probe.memory, self.probe.rows(partition, runs));
        let probing = launch::probe_partition(cuda, to, probe, (&outcome, &self.totals), stream)?;
        self.next += 1;
        Ok(Some(StepInFlight {
            _probing: probing,
            _inserting: inserting,
            _emptied: emptied,
        }))
    }

    /// Returns the matches of all steps. Blocks until they are there.
    ///
    /// # Errors
    /// [`IndexError::ChainTooLong`] if a key has more than about 4,096 rows in one table; if the device fails.
    ///
    /// # Panics
    /// If a step was not queued.
    pub fn finish(&self, cuda: &Cuda) -> Result<JoinTotals, IndexError> {
        assert_eq!(self.next, self.steps.len(), "steps that were queued");
        let outcomes = read_all(cuda, self.outcomes.clone(), &self.stream)?;
        for (step, outcome) in self.steps.iter().zip(&outcomes) {
            Contents::of(&step.shape, outcome)?;
        }
        Ok(self.totals.read(cuda, &self.stream)?)
    }
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
            let slots = bytes / (2 * width.bytes());
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
