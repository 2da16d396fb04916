//! Joins of larger and larger sides in pinned host memory, as far as there is room: the subjects of figures 16 and 17
//! of Lutz et al. (SIGMOD 2020).

use std::slice;

use anyhow::Result;
use forebay_hash_index::{Side, Workload};
use forebay_movement::StagingRing;

use super::figures::{build_rows, uniform};
use super::pinned::{pin, through_ring};
use super::place::Place;
use super::spilled::{self, Spilled, host_room};
use super::{SMOKE_BYTES, Session, start_gpus};

/// Rows of the probe side for each row of the build side: 4 to 128 GiB at scale 1.
const RATIOS: [u64; 6] = [2, 8, 16, 32, 48, 64];
/// Rows of each side at scale 1 if both grow.
const SIDE_ROWS: [f64; 5] = [128e6, 256e6, 512e6, 1_024e6, 2_048e6];
/// Rows of each side in a smoke run if both grow.
const SMOKE_ROWS: u64 = 30_000;

/// Measures joins of larger and larger probe sides, which come through the ring. Kernels read the build side over the
/// bus; the table is in device memory.
///
/// # Errors
/// If a join gives a wrong answer, memory is too small, or the device is lost.
pub(super) fn measure_probe_sides(session: &mut Session, scale: f64) -> Result<()> {
    let build_rows = build_rows(session, scale);
    let workloads = RATIOS.map(|ratio| uniform(build_rows, ratio * build_rows));
    let has_room = |workload: &&Workload| {
        let case = case(workload.probe_rows);
        has_room(session, &case, spilled::side_bytes(workload))
    };
    let workloads: Vec<&Workload> = workloads.iter().filter(has_room).collect();
    let Some(&largest) = workloads.last() else {
        return Ok(());
    };
    let devices = start_gpus("cuda:0", session.is_smoke.then_some(SMOKE_BYTES))?;
    let gpu = devices.list().remove(0);
    let mut side = |side, of_side: &str| {
        let name = format!("figures/probe-scaling/{of_side}");
        pin(session, &gpu, (largest, side), &name)
    };
    let build = side(Side::Build, "build-side")?.rows();
    let probe = side(Side::Probe, "probe-side")?;
    let mut ring = StagingRing::lease(&gpu, session.ring)?;
    for workload in &workloads {
        let join = session.answer(**workload);
        // A row of the probe side does not depend on their number.
        let probe = probe.first(workload.probe_rows);
        for (table, shape) in session.shapes(workload) {
            let slots = Place::Device.slots(slice::from_ref(&gpu), shape)?;
            let case = format!("{}/{}", case(workload.probe_rows), table.name());
            session.add((case, gpu.name()), &join, || {
                through_ring(&gpu, (shape, slots.clone()), &build, (&mut ring, &probe))
            })?;
        }
    }
    Ok(())
}

/// Returns the first part of the names of cases with as many rows on the probe side.
fn case(probe_rows: u64) -> String {
    format!("figures/probe-scaling/{probe_rows}")
}

/// Measures joins of sides that both grow, in partitions and with hybrid tables.
///
/// # Errors
/// If a join gives a wrong answer, memory is too small, or the device is lost.
pub(super) fn measure_build_sides(
    session: &mut Session,
    scale: f64,
    spilled: &Spilled,
) -> Result<()> {
    let all = match session.is_smoke {
        true => vec![SMOKE_ROWS],
        false => SIDE_ROWS.map(|rows| (rows * scale) as u64).to_vec(),
    };
    for rows in all {
        let spilled = spilled.of_rows(rows, format!("figures/build-scaling/{rows}"));
        match spilled.host_bytes(session) {
            Ok(bytes) if !has_room(session, spilled.name(), bytes) => {}
            Ok(_) => spilled::measure(session, spilled)?,
            Err(error) => {
                let text = format!("{}: not measured: {error}", spilled.name());
                session.report.note(&text);
            }
        }
    }
    Ok(())
}

/// Returns whether the host has room for a case. If not, notes it.
fn has_room(session: &Session, case: &str, bytes: u64) -> bool {
    let room = host_room();
    if bytes > room {
        let gib = |bytes: u64| bytes as f64 / (1_u64 << 30) as f64;
        session.report.note(&format!(
            "{case}: not measured: it takes {:.1} GiB of host memory, and there are {:.1}",
            gib(bytes),
            gib(room)
        ));
    }
    bytes <= room
}
