//! Queue of searches for a device, and the job that answers them in as few passes as possible.

use std::fmt;
use std::sync::Arc;

use forebay_cancel::Stop;
use forebay_device::cuda::{Cuda, DeviceMemory};
use forebay_device::{Device, DeviceContext, Job, JobError, Step, SubmitError};
use parking_lot::Mutex;

use crate::policy::Policy;
use crate::scanner::Scanner;
use crate::table::ScanTable;
use crate::tuned::Tuned;
use forebay_text::Program;

/// Kind of result that a search wants.
#[derive(Debug, Clone)]
pub enum ScanWant {
    /// The number of matching rows.
    Count,
    /// The numbers of the matching rows in the table; see [`ScanTable::locate`].
    Rows,
    /// A mark for each row of the table, in this memory of the device: 1 if the row matches, else 0. Marks have four
    /// bits, eight of them a 32-bit word: that of row `i` is at bit `i / 32 % 8 * 4` of word `i / 256 * 32 + i % 32`.
    /// The memory has a word for each eight rows, and whole groups of 256 rows.
    Marks(Arc<DeviceMemory>),
}

/// A search of a table that is on a device.
#[derive(Debug, Clone)]
pub struct ScanOrder {
    /// Table to search.
    pub table: Arc<ScanTable>,
    /// Compiled pattern; [`Program::has_device_form`] must hold.
    pub program: Arc<Program>,
    /// Kind of result.
    pub want: ScanWant,
    /// Number of matches after which the search may end.
    pub limit: u64,
    /// Cancellation token: a search that is cancelled or past its deadline while queued is dropped.
    pub stop: Stop,
}

/// Result of a search on a device. If the program [confirms on the host](Program::confirms_on_host), the rows are only
/// candidates.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScanFound {
    /// Number of matching rows. If more rows match than the limit, `matches` may be any number from the limit to the
    /// true count.
    pub matches: u64,
    /// Row numbers in any order, if wanted.
    pub list: Vec<u32>,
    /// Device time of the pass in milliseconds.
    pub device_ms: f64,
    /// Number of searches that shared the pass, including this one.
    pub shared_by: usize,
}

/// Callback for the result of a search. It is dropped without being called if the device is lost or has too little
/// memory for the search.
type Answer = Box<dyn FnOnce(ScanFound) + Send>;

/// Queue of the searches for one device. Queued searches of the same table share a pass.
#[derive(Default)]
pub struct ScanQueue {
    waiting: Mutex<Waiting>,
    /// Policy of the kernels; `None` for that of the device's architecture.
    policy: Option<Policy>,
}

#[derive(Default)]
struct Waiting {
    searches: Vec<(ScanOrder, Answer)>,
    /// Whether the device has a job that will answer the searches. At most one exists at a time: searches that arrive
    /// while it runs wait and share the next pass.
    has_job: bool,
}

/// Allocates the memory that searches need on a GPU, and compiles their kernels. Must be called before rows are loaded.
///
/// # Errors
/// As for [`Device::submit`].
pub fn prepare(device: &Device) -> Result<(), SubmitError> {
    device.submit(Box::new(|context: &mut DeviceContext| {
        let parts = context.parts();
        if let Some(cuda) = parts.cuda {
            let tuned = Tuned::new(&Policy::of(cuda.arch()));
            if let Some(compiled) = cuda.load(&tuned.program)? {
                return Ok(Step::wait_for(compiled));
            }
            let scanner: &mut Scanner = parts.state.get_or_default();
            match scanner.prepare(cuda) {
                Ok(()) => {}
                Err(JobError::Failed(failure)) => {
                    tracing::warn!(%failure, "a device cannot be prepared for searches; the host will run them")
                }
                Err(fault) => return Err(fault),
            }
        }
        Ok(Step::Done)
    }))
}

impl fmt::Debug for ScanQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.waiting.lock().searches.len();
        f.debug_struct("ScanQueue")
            .field("waiting", &waiting)
            .finish()
    }
}

impl ScanQueue {
    /// Returns a queue with a given policy instead of the architecture's, for measurements.
    pub fn with_policy(policy: Policy) -> ScanQueue {
        ScanQueue {
            policy: Some(policy),
            ..ScanQueue::default()
        }
    }

    /// Returns the policy for a device, with its compiled program.
    fn tuned(&self, cuda: &Cuda) -> Arc<Tuned> {
        match &self.policy {
            Some(policy) => Tuned::new(policy),
            None => Tuned::new(&Policy::of(cuda.arch())),
        }
    }

    /// Queues a search on the device that holds its table; returns at once.
    ///
    /// # Errors
    /// As for [`Device::submit`]; `answer` is then dropped, and so are the callbacks of all queued searches.
    pub fn submit(
        self: &Arc<Self>,
        device: &Device,
        order: ScanOrder,
        answer: impl FnOnce(ScanFound) + Send + 'static,
    ) -> Result<(), SubmitError> {
        let mut waiting = self.waiting.lock();
        waiting.searches.push((order, Box::new(answer)));
        if std::mem::replace(&mut waiting.has_job, true) {
            return Ok(());
        }
        drop(waiting);
        device.submit(Box::new(AnswerAll {
            queue: Arc::clone(self),
            is_done: false,
        }))
    }

    /// Drops cancelled searches; then removes and returns the oldest search and all others of the same table.
    fn take(&self) -> Vec<(ScanOrder, Answer)> {
        let mut waiting = self.waiting.lock();
        waiting
            .searches
            .retain(|(order, _)| order.stop.check().is_ok());
        let first = waiting.searches.first();
        let Some(table) = first.map(|(order, _)| Arc::clone(&order.table)) else {
            return Vec::new();
        };
        let (taken, left) = waiting
            .searches
            .drain(..)
            .partition(|(order, _)| Arc::ptr_eq(&order.table, &table));
        waiting.searches = left;
        taken
    }
}

/// Job that answers the searches of a queue, one pass per step, until the queue is empty. If the job is dropped
/// earlier, because the device is lost or refuses jobs, the queued searches are dropped too.
struct AnswerAll {
    queue: Arc<ScanQueue>,
    is_done: bool,
}

impl Job for AnswerAll {
    fn run(&mut self, context: &mut DeviceContext) -> Result<Step, JobError> {
        let mut parts = context.parts();
        let tuned = parts.cuda.as_ref().map(|cuda| self.queue.tuned(cuda));
        if let (Some(cuda), Some(tuned)) = (&mut parts.cuda, &tuned)
            && let Some(compiled) = cuda.load(&tuned.program)?
        {
            return Ok(Step::wait_for(compiled));
        }
        let (orders, answers): (Vec<_>, Vec<_>) = self.queue.take().into_iter().unzip();
        if let (Some(cuda), Some(tuned)) = (parts.cuda, &tuned) {
            let scanner: &mut Scanner = parts.state.get_or_default();
            match scanner.scan(cuda, tuned, &orders) {
                Ok(found) => {
                    let answered = answers.into_iter().zip(found);
                    answered.for_each(|(answer, found)| answer(found));
                }
                Err(JobError::Failed(failure)) => {
                    tracing::warn!(%failure, "searches on a device failed; the host will run them");
                }
                Err(fault) => return Err(fault),
            }
        }
        let mut waiting = self.queue.waiting.lock();
        self.is_done = waiting.searches.is_empty();
        waiting.has_job = !self.is_done;
        Ok(if self.is_done {
            Step::Done
        } else {
            Step::Again
        })
    }
}

impl Drop for AnswerAll {
    fn drop(&mut self) {
        // A job that has finished leaves the queue as it is: later searches belong to the next job.
        if !self.is_done {
            *self.queue.waiting.lock() = Waiting::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::sync::mpsc::channel;

    use forebay_device::{DeviceOptions, Devices, Fault};

    use super::*;

    fn host() -> Arc<Device> {
        let spec = "host:1".parse().expect("a valid specification");
        let options = DeviceOptions {
            queue_depth: 4,
            ..DeviceOptions::default()
        };
        let devices = Devices::new(&spec, options).expect("a thread");
        Arc::clone(&devices.list()[0])
    }

    fn order() -> ScanOrder {
        ScanOrder {
            table: Arc::new(ScanTable::new([])),
            program: Arc::new(Program::substring("a")),
            want: ScanWant::Count,
            limit: u64::MAX,
            stop: Stop::never(),
        }
    }

    #[test]
    fn any_number_of_searches_takes_one_place_in_the_queue_of_the_device() {
        let (device, queue) = (host(), Arc::<ScanQueue>::default());
        let (release, released) = channel::<()>();
        let wait = move |_: &mut DeviceContext| {
            let _ = released.recv();
            Ok(Step::Done)
        };
        device.submit(Box::new(wait)).expect("an empty queue");
        let (sender, answers) = channel();
        for _ in 0..100 {
            let sender = sender.clone();
            let answer = move |found| drop(sender.send(found));
            queue
                .submit(&device, order(), answer)
                .expect("one job at most");
        }
        assert_eq!(device.queued_jobs(), 2);
        drop((release, sender));
        // A host device cannot run the searches, so every callback is dropped.
        assert_eq!(answers.iter().count(), 0);
        assert!(queue.waiting.lock().searches.is_empty());
    }

    #[test]
    fn searches_that_were_cancelled_while_they_waited_are_dropped() {
        let queue = ScanQueue::default();
        let cancelled = Stop::never();
        let (left, kept) = (order(), order());
        let left = ScanOrder {
            stop: cancelled.clone(),
            ..left
        };
        for order in [left, kept.clone()] {
            queue.waiting.lock().searches.push((order, Box::new(drop)));
        }
        cancelled.cancelled.store(true, Ordering::Relaxed);
        let taken = queue.take();
        assert_eq!(taken.len(), 1);
        assert!(Arc::ptr_eq(&taken[0].0.table, &kept.table));
        assert!(queue.take().is_empty());
    }

    #[test]
    fn searches_of_a_lost_device_are_dropped() {
        let (device, queue) = (host(), Arc::<ScanQueue>::default());
        device.inject(Fault::Fail);
        let (sender, answers) = channel();
        let answer = move |found| drop(sender.send(found));
        let submitted = queue.submit(&device, order(), answer);
        assert!(
            submitted.is_ok(),
            "the queue accepts the search: the fault is found when it runs"
        );
        assert_eq!(answers.iter().count(), 0);
        while !device.is_lost() {
            std::thread::yield_now();
        }
        assert!(queue.submit(&device, order(), drop).is_err());
        let waiting = queue.waiting.lock();
        assert!(waiting.searches.is_empty() && !waiting.has_job);
    }
}
