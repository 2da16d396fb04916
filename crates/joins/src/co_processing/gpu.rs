//! A GPU's part of a join: copies bring batches of rows to a ring of buffers in device memory, where kernels insert
//! and probe them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use forebay_device::cuda::{
    Cuda, DeviceView, Event, Part, Priority, RegisteredPart, Stream, Transfer,
};
use forebay_device::{AlignedBytes, Device};
use forebay_hash_index::{
    Column, CopyInFlight, DeviceRows, HashIndex, HostRows, IndexBuilder, IndexError, JoinTotals,
    TableShape, Totals,
};
use forebay_movement::RingOptions;

use crate::crew::{Crew, Morsels};
use crate::join::Spill;
use crate::{JoinError, PinnedColumns, on_gpu};

/// The memory of a GPU for joins, and its streams.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) device: Arc<Device>,
    shape: TableShape,
    /// The memory of the table.
    slots: DeviceView<u8>,
    /// Memory for one batch each: the keys in the first half, the payloads in the second.
    buffers: Vec<DeviceView<u8>>,
    /// The stream of copies to the buffers.
    copies: Stream,
    kernels: Stream,
    /// The stream of the copy of the table to host memory.
    downloads: Stream,
}

/// The host memory of the CPU's copy of a table, and the channel to which the copy in flight is sent.
pub(super) type CopyTo = (Part<Spill>, Sender<CopyInFlight<Spill>>);

impl Lane {
    /// Takes device memory for a table and a ring of batches. Blocks.
    ///
    /// # Errors
    /// If device memory is too small, or the device is not a GPU or is lost.
    pub(super) fn new(
        device: &Arc<Device>,
        shape: TableShape,
        ring: RingOptions,
    ) -> Result<Lane, JoinError> {
        let RingOptions { slots, slot_bytes } = ring.rounded();
        let owner = Arc::clone(device);
        on_gpu(device, move |cuda| {
            let buffer = |_| Ok(cuda.buffer::<u8>(slot_bytes)?.all());
            let buffers: Result<Vec<DeviceView<u8>>, IndexError> = (0..slots).map(buffer).collect();
            Ok(Lane {
                device: owner,
                shape,
                slots: cuda.buffer::<u8>(shape.slot_bytes() as usize)?.all(),
                buffers: buffers?,
                copies: cuda.stream(Priority::Normal)?,
                kernels: cuda.stream(Priority::Normal)?,
                downloads: cuda.stream(Priority::Normal)?,
            })
        })
    }

    /// Returns the maximum number of rows of a batch.
    fn batch_rows(&self) -> u64 {
        self.buffers[0].len() as u64 / 2 / self.shape.width().payload_bytes()
    }
}

/// Builds a table and probes it with the rows that the GPU takes. Blocks. Returns their matches.
///
/// # Errors
/// If a row cannot be inserted, or the device fails.
pub(super) fn work(
    crew: &Crew<'_>,
    lane: &Lane,
    (build, probe): (&PinnedColumns, &PinnedColumns),
    left: &Morsels,
    copy_to: Option<CopyTo>,
) -> Result<JoinTotals, JoinError> {
    let mut feeder = Feeder::new(lane);
    let Some(index) = built(crew, &mut feeder, build, left)? else {
        return Ok(JoinTotals::default());
    };
    crew.mark_built();
    if let Some((to, sender)) = copy_to {
        let (index, stream) = (index.clone(), lane.downloads.clone());
        let copy = on_gpu(&lane.device, move |cuda| {
            Ok(index.copy_async(cuda, to, &stream)?)
        })?;
        // The receiver is gone if the CPU has failed; the crew knows its error.
        let _ = sender.send(copy);
    }
    let stream = lane.kernels.clone();
    let totals = on_gpu(&lane.device, move |cuda| Ok(Totals::zero(cuda, &stream)?))?;
    while crew.may_continue() {
        let Some(rows) = left.take(lane.batch_rows()) else {
            break;
        };
        let (index, totals) = (index.clone(), totals.clone());
        feeder.feed(probe, rows, move |cuda, rows, stream| {
            let probing = index.probe_async(cuda, rows, &totals, stream)?;
            probing.leave(cuda);
            Ok(())
        })?;
    }
    let stream = lane.kernels.clone();
    on_gpu(&lane.device, move |cuda| Ok(totals.read(cuda, &stream)?))
}

/// Builds a table from all rows. Returns `None` if the join fails, or other processors take the last rows of the
/// probe side, before all rows are inserted.
fn built(
    crew: &Crew<'_>,
    feeder: &mut Feeder<'_>,
    build: &PinnedColumns,
    left: &Morsels,
) -> Result<Option<HashIndex>, JoinError> {
    let lane = feeder.lane;
    let (shape, slots, stream) = (lane.shape, lane.slots.clone(), lane.kernels.clone());
    let mut builder = on_gpu(&lane.device, move |cuda| {
        IndexBuilder::in_memory(cuda, shape, slots, &stream)
    })?;
    let rows: HostRows<'_> = build.host_rows();
    let to_insert = Morsels::new(rows.count(shape.width()));
    while let Some(rows) = to_insert.take(lane.batch_rows()) {
        if !crew.may_continue() || left.is_empty() {
            return Ok(None);
        }
        builder = feeder.feed(build, rows, move |cuda, rows, _| {
            builder.insert_async(cuda, rows)?;
            Ok(builder)
        })?;
    }
    on_gpu(&lane.device, move |cuda| builder.finish(cuda)).map(Some)
}

type PinnedPart = RegisteredPart<AlignedBytes>;

/// A batch on the device.
struct Batch {
    /// The copies of keys and payloads. Dropping them waits for them.
    _copies: [Transfer<PinnedPart, DeviceView<u8>>; 2],
    /// The event after the last kernel that reads the batch.
    done: Arc<Event>,
}

/// Brings batches of rows to a GPU, as many in flight as there are buffers.
struct Feeder<'a> {
    lane: &'a Lane,
    /// The batches that are in buffers, oldest first.
    in_flight: VecDeque<Batch>,
    /// Number of batches so far.
    count: usize,
}

impl<'a> Feeder<'a> {
    fn new(lane: &'a Lane) -> Feeder<'a> {
        Feeder {
            lane,
            in_flight: VecDeque::new(),
            count: 0,
        }
    }

    /// Queues the copy of at most [`Lane::batch_rows`] rows, and then work on them. Waits for the oldest batch if no
    /// buffer is free. Returns what `work` returns.
    ///
    /// # Errors
    /// As `work`, or if the device fails.
    fn feed<T: Send + 'static>(
        &mut self,
        side: &PinnedColumns,
        rows: Range<u64>,
        work: impl FnOnce(&mut Cuda, &DeviceRows, &Stream) -> Result<T, IndexError> + Send + 'static,
    ) -> Result<T, JoinError> {
        let lane = self.lane;
        if self.in_flight.len() == lane.buffers.len()
            && let Some(oldest) = self.in_flight.pop_front()
        {
            let waited = oldest.done.wait();
            waited.map_err(|fault| JoinError::lost(&lane.device, &fault))?;
        }
        let [keys, payloads] = side.part(&rows);
        let buffer = &lane.buffers[self.count % lane.buffers.len()];
        let (bytes, half) = (keys.len(), buffer.len() / 2);
        let to = [buffer.view(0..bytes), buffer.view(half..half + bytes)];
        let (copies, kernels) = (lane.copies.clone(), lane.kernels.clone());
        let (result, batch) = on_gpu(&lane.device, move |cuda| {
            let [to_keys, to_payloads] = to;
            let rows = DeviceRows {
                keys: Column::Device(to_keys.clone()),
                payloads: Column::Device(to_payloads.clone()),
            };
            let keys = Transfer::begin(cuda, keys, to_keys, &copies)?;
            let payloads = Transfer::begin(cuda, payloads, to_payloads, &copies)?;
            cuda.wait(&kernels, payloads.event())?;
            let result = work(cuda, &rows, &kernels)?;
            let batch = Batch {
                done: cuda.mark(&kernels)?,
                _copies: [keys, payloads],
            };
            Ok((result, batch))
        })?;
        self.in_flight.push_back(batch);
        self.count += 1;
        Ok(result)
    }
}
