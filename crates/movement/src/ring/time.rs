//! How long the stages of a move took.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_device::DeviceFault;
use forebay_device::cuda::{Cuda, Event, Stream};
use parking_lot::Mutex;

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
    /// Time that the device copied chunks; zero on a host device.
    pub copy: Duration,
    /// Time of the consumer's work: on the device, or summed over the CPU workers.
    pub work: Duration,
}

/// Sums of times, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Times {
    fill: AtomicU64,
    wait: AtomicU64,
    work: AtomicU64,
    device: Mutex<DeviceTimes>,
}

#[derive(Debug, Default)]
struct DeviceTimes {
    copies: Intervals,
    kernels: Intervals,
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

    /// Begins an interval on a stream.
    pub(super) fn begin(&self, cuda: &Cuda, stream: &Stream) -> Result<Event, DeviceFault> {
        let begin = cuda.event()?;
        cuda.record(&begin, stream)?;
        Ok(begin)
    }

    /// Ends the interval of a copy.
    pub(super) fn copied(
        &self,
        cuda: &Cuda,
        stream: &Stream,
        begin: Event,
    ) -> Result<(), DeviceFault> {
        let end = self.begin(cuda, stream)?;
        let copies = &mut self.device.lock().copies;
        copies.open.push_back((begin, end));
        copies.settle()
    }

    /// Ends the interval of a consumer's work.
    pub(super) fn worked(
        &self,
        cuda: &Cuda,
        stream: &Stream,
        begin: Event,
    ) -> Result<(), DeviceFault> {
        let end = self.begin(cuda, stream)?;
        let kernels = &mut self.device.lock().kernels;
        kernels.open.push_back((begin, end));
        kernels.settle()
    }

    /// Returns the sums. All work of the device must be done.
    pub(super) fn report(&self, chunks: u64, bytes: u64, elapsed: Duration) -> RingReport {
        let mut device = self.device.lock();
        // After a fault the times of the device are not complete.
        let _ = device.copies.settle();
        let _ = device.kernels.settle();
        let sum = |from: &AtomicU64| Duration::from_nanos(from.load(Ordering::Relaxed));
        RingReport {
            chunks,
            bytes,
            elapsed,
            fill: sum(&self.fill),
            wait: sum(&self.wait),
            copy: device.copies.sum,
            work: device.kernels.sum + sum(&self.work),
        }
    }
}
