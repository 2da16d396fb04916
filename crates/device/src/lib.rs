//! Devices hold data and run jobs over it. GPUs and host devices have the same interface.
//!
//! A [`Device`] owns one thread, a bounded queue for each [class](Class) of [`Job`]s and one memory budget, which is
//! divided among tenants ([`MemoryPool`]s). Other threads queue jobs and need not block on the device: only its own
//! thread runs the jobs, one step at a time. [`Devices`] is the set of a process's devices; devices join and leave it
//! while the program runs.
//!
//! A device is a GPU or a host device. A GPU gives its jobs a [`Cuda`](cuda::Cuda); the driver and the compiler are
//! loaded at run time, and without them the same program runs on host devices. Any number of host devices can be
//! started: each is a thread with a memory budget, so placement, joining, leaving and loss can be exercised without an
//! accelerator.
#![deny(unsafe_code)]

use std::num::NonZeroUsize;
use std::sync::LazyLock;
use std::thread;

mod aligned;
#[expect(unsafe_code, reason = "calls of the C library")]
mod allocator;
#[expect(unsafe_code, reason = "the driver and the compiler are C libraries")]
pub mod cuda;
mod device;
mod devices;
mod error;
mod events;
mod fault;
mod host;
mod job;
mod memory;
mod owner;
mod pool;
#[expect(unsafe_code, reason = "an instruction of the processor")]
mod prefetch;
mod queue;
mod spec;
mod state;

pub use aligned::{AlignedBytes, PAGE_BYTES};
pub use allocator::{
    give_back_large_blocks, keep_free_memory, return_free_memory, vec_in_huge_pages,
};
pub use device::{Device, DeviceId, DeviceKind, DeviceState};
pub use devices::{DeviceOptions, Devices, HaltingDevices};
pub use error::{
    DeviceError, DeviceFault, JobError, JobFailure, KernelError, OutOfMemory, SubmitError,
};
pub use events::{Change, DeviceEvent, DeviceEvents, Subscription};
pub use fault::{Fault, Stall};
pub use host::available_host_bytes;
pub use job::{Awaited, Class, DeviceContext, Job, Parts, Signal, Step};
pub use memory::Reservation;
pub use pool::{MemoryPool, PoolFigures, PoolOptions, Reclaim};
pub use prefetch::prefetch;
pub use spec::{DeviceSpec, SpecError};
pub use state::OperatorState;

/// Returns the number of cores that this process may use. The first call reads it from files; later calls use the
/// cached value.
pub fn cores() -> usize {
    static CORES: LazyLock<usize> =
        LazyLock::new(|| thread::available_parallelism().map_or(1, NonZeroUsize::get));
    *CORES
}
