//! Joins in device memory.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use forebay_device::Device;
use forebay_device::cuda::{Cuda, Fill, Stream, Transfer};
use forebay_hash_index::{
    DeviceRows, HashIndex, IndexBuilder, IndexError, ProbeKeys, Side, TableShape, Workload,
};
use forebay_joins::timed;

use super::pinned::pin;
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
    on_gpu(device, move |cuda| timed::generate(cuda, &workload, rows))
}

/// Returns a side and all its rows.
pub(super) fn all(workload: &Workload, side: Side) -> (Side, Range<u64>) {
    (side, 0..workload.rows(side))
}

/// Measures the joins of a workload with each table, both sides in device memory. The names of the cases begin with
/// `name`.
pub(super) fn measure(
    session: &mut Session,
    gpu: &Arc<Device>,
    join: &Join,
    name: &str,
) -> Result<()> {
    let build = generate(gpu, join.workload, all(&join.workload, Side::Build))?;
    let probe = match join.workload.probe_keys {
        ProbeKeys::Uniform | ProbeKeys::Matching { .. } => {
            generate(gpu, join.workload, all(&join.workload, Side::Probe))?
        }
        ProbeKeys::Zipf { .. } => {
            let source = pin(session, gpu, (&join.workload, Side::Probe), name)?;
            let copied = source.clone();
            on_gpu(gpu, move |cuda| Ok(copied.copy(cuda)?))?
        }
    };
    for (table, shape) in session.shapes(&join.workload) {
        let case = format!("{name}/{}", table.name());
        session.add((case, gpu.name()), join, || {
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
        let (totals, probe) = timed::probe(cuda, &index, &probe_rows)?;
        Ok(Sample {
            allocation: None,
            times: Times::Table { build, probe },
            totals,
        })
    })
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
    let begin = |cuda: &Cuda, stream: &Stream| IndexBuilder::new(cuda, shape, stream);
    timed::build(cuda, begin, rows)
}
