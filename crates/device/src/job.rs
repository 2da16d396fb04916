//! Work for a device.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_cancel::Stop;

use crate::cuda::{Cuda, Event};
use crate::device::Shared;
use crate::{DeviceFault, DeviceId, JobError, JobFailure, OperatorState};

/// What the device's thread does with a job after a step of it.
#[derive(Debug, Clone)]
pub enum Step {
    /// The job is finished: it is dropped.
    Done,
    /// The job has more to do now: it goes to the end of the queue of its class.
    Again,
    /// The job continues after the event: it is set aside until then, and takes no time of the thread.
    WaitFor(Awaited),
}

impl Step {
    /// Returns the step that sets the job aside until `event`.
    pub fn wait_for(event: impl Into<Awaited>) -> Step {
        Step::WaitFor(event.into())
    }
}

/// What a job that is set aside waits for.
#[derive(Debug, Clone)]
pub enum Awaited {
    /// A point in a stream of a GPU.
    Event(Arc<Event>),
    /// Another thread of this process.
    Signal(Signal),
}

impl Awaited {
    /// Returns whether the job can continue.
    pub(crate) fn is_done(&self) -> Result<bool, DeviceFault> {
        match self {
            Awaited::Event(event) => event.is_done(),
            Awaited::Signal(signal) => Ok(signal.is_set()),
        }
    }
}

impl From<Arc<Event>> for Awaited {
    fn from(event: Arc<Event>) -> Awaited {
        Awaited::Event(event)
    }
}

impl From<Signal> for Awaited {
    fn from(signal: Signal) -> Awaited {
        Awaited::Signal(signal)
    }
}

/// A flag that another thread sets when a job can continue. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct Signal {
    flag: Arc<AtomicBool>,
}

impl Signal {
    /// Returns a signal that is not set.
    pub fn new() -> Signal {
        Signal::default()
    }

    /// Sets the signal for good.
    pub fn set(&self) {
        self.flag.store(true, Ordering::Release);
    }

    /// Returns whether the signal is set.
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }
}

/// The queue of a device that a job waits in. Each class has its own bound. While several have jobs, they share the
/// thread's time 16 : 4 : 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// A client waits for the answer.
    Interactive,
    /// Data on its way to or from the device.
    Load,
    /// Long work that no client waits for.
    Batch,
}

impl Class {
    /// All classes, in the order of their indexes.
    pub const ALL: [Class; 3] = [Class::Interactive, Class::Load, Class::Batch];

    pub(crate) fn index(self) -> usize {
        self as usize
    }

    /// Parts of the thread's time.
    pub(crate) fn weight(self) -> u64 {
        match self {
            Class::Interactive => 16,
            Class::Load => 4,
            Class::Batch => 1,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Interactive => "interactive",
            Class::Load => "load",
            Class::Batch => "batch",
        })
    }
}

/// Work that a device runs on its own thread.
///
/// A long job does a few milliseconds of work a step and returns [`Step::Again`], so that later jobs do not wait for
/// all of it. A job with an answer owns the sending half of a channel: a job that fails, is cancelled, or loses its
/// device is dropped, which closes the channel.
///
/// Before a job that failed or panicked is dropped, the thread waits for all work of the device. A step that holds
/// memory in local variables and returns an error after a launch waits for the stream itself. A job that ends with
/// [`Step::Done`], or is cancelled between two steps, has nothing in flight, or owns what is in flight by values that
/// wait when they are dropped, as [`Transfer`](crate::cuda::Transfer)s do.
pub trait Job: Send {
    /// Does one step.
    ///
    /// # Errors
    /// [`JobError::Failed`] ends this job alone. [`JobError::Fault`] loses the device.
    fn run(&mut self, context: &mut DeviceContext) -> Result<Step, JobError>;

    /// Returns the queue that the job waits in.
    fn class(&self) -> Class {
        Class::Interactive
    }

    /// Returns the cancellation token of the job. The device's thread checks it before each step, and drops the job if
    /// it was cancelled or its deadline has passed.
    fn stop(&self) -> Option<&Stop> {
        None
    }

    /// Called before the job is dropped unfinished on a device that works, with the reason.
    fn fail(&mut self, _failure: &JobFailure) {}
}

impl<F> Job for F
where
    F: FnMut(&mut DeviceContext) -> Result<Step, JobError> + Send,
{
    fn run(&mut self, context: &mut DeviceContext) -> Result<Step, JobError> {
        self(context)
    }
}

/// The device as a running job sees it. It lives on the device's thread; no other thread uses it.
#[derive(Debug)]
pub struct DeviceContext {
    shared: Arc<Shared>,
    // Dropped before the GPU, whose memory it may hold.
    state: OperatorState,
    cuda: Option<Cuda>,
}

/// The parts of a device that a job uses side by side.
#[derive(Debug)]
pub struct Parts<'a> {
    /// The GPU; `None` on a host device.
    pub cuda: Option<&'a mut Cuda>,
    /// The values that operators keep on the device.
    pub state: &'a mut OperatorState,
}

impl DeviceContext {
    pub(crate) fn new(shared: Arc<Shared>, cuda: Option<Cuda>) -> DeviceContext {
        DeviceContext {
            shared,
            state: OperatorState::default(),
            cuda,
        }
    }

    /// Prepares the calling thread to run the device's jobs.
    pub(crate) fn move_here(&self) -> Result<(), DeviceFault> {
        Ok(self.cuda.as_ref().map_or(Ok(()), Cuda::move_here)?)
    }

    /// Counts a step of a job.
    pub(crate) fn count_work(&self, took: Duration, was_last: bool) {
        self.shared.work.count(took, was_last);
    }

    /// Marks the device lost, and wakes the threads that wait for its memory.
    pub(crate) fn lose(&self, fault: &DeviceFault) {
        self.shared.lose(fault);
        if let Some(cuda) = &self.cuda {
            cuda.close();
        }
    }

    /// Waits for all work of the GPU, so that the memory it uses can be freed.
    pub(crate) fn settle(&self) -> Result<(), DeviceFault> {
        self.cuda.as_ref().map_or(Ok(()), Cuda::settle)
    }

    /// Returns whether retired memory waits for its event.
    pub(crate) fn has_retired(&mut self) -> bool {
        self.cuda.as_mut().is_some_and(|cuda| cuda.has_retired())
    }

    /// Drops the memory whose event has come.
    pub(crate) fn drop_retired(&mut self) -> Result<(), DeviceFault> {
        self.cuda.as_mut().map_or(Ok(()), Cuda::drop_retired)
    }

    /// Returns whether the device is a GPU.
    pub(crate) fn is_gpu(&self) -> bool {
        self.cuda.is_some()
    }

    /// Prepares for a step of a job.
    pub(crate) fn begin_step(&mut self) {
        self.state.begin_step();
    }

    /// Drops what the job of the last step touched of the operators' state: a panic may have left it half changed.
    pub(crate) fn forget_touched(&mut self) {
        self.state.forget_touched();
    }

    /// Returns the GPU and the operators' state at the same time.
    pub fn parts(&mut self) -> Parts<'_> {
        Parts {
            cuda: self.cuda.as_mut(),
            state: &mut self.state,
        }
    }

    /// Returns the id of the device.
    pub fn device(&self) -> DeviceId {
        self.shared.id
    }

    /// Returns the name of the device.
    pub(crate) fn name(&self) -> &str {
        &self.shared.name
    }

    /// Checks that the device works; long steps call it between pieces of work.
    ///
    /// # Errors
    /// The fault of the device; the job returns it.
    pub fn check(&self) -> Result<(), DeviceFault> {
        self.shared.faults.check()
    }
}
