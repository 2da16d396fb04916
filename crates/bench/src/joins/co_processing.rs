//! Joins of sides in pinned host memory by the CPU, by GPUs, and by both.

use std::sync::Arc;

use anyhow::Result;
use forebay_cancel::Stop;
use forebay_device::cuda::gpus;
use forebay_device::{Device, DeviceOptions, Devices, HaltingDevices};
use forebay_hash_index::{Side, TableShape, Workload};
use forebay_joins::{
    CoProcessing, CoProcessingOptions, CoProcessingReport, PinnedColumns, Strategy, join_on_cpu,
};

use super::host::Columns;
use super::pinned::pin;
use super::report::{Sample, Times};
use super::size::Tuples;
use super::{Join, SMOKE_BYTES, Session, Table};

/// Begin of the names of cases.
const NAME: &str = "join-a-co-processing";

/// Returns the name of a strategy in cases.
fn name(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::Cpu => "cpu",
        Strategy::Gpu => "gpu",
        Strategy::GpuAndCpu => "gpu-and-cpu",
        Strategy::GpuBuilds => "gpu-builds",
    }
}

/// Measures the joins of workload A with every strategy, on the first GPU and then on all; without a GPU, on the CPU.
pub(super) fn measure(session: &mut Session, workload: Workload) -> Result<()> {
    if !session.tables.contains(&Table::LinearProbing) {
        return Ok(());
    }
    let join = session.join(Tuples::A, workload);
    let Ok(found) = gpus() else {
        return on_cpu(session, &join);
    };
    let spec: Vec<String> = (0..found.len()).map(|gpu| format!("cuda:{gpu}")).collect();
    let options = DeviceOptions {
        cuda_memory_budget_bytes: session.is_smoke.then_some(SMOKE_BYTES),
        pinned_pool_bytes: 1 << 20,
        ..DeviceOptions::default()
    };
    let devices: HaltingDevices = Devices::new(&spec.join(",").parse()?, options)?.into();
    let all = devices.list();
    let mut side = |side, of_side: &str| {
        let name = format!("{NAME}/{of_side}");
        pin(session, &all[0], (&workload, side), &name)
    };
    let (build, probe) = (
        side(Side::Build, "build-side")?,
        side(Side::Probe, "probe-side")?,
    );
    on_gpus(session, &join, &all[..1], (&build, &probe))?;
    if all.len() > 1 {
        on_gpus(session, &join, &all, (&build, &probe))?;
    }
    Ok(())
}

/// Measures the join on some GPUs and the CPU.
fn on_gpus(
    session: &mut Session,
    join: &Join,
    gpus: &[Arc<Device>],
    sides: (&PinnedColumns, &PinnedColumns),
) -> Result<()> {
    let options = CoProcessingOptions {
        shape: shape(join),
        ring: session.ring,
        threads: session.threads,
    };
    let mut joins = CoProcessing::new(gpus, options)?;
    // The CPU alone is measured once.
    let is_new = |strategy: &Strategy| strategy.has_gpu() || gpus.len() == 1;
    let strategies: Vec<Strategy> = Strategy::ALL.into_iter().filter(is_new).collect();
    let names: Vec<&str> = gpus.iter().map(|it| it.name()).collect();
    let gpus = names.join("+");
    let cpu = format!("host:{}", session.threads);
    for strategy in strategies {
        let devices = match strategy {
            Strategy::Cpu => cpu.clone(),
            Strategy::Gpu => gpus.clone(),
            Strategy::GpuAndCpu | Strategy::GpuBuilds => format!("{gpus}+{cpu}"),
        };
        add(session, (strategy, &devices), join, || {
            Ok(joins.run(strategy, sides, &Stop::never())?)
        })?;
    }
    Ok(())
}

/// Measures the join on the CPU alone.
fn on_cpu(session: &mut Session, join: &Join) -> Result<()> {
    let threads = session.threads;
    let sides = [Side::Build, Side::Probe];
    let [build, probe] = sides.map(|side| Columns::generate(&join.workload, side, threads));
    let devices = format!("host:{threads}");
    let sides = (build.rows(), probe.rows());
    add(session, (Strategy::Cpu, &devices), join, || {
        Ok(join_on_cpu(shape(join), sides, threads, &Stop::never())?)
    })
}

fn shape(join: &Join) -> TableShape {
    TableShape::linear_probing(join.workload.width, join.workload.build_rows)
}

/// Runs a join as often as the options say, and reports it with the share of the probe rows that the CPU took.
fn add(
    session: &mut Session,
    (strategy, devices): (Strategy, &str),
    join: &Join,
    mut once: impl FnMut() -> Result<CoProcessingReport>,
) -> Result<()> {
    let case = format!("{NAME}/{}", name(strategy));
    let mut shares = Vec::new();
    session.add((case.clone(), devices), join, || {
        let report = once()?;
        shares.push(report.cpu_rows as f64 / join.workload.probe_rows as f64);
        Ok(Sample {
            allocation: strategy.has_cpu().then_some(report.allocate),
            times: Times::Table {
                build: report.build,
                probe: report.probe,
            },
            totals: report.totals,
        })
    })?;
    // The first run warms up.
    let case = (case.as_str(), devices);
    session.report.add_apart(case, "cpu_share", &shares[1..])
}
