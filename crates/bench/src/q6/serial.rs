//! The three implementations of Miura et al. (section 4.1): one thread, one step after another, so that the phases add
//! up to the elapsed time as in their figure 5.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use forebay_device::cuda::cufile::CuFile;
use forebay_device::cuda::{
    Cuda, DeviceMemory, DeviceView, PinnedPart, Priority, Stream, Transfer,
};
use forebay_device::{Device, JobError};
use forebay_movement::method::run_on_device;
use forebay_movement::storage::{AlignedBytes, DataFile};

use super::Session;
use super::consumer::Query;
use super::cpu;
use super::report::{Case, Phases, Sample};
use super::usage::Meter;

/// Measures the implementations that read by `pread`, for each buffer size. Without a GPU, only the first.
pub(super) fn measure(session: &mut Session, gpu: Option<&Arc<Device>>) -> Result<()> {
    for_each_buffer(session, "serial-cpu", "1 thread", on_cpu)?;
    let Some(gpu) = gpu else { return Ok(()) };
    let once = |session: &Session, bytes| staged(session, gpu, bytes);
    for_each_buffer(session, "serial-staged", gpu.name(), once)
}

/// Measures the implementation that reads by cuFile, for each buffer size.
pub(super) fn by_cufile(
    session: &mut Session,
    gpu: &Arc<Device>,
    cufile: &Arc<CuFile>,
) -> Result<()> {
    let once = |session: &Session, bytes| direct(session, gpu, cufile, bytes);
    for_each_buffer(session, "serial-direct", gpu.name(), once)
}

fn for_each_buffer(
    session: &mut Session,
    name: &str,
    devices: &str,
    once: impl Fn(&Session, usize) -> Result<Sample>,
) -> Result<()> {
    for buffer_bytes in session.buffers() {
        let samples = session.repeat_cold(|session| once(session, buffer_bytes))?;
        let case = Case {
            buffer_bytes: Some(buffer_bytes),
            ..session.case(name, devices)
        };
        session.report.add(case, &samples)?;
    }
    Ok(())
}

/// Returns the ranges of a file of `bytes` bytes, a buffer each.
fn ranges(bytes: u64, buffer_bytes: usize) -> impl Iterator<Item = Range<u64>> {
    let begins = (0..bytes).step_by(buffer_bytes);
    begins.map(move |begin| begin..(begin + buffer_bytes as u64).min(bytes))
}

/// Runs `work` and adds its time to a phase.
fn timed<T>(phase: &mut Duration, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = work();
    *phase += began.elapsed();
    result
}

/// CPU I/O, CPU execution: A1 reads a buffer, A2 computes.
fn on_cpu(session: &Session, buffer_bytes: usize) -> Result<Sample> {
    let file = session.data_file()?;
    let mut buffer = AlignedBytes::zeroed(buffer_bytes);
    let (mut phases, mut sum) = (Phases::default(), 0);
    let meter = Meter::start();
    for range in ranges(file.bytes(), buffer_bytes) {
        let into = &mut buffer[..(range.end - range.start) as usize];
        timed(&mut phases.io, || file.read_exact_at(range.start, into))?;
        sum += timed(&mut phases.compute, || cpu::sum(into));
    }
    Ok(Sample {
        usage: meter.stop(),
        phases: Some(phases),
        sum: Some(sum),
    })
}

/// What the loops on a GPU use.
struct Loop {
    memory: Arc<DeviceMemory>,
    query: Arc<Query>,
    stream: Stream,
}

impl Loop {
    fn new(gpu: &Device, buffer_bytes: usize) -> Result<Loop> {
        Ok(Loop {
            memory: Arc::new(gpu.allocate(buffer_bytes as u64)?),
            query: Query::new(gpu, 1)?,
            stream: run_on_device(gpu, |cuda| Ok(cuda.stream(Priority::Normal)?))?,
        })
    }

    /// Runs the kernel over the first bytes of the memory and waits.
    fn run(&self, cuda: &mut Cuda, bytes: usize) -> Result<(), JobError> {
        let view = DeviceView::of(&self.memory, 0..bytes);
        self.query.run(cuda, &self.stream, &view)
    }

    /// Ends a measurement: copies the answer to the host, which counts as transfer.
    fn finish(&self, gpu: &Device, meter: Meter, mut phases: Phases) -> Result<Sample> {
        let sum = timed(&mut phases.transfer, || self.query.answer(gpu))?;
        Ok(Sample {
            usage: meter.stop(),
            phases: Some(phases),
            sum: Some(sum),
        })
    }
}

/// GPU indirect I/O, GPU execution: B1 reads a buffer, B2 copies it, B3 computes, B4 copies the answer.
fn staged(session: &Session, gpu: &Arc<Device>, buffer_bytes: usize) -> Result<Sample> {
    let file = session.data_file()?;
    let own = Arc::new(Loop::new(gpu, buffer_bytes)?);
    let mut buffer = gpu.pinned(buffer_bytes)?;
    let mut phases = Phases::default();
    let meter = Meter::start();
    for range in ranges(file.bytes(), buffer_bytes) {
        let bytes = (range.end - range.start) as usize;
        let into = &mut buffer[..bytes];
        timed(&mut phases.io, || file.read_exact_at(range.start, into))?;
        let kept = Arc::clone(&own);
        let (back, copied, computed) = run_on_device(gpu, move |cuda| {
            let mut times = (Duration::ZERO, Duration::ZERO);
            let part = PinnedPart::new(buffer, 0..bytes);
            let to = DeviceView::of(&kept.memory, 0..bytes);
            let copy = || Transfer::begin(cuda, part, to, &kept.stream)?.finish();
            let (part, _) = timed(&mut times.0, copy)?;
            timed(&mut times.1, || kept.run(cuda, bytes))?;
            Ok((part.into_buffer(), times.0, times.1))
        })?;
        buffer = back;
        phases.transfer += copied;
        phases.compute += computed;
    }
    own.finish(gpu, meter, phases)
}

/// GPU direct I/O, GPU execution: C1 reads a buffer by cuFile, C2 computes, C3 copies the answer.
fn direct(
    session: &Session,
    gpu: &Arc<Device>,
    cufile: &Arc<CuFile>,
    buffer_bytes: usize,
) -> Result<Sample> {
    let file: Arc<DataFile> = session.data_file()?;
    let handle = cufile.register(file.descriptor()?, file.path())?;
    let own = Arc::new(Loop::new(gpu, buffer_bytes)?);
    let memory = cufile.register_memory(DeviceView::of(&own.memory, 0..buffer_bytes))?;
    let mut phases = Phases::default();
    let meter = Meter::start();
    for range in ranges(file.bytes(), buffer_bytes) {
        let bytes = (range.end - range.start) as usize;
        let part = memory.part(0..bytes);
        let read = timed(&mut phases.io, || handle.read(range.start, &part))?;
        anyhow::ensure!(read == bytes, "{} became shorter", file.path().display());
        let kept = Arc::clone(&own);
        phases.compute += run_on_device(gpu, move |cuda| {
            let mut time = Duration::ZERO;
            timed(&mut time, || kept.run(cuda, bytes))?;
            Ok(time)
        })?;
    }
    own.finish(gpu, meter, phases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_a_file_once() {
        let all = |bytes, buffer| ranges(bytes, buffer).collect::<Vec<_>>();
        assert_eq!(all(10, 4), [0..4, 4..8, 8..10]);
        assert_eq!(all(8, 4), [0..4, 4..8]);
        assert_eq!(all(0, 8), []);
    }
}
