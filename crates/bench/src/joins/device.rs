//! Joins in device memory.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use forebay_device::cuda::{Cuda, DeviceView, Event, Fill, Stream, Transfer};
use forebay_device::{Device, DeviceFault};
use forebay_hash_index::{
    Column, DeviceRows, HashIndex, IndexBuilder, IndexError, JoinTotals, Side, TableShape, Totals,
    Workload,
};

use super::report::{Sample, Times};
use super::{Join, Session};

/// Runs work on the thread of a device.
///
/// # Errors
/// If the work fails, or the device is lost.
pub(super) fn on_gpu<T: Send + 'static>(
    device: &Device,
    work: impl FnOnce(&mut Cuda) -> Result<T, IndexError> + Send + 'static,
) -> Result<T> {
    Ok(forebay_joins::on_gpu(device, work)?)
}

/// Generates some rows of a side in device memory.
///
/// # Errors
/// If device memory is too small, or the device is lost.
pub(super) fn generate(
    device: &Device,
    workload: Workload,
    rows: (Side, Range<u64>),
) -> Result<DeviceRows> {
    let bytes = ((rows.1.end - rows.1.start) * workload.width.bytes()) as usize;
    on_gpu(device, move |cuda| {
        let keys: DeviceView<u8> = cuda.buffer::<u8>(bytes)?.all();
        let payloads: DeviceView<u8> = cuda.buffer::<u8>(bytes)?.all();
        let stream = cuda.uploads().clone();
        drop(workload.generate_async(cuda, rows, (&keys, &payloads), &stream)?);
        Ok(DeviceRows {
            keys: Column::Device(keys),
            payloads: Column::Device(payloads),
        })
    })
}

/// Returns a side and all its rows.
pub(super) fn all(workload: &Workload, side: Side) -> (Side, Range<u64>) {
    (side, 0..workload.rows(side))
}

/// Measures the joins of a workload with each table, both sides in device memory.
pub(super) fn measure(session: &mut Session, gpu: &Arc<Device>, join: &Join) -> Result<()> {
    let build = generate(gpu, join.workload, all(&join.workload, Side::Build))?;
    let probe = generate(gpu, join.workload, all(&join.workload, Side::Probe))?;
    for (table, shape) in session.shapes(&join.workload) {
        let name = format!("join-{}-device/{}", join.tuples.letter(), table.name());
        session.add((name, gpu.name()), join, || {
            once(gpu, shape, build.clone(), probe.clone())
        })?;
    }
    Ok(())
}

/// Joins once: builds the table and probes it with rows that kernels read where they are.
///
/// # Errors
/// If device memory is too small, or the device is lost.
pub(super) fn once(
    gpu: &Device,
    shape: TableShape,
    build_rows: DeviceRows,
    probe_rows: DeviceRows,
) -> Result<Sample> {
    on_gpu(gpu, move |cuda| {
        let (index, build) = build(cuda, shape, &build_rows)?;
        let (totals, probe) = probe(cuda, &index, &probe_rows)?;
        Ok(Sample {
            allocation: None,
            times: Times::Table { build, probe },
            totals,
        })
    })
}

/// Probes a table with rows. Returns the matches and the time on the device.
///
/// # Errors
/// If the device is lost.
pub(super) fn probe(
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

/// Builds a table. Returns it with the time on the device, which includes allocating and emptying its memory.
///
/// # Errors
/// If device memory is too small, or the device is lost.
pub(super) fn build(
    cuda: &mut Cuda,
    shape: TableShape,
    rows: &DeviceRows,
) -> Result<(HashIndex, Duration), IndexError> {
    let stream = cuda.downloads().clone();
    // The table probably gets this memory, which has the rows of the last run.
    let memory = cuda.buffer::<u8>(shape.bytes() as usize)?;
    Transfer::begin(cuda, Fill(0xEE), memory.all(), &stream)?.finish()?;
    drop(memory);
    let began = mark(cuda, &stream)?;
    let builder = IndexBuilder::new(cuda, shape, &stream)?;
    built(cuda, builder, rows, &began)
}

/// Builds a table in memory that is there. Returns it with the time on the device, which includes emptying it.
///
/// # Errors
/// If device memory is too small, or the device is lost.
pub(super) fn build_in(
    cuda: &mut Cuda,
    shape: TableShape,
    memory: DeviceView<u8>,
    rows: &DeviceRows,
) -> Result<(HashIndex, Duration), IndexError> {
    let stream = cuda.downloads().clone();
    let began = mark(cuda, &stream)?;
    let builder = IndexBuilder::in_memory(cuda, shape, memory, &stream)?;
    built(cuda, builder, rows, &began)
}

/// Inserts rows. Returns the table with the time on the device from an event on.
fn built(
    cuda: &mut Cuda,
    mut builder: IndexBuilder,
    rows: &DeviceRows,
    began: &Event,
) -> Result<(HashIndex, Duration), IndexError> {
    let stream = cuda.downloads().clone();
    builder.insert_async(cuda, rows)?;
    let ended = mark(cuda, &stream)?;
    let index = builder.finish(cuda)?;
    Ok((index, duration(began, &ended)?))
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
