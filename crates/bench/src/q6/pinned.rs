//! The query over row groups in host memory: pinned, through the ring, and moved by each transfer method.

use std::sync::Arc;

use anyhow::{Context, Result};
use forebay_cancel::Stop;
use forebay_device::Device;
use forebay_device::cuda::{DeviceMemory, DeviceView};
use forebay_movement::method::{
    Direction, HostBuffer, MoveRequest, StagedOptions, TransferMethod, lacks, move_bytes,
};
use forebay_movement::{PinnedSource, Source, StagingRing};

use super::Session;
use super::consumer::Query;
use super::gpu::{self, Resident};
use super::kernels::Entry;
use super::report::{Case, Phases, Sample};
use super::usage::Meter;

/// Bytes that a transfer method moves at once.
const CHUNK_BYTES: usize = 8 << 20;

/// Measures the query over pinned memory through the ring for each buffer size, and the copy alone, which is the limit.
pub(super) fn by_ring(session: &mut Session, gpu: &Arc<Device>) -> Result<()> {
    let bytes = session.pinned(gpu)?;
    let copies = session.repeat(|| {
        let (_, took) = gpu::load(gpu, &bytes)?;
        Ok(Sample::of_time(took, None))
    })?;
    let case = session.case("limit-pinned", gpu.name());
    session.report.add(case, &copies)?;
    let source = PinnedSource { bytes };
    for buffer_bytes in session.buffers() {
        let mut ring = Session::lease(gpu, buffer_bytes)?;
        let samples = session.repeat(|| Session::run_ring(&mut ring, gpu, &source, 1, 1))?;
        let case = Case {
            buffer_bytes: Some(buffer_bytes),
            ..session.case("q6-pinned", gpu.name())
        };
        session.report.add(case, &samples)?;
    }
    Ok(())
}

impl Session {
    /// Leases a ring with slots of this size.
    pub(super) fn lease(device: &Arc<Device>, slot_bytes: usize) -> Result<StagingRing> {
        Ok(StagingRing::lease(device, Session::slots(slot_bytes))?)
    }

    /// Runs the query once over a source through a ring. `reads` chunks are read at the same time; the time of I/O is
    /// that of the reads divided by this number. The kernel runs `repeats` times over each chunk.
    pub(super) fn run_ring(
        ring: &mut StagingRing,
        device: &Arc<Device>,
        source: &dyn Source,
        reads: usize,
        repeats: u64,
    ) -> Result<Sample> {
        let query = Query::new(device, repeats)?;
        let meter = Meter::start();
        let report = ring.run(source, &query, &Stop::never())?;
        let sum = query.answer(device)?;
        Ok(Sample {
            usage: meter.stop(),
            phases: Some(Phases {
                io: report.fill / reads.max(1) as u32,
                transfer: report.copy,
                compute: report.work,
            }),
            sum: Some(sum),
        })
    }
}

/// Measures, for each transfer method of the device, the move of the table to device memory followed by the query.
pub(super) fn by_methods(session: &mut Session, gpu: &Arc<Device>) -> Result<()> {
    let memory = Arc::new(gpu.allocate(session.file.about.bytes())?);
    for method in TransferMethod::ALL {
        if let Some(why) = lacks(gpu, method) {
            session.report.note(&format!("{method}: skipped, {why}"));
            continue;
        }
        by_method(session, gpu, method, &memory)?;
    }
    Ok(())
}

fn by_method(
    session: &mut Session,
    gpu: &Arc<Device>,
    method: TransferMethod,
    memory: &Arc<DeviceMemory>,
) -> Result<()> {
    let bytes = session.file.about.bytes() as usize;
    let mut host = match HostBuffer::allocate(gpu, method, bytes) {
        Ok(host) => host,
        Err(error) => {
            session.report.note(&format!("{method}: skipped, {error}"));
            return Ok(());
        }
    };
    session.file.load_into(&mut host, session.threads)?;
    let mut host = Some(host);
    let samples = session.repeat(|| {
        let given = host
            .take()
            .context("the move before this one returned it")?;
        let (sample, back) = move_and_run(gpu, method, given, memory)?;
        host = Some(back);
        Ok(sample)
    })?;
    let name = format!("q6-method-{method}");
    let case = session.case(&name, gpu.name());
    session.report.add(case, &samples)
}

fn move_and_run(
    gpu: &Arc<Device>,
    method: TransferMethod,
    host: HostBuffer,
    memory: &Arc<DeviceMemory>,
) -> Result<(Sample, HostBuffer)> {
    let meter = Meter::start();
    let request = MoveRequest {
        method,
        direction: Direction::ToDevice,
        device_memory: DeviceView::of(memory, 0..host.len()),
        host,
        chunk_bytes: CHUNK_BYTES,
        staged: StagedOptions::default(),
    };
    let moved = move_bytes(gpu, request)?;
    let timed = gpu::run(
        gpu,
        Entry::Query,
        &Resident::Device(Arc::clone(memory)),
        None,
    )?;
    let mut usage = meter.stop();
    // Without the time before a move in which the pages of unified memory return to the host.
    usage.elapsed = moved.took + timed.took;
    let sample = Sample {
        usage,
        phases: Some(Phases {
            transfer: moved.took,
            compute: timed.took,
            ..Phases::default()
        }),
        sum: Some(timed.sum),
    };
    Ok((sample, moved.host))
}
