//! Joins of sides in host memory that may use less device memory than they need: in partitions that spill, and with a
//! table partly in host memory.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use forebay_cancel::Stop;
use forebay_device::Device;
use forebay_hash_index::{JoinTotals, ProbeKeys, Side, TableShape, Width, Workload};
use forebay_joins::{JoinOptions, JoinPlan, PartitionedJoin, PinnedColumns};
use forebay_movement::RingOptions;

use super::device::on_gpu;
use super::pinned::pin;
use super::report::{Case, Sample, Times};
use super::{DEVICE_BYTES, JoinsArgs, RING_SLOTS, Session, Table, hybrid, start_gpus};

/// Device memory beside that of the join: a table's bits and totals.
const OTHER_BYTES: u64 = 64 << 20;

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
        let of_sides = 2 * rows * 2 * workload.width.bytes();
        let left = || {
            let available = crate::memory::available_bytes().unwrap_or(u64::MAX);
            available.saturating_sub(of_sides)
        };
        let options = JoinOptions {
            device_bytes: args.device_bytes.unwrap_or(DEVICE_BYTES) as u64,
            host_bytes: args.host_bytes.map_or_else(left, |bytes| bytes as u64),
            spill_directory: args.spill_directory.clone(),
            ring,
        };
        Spilled { workload, options }
    }

    /// Returns a join of a smoke run, some of whose runs spill.
    pub(super) fn smoke() -> Spilled {
        let ring = RingOptions {
            slots: RING_SLOTS,
            slot_bytes: 64 << 10,
        };
        Spilled {
            workload: workload(30_000, 40_000),
            options: JoinOptions {
                device_bytes: 3 << 20,
                host_bytes: 64 << 20,
                spill_directory: None,
                ring,
            },
        }
    }
}

fn workload(build_rows: u64, probe_rows: u64) -> Workload {
    Workload {
        width: Width::Eight,
        build_rows,
        probe_rows,
        probe_keys: ProbeKeys::Uniform,
    }
}

/// Measures the join in partitions and with a hybrid table, or only what is named.
pub(super) fn measure(session: &mut Session, spilled: Spilled) -> Result<()> {
    let Spilled { workload, options } = spilled;
    let device_bytes = options.device_bytes;
    let rows = [workload.build_rows, workload.probe_rows];
    let plan = match session.tables.contains(&Table::Partitioned) {
        true => Some(JoinPlan::new(workload.width, rows, options)?),
        false => None,
    };
    let answer = workload.answer(session.threads);
    let budget = device_bytes + OTHER_BYTES;
    let devices = start_gpus("cuda:0", Some(budget))?;
    let gpu = devices.list().remove(0);
    let mut side = |side, name: &str| pin(session, &gpu, (&workload, side), name);
    let build = side(Side::Build, "join-triton/build-side")?;
    let probe = side(Side::Probe, "join-triton/probe-side")?;
    let sides = (&build, &probe);
    if let Some(plan) = plan {
        partitioned(session, &gpu, plan, (&workload, answer), sides)?;
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
