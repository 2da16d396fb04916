//! Errors of devices: an enum for each of those who can act on them.

use forebay_cancel::Stopped;

use crate::cuda::{CompileError, CudaUnavailable, DriverError, LaunchShape, NvrtcMissing};
use crate::{Class, DeviceId};

/// A request to the set of devices that could not be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// No device of the set has this id.
    #[error("there is no device {id}; `forebay devices list` lists the devices")]
    Unknown {
        /// The wanted id.
        id: DeviceId,
    },
    /// The operating system refused a thread for the device.
    #[error("cannot start the thread of device {name}: {why}")]
    Thread {
        /// Name of the device that was to start.
        name: String,
        /// The system's reason.
        why: String,
    },
    /// A GPU was named, and this process can use no GPU.
    #[error("no GPU can be used: {0}")]
    CudaUnavailable(#[from] CudaUnavailable),
    /// A GPU was named, and there is no compiler for its kernels.
    #[error(transparent)]
    NvrtcMissing(#[from] NvrtcMissing),
    /// A GPU was named that this machine does not have.
    #[error("there is no cuda:{ordinal}; this machine has {count} GPUs, numbered from cuda:0")]
    NoSuchGpu {
        /// The wanted number.
        ordinal: u32,
        /// Number of GPUs.
        count: usize,
    },
    /// A GPU was named twice, or is already in the set.
    #[error("{name} is already in use; a GPU can be added once")]
    Taken {
        /// Name of the device.
        name: String,
    },
    /// The card has too little free memory for the device's budget.
    #[error(
        "{name}: the memory budget is {wanted_bytes} bytes, and {free_bytes} of the card's {total_bytes} are free; stop \
         other programs that use the card, or lower the budget"
    )]
    CardMemory {
        /// Name of the device.
        name: String,
        /// Bytes that the device was to have.
        wanted_bytes: u64,
        /// Bytes that were free.
        free_bytes: u64,
        /// Bytes of the card.
        total_bytes: u64,
    },
    /// The driver refused something that the device needs.
    #[error("{name} does not start: {source}")]
    Start {
        /// Name of the device.
        name: String,
        /// The driver's error.
        source: DriverError,
    },
}

impl DeviceError {
    pub(crate) fn start(name: &str, source: DriverError) -> DeviceError {
        DeviceError::Start {
            name: name.to_owned(),
            source,
        }
    }
}

/// A job could not be queued; nothing of it has run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The device has the maximum of unfinished jobs of this class.
    #[error("the {class} queue of device {device} is full ({depth} jobs)")]
    QueueFull {
        /// Name of the device.
        device: String,
        /// Class of the job.
        class: Class,
        /// Maximum unfinished jobs of the class.
        depth: usize,
    },
    /// The device is lost: it runs nothing.
    #[error("device {device} is lost: {why}")]
    Lost {
        /// Name of the device.
        device: String,
        /// Why it was lost.
        why: String,
    },
}

/// A device has not enough memory left for a reservation or an allocation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("device {device} has {free_bytes} of {budget_bytes} bytes left, {wanted_bytes} are needed")]
pub struct OutOfMemory {
    /// Name of the device.
    pub device: String,
    /// Bytes of the request.
    pub wanted_bytes: u64,
    /// Bytes that the request could have had; on a GPU, bytes of the largest free part.
    pub free_bytes: u64,
    /// Bytes of the device.
    pub budget_bytes: u64,
}

/// Why a job ended without a result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// The job failed; the device and its other jobs continue.
    #[error(transparent)]
    Failed(JobFailure),
    /// The device failed; it is marked lost.
    #[error(transparent)]
    Fault(DeviceFault),
}

macro_rules! job_errors {
    ($($error:ty => $kind:ident,)+) => { $(
        impl From<$error> for JobError {
            fn from(error: $error) -> JobError {
                JobError::$kind(error.into())
            }
        }
    )+ };
}

job_errors! {
    JobFailure => Failed,
    KernelError => Failed,
    OutOfMemory => Failed,
    Stopped => Failed,
    DeviceFault => Fault,
    DriverError => Fault,
}

/// Why a job failed on a device that works.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobFailure {
    /// A kernel cannot be compiled, loaded or launched.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The device has no room for what the job needs.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The host has no memory to pin.
    #[error(
        "the host cannot pin {bytes} bytes ({code}); see `ulimit -l` and the memory that is free"
    )]
    CannotPin {
        /// Bytes that were to be pinned.
        bytes: usize,
        /// The driver's name of the error.
        code: String,
    },
    /// The job was cancelled, or its deadline passed.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// A bug: the job panicked.
    #[error("a job panicked: {message}")]
    Panicked {
        /// The message of the panic.
        message: String,
    },
}

/// An error of a kernel or of its launch. It fails the job alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The program does not compile.
    #[error(transparent)]
    Compile(#[from] Box<CompileError>),
    /// The program has no such kernel.
    #[error("program {program} has no entry {entry}")]
    NoEntry {
        /// Name of the program.
        program: String,
        /// The wanted kernel.
        entry: String,
    },
    /// The driver does not load the machine code.
    #[error("program {program} cannot be loaded: {code}")]
    Load {
        /// Name of the program.
        program: String,
        /// The driver's name of the error.
        code: String,
    },
    /// The kernel cannot be launched in this shape.
    #[error("kernel {kernel} cannot be launched as {shape}: {why}")]
    Shape {
        /// Name of the kernel.
        kernel: String,
        /// The shape.
        shape: LaunchShape,
        /// The limit that the shape exceeds, or the driver's name of the error.
        why: String,
    },
}

/// A fault of the device itself: nothing on the device can be trusted after it, so the device is lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceFault {
    /// A fault that a test injected.
    #[error("injected fault")]
    Injected,
    /// A call of the driver failed. The driver reports faults of earlier kernels and copies at a later call.
    #[error(transparent)]
    Driver(#[from] DriverError),
}
