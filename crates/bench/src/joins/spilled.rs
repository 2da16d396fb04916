//! Joins of sides in host memory that may use less device memory than they need: in partitions that spill, and with a
//! table partly in host memory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use forebay_cancel::Stop;
use forebay_device::{Device, available_host_bytes};
use forebay_hash_index::{ProbeKeys, Side, TableShape, Width, Workload};
use forebay_joins::{
    FirstPass, JoinError, JoinOptions, JoinPlan, JoinReport, PartitionedJoin, PinnedColumns,
};
use forebay_movement::RingOptions;
use forebay_movement::storage::{DataFile, PageCache};

use super::device::{on_gpu, once};
use super::pinned::pin;
use super::report::{Sample, Times};
use super::{Join, JoinsArgs, Named, RING_SLOTS, Session, Table, has_named, start_gpus};

/// Minimum of the device memory, and of the host memory, that a join may use.
const JOIN_BYTES_MIN: usize = 1 << 20;
/// Maximum of it.
const JOIN_BYTES_MAX: usize = 1 << 40;
/// Default of the device memory.
const DEVICE_BYTES: usize = 8 << 30;
/// Device memory beside that of the join and a table's bits: totals.
const OTHER_BYTES: u64 = 64 << 20;
/// First part of the names of cases of the section `spilled`.
const NAME: &str = "join-triton";
/// Stands for the host memory that both sides leave, until it is known.
const ALL_HOST_BYTES: u64 = u64::MAX;

/// Tables that may lie partly in host memory, and their names in cases.
type HybridTables = &'static [(Table, &'static str)];

/// The hybrid table of the section `spilled`.
const OF_SPILLED: HybridTables = &[(Table::LinearProbing, "hybrid")];
/// The hybrid tables of the section `build-scaling`.
const OF_BUILD_SCALING: HybridTables = &[
    (Table::Perfect, "perfect"),
    (Table::LinearProbing, "linear-probing"),
];

/// Options of the sections `spilled` and `build-scaling`.
#[derive(Args, Clone, Debug)]
pub struct SpilledArgs {
    /// Device memory that a join may use, in the sections `spilled` and `build-scaling`. The default is 8G.
    #[arg(long, value_name = "SIZE", value_parser = join_bytes())]
    pub device_bytes: Option<usize>,
    /// Pinned host memory to which a join in partitions may spill, in the sections `spilled` and `build-scaling`. The
    /// default is seven eighths of what both sides leave.
    #[arg(long, value_name = "SIZE", value_parser = join_bytes())]
    pub host_bytes: Option<usize>,
    /// Folder of a temporary file for partitions that do not fit in host memory, in the sections `spilled` and
    /// `build-scaling`.
    #[arg(long, value_name = "DIR")]
    pub spill_directory: Option<PathBuf>,
    /// Share of the rows of the probe side that have a match, from 0 to 1 in whole thousandths, in the sections
    /// `spilled` and `build-scaling`. The default is 1.
    #[arg(long, value_name = "SHARE", value_parser = thousandths)]
    pub selectivity: Option<u32>,
    /// Drop most rows of the probe side without a match before they are divided into partitions, in the sections
    /// `spilled` and `build-scaling`. A Bloom filter in device memory takes a byte for each row of the build side.
    #[arg(long)]
    pub filter: bool,
    /// Measure the join in partitions once for each of these processors of the first pass, on the same rows, in the
    /// sections `spilled` and `build-scaling`. The default is `gpu`.
    #[arg(long, value_name = "PROCESSOR", value_delimiter = ',')]
    pub first_pass: Vec<Processor>,
}

/// The processor that divides both sides into partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Processor {
    /// The GPU.
    Gpu,
    /// All cores of the CPU.
    Cpu,
    /// The one that divides a sample of the rows in less time; the sample is taken in the run that warms up. With
    /// `--filter`, or if there are few rows, the GPU.
    Choose,
}

impl Processor {
    fn first_pass(self) -> FirstPass {
        match self {
            Processor::Gpu => FirstPass::Gpu,
            Processor::Cpu => FirstPass::Cpu,
            Processor::Choose => FirstPass::Choose,
        }
    }

    /// Returns the last part of the name of the case, and its devices.
    fn case(self, gpu: &str, threads: usize) -> (&'static str, String) {
        let both = || format!("{gpu}+host:{threads}");
        match self {
            Processor::Gpu => ("partitioned", gpu.to_owned()),
            Processor::Cpu => ("partitioned-by-cpu", both()),
            Processor::Choose => ("partitioned-by-choice", both()),
        }
    }
}

impl SpilledArgs {
    /// Returns each option, and whether it is given.
    pub(super) fn given(&self) -> [(&'static str, bool); 6] {
        [
            ("--device-bytes", self.device_bytes.is_some()),
            ("--host-bytes", self.host_bytes.is_some()),
            ("--spill-directory", self.spill_directory.is_some()),
            ("--selectivity", self.selectivity.is_some()),
            ("--filter", self.filter),
            ("--first-pass", !self.first_pass.is_empty()),
        ]
    }
}

/// Returns the parser of the device memory of a join, and of its host memory.
fn join_bytes() -> impl Fn(&str) -> Result<usize, String> + Clone {
    crate::size::multiples(1, JOIN_BYTES_MIN..=JOIN_BYTES_MAX)
}

/// Parses a share of whole thousandths. Returns their number.
fn thousandths(text: &str) -> Result<u32, String> {
    let share: Option<f64> = text.parse().ok();
    let share = share.filter(|share| (0.0..=1.0).contains(share));
    let thousandths = share.ok_or("use a number from 0 to 1")? * 1000.0;
    let whole = thousandths.round();
    // The product of a decimal number is rarely exact.
    match (thousandths - whole).abs() < 1e-9 {
        true => Ok(whole as u32),
        false => Err("use whole thousandths, such as 0.125".to_owned()),
    }
}

/// What is joined, and with what memory.
#[derive(Debug)]
pub(super) struct Spilled {
    /// First part of the names of cases.
    name: String,
    tables: HybridTables,
    workload: Workload,
    options: JoinOptions,
    /// The processors whose first pass is measured.
    processors: Vec<Processor>,
}

impl Spilled {
    /// Returns a fraction of 1,024 million by 1,024 million tuples, as in the paper of Triton (Lutz et al., 2022). Runs
    /// may spill to the host memory that the arguments name, or to what both sides leave.
    pub(super) fn scaled(args: &JoinsArgs, ring: RingOptions) -> Spilled {
        let rows = (1_024e6 * args.scale) as u64;
        let args = &args.spilled;
        let workload = workload([rows; 2], args.selectivity);
        let options = JoinOptions {
            device_bytes: args.device_bytes.unwrap_or(DEVICE_BYTES) as u64,
            host_bytes: args.host_bytes.map_or(ALL_HOST_BYTES, |bytes| bytes as u64),
            spill_directory: args.spill_directory.clone(),
            ring,
            has_filter: args.filter,
            first_pass: FirstPass::Gpu,
            threads: forebay_device::cores(),
        };
        let processors = match &args.first_pass[..] {
            [] => vec![Processor::Gpu],
            named => named.to_vec(),
        };
        Spilled {
            name: NAME.to_owned(),
            tables: OF_SPILLED,
            workload,
            options,
            processors,
        }
    }

    /// Returns a join of a smoke run, whose runs are in device memory, in host memory and on disk. A filter drops
    /// rows.
    pub(super) fn smoke() -> Spilled {
        let ring = RingOptions {
            slots: RING_SLOTS,
            slot_bytes: 64 << 10,
        };
        Spilled {
            name: NAME.to_owned(),
            tables: OF_SPILLED,
            workload: workload([30_000, 80_000], Some(500)),
            options: JoinOptions {
                device_bytes: 3 << 20,
                host_bytes: 512 << 10,
                spill_directory: Some(std::env::temp_dir()),
                ring,
                has_filter: true,
                first_pass: FirstPass::Gpu,
                threads: forebay_device::cores(),
            },
            processors: Processor::value_variants().to_vec(),
        }
    }

    /// Returns the join of the section `build-scaling` of as many rows on both sides, with the names of its cases.
    pub(super) fn of_rows(&self, rows: u64, name: String) -> Spilled {
        Spilled {
            name,
            tables: OF_BUILD_SCALING,
            workload: Workload {
                build_rows: rows,
                probe_rows: rows,
                ..self.workload
            },
            options: self.options.clone(),
            processors: self.processors.clone(),
        }
    }

    /// Returns the first part of the names of cases.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the hybrid tables that a run measures: the last part of the name of the case, and the shape.
    fn hybrid_tables(&self, session: &Session) -> Vec<(&'static str, TableShape)> {
        let own = |table: Table| self.tables.iter().find(|(own, _)| *own == table);
        let shapes = session.shapes(&self.workload).into_iter();
        shapes
            .filter_map(|(table, shape)| Some((own(table)?.1, shape)))
            .collect()
    }

    /// Returns the bytes of host memory of both sides and of what does not fit on the device: runs that do not go to
    /// disk, or a part of a hybrid table.
    ///
    /// # Errors
    /// If device memory, or the host memory that the options name, is too small.
    pub(super) fn host_bytes(&self, session: &Session) -> Result<u64, JoinError> {
        let options = &self.options;
        let goes_to_disk =
            options.spill_directory.is_some() && options.host_bytes == ALL_HOST_BYTES;
        let runs = match session.tables.contains(&Table::Partitioned) && !goes_to_disk {
            true => self.plan()?.host_bytes(),
            false => 0,
        };
        let tables = self.hybrid_tables(session).into_iter();
        let tables =
            tables.map(|(_, shape)| shape.slot_bytes().saturating_sub(options.device_bytes));
        Ok(side_bytes(&self.workload) + runs.max(tables.max().unwrap_or(0)))
    }

    /// Plans the join in partitions.
    ///
    /// # Errors
    /// If device or host memory is too small.
    fn plan(&self) -> Result<JoinPlan, JoinError> {
        let rows = [self.workload.build_rows, self.workload.probe_rows];
        JoinPlan::new(self.workload.width, rows, self.options.clone())
    }

    /// Checks the options of the join in partitions before rows are generated.
    ///
    /// # Errors
    /// If device or host memory is too small, or no file can be made in the folder.
    fn check(&self) -> Result<()> {
        self.plan()?;
        if let Some(folder) = &self.options.spill_directory {
            drop(DataFile::temporary(folder, PageCache::Bypass)?);
        }
        Ok(())
    }
}

/// Checks that options of the join in partitions have an effect.
///
/// # Errors
/// If one is named, and this join is not measured.
pub(super) fn check(args: &JoinsArgs) -> Result<()> {
    let SpilledArgs {
        host_bytes,
        spill_directory,
        filter,
        first_pass,
        ..
    } = &args.spilled;
    let is_given =
        host_bytes.is_some() || spill_directory.is_some() || *filter || !first_pass.is_empty();
    ensure!(
        !is_given || has_named(&args.tables, &[Table::Partitioned]),
        "`--host-bytes`, `--spill-directory`, `--filter` and `--first-pass` have an effect only on the table \
         `partitioned`"
    );
    Ok(())
}

/// Returns a workload, of whose probe side these thousandths of the rows have a match; `None` for all.
fn workload([build_rows, probe_rows]: [u64; 2], thousandths: Option<u32>) -> Workload {
    let matching = |thousandths| ProbeKeys::Matching { thousandths };
    Workload {
        width: Width::Eight,
        build_rows,
        probe_rows,
        probe_keys: thousandths.map_or(ProbeKeys::Uniform, matching),
    }
}

/// Returns the bytes of both sides of a workload.
pub(super) fn side_bytes(workload: &Workload) -> u64 {
    (workload.build_rows + workload.probe_rows) * workload.width.row_bytes()
}

/// Returns the bytes of host memory that joins may pin. Pinning takes some memory beside them, and so do other
/// programs.
pub(super) fn host_room() -> u64 {
    let left = available_host_bytes();
    left - left / 8
}

/// Measures the join in partitions and with hybrid tables, or only those that are named.
pub(super) fn measure(session: &mut Session, mut spilled: Spilled) -> Result<()> {
    let in_partitions = session.tables.contains(&Table::Partitioned);
    if in_partitions {
        spilled.check()?;
    }
    let join = session.answer(spilled.workload);
    // The chunks of a hybrid table are not of the budget, and its bits are.
    let tables = spilled.hybrid_tables(session).into_iter();
    let bits = tables.map(|(_, shape)| shape.bytes() - shape.slot_bytes());
    let budget = spilled.options.device_bytes + bits.max().unwrap_or(0) + OTHER_BYTES;
    let devices = start_gpus("cuda:0", Some(budget))?;
    let gpu = devices.list().remove(0);
    let mut side = |side, of_side: &str| {
        let name = format!("{}/{of_side}", spilled.name);
        pin(session, &gpu, (&join.workload, side), &name)
    };
    let build = side(Side::Build, "build-side")?;
    let probe = side(Side::Probe, "probe-side")?;
    let sides = (&build, &probe);
    if in_partitions {
        if spilled.options.host_bytes == ALL_HOST_BYTES {
            spilled.options.host_bytes = host_room();
        }
        for processor in spilled.processors.clone() {
            spilled.options.first_pass = processor.first_pass();
            partitioned(session, &gpu, (&spilled, processor), &join, sides)?;
        }
    }
    for (method, shape) in spilled.hybrid_tables(session) {
        let name = format!("{}/{method}", spilled.name);
        let table = (shape, spilled.options.device_bytes);
        in_hybrid_table(session, &gpu, (&name, &join), table, sides)?;
    }
    Ok(())
}

fn partitioned(
    session: &mut Session,
    gpu: &Arc<Device>,
    (spilled, processor): (&Spilled, Processor),
    join: &Join,
    sides: (&PinnedColumns, &PinnedColumns),
) -> Result<()> {
    let plan = spilled.plan()?;
    let (method, devices) = processor.case(gpu.name(), session.threads);
    let name = format!("{}/{method}", spilled.name);
    let case = (name.as_str(), devices.as_str());
    for (metric, value) in [
        ("spilled_bytes", plan.spill_bytes()),
        ("disk_bytes", plan.disk_bytes()),
        ("resident_bytes", plan.resident_bytes()),
        ("partitions", plan.partitions() as u64),
    ] {
        session.report.add_apart(case, metric, &[value as f64])?;
    }
    let began = Instant::now();
    let mut partitioned = PartitionedJoin::new(gpu, plan)?;
    let took = began.elapsed().as_secs_f64();
    session.report.add_apart(case, "allocation_s", &[took])?;
    let mut reports = Vec::new();
    session.add((name.clone(), &devices), join, || {
        let report = partitioned.run(sides, &Stop::never())?;
        reports.push(report);
        Ok(Sample {
            allocation: None,
            times: Times::Partitions {
                divide: report.divide,
                join: report.join,
            },
            totals: report.totals,
        })
    })?;
    if spilled.options.has_filter {
        let filtered = reports.iter().map(|report| report.filtered_rows as f64);
        let filtered: Vec<f64> = filtered.collect();
        session.report.add_apart(case, "filtered_rows", &filtered)?;
    }
    if let (Processor::Choose, Some(report)) = (processor, reports.last()) {
        add_choice(session, case, report)?;
    }
    Ok(())
}

/// Reports which processor was chosen for the first pass, and from what times.
fn add_choice(session: &mut Session, case: (&str, &str), report: &JoinReport) -> Result<()> {
    let chosen = if report.is_by_cpu { "CPU" } else { "GPU" };
    session
        .report
        .note(&format!("{}: the {chosen} divides", case.0));
    let Some(times) = report.sample else {
        return Ok(());
    };
    for (metric, time) in [("sample_cpu_s", times.cpu), ("sample_gpu_s", times.gpu)] {
        session
            .report
            .add_apart(case, metric, &[time.as_secs_f64()])?;
    }
    Ok(())
}

fn in_hybrid_table(
    session: &mut Session,
    gpu: &Arc<Device>,
    (name, join): Named<'_>,
    (shape, share): (TableShape, u64),
    (build, probe): (&PinnedColumns, &PinnedColumns),
) -> Result<()> {
    let bytes = shape.slot_bytes();
    let memory = on_gpu(gpu, move |cuda| Ok(cuda.hybrid_memory(bytes, share)?))?;
    let device_share = memory.device_share();
    session
        .report
        .add_apart((name, gpu.name()), "device_share", &[device_share])?;
    session.add((name.to_owned(), gpu.name()), join, || {
        once(gpu, (shape, memory.all()), (build.rows(), probe.rows()))
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::joins::sections;
    use crate::joins::tests::parse;

    /// Asserts that a join has runs in device memory, in host memory and on disk.
    fn assert_is_in_three_places(spilled: &Spilled) {
        let plan = spilled.plan().expect("enough memory");
        let bytes = [
            plan.resident_bytes(),
            plan.spill_bytes() - plan.disk_bytes(),
            plan.disk_bytes(),
        ];
        assert!(bytes.iter().all(|bytes| *bytes > 0), "{plan:?}");
    }

    #[test]
    fn the_smoke_run_and_the_check_of_the_decision_go_to_disk() {
        assert_is_in_three_places(&Spilled::smoke());
        // As in decision 0060.
        let flags = "--chunk-bytes 1M --device-bytes 256M --host-bytes 128M --spill-directory /tmp";
        let args = parse(&flags.split(' ').collect::<Vec<_>>()).expect("right flags");
        let ring = RingOptions {
            slots: RING_SLOTS,
            slot_bytes: args.chunk_bytes.expect("it is named"),
        };
        assert_is_in_three_places(&Spilled::scaled(&args, ring));
    }

    #[test]
    fn options_of_partitions_need_them_and_a_folder_that_exists() {
        for option in [
            "--host-bytes=1G",
            "--spill-directory=/tmp",
            "--filter",
            "--first-pass=cpu",
        ] {
            let flags = ["--only=spilled", "--tables=linear-probing", option];
            let args = parse(&flags).expect("right flags");
            let error = sections(&args, None).expect_err("it has no effect");
            assert!(error.to_string().contains("table `partitioned`"), "{error}");
        }
        let mut spilled = Spilled::smoke();
        spilled.check().expect("a temporary folder");
        spilled.options.spill_directory = Some("/no/such/folder".into());
        let error = spilled.check().expect_err("there is none").to_string();
        assert!(error.contains("/no/such/folder"), "{error}");
    }
}
