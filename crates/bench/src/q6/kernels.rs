//! The kernels of query 6: their argument, how they are compiled, and how they are launched.

use std::sync::LazyLock;

use forebay_device::cuda::{
    Arch, Cuda, DevicePointer, DevicePointerMut, Kernel, KernelArguments, LaunchShape, Program,
    ProgramSpec, device_header,
};
use forebay_device::{JobError, kernel_arguments};
use forebay_movement::has_bulk;

use super::table::{
    COLUMNS, DISCOUNT_MAX, DISCOUNT_MIN, GROUP_BYTES, GROUP_ROWS, QUANTITY_END, SHIP_BEGIN,
    SHIP_DAYS,
};

kernel_arguments! {
    /// The parameter of every kernel of the query.
    pub(crate) struct Groups {
        /// Row groups in device memory, or in host memory that the device reads over the bus; aligned to 16 bytes.
        pub(crate) words: DevicePointer<u32>,
        /// Number of row groups.
        pub(crate) count: u64,
        /// The number to which the kernel adds its sum.
        pub(crate) total: DevicePointerMut<u64>,
    }
}

/// Threads of a block that loads into registers: two vectors of each column for each thread.
const LOAD_THREADS: u32 = 512;
/// Blocks of such a kernel on a multiprocessor at the same time: 128 KiB in flight.
const LOAD_BLOCKS: u32 = 2;
/// Threads of a block that uses the bulk copy engine; a piece is 32 KiB.
const BULK_THREADS: u32 = 512;
/// Pieces in flight of a block that uses the bulk copy engine.
const BULK_STAGES: u32 = 6;
/// Bytes of a piece.
const BULK_PIECE_BYTES: u32 = BULK_THREADS * 16 * COLUMNS as u32;
/// Blocks of the bulk copy engine that read host memory over the bus, which needs far fewer bytes in flight than device
/// memory.
const HOST_BULK_BLOCKS: u64 = 32;

/// A kernel of the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// The query; loads rows into registers.
    Query,
    /// The query; the bulk copy engine brings rows to shared memory. Needs sm_90.
    Bulk,
    /// Adds all words: as fast as a kernel can read.
    Read,
}

static LOADS: LazyLock<Program> = LazyLock::new(|| Program::new(loads()));
static BULK: LazyLock<Program> = LazyLock::new(|| Program::new(bulk()));

impl Entry {
    /// Returns whether a GPU of this architecture can run the kernel.
    pub(super) fn runs_on(self, arch: Arch) -> bool {
        self != Entry::Bulk || has_bulk(arch)
    }

    /// Returns the loaded kernel; the first call blocks while it is compiled.
    pub(super) fn load(self, cuda: &mut Cuda) -> Result<std::sync::Arc<Kernel>, JobError> {
        match self {
            Entry::Query => cuda.kernel(&LOADS, "query"),
            Entry::Read => cuda.kernel(&LOADS, "read_words"),
            Entry::Bulk => cuda.kernel(&BULK, "query_bulk"),
        }
    }

    /// Returns the usual limit of blocks that read host memory; `None` if as many as fit are best.
    pub(super) fn host_blocks(self) -> Option<u64> {
        (self == Entry::Bulk).then_some(HOST_BULK_BLOCKS)
    }

    /// Returns the shape of a launch over `groups` row groups: as many blocks as fit on the GPU, or `blocks` if that is
    /// fewer.
    pub(super) fn shape(
        self,
        kernel: &Kernel,
        groups: u64,
        blocks: Option<u64>,
    ) -> Result<LaunchShape, JobError> {
        let (threads, shared_bytes) = match self {
            Entry::Query | Entry::Read => (LOAD_THREADS, 0),
            Entry::Bulk => (BULK_THREADS, BULK_STAGES * BULK_PIECE_BYTES),
        };
        let mut shape = kernel.persistent_shape(threads, shared_bytes)?;
        let units = match self {
            Entry::Query | Entry::Read => groups,
            Entry::Bulk => groups * (GROUP_BYTES as u64 / u64::from(BULK_PIECE_BYTES)),
        };
        shape.blocks = shape.blocks.min(units).min(blocks.unwrap_or(u64::MAX));
        Ok(shape)
    }
}

/// Returns the programs for an architecture, for tests that compile them.
#[cfg(test)]
fn all(arch: Arch) -> Vec<ProgramSpec> {
    let bulk = Entry::Bulk.runs_on(arch).then(bulk);
    [loads()].into_iter().chain(bulk).collect()
}

fn loads() -> ProgramSpec {
    let options = [("kThreads", LOAD_THREADS), ("kBlocks", LOAD_BLOCKS)];
    let source = include_str!("kernels/query.cu");
    spec("query.cu", source, &options, &["query", "read_words"])
}

fn bulk() -> ProgramSpec {
    let options = [("kThreads", BULK_THREADS), ("kStages", BULK_STAGES)];
    let source = include_str!("kernels/bulk.cu");
    spec("bulk.cu", source, &options, &["query_bulk"])
}

fn spec(
    name: &str,
    source: &'static str,
    constants: &[(&str, u32)],
    entries: &[&str],
) -> ProgramSpec {
    let groups = include_str!("kernels/groups.cuh");
    ProgramSpec {
        name: format!("q6/{name}"),
        source: source.into(),
        headers: vec![
            device_header(),
            ("arguments.cuh".to_owned(), header(constants)),
            ("groups.cuh".to_owned(), groups.to_owned()),
        ],
        options: Vec::new(),
        entries: entries.iter().map(|entry| (*entry).to_owned()).collect(),
    }
}

/// Returns the generated header: the kernels' parameter and the constants.
fn header(constants: &[(&str, u32)]) -> String {
    let shared = [
        ("kGroupRows", GROUP_ROWS as u32),
        ("kColumns", COLUMNS as u32),
        ("kShipBegin", SHIP_BEGIN.cast_unsigned()),
        ("kShipDays", SHIP_DAYS),
        ("kDiscountMin", DISCOUNT_MIN.cast_unsigned()),
        ("kDiscountMax", DISCOUNT_MAX.cast_unsigned()),
    ];
    let lines = shared.iter().chain(constants);
    let lines: String = lines
        .map(|(name, value)| format!("constexpr u32 {name} = {value};\n"))
        .collect();
    format!(
        "#pragma once\n#include \"device.cuh\"\n{lines}constexpr int kQuantityEnd = {QUANTITY_END};\n{}",
        Groups::header()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_device::cuda::{compile, nvrtc_version};

    #[test]
    fn kernels_compile_for_every_architecture_and_do_not_spill() {
        if let Err(error) = nvrtc_version() {
            let required =
                std::env::var_os("FOREBAY_REQUIRE_NVRTC").is_some_and(|value| value == "1");
            assert!(!required, "{error}");
            println!("skipped: no NVRTC");
            return;
        }
        for (major, programs) in [(8, 1), (9, 2), (10, 2)] {
            let arch = Arch { major, minor: 0 };
            let specs = all(arch);
            assert_eq!(specs.len(), programs);
            for spec in specs {
                let cubin = compile(&spec, arch).unwrap_or_else(|error| panic!("{error}"));
                for kernel in cubin.entries {
                    assert_eq!(kernel.local_bytes, 0, "{} for {arch}", kernel.name);
                }
            }
        }
    }

    #[test]
    fn a_block_of_the_bulk_copy_engine_fits_in_shared_memory() {
        // The limit of sm_90 is 227 KiB per block.
        let bytes = BULK_STAGES * BULK_PIECE_BYTES + BULK_STAGES * 8 + 256;
        assert!(bytes <= 227 << 10, "{bytes}");
    }
}
