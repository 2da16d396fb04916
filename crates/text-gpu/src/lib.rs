//! Searching rows in the memory of NVIDIA GPUs.
//!
//! [`TiledRows`] are the rows of a block on a device. A [`ScanTable`] is the blocks of one snapshot on a device. A
//! [`ScanQueue`] takes searches for a device; searches that wait at the same time share a pass over its memory.
//! [`Program::has_device_form`](forebay_text::Program::has_device_form) returns whether a device can run a program. The
//! host engine gives the same answers, and tests compare the two.
//!
//! From the outside in: `queue` groups searches, `scanner` runs a pass on the device's thread (its launch is the only
//! unsafe code), `batch` chooses kernels and makes their tables from the automata in [`forebay_text::form`], `policy`
//! has the numbers of each architecture. `kernels/scan.cu` has the kernels: `tiles.cuh` walks the tiles, `dfa.cuh`,
//! `literal.cuh` and `bits.cuh` match (`matcher.cuh` describes their interface), `report.cuh` counts and lists.

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
