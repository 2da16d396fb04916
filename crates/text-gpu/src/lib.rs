//! Searching rows in the memory of NVIDIA GPUs.
//!
//! [`TiledRows`] are the rows of a block on a device; a [`ScanTable`] is the blocks that searches of one moment read there;
//! a [`ScanQueue`] takes searches for a device, and those that wait at the same time share a pass over its memory. Which
//! programs a device can run, [`Program::has_device_form`](forebay_text::Program::has_device_form) says. Every answer can be had
//! from the host engine too, and tests compare the two.
//!
//! From the outside in: `queue` groups searches, `scanner` runs a pass on the device's thread (its launch is the only unsafe
//! code), `batch` chooses kernels and makes their tables of the automata in
//! [`forebay_text::form`]; `kernels/scan.cu` has the kernels, made of `tiles.cuh` (the walk) and `dfa.cuh`, `literal.cuh`, `bits.cuh` (the ways of matching).

#![deny(unsafe_code)]

mod arguments;
mod batch;
mod queue;
#[expect(unsafe_code, reason = "launches kernels")]
mod scanner;
mod table;
mod tiled;
mod tiles;

use std::sync::OnceLock;

use forebay_device::cuda::{Program, ProgramSpec};

pub use queue::{ScanFound, ScanOrder, ScanQueue, ScanWant, prepare};
pub use table::ScanTable;
pub use tiled::{LoadError, Loading, TiledRows};

use batch::Kernel;

/// The programs of this crate's kernels.
pub fn kernels() -> Vec<ProgramSpec> {
    vec![program().spec().clone()]
}

fn program() -> &'static Program {
    static PROGRAM: OnceLock<Program> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let header = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let entries = Kernel::ALL
            .iter()
            .flat_map(|kernel| [kernel.entry(false), kernel.entry(true)]);
        Program::new(ProgramSpec {
            name: "scan.cu".to_owned(),
            source: include_str!("kernels/scan.cu").into(),
            headers: vec![
                ("arguments.cuh".to_owned(), arguments::header()),
                header("tiles.cuh", include_str!("kernels/tiles.cuh")),
                header("dfa.cuh", include_str!("kernels/dfa.cuh")),
                header("literal.cuh", include_str!("kernels/literal.cuh")),
                header("bits.cuh", include_str!("kernels/bits.cuh")),
            ],
            options: vec!["--std=c++17".to_owned()],
            entries: entries.map(str::to_owned).collect(),
        })
    })
}
