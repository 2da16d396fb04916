//! The query over row groups that a kernel reads where they are: in device memory, and in pinned host memory.

use std::sync::Arc;

use anyhow::Result;
use forebay_device::Device;

use super::Session;
use super::gpu::{self, Resident};
use super::kernels::Entry;
use super::report::Sample;

/// Measures the query in device memory by both ways to read it, and a kernel that only reads, which is the limit.
pub(super) fn in_device_memory(session: &mut Session, gpu: &Arc<Device>) -> Result<()> {
    let host = session.pinned(gpu)?;
    let groups = Resident::Device(gpu::load(gpu, &host)?.0);
    drop(host);
    kernel(session, gpu, "limit-device", Entry::Read, &groups, None)?;
    kernel(session, gpu, "q6-device", Entry::Query, &groups, None)?;
    kernel(session, gpu, "q6-device-bulk", Entry::Bulk, &groups, None)?;
    let peak = gpu.details().map_or(0, |gpu| gpu.memory_bytes_per_s);
    let text = format!(
        "{}: the peak of its memory is {} GB/s",
        gpu.name(),
        peak / 1_000_000_000
    );
    session.report.note(&text);
    Ok(())
}

/// Measures the query over pinned host memory that the kernel reads over the bus: over memory of this process, and over
/// memory that the driver allocated.
pub(super) fn in_host_memory(session: &mut Session, gpu: &Arc<Device>) -> Result<()> {
    let registered = Resident::Host(session.pinned(gpu)?);
    over_the_bus(session, gpu, "", &registered)?;
    drop(registered);
    let mut allocated = gpu.pinned(session.file.about.bytes() as usize)?;
    session.file.load_into(&mut allocated, session.threads)?;
    let allocated = Resident::Allocated(Arc::new(allocated));
    over_the_bus(session, gpu, "-allocated", &allocated)
}

/// Measures both kernels over host memory, with each number of blocks that the options name.
fn over_the_bus(
    session: &mut Session,
    gpu: &Arc<Device>,
    memory: &str,
    groups: &Resident,
) -> Result<()> {
    for (name, entry) in [
        ("q6-zero-copy", Entry::Query),
        ("q6-zero-copy-bulk", Entry::Bulk),
    ] {
        let name = format!("{name}{memory}");
        if session.zero_copy_blocks.is_empty() {
            kernel(session, gpu, &name, entry, groups, entry.host_blocks())?;
        }
        for blocks in session.zero_copy_blocks.clone() {
            let name = format!("{name}-blocks-{blocks}");
            kernel(session, gpu, &name, entry, groups, Some(blocks))?;
        }
    }
    Ok(())
}

/// Measures a kernel on at most `blocks` blocks, unless the GPU cannot run it.
fn kernel(
    session: &mut Session,
    gpu: &Arc<Device>,
    name: &str,
    entry: Entry,
    groups: &Resident,
    blocks: Option<u64>,
) -> Result<()> {
    if !gpu.details().is_some_and(|gpu| entry.runs_on(gpu.arch)) {
        let text = format!("{name}: skipped, the GPU has no bulk copy engine");
        session.report.note(&text);
        return Ok(());
    }
    let samples = session.repeat(|| {
        let timed = gpu::run(gpu, entry, groups, blocks)?;
        let sum = (entry != Entry::Read).then_some(timed.sum);
        Ok(Sample::of_time(timed.took, sum))
    })?;
    let case = session.case(name, gpu.name());
    session.report.add(case, &samples)
}
