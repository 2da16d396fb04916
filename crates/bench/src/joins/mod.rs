//! `forebay bench joins`: hash joins of generated rows in device memory, from host memory, on the CPU, and by several
//! processors.
//!
//! The workloads are A, B and C of Lutz et al. (SIGMOD 2020, table 2); the sections `hybrid`, `spilled` and `figures`
//! have others. Every run must find the number of matches and the sums of both payloads that the generator's formulas
//! give, which use no hash table.

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

use std::path::PathBuf;
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
use size::{SCALE_MAX, SCALE_MIN, Tuples};
use spilled::Spilled;

/// Bytes of pinned memory of the device, for the ring.
const PINNED_BYTES: u64 = 256 << 20;
/// Slots of the ring.
const RING_SLOTS: usize = 8;
/// Bytes of a page, of which the slots of the ring consist.
const PAGE_BYTES: usize = 4096;
/// Bytes of device memory of a smoke run.
const SMOKE_BYTES: u64 = 1 << 30;
/// Minimum of the device memory, and of the host memory, that a join may use.
const JOIN_BYTES_MIN: usize = 1 << 20;
/// Maximum of it.
const JOIN_BYTES_MAX: usize = 1 << 40;
/// Maximum number of runs of a measurement.
const ROUNDS_MAX: u64 = 1 << 20;

/// Options of `forebay bench joins`.
#[derive(Args, Clone, Debug)]
pub struct JoinsArgs {
    /// Fraction of the paper's tuples, from 0.00001 to 4. 1 needs 48 GiB of device memory and 48 GiB of host memory.
    /// The build sides of the workloads are not scaled below 262,144 tuples; the sections `hybrid`, `spilled` and
    /// `figures` have sides and minimums of their own.
    #[arg(long, value_name = "NUMBER", default_value_t = 0.015625, value_parser = scale)]
    pub scale: f64,
    /// Measure only these workloads. The sections `hybrid`, `spilled` and `figures` have workloads of their own.
    #[arg(long, value_name = "WORKLOAD", value_delimiter = ',')]
    pub workloads: Vec<Tuples>,
    /// Measure only these sections.
    #[arg(long, value_name = "SECTION", value_delimiter = ',')]
    pub only: Vec<Section>,
    /// Measure only these tables.
    #[arg(long, value_name = "TABLE", value_delimiter = ',')]
    pub tables: Vec<Table>,
    /// Size of a chunk in the ring, half keys and half payloads: a multiple of 4 KiB, at most 32 MiB.
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = chunk_bytes())]
    pub chunk_bytes: usize,
    /// Device memory that a join may use, in the section `spilled`.
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = join_bytes())]
    pub device_bytes: usize,
    /// Pinned host memory to which a join may spill, in the section `spilled`; without it, what both sides leave.
    #[arg(long, value_name = "SIZE", value_parser = join_bytes())]
    pub host_bytes: Option<usize>,
    /// Folder of a temporary file for what does not fit in host memory, in the section `spilled`.
    #[arg(long, value_name = "DIR")]
    pub spill_directory: Option<PathBuf>,
    /// Runs of each measurement, at least 1, after one that warms up.
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = rounds())]
    pub rounds: usize,
    /// Run once on few tuples, to check that every section works; the measured times mean nothing.
    #[arg(long, conflicts_with_all = ["scale", "rounds"])]
    pub smoke: bool,
    /// What becomes of the results.
    #[command(flatten)]
    pub results: ResultArgs,
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
    /// A table partly on the device and partly in host memory, 8 times as large as that of workload A. Measured alone.
    Hybrid,
    /// 1,024 million by 1,024 million tuples in pinned host memory: in partitions that spill to host memory, and with a
    /// hybrid table. Needs 60 GiB of host memory at scale 1, or less with `--spill-directory`. Measured alone.
    Spilled,
    /// Both sides spread over all GPUs, beside the same on one: in partitions, and with a table that is interleaved
    /// over the GPUs. Measured alone.
    Gpus,
    /// Joins by the ratio and the sizes of both sides, by skew and by selectivity in device memory, and the transfer
    /// methods. Without a GPU, the joins run on the CPU. Measured alone.
    Figures,
    /// Workload A with both sides in pinned host memory, joined by the CPU, by the GPUs and by both: on one GPU, and
    /// on all. Without a GPU, the CPU joins alone. Measured alone.
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

    /// Returns whether the section is one of [`SECTIONS`] and measures this workload.
    fn measures(self, tuples: Tuples) -> bool {
        SECTIONS.contains(&self) && (self != Section::Pinned || tuples == Tuples::A)
    }
}

/// The sections that are measured alone: their tables take the memory that other sections use.
const ALONE: [Section; 5] = [
    Section::Hybrid,
    Section::Spilled,
    Section::Gpus,
    Section::Figures,
    Section::CoProcessing,
];

/// The sections that measure the workloads one after another.
const SECTIONS: [Section; 3] = [Section::Device, Section::Pinned, Section::Cpu];

/// The layouts of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Table {
    /// An array by key.
    Perfect,
    /// Linear probing, half of the slots empty or more.
    LinearProbing,
    /// Buckets of 64 bytes, a third of the slots empty or more.
    Bucketed,
    /// Both sides in partitions: on the CPU, whose caches their tables fit in, and in the section `spilled`.
    Partitioned,
}

const TABLES: [Table; 4] = [
    Table::Perfect,
    Table::LinearProbing,
    Table::Bucketed,
    Table::Partitioned,
];

impl Table {
    /// Returns the name in cases.
    fn name(self) -> &'static str {
        match self {
            Table::Perfect => "perfect",
            Table::LinearProbing => "linear-probing",
            Table::Bucketed => "bucketed",
            Table::Partitioned => "partitioned",
        }
    }

    /// Returns the shape of a table for the build side of a workload; `None` if there is one for each partition.
    fn shape(self, workload: &Workload) -> Option<TableShape> {
        let (width, rows) = (workload.width, workload.build_rows);
        Some(match self {
            Table::Perfect => TableShape::perfect(width, 0..rows),
            Table::LinearProbing => TableShape::linear_probing(width, rows),
            Table::Bucketed => TableShape::bucketed(width, rows),
            Table::Partitioned => return None,
        })
    }
}

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
/// If a join gives a wrong answer, memory is too small, or a named section needs a GPU and there is none.
pub(crate) fn run(args: &JoinsArgs) -> Result<()> {
    let mut session = Session::start(args)?;
    let named = |tuples: &&Tuples| args.workloads.is_empty() || args.workloads.contains(tuples);
    let is_named = |section: &Section| args.only.is_empty() || args.only.contains(section);
    for tuples in Tuples::ALL.iter().filter(named) {
        let sections = SECTIONS.into_iter().filter(is_named);
        let sections: Vec<Section> = sections.filter(|it| it.measures(*tuples)).collect();
        if sections.is_empty() {
            continue;
        }
        let join = session.join(*tuples, workload(args, *tuples));
        for section in sections {
            session.measure(section, &join)?;
        }
    }
    for section in ALONE {
        let is_wanted = match args.smoke {
            true => {
                let runs = session.devices.is_some() || !section.needs_gpu();
                runs && is_named(&section)
            }
            false => args.only == [section],
        };
        match section {
            Section::Figures if is_wanted => {
                figures::measure(&mut session, args.scale)?;
            }
            Section::Hybrid if is_wanted => {
                let scale = if args.smoke { 0.0 } else { args.scale };
                hybrid::measure(&mut session, hybrid::workload(scale))?;
            }
            Section::Spilled if is_wanted => {
                let spilled = match args.smoke {
                    true => Spilled::smoke(),
                    false => Spilled::scaled(args, session.ring),
                };
                spilled::measure(&mut session, spilled)?;
            }
            Section::Gpus if is_wanted => {
                let workloads = Tuples::ALL.iter().filter(named);
                let workloads = workloads.map(|tuples| (*tuples, workload(args, *tuples)));
                gpus::measure(&mut session, &workloads.collect::<Vec<_>>())?;
            }
            Section::CoProcessing if is_wanted && named(&&Tuples::A) => {
                co_processing::measure(&mut session, workload(args, Tuples::A))?;
            }
            _ => (),
        }
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

/// Returns whether one section is named, and it is measured alone.
fn is_alone(args: &JoinsArgs) -> bool {
    args.only.len() == 1 && ALONE.iter().any(|section| args.only.contains(section))
}

/// Checks that the named sections measure the named tables and workloads.
///
/// # Errors
/// If one would measure nothing, or ignore a flag.
fn check(args: &JoinsArgs, has_gpu: bool) -> Result<()> {
    let has = |section: &Section| args.only.contains(section);
    ensure!(
        is_alone(args) || args.smoke || !ALONE.iter().any(has),
        "measure `co-processing`, `figures`, `gpus`, `hybrid` and `spilled` alone: they take memory that other \
         sections use"
    );
    ensure!(
        args.tables != [Table::Partitioned]
            || args.only.is_empty()
            || has(&Section::Cpu)
            || has(&Section::Spilled)
            || has(&Section::Gpus)
            || has(&Section::CoProcessing)
            || (has(&Section::Figures) && !has_gpu),
        "partitions are measured in `cpu`, `spilled` and `gpus`, and without a GPU in `figures`: name one of them"
    );
    let is_measured = |table: &Table| spilled::TABLES.contains(table);
    ensure!(
        !(has(&Section::Spilled) || has(&Section::Gpus))
            || args.tables.is_empty()
            || args.tables.iter().any(is_measured),
        "`spilled` and `gpus` measure the tables `partitioned` and `linear-probing`: name one of them"
    );
    ensure!(
        has(&Section::Spilled) || (args.host_bytes.is_none() && args.spill_directory.is_none()),
        "`--host-bytes` and `--spill-directory` are options of `spilled`: name it by `--only spilled`"
    );
    let has_table = args.tables.is_empty() || args.tables.contains(&Table::LinearProbing);
    let has_workload = args.workloads.is_empty() || args.workloads.contains(&Tuples::A);
    ensure!(
        !has(&Section::CoProcessing) || (has_table && has_workload),
        "`co-processing` measures workload `a` with the table `linear-probing`: name both"
    );
    ensure!(
        !has(&Section::Figures) || args.workloads.is_empty(),
        "`figures` has workloads of its own: leave out `--workloads`"
    );
    Ok(())
}

/// Parses a scale.
fn scale(text: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    let number = number.filter(|number| (SCALE_MIN..=SCALE_MAX).contains(number));
    number.ok_or_else(|| format!("use a number from {SCALE_MIN} to {SCALE_MAX}"))
}

/// Returns the parser of the size of a chunk.
fn chunk_bytes() -> impl Fn(&str) -> Result<usize, String> + Clone {
    let most = PINNED_BYTES as usize / RING_SLOTS;
    crate::size::multiples(PAGE_BYTES, PAGE_BYTES..=most)
}

/// Returns the parser of the device memory of a join, and of its host memory.
fn join_bytes() -> impl Fn(&str) -> Result<usize, String> + Clone {
    crate::size::multiples(1, JOIN_BYTES_MIN..=JOIN_BYTES_MAX)
}

/// Returns the parser of a number of runs.
fn rounds() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=ROUNDS_MAX)
}

impl Session {
    /// Starts the first GPU if there is one.
    fn start(args: &JoinsArgs) -> Result<Session> {
        let report = Report::begin(&args.results)?;
        let found = gpus();
        check(args, found.is_ok())?;
        let devices = match found {
            Ok(_) if is_alone(args) && !args.smoke => None,
            Ok(_) => Some(start_gpu(args.smoke.then_some(SMOKE_BYTES))?.into()),
            Err(error) => {
                let is_named = args.only.iter().any(|section| section.needs_gpu());
                ensure!(!is_named, "the sections need a GPU: {error}");
                report.note(&format!("only the CPU is measured, no GPU: {error}"));
                None
            }
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
                slot_bytes: args.chunk_bytes,
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
            "workload {}: {} by {} tuples, keys and payloads of {} bytes",
            tuples.letter(),
            workload.build_rows,
            workload.probe_rows,
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

    /// Measures a workload that the section [measures](Section::measures).
    fn measure(&mut self, section: Section, join: &Join) -> Result<()> {
        let letter = join.tuples.letter();
        match (section, self.gpu()) {
            (Section::Cpu, _) => host::measure(self, join, &format!("join-cpu/{letter}")),
            (Section::Device, Some(gpu)) => {
                device::measure(self, &gpu, join, &format!("join-{letter}-device"))
            }
            (Section::Pinned, Some(gpu)) => {
                pinned::measure(self, &gpu, join, &format!("join-{letter}-pinned"))
            }
            _ => Ok(()),
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

/// Starts the first GPU, with a budget or most of its memory.
fn start_gpu(budget_bytes: Option<u64>) -> Result<Devices> {
    let options = DeviceOptions {
        cuda_memory_budget_bytes: budget_bytes,
        pinned_pool_bytes: PINNED_BYTES,
        ..DeviceOptions::default()
    };
    Ok(Devices::new(&"cuda:0".parse()?, options)?)
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

    fn parse(arguments: &[&str]) -> Result<JoinsArgs, clap::Error> {
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
        ] {
            assert!(
                has(case, "giga_tuples_per_s") && has(case, "allocation_s"),
                "{case}"
            );
        }
        assert!(has("join-cpu/c/partitioned", "join_s"));
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
        for name in ["ratio", "skew", "selectivity", "probe-rows", "build-rows"] {
            let plot = folder.path().join(format!("plots/joins-{name}.svg"));
            assert!(plot.exists(), "{}", plot.display());
        }
        let found = gpus();
        let required = std::env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|value| value == "1");
        assert!(found.is_ok() || !required, "{found:?}");
        for case in [
            "join-a-device/perfect",
            "join-b-device/linear-probing",
            "join-c-device/bucketed",
            "join-a-pinned/zero-copy/perfect",
            "join-a-pinned/ring/linear-probing",
            "join-hybrid/linear-probing/667",
            "join-triton/hybrid",
            "join-a-gpus/interleaved",
            "figures/transfer/ring/perfect",
            "figures/transfer/zero-copy/bucketed",
            "figures/transfer/pinned-copy/linear-probing",
            "join-a-co-processing/gpu",
            "join-a-co-processing/gpu-and-cpu",
            "join-a-co-processing/gpu-builds",
        ] {
            assert_eq!(
                has(case, "probe_giga_tuples_per_s"),
                found.is_ok(),
                "{case}"
            );
        }
        for metric in ["giga_tuples_per_s", "cpu_share"] {
            assert!(has("join-a-co-processing/cpu", metric), "{metric}");
        }
        for case in ["join-triton/partitioned", "join-c-gpus/partitioned"] {
            assert_eq!(has(case, "join_s"), found.is_ok(), "{case}");
        }
    }

    #[test]
    fn a_named_section_needs_its_gpu() {
        if gpus().is_ok() {
            return;
        }
        let args = parse(&["--smoke", "--only", "cpu,pinned"]).expect("right flags");
        let error = run(&args).expect_err("no GPU");
        assert!(error.to_string().contains("need a GPU"), "{error}");
    }

    #[test]
    fn sections_that_would_measure_nothing_are_refused() {
        for (only, tables, part) in [
            (
                "spilled",
                "perfect,bucketed",
                "`spilled` and `gpus` measure the tables",
            ),
            ("pinned", "partitioned", "in `cpu`, `spilled` and `gpus`"),
            ("spilled,cpu", "partitioned", "alone"),
            (
                "co-processing",
                "perfect",
                "workload `a` with the table `linear-probing`",
            ),
        ] {
            let args = parse(&["--only", only, "--tables", tables]).expect("right flags");
            let error = run(&args).expect_err("it is refused").to_string();
            assert!(error.contains(part), "{error}");
        }
        for option in ["--host-bytes=1G", "--spill-directory=/tmp"] {
            let args = parse(&["--only", "cpu", option]).expect("right flags");
            let error = run(&args).expect_err("it is of `spilled`").to_string();
            assert!(error.contains("--only spilled"), "{error}");
        }
        let args = parse(&["--only", "figures", "--tables", "partitioned"]).expect("right flags");
        check(&args, false).expect("the CPU joins in partitions");
        let error = check(&args, true).expect_err("a GPU does not").to_string();
        assert!(error.contains("without a GPU in `figures`"), "{error}");
        let args = parse(&["--only", "figures", "--workloads", "a"]).expect("right flags");
        let error = run(&args).expect_err("it has others").to_string();
        assert!(error.contains("leave out `--workloads`"), "{error}");
    }

    #[test]
    fn sections_measure_each_workload_that_they_have() {
        for tuples in Tuples::ALL {
            assert!(Section::Cpu.measures(tuples) && Section::Device.measures(tuples));
            assert_eq!(Section::Pinned.measures(tuples), tuples == Tuples::A);
            assert!(!ALONE.iter().any(|section| section.measures(tuples)));
        }
    }

    #[test]
    fn options_out_of_range_are_refused() {
        for (option, value, part) in [
            ("--scale", "0", "use a number from"),
            ("--scale", "5", "use a number from"),
            ("--rounds", "0", "0 is not in 1..="),
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
