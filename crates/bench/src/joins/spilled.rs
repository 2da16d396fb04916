//! Joins of sides in host memory that may use less device memory than they need: in partitions that spill, and with a
//! table partly in host memory.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use forebay_cancel::Stop;
use forebay_device::{Device, available_host_bytes};
use forebay_hash_index::{JoinTotals, ProbeKeys, Side, TableShape, Width, Workload};
use forebay_joins::{JoinError, JoinOptions, JoinPlan, PartitionedJoin, PinnedColumns};
use forebay_movement::RingOptions;
use forebay_movement::storage::{DataFile, PageCache};

use super::device::on_gpu;
use super::pinned::pin;
use super::report::{Case, Sample, Times};
use super::{DEVICE_BYTES, JoinsArgs, RING_SLOTS, Session, Table, has_named, hybrid, start_gpus};

/// Device memory beside that of the join: a table's bits and totals.
const OTHER_BYTES: u64 = 64 << 20;
/// Stands for the host memory that both sides leave, until it is known.
const ALL_HOST_BYTES: u64 = u64::MAX;

/// What is joined, and with what memory.
#[derive(Debug)]
pub(super) struct Spilled {
    workload: Workload,
    options: JoinOptions,
}

impl Spilled {
    /// Returns a fraction of 1,024 million by 1,024 million tuples, as in the paper of Triton (Lutz et al., 2022). Runs
    /// may spill to the host memory that the arguments name, or to what both sides leave.
    pub(super) fn scaled(args: &JoinsArgs, ring: RingOptions) -> Spilled {
        let rows = (1_024e6 * args.scale) as u64;
        let workload = workload(rows, rows);
        let options = JoinOptions {
            device_bytes: args.device_bytes.unwrap_or(DEVICE_BYTES) as u64,
            host_bytes: args.host_bytes.map_or(ALL_HOST_BYTES, |bytes| bytes as u64),
            spill_directory: args.spill_directory.clone(),
            ring,
        };
        Spilled { workload, options }
    }

    /// Returns a join of a smoke run, whose runs are in device memory, in host memory and on disk.
    pub(super) fn smoke() -> Spilled {
        let ring = RingOptions {
            slots: RING_SLOTS,
            slot_bytes: 64 << 10,
        };
        Spilled {
            workload: workload(30_000, 80_000),
            options: JoinOptions {
                device_bytes: 3 << 20,
                host_bytes: 512 << 10,
                spill_directory: Some(std::env::temp_dir()),
                ring,
            },
        }
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
    let is_named = args.host_bytes.is_some() || args.spill_directory.is_some();
    ensure!(
        !is_named || has_named(&args.tables, &[Table::Partitioned]),
        "`--host-bytes` and `--spill-directory` have an effect only on the table `partitioned`"
    );
    Ok(())
}

fn workload(build_rows: u64, probe_rows: u64) -> Workload {
    Workload {
        width: Width::Eight,
        build_rows,
        probe_rows,
        probe_keys: ProbeKeys::Uniform,
    }
}

/// Measures the join in partitions and with a hybrid table, or only the named one.
pub(super) fn measure(session: &mut Session, mut spilled: Spilled) -> Result<()> {
    let (workload, device_bytes) = (spilled.workload, spilled.options.device_bytes);
    let in_partitions = session.tables.contains(&Table::Partitioned);
    if in_partitions {
        spilled.check()?;
    }
    let answer = workload.answer(session.threads);
    let budget = device_bytes + OTHER_BYTES;
    let devices = start_gpus("cuda:0", Some(budget))?;
    let gpu = devices.list().remove(0);
    let mut side = |side, name: &str| pin(session, &gpu, (&workload, side), name);
    let build = side(Side::Build, "join-triton/build-side")?;
    let probe = side(Side::Probe, "join-triton/probe-side")?;
    let sides = (&build, &probe);
    if in_partitions {
        if spilled.options.host_bytes == ALL_HOST_BYTES {
            // Pinning takes some memory beside that of the runs, and so do other programs.
            let left = available_host_bytes();
            spilled.options.host_bytes = left - left / 8;
        }
        partitioned(session, &gpu, spilled.plan()?, (&workload, answer), sides)?;
    }
    if session.tables.contains(&Table::LinearProbing) {
        in_hybrid_table(session, &gpu, (&workload, answer), device_bytes, sides)?;
    }
    Ok(())
}

fn partitioned(
    session: &mut Session,
    gpu: &Arc<Device>,
    plan: JoinPlan,
    expected: (&Workload, JoinTotals),
    sides: (&PinnedColumns, &PinnedColumns),
) -> Result<()> {
    let case = ("join-triton/partitioned", gpu.name());
    for (metric, value) in [
        ("spilled_bytes", plan.spill_bytes()),
        ("disk_bytes", plan.disk_bytes()),
        ("resident_bytes", plan.resident_bytes()),
        ("partitions", plan.partitions() as u64),
    ] {
        session.report.add_apart(case, metric, &[value as f64])?;
    }
    let began = Instant::now();
    let mut join = PartitionedJoin::new(gpu, plan)?;
    let took = began.elapsed().as_secs_f64();
    session.report.add_apart(case, "allocation_s", &[took])?;
    let samples = (0..=session.rounds).map(|_| {
        let report = join.run(sides, &Stop::never())?;
        Ok(Sample {
            allocation: None,
            times: Times::Partitions {
                divide: report.divide,
                join: report.join,
            },
            totals: report.totals,
        })
    });
    let samples: Vec<Sample> = samples.collect::<Result<_>>()?;
    add(session, case, expected, &samples)
}

fn in_hybrid_table(
    session: &mut Session,
    gpu: &Arc<Device>,
    (workload, answer): (&Workload, JoinTotals),
    share: u64,
    (build, probe): (&PinnedColumns, &PinnedColumns),
) -> Result<()> {
    let shape = TableShape::linear_probing(workload.width, workload.build_rows);
    let bytes = shape.slot_bytes();
    let memory = on_gpu(gpu, move |cuda| Ok(cuda.hybrid_memory(bytes, share)?))?;
    let case = ("join-triton/hybrid", gpu.name());
    let device_share = memory.device_share();
    session
        .report
        .add_apart(case, "device_share", &[device_share])?;
    let sample = hybrid::once(gpu, shape, memory.all(), (build.rows(), probe.rows()))?;
    // It takes many times as long: one run is timed, and none warms up.
    add(session, case, (workload, answer), &[sample; 2])
}

fn add(
    session: &mut Session,
    (name, devices): (&str, &str),
    (workload, answer): (&Workload, JoinTotals),
    samples: &[Sample],
) -> Result<()> {
    let case = Case {
        name,
        devices,
        workload,
    };
    session.report.add(case, answer, samples)
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
        for option in ["--host-bytes=1G", "--spill-directory=/tmp"] {
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
