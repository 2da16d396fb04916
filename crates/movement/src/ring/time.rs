//! How long the stages of a move took.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_device::DeviceFault;
use forebay_device::cuda::{Cuda, Event, Stream};
use parking_lot::Mutex;

use super::Chunk;

/// What a move did. The times of the stages overlap; each is a sum over all chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RingReport {
    /// Number of chunks.
    pub chunks: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Time from the call to the end of the last work.
    pub elapsed: Duration,
    /// Time that readers took to fill slots, summed over the readers.
    pub fill: Duration,
    /// Time that readers waited for a free slot, summed over the readers.
    pub wait: Duration,
    /// Time that the device copied chunks, from a sample of them; zero on a host device.
    pub copy: Duration,
    /// Time of the consumer's work: on the device, from a sample of the chunks; or summed over the CPU workers.
    pub work: Duration,
}

/// The device's times are measured for the first chunks and then for one of this many, because the events take the
/// device's thread about as long as all other work for a small chunk.
const SAMPLE: u64 = 16;

/// Sums of times, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Times {
    fill: AtomicU64,
    wait: AtomicU64,
    work: AtomicU64,
    device: Mutex<DeviceTimes>,
}

/// A stage that runs on the device.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stage {
    /// The copy of a chunk.
    Copy,
    /// The consumer's work.
    Work,
}

#[derive(Debug, Default)]
struct DeviceTimes {
    copies: Intervals,
    kernels: Intervals,
    /// Bytes of the chunks that were measured.
    bytes: u64,
}

/// Intervals on one stream: their sum, and those that are not over yet, oldest first.
#[derive(Debug, Default)]
struct Intervals {
    open: VecDeque<(Event, Event)>,
    sum: Duration,
}

impl Intervals {
    /// Adds the intervals that are over.
    fn settle(&mut self) -> Result<(), DeviceFault> {
        while let Some((begin, end)) = self.open.front() {
            if !end.is_done()? {
                return Ok(());
            }
            self.sum += Duration::from_secs_f64(f64::from(end.elapsed_ms(begin)?.max(0.0)) / 1e3);
            self.open.pop_front();
        }
        Ok(())
    }
}

fn add(to: &AtomicU64, time: Duration) {
    to.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
}

impl Times {
    pub(super) fn filled(&self, time: Duration) {
        add(&self.fill, time);
    }

    pub(super) fn waited(&self, time: Duration) {
        add(&self.wait, time);
    }

    /// Adds time of a CPU worker.
    pub(super) fn processed(&self, time: Duration) {
        add(&self.work, time);
    }

    /// Returns whether the device's times of a chunk are measured.
    pub(super) fn samples(&self, chunk: Chunk) -> bool {
        let sampled = chunk.index < SAMPLE || chunk.index.is_multiple_of(SAMPLE);
        if sampled {
            self.device.lock().bytes += chunk.bytes as u64;
        }
        sampled
    }

    /// Begins an interval on a stream if the chunk is measured.
    pub(super) fn begin(
        &self,
        cuda: &Cuda,
        stream: &Stream,
        is_measured: bool,
    ) -> Result<Option<Event>, DeviceFault> {
        if !is_measured {
            return Ok(None);
        }
        let begin = cuda.event()?;
        cuda.record(&begin, stream)?;
        Ok(Some(begin))
    }

    /// Ends an interval of a stage, if one began.
    pub(super) fn end(
        &self,
        stage: Stage,
        cuda: &Cuda,
        stream: &Stream,
        begin: Option<Event>,
    ) -> Result<(), DeviceFault> {
        let end = self.begin(cuda, stream, begin.is_some())?;
        let mut device = self.device.lock();
        let intervals = match stage {
            Stage::Copy => &mut device.copies,
            Stage::Work => &mut device.kernels,
        };
        intervals.open.extend(begin.zip(end));
        intervals.settle()
    }

    /// Returns the sums. All work of the device must be done.
    pub(super) fn report(&self, chunks: u64, bytes: u64, elapsed: Duration) -> RingReport {
        let mut device = self.device.lock();
        // After a fault the times of the device are not complete.
        let _ = device.copies.settle();
        let _ = device.kernels.settle();
        let scale = bytes as f64 / device.bytes.max(1) as f64;
        let sum = |from: &AtomicU64| Duration::from_nanos(from.load(Ordering::Relaxed));
        RingReport {
            chunks,
            bytes,
            elapsed,
            fill: sum(&self.fill),
            wait: sum(&self.wait),
            copy: device.copies.sum.mul_f64(scale),
            work: device.kernels.sum.mul_f64(scale) + sum(&self.work),
        }
    }
}
