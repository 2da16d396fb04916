//! This crate's kernels: their sources, arguments and launches.

pub(crate) mod arguments;
#[expect(unsafe_code, reason = "launches kernels")]
pub(crate) mod launch;
mod total;

use std::sync::LazyLock;

use forebay_device::cuda::{Arch, KernelArguments, Program, ProgramSpec, device_header};

use arguments::{Copying, Reading, Summing};
pub use total::Total;

use crate::measure::pattern::{CYCLE_ADDEND, CYCLE_FACTOR, LINE_BYTES, RANDOM_BYTES};

/// Architecture since which GPUs have the bulk copy engine.
pub(crate) const BULK_ARCH_MIN: u32 = 9;

/// Stages of shared memory of a kernel that uses bulk copies.
pub(crate) const BULK_STAGES: u32 = 4;

/// Returns whether kernels of an architecture can use the bulk copy engine.
pub fn has_bulk(arch: Arch) -> bool {
    arch.major >= BULK_ARCH_MIN
}

/// Returns the specifications of all programs for an architecture.
pub fn kernels(arch: Arch) -> Vec<ProgramSpec> {
    let with_bulk = has_bulk(arch);
    vec![bytes_spec(with_bulk), reads_spec(with_bulk)]
}

/// Returns the program of reads.
pub(crate) fn reads(arch: Arch) -> &'static Program {
    static PLAIN: LazyLock<Program> = LazyLock::new(|| Program::new(reads_spec(false)));
    static BULK: LazyLock<Program> = LazyLock::new(|| Program::new(reads_spec(true)));
    if has_bulk(arch) { &BULK } else { &PLAIN }
}

/// Returns the program of copies and checksums.
pub(crate) fn bytes(arch: Arch) -> &'static Program {
    static PLAIN: LazyLock<Program> = LazyLock::new(|| Program::new(bytes_spec(false)));
    static BULK: LazyLock<Program> = LazyLock::new(|| Program::new(bytes_spec(true)));
    if has_bulk(arch) { &BULK } else { &PLAIN }
}

fn bytes_spec(with_bulk: bool) -> ProgramSpec {
    let mut entries = vec!["copy_plain", "checksum"];
    entries.extend(with_bulk.then_some("copy_bulk"));
    let arguments = [Copying::header(), Summing::header()].concat();
    spec("bytes.cu", include_str!("bytes.cu"), arguments, &entries)
}

fn reads_spec(with_bulk: bool) -> ProgramSpec {
    let random = RANDOM_BYTES.map(|bytes| format!("read_random<{bytes}>"));
    let mut entries = vec!["fill_words", "fill_cycle", "read_plain", "read_dependent"];
    entries.extend(random.iter().map(String::as_str));
    entries.extend(with_bulk.then_some("read_bulk"));
    let mut spec = spec(
        "reads.cu",
        include_str!("reads.cu"),
        Reading::header(),
        &entries,
    );
    spec.options.extend([
        format!("-DkLineBytes={LINE_BYTES}ull"),
        format!("-DkCycleFactor={CYCLE_FACTOR}ull"),
        format!("-DkCycleAddend={CYCLE_ADDEND}ull"),
    ]);
    spec
}

fn spec(name: &str, source: &'static str, arguments: String, entries: &[&str]) -> ProgramSpec {
    let stages = format!("-DFOREBAY_BULK_STAGES={BULK_STAGES}");
    ProgramSpec {
        name: format!("movement/{name}"),
        source: source.into(),
        headers: vec![
            device_header(),
            ("bulk.cuh".to_owned(), include_str!("bulk.cuh").to_owned()),
            (
                "threads.cuh".to_owned(),
                include_str!("threads.cuh").to_owned(),
            ),
            ("arguments.cuh".to_owned(), arguments),
        ],
        options: vec![stages],
        entries: entries.iter().map(|&entry| entry.to_owned()).collect(),
    }
}
