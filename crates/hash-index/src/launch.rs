//! Launches of this crate's kernels. What a kernel uses is kept until it has finished.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use forebay_device::cuda::{
    Cuda, DeviceView, Event, InterleavedMemory, Kernel, KernelArguments, LaunchShape, Stream,
};
use forebay_device::{DeviceFault, JobError};

use crate::column::DeviceRows;
use crate::index::{Table, Totals};
use crate::kernels::{
    BLOCKS_OF_CHUNK, Dividing, Emptying, Generating, INDEX, Inserting, InsertingPartition, Outcome,
    PARTITIONS, PartitionRows, Probing, ProbingPartition, ROWS_AHEAD, Slice, THREADS,
    THREADS_OF_TILE, TILE_BYTES_OF_THREAD, WORKLOAD, WritingRun, entry, entry_of,
};
use crate::partitions::sieve::Sieve;
use crate::partitions::written::{HostPart, UsedToWrite};
use crate::partitions::{JoinMemory, RunShape};
use crate::shape::{TableShape, Width};
use crate::workload::{ProbeKeys, Side, Workload};

/// Minimum number of rows that a thread sifts: it adds up consecutive rows of one heavy key before an atomic
/// operation.
const SIFTED_ROWS: u64 = 32;
/// Number of blocks that copy a run to host memory: enough for the rate of the bus, and few beside the kernels that
/// divide.
const BLOCKS_OF_COPY: u64 = 32;

/// A kernel in flight. It owns what the kernel uses; dropping it waits for the kernel.
#[must_use = "dropping it waits for the kernel"]
pub struct InFlight {
    event: Arc<Event>,
    used: Box<dyn Any + Send>,
}

impl InFlight {
    /// Returns whether the kernel has finished. Does not block.
    ///
    /// # Errors
    /// The fault of earlier work on the device.
    pub(crate) fn is_done(&self) -> Result<bool, DeviceFault> {
        self.event.is_done()
    }

    /// Returns the event that completes when the kernel has finished.
    pub(crate) fn event(&self) -> &Arc<Event> {
        &self.event
    }

    /// Blocks until the kernel has finished, and returns what it used.
    ///
    /// # Errors
    /// A fault of the device.
    ///
    /// # Panics
    /// If the launch used something of another type than `T`.
    pub(crate) fn finish<T: 'static>(mut self) -> Result<Box<T>, DeviceFault> {
        self.event.wait()?;
        let used = std::mem::replace(&mut self.used, Box::new(()));
        Ok(used.downcast().expect("what the launch was given"))
    }

    /// Leaves what the kernel uses to the device, which drops it some time after the kernel has finished. Returns at
    /// once.
    pub fn leave(self, cuda: &mut Cuda) {
        let event = Arc::clone(&self.event);
        cuda.retire(self, event);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // On a failed device no kernel runs, so the error is ignored.
        let _ = self.event.wait();
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight")
            .field("event", &self.event)
            .finish_non_exhaustive()
    }
}

/// Queues a kernel that empties slots at the beginning of interleaved memory: those on the GPU with this index.
pub(crate) fn empty(
    cuda: &mut Cuda,
    slots: &DeviceView<u8>,
    (memory, gpu): (&InterleavedMemory, usize),
    stream: &Stream,
) -> Result<InFlight, JobError> {
    cuda.assert_owns(slots);
    assert_eq!(
        slots.pointer().address(),
        memory.all(gpu).pointer().address()
    );
    assert!(slots.len().is_multiple_of(16), "{} bytes", slots.len());
    let kernel = cuda.kernel(&INDEX, "empty_slots")?;
    let arguments = Emptying {
        slots: slots.pointer_mut(),
        bytes: slots.len() as u64,
        chunk_bytes: memory.chunk_bytes(),
        gpus: memory.gpus() as u32,
        gpu: gpu as u32,
        blocks_of_chunk: BLOCKS_OF_CHUNK,
        unused: 0,
    };
    let chunks = arguments.bytes.div_ceil(arguments.chunk_bytes);
    let own_chunks = chunks.div_ceil(arguments.gpus.into());
    let mut shape = kernel.persistent_shape(THREADS, 0)?;
    shape.blocks = shape.blocks.min(own_chunks * u64::from(BLOCKS_OF_CHUNK));
    // SAFETY: `empty_slots` takes `Emptying`. It writes the chunks of this GPU up to `bytes`, the length of `slots`,
    // which `used` owns. Chunks, and so their vectors, begin at multiples of 16.
    unsafe { launch(cuda, (&kernel, &shape), &arguments, slots.clone(), stream) }
}

/// Queues a kernel that inserts rows.
pub(crate) fn insert(
    cuda: &mut Cuda,
    table: &Table,
    rows: &DeviceRows,
    outcome: &DeviceView<Outcome>,
    stream: &Stream,
) -> Result<InFlight, JobError> {
    assert_are_for(cuda, table, rows);
    cuda.assert_owns(outcome);
    let kernel = cuda.kernel(&INDEX, &table.entry("insert"))?;
    let arguments = Inserting {
        rows: rows.rows(table.shape.width()),
        index: table.index_ref(),
        outcome: outcome.pointer_mut(),
    };
    let shape = shape_for(&kernel, arguments.rows.count)?;
    let used = (table.clone(), rows.clone(), outcome.clone());
    // SAFETY: `insert` and `insert_own` take `Inserting`. They read both columns, each of `count` values, access the
    // slots and bits of the table by atomic operations or in slots that their thread took, and add to the outcome.
    // `used` owns all of them.
    unsafe { launch(cuda, (&kernel, &shape), &arguments, used, stream) }
}

/// Queues a kernel that probes.
pub(crate) fn probe(
    cuda: &mut Cuda,
    table: &Table,
    rows: &DeviceRows,
    totals: &Totals,
    stream: &Stream,
) -> Result<InFlight, JobError> {
    assert_are_for(cuda, table, rows);
    cuda.assert_owns(totals.view());
    let kernel = cuda.kernel(&INDEX, &table.entry("probe"))?;
    let arguments = Probing {
        rows: rows.rows(table.shape.width()),
        index: table.index_ref(),
        totals: totals.view().pointer_mut(),
    };
    let shape = shape_for(&kernel, arguments.rows.count)?;
    let used = (table.clone(), rows.clone(), totals.view().clone());
    // SAFETY: `probe` and `probe_own` take `Probing`. They read both columns, each of `count` values, and the table,
    // which nothing writes since it is built, and add to the totals by atomic operations. `used` owns all of them.
    unsafe { launch(cuda, (&kernel, &shape), &arguments, used, stream) }
}

/// Queues a kernel that writes both columns of some rows of a side.
pub(crate) fn generate(
    cuda: &mut Cuda,
    workload: &Workload,
    (side, rows): (Side, Range<u64>),
    (keys, payloads): (&DeviceView<u8>, &DeviceView<u8>),
    stream: &Stream,
) -> Result<InFlight, JobError> {
    let side_rows = workload.rows(side);
    assert!(
        rows.start <= rows.end && rows.end <= side_rows,
        "rows {rows:?} of {side_rows}"
    );
    let is_by_rank = matches!(workload.probe_keys, ProbeKeys::Zipf { .. });
    assert!(
        side == Side::Build || !is_by_rank,
        "the host generates {workload:?}"
    );
    let count = rows.end - rows.start;
    let width = workload.width;
    assert!(
        keys.len() as u64 == count * width.key_bytes()
            && payloads.len() as u64 == count * width.payload_bytes(),
        "columns of {} and {} bytes for {count} rows",
        keys.len(),
        payloads.len()
    );
    cuda.assert_owns(keys);
    cuda.assert_owns(payloads);
    let kernel = cuda.kernel(&WORKLOAD, &entry_of("generate", width))?;
    let arguments = Generating {
        keys: keys.pointer_mut(),
        payloads: payloads.pointer_mut(),
        count,
        first: rows.start,
        build_rows: workload.build_rows,
        match_limit: workload.match_limit(),
        key_bits: workload.key_bits(),
        is_probe: u32::from(side == Side::Probe),
    };
    let shape = shape_for(&kernel, count)?;
    let used = (keys.clone(), payloads.clone());
    // SAFETY: `generate` takes `Generating` and writes `count` values to each column, which are that long. `used` owns
    // both.
    unsafe { launch(cuda, (&kernel, &shape), &arguments, used, stream) }
}

/// Asserts that a table and rows are where kernels of this device may use them.
fn assert_are_for(cuda: &Cuda, table: &Table, rows: &DeviceRows) {
    table.assert_is_for(cuda);
    rows.keys.assert_reaches(cuda);
    rows.payloads.assert_reaches(cuda);
}

/// Returns as many blocks as fit on the GPU, or fewer if there are fewer rows.
fn shape_for(kernel: &Kernel, rows: u64) -> Result<LaunchShape, JobError> {
    let mut shape = kernel.persistent_shape(THREADS, 0)?;
    let rows_of_block = u64::from(THREADS * ROWS_AHEAD);
    shape.blocks = shape.blocks.min(rows.div_ceil(rows_of_block));
    Ok(shape)
}

/// Returns as many blocks that sort tiles as fit on the GPU, or fewer if there are fewer tiles.
fn shape_of_tiles(kernel: &Kernel, width: Width, rows: u64) -> Result<LaunchShape, JobError> {
    let tile_bytes = THREADS_OF_TILE * TILE_BYTES_OF_THREAD;
    let mut shape = kernel.persistent_shape(THREADS_OF_TILE, tile_bytes)?;
    let rows_of_thread = u64::from(TILE_BYTES_OF_THREAD) / width.row_bytes();
    let tiles = rows.div_ceil(u64::from(THREADS_OF_TILE) * rows_of_thread);
    shape.blocks = shape.blocks.min(tiles);
    Ok(shape)
}

/// Queues a kernel. The result owns `used`.
///
/// # Safety
/// As for [`Cuda::launch`], with `used` as the owner of the memory.
unsafe fn launch<A: KernelArguments>(
    cuda: &mut Cuda,
    (kernel, shape): (&Kernel, &LaunchShape),
    arguments: &A,
    used: impl Send + 'static,
    stream: &Stream,
) -> Result<InFlight, JobError> {
    // SAFETY: the caller promises that the arguments are right. `used` is moved into the result, which drops it only
    // after the event that follows the kernel; if there is no event, this function waits for the stream.
    unsafe { cuda.launch(kernel, shape, arguments, stream) }?;
    match cuda.mark(stream) {
        Ok(event) => Ok(InFlight {
            event,
            used: Box::new(used),
        }),
        Err(fault) => {
            // The device is lost, whatever this call returns.
            let _ = cuda.synchronize(stream);
            Err(fault.into())
        }
    }
}

/// Queues a kernel that tells which rows of a run of a side a sieve keeps.
pub(crate) fn sift(
    cuda: &mut Cuda,
    (sieve, side): (&Sieve, Side),
    rows: &DeviceRows,
    stream: &Stream,
) -> Result<InFlight, JobError> {
    rows.keys.assert_reaches(cuda);
    rows.payloads.assert_reaches(cuda);
    let arguments = sieve.arguments(cuda, rows, side);
    let kernel = cuda.kernel(&PARTITIONS, &entry_of("sift", sieve.width()))?;
    let mut shape = kernel.persistent_shape(THREADS, 0)?;
    let rows_of_block = u64::from(THREADS) * SIFTED_ROWS;
    shape.blocks = shape
        .blocks
        .min(arguments.rows.count.div_ceil(rows_of_block));
    let used = (sieve.clone(), rows.clone());
    // SAFETY: `sift` takes `Sifting`. It reads both columns, each of `count` values, and the slots of the heavy keys,
    // of which some are empty. It changes the rows of heavy keys, the words of the filter and the number of dropped
    // rows by atomic operations, and writes a bit for each row; `arguments` has checked that there are as many bits.
    // `used` owns all of them.
    unsafe { launch(cuda, (&kernel, &shape), &arguments, used, stream) }
}

/// Queues a kernel that copies the used bytes of a run to pinned host memory: those up to the end of its last slice.
/// The result owns a [`UsedToWrite`].
pub(crate) fn write_run(
    cuda: &mut Cuda,
    (from, last): (&DeviceView<u8>, &DeviceView<Slice>),
    (mut to, width): (HostPart, Width),
    stream: &Stream,
) -> Result<InFlight, JobError> {
    cuda.assert_owns(from);
    cuda.assert_owns(last);
    assert!(
        to.len() >= from.len(),
        "{} bytes of {}",
        to.len(),
        from.len()
    );
    let arguments = WritingRun {
        from: from.pointer(),
        to: to.device_pointer(),
        last: last.pointer(),
        row_bytes: width.row_bytes(),
    };
    let addresses = arguments.from.address() | arguments.to.address();
    assert!(addresses.is_multiple_of(16), "{arguments:?}");
    let kernel = cuda.kernel(&PARTITIONS, "write_run")?;
    let mut shape = kernel.persistent_shape(THREADS, 0)?;
    shape.blocks = shape.blocks.min(BLOCKS_OF_COPY);
    let used: UsedToWrite = (from.clone(), last.clone(), to);
    // SAFETY: `write_run` takes `WritingRun`. It reads the bytes of the run up to the end of its last slice, which
    // earlier kernels have placed there, and writes them to pinned memory that is as long. Both begin at multiples of
    // 16, and the end is one. `used` owns all of them, and is the only owner of the pinned memory.
    unsafe { launch(cuda, (&kernel, &shape), &arguments, used, stream) }
}

/// Queues the kernels that copy rows into the memory of a run: all rows, or those with a bit of `kept`, which the
/// stream's earlier work has written.
pub(crate) fn divide(
    cuda: &mut Cuda,
    (rows, shape, kept): (&DeviceRows, RunShape, Option<DeviceView<u32>>),
    (slices, next): (DeviceView<Slice>, DeviceView<u32>),
    to: DeviceView<u8>,
    stream: &Stream,
) -> Result<InFlight, JobError> {
    rows.keys.assert_reaches(cuda);
    rows.payloads.assert_reaches(cuda);
    cuda.assert_owns(&slices);
    cuda.assert_owns(&next);
    cuda.assert_owns(&to);
    let arguments = Dividing {
        rows: rows.rows(shape.width()),
        kept: kept.as_ref().map(DeviceView::pointer).unwrap_or_default(),
        slices: slices.pointer_mut(),
        next: next.pointer_mut(),
        to: to.pointer_mut(),
        bits: shape.bits(),
    };
    let used = (rows.clone(), kept, slices, next, to);
    let mut queue = |name: &str| {
        let kernel = cuda.kernel(&PARTITIONS, &entry_of(name, shape.width()))?;
        let count = arguments.rows.count;
        let launched = match name {
            "copy_rows" => shape_of_tiles(&kernel, shape.width(), count)?,
            "place_slices" => LaunchShape {
                blocks: 1,
                ..shape_for(&kernel, count)?
            },
            _ => shape_for(&kernel, count)?,
        };
        // SAFETY: these kernels take `Dividing`. They read both columns, each of `count` values, and with a sieve a
        // bit for each row, which `sift` has written. They write a slice and a place for each of 2^`bits` partitions.
        // The last one writes each row at a place of its slice: all slices have room in the memory of a run with at
        // most that many rows. Its tile is in the shared memory that its launch has. `used` owns all of them.
        unsafe { launch(cuda, (&kernel, &launched), &arguments, used.clone(), stream) }
    };
    let (counted, placed) = (queue("count_rows")?, queue("place_slices")?);
    let copied = queue("copy_rows")?;
    counted.leave(cuda);
    placed.leave(cuda);
    Ok(copied)
}

/// Queues a kernel that inserts the rows of a partition into an empty table.
pub(crate) fn insert_partition(
    cuda: &mut Cuda,
    (shape, memory): (&TableShape, &Arc<JoinMemory>),
    arguments: InsertingPartition,
    stream: &Stream,
) -> Result<InFlight, JobError> {
    memory.assert_is_of(cuda);
    let kernel = cuda.kernel(&PARTITIONS, &entry("insert_partition", shape))?;
    let launched = shape_of_partition(&kernel, &arguments.rows)?;
    // SAFETY: `insert_partition` takes `InsertingPartition`, which `PartitionJoin` made of this memory. It reads the
    // slices of `run_count` runs: each is where its run was written, or in a staging memory, for whose copies the
    // stream waits and which no later copy overwrites before this kernel has ended. It accesses the slots by atomic
    // operations or in slots that its thread took, and adds to the outcome. `memory` owns all of them.
    unsafe {
        launch(
            cuda,
            (&kernel, &launched),
            &arguments,
            Arc::clone(memory),
            stream,
        )
    }
}

/// Queues a kernel that probes a table with the rows of a partition.
pub(crate) fn probe_partition(
    cuda: &mut Cuda,
    (shape, memory): (&TableShape, &Arc<JoinMemory>),
    arguments: ProbingPartition,
    stream: &Stream,
) -> Result<InFlight, JobError> {
    memory.assert_is_of(cuda);
    let kernel = cuda.kernel(&PARTITIONS, &entry("probe_partition", shape))?;
    let launched = shape_of_partition(&kernel, &arguments.rows)?;
    // SAFETY: `probe_partition` takes `ProbingPartition`, which `PartitionJoin` made of this memory. It reads the
    // slices of `run_count` runs where these were written, the table and the
    // outcome, which the stream's earlier kernel has written, and adds to the totals by atomic operations. `memory`
    // owns all of them.
    unsafe {
        launch(
            cuda,
            (&kernel, &launched),
            &arguments,
            Arc::clone(memory),
            stream,
        )
    }
}

/// Returns as many blocks as fit on the GPU, or fewer if there is less work for them.
fn shape_of_partition(kernel: &Kernel, rows: &PartitionRows) -> Result<LaunchShape, JobError> {
    let mut shape = kernel.persistent_shape(THREADS, 0)?;
    let units = u64::from(rows.run_count) * u64::from(rows.blocks_of_run);
    shape.blocks = shape.blocks.min(units).max(1);
    Ok(shape)
}
