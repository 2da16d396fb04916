//! NVIDIA GPUs: checked calls of the driver and of NVRTC (the kernel compiler), which are loaded at run time.
//!
//! The crate does not link to CUDA. [`gpus`] lists the GPUs or returns what is missing. [`compile`] turns a
//! [`ProgramSpec`] into machine code; it needs NVRTC but no GPU. A job on a GPU gets a [`Cuda`], which loads and
//! launches kernels and copies memory. The [`Cuda`] never leaves the thread that owns the device. [`DeviceMemory`],
//! [`Pinned`], [`HostRegistration`] and [`Event`] may be dropped on any thread, even after the device is lost.
//!
//! # Examples
//! Allocate, copy, launch, read back:
#![doc = concat!("```no_run\n", include_str!("../../tests/examples/first_kernel.rs"), "```")]
//!
//! A pipeline of copies and kernels on two streams, ordered by events:
#![doc = concat!("```no_run\n", include_str!("../../tests/examples/pipeline.rs"), "```")]

mod arguments;
mod buffer;
mod cache;
mod chunks;
mod compile;
mod context;
pub mod cufile;
mod engine;
mod event;
mod gpu;
mod header;
mod hybrid;
mod interleaved;
mod kernel;
mod library;
mod managed;
mod memory;
mod mirrored;
mod modules;
mod pages;
mod part;
mod pinned;
mod program;
mod ranges;
mod registration;
mod resources;
mod stream;
mod transfer;

pub use arguments::{DevicePointer, DevicePointerMut, DeviceType, KernelArguments, struct_text};
pub use buffer::{DeviceBuffer, DeviceView};
pub use cache::KernelCache;
pub use compile::{
    Arch, ArchError, CompileError, Cubin, Program, ProgramSpec, compile, end_compilations,
};
pub use engine::Cuda;
pub use event::Event;
pub use gpu::{Gpu, gpus};
pub use header::device_header;
pub use hybrid::HybridMemory;
pub use interleaved::InterleavedMemory;
pub use kernel::{Kernel, LaunchShape};
pub use library::{CudaUnavailable, DriverError, NvrtcMissing, nvrtc_version};
pub use managed::{Managed, ManagedError, Place};
pub use memory::DeviceMemory;
pub use mirrored::Mirrored;
pub use part::{Divisible, Part};
pub use pinned::{Pinned, PinnedPool};
pub use registration::{
    HostMemory, HostMemoryMut, HostRegistration, RegisterError, RegisteredPart,
};
pub use resources::KernelResources;
pub use stream::{Priority, Stream};
pub use transfer::{Destination, Fill, PinnedPart, Source, Transfer, TransferJob};

pub(crate) use context::Context;
pub(crate) use memory::Arena;
pub(crate) use pages::has_several_nodes;
