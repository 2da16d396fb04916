//! Devices behind one face: what holds data and runs jobs over it.
//!
//! A [`Device`] owns one thread, one bounded queue of [`Job`]s and one memory budget. Jobs of a device run one step at a
//! time on its thread, round robin, so nothing else ever waits for a device on a thread of its own. [`Devices`] is the set
//! of them; devices join and leave it while the program runs.
//!
//! A device is a GPU or a host device. A GPU gives its jobs a [`Cuda`](cuda::Cuda); the driver and the compiler are loaded
//! at run time, and without them the same program runs on host devices. Host devices exist in any number: each is a thread
//! of this machine with a memory budget, so that placement, joining, leaving and loss are real without an accelerator.
#![deny(unsafe_code)]

use std::num::NonZeroUsize;
use std::sync::LazyLock;
use std::thread;

#[expect(unsafe_code, reason = "a call of the C library")]
mod allocator;
#[expect(unsafe_code, reason = "the driver and the compiler are C libraries")]
pub mod cuda;
mod device;
mod devices;
mod error;
mod events;
mod fault;
mod job;
mod memory;
mod owner;
mod queue;
mod spec;
mod state;

pub use allocator::{give_back_large_blocks, return_free_memory};
pub use device::{Device, DeviceId, DeviceKind, DeviceState};
pub use devices::{DeviceOptions, Devices};
pub use error::{
    DeviceError, DeviceFault, JobError, JobFailure, KernelError, OutOfMemory, SubmitError,
};
pub use events::{Change, DeviceEvent, DeviceEvents};
pub use fault::{Fault, Stall};
pub use job::{Awaited, Class, DeviceContext, Job, Parts, Signal, Step};
pub use memory::Reservation;
pub use spec::{DeviceSpec, SpecError};
pub use state::OperatorState;

/// Cores that this process may use, as it was when first asked: the answer is read from files.
pub fn cores() -> usize {
    static CORES: LazyLock<usize> =
        LazyLock::new(|| thread::available_parallelism().map_or(1, NonZeroUsize::get));
    *CORES
}
