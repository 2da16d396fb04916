//! One-step jobs that answer through a channel.

use std::sync::mpsc::{Receiver, Sender, channel};

use forebay_device::cuda::{Cuda, DeviceView};
use forebay_device::{Class, Device, DeviceContext, Job, JobError, JobFailure, Step, SubmitError};

use crate::MoveError;
use crate::kernels::{self, launch};

/// The sending half of an answer. If the job ends without an answer, the receiver gets the reason.
pub(super) struct Reply<T> {
    sender: Option<Sender<Result<T, MoveError>>>,
    device: String,
}

impl<T> Reply<T> {
    pub(super) fn new(device: &Device, sender: Sender<Result<T, MoveError>>) -> Reply<T> {
        Reply {
            sender: Some(sender),
            device: device.name().to_owned(),
        }
    }

    pub(super) fn send(&mut self, answer: Result<T, MoveError>) {
        if let Some(sender) = self.sender.take() {
            // The receiver is gone if the caller gave up.
            let _ = sender.send(answer);
        }
    }

    pub(super) fn fail(&mut self, failure: &JobFailure) {
        let error = MoveError::Job {
            device: self.device.clone(),
            why: failure.clone(),
        };
        self.send(Err(error));
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        let error = MoveError::DeviceLost {
            device: self.device.clone(),
            why: "it ended before the job did".to_owned(),
        };
        self.send(Err(error));
    }
}

/// A job of one step, which begins when the programs of copies are loaded.
struct OneStep<T, F> {
    work: Option<F>,
    reply: Reply<T>,
}

impl<T, F> Job for OneStep<T, F>
where
    T: Send,
    F: FnOnce(&mut Cuda) -> Result<T, JobError> + Send,
{
    fn class(&self) -> Class {
        Class::Load
    }

    fn run(&mut self, context: &mut DeviceContext) -> Result<Step, JobError> {
        let device = self.reply.device.clone();
        let Some(cuda) = context.parts().cuda else {
            self.reply.send(Err(MoveError::HostDevice { device }));
            return Ok(Step::Done);
        };
        if let Some(compiled) = cuda.load(kernels::bytes(cuda.arch()))? {
            return Ok(Step::wait_for(compiled));
        }
        if let Some(work) = self.work.take() {
            let answer = work(cuda)?;
            self.reply.send(Ok(answer));
        }
        Ok(Step::Done)
    }

    fn fail(&mut self, failure: &JobFailure) {
        self.reply.fail(failure);
    }
}

/// Waits for the answer of a job.
///
/// # Errors
/// That of the job. If its device is lost, the error says why.
pub(super) fn answer<T>(
    device: &Device,
    receiver: &Receiver<Result<T, MoveError>>,
) -> Result<T, MoveError> {
    let answer = receiver.recv();
    let answer = answer.unwrap_or_else(|_| Err(MoveError::lost(device, device.state())));
    answer.map_err(|error| match error {
        // A dropped job does not know the fault.
        MoveError::DeviceLost { .. } => MoveError::if_lost(device).unwrap_or(error),
        error => error,
    })
}

/// Queues `work` as a job of one step; the answer goes to `sender`.
pub(super) fn post<T, F>(
    device: &Device,
    sender: Sender<Result<T, MoveError>>,
    work: F,
) -> Result<(), MoveError>
where
    T: Send + 'static,
    F: FnOnce(&mut Cuda) -> Result<T, JobError> + Send + 'static,
{
    let reply = Reply::new(device, sender);
    let work = Some(work);
    submit(device, Box::new(OneStep { work, reply }))
}

pub(super) fn submit(device: &Device, job: Box<dyn Job>) -> Result<(), MoveError> {
    device.submit(job).map_err(|error| match error {
        SubmitError::Lost { device, why } => MoveError::DeviceLost { device, why },
        error => MoveError::Submit(error),
    })
}

/// Runs `work` as a job of one step on a GPU's thread, and returns its result. Blocks the calling thread, which must
/// not be an async worker or the device's own.
///
/// # Errors
/// [`MoveError`] if the job fails, or the device is not a GPU or is lost.
pub fn run_on_device<T, F>(device: &Device, work: F) -> Result<T, MoveError>
where
    T: Send + 'static,
    F: FnOnce(&mut Cuda) -> Result<T, JobError> + Send + 'static,
{
    let (sender, receiver) = channel();
    post(device, sender, work)?;
    answer(device, &receiver)
}

/// Returns the [checksum](crate::checksum) of device memory, computed by the device. Blocks.
///
/// # Errors
/// As for [`run_on_device`].
///
/// # Panics
/// If the memory does not begin at a multiple of 8 bytes.
pub fn checksum_on(device: &Device, view: DeviceView<u8>) -> Result<u64, MoveError> {
    let address = view.pointer().address();
    assert!(
        address.is_multiple_of(8),
        "a checksum of memory at {address:#x}"
    );
    run_on_device(device, move |cuda| {
        let stream = cuda.downloads().clone();
        launch::checksum(cuda, &view, &stream)
    })
}
