//! Joins whose probe side is in pinned host memory: read by the kernel over the bus, and copied through the ring.

use std::error::Error;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use forebay_cancel::Stop;
use forebay_device::cuda::{Cuda, DeviceView, Stream};
use forebay_device::{Device, JobError};
use forebay_hash_index::{DeviceRows, HashIndex, Side, TableShape, Totals, Workload};
use forebay_joins::PinnedColumns;
use forebay_movement::{Chunk, Consumer, StagingRing};

use super::host::Columns;
use super::place::Place;
use super::report::{Sample, Times};
use super::{Join, Session, device};

/// Probes a table with each chunk; without a table, only moves the chunks.
struct ProbeChunks(Option<(HashIndex, Totals)>);

impl Consumer for ProbeChunks {
    fn enqueue(
        &self,
        cuda: &mut Cuda,
        stream: &Stream,
        _: Chunk,
        bytes: &DeviceView<u8>,
    ) -> Result<(), JobError> {
        let Some((index, totals)) = &self.0 else {
            return Ok(());
        };
        let rows = PinnedColumns::rows_of_chunk(index.shape().width(), bytes);
        let probing = index.probe_async(cuda, &rows, totals, stream)?;
        probing.leave(cuda);
        Ok(())
    }

    fn process(&self, _: Chunk, _: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        Err("the ring is on a GPU".into())
    }
}

/// Measures the joins of a workload with each table and both ways to the probe side, and the copies alone. The names
/// of the cases begin with `name`.
pub(super) fn measure(
    session: &mut Session,
    gpu: &Arc<Device>,
    join: &Join,
    name: &str,
) -> Result<()> {
    let source = pin(session, gpu, (&join.workload, Side::Probe), name)?;
    let mut ring = StagingRing::lease(gpu, session.ring)?;
    limit(session, gpu, (&mut ring, &source), name)?;
    let build = device::generate(gpu, join.workload, device::all(&join.workload, Side::Build))?;
    for (table, shape) in session.shapes(&join.workload) {
        let slots = Place::Device.slots(slice::from_ref(gpu), shape)?;
        let case = format!("{name}/zero-copy/{}", table.name());
        session.add((case, gpu.name()), join, || {
            let rows = (build.clone(), source.rows());
            device::once(gpu, (shape, slots.clone()), rows)
        })?;
        let case = format!("{name}/ring/{}", table.name());
        session.add((case, gpu.name()), join, || {
            through_ring(gpu, (shape, slots.clone()), &build, (&mut ring, &source))
        })?;
    }
    Ok(())
}

/// Generates a side and pins it. Reports both times: the first access to the memory is part of the first.
///
/// # Errors
/// If the host has too little memory, or the driver cannot pin it.
pub(super) fn pin(
    session: &mut Session,
    gpu: &Arc<Device>,
    (workload, side): (&Workload, Side),
    name: &str,
) -> Result<PinnedColumns> {
    let began = Instant::now();
    let columns = Columns::generate(workload, side, session.threads)?;
    let generated = began.elapsed().as_secs_f64();
    let began = Instant::now();
    let register = |memory| {
        let registered = gpu.register(memory).map_err(|(_, error)| error);
        registered.map(Arc::new)
    };
    let (keys, payloads) = (register(columns.keys)?, register(columns.payloads)?);
    let source = PinnedColumns::new(keys, payloads, workload.width, workload.rows(side));
    let pinned = began.elapsed().as_secs_f64();
    let case = (name, gpu.name());
    session
        .report
        .add_apart(case, "generation_s", &[generated])?;
    session.report.add_apart(case, "pinning_s", &[pinned])?;
    Ok(source)
}

/// Measures the ring without kernels: the limit of what it brings to the device.
fn limit(
    session: &mut Session,
    gpu: &Arc<Device>,
    (ring, source): (&mut StagingRing, &PinnedColumns),
    name: &str,
) -> Result<()> {
    let nothing = Arc::new(ProbeChunks(None));
    let mut rates = Vec::new();
    for round in 0..=session.rounds {
        let report = ring.run(source, &nothing, &Stop::never())?;
        if round > 0 {
            rates.push(report.bytes as f64 / report.elapsed.as_secs_f64() / 1e9);
        }
    }
    let name = format!("{name}/limit");
    session
        .report
        .add_apart((&name, gpu.name()), "gb_per_s", &rates)
}

/// Joins once: builds the table in this memory, then probes it with the chunks of a ring.
///
/// # Errors
/// If device memory is too small, or the device is lost.
pub(super) fn through_ring(
    gpu: &Arc<Device>,
    table: (TableShape, DeviceView<u8>),
    build_rows: &DeviceRows,
    (ring, source): (&mut StagingRing, &PinnedColumns),
) -> Result<Sample> {
    let build_rows = build_rows.clone();
    let (index, totals, build) = device::on_gpu(gpu, move |cuda| {
        let (index, build) = device::build(cuda, table, &build_rows)?;
        let stream = cuda.downloads().clone();
        Ok((index, Totals::zero(cuda, &stream)?, build))
    })?;
    let probing = Arc::new(ProbeChunks(Some((index, totals.clone()))));
    let probe: Duration = ring.run(source, &probing, &Stop::never())?.elapsed;
    let totals = device::on_gpu(gpu, move |cuda| {
        let stream = cuda.downloads().clone();
        Ok(totals.read(cuda, &stream)?)
    })?;
    Ok(Sample {
        allocation: None,
        times: Times::Table { build, probe },
        totals,
    })
}
