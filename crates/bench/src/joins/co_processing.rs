//! Joins of sides in pinned host memory by the CPU, by GPUs, and by both.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use forebay_cancel::Stop;
use forebay_device::Device;
use forebay_device::cuda::gpus;
use forebay_hash_index::{Side, TableShape, Workload};
use forebay_joins::predict::TableRates;
use forebay_joins::{
    CoProcessing, CoProcessingOptions, CoProcessingReport, GpuRates, PinnedColumns, Rates,
    Strategy, choose, join_on_cpu,
};

use super::host::Columns;
use super::pinned::pin;
use super::report::{Sample, Times};
use super::size::Tuples;
use super::{Join, Named, SMOKE_BYTES, Session, start_gpus};
use crate::statistics::Summary;

/// Returns the name of a strategy in cases.
fn name_of(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::Cpu => "cpu",
        Strategy::Gpu => "gpu",
        Strategy::GpuAndCpu => "gpu-and-cpu",
        Strategy::GpuBuilds => "gpu-builds",
    }
}

/// The median times of a strategy, in seconds.
#[derive(Debug, Clone, Copy)]
struct Timed {
    strategy: Strategy,
    /// The build. That of the CPU alone includes the allocation of its table, as in a join beside GPUs.
    build_s: f64,
    probe_s: f64,
}

impl Timed {
    fn join_s(&self) -> f64 {
        self.build_s + self.probe_s
    }

    fn rates(&self, workload: &Workload) -> TableRates {
        TableRates {
            inserts_per_s: workload.build_rows as f64 / self.build_s,
            probes_per_s: workload.probe_rows as f64 / self.probe_s,
        }
    }
}

/// Measures the joins of workloads with every strategy, on the first GPU and then on all; without a GPU, on the CPU.
pub(super) fn measure(session: &mut Session, workloads: &[(Tuples, Workload)]) -> Result<()> {
    let devices = match gpus() {
        Ok(_) => Some(start_gpus("cuda", session.is_smoke.then_some(SMOKE_BYTES))?),
        Err(error) => {
            let text = format!("`co-processing`: the CPU joins alone: {error}");
            session.report.note(&text);
            None
        }
    };
    for (tuples, workload) in workloads {
        let name = format!("join-{}-co-processing", tuples.name());
        let join = session.join(*tuples, *workload);
        match &devices {
            Some(devices) => on_one_and_all(session, (&name, &join), &devices.list())?,
            None => on_cpu(session, (&name, &join))?,
        }
    }
    Ok(())
}

/// Measures the join on the first GPU, and then on all if there are several.
fn on_one_and_all(
    session: &mut Session,
    (name, join): Named<'_>,
    all: &[Arc<Device>],
) -> Result<()> {
    let mut side = |side, of_side: &str| {
        let name = format!("{name}/{of_side}");
        pin(session, &all[0], (&join.workload, side), &name)
    };
    let (build, probe) = (
        side(Side::Build, "build-side")?,
        side(Side::Probe, "probe-side")?,
    );
    let cpu = on_gpus(session, (name, join), &all[..1], (&build, &probe), None)?;
    if all.len() > 1 {
        on_gpus(session, (name, join), all, (&build, &probe), cpu)?;
    }
    Ok(())
}

/// Measures the join on some GPUs and the CPU. Returns the times of the CPU alone: `cpu` if it was measured before.
fn on_gpus(
    session: &mut Session,
    join: Named<'_>,
    gpus: &[Arc<Device>],
    sides: (&PinnedColumns, &PinnedColumns),
    cpu: Option<Timed>,
) -> Result<Option<Timed>> {
    let options = CoProcessingOptions {
        shape: shape(join.1),
        ring: session.ring,
        threads: session.threads,
    };
    let mut joins = CoProcessing::new(gpus, options)?;
    let names: Vec<&str> = gpus.iter().map(|it| it.name()).collect();
    let names = names.join("+");
    let host = format!("host:{}", session.threads);
    let mut timed: Vec<Timed> = cpu.into_iter().collect();
    for strategy in Strategy::ALL {
        if strategy == Strategy::Cpu && cpu.is_some() {
            continue;
        }
        let devices = match strategy {
            Strategy::Cpu => host.clone(),
            Strategy::Gpu => names.clone(),
            Strategy::GpuAndCpu | Strategy::GpuBuilds => format!("{names}+{host}"),
        };
        timed.push(add(session, (strategy, &devices), join, || {
            Ok(joins.run(strategy, sides, &Stop::never())?)
        })?);
    }
    note_choice(session, join, (&names, gpus.len()), &timed);
    Ok(timed.into_iter().find(|it| it.strategy == Strategy::Cpu))
}

/// Notes the strategy that is chosen from the rates of the CPU alone and of the GPUs alone, beside the fastest one.
fn note_choice(
    session: &Session,
    (name, join): Named<'_>,
    (names, gpus): (&str, usize),
    timed: &[Timed],
) {
    let of = |strategy| timed.iter().find(|it| it.strategy == strategy);
    let (Some(cpu), Some(gpu)) = (of(Strategy::Cpu), of(Strategy::Gpu)) else {
        return;
    };
    let workload = &join.workload;
    let table = gpu.rates(workload);
    let row_bytes = workload.width.row_bytes() as f64;
    let rates = Rates {
        cpu: cpu.rates(workload),
        gpu: Some(GpuRates {
            table,
            // The rate of the ring of one GPU: the bus is about as fast in both directions.
            copy_bytes_per_s: table.probes_per_s / gpus as f64 * row_bytes,
        }),
    };
    let chosen = choose(&rates, workload);
    let mut by_time = timed.to_vec();
    by_time.sort_by(|one, other| one.join_s().total_cmp(&other.join_s()));
    let fastest = by_time.first().map_or(chosen, |it| it.strategy);
    session.report.note(&format!(
        "{name} on {names}: {} is chosen from the rates, {} was the fastest",
        name_of(chosen),
        name_of(fastest)
    ));
}

/// Measures the join on the CPU alone.
fn on_cpu(session: &mut Session, (name, join): Named<'_>) -> Result<()> {
    let threads = session.threads;
    let side = |side| Columns::generate(&join.workload, side, threads);
    let (build, probe) = (side(Side::Build)?, side(Side::Probe)?);
    let devices = format!("host:{threads}");
    let sides = (build.rows(), probe.rows());
    add(session, (Strategy::Cpu, &devices), (name, join), || {
        Ok(join_on_cpu(shape(join), sides, threads, &Stop::never())?)
    })?;
    Ok(())
}

fn shape(join: &Join) -> TableShape {
    TableShape::linear_probing(join.workload.width, join.workload.build_rows)
}

/// Runs a join as often as the options say, and reports it with the share of the probe rows that the CPU took.
/// Returns its times.
fn add(
    session: &mut Session,
    (strategy, devices): (Strategy, &str),
    (name, join): Named<'_>,
    mut once: impl FnMut() -> Result<CoProcessingReport>,
) -> Result<Timed> {
    let case = format!("{name}/{}", name_of(strategy));
    let mut runs = Vec::new();
    let timed = session.add((case.clone(), devices), join, || {
        let report = once()?;
        runs.push(report);
        Ok(Sample {
            allocation: strategy.has_cpu().then_some(report.allocate),
            times: Times::Table {
                build: report.build,
                probe: report.probe,
            },
            totals: report.totals,
        })
    })?;
    let runs = &runs[runs.len() - timed.len()..];
    let share = |run: &CoProcessingReport| run.cpu_rows as f64 / join.workload.probe_rows as f64;
    let shares: Vec<f64> = runs.iter().map(share).collect();
    let case = (case.as_str(), devices);
    session.report.add_apart(case, "cpu_share", &shares)?;
    let median_s = |time: &dyn Fn(&CoProcessingReport) -> Duration| {
        let times: Vec<f64> = runs.iter().map(|run| time(run).as_secs_f64()).collect();
        let summary = Summary::of(&times).context("no run was timed")?;
        anyhow::Ok(summary.median)
    };
    Ok(Timed {
        strategy,
        build_s: match strategy {
            Strategy::Cpu => median_s(&|run| run.allocate + run.build)?,
            _ => median_s(&|run| run.build)?,
        },
        probe_s: median_s(&|run| run.probe)?,
    })
}
