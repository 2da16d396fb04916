//! Joins by kernels that read both sides where they are, and use the table where it is.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use forebay_device::Device;
use forebay_device::cuda::{Cuda, DeviceView, Fill, Stream, Transfer};
use forebay_hash_index::{
    DeviceRows, HashIndex, IndexBuilder, IndexError, Side, TableShape, Workload,
};
use forebay_joins::timed;

use super::place::{Place, Sides};
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

/// Measures the joins of a workload with each table in a memory, both sides in device memory. The names of the cases
/// begin with `name`.
pub(super) fn measure(
    session: &mut Session,
    gpus: &[Arc<Device>],
    (join, table): (&Join, Place),
    name: &str,
) -> Result<()> {
    let sides = Place::Device.sides(session, gpus, join, name)?;
    with_tables(session, gpus, (join, &sides, table), name)
}

/// Measures the joins of these sides with each table in a memory. The names of the cases begin with `name`.
pub(super) fn with_tables(
    session: &mut Session,
    gpus: &[Arc<Device>],
    (join, sides, place): (&Join, &Sides, Place),
    name: &str,
) -> Result<()> {
    let gpu = &gpus[0];
    let devices = match [sides.place, place].contains(&Place::OtherGpu) {
        true => format!("{}+{}", gpu.name(), gpus[1].name()),
        false => gpu.name().to_owned(),
    };
    for (table, shape) in session.shapes(&join.workload) {
        let slots = place.slots(gpus, shape)?;
        let case = format!("{name}/{}", table.name());
        session.add((case, &devices), join, || {
            let rows = (sides.build.clone(), sides.probe.clone());
            once(gpu, (shape, slots.clone()), rows)
        })?;
    }
    Ok(())
}

/// Joins once: builds the table in this memory, and probes it with rows that kernels read where they are.
///
/// # Errors
/// If device memory is too small, or the device is lost.
pub(super) fn once(
    gpu: &Device,
    table: (TableShape, DeviceView<u8>),
    (build_rows, probe_rows): (DeviceRows, DeviceRows),
) -> Result<Sample> {
    on_gpu(gpu, move |cuda| {
        let (index, build) = build(cuda, table, &build_rows)?;
        let (totals, probe) = timed::probe(cuda, &index, &probe_rows)?;
        Ok(Sample {
            allocation: None,
            times: Times::Table { build, probe },
            totals,
        })
    })
}

/// Builds a table in this memory. Returns it with the time on the device, which includes emptying the memory.
///
/// # Errors
/// If device memory is too small, or the device is lost.
pub(super) fn build(
    cuda: &mut Cuda,
    (shape, slots): (TableShape, DeviceView<u8>),
    rows: &DeviceRows,
) -> Result<(HashIndex, Duration), IndexError> {
    // The memory has the rows of the last run.
    let stream = cuda.downloads().clone();
    Transfer::begin(cuda, Fill(0xEE), slots.clone(), &stream)?.finish()?;
    let begin = |cuda: &Cuda, stream: &Stream| IndexBuilder::in_memory(cuda, shape, slots, stream);
    timed::build(cuda, begin, rows)
}
