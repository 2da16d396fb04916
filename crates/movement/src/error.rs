//! Errors of movement.

use std::error::Error;

use forebay_cancel::Stopped;
use forebay_device::cuda::{ManagedError, RegisterError};
use forebay_device::{Device, DeviceState, JobFailure, OutOfMemory, SubmitError};

use crate::method::{Missing, TransferMethod};

/// Why bytes could not be moved. Nothing that was leased stays in use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    /// The source could not be read.
    #[error("{source_name}, at byte {offset}: {why}")]
    Source {
        /// Name of the source, such as the path of a file.
        source_name: String,
        /// Offset in the source of the first byte that was not read.
        offset: u64,
        /// The cause, with what to do about it.
        why: Box<dyn Error + Send + Sync>,
    },
    /// The consumer refused a chunk, or work on the device failed. The device continues to work.
    #[error("the chunk at byte {offset} failed on device {device}: {why}")]
    Chunk {
        /// Name of the device.
        device: String,
        /// Offset in the source of the first byte of the chunk.
        offset: u64,
        /// The cause.
        why: Box<dyn Error + Send + Sync>,
    },
    /// The device has failed.
    #[error("device {device} was lost: {why}")]
    DeviceLost {
        /// Name of the device.
        device: String,
        /// The fault.
        why: String,
    },
    /// The device has too little free memory.
    #[error("{0}; move less at a time, or use fewer or smaller slots")]
    DeviceMemory(#[from] OutOfMemory),
    /// The device's pool of pinned memory is smaller than the ring.
    #[error(
        "device {device} has no {bytes} bytes of pinned memory for a ring; use fewer or smaller slots, or a larger pinned pool"
    )]
    PinnedMemory {
        /// Name of the device.
        device: String,
        /// Bytes of the ring.
        bytes: usize,
    },
    /// The device lacks a transfer method.
    #[error("device {device} has no {method}: {why}")]
    Method {
        /// Name of the device.
        device: String,
        /// The method.
        method: TransferMethod,
        /// Why it is missing.
        why: Missing,
    },
    /// The host cannot pin memory.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// Unified memory cannot be allocated.
    #[error(transparent)]
    Managed(#[from] ManagedError),
    /// A job of the move failed. The device continues to work.
    #[error("the move failed on device {device}: {why}")]
    Job {
        /// Name of the device.
        device: String,
        /// The cause.
        why: JobFailure,
    },
    /// The device is not a GPU.
    #[error("device {device} is not a GPU; bytes are moved only to and from GPUs")]
    HostDevice {
        /// Name of the device.
        device: String,
    },
    /// Bytes were read or moved wrongly, which is a bug or a fault of the hardware.
    #[error("{what}: the bytes are wrong; this is a bug or a fault of the hardware")]
    WrongSum {
        /// What was read or moved.
        what: String,
    },
    /// The device's queue is full.
    #[error("{0}; try again later")]
    Submit(SubmitError),
    /// The system could not start a thread.
    #[error("cannot start a thread: {0}; check `ulimit -u`")]
    Thread(std::io::Error),
    /// The move was cancelled, or its deadline passed.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl MoveError {
    /// Returns the error if a device has failed.
    pub(crate) fn if_lost(device: &Device) -> Option<MoveError> {
        match device.state() {
            DeviceState::Lost { why } => Some(MoveError::lost(device, why)),
            DeviceState::Ready | DeviceState::Leaving => None,
        }
    }

    /// Returns the error of a device that has failed.
    pub(crate) fn lost(device: &Device, why: impl ToString) -> MoveError {
        MoveError::DeviceLost {
            device: device.name().to_owned(),
            why: why.to_string(),
        }
    }
}
