//! The sections of a run, and which of them have what the options name.

use anyhow::{Result, ensure};
use clap::ValueEnum;

use super::size::Tuples;
use super::table::{COMPOSITE_TABLES, TABLES, Table, WHOLE_TABLES};
use super::{JoinsArgs, spilled};

/// The sections of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Section {
    /// Both sides and the table in device memory.
    Device,
    /// The probe side in pinned host memory, the table in device memory.
    Pinned,
    /// All on the CPU.
    Cpu,
    /// A table partly on the device and partly in host memory, 8 times as large as that of workload A.
    Hybrid,
    /// 1,024 million by 1,024 million tuples in pinned host memory: in partitions that spill to host memory and, with
    /// `--spill-directory`, to disk; and with a hybrid table. Needs 60 GiB of host memory at scale 1; partitions alone
    /// need less with `--spill-directory`.
    Spilled,
    /// Both sides spread over all GPUs, beside the same on one: with a table on each GPU, in partitions, and with a
    /// table that is interleaved over the GPUs. Without peer access, only with a table on each.
    Gpus,
    /// Joins by the ratio and the sizes of both sides, by skew and by selectivity in device memory, and the transfer
    /// methods of the probe side of workload A. Without a GPU, the joins run on the CPU.
    Figures,
    /// Joins by skew with the table in host memory and both sides in device memory.
    SkewHost,
    /// Both sides in pinned host memory, joined by the CPU, by the GPUs and by both: on one GPU, and on all. Without a
    /// GPU, the CPU joins alone.
    CoProcessing,
    /// Joins by the first GPU. Both sides are in its memory, in pinned host memory, or in the memory of the second
    /// GPU; sides in host memory are joined with a table in each of these.
    Locality,
    /// Larger and larger probe sides in pinned host memory, up to 64 times the build side of workload A, as far as
    /// there is room.
    ProbeScaling,
    /// As `spilled`, with larger and larger sides: 128 to 2,048 million tuples each, as far as there is room.
    BuildScaling,
}

impl Section {
    /// Returns whether nothing is measured without a GPU.
    pub(super) fn needs_gpu(self) -> bool {
        !matches!(
            self,
            Section::Cpu | Section::Figures | Section::CoProcessing
        )
    }

    /// Returns whether the section is the only one of its run, unless that is a smoke run: it needs the memory that a
    /// second section would hold.
    pub(super) fn is_alone(self) -> bool {
        ALONE.contains(&self)
    }

    /// Returns the workloads that the section can measure; empty if it has workloads of its own.
    pub(super) fn workloads(self) -> &'static [Tuples] {
        match self {
            Section::Device | Section::Cpu => &Tuples::ALL,
            Section::Pinned | Section::Gpus | Section::CoProcessing | Section::Locality => {
                &Tuples::OF_PAPER
            }
            Section::Hybrid
            | Section::Spilled
            | Section::Figures
            | Section::SkewHost
            | Section::ProbeScaling
            | Section::BuildScaling => &[],
        }
    }

    /// Returns the tables that the section can measure.
    pub(super) fn tables(self, has_gpu: bool) -> &'static [Table] {
        match self {
            Section::Cpu => &TABLES,
            Section::Figures if !has_gpu => &TABLES,
            Section::Device
            | Section::Pinned
            | Section::Hybrid
            | Section::Figures
            | Section::SkewHost
            | Section::Locality
            | Section::ProbeScaling => &WHOLE_TABLES,
            Section::Spilled | Section::Gpus => &[Table::Partitioned, Table::LinearProbing],
            Section::BuildScaling => &[Table::Partitioned, Table::Perfect, Table::LinearProbing],
            Section::CoProcessing => &[Table::LinearProbing],
        }
    }
}

/// The sections that measure the workloads one after another.
const SECTIONS: [Section; 3] = [Section::Device, Section::Pinned, Section::Cpu];

/// The other sections, which `--plot` draws.
const ALONE: [Section; 9] = [
    Section::Hybrid,
    Section::Spilled,
    Section::Gpus,
    Section::Figures,
    Section::SkewHost,
    Section::CoProcessing,
    Section::Locality,
    Section::ProbeScaling,
    Section::BuildScaling,
];

/// The sections whose joins may use less memory than they need.
const SPILLED: [Section; 2] = [Section::Spilled, Section::BuildScaling];

/// The sections with a ring.
const WITH_RING: [Section; 6] = [
    Section::Pinned,
    Section::Spilled,
    Section::Figures,
    Section::CoProcessing,
    Section::ProbeScaling,
    Section::BuildScaling,
];

/// Returns the sections of a run in order: the named ones; else all in a smoke run, or [`SECTIONS`], without those
/// that have none of the named workloads and tables. `no_gpu` is why there is no GPU; those that need one are returned
/// nevertheless, unless they are named.
///
/// # Errors
/// If a named section cannot be measured, or an option has no effect.
pub(super) fn sections(args: &JoinsArgs, no_gpu: Option<&str>) -> Result<Vec<Section>> {
    for section in &args.only {
        check(args, *section, no_gpu)?;
    }
    ensure!(
        !args.workloads.contains(&Tuples::Composite) || args.has_composite(),
        "of the tables, only {} have composite keys",
        names(&COMPOSITE_TABLES)
    );
    let candidates: &[Section] = match (&args.only[..], args.smoke) {
        ([], true) => Section::value_variants(),
        ([], false) => &SECTIONS,
        (named, _) => named,
    };
    let has_all = |section: &Section| {
        has_named(&args.workloads, section.workloads())
            && has_named(&args.tables, &tables(args, *section, no_gpu.is_none()))
    };
    let all = Section::value_variants().iter().copied();
    let sections = all.filter(|section| candidates.contains(section) && has_all(section));
    let sections: Vec<Section> = sections.collect();
    let options: [(&str, bool, &[Section]); 2] = [
        ("--chunk-bytes", args.chunk_bytes.is_some(), &WITH_RING),
        ("--plot", args.results.plot.is_some(), &ALONE),
    ];
    let spilled: &[Section] = &SPILLED;
    let of_spilled = args.spilled.given();
    let of_spilled = of_spilled.map(|(option, is_given)| (option, is_given, spilled));
    for (option, is_given, own) in options.into_iter().chain(of_spilled) {
        ensure!(
            !is_given || own.iter().any(|section| sections.contains(section)),
            "`{option}` has an effect only in {}: choose sections with `--only`",
            names(own)
        );
    }
    Ok(sections)
}

/// Checks that a named section can be measured.
///
/// # Errors
/// If it needs to be the only one, needs a GPU and there is none, has none of the named workloads and tables, or none
/// of its tables uses an option.
fn check(args: &JoinsArgs, section: Section, no_gpu: Option<&str>) -> Result<()> {
    let name = names(&[section]);
    ensure!(
        args.only.len() == 1 || args.smoke || !section.is_alone(),
        "name {name} alone: it needs the memory that a second section would hold"
    );
    let tables = tables(args, section, no_gpu.is_none());
    ensure!(
        has_named(&args.tables, &tables),
        "of the tables, {name} measures only {}",
        names(&tables)
    );
    let workloads = section.workloads();
    ensure!(
        args.workloads.is_empty() || !workloads.is_empty(),
        "{name} has workloads of its own: leave out `--workloads`"
    );
    ensure!(
        has_named(&args.workloads, workloads),
        "of the workloads, {name} measures only {}",
        names(workloads)
    );
    if SPILLED.contains(&section) {
        spilled::check(args)?;
    }
    if let Some(why) = no_gpu {
        ensure!(!section.needs_gpu(), "{name} needs a GPU: {why}");
    }
    Ok(())
}

/// Returns the tables that a section can measure with one of the named workloads.
fn tables(args: &JoinsArgs, section: Section, has_gpu: bool) -> Vec<Table> {
    let are_composite = args.workloads == [Tuples::Composite];
    let tables = section.tables(has_gpu).iter().copied();
    let tables = tables.filter(|table| !are_composite || COMPOSITE_TABLES.contains(table));
    tables.collect()
}

/// Returns whether a section has one of the named values; `true` if none is named.
pub(super) fn has_named<T: PartialEq>(named: &[T], own: &[T]) -> bool {
    named.is_empty() || named.iter().any(|value| own.contains(value))
}

/// Returns the names of values of an option, as in "`device`, `pinned`".
pub(super) fn names<T: ValueEnum>(values: &[T]) -> String {
    let values = values.iter().filter_map(T::to_possible_value);
    let names = values.map(|value| format!("`{}`", value.get_name()));
    names.collect::<Vec<_>>().join(", ")
}
