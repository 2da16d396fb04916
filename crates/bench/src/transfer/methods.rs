//! Transfer methods: figure 12 of Lutz et al., by chunk size and in both directions.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use forebay_device::Device;
use forebay_device::cuda::{DeviceView, Fill, Transfer};
use forebay_movement::measure::Prepared;
use forebay_movement::method::{
    self, Direction, PeerLink, StagedOptions, TransferMethod, checksum_on, copy_between, link,
    run_on_device,
};

use super::Session;
use super::reads::first;
use super::report::Report;
use crate::statistics::Repeat;

/// Maximum chunks of a move.
const CHUNKS_MAX: usize = 4096;
/// Maximum bytes of a buffer of a staged copy.
const STAGED_BYTES_MAX: usize = 4 << 20;
/// Minimum bytes of a chunk when both directions are measured at once. With smaller ones the device's thread, which
/// begins the copies of both, would be measured.
const BOTH_CHUNK_BYTES_MIN: usize = 16 << 20;
/// Metrics of both directions at once: of both together, and of each over its own time.
const BOTH_METRICS: [&str; 3] = ["gb_per_s", "to_device_gb_per_s", "to_host_gb_per_s"];
/// Time of each wanted run after which a measurement is not repeated.
const REPEAT_TIME: Duration = Duration::from_secs(1);

/// Returns the methods that a GPU has, limited to those of `wanted` unless that is empty. Notes why others are missing.
pub(super) fn available(
    gpu: &Arc<Device>,
    wanted: &[TransferMethod],
    report: &Report,
) -> Vec<TransferMethod> {
    let mut found = Vec::new();
    for (method, tried) in method::available(gpu) {
        match tried {
            _ if !wanted.is_empty() && !wanted.contains(&method) => {}
            Ok(()) => found.push(method),
            Err(missing) => report.note(&format!("{method}: {} lacks it: {missing}", gpu.name())),
        }
    }
    found
}

/// Measures each method with each chunk size, in each direction.
pub(super) fn by_chunk(session: &mut Session) -> Result<()> {
    let gpu = first(session)?;
    for method in session.methods.clone() {
        let mut prepared: Option<(usize, Prepared)> = None;
        for chunk_bytes in session.chunk_bytes.clone() {
            let staged = staged_with(session.staged, chunk_bytes);
            if method == TransferMethod::StagedCopy && chunk_bytes > STAGED_BYTES_MAX {
                continue;
            }
            let bytes = bytes_of(session.bytes, chunk_bytes);
            let memory = match prepared.take() {
                Some((of, memory)) if of == bytes => memory,
                other => {
                    drop(other);
                    allocate(session, &gpu, method, bytes)?
                }
            };
            let memory = &mut prepared.insert((bytes, memory)).1;
            for direction in Direction::ALL {
                let run = Run {
                    gpu: &gpu,
                    direction,
                    chunk_bytes,
                    staged,
                };
                let case = format!("move/{method}/{direction}/{chunk_bytes}");
                measure(session, &case, memory, bytes, run)?;
            }
        }
    }
    Ok(())
}

/// Returns the bytes of a move: fewer with small chunks, which are slow.
fn bytes_of(wanted: usize, chunk_bytes: usize) -> usize {
    wanted
        .min(chunk_bytes.saturating_mul(CHUNKS_MAX))
        .max(chunk_bytes)
}

/// Returns a staged copy whose buffers have the size of a chunk.
fn staged_with(staged: StagedOptions, chunk_bytes: usize) -> StagedOptions {
    StagedOptions {
        buffer_bytes: chunk_bytes.min(STAGED_BYTES_MAX),
        ..staged
    }
}

/// Allocates the memory of a method, and reports how long the host's part took.
fn allocate(
    session: &mut Session,
    gpu: &Arc<Device>,
    method: TransferMethod,
    bytes: usize,
) -> Result<Prepared> {
    let memory = Prepared::allocate(gpu, method, bytes).with_context(|| method.to_string())?;
    let case = format!("allocate/{method}/{bytes}");
    let seconds = memory.allocation.as_secs_f64();
    session
        .report
        .add(case, gpu.name(), "allocation_s", &[seconds])?;
    Ok(memory)
}

/// How a move is run.
#[derive(Clone, Copy)]
struct Run<'a> {
    gpu: &'a Arc<Device>,
    direction: Direction,
    chunk_bytes: usize,
    staged: StagedOptions,
}

impl Run<'_> {
    /// Moves all bytes once, and checks them. Returns the time, and the time within it for pinning.
    fn once(self, memory: &mut Prepared) -> Result<(Duration, Duration)> {
        memory.forget(self.gpu, self.direction)?;
        let took = self.run(memory)?;
        memory.verify(self.gpu, self.direction)?;
        Ok(took)
    }

    fn run(self, memory: &mut Prepared) -> Result<(Duration, Duration)> {
        Ok(memory.run(self.gpu, self.direction, self.chunk_bytes, self.staged)?)
    }
}

/// Measures moves of one case, after one that is not counted, and reports them.
fn measure(
    session: &mut Session,
    case: &str,
    memory: &mut Prepared,
    bytes: usize,
    run: Run<'_>,
) -> Result<()> {
    let repeat = repeat(session);
    let fails = || case.to_owned();
    run.once(memory).with_context(fails)?;
    let start = Instant::now();
    let (mut rates, mut pinnings) = (Vec::new(), Vec::new());
    while repeat.continues(rates.len(), start) {
        let (took, pinning) = run.once(memory).with_context(fails)?;
        rates.push(gb_per_s(bytes, took));
        pinnings.push(pinning.as_secs_f64());
    }
    let gpu = run.gpu.name();
    session
        .report
        .add(case.to_owned(), gpu, "gb_per_s", &rates)?;
    if pinnings.iter().any(|seconds| *seconds > 0.0) {
        session
            .report
            .add(case.to_owned(), gpu, "pinning_s", &pinnings)?;
    }
    Ok(())
}

/// Returns how often each measurement is repeated.
fn repeat(session: &Session) -> Repeat {
    Repeat {
        count: session.rounds,
        budget: REPEAT_TIME.saturating_mul(session.rounds as u32),
    }
}

fn gb_per_s(bytes: usize, took: Duration) -> f64 {
    bytes as f64 / took.as_secs_f64().max(1e-9) / 1e9
}

/// Measures each method in both directions at once.
pub(super) fn both_at_once(session: &mut Session) -> Result<()> {
    let gpu = first(session)?;
    let (gpu, bytes) = (&gpu, session.bytes);
    for method in session.methods.clone() {
        let mut memories = Vec::new();
        for _ in Direction::ALL {
            memories.push(Prepared::allocate(gpu, method, bytes)?);
        }
        for chunk_bytes in both_chunks(session, method) {
            let staged = StagedOptions {
                threads: session.staged.threads.div_ceil(2),
                ..session.staged
            };
            let run_in = |direction| Run {
                gpu,
                direction,
                chunk_bytes,
                staged,
            };
            let case = format!("move/{method}/both/{chunk_bytes}");
            both_by_chunk(session, &case, &mut memories, run_in)?;
        }
    }
    Ok(())
}

/// Returns the chunk sizes with which a method moves in both directions at once.
fn both_chunks(session: &Session, method: TransferMethod) -> Vec<usize> {
    if method == TransferMethod::StagedCopy {
        return vec![session.staged.buffer_bytes];
    }
    let sizes = session.chunk_bytes.iter();
    let sizes = sizes.map(|bytes| (*bytes).max(BOTH_CHUNK_BYTES_MIN).min(session.bytes));
    BTreeSet::from_iter(sizes).into_iter().collect()
}

/// Measures one case of both directions at once, after a run that is not counted.
fn both_by_chunk<'a>(
    session: &mut Session,
    case: &str,
    memories: &mut [Prepared],
    run_in: impl Fn(Direction) -> Run<'a> + Copy + Send,
) -> Result<()> {
    for memory in &mut *memories {
        // The bytes must be on the device before they move to the host.
        run_in(Direction::ToDevice).once(memory)?;
    }
    let (repeat, bytes) = (repeat(session), session.bytes);
    let fails = || case.to_owned();
    one_each_way(memories, run_in).with_context(fails)?;
    let start = Instant::now();
    let mut rates: [Vec<f64>; 3] = Default::default();
    while repeat.continues(rates[0].len(), start) {
        let [up, down] = one_each_way(memories, run_in).with_context(fails)?;
        let both = up.start.min(down.start)..up.end.max(down.end);
        let spans = [(2 * bytes, both), (bytes, up), (bytes, down)];
        for (rates, (bytes, span)) in rates.iter_mut().zip(spans) {
            rates.push(gb_per_s(bytes, span.end - span.start));
        }
    }
    let gpu = run_in(Direction::ToDevice).gpu.name();
    for (metric, rates) in BOTH_METRICS.into_iter().zip(&rates) {
        session.report.add(case.to_owned(), gpu, metric, rates)?;
    }
    Ok(())
}

/// Moves the first memory to the device and the second to the host, at the same time, and checks both afterwards.
/// Returns when each began and ended.
fn one_each_way<'a>(
    memories: &mut [Prepared],
    run_in: impl Fn(Direction) -> Run<'a> + Copy + Send,
) -> Result<[Range<Instant>; 2]> {
    for (memory, direction) in memories.iter_mut().zip(Direction::ALL) {
        memory.forget(run_in(direction).gpu, direction)?;
    }
    let barrier = Barrier::new(memories.len());
    let spans = thread::scope(|scope| {
        let mut threads = Vec::new();
        for (memory, direction) in memories.iter_mut().zip(Direction::ALL) {
            let barrier = &barrier;
            threads.push(scope.spawn(move || {
                barrier.wait();
                let (took, _) = run_in(direction).run(memory)?;
                let end = Instant::now();
                anyhow::Ok(end - took..end)
            }));
        }
        let ended = threads.into_iter().map(|thread| thread.join());
        ended
            .map(|span| span.expect("a move does not panic"))
            .collect::<Result<Vec<_>>>()
    })?;
    // A check of the first to end would slow the other down.
    for (memory, direction) in memories.iter().zip(Direction::ALL) {
        memory.verify(run_in(direction).gpu, direction)?;
    }
    let spans = <[_; 2]>::try_from(spans);
    Ok(spans.expect("one move in each direction"))
}

/// Measures copies from the other GPUs to the first.
pub(super) fn between_gpus(session: &mut Session) -> Result<()> {
    let to = first(session)?;
    let bytes = session.bytes;
    for from in session.gpus.clone().iter().skip(1) {
        let how = match link(from, &to) {
            Some(PeerLink::Direct) => "direct",
            _ => "through-host",
        };
        let devices = format!("{},{}", from.name(), to.name());
        let mut memory = Prepared::allocate(from, TransferMethod::PinnedCopy, bytes)?;
        let run = Run {
            gpu: from,
            direction: Direction::ToDevice,
            chunk_bytes: bytes,
            staged: session.staged,
        };
        run.once(&mut memory)?;
        let device_memory = run_on_device(&to, move |cuda| Ok(cuda.buffer::<u8>(bytes)?))?;
        for chunk_bytes in session.chunk_bytes.clone() {
            let chunk_bytes = chunk_bytes.min(bytes);
            let mut rates = Vec::new();
            for round in 0..=session.rounds {
                let took = copy_and_check(&to, &memory, device_memory.all(), chunk_bytes)?;
                rates.extend((round > 0).then(|| gb_per_s(bytes, took)));
            }
            let case = format!("peer/{how}/{chunk_bytes}");
            session.report.add(case, &devices, "gb_per_s", &rates)?;
        }
    }
    Ok(())
}

/// Copies the device memory of `memory` to another device, and checks every byte.
fn copy_and_check(
    to: &Arc<Device>,
    memory: &Prepared,
    device_memory: DeviceView<u8>,
    chunk_bytes: usize,
) -> Result<Duration> {
    let all = device_memory.clone();
    run_on_device(to, move |cuda| {
        Transfer::begin(cuda, Fill(0), all, cuda.uploads())?.finish()?;
        Ok(())
    })?;
    let took = copy_between(
        to,
        memory.device_memory(),
        device_memory.clone(),
        chunk_bytes,
    )?;
    ensure!(
        checksum_on(to, device_memory)? == memory.checksum(),
        "a copy to {} moved wrong bytes",
        to.name()
    );
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_chunks_move_less_and_large_ones_at_least_themselves() {
        assert_eq!(bytes_of(1 << 30, 4096), 16 << 20);
        assert_eq!(bytes_of(1 << 30, 1 << 20), 1 << 30);
        assert_eq!(bytes_of(1 << 20, 4 << 20), 4 << 20);
    }
}
