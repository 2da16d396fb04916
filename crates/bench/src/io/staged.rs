//! The staged paths on a GPU: through pinned memory, copied while the next operation of the file runs.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use forebay_device::Job;
use forebay_device::cuda::{DeviceView, Pinned, TransferJob};
use forebay_movement::storage::{DataFile, Done, IoQueue, StoragePath};

use super::cell::{Offsets, Operation};
use super::gpu::Gpu;
use super::host;
use super::measure::{Clock, Found, Task, Trace, on_threads};

/// Pinned memory and the memory of the GPU that it is copied to or from.
struct Pair {
    pinned: Pinned,
    view: DeviceView<u8>,
    /// Offset of the last operation.
    offset: Option<u64>,
}

/// A pair whose copy is done, and the time since its operation began.
type Arrived = (Pair, Duration);

/// Measures a cell.
///
/// # Errors
/// If an operation fails, or moves wrong bytes.
pub(super) fn measure(gpu: &Gpu, task: &Task<'_>) -> Result<Found> {
    let cell = task.cell;
    let file = host::open(task)?;
    let (threads, pairs) = match cell.path {
        StoragePath::StagedUring => (1, 2 * cell.parallel),
        _ => (cell.parallel, 2),
    };
    let prepare = |_| {
        let (_, views) = gpu.buffers(task, pairs)?;
        let pair = |view| {
            Ok(Pair {
                pinned: gpu.pinned(cell.bytes)?,
                view,
                offset: None,
            })
        };
        views.into_iter().map(pair).collect::<Result<Vec<_>>>()
    };
    let (traces, used, usage) =
        on_threads(threads, task.extent, prepare, |thread, pairs, clock| {
            let worker = Worker::new(gpu, task, &file, clock);
            let offsets = task.offsets(thread, threads);
            match (cell.path, cell.operation) {
                (StoragePath::StagedUring, Operation::Read) => worker.queued_reads(offsets, pairs),
                (StoragePath::StagedUring, Operation::Write) => {
                    worker.queued_writes(offsets, pairs)
                }
                (_, Operation::Read) => worker.reads(offsets, pairs),
                (_, Operation::Write) => worker.writes(offsets, pairs),
            }
        })?;
    for pair in used.into_iter().flatten() {
        if let Some(offset) = pair.offset {
            gpu.check(cell, pair.view, offset)?;
        }
    }
    host::check_written(task, &traces)?;
    Found::new(&traces, usage, cell.bytes)
}

/// A thread of a measurement, and its copies in flight.
struct Worker<'a> {
    gpu: &'a Gpu,
    task: &'a Task<'a>,
    file: &'a DataFile,
    clock: Clock,
    begun: usize,
    copying: usize,
    sender: Sender<Arrived>,
    arrived: Receiver<Arrived>,
    trace: Trace,
    /// Pairs that are not used any more.
    used: Vec<Pair>,
}

impl<'a> Worker<'a> {
    fn new(gpu: &'a Gpu, task: &'a Task<'a>, file: &'a DataFile, clock: Clock) -> Worker<'a> {
        let (sender, arrived) = channel();
        Worker {
            gpu,
            task,
            file,
            clock,
            begun: 0,
            copying: 0,
            sender,
            arrived,
            trace: Trace::default(),
            used: Vec::new(),
        }
    }

    /// Gives a pair its next offset; without one, the pair is not used any more.
    fn next(&mut self, mut pair: Pair, offsets: &mut Offsets) -> Option<(Pair, u64)> {
        let next = match self.clock.continues(self.begun) {
            true => offsets.next(),
            false => None,
        };
        match next {
            Some(offset) => {
                self.begun += 1;
                pair.offset = Some(offset);
                Some((pair, offset))
            }
            None => {
                self.used.push(pair);
                None
            }
        }
    }

    /// Copies a pair to the GPU for a read, or from it for a write.
    fn copy(&mut self, pair: Pair, began: Instant) -> Result<()> {
        let Pair {
            pinned,
            view,
            offset,
        } = pair;
        let sender = self.sender.clone();
        let arrive = move |pinned, view| {
            let pair = Pair {
                pinned,
                view,
                offset,
            };
            // The thread has ended if another operation failed.
            let _ = sender.send((pair, began.elapsed()));
        };
        let job: Box<dyn Job> = match self.task.cell.operation {
            Operation::Read => Box::new(TransferJob::new(pinned, view, arrive)),
            Operation::Write => {
                let arrive = move |view, pinned| arrive(pinned, view);
                Box::new(TransferJob::new(view, pinned, arrive))
            }
        };
        self.copying += 1;
        Ok(self.gpu.device.submit_when_free(job)?)
    }

    /// Waits for a copy.
    fn arrive(&mut self) -> Result<Arrived> {
        const CHECK: Duration = Duration::from_millis(100);
        let device = &self.gpu.device;
        loop {
            match self.arrived.recv_timeout(CHECK) {
                Ok(arrived) => {
                    self.copying -= 1;
                    return Ok(arrived);
                }
                Err(RecvTimeoutError::Timeout) if !device.is_lost() => {}
                Err(_) => bail!("{} was lost: {}", device.name(), device.state()),
            }
        }
    }

    /// Returns a copy that is done now.
    fn arrived_now(&mut self) -> Option<Arrived> {
        let arrived = self.arrived.try_recv().ok()?;
        self.copying -= 1;
        Some(arrived)
    }

    /// Records a read whose copy is done; returns the pair.
    fn was_read(&mut self, (pair, latency): Arrived) -> Result<Pair> {
        self.trace.latencies.push(latency);
        if let Some(offset) = pair.offset {
            let view = pair.view.clone();
            let check = || self.gpu.check(self.task.cell, view, offset);
            self.task.check_each(check)?;
        }
        Ok(pair)
    }

    /// Reads the next block while the last one is copied.
    fn reads(mut self, mut offsets: Offsets, mut free: Vec<Pair>) -> Result<(Trace, Vec<Pair>)> {
        loop {
            let pair = match free.pop() {
                Some(pair) => pair,
                None if self.copying == 0 => return Ok((self.trace, self.used)),
                None => {
                    let arrived = self.arrive()?;
                    self.was_read(arrived)?
                }
            };
            if let Some((mut pair, offset)) = self.next(pair, &mut offsets) {
                let began = Instant::now();
                self.file.read_exact_at(offset, &mut pair.pinned)?;
                self.copy(pair, began)?;
            }
        }
    }

    /// Writes a block while the next one is copied.
    fn writes(mut self, mut offsets: Offsets, free: Vec<Pair>) -> Result<(Trace, Vec<Pair>)> {
        for pair in free {
            if let Some((pair, _)) = self.next(pair, &mut offsets) {
                self.copy(pair, Instant::now())?;
            }
        }
        while self.copying > 0 {
            let (pair, copied) = self.arrive()?;
            let offset = pair.offset.unwrap_or_default();
            let began = Instant::now();
            self.file.write_all_at(offset, &pair.pinned)?;
            self.trace.latencies.push(copied + began.elapsed());
            self.trace.written.insert(offset);
            if let Some((pair, _)) = self.next(pair, &mut offsets) {
                self.copy(pair, Instant::now())?;
            }
        }
        Ok((self.trace, self.used))
    }

    /// Keeps many reads in flight.
    fn queued_reads(
        mut self,
        mut offsets: Offsets,
        mut free: Vec<Pair>,
    ) -> Result<(Trace, Vec<Pair>)> {
        let cell = self.task.cell;
        let mut queue = IoQueue::new(self.file, cell.parallel)?;
        let mut views = Views::default();
        loop {
            while queue.has_room()
                && let Some(pair) = free.pop()
            {
                if let Some((pair, offset)) = self.next(pair, &mut offsets) {
                    let (tag, pinned) = views.keep(pair, Duration::ZERO);
                    queue.read(offset, pinned, 0..cell.bytes, tag)?;
                }
            }
            while let Some(arrived) = self.arrived_now() {
                free.push(self.was_read(arrived)?);
            }
            if let Some(done) = queue.wait()? {
                let (pair, began) = views.done(done)?;
                self.copy(pair, began)?;
            } else if self.copying > 0 {
                let arrived = self.arrive()?;
                free.push(self.was_read(arrived)?);
            } else if free.is_empty() {
                return Ok((self.trace, self.used));
            }
        }
    }

    /// Keeps many writes in flight.
    fn queued_writes(
        mut self,
        mut offsets: Offsets,
        mut free: Vec<Pair>,
    ) -> Result<(Trace, Vec<Pair>)> {
        let cell = self.task.cell;
        let mut queue = IoQueue::new(self.file, cell.parallel)?;
        let mut views = Views::default();
        loop {
            while let Some(pair) = free.pop() {
                if let Some((pair, _)) = self.next(pair, &mut offsets) {
                    self.copy(pair, Instant::now())?;
                }
            }
            while queue.has_room() && self.copying > 0 {
                let is_idle = queue.in_flight() == 0;
                let arrived = match self.arrived_now() {
                    Some(arrived) => arrived,
                    None if is_idle => self.arrive()?,
                    None => break,
                };
                let (pair, copied) = arrived;
                let offset = pair.offset.unwrap_or_default();
                let (tag, pinned) = views.keep(pair, copied);
                queue.write(offset, pinned, 0..cell.bytes, tag)?;
            }
            let Some(done) = queue.wait()? else {
                return Ok((self.trace, self.used));
            };
            let (pair, began) = views.done(done)?;
            self.trace.latencies.push(began.elapsed());
            self.trace.written.extend(pair.offset);
            free.push(pair);
        }
    }
}

/// What belongs to pinned buffers that a queue of the file has, by the tags of their operations.
#[derive(Default)]
struct Views {
    next: u64,
    kept: HashMap<u64, (DeviceView<u8>, Option<u64>, Instant)>,
}

impl Views {
    /// Returns a tag, and the pinned buffer for the queue. The operation counts as begun some time before now.
    fn keep(&mut self, pair: Pair, before: Duration) -> (u64, Pinned) {
        self.next += 1;
        let began = Instant::now().checked_sub(before);
        let began = began.unwrap_or_else(Instant::now);
        self.kept.insert(self.next, (pair.view, pair.offset, began));
        (self.next, pair.pinned)
    }

    /// Returns the pair of a finished operation, and when it began.
    fn done(&mut self, done: Done<Pinned>) -> Result<(Pair, Instant)> {
        done.result?;
        let Some((view, offset, began)) = self.kept.remove(&done.tag) else {
            bail!("the queue returned an unknown tag");
        };
        let pair = Pair {
            pinned: done.buffer,
            view,
            offset,
        };
        Ok((pair, began))
    }
}
