//! Work for a device.

use std::sync::Arc;
use std::time::Duration;

use crate::cuda::Cuda;
use crate::device::Shared;
use crate::{DeviceFault, DeviceId, OperatorState};

/// What a step of a job leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The job is finished and is dropped.
    Done,
    /// There is more to do: the job goes to the end of the queue, behind the jobs that wait.
    Again,
}

/// Work that a device runs on its own thread.
///
/// A job that can take long does a few milliseconds of work a step and returns [`Step::Again`], so that jobs submitted
/// after it are not held up. A job that answers somebody owns the sending half of a channel: when the device is lost, all
/// its jobs are dropped, and so every waiter learns of it.
pub trait Job: Send {
    /// Does one step.
    ///
    /// # Errors
    /// A [`DeviceFault`] says that the device itself has failed: it is marked lost. What is wrong with the request
    /// alone is not an error here; it goes to whoever waits for the answer.
    fn run(&mut self, context: &mut DeviceContext) -> Result<Step, DeviceFault>;
}

impl<F> Job for F
where
    F: FnMut(&mut DeviceContext) -> Result<Step, DeviceFault> + Send,
{
    fn run(&mut self, context: &mut DeviceContext) -> Result<Step, DeviceFault> {
        self(context)
    }
}

/// What a running job sees of its device. It lives on the device's thread; no other thread touches it.
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
    /// The GPU; none on a host device.
    pub cuda: Option<&'a mut Cuda>,
    /// What operators keep on the device.
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

    /// Readies the calling thread to run the device's jobs.
    pub(crate) fn move_here(&self) -> Result<(), DeviceFault> {
        Ok(self.cuda.as_ref().map_or(Ok(()), Cuda::move_here)?)
    }

    /// Counts a step of a job.
    pub(crate) fn count_work(&self, took: Duration, was_last: bool) {
        self.shared.work.count(took, was_last);
    }

    /// Marks the device lost, and wakes those who wait for its memory.
    pub(crate) fn lose(&self, fault: &DeviceFault) {
        self.shared.lose(fault);
        if let Some(cuda) = &self.cuda {
            cuda.close();
        }
    }

    /// Waits for what the GPU still does, so that the memory it uses can go.
    pub(crate) fn settle(&self) {
        if let Some(cuda) = &self.cuda {
            cuda.settle();
        }
    }

    /// The GPU and what operators keep, at the same time.
    pub fn parts(&mut self) -> Parts<'_> {
        Parts {
            cuda: self.cuda.as_mut(),
            state: &mut self.state,
        }
    }

    /// Id of the device.
    pub fn device(&self) -> DeviceId {
        self.shared.id
    }

    /// Asks if the device still works; long steps call it between pieces of work.
    ///
    /// # Errors
    /// The fault that the device has; the job returns it.
    pub fn check(&self) -> Result<(), DeviceFault> {
        self.shared.faults.check()
    }
}
