//! Joins of workload A whose probe side is in host memory, by each transfer method: the subject of figure 12 of Lutz
//! et al.
//!
//! The kernel that probes reads pinned memory over the bus (zero-copy), or probes the chunks of the ring as they
//! arrive. All other methods move the whole side to device memory before it is probed.

use std::slice;
use std::sync::Arc;

use anyhow::Result;
use forebay_device::Device;
use forebay_device::cuda::{DeviceView, Fill, Transfer};
use forebay_hash_index::{DeviceRows, Side, TableShape};
use forebay_joins::{PinnedColumns, timed};
use forebay_movement::MoveError;
use forebay_movement::method::{
    self, Direction, HostBuffer, MoveRequest, StagedOptions, TransferMethod, move_bytes,
};

use super::place::Place;
use super::report::{Sample, Times};
use super::{Join, Session, device, pinned};

/// First part of the names of the cases.
const NAME: &str = "figures/transfer-a";

/// Measures the join with each table and each method that the GPU has.
///
/// # Errors
/// If a join gives a wrong answer, memory is too small, or the device is lost.
pub(super) fn measure(session: &mut Session, gpu: &Arc<Device>, join: &Join) -> Result<()> {
    pinned::measure(session, gpu, join, NAME)?;
    let workload = &join.workload;
    let build = device::generate(gpu, *workload, device::all(workload, Side::Build))?;
    for method in methods(session, gpu) {
        by_method(session, (gpu, method), join, &build)?;
    }
    Ok(())
}

/// Returns the methods that move the side before it is probed and that the GPU has. Notes why others are missing.
fn methods(session: &Session, gpu: &Arc<Device>) -> Vec<TransferMethod> {
    let mut found = Vec::new();
    for (method, tried) in method::available(gpu) {
        match tried {
            _ if method == TransferMethod::ZeroCopy => {}
            Ok(()) => found.push(method),
            Err(missing) => {
                let text = format!("{method}: {} lacks it: {missing}", gpu.name());
                session.report.note(&text);
            }
        }
    }
    found
}

/// Measures the join with each table by a method. Notes why if its host memory cannot be allocated.
fn by_method(
    session: &mut Session,
    (gpu, method): (&Arc<Device>, TransferMethod),
    join: &Join,
    build: &DeviceRows,
) -> Result<()> {
    let workload = &join.workload;
    // Keys and payloads have the same width.
    let bytes = (workload.probe_rows * workload.width.payload_bytes()) as usize;
    let mut host = match HostBuffer::allocate(gpu, method, 2 * bytes) {
        Ok(host) => host,
        Err(error @ (MoveError::Register(_) | MoveError::Managed(_))) => {
            let text = format!("{method}: there is no room for its host memory: {error}");
            session.report.note(&text);
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    workload.generate(Side::Probe, host.split_at_mut(bytes), session.threads);
    let probe = device::on_gpu(gpu, move |cuda| Ok(cuda.buffer::<u8>(2 * bytes)?))?;
    let chunk_bytes = session.ring.slot_bytes;
    let mut kept = Some(host);
    for (table, shape) in session.shapes(workload) {
        let slots = Place::Device.slots(slice::from_ref(gpu), shape)?;
        let case = format!("{NAME}/{method}/{}", table.name());
        session.add((case, gpu.name()), join, || {
            let host = kept.take();
            let request = MoveRequest {
                method,
                direction: Direction::ToDevice,
                host: host.expect("a move that succeeds gives the memory back"),
                device_memory: probe.all(),
                chunk_bytes,
                staged: StagedOptions::default(),
            };
            let (sample, host) = once(gpu, (shape, slots.clone()), build.clone(), request)?;
            kept = Some(host);
            Ok(sample)
        })?;
    }
    Ok(())
}

/// Joins once: builds the table in this memory, moves the probe side, and probes. Returns the host memory too.
fn once(
    gpu: &Arc<Device>,
    table: (TableShape, DeviceView<u8>),
    build_rows: DeviceRows,
    request: MoveRequest,
) -> Result<(Sample, HostBuffer)> {
    let rows = PinnedColumns::rows_of_chunk(table.0.width(), &request.device_memory);
    let old_rows = request.device_memory.clone();
    let (index, build) = device::on_gpu(gpu, move |cuda| {
        // The memory has the rows of the last run.
        let stream = cuda.downloads().clone();
        Transfer::begin(cuda, Fill(0xEE), old_rows, &stream)?.finish()?;
        device::build(cuda, table, &build_rows)
    })?;
    let moved = move_bytes(gpu, request)?;
    let (totals, probe) = device::on_gpu(gpu, move |cuda| timed::probe(cuda, &index, &rows))?;
    let times = Times::Table {
        build,
        probe: moved.took + probe,
    };
    let sample = Sample {
        allocation: None,
        times,
        totals,
    };
    Ok((sample, moved.host))
}
