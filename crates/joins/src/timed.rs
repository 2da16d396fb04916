//! The steps of a join by one table on a GPU, timed by events on the device.

use std::ops::Range;
use std::time::Duration;

use forebay_device::DeviceFault;
use forebay_device::cuda::{Cuda, DeviceView, Event, Stream};
use forebay_hash_index::{
    Column, DeviceRows, HashIndex, IndexBuilder, IndexError, JoinTotals, Side, Totals, Workload,
};

/// Generates some rows of a side in device memory. Blocks until they are there.
///
/// # Errors
/// If device memory is too small, or the device fails.
///
/// # Panics
/// If the side does not have these rows.
pub fn generate(
    cuda: &mut Cuda,
    workload: &Workload,
    rows: (Side, Range<u64>),
) -> Result<DeviceRows, IndexError> {
    let (count, width) = (rows.1.end - rows.1.start, workload.width);
    let key_bytes = (count * width.key_bytes()) as usize;
    let payload_bytes = (count * width.payload_bytes()) as usize;
    let keys: DeviceView<u8> = cuda.buffer::<u8>(key_bytes)?.all();
    let payloads: DeviceView<u8> = cuda.buffer::<u8>(payload_bytes)?.all();
    let stream = cuda.uploads().clone();
    drop(workload.generate_async(cuda, rows, (&keys, &payloads), &stream)?);
    Ok(DeviceRows {
        keys: Column::Device(keys),
        payloads: Column::Device(payloads),
    })
}

/// Builds a table: `begin` returns the empty one, then the rows are inserted. Blocks. Returns the table and the time of
/// both on the device.
///
/// # Errors
/// As `begin`; if a row cannot be inserted, or the device fails.
pub fn build(
    cuda: &mut Cuda,
    begin: impl FnOnce(&Cuda, &Stream) -> Result<IndexBuilder, IndexError>,
    rows: &DeviceRows,
) -> Result<(HashIndex, Duration), IndexError> {
    let stream = cuda.downloads().clone();
    let began = mark(cuda, &stream)?;
    let mut builder = begin(cuda, &stream)?;
    builder.insert_async(cuda, rows)?;
    let ended = mark(cuda, &stream)?;
    let index = builder.finish(cuda)?;
    Ok((index, duration(&began, &ended)?))
}

/// Probes a table with rows. Blocks. Returns the matches and the time on the device.
///
/// # Errors
/// If the device fails.
pub fn probe(
    cuda: &mut Cuda,
    index: &HashIndex,
    rows: &DeviceRows,
) -> Result<(JoinTotals, Duration), IndexError> {
    let stream = cuda.downloads().clone();
    let totals = Totals::zero(cuda, &stream)?;
    let began = mark(cuda, &stream)?;
    let _probing = index.probe_async(cuda, rows, &totals, &stream)?;
    let ended = mark(cuda, &stream)?;
    let totals = totals.read(cuda, &stream)?;
    Ok((totals, duration(&began, &ended)?))
}

/// Returns a timed event after the work that is queued on a stream.
fn mark(cuda: &Cuda, stream: &Stream) -> Result<Event, DeviceFault> {
    let event = cuda.event()?;
    cuda.record(&event, stream)?;
    Ok(event)
}

/// Returns the time on the device between two events that are done.
fn duration(began: &Event, ended: &Event) -> Result<Duration, DeviceFault> {
    let ms = ended.elapsed_ms(began)?;
    Ok(Duration::from_secs_f64(f64::from(ms) / 1e3))
}
