//! Why a join failed.

use forebay_cancel::Stopped;
use forebay_device::Device;
use forebay_device::cuda::RegisterError;
use forebay_hash_index::IndexError;
use forebay_movement::MoveError;
use forebay_movement::storage::FileError;

/// Why a join failed. Its memory is free again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The join may use too little device memory.
    #[error("a join in partitions needs {needed} bytes of device memory, and may use {given}")]
    TooLittleMemory {
        /// Bytes that it needs at least.
        needed: u64,
        /// Bytes that it may use.
        given: u64,
    },
    /// Host memory is too small for the runs that spill or, with a folder, to pass them to disk.
    #[error(
        "a join in partitions needs {needed} bytes of host memory to spill to, and may use {given}; allow more{}",
        or_folder(*has_folder)
    )]
    TooLittleHostMemory {
        /// Bytes that it needs at least.
        needed: u64,
        /// Bytes that it may use.
        given: u64,
        /// Whether there is a folder for the runs that do not fit.
        has_folder: bool,
    },
    /// The host has too little memory left.
    #[error("a join needs {needed} bytes of host memory; {available} bytes are available")]
    HostMemory {
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that the process can still allocate.
        available: u64,
    },
    /// A GPU cannot access the memory of another one.
    #[error(
        "device {device} cannot access the memory of {other} (no peer access), so that they cannot join in this way; \
         join with a table on each, or use one of them"
    )]
    NoPeers {
        /// Name of the device.
        device: String,
        /// Name of the other one.
        other: String,
    },
    /// A table cannot be interleaved over these GPUs.
    #[error(
        "device {device} cannot change the memory of {other} by atomic operations, so that they cannot build a table \
         together; join in partitions"
    )]
    NoAtomics {
        /// Name of the device.
        device: String,
        /// Name of the other one.
        other: String,
    },
    /// A thread of the join panicked, which is a bug.
    #[error("a thread of the join panicked: {why}; this is a bug")]
    Panicked {
        /// What it panicked with.
        why: String,
    },
    /// A table could not be built.
    #[error(transparent)]
    Index(IndexError),
    /// A side could not be moved, or the device failed.
    #[error(transparent)]
    Move(#[from] MoveError),
    /// Runs cannot be written to a file, or read from it.
    #[error("a join cannot use the file of its partitions: {0}")]
    File(#[from] FileError),
    /// The driver cannot pin the memory to which partitions spill.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The join was cancelled, or its deadline passed.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Returns the second remedy if host memory is too small: a folder, if there is none.
fn or_folder(has_folder: bool) -> &'static str {
    match has_folder {
        true => "",
        false => ", or name a folder for what does not fit there",
    }
}

impl JoinError {
    /// Returns the error of a device that has failed.
    pub(crate) fn lost(device: &Device, why: impl ToString) -> JoinError {
        JoinError::Move(MoveError::DeviceLost {
            device: device.name().to_owned(),
            why: why.to_string(),
        })
    }
}
