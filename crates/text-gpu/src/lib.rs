//! Searches rows in the memory of NVIDIA GPUs.
//!
//! [`TiledRows`] are the rows of a block on a device. A [`ScanTable`] lists the blocks of one snapshot on a device. A
//! [`ScanQueue`] queues searches for a device; searches queued at the same time share a pass over the device's memory.
//! [`Program::has_device_form`](forebay_text::Program::has_device_form) returns whether a device can run a program. The
//! host engine gives the same answers, and tests compare the two.
//!
//! Modules, from the outside in: `queue` groups searches; `scanner` runs a pass on the device's thread (its launch is
//! the only unsafe code); `batch` chooses kernels and builds their tables from the automata in [`forebay_text::form`];
//! `policy` has the tuning parameters of each architecture. Kernels are in `kernels/scan.cu`: `tiles.cuh` iterates over
//! tiles; `dfa.cuh`, `literal.cuh` and `bits.cuh` match (`matcher.cuh` describes their interface); `report.cuh` counts
//! and lists.

#![deny(unsafe_code)]

mod arguments;
mod batch;
mod policy;
mod queue;
#[expect(unsafe_code, reason = "launches kernels")]
mod scanner;
mod table;
mod tiled;
mod tiles;
mod tuned;

pub use policy::{Lists, Policy, Reads};
pub use queue::{ScanFound, ScanOrder, ScanQueue, ScanWant, prepare};
pub use table::ScanTable;
pub use tiled::{LoadError, Loading, TiledRows};

use forebay_device::cuda::{Arch, ProgramSpec};

/// Returns the programs of this crate's kernels for an architecture.
pub fn kernels(arch: Arch) -> Vec<ProgramSpec> {
    kernels_with(&Policy::of(arch))
}

/// Returns the programs of this crate's kernels with a given policy.
pub fn kernels_with(policy: &Policy) -> Vec<ProgramSpec> {
    vec![tuned::spec(policy)]
}
