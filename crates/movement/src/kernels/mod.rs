//! This crate's kernels: their sources, arguments and launches.

pub(crate) mod arguments;
#[expect(unsafe_code, reason = "launches kernels")]
pub(crate) mod launch;

use std::sync::LazyLock;

use forebay_device::cuda::{Arch, KernelArguments, Program, ProgramSpec, device_header};

use arguments::{Copying, Summing};

/// Architecture since which GPUs have the bulk copy engine.
pub(crate) const BULK_ARCH_MIN: u32 = 9;

/// Stages of shared memory of a kernel that uses bulk copies.
pub(crate) const BULK_STAGES: u32 = 4;

/// Returns whether kernels of an architecture can use the bulk copy engine.
pub(crate) fn has_bulk(arch: Arch) -> bool {
    arch.major >= BULK_ARCH_MIN
}

/// Returns the specifications of all programs for an architecture.
pub fn kernels(arch: Arch) -> Vec<ProgramSpec> {
    vec![bytes_spec(has_bulk(arch))]
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

fn spec(name: &str, source: &'static str, arguments: String, entries: &[&str]) -> ProgramSpec {
    let stages = format!("-DFOREBAY_BULK_STAGES={BULK_STAGES}");
    ProgramSpec {
        name: format!("movement/{name}"),
        source: source.into(),
        headers: vec![
            device_header(),
            ("bulk.cuh".to_owned(), include_str!("bulk.cuh").to_owned()),
            ("arguments.cuh".to_owned(), arguments),
        ],
        options: vec![stages],
        entries: entries.iter().map(|&entry| entry.to_owned()).collect(),
    }
}
