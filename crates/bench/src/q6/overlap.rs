//! The ring against a plain loop of read, copy and run, where the three take about equal time.
//!
//! No disk here is as fast as the bus, and no kernel of the query as slow. So the bytes are read from pageable memory,
//! by the number of threads that is as fast as the copy, and the kernel is repeated over each chunk until that takes
//! as long as the chunk's copy. Then a loop that does one of the three at a time takes three times as long as one of
//! them. A ring that does all three at once could take a third of that.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use forebay_device::Device;
use forebay_device::cuda::{DeviceMemory, DeviceView, Pinned, PinnedPart, Transfer};
use forebay_movement::method::run_on_device;
use forebay_movement::{Pageable, RingOptions, StagingRing};

use super::Session;
use super::consumer::Query;
use super::report::{Phases, Sample};
use super::usage::Meter;

/// Bytes of a chunk of the plain loop and of a slot of the ring.
const CHUNK_BYTES: usize = 32 << 20;
/// Slots of the ring that are not being read.
const SLOTS_AHEAD: usize = 4;
/// Maximum threads that read; each has a slot of the ring.
const THREADS_MAX: usize = 8;

/// Runs of the kernel in addition to one, to measure a single one.
const MORE_REPEATS: u64 = 32;

/// Measures both, and the ratio of their times.
pub(super) fn measure(session: &mut Session, gpu: &Arc<Device>) -> Result<()> {
    let groups = session.file.load(session.threads)?;
    let memory = Arc::new(gpu.allocate(CHUNK_BYTES.min(groups.len()) as u64)?);
    let (threads, repeats) = balance(session, gpu, &groups, &memory)?;
    session.report.note(&format!(
        "ring: {threads} threads read, the kernel runs {repeats} times over each chunk"
    ));
    let plain = session.repeat(|| plain(gpu, &groups, &memory, threads, repeats))?;
    let case = session.case("ring-plain-loop", gpu.name());
    session.report.add(case, &plain)?;
    let options = RingOptions {
        slots: threads + SLOTS_AHEAD,
        slot_bytes: CHUNK_BYTES,
    };
    let mut ring = StagingRing::lease(gpu, options)?;
    let source = Pageable {
        bytes: &groups,
        threads,
    };
    let overlapped =
        session.repeat(|| Session::run_ring(&mut ring, gpu, &source, threads, repeats))?;
    let case = session.case("ring", gpu.name());
    session.report.add(case, &overlapped)
}

/// Returns the number of threads that read about as fast as the copy, and how many runs of the kernel take as long.
fn balance(
    session: &Session,
    gpu: &Arc<Device>,
    groups: &[u8],
    memory: &Arc<DeviceMemory>,
) -> Result<(usize, u64)> {
    let part = &groups[..groups.len().min(16 * CHUNK_BYTES)];
    let most = session.threads.clamp(1, THREADS_MAX);
    let (mut threads, mut phases) = (0, Phases::default());
    while threads < most {
        threads += 1;
        plain(gpu, part, memory, threads, 1)?;
        phases = plain(gpu, part, memory, threads, 1)?
            .phases
            .unwrap_or_default();
        if phases.io <= phases.transfer {
            break;
        }
    }
    let longest = phases.io.max(phases.transfer).as_secs_f64();
    // The difference of two runs has no cost of a launch and a wait.
    let many = plain(gpu, part, memory, threads, 1 + MORE_REPEATS)?;
    let many = many.phases.unwrap_or_default().compute;
    let each = many.saturating_sub(phases.compute).as_secs_f64() / MORE_REPEATS as f64;
    Ok((threads, ((longest / each.max(1e-9)).round() as u64).max(1)))
}

/// A worker that reads pageable memory into a pinned buffer, and gives the buffer back.
struct Worker {
    orders: Sender<(Pinned, Range<usize>)>,
    filled: Receiver<(Pinned, Range<usize>)>,
}

impl Worker {
    fn spawn<'scope>(scope: &'scope Scope<'scope, '_>, groups: &'scope [u8]) -> Worker {
        let (orders, incoming) = channel::<(Pinned, Range<usize>)>();
        let (done, filled) = channel();
        scope.spawn(move || {
            for (mut buffer, range) in incoming {
                buffer[..range.len()].copy_from_slice(&groups[range.clone()]);
                if done.send((buffer, range)).is_err() {
                    return;
                }
            }
        });
        Worker { orders, filled }
    }
}

/// Runs the plain loop: reads a chunk, waits, copies it, waits, runs the kernel, waits.
fn plain(
    gpu: &Arc<Device>,
    groups: &[u8],
    memory: &Arc<DeviceMemory>,
    threads: usize,
    repeats: u64,
) -> Result<Sample> {
    let share = CHUNK_BYTES.div_ceil(threads);
    let mut buffers = Vec::new();
    for _ in 0..threads {
        buffers.push(gpu.pinned(share)?);
    }
    let query = Query::new(gpu, repeats)?;
    let mut phases = Phases::default();
    let meter = Meter::start();
    thread::scope(|scope| -> Result<()> {
        let workers: Vec<Worker> = (0..threads).map(|_| Worker::spawn(scope, groups)).collect();
        for begin in (0..groups.len()).step_by(CHUNK_BYTES) {
            let chunk = begin..(begin + CHUNK_BYTES).min(groups.len());
            let began = Instant::now();
            let filled = read(&workers, std::mem::take(&mut buffers), chunk.clone(), share)?;
            phases.io += began.elapsed();
            let (back, copied, computed) = copy_and_run(gpu, filled, chunk, memory, &query)?;
            phases.transfer += copied;
            phases.compute += computed;
            buffers = back;
        }
        Ok(())
    })?;
    let sum = query.answer(gpu)?;
    let usage = meter.stop();
    Ok(Sample {
        usage,
        phases: Some(phases),
        sum: Some(sum),
    })
}

/// Filled buffers, each with the range of the table that it holds.
type Filled = Vec<(Pinned, Range<usize>)>;

/// Reads a chunk, a share by each worker.
fn read(
    workers: &[Worker],
    buffers: Vec<Pinned>,
    chunk: Range<usize>,
    share: usize,
) -> Result<Filled> {
    for (number, (worker, buffer)) in workers.iter().zip(buffers).enumerate() {
        let begin = (chunk.start + number * share).min(chunk.end);
        let end = (begin + share).min(chunk.end);
        let sent = worker.orders.send((buffer, begin..end));
        sent.ok().context("a thread ended early")?;
    }
    let filled = workers.iter().map(|worker| worker.filled.recv());
    filled
        .collect::<Result<_, _>>()
        .context("a thread ended early")
}

/// Copies a chunk and waits, then runs the kernel and waits. Returns the buffers and both times.
fn copy_and_run(
    gpu: &Device,
    filled: Filled,
    chunk: Range<usize>,
    memory: &Arc<DeviceMemory>,
    query: &Arc<Query>,
) -> Result<(Vec<Pinned>, Duration, Duration)> {
    let (memory, query) = (Arc::clone(memory), Arc::clone(query));
    Ok(run_on_device(gpu, move |cuda| {
        let stream = cuda.uploads().clone();
        let began = Instant::now();
        let mut in_flight = Vec::new();
        for (buffer, range) in filled {
            let to = range.start - chunk.start..range.end - chunk.start;
            let part = PinnedPart::new(buffer, 0..range.len());
            in_flight.push(Transfer::begin(
                cuda,
                part,
                DeviceView::of(&memory, to),
                &stream,
            )?);
        }
        let mut buffers = Vec::new();
        for copy in in_flight {
            buffers.push(copy.finish()?.0.into_buffer());
        }
        let copied = began.elapsed();
        let began = Instant::now();
        query.run(cuda, &stream, &DeviceView::of(&memory, 0..chunk.len()))?;
        Ok((buffers, copied, began.elapsed()))
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::q6::cpu;
    use crate::q6::gpu::tests::{gpu, random};
    use crate::q6::table::GROUP_BYTES;

    #[test]
    fn the_plain_loop_gives_the_answer_of_several_chunks() {
        let Some(device) = gpu() else { return };
        // Three chunks, the last one incomplete.
        let bytes = random(2 * CHUNK_BYTES / GROUP_BYTES + 3);
        let memory = Arc::new(device.allocate(CHUNK_BYTES as u64).expect("it fits"));
        for (threads, repeats) in [(1, 1), (3, 2)] {
            let sample = plain(&device, &bytes, &memory, threads, repeats).expect("it runs");
            assert_eq!(sample.sum, Some(cpu::sum(&bytes)));
            let phases = sample.phases.expect("three phases");
            assert!(phases.io > Duration::ZERO && phases.compute > Duration::ZERO);
            assert!(phases.io + phases.transfer + phases.compute <= sample.usage.elapsed);
        }
    }
}
