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
    THREADS_OF_TILE, TILE_BYTES_OF_THREAD, WORKLOAD, entry, entry_of,
};
use crate::partitions::{JoinMemory, RunShape};
use crate::shape::{TableShape, Width};
use crate::workload::{ProbeKeys, Side, Workload};

/// A kernel in flight. It owns what the kernel uses; dropping it waits for the kernel.
#[must_use = "dropping it waits for the kernel"]
pub struct InFlight {
    event: Arc<Event>,
    _used: Box<dyn Any + Send>,
}

impl InFlight {
    /// Returns whether the kernel has finished. Does not block.
    ///
    /// # Errors
    /// The fault of earlier work on the device.
    pub(crate) fn is_done(&self) -> Result<bool, DeviceFault> {
        self.event.is_done()
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
    assert_is_of(cuda, table, rows);
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
    assert_is_of(cuda, table, rows);
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
            && payloads.len() as u64 == count * width.bytes(),
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
fn assert_is_of(cuda: &Cuda, table: &Table, rows: &DeviceRows) {
    table.assert_is_of(cuda);
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
    let tiles = rows.div_ceil(u64::from(tile_bytes) / (2 * width.bytes()));
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
            _used: Box::new(used),
        }),
        Err(fault) => {
            // The device is lost, whatever this call returns.
            let _ = cuda.synchronize(stream);
            Err(fault.into())
        }
    }
}

/// Queues the kernels that copy rows into the memory of a run.
pub(crate) fn divide(
    cuda: &mut Cuda,
    (rows, shape): (&DeviceRows, RunShape),
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
        slices: slices.pointer_mut(),
        next: next.pointer_mut(),
        to: to.pointer_mut(),
        bits: shape.bits(),
    };
    let used = (rows.clone(), slices, next, to);
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
        // SAFETY: these kernels take `Dividing`. They read both columns, each of `count` values, and write a slice and
        // a place for each of 2^`bits` partitions. The last one writes each row at a place of its slice: all slices
        // have room in the memory of a run with at most that many rows. Its tile is in the shared memory that its
        // launch has. `used` owns all of them.
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
