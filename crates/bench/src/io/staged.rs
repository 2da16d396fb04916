//! The staged paths on a GPU: through pinned memory, copied while the next operation of the file runs.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use forebay_device::Device;
use forebay_device::cuda::{DeviceView, Pinned, TransferJob};
use forebay_movement::storage::{DataFile, Done, IoQueue, StoragePath};

use super::cell::{Cell, Offsets, Operation};
use super::content::Files;
use super::gpu::Gpu;
use super::host;
use super::measure::{Clock, Found, Trace, on_threads};

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
pub(super) fn measure(
    gpu: &Gpu,
    (cell, seed): (&Cell, u64),
    files: &Files,
    budget: Duration,
) -> Result<Found> {
    let file = host::open(cell, files)?;
    let (threads, pairs) = match cell.path {
        StoragePath::StagedUring => (1, 2 * cell.parallel),
        _ => (cell.parallel, 2),
    };
    let prepare = |_| {
        let (_, views) = gpu.buffers((cell, seed), pairs)?;
        let pair = |view| {
            Ok(Pair {
                pinned: gpu.pinned(cell.bytes)?,
                view,
                offset: None,
            })
        };
        views.into_iter().map(pair).collect::<Result<Vec<_>>>()
    };
    let (traces, used, usage) = on_threads(threads, budget, prepare, |thread, pairs, clock| {
        let worker = Worker::new(&gpu.device, &file, clock);
        let offsets = cell.offsets(files.bytes, thread, threads);
        match (cell.path, cell.operation) {
            (StoragePath::StagedUring, Operation::Read) => {
                worker.queued_reads(cell, offsets, pairs)
            }
            (StoragePath::StagedUring, Operation::Write) => {
                worker.queued_writes(cell, offsets, pairs)
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
    host::check_written(cell, &files.write, &traces, seed)?;
    Found::new(&traces, usage, cell.bytes)
}

/// A thread of a measurement, and its copies in flight.
struct Worker<'a> {
    device: &'a Device,
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
    fn new(device: &'a Device, file: &'a DataFile, clock: Clock) -> Worker<'a> {
        let (sender, arrived) = channel();
        Worker {
            device,
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

    /// Copies a pair to the GPU.
    fn copy_up(&mut self, pair: Pair, began: Instant) -> Result<()> {
        let (sender, offset) = (self.sender.clone(), pair.offset);
        let job = TransferJob::new(pair.pinned, pair.view, move |pinned, view| {
            let pair = Pair {
                pinned,
                view,
                offset,
            };
            // The thread has ended if another operation failed.
            let _ = sender.send((pair, began.elapsed()));
        });
        self.copying += 1;
        Ok(self.device.submit_when_free(Box::new(job))?)
    }

    /// Copies a pair from the GPU.
    fn copy_down(&mut self, pair: Pair) -> Result<()> {
        let (sender, offset, began) = (self.sender.clone(), pair.offset, Instant::now());
        let job = TransferJob::new(pair.view, pair.pinned, move |view, pinned| {
            let pair = Pair {
                pinned,
                view,
                offset,
            };
            // The thread has ended if another operation failed.
            let _ = sender.send((pair, began.elapsed()));
        });
        self.copying += 1;
        Ok(self.device.submit_when_free(Box::new(job))?)
    }

    /// Waits for a copy.
    fn arrive(&mut self) -> Result<Arrived> {
        const CHECK: Duration = Duration::from_millis(100);
        loop {
            match self.arrived.recv_timeout(CHECK) {
                Ok(arrived) => {
                    self.copying -= 1;
                    return Ok(arrived);
                }
                Err(RecvTimeoutError::Timeout) if !self.device.is_lost() => {}
                Err(_) => bail!("{} was lost: {}", self.device.name(), self.device.state()),
            }
        }
    }

    /// Returns a copy that is done now.
    fn arrived_now(&mut self) -> Option<Arrived> {
        let arrived = self.arrived.try_recv().ok()?;
        self.copying -= 1;
        Some(arrived)
    }

    /// Reads the next block while the last one is copied.
    fn reads(mut self, mut offsets: Offsets, mut free: Vec<Pair>) -> Result<(Trace, Vec<Pair>)> {
        loop {
            let pair = match free.pop() {
                Some(pair) => pair,
                None if self.copying == 0 => return Ok((self.trace, self.used)),
                None => {
                    let (pair, latency) = self.arrive()?;
                    self.trace.latencies.push(latency);
                    pair
                }
            };
            if let Some((mut pair, offset)) = self.next(pair, &mut offsets) {
                let began = Instant::now();
                self.file.read_exact_at(offset, &mut pair.pinned)?;
                self.copy_up(pair, began)?;
            }
        }
    }

    /// Writes a block while the next one is copied.
    fn writes(mut self, mut offsets: Offsets, free: Vec<Pair>) -> Result<(Trace, Vec<Pair>)> {
        for pair in free {
            if let Some((pair, _)) = self.next(pair, &mut offsets) {
                self.copy_down(pair)?;
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
                self.copy_down(pair)?;
            }
        }
        Ok((self.trace, self.used))
    }

    /// Keeps many reads in flight.
    fn queued_reads(
        mut self,
        cell: &Cell,
        mut offsets: Offsets,
        mut free: Vec<Pair>,
    ) -> Result<(Trace, Vec<Pair>)> {
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
            while let Some((pair, latency)) = self.arrived_now() {
                self.trace.latencies.push(latency);
                free.push(pair);
            }
            if let Some(done) = queue.wait()? {
                let (pair, began) = views.done(done)?;
                self.copy_up(pair, began)?;
            } else if self.copying > 0 {
                let (pair, latency) = self.arrive()?;
                self.trace.latencies.push(latency);
                free.push(pair);
            } else if free.is_empty() {
                return Ok((self.trace, self.used));
            }
        }
    }

    /// Keeps many writes in flight.
    fn queued_writes(
        mut self,
        cell: &Cell,
        mut offsets: Offsets,
        mut free: Vec<Pair>,
    ) -> Result<(Trace, Vec<Pair>)> {
        let mut queue = IoQueue::new(self.file, cell.parallel)?;
        let mut views = Views::default();
        loop {
            while let Some(pair) = free.pop() {
                if let Some((pair, _)) = self.next(pair, &mut offsets) {
                    self.copy_down(pair)?;
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
