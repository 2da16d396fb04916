//! What can go wrong with a device, by who can act on it.

use crate::DeviceId;

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
    /// Bytes that were free.
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
}
