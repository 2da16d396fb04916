//! Errors of devices: one enum for each party that can act on them (caller, operator, job).

use forebay_cancel::Stopped;

use crate::cuda::{CompileError, CudaUnavailable, DriverError, LaunchShape, NvrtcMissing};
use crate::{Class, DeviceId};

/// Why a request to the set of devices failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The set has no device with this id.
    #[error("there is no device {id}; `forebay devices list` lists the devices")]
    Unknown {
        /// The requested id.
        id: DeviceId,
    },
    /// The operating system could not start a thread for the device.
    #[error("cannot start the thread of device {name}: {why}")]
    Thread {
        /// Name of the device.
        name: String,
        /// The system's reason.
        why: String,
    },
    /// The specification names a GPU, but this process can use no GPU.
    #[error("no GPU can be used: {0}")]
    CudaUnavailable(#[from] CudaUnavailable),
    /// The specification names a GPU, but the kernel compiler (NVRTC) is missing.
    #[error(transparent)]
    NvrtcMissing(#[from] NvrtcMissing),
    /// The specification names a GPU that this machine does not have.
    #[error("there is no cuda:{ordinal}; this machine has {count} GPUs, numbered from cuda:0")]
    NoSuchGpu {
        /// The requested ordinal.
        ordinal: u32,
        /// Number of GPUs of this machine.
        count: usize,
    },
    /// The specification names a GPU twice, or a GPU that is already in the set.
    #[error("{name} is already in use; a GPU can be added only once")]
    Taken {
        /// Name of the device.
        name: String,
    },
    /// The card has too little free memory for the device's budget.
    #[error(
        "{name}: the memory budget is {wanted_bytes} bytes, but only {free_bytes} of the card's {total_bytes} are free; stop \
         other programs that use the card, or lower the budget"
    )]
    CardMemory {
        /// Name of the device.
        name: String,
        /// Bytes of the configured budget.
        wanted_bytes: u64,
        /// Free bytes of the card.
        free_bytes: u64,
        /// Total bytes of the card.
        total_bytes: u64,
    },
    /// A driver call failed while the device started.
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

/// Why a job could not be queued; no part of it has run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The queue of this class is full.
    #[error("the {class} queue of device {device} is full ({depth} jobs)")]
    QueueFull {
        /// Name of the device.
        device: String,
        /// Class of the job.
        class: Class,
        /// Maximum unfinished jobs of the class.
        depth: usize,
    },
    /// The device is lost and runs no jobs.
    #[error("device {device} is lost: {why}")]
    Lost {
        /// Name of the device.
        device: String,
        /// Why it was lost.
        why: String,
    },
}

/// A device has too little memory left for a reservation or an allocation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "device {device} has {free_bytes} of {budget_bytes} bytes left, but {wanted_bytes} are needed"
)]
pub struct OutOfMemory {
    /// Name of the device.
    pub device: String,
    /// Bytes of the request.
    pub wanted_bytes: u64,
    /// Maximum bytes that the request could have had: on a GPU, the largest free range.
    pub free_bytes: u64,
    /// Bytes of the device's budget.
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

/// Why a job failed; its device continues to work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobFailure {
    /// A kernel failed to compile, load or launch.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The device has too little memory for the job.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The card has too little memory beside the budget of the device.
    #[error(
        "the GPU has {free_bytes} bytes beside its budget, too few for {bytes} more ({code}); lower its budget"
    )]
    NoRoomOnCard {
        /// Bytes of the request.
        bytes: u64,
        /// Free bytes of the card.
        free_bytes: u64,
        /// The driver's name of the error.
        code: String,
    },
    /// The host cannot pin (page-lock) more memory.
    #[error(
        "the host cannot pin {bytes} bytes ({code}); check `ulimit -l` and the host's free memory"
    )]
    CannotPin {
        /// Bytes of the request.
        bytes: usize,
        /// The driver's name of the error.
        code: String,
    },
    /// The job was cancelled, or its deadline passed.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The job panicked, which is a bug.
    #[error("a job panicked: {message}")]
    Panicked {
        /// The message of the panic.
        message: String,
    },
}

/// An error of a kernel or of its launch. It fails only its job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The program does not compile.
    #[error(transparent)]
    Compile(#[from] Box<CompileError>),
    /// The program has no kernel of this name.
    #[error("program {program} has no kernel {entry}")]
    NoEntry {
        /// Name of the program.
        program: String,
        /// Name of the requested kernel.
        entry: String,
    },
    /// The driver cannot load the machine code.
    #[error("program {program} cannot be loaded: {code}")]
    Load {
        /// Name of the program.
        program: String,
        /// The driver's name of the error.
        code: String,
    },
    /// The driver or a limit forbids a launch of this shape.
    #[error("kernel {kernel} cannot be launched as {shape}: {why}")]
    Shape {
        /// Name of the kernel.
        kernel: String,
        /// The requested shape.
        shape: LaunchShape,
        /// The limit that the launch shape exceeds, or the driver's name of the error.
        why: String,
    },
}

/// A fault of the device: its memory and its results are no longer trusted, so the device is lost.
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
