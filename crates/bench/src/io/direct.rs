//! The direct paths: cuFile, called synchronously, on a stream and in batches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use forebay_device::cuda::cufile::{
    CuFile, CuFileBatch, CuFileDirection, CuFileHandle, CuFileMemory, CuFileOperation,
    CuFileStream, CuFileTransfer, PathTaken,
};
use forebay_device::cuda::{Cuda, Priority};
use forebay_movement::method::run_on_device;
use forebay_movement::storage::DirectMode;

use super::cell::{Cell, Operation};
use super::gpu::Gpu;
use super::host;
use super::measure::{Clock, Extent, Found, Task, Trace, on_threads};
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
    task: &Task<'_>,
) -> Result<Found> {
    let cell = task.cell;
    let file = host::open(task)?;
    let handle = Arc::new(cufile.register(file.descriptor()?, file.path())?);
    let (all, _) = gpu.buffers(task, cell.parallel)?;
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
            task.extent,
            |thread| Ok(parts[thread].clone()),
            |thread, memory, clock| calls(gpu, task, &handle, thread, memory, clock),
        )?,
        DirectMode::Async => on_a_stream(gpu, task, cufile, &handle, &parts)?,
        DirectMode::Batch => on_threads(
            1,
            task.extent,
            |_| Ok(CuFileBatch::create(cufile, cell.parallel)?),
            |_, batch, clock| batches(gpu, task, &handle, batch, &parts, clock),
        )?,
    };
    let after = cufile.counts().ok();
    check_used(gpu, cell, used.iter().flatten())?;
    host::check_written(task, &traces)?;
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

/// Checks what the last operation on each piece of memory read.
fn check_used<'a>(gpu: &Gpu, cell: &Cell, used: impl IntoIterator<Item = &'a Used>) -> Result<()> {
    for (memory, offset) in used {
        if let Some(offset) = offset {
            gpu.check(cell, memory.view().clone(), *offset)?;
        }
    }
    Ok(())
}

/// Records a finished operation.
fn record(trace: &mut Trace, cell: &Cell, began: Instant, offset: u64, moved: usize) -> Result<()> {
    ensure!(
        moved == cell.bytes,
        "{cell}: {moved} of {} bytes at offset {offset}",
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
    gpu: &Gpu,
    task: &Task<'_>,
    handle: &CuFileHandle,
    thread: usize,
    memory: CuFileMemory,
    clock: Clock,
) -> Result<(Trace, Vec<Used>)> {
    let cell = task.cell;
    let mut trace = Trace::default();
    let mut last = None;
    let mut offsets = task.offsets(thread, cell.parallel);
    while clock.continues(trace.latencies.len()) {
        let Some(offset) = offsets.next() else { break };
        let began = Instant::now();
        let moved = match cell.operation {
            Operation::Read => handle.read(offset, &memory)?,
            Operation::Write => handle.write(offset, &memory)?,
        };
        record(&mut trace, cell, began, offset, moved)?;
        task.check_each(|| gpu.check(cell, memory.view().clone(), offset))?;
        last = Some(offset);
    }
    Ok((trace, vec![(memory, last)]))
}

/// Rounds of operations, each round in one call.
fn batches(
    gpu: &Gpu,
    task: &Task<'_>,
    handle: &Arc<CuFileHandle>,
    mut batch: CuFileBatch,
    parts: &[CuFileMemory],
    clock: Clock,
) -> Result<(Trace, Vec<Used>)> {
    let cell = task.cell;
    let mut trace = Trace::default();
    let mut offsets = task.offsets(0, 1);
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
                    Operation::Read => CuFileDirection::Read,
                    Operation::Write => CuFileDirection::Write,
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
        task.check_each(|| check_used(gpu, cell, &used[..round.len()]))?;
    }
    Ok((trace, used))
}

/// Several operations in flight on one stream. They run on the device's thread, which must be free to check bytes: if
/// each operation is checked, only one on each part of the memory runs before the check.
///
/// With a stream for each operation, libcufile 1.15 in compat mode read wrong bytes on an H100 (decision 0024).
fn on_a_stream(
    gpu: &Gpu,
    task: &Task<'_>,
    cufile: &Arc<CuFile>,
    handle: &Arc<CuFileHandle>,
    parts: &[CuFileMemory],
) -> Result<Measured> {
    let mut offsets = task.offsets(0, 1);
    if task.extent != Extent::Checked {
        return on_the_device(gpu, task, cufile, handle, parts, offsets);
    }
    let (mut traces, mut last) = (Vec::new(), Usage::default());
    loop {
        let round: Vec<u64> = offsets.by_ref().take(parts.len()).collect();
        if round.is_empty() {
            return Ok((traces, Vec::new(), last));
        }
        let round = round.into_iter();
        let (trace, used, usage) = on_the_device(gpu, task, cufile, handle, parts, round)?;
        check_used(gpu, task.cell, used.iter().flatten())?;
        traces.extend(trace);
        last = usage;
    }
}

/// Runs operations at offsets on a stream, on the device's thread.
fn on_the_device(
    gpu: &Gpu,
    task: &Task<'_>,
    cufile: &Arc<CuFile>,
    handle: &Arc<CuFileHandle>,
    parts: &[CuFileMemory],
    offsets: impl Iterator<Item = u64> + Send + 'static,
) -> Result<Measured> {
    let (cell, extent) = (*task.cell, task.extent);
    let (cufile, handle, parts) = (Arc::clone(cufile), Arc::clone(handle), parts.to_vec());
    run_on_device(&gpu.device, move |cuda| {
        let stream = CuFileStream::register(cuda, &cufile, cuda.stream(Priority::Normal)?);
        Ok(stream.map_err(Into::into).and_then(|stream| {
            let meter = Meter::start();
            let clock = Clock::start(extent);
            let (trace, used) = flow(cuda, &cell, &handle, &stream, (parts, offsets), clock)?;
            Ok((vec![trace], vec![used], meter.stop()))
        }))
    })?
}

fn flow(
    cuda: &Cuda,
    cell: &Cell,
    handle: &Arc<CuFileHandle>,
    stream: &Arc<CuFileStream>,
    (parts, mut offsets): (Vec<CuFileMemory>, impl Iterator<Item = u64>),
    clock: Clock,
) -> Result<(Trace, Vec<Used>)> {
    let mut trace = Trace::default();
    let mut free: VecDeque<Used> = parts.into_iter().map(|part| (part, None)).collect();
    let mut in_flight: VecDeque<(u64, Instant, CuFileMemory, CuFileTransfer)> = VecDeque::new();
    let (mut used, mut begun) = (Vec::new(), 0);
    loop {
        while let Some((memory, last)) = free.pop_front() {
            let next = match clock.continues(begun) {
                true => offsets.next(),
                false => None,
            };
            let Some(offset) = next else {
                used.push((memory, last));
                continue;
            };
            let (began, target) = (Instant::now(), memory.clone());
            let transfer = match cell.operation {
                Operation::Read => CuFileTransfer::read(cuda, handle, offset, target, stream),
                Operation::Write => CuFileTransfer::write(cuda, handle, offset, target, stream),
            };
            begun += 1;
            in_flight.push_back((offset, began, memory, transfer?));
        }
        let Some((offset, began, memory, transfer)) = in_flight.pop_front() else {
            return Ok((trace, used));
        };
        let moved = transfer.finish()?;
        record(&mut trace, cell, began, offset, moved)?;
        free.push_back((memory, Some(offset)));
    }
}
