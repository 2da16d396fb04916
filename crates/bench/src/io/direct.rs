//! The direct paths: cuFile, called synchronously, on a stream and in batches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use forebay_device::JobError;
use forebay_device::cuda::cufile::{
    CuFile, CuFileBatch, CuFileHandle, CuFileMemory, CuFileOperation, CuFileStream, CuFileTransfer,
    Direction, PathTaken,
};
use forebay_device::cuda::{Cuda, Priority};
use forebay_movement::method::ask;
use forebay_movement::storage::DirectMode;

use super::cell::{Cell, Operation};
use super::content::Files;
use super::gpu::Gpu;
use super::host;
use super::measure::{Clock, Found, Trace, on_threads};
use crate::q6::usage::{Meter, Usage};

/// Memory, and the offset of the last operation on it.
type Used = (CuFileMemory, Option<u64>);

/// What a measurement returns: traces, memory and CPU use.
type Measured = (Vec<Trace>, Vec<Vec<Used>>, Usage);

/// Measures a cell.
///
/// # Errors
/// If an operation fails, or moves wrong bytes.
pub(super) fn measure(
    gpu: &Gpu,
    cufile: &Arc<CuFile>,
    mode: DirectMode,
    (cell, seed): (&Cell, u64),
    files: &Files,
    budget: Duration,
) -> Result<Found> {
    let file = host::open(cell, files)?;
    let handle = Arc::new(cufile.register(file.descriptor()?, file.path())?);
    let (all, _) = gpu.buffers((cell, seed), cell.parallel)?;
    let (all, unregistered) = match cufile.register_memory(all.clone()) {
        Ok(registered) => (registered, None),
        Err(why) => (CuFileMemory::unregistered(all), Some(why.to_string())),
    };
    let parts: Vec<CuFileMemory> = (0..cell.parallel)
        .map(|index| all.part(index * cell.bytes..(index + 1) * cell.bytes))
        .collect();
    let before = cufile.counts().ok();
    let (traces, used, usage) = match mode {
        DirectMode::Sync => on_threads(
            cell.parallel,
            budget,
            |thread| Ok(parts[thread].clone()),
            |thread, memory, clock| calls(cell, &handle, files, thread, memory, clock),
        )?,
        DirectMode::Async => {
            let (cell, file_bytes, handle) = (*cell, files.bytes, Arc::clone(&handle));
            let cufile = Arc::clone(cufile);
            let parts = parts.clone();
            ask(&gpu.device, move |cuda| {
                on_a_stream(cuda, &cell, &cufile, &handle, file_bytes, parts, budget)
            })??
        }
        DirectMode::Batch => on_threads(
            1,
            budget,
            |_| Ok(CuFileBatch::create(cufile, cell.parallel)?),
            |_, batch, clock| batches(cell, &handle, files, batch, &parts, clock),
        )?,
    };
    let after = cufile.counts().ok();
    for (memory, offset) in used.iter().flatten() {
        if let Some(offset) = offset {
            gpu.check(cell, memory.view().clone(), *offset)?;
        }
    }
    host::check_written(cell, &files.write, &traces, seed)?;
    let mut found = Found::new(&traces, usage, cell.bytes)?;
    found.taken = match (before, after) {
        (Some(before), Some(after)) => Some((after - before).path().to_string()),
        _ => None,
    };
    if let Some(why) = unregistered {
        let path = found
            .taken
            .unwrap_or_else(|| PathTaken::Unknown.to_string());
        found.taken = Some(format!("{path}, through cuFile's own buffers: {why}"));
    }
    Ok(found)
}

/// Records a finished operation.
fn record(trace: &mut Trace, cell: &Cell, began: Instant, offset: u64, moved: usize) -> Result<()> {
    ensure!(
        moved == cell.bytes,
        "{}: {moved} of {} bytes at offset {offset}",
        cell.case(),
        cell.bytes
    );
    trace.latencies.push(began.elapsed());
    if cell.operation == Operation::Write {
        trace.written.insert(offset);
    }
    Ok(())
}

/// One call at a time on each thread.
fn calls(
    cell: &Cell,
    handle: &CuFileHandle,
    files: &Files,
    thread: usize,
    memory: CuFileMemory,
    clock: Clock,
) -> Result<(Trace, Vec<Used>)> {
    let mut trace = Trace::default();
    let mut last = None;
    let mut offsets = cell.offsets(files.bytes, thread, cell.parallel);
    while clock.continues(trace.latencies.len()) {
        let Some(offset) = offsets.next() else { break };
        let began = Instant::now();
        let moved = match cell.operation {
            Operation::Read => handle.read(offset, &memory)?,
            Operation::Write => handle.write(offset, &memory)?,
        };
        record(&mut trace, cell, began, offset, moved)?;
        last = Some(offset);
    }
    Ok((trace, vec![(memory, last)]))
}

/// Rounds of operations, each round in one call.
fn batches(
    cell: &Cell,
    handle: &Arc<CuFileHandle>,
    files: &Files,
    mut batch: CuFileBatch,
    parts: &[CuFileMemory],
    clock: Clock,
) -> Result<(Trace, Vec<Used>)> {
    let mut trace = Trace::default();
    let mut offsets = cell.offsets(files.bytes, 0, 1);
    let mut used: Vec<Used> = parts.iter().map(|part| (part.clone(), None)).collect();
    while clock.continues(trace.latencies.len()) {
        let began = Instant::now();
        let round: Vec<u64> = offsets.by_ref().take(parts.len()).collect();
        if round.is_empty() {
            break;
        }
        let operations = round
            .iter()
            .zip(parts)
            .map(|(&offset, part)| CuFileOperation {
                direction: match cell.operation {
                    Operation::Read => Direction::Read,
                    Operation::Write => Direction::Write,
                },
                handle: Arc::clone(handle),
                offset,
                memory: part.clone(),
            });
        let moved = batch.run(operations.collect())?;
        for ((&offset, moved), used) in round.iter().zip(moved).zip(&mut used) {
            record(&mut trace, cell, began, offset, moved)?;
            used.1 = Some(offset);
        }
    }
    Ok((trace, used))
}

/// Several operations in flight on one stream. Runs on the device's thread.
///
/// With a stream for each operation, libcufile 1.15 in compat mode read wrong bytes on an H100 (decision 0024).
fn on_a_stream(
    cuda: &Cuda,
    cell: &Cell,
    cufile: &Arc<CuFile>,
    handle: &Arc<CuFileHandle>,
    file_bytes: u64,
    parts: Vec<CuFileMemory>,
    budget: Duration,
) -> Result<Result<Measured>, JobError> {
    let stream = CuFileStream::register(cuda, cufile, cuda.stream(Priority::Normal)?);
    let lanes = stream.map(|stream| {
        let lane = |memory| Lane {
            memory,
            stream: Arc::clone(&stream),
        };
        parts.into_iter().map(lane).collect()
    });
    Ok(lanes.map_err(Into::into).and_then(|lanes| {
        let meter = Meter::start();
        let (trace, used) = flow(cuda, cell, handle, file_bytes, lanes, Clock::start(budget))?;
        Ok((vec![trace], vec![used], meter.stop()))
    }))
}

/// The memory of an operation, and its stream.
struct Lane {
    memory: CuFileMemory,
    stream: Arc<CuFileStream>,
}

fn flow(
    cuda: &Cuda,
    cell: &Cell,
    handle: &Arc<CuFileHandle>,
    file_bytes: u64,
    lanes: Vec<Lane>,
    clock: Clock,
) -> Result<(Trace, Vec<Used>)> {
    let mut trace = Trace::default();
    let mut offsets = cell.offsets(file_bytes, 0, 1);
    let mut free: VecDeque<(Lane, Option<u64>)> =
        lanes.into_iter().map(|lane| (lane, None)).collect();
    let mut in_flight: VecDeque<(Lane, u64, Instant, CuFileTransfer)> = VecDeque::new();
    let (mut used, mut begun) = (Vec::new(), 0);
    loop {
        while let Some((lane, last)) = free.pop_front() {
            let next = match clock.continues(begun) {
                true => offsets.next(),
                false => None,
            };
            let Some(offset) = next else {
                used.push((lane.memory, last));
                continue;
            };
            let (began, memory) = (Instant::now(), lane.memory.clone());
            let transfer = match cell.operation {
                Operation::Read => CuFileTransfer::read(cuda, handle, offset, memory, &lane.stream),
                Operation::Write => {
                    CuFileTransfer::write(cuda, handle, offset, memory, &lane.stream)
                }
            };
            begun += 1;
            in_flight.push_back((lane, offset, began, transfer?));
        }
        let Some((lane, offset, began, transfer)) = in_flight.pop_front() else {
            return Ok((trace, used));
        };
        let moved = transfer.finish()?;
        record(&mut trace, cell, began, offset, moved)?;
        free.push_back((lane, Some(offset)));
    }
}
