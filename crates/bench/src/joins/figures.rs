//! Joins by the ratio and the sizes of both sides, by skew and by selectivity: the subjects of figures of Lutz et al.
//! (SIGMOD 2020, section 7), with both sides and the table in device memory; without a GPU, in host memory. Joins by
//! skew also have the table alone in host memory.

use std::slice;
use std::sync::Arc;

use anyhow::Result;
use forebay_device::Device;
use forebay_device::cuda::gpus;
use forebay_hash_index::{ProbeKeys, Width, Workload};

use super::place::Place;
use super::spilled::side_bytes;
use super::{Session, device, host, moved, start_gpus};

/// Rows of the build side at scale 1: those of workload A.
const BUILD_ROWS: u64 = 1 << 27;
/// Rows of the build side in a smoke run.
const SMOKE_ROWS: u64 = 1 << 10;
/// Minimum rows of the build side at any scale.
const BUILD_ROWS_MIN: u64 = 1 << 12;

/// Device memory beside that of both sides and the table: totals, and the slots of the ring.
const OTHER_BYTES: u64 = 512 << 20;

/// Rows of the probe side for each row of the build side.
const RATIOS: [u64; 5] = [1, 2, 4, 8, 16];
/// The ratio of the other figures but that by transfer method.
const USUAL_RATIO: u64 = 4;
/// The ratio of the figure by transfer method: that of workload A.
const TRANSFER_RATIO: u64 = 16;
/// Hundredths of the exponents of Zipf's distribution.
const EXPONENTS: [u32; 6] = [0, 50, 100, 125, 150, 175];
/// Thousandths of the rows of the probe side that have a match.
const SHARES: [u32; 5] = [0, 250, 500, 750, 1000];
/// How many times smaller the build side of the figure by the size of the probe side is: its table lies in the
/// caches.
const IN_CACHES: u64 = 512;
/// Divisors of twice the usual build side, for the figure by the size of the build side.
const PARTS: [u64; 6] = [1024, 256, 64, 16, 4, 1];

/// Measures all figures.
///
/// # Errors
/// If a join gives a wrong answer, memory is too small, or the device is lost.
pub(super) fn measure(session: &mut Session, scale: f64) -> Result<()> {
    let build_rows = build_rows(session, scale);
    let points = points(build_rows);
    if let Err(error) = gpus() {
        let text = format!("`figures`: the CPU joins, and no transfer method is measured: {error}");
        session.report.note(&text);
        for (name, workload) in points {
            let join = session.answer(workload);
            host::measure(session, &join, &name)?;
        }
        return Ok(());
    }
    // The rest of the card is left to unified memory. The join by transfer method is as large as the largest of these.
    let budget = device_bytes(session, points.iter().map(|(_, workload)| workload));
    let devices = start_gpus("cuda:0", Some(budget))?;
    let gpu = devices.list().remove(0);
    on_gpu(session, &gpu, points, Place::Device)?;
    let join = session.answer(uniform(build_rows, TRANSFER_RATIO * build_rows));
    moved::measure(session, &gpu, &join)
}

/// Measures the joins by skew, both sides in device memory and the table in host memory.
///
/// # Errors
/// If a join gives a wrong answer, memory is too small, or the device is lost.
pub(super) fn measure_skew_host(session: &mut Session, scale: f64) -> Result<()> {
    let build_rows = build_rows(session, scale);
    let points = by_skew("skew-host", uniform(build_rows, USUAL_RATIO * build_rows));
    let budget = device_bytes(session, points.iter().map(|(_, workload)| workload));
    let devices = start_gpus("cuda:0", Some(budget))?;
    on_gpu(session, &devices.list()[0], points, Place::Host)
}

/// Measures joins on a GPU, both sides in its memory, and the table in a memory.
fn on_gpu(
    session: &mut Session,
    gpu: &Arc<Device>,
    points: impl IntoIterator<Item = (String, Workload)>,
    table: Place,
) -> Result<()> {
    for (name, workload) in points {
        let join = session.answer(workload);
        device::measure(session, slice::from_ref(gpu), (&join, table), &name)?;
    }
    Ok(())
}

/// Returns the rows of the build side of workload A at a scale, which are fewer in a smoke run.
pub(super) fn build_rows(session: &Session, scale: f64) -> u64 {
    match session.is_smoke {
        true => SMOKE_ROWS,
        false => ((BUILD_ROWS as f64 * scale) as u64).max(BUILD_ROWS_MIN),
    }
}

/// Returns the device memory that the largest of some joins needs.
pub(super) fn device_bytes<'a>(
    session: &Session,
    workloads: impl Iterator<Item = &'a Workload>,
) -> u64 {
    let bytes = workloads.map(|workload| {
        let shapes = session.shapes(workload).into_iter();
        let table = shapes.map(|(_, shape)| shape.bytes()).max().unwrap_or(0);
        side_bytes(workload) + 2 * table
    });
    bytes.max().unwrap_or(0) + OTHER_BYTES
}

/// Returns a workload with the tuples of workload A in other numbers.
pub(super) fn uniform(build_rows: u64, probe_rows: u64) -> Workload {
    Workload {
        width: Width::Eight,
        build_rows,
        probe_rows,
        probe_keys: ProbeKeys::Uniform,
    }
}

/// Returns the first part of the names of cases, `figures/FIGURE/PLACE`, and the workload of each point.
fn points(build_rows: u64) -> Vec<(String, Workload)> {
    let usual = uniform(build_rows, USUAL_RATIO * build_rows);
    let by_ratio = RATIOS.map(|ratio| {
        let workload = uniform(build_rows, ratio * build_rows);
        (format!("figures/ratio/1:{ratio}"), workload)
    });
    let by_share = SHARES.map(|thousandths| {
        let probe_keys = ProbeKeys::Matching { thousandths };
        let share = f64::from(thousandths) / 1000.0;
        let workload = Workload {
            probe_keys,
            ..usual
        };
        (format!("figures/selectivity/{share}"), workload)
    });
    let by_probe_rows = RATIOS.map(|ratio| {
        let workload = uniform((build_rows / IN_CACHES).max(1), ratio * build_rows);
        let name = format!("figures/probe-rows/{}", workload.probe_rows);
        (name, workload)
    });
    let by_build_rows = PARTS.map(|part| {
        let workload = uniform((2 * build_rows / part).max(1), usual.probe_rows);
        let name = format!("figures/build-rows/{}", workload.build_rows);
        (name, workload)
    });
    let by_skew = by_skew("skew", usual);
    let points = by_ratio.into_iter().chain(by_skew).chain(by_share);
    points.chain(by_probe_rows).chain(by_build_rows).collect()
}

/// Returns the points of a figure by skew.
fn by_skew(figure: &str, usual: Workload) -> [(String, Workload); EXPONENTS.len()] {
    EXPONENTS.map(|hundredths| {
        let probe_keys = ProbeKeys::Zipf { hundredths };
        let exponent = f64::from(hundredths) / 100.0;
        let workload = Workload {
            probe_keys,
            ..usual
        };
        (format!("figures/{figure}/{exponent}"), workload)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn points_have_distinct_names_and_rows_at_every_size() {
        for build_rows in [SMOKE_ROWS, BUILD_ROWS_MIN, 5_000, BUILD_ROWS] {
            let points = points(build_rows);
            let names: BTreeSet<&str> = points.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names.len(), points.len(), "{names:?}");
            for (name, workload) in &points {
                let rows = [workload.build_rows, workload.probe_rows];
                assert!(rows.iter().all(|rows| *rows > 0), "{name}: {rows:?}");
            }
        }
        let largest = points(BUILD_ROWS).into_iter().map(|(_, it)| it.probe_rows);
        assert_eq!(largest.max(), Some(1 << 31), "as workload A");
    }
}
