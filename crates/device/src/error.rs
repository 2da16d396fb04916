//! What can go wrong with a device, by who can act on it.

use crate::DeviceId;
use crate::cuda::{CompileError, CudaUnavailable, DriverError, LaunchShape, NvrtcMissing};

/// A request to the set of devices that could not be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// No device of the set has this id.
    #[error("there is no device {id}; `forebay devices list` shows the ones there are")]
    Unknown {
        /// The id that was asked for.
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
    /// A GPU was named, and this process can use none.
    #[error("no GPU can be used: {0}")]
    CudaUnavailable(#[from] CudaUnavailable),
    /// A GPU was named, and there is no compiler for its kernels.
    #[error(transparent)]
    NvrtcMissing(#[from] NvrtcMissing),
    /// A GPU was named that this machine does not have.
    #[error("there is no cuda:{ordinal}; GPUs of this machine: {count}, counted from cuda:0")]
    NoSuchGpu {
        /// The number that was asked for.
        ordinal: u32,
        /// GPUs that there are.
        count: usize,
    },
    /// A GPU was named twice, or is of the set already.
    #[error("{name} is of the set already; a GPU is one device")]
    Taken {
        /// Name of the device.
        name: String,
    },
    /// The card has not enough free memory for the device's share.
    #[error(
        "{name}: {wanted_bytes} bytes are wanted, and {free_bytes} of the card's {total_bytes} are free; stop what else \
         uses the card, or lower the device's memory budget"
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
    /// As many jobs as the queue holds are waiting already.
    #[error("the queue of device {device} is full ({depth} jobs)")]
    QueueFull {
        /// Name of the device.
        device: String,
        /// Jobs the queue holds.
        depth: usize,
    },
    /// The device is lost and runs nothing any more.
    #[error("device {device} is lost: {why}")]
    Lost {
        /// Name of the device.
        device: String,
        /// Why it was lost.
        why: String,
    },
}

/// A device has not enough memory left for a reservation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("device {device} has {free_bytes} of {budget_bytes} bytes left, {wanted_bytes} are needed")]
pub struct OutOfMemory {
    /// Name of the device.
    pub device: String,
    /// Bytes that were asked for.
    pub wanted_bytes: u64,
    /// Bytes that were free; of a GPU's memory, those of the largest free part.
    pub free_bytes: u64,
    /// Bytes the device may use in all.
    pub budget_bytes: u64,
}

/// A fault of the device itself: after it, nothing on the device can be trusted and the device is lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceFault {
    /// A fault that a test asked for.
    #[error("injected fault")]
    Injected,
    /// A job panicked.
    #[error("a job panicked: {message}")]
    Panicked {
        /// What the panic said.
        message: String,
    },
    /// A kernel cannot be had as machine code.
    #[error(transparent)]
    Compile(#[from] Box<CompileError>),
    /// A kernel was not launched.
    #[error("kernel {kernel} cannot be launched as {shape}: {why}")]
    Launch {
        /// Name of the kernel.
        kernel: String,
        /// What was asked for.
        shape: LaunchShape,
        /// The driver's name of the error, or the limit that the shape breaks.
        why: String,
    },
    /// A call of the driver failed; faults of earlier kernels and copies come to light here.
    #[error(transparent)]
    Driver(#[from] DriverError),
}
