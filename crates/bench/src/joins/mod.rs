//! `forebay bench joins`: hash joins of generated rows in device memory, from host memory, on the CPU, and by several
//! processors.
//!
//! The workloads are A, B and C of Lutz et al. (SIGMOD 2020, table 2), and A with keys or payloads of other widths;
//! the sections `hybrid`, `spilled` and `figures` have others. Every run must find the number of matches and the sums
//! of both payloads that the generator's formulas give, which use no hash table.

mod co_processing;
mod device;
mod figures;
mod gpus;
mod host;
mod hybrid;
mod moved;
mod pinned;
pub(crate) mod plots;
mod report;
mod size;
mod spilled;
mod table;

use std::sync::Arc;

use anyhow::{Result, ensure};
use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use forebay_device::cuda::gpus;
use forebay_device::{Device, DeviceOptions, Devices, HaltingDevices};
use forebay_hash_index::{JoinTotals, TableShape, Workload};
use forebay_movement::RingOptions;

use crate::results::ResultArgs;
use report::{Case, Report, Sample};
use size::{Tuples, scale};
use spilled::{Spilled, SpilledArgs};
use table::{COMPOSITE_TABLES, TABLES, Table, WHOLE_TABLES};

/// Bytes of pinned memory of the device, for the ring.
const PINNED_BYTES: u64 = 256 << 20;
/// Slots of the ring.
const RING_SLOTS: usize = 8;
/// Bytes of a page, of which the slots of the ring consist.
const PAGE_BYTES: usize = 4096;
/// Bytes of device memory of a smoke run.
const SMOKE_BYTES: u64 = 1 << 30;
/// Default size of a chunk in the ring.
const CHUNK_BYTES: usize = 16 << 20;
/// Maximum number of runs of a measurement.
const ROUNDS_MAX: u64 = 1 << 20;

/// Options of `forebay bench joins`.
#[derive(Args, Clone, Debug)]
pub struct JoinsArgs {
    /// Fraction of the paper's tuples, from 0.00001 to 4. 1 needs 60 GiB of device memory and 110 GiB of host memory,
    /// or 48 and 72 GiB without the workload `composite`. The build sides of the workloads are not scaled below
    /// 262,144 tuples; the sections `hybrid`, `spilled` and `figures` have sides and minimums of their own.
    #[arg(long, value_name = "NUMBER", default_value_t = 0.015625, value_parser = scale)]
    pub scale: f64,
    /// Measure only these workloads. The sections `pinned` and `co-processing` have `a` only, and `gpus` has `a`, `b`
    /// and `c`; `hybrid`, `spilled` and `figures` have workloads of their own.
    #[arg(long, value_name = "WORKLOAD", value_delimiter = ',')]
    pub workloads: Vec<Tuples>,
    /// Measure only these sections. The default is `device,pinned,cpu`. Each of the others must be named alone, because
    /// it needs the memory that a second section would hold. `--plot` draws these others.
    #[arg(long, value_name = "SECTION", value_delimiter = ',')]
    pub only: Vec<Section>,
    /// Measure only these tables.
    #[arg(long, value_name = "TABLE", value_delimiter = ',')]
    pub tables: Vec<Table>,
    /// Size of a chunk in the ring, half keys and half payloads: a multiple of 4 KiB, at most 32 MiB. The default is
    /// 16M. Only the sections `pinned`, `spilled`, `figures` and `co-processing` have a ring.
    #[arg(long, value_name = "SIZE", value_parser = chunk_bytes())]
    pub chunk_bytes: Option<usize>,
    /// Options of the section `spilled`.
    #[command(flatten)]
    pub spilled: SpilledArgs,
    /// Runs of each measurement, at least 1, after one that warms up.
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = rounds())]
    pub rounds: usize,
    /// Run every section once on few tuples, to check that it works; the measured times mean nothing. With
    /// `--workloads` or `--tables`, sections that have none of them are left out.
    #[arg(long, conflicts_with_all = [
        "scale", "rounds", "device_bytes", "host_bytes", "spill_directory", "selectivity", "filter", "first_pass"
    ])]
    pub smoke: bool,
    /// What becomes of the results.
    #[command(flatten)]
    pub results: ResultArgs,
}

impl JoinsArgs {
    /// Returns the named workloads in order. If none is named, returns all that one of the named tables supports.
    fn tuples(&self) -> impl Iterator<Item = Tuples> {
        let named = Tuples::ALL.into_iter();
        let named = named.filter(move |tuples| has_named(&self.workloads, &[*tuples]));
        named.filter(move |tuples| *tuples != Tuples::Composite || self.has_composite())
    }

    /// Returns whether one of the named tables supports composite keys.
    fn has_composite(&self) -> bool {
        has_named(&self.tables, &COMPOSITE_TABLES)
    }
}

/// The sections of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Section {
    /// Both sides and the table in device memory.
    Device,
    /// The probe side of workload A in pinned host memory, the table in device memory.
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
    /// Workload A with both sides in pinned host memory, joined by the CPU, by the GPUs and by both: on one GPU, and
    /// on all. Without a GPU, the CPU joins alone.
    CoProcessing,
}

impl Section {
    /// Returns whether nothing is measured without a GPU.
    fn needs_gpu(self) -> bool {
        !matches!(
            self,
            Section::Cpu | Section::Figures | Section::CoProcessing
        )
    }

    /// Returns whether the section is the only one of its run, unless that is a smoke run: it needs the memory that a
    /// second section would hold.
    fn is_alone(self) -> bool {
        ALONE.contains(&self)
    }

    /// Returns the workloads that the section can measure; empty if it has workloads of its own.
    fn workloads(self) -> &'static [Tuples] {
        match self {
            Section::Device | Section::Cpu => &Tuples::ALL,
            Section::Gpus => &Tuples::OF_PAPER,
            Section::Pinned | Section::CoProcessing => &[Tuples::A],
            Section::Hybrid | Section::Spilled | Section::Figures => &[],
        }
    }

    /// Returns the tables that the section can measure.
    fn tables(self, has_gpu: bool) -> &'static [Table] {
        match self {
            Section::Cpu => &TABLES,
            Section::Figures if !has_gpu => &TABLES,
            Section::Device | Section::Pinned | Section::Hybrid | Section::Figures => &WHOLE_TABLES,
            Section::Spilled | Section::Gpus => &[Table::Partitioned, Table::LinearProbing],
            Section::CoProcessing => &[Table::LinearProbing],
        }
    }
}

/// The sections that measure the workloads one after another.
const SECTIONS: [Section; 3] = [Section::Device, Section::Pinned, Section::Cpu];

/// The other sections, which `--plot` draws.
const ALONE: [Section; 5] = [
    Section::Hybrid,
    Section::Spilled,
    Section::Gpus,
    Section::Figures,
    Section::CoProcessing,
];

/// A workload of this run, and its answer.
#[derive(Clone, Copy, Debug)]
struct Join {
    tuples: Tuples,
    workload: Workload,
    answer: JoinTotals,
}

/// A run: its devices and the results so far.
struct Session {
    devices: Option<HaltingDevices>,
    tables: Vec<Table>,
    ring: RingOptions,
    threads: usize,
    rounds: usize,
    is_smoke: bool,
    report: Report,
}

/// Measures what the options name.
///
/// # Errors
/// If an option has no effect, a join gives a wrong answer, memory is too small, or a named section needs a GPU and
/// there is none.
pub(crate) fn run(args: &JoinsArgs) -> Result<()> {
    let no_gpu = gpus().err().map(|error| error.to_string());
    let sections = sections(args, no_gpu.as_deref())?.into_iter();
    let has_devices = |section: &Section| no_gpu.is_none() || !section.needs_gpu();
    let (sections, left_out): (Vec<Section>, Vec<Section>) = sections.partition(has_devices);
    let (alone, others): (Vec<Section>, Vec<Section>) =
        sections.into_iter().partition(|section| section.is_alone());
    let mut session = Session::start(args, &others)?;
    if let Some(why) = no_gpu.filter(|_| !left_out.is_empty()) {
        let text = format!("left out, as they need a GPU: {} ({why})", names(&left_out));
        session.report.note(&text);
    }
    for tuples in args.tuples() {
        let of_tuples = others.iter().filter(|it| it.workloads().contains(&tuples));
        let of_tuples: Vec<&Section> = of_tuples.collect();
        if of_tuples.is_empty() {
            continue;
        }
        let join = session.join(tuples, workload(args, tuples));
        for section in of_tuples {
            session.measure(*section, &join)?;
        }
    }
    for section in alone {
        session.measure_alone(section, args)?;
    }
    session.report.results.end()
}

/// Returns a workload of this run.
fn workload(args: &JoinsArgs, tuples: Tuples) -> Workload {
    match args.smoke {
        true => tuples.smoke(),
        false => tuples.scaled(args.scale),
    }
}

/// Returns the sections of a run in order: the named ones; else all in a smoke run, or [`SECTIONS`], without those
/// that have none of the named workloads and tables. `no_gpu` is why there is no GPU; those that need one are returned
/// nevertheless, unless they are named.
///
/// # Errors
/// If a named section cannot be measured, or an option has no effect.
fn sections(args: &JoinsArgs, no_gpu: Option<&str>) -> Result<Vec<Section>> {
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
            && has_named(&args.tables, section.tables(no_gpu.is_none()))
    };
    let all = Section::value_variants().iter().copied();
    let sections = all.filter(|section| candidates.contains(section) && has_all(section));
    let sections: Vec<Section> = sections.collect();
    let with_ring = [
        Section::Pinned,
        Section::Spilled,
        Section::Figures,
        Section::CoProcessing,
    ];
    let options: [(&str, bool, &[Section]); 2] = [
        ("--chunk-bytes", args.chunk_bytes.is_some(), &with_ring),
        ("--plot", args.results.plot.is_some(), &ALONE),
    ];
    let spilled: &[Section] = &[Section::Spilled];
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
    let tables = section.tables(no_gpu.is_none());
    ensure!(
        has_named(&args.tables, tables),
        "of the tables, {name} measures only {}",
        names(tables)
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
    if section == Section::Spilled {
        spilled::check(args)?;
    }
    if let Some(why) = no_gpu {
        ensure!(!section.needs_gpu(), "{name} needs a GPU: {why}");
    }
    Ok(())
}

/// Returns whether a section has one of the named values; `true` if none is named.
fn has_named<T: PartialEq>(named: &[T], own: &[T]) -> bool {
    named.is_empty() || named.iter().any(|value| own.contains(value))
}

/// Returns the names of values of an option, as in "`device`, `pinned`".
fn names<T: ValueEnum>(values: &[T]) -> String {
    let values = values.iter().filter_map(T::to_possible_value);
    let names = values.map(|value| format!("`{}`", value.get_name()));
    names.collect::<Vec<_>>().join(", ")
}

/// Returns the parser of the size of a chunk.
fn chunk_bytes() -> impl Fn(&str) -> Result<usize, String> + Clone {
    let most = PINNED_BYTES as usize / RING_SLOTS;
    crate::size::multiples(PAGE_BYTES, PAGE_BYTES..=most)
}

/// Returns the parser of a number of runs.
fn rounds() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=ROUNDS_MAX)
}

impl Session {
    /// Starts the results, and the first GPU if one of these sections needs it.
    fn start(args: &JoinsArgs, sections: &[Section]) -> Result<Session> {
        let report = Report::begin(&args.results)?;
        let budget_bytes = args.smoke.then_some(SMOKE_BYTES);
        let devices = match sections.iter().any(|section| section.needs_gpu()) {
            true => Some(start_gpus("cuda:0", budget_bytes)?),
            false => None,
        };
        let tables = match args.tables.is_empty() {
            true => TABLES.to_vec(),
            false => args.tables.clone(),
        };
        Ok(Session {
            devices,
            tables,
            ring: RingOptions {
                slots: RING_SLOTS,
                slot_bytes: args.chunk_bytes.unwrap_or(CHUNK_BYTES),
            },
            threads: forebay_device::cores(),
            rounds: if args.smoke { 1 } else { args.rounds },
            is_smoke: args.smoke,
            report,
        })
    }

    /// Computes the answer of a workload from its formulas.
    fn join(&self, tuples: Tuples, workload: Workload) -> Join {
        let answer = workload.answer(self.threads);
        self.report.note(&format!(
            "workload {}: {} by {} tuples, keys of {} bytes and payloads of {}",
            tuples.name(),
            workload.build_rows,
            workload.probe_rows,
            workload.width.key_bytes(),
            workload.width.bytes()
        ));
        Join {
            tuples,
            workload,
            answer,
        }
    }

    /// Returns the tables of a workload that a run measures, with their shapes.
    fn shapes(&self, workload: &Workload) -> Vec<(Table, TableShape)> {
        let tables = self.tables.iter();
        tables
            .filter_map(|table| Some((*table, table.shape(workload)?)))
            .collect()
    }

    fn gpu(&self) -> Option<Arc<Device>> {
        self.devices.as_ref()?.list().into_iter().next()
    }

    /// Measures a workload in one of [`SECTIONS`].
    fn measure(&mut self, section: Section, join: &Join) -> Result<()> {
        let name = join.tuples.name();
        match (section, self.gpu()) {
            (Section::Cpu, _) => host::measure(self, join, &format!("join-cpu/{name}")),
            (Section::Device, Some(gpu)) => {
                device::measure(self, &gpu, join, &format!("join-{name}-device"))
            }
            (Section::Pinned, Some(gpu)) => {
                pinned::measure(self, &gpu, join, &format!("join-{name}-pinned"))
            }
            _ => Ok(()),
        }
    }

    /// Measures a section that is [alone](Section::is_alone).
    fn measure_alone(&mut self, section: Section, args: &JoinsArgs) -> Result<()> {
        match section {
            Section::Device | Section::Pinned | Section::Cpu => Ok(()),
            Section::Hybrid => {
                let scale = if args.smoke { 0.0 } else { args.scale };
                hybrid::measure(self, hybrid::workload(scale))
            }
            Section::Spilled => {
                let spilled = match args.smoke {
                    true => Spilled::smoke(),
                    false => Spilled::scaled(args, self.ring),
                };
                spilled::measure(self, spilled)
            }
            Section::Gpus => {
                let tuples = args.tuples().filter(|it| section.workloads().contains(it));
                let workloads = tuples.map(|tuples| (tuples, workload(args, tuples)));
                gpus::measure(self, &workloads.collect::<Vec<_>>())
            }
            Section::Figures => figures::measure(self, args.scale),
            Section::CoProcessing => co_processing::measure(self, workload(args, Tuples::A)),
        }
    }

    /// Runs a join once to warm up, then as often as the options say; checks all answers, and reports the others'
    /// times.
    fn add(
        &mut self,
        (name, devices): (String, &str),
        join: &Join,
        mut once: impl FnMut() -> Result<Sample>,
    ) -> Result<()> {
        let samples: Result<Vec<Sample>> = (0..=self.rounds).map(|_| once()).collect();
        let case = Case {
            name: &name,
            devices,
            workload: &join.workload,
        };
        self.report.add(case, join.answer, &samples?)
    }
}

/// Starts GPUs, such as `cuda:0` or `cuda` for all, with a budget or most of the memory of each.
///
/// # Errors
/// If there is no such GPU, or memory is too small.
fn start_gpus(spec: &str, budget_bytes: Option<u64>) -> Result<HaltingDevices> {
    let options = DeviceOptions {
        cuda_memory_budget_bytes: budget_bytes,
        pinned_pool_bytes: PINNED_BYTES,
        ..DeviceOptions::default()
    };
    Ok(Devices::new(&spec.parse()?, options)?.into())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;
    use crate::record::Record;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: JoinsArgs,
    }

    pub(super) fn parse(arguments: &[&str]) -> Result<JoinsArgs, clap::Error> {
        let all = ["joins"].iter().chain(arguments);
        Command::try_parse_from(all).map(|command| command.args)
    }

    /// Runs all sections once. Returns the records, and writes the plots to a folder.
    fn smoke(folder: &Path) -> Vec<Record> {
        let path = folder.join("joins.jsonl");
        let mut args = parse(&["--smoke", "--json"]).expect("right flags");
        args.results.record = Some(path.clone());
        args.results.plot = Some(folder.join("plots"));
        run(&args).unwrap_or_else(|error| panic!("{error:?}"));
        let text = std::fs::read_to_string(path).expect("a record");
        let records = text.lines().map(serde_json::from_str);
        records.map(|record| record.expect("a record")).collect()
    }

    /// Cases with a rate of probes that need a GPU.
    const PROBED_BY_GPUS: [&str; 18] = [
        "join-a-device/perfect",
        "join-b-device/linear-probing",
        "join-c-device/bucketed",
        "join-narrow-keys-device/bucketed",
        "join-narrow-payloads-device/perfect",
        "join-composite-device/linear-probing",
        "join-a-pinned/zero-copy/perfect",
        "join-a-pinned/ring/linear-probing",
        "join-hybrid/linear-probing/667",
        "join-triton/hybrid",
        "join-a-gpus/replicated",
        "join-a-gpus/interleaved",
        "figures/transfer-a/ring/perfect",
        "figures/transfer-a/zero-copy/bucketed",
        "figures/transfer-a/pinned-copy/linear-probing",
        "join-a-co-processing/gpu",
        "join-a-co-processing/gpu-and-cpu",
        "join-a-co-processing/gpu-builds",
    ];

    /// Plots that need no GPU.
    const DRAWN: [&str; 6] = [
        "ratio",
        "skew",
        "selectivity",
        "probe-rows",
        "build-rows",
        "co-processing",
    ];

    #[test]
    fn every_section_gives_the_answer() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let records = smoke(folder.path());
        let has = |case: &str, metric: &str| {
            let mut records = records.iter();
            records.any(|record| record.case == case && record.metric == metric)
        };
        for case in [
            "join-cpu/a/perfect",
            "join-cpu/b/linear-probing",
            "join-cpu/c/bucketed",
            "join-cpu/narrow-keys/perfect",
            "join-cpu/composite/linear-probing",
        ] {
            assert!(
                has(case, "giga_tuples_per_s") && has(case, "allocation_s"),
                "{case}"
            );
        }
        for workload in ["c", "narrow-payloads", "composite"] {
            assert!(has(&format!("join-cpu/{workload}/partitioned"), "join_s"));
        }
        for case in [
            "figures/ratio/1:16/perfect",
            "figures/skew/1.25/linear-probing",
            "figures/selectivity/0/perfect",
            "figures/selectivity/0.75/bucketed",
            "figures/probe-rows/1024/perfect",
            "figures/build-rows/2/linear-probing",
        ] {
            assert!(has(case, "probe_giga_tuples_per_s"), "{case}");
        }
        for name in DRAWN {
            let plot = folder.path().join(format!("plots/joins-{name}.svg"));
            assert!(plot.exists(), "{}", plot.display());
        }
        let found = gpus();
        let required = std::env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|value| value == "1");
        assert!(found.is_ok() || !required, "{found:?}");
        for case in PROBED_BY_GPUS {
            assert_eq!(
                has(case, "probe_giga_tuples_per_s"),
                found.is_ok(),
                "{case}"
            );
        }
        for metric in ["giga_tuples_per_s", "cpu_share"] {
            assert!(has("join-a-co-processing/cpu", metric), "{metric}");
        }
        for (case, metric) in [
            ("join-triton/partitioned", "join_s"),
            ("join-triton/partitioned-by-cpu", "join_s"),
            ("join-c-gpus/partitioned", "join_s"),
        ] {
            assert_eq!(has(case, metric), found.is_ok(), "{case}");
        }
        let filtered = records.iter().find(|it| it.metric == "filtered_rows");
        let has_filtered = filtered.is_some_and(|it| it.min > 0.0);
        assert_eq!(has_filtered, found.is_ok(), "{filtered:?}");
    }

    #[test]
    fn a_named_section_needs_its_gpu() {
        if gpus().is_ok() {
            return;
        }
        let args = parse(&["--smoke", "--only", "cpu,pinned"]).expect("right flags");
        let error = run(&args).expect_err("no GPU").to_string();
        assert!(error.contains("`pinned` needs a GPU"), "{error}");
    }

    #[test]
    fn options_without_effect_are_refused_before_a_file_is_made() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let record = folder.path().join("joins.jsonl");
        for (flags, part) in [
            (
                "--only spilled --tables perfect,bucketed",
                "of the tables, `spilled` measures only `partitioned`, `linear-probing`",
            ),
            (
                "--only cpu,pinned --tables partitioned",
                "of the tables, `pinned` measures only `perfect`",
            ),
            (
                "--only pinned --workloads b,c",
                "of the workloads, `pinned` measures only `a`",
            ),
            (
                "--only gpus --workloads composite",
                "of the workloads, `gpus` measures only `a`, `b`, `c`",
            ),
            (
                "--workloads composite --tables perfect,bucketed",
                "only `linear-probing`, `partitioned` have",
            ),
            (
                "--workloads a,composite --tables perfect",
                "only `linear-probing`, `partitioned` have",
            ),
            ("--only figures --workloads a", "leave out `--workloads`"),
            ("--only cpu,spilled", "name `spilled` alone"),
            ("--only cpu --chunk-bytes 1M", "`--chunk-bytes` has an"),
            ("--device-bytes 1G", "has an effect only in `spilled`"),
            ("--only cpu --host-bytes 1G", "effect only in `spilled`"),
            ("--spill-directory /tmp", "has an effect only in `spilled`"),
            ("--selectivity 0.1", "has an effect only in `spilled`"),
            ("--only cpu --filter", "has an effect only in `spilled`"),
            ("--first-pass cpu", "has an effect only in `spilled`"),
            (
                "--plot plots",
                "`--plot` has an effect only in `hybrid`, `spilled`",
            ),
            (
                "--smoke --workloads composite --plot plots",
                "`gpus`, `figures`, `co-processing`: choose",
            ),
        ] {
            let mut args = parse(&flags.split(' ').collect::<Vec<_>>()).expect("right flags");
            args.results.record = Some(record.clone());
            let error = run(&args).expect_err("it is refused").to_string();
            assert!(error.contains(part), "{flags}: {error}");
        }
        assert!(!record.exists());
    }

    #[test]
    fn a_run_has_the_sections_that_measure_what_is_named() {
        use Section::{Cpu, Device, Figures, Gpus, Pinned, Spilled};
        for (flags, expected) in [
            (&["--rounds=1"][..], &[Device, Pinned, Cpu][..]),
            (&["--workloads=b"], &[Device, Cpu]),
            (&["--smoke", "--workloads=composite"], &[Device, Cpu]),
            (&["--tables=partitioned"], &[Cpu]),
            (&["--smoke", "--workloads=b"], &[Device, Cpu, Gpus]),
            (&["--smoke", "--tables=partitioned"], &[Cpu, Spilled, Gpus]),
            (&["--smoke", "--only=figures,cpu"], &[Cpu, Figures]),
        ] {
            let args = parse(flags).expect("right flags");
            let found = sections(&args, None).expect("all have an effect");
            assert_eq!(found, expected, "{flags:?}");
        }
        let args = parse(&["--only", "figures", "--tables", "partitioned"]).expect("right flags");
        sections(&args, Some("none")).expect("the CPU joins in partitions");
        let error = sections(&args, None).expect_err("a GPU does not");
        assert!(error.to_string().contains("of the tables"), "{error}");
    }

    #[test]
    fn options_out_of_range_are_refused() {
        for (option, value, part) in [
            ("--scale", "0", "use a number from"),
            ("--scale", "5", "use a number from"),
            ("--rounds", "0", "0 is not in 1..="),
            ("--selectivity", "1.5", "use a number from 0 to 1"),
            ("--selectivity", "0.0004", "use whole thousandths"),
            ("--chunk-bytes", "33M", "from 4 KiB to 32 MiB"),
            ("--chunk-bytes", "5000", "use a multiple of 4 KiB"),
            (
                "--tables",
                "cuckoo",
                "possible values: perfect, linear-probing, bucketed, partitioned",
            ),
        ] {
            let error = parse(&[option, value]).expect_err("it is refused");
            assert!(error.to_string().contains(part), "{error}");
        }
        let error = parse(&["--smoke", "--scale", "1"]).expect_err("it is refused");
        assert!(error.to_string().contains("cannot be used with"), "{error}");
    }
}
