//! Joins of sides that lie in the memory of several GPUs, beside the same joins on one.

use std::sync::Arc;

use anyhow::Result;
use forebay_cancel::Stop;
use forebay_device::Device;
use forebay_hash_index::{DeviceRows, InterleavedRows, JoinTotals, Side, TableShape, Workload};
use forebay_joins::{GpuSides, InterleavedJoin, TableReport, join_in_partitions, join_replicated};

use super::device::generate;
use super::report::{Sample, Times};
use super::size::Tuples;
use super::{Join, Named, SMOKE_BYTES, Session, Table, start_gpus};

/// Measures the joins of workloads on the first GPU and on all, of which each has as many rows of both sides.
pub(super) fn measure(session: &mut Session, workloads: &[(Tuples, Workload)]) -> Result<()> {
    let devices = start_gpus("cuda", session.is_smoke.then_some(SMOKE_BYTES))?;
    let all = devices.list();
    for (tuples, workload) in workloads {
        let join = session.join(*tuples, *workload);
        let name = format!("join-{}-gpus", tuples.name());
        let one = on_gpus(session, (&name, &join), &all[..1])?;
        if all.len() == 1 {
            continue;
        }
        for (name, devices, rate) in on_gpus(session, (&name, &join), &all)? {
            // One GPU has one way to use a table.
            let of_one = one.iter().find(|(of_one, ..)| name.starts_with(of_one));
            if let Some((.., of_one)) = of_one {
                let case = (name.as_str(), devices.as_str());
                let times = rate / of_one;
                session.report.add_apart(case, "times_one", &[times])?;
            }
        }
    }
    Ok(())
}

/// Measures the join on some GPUs. Returns case, devices and median rate of each method.
fn on_gpus(
    session: &mut Session,
    (name, join): Named<'_>,
    gpus: &[Arc<Device>],
) -> Result<Vec<(String, String, f64)>> {
    let count = gpus.len();
    let names: Vec<&str> = gpus.iter().map(|it| it.name()).collect();
    let names = names.join("+");
    let sides = GpuSides {
        build: spread(gpus, join.workload, Side::Build)?,
        probe: spread(gpus, join.workload, Side::Probe)?,
    };
    let name = |method: &str| format!("{name}/{method}");
    let mut rates = Vec::new();
    let width = join.workload.width;
    if session.tables.contains(&Table::LinearProbing) {
        let once = || {
            let report = join_replicated(gpus, width, &sides, &Stop::never())?;
            Ok(of_table(report))
        };
        rates.push(add(session, join, (name("replicated"), &names), once)?);
    }
    if !are_peers(gpus) {
        let text = format!("{names}: without peer access, only `replicated` is measured");
        session.report.note(&text);
        return Ok(rates);
    }
    if session.tables.contains(&Table::Partitioned) {
        let once = || {
            let report = join_in_partitions(gpus, width, &sides, &Stop::never())?;
            let times = Times::Partitions {
                divide: report.divide,
                join: report.join,
            };
            Ok((times, report.totals))
        };
        rates.push(add(session, join, (name("partitioned"), &names), once)?);
    }
    if session.tables.contains(&Table::LinearProbing) {
        let shape = TableShape::linear_probing(width, join.workload.build_rows);
        let ways: &[_] = match count.is_power_of_two() && count > 1 {
            true => &[
                ("interleaved", InterleavedRows::All),
                ("interleaved-own", InterleavedRows::Own),
            ],
            false => &[("interleaved", InterleavedRows::All)],
        };
        for (method, rows) in ways {
            let mut table = InterleavedJoin::new(gpus, shape, *rows)?;
            let once = || Ok(of_table(table.run(&sides, &Stop::never())?));
            rates.push(add(session, join, (name(method), &names), once)?);
        }
    }
    Ok(rates)
}

/// Generates a side, of which each GPU has as many rows.
fn spread(gpus: &[Arc<Device>], workload: Workload, side: Side) -> Result<Vec<DeviceRows>> {
    let (rows, count) = (workload.rows(side), gpus.len() as u64);
    let of_gpu = |(gpu, device): (u64, &Arc<Device>)| {
        let rows = rows * gpu / count..rows * (gpu + 1) / count;
        generate(device, workload, (side, rows))
    };
    (0..).zip(gpus).map(of_gpu).collect()
}

/// Returns whether each GPU reaches all others.
fn are_peers(gpus: &[Arc<Device>]) -> bool {
    let reaches_all = |one: &Arc<Device>| {
        let mut others = gpus.iter().filter(|it| it.id() != one.id());
        others.all(|it| one.reaches(it))
    };
    gpus.iter().all(reaches_all)
}

/// Returns the times and the matches of a join with tables that have the rows of all GPUs.
fn of_table(report: TableReport) -> (Times, JoinTotals) {
    let (build, probe) = (report.build, report.probe);
    (Times::Table { build, probe }, report.totals)
}

/// Runs a join as often as the options say, and reports it. Returns its case, its devices and its median rate.
fn add(
    session: &mut Session,
    join: &Join,
    (name, devices): (String, &str),
    mut once: impl FnMut() -> Result<(Times, JoinTotals)>,
) -> Result<(String, String, f64)> {
    let samples = session.add((name.clone(), devices), join, || {
        let (times, totals) = once()?;
        Ok(Sample {
            allocation: None,
            times,
            totals,
        })
    })?;
    let mut times: Vec<_> = samples.iter().map(Sample::time).collect();
    times.sort();
    let rate = 1.0 / times[times.len() / 2].as_secs_f64();
    Ok((name, devices.to_owned(), rate))
}
