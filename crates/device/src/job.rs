//! Work for a device.

use std::sync::Arc;

use crate::device::Shared;
use crate::{DeviceFault, DeviceId};

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
}

impl DeviceContext {
    pub(crate) fn new(shared: Arc<Shared>) -> DeviceContext {
        DeviceContext { shared }
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
