//! Joins whose probe side is in pinned host memory: read by the kernel over the bus, and copied through the ring.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use forebay_cancel::Stop;
use forebay_device::cuda::{Cuda, DeviceView, HostRegistration, RegisteredPart, Stream, Transfer};
use forebay_device::{AlignedBytes, Device, JobError};
use forebay_hash_index::{Column, DeviceRows, HashIndex, Side, TableShape, Totals};
use forebay_movement::ring::Kept;
use forebay_movement::{Chunk, Consumer, Feed, Slots, Source, StagingRing, Unread};

use super::host::Columns;
use super::report::{Sample, Times};
use super::{Join, Session, device};

type Pinned = Arc<HostRegistration<AlignedBytes>>;

/// Two pinned columns as one source: a chunk is some keys, followed by as many payloads.
struct ColumnPair {
    keys: Pinned,
    payloads: Pinned,
    /// Bytes of each column; the memory is rounded up to pages.
    bytes: usize,
}

impl ColumnPair {
    /// Returns the rows, which kernels read over the bus.
    fn rows(&self) -> DeviceRows {
        let column = |memory: &Pinned| Column::Pinned(Arc::clone(memory), 0..self.bytes);
        DeviceRows {
            keys: column(&self.keys),
            payloads: column(&self.payloads),
        }
    }
}

impl Source for ColumnPair {
    fn name(&self) -> String {
        format!("two columns of {} bytes of pinned memory", self.bytes)
    }

    fn bytes(&self) -> u64 {
        2 * self.bytes as u64
    }

    fn threads(&self) -> usize {
        1
    }

    fn fill(&self, slots: &Slots<'_>) -> Result<(), Unread> {
        while let Some(slot) = slots.next() {
            // Slots are whole pages, and so half a chunk is whole values.
            let (begin, half) = (slot.chunk().offset as usize / 2, slot.chunk().bytes / 2);
            let keys = RegisteredPart::new(&self.keys, begin..begin + half);
            let payloads = RegisteredPart::new(&self.payloads, begin..begin + half);
            let copies = move |cuda: &Cuda,
                               stream: &Stream,
                               to: &DeviceView<u8>|
                  -> Result<Kept, JobError> {
                let keys = Transfer::begin(cuda, keys, to.view(0..half), stream)?;
                let payloads = Transfer::begin(cuda, payloads, to.view(half..2 * half), stream)?;
                Ok(Box::new((keys, payloads)))
            };
            slots.filled(slot, Feed::Enqueue(Box::new(copies)));
        }
        Ok(())
    }
}

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
        let half = bytes.len() / 2;
        let rows = DeviceRows {
            keys: Column::Device(bytes.view(0..half)),
            payloads: Column::Device(bytes.view(half..2 * half)),
        };
        let probing = index.probe_async(cuda, &rows, totals, stream)?;
        probing.leave(cuda);
        Ok(())
    }

    fn process(&self, _: Chunk, _: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        Err("the ring is on a GPU".into())
    }
}

/// Measures the joins of a workload with each table and both ways to the probe side, and the copies alone.
pub(super) fn measure(session: &mut Session, gpu: &Arc<Device>, join: &Join) -> Result<()> {
    let name = format!("join-{}-pinned", join.tuples.letter());
    let source = pin(session, gpu, join, &name)?;
    let mut ring = StagingRing::lease(gpu, session.ring)?;
    limit(session, gpu, (&mut ring, &source), &name)?;
    let build = device::generate(gpu, join.workload, Side::Build)?;
    for (table, shape) in session.shapes(&join.workload) {
        let case = format!("{name}/zero-copy/{}", table.name());
        session.add((case, gpu.name()), join, || {
            device::once(gpu, shape, build.clone(), source.rows())
        })?;
        let case = format!("{name}/ring/{}", table.name());
        session.add((case, gpu.name()), join, || {
            through_ring(gpu, shape, &build, (&mut ring, &source))
        })?;
    }
    Ok(())
}

/// Generates the probe side and pins it. Reports both times: the first access to the memory is part of the first.
fn pin(session: &mut Session, gpu: &Arc<Device>, join: &Join, name: &str) -> Result<ColumnPair> {
    let began = Instant::now();
    let columns = Columns::generate(&join.workload, Side::Probe, session.threads);
    let generated = began.elapsed().as_secs_f64();
    let began = Instant::now();
    let register = |memory| {
        let registered = gpu.register(memory).map_err(|(_, error)| error);
        registered.map(Arc::new)
    };
    let source = ColumnPair {
        keys: register(columns.keys)?,
        payloads: register(columns.payloads)?,
        bytes: columns.bytes,
    };
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
    (ring, source): (&mut StagingRing, &ColumnPair),
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

/// Joins once: builds the table, then probes it with the chunks of a ring.
fn through_ring(
    gpu: &Arc<Device>,
    shape: TableShape,
    build_rows: &DeviceRows,
    (ring, source): (&mut StagingRing, &ColumnPair),
) -> Result<Sample> {
    let build_rows = build_rows.clone();
    let (index, totals, build) = device::on_gpu(gpu, move |cuda| {
        let (index, build) = device::build(cuda, shape, &build_rows)?;
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
