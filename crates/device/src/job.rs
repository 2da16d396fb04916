//! Jobs that a device runs, and what they wait for.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_cancel::Stop;

use crate::cuda::{Cuda, Event};
use crate::device::Shared;
use crate::{DeviceFault, DeviceId, JobError, JobFailure, OperatorState};

/// The result of a job's step: what the device's thread does with the job next.
#[derive(Debug, Clone)]
pub enum Step {
    /// The job is finished and is dropped.
    Done,
    /// The job has more to do now and goes to the end of its class's queue.
    Again,
    /// The job is parked until the event occurs. Meanwhile, it takes no time of the device's thread.
    WaitFor(Awaited),
}

impl Step {
    /// Returns [`Step::WaitFor`], which parks the job until `event` occurs.
    pub fn wait_for(event: impl Into<Awaited>) -> Step {
        Step::WaitFor(event.into())
    }
}

/// The event that a parked job waits for.
#[derive(Debug, Clone)]
pub enum Awaited {
    /// A CUDA event, which completes when a stream reaches a point.
    Event(Arc<Event>),
    /// A signal that another thread of this process sets.
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

    /// Returns whether this cannot complete before `other`.
    pub(crate) fn follows(&self, other: &Awaited) -> bool {
        match (self, other) {
            (Awaited::Event(event), Awaited::Event(other)) => event.follows(other),
            _ => false,
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

/// A one-way flag that another thread sets to let a job continue. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct Signal {
    flag: Arc<AtomicBool>,
}

impl Signal {
    /// Returns a signal that is not set.
    pub fn new() -> Signal {
        Signal::default()
    }

    /// Sets the signal; it cannot be cleared.
    pub fn set(&self) {
        self.flag.store(true, Ordering::Release);
    }

    /// Returns whether the signal is set.
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }
}

/// Classes of jobs. Each has its own bounded queue on a device. Classes with runnable jobs share the thread's time 16 :
/// 4 : 1 (interactive, load, batch).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Jobs whose answer a client waits for.
    Interactive,
    /// Transfers of data to or from the device.
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

    /// Returns the weight of the class in shares of the thread's time.
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
/// A long job does a few milliseconds of work per step and returns [`Step::Again`], so that later jobs need not wait
/// for the whole job. A job with an answer owns the sending half of a channel. A job that fails, is cancelled or loses
/// its device is dropped, which closes the channel.
///
/// After a job fails or panics, the thread waits for all work of the device, then drops the job. If a step has launched
/// work on device memory that it holds in local variables, it must wait for the stream before it returns an error. A
/// job that ends with [`Step::Done`], or is cancelled between two steps, must have no work in flight. The only
/// exception is work that a value of the job waits for when the value is dropped, such as a
/// [`Transfer`](crate::cuda::Transfer).
pub trait Job: Send {
    /// Runs one step.
    ///
    /// # Errors
    /// [`JobError::Failed`] ends only this job. [`JobError::Fault`] loses the device.
    fn run(&mut self, context: &mut DeviceContext) -> Result<Step, JobError>;

    /// Returns the class of the job, which selects its queue.
    fn class(&self) -> Class {
        Class::Interactive
    }

    /// Returns the cancellation token of the job. The device's thread checks the token before each step, and drops the
    /// job if it was cancelled or its deadline has passed.
    fn stop(&self) -> Option<&Stop> {
        None
    }

    /// Called with the reason before a failed or cancelled job is dropped; not called if the device is lost.
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

/// A running job's view of the device. It stays on the device's thread.
#[derive(Debug)]
pub struct DeviceContext {
    shared: Arc<Shared>,
    // Declared before `cuda` to be dropped first: it may hold GPU memory.
    state: OperatorState,
    cuda: Option<Cuda>,
}

/// The parts of a device that a job can borrow at the same time.
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

    /// Counts a step in the device's statistics.
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

    /// Waits for all work of the GPU, so that memory used by the work can be freed.
    pub(crate) fn settle(&self) -> Result<(), DeviceFault> {
        self.cuda.as_ref().map_or(Ok(()), Cuda::settle)
    }

    /// Returns whether retired memory waits for its event.
    pub(crate) fn has_retired(&mut self) -> bool {
        self.cuda.as_mut().is_some_and(|cuda| cuda.has_retired())
    }

    /// Drops the retired memory whose event has completed.
    pub(crate) fn drop_retired(&mut self) -> Result<(), DeviceFault> {
        self.cuda.as_mut().map_or(Ok(()), Cuda::drop_retired)
    }

    /// Returns whether the device is a GPU.
    pub(crate) fn is_gpu(&self) -> bool {
        self.cuda.is_some()
    }

    /// Tells the operator state that the next step of a job begins.
    pub(crate) fn begin_step(&mut self) {
        self.state.begin_step();
    }

    /// Drops the operator state that the last step used: a panic may have left it inconsistent.
    pub(crate) fn forget_touched(&mut self) {
        self.state.forget_touched();
    }

    /// Borrows the GPU and the operator state at the same time.
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

    /// Checks that the device works; long steps call this between pieces of work.
    ///
    /// # Errors
    /// The fault of the device, which the job must return.
    pub fn check(&self) -> Result<(), DeviceFault> {
        self.shared.faults.check()
    }
}
