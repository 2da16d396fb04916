//! Joins by the locality of both sides and of the table: the subjects of figures 13 and 14 of Lutz et al. (SIGMOD
//! 2020).

use std::sync::Arc;

use anyhow::Result;
use forebay_device::Device;
use forebay_hash_index::Workload;

use super::device::with_tables;
use super::figures::device_bytes;
use super::place::Place;
use super::size::Tuples;
use super::{SMOKE_BYTES, Session, start_gpus};

/// Places of both sides, and the places of the table that they are joined with.
const PLACES: [(Place, &[Place]); 3] = [
    (Place::Device, &[Place::Device]),
    (Place::Host, &[Place::Device, Place::Host, Place::OtherGpu]),
    (Place::OtherGpu, &[Place::Device]),
];

/// Measures the joins of workloads with both sides and the table in all places.
///
/// # Errors
/// If a join gives a wrong answer, memory is too small, or a device is lost.
pub(super) fn measure(session: &mut Session, workloads: &[(Tuples, Workload)]) -> Result<()> {
    let budget = match session.is_smoke {
        true => SMOKE_BYTES,
        false => device_bytes(session, workloads.iter().map(|(_, workload)| workload)),
    };
    let devices = start_gpus("cuda", Some(budget))?;
    let gpus = devices.list();
    let has_other = has_other(&gpus);
    if !has_other {
        let text = "`locality`: nothing is measured in the memory of another GPU: there is none that the first GPU \
                    reaches and changes by atomic operations";
        session.report.note(text);
    }
    let has = |place: Place| has_other || place != Place::OtherGpu;
    for (tuples, workload) in workloads {
        let join = session.join(*tuples, *workload);
        for (place, tables) in PLACES.into_iter().filter(|(place, _)| has(*place)) {
            let name = format!("join-{}-locality/{}", tuples.name(), place.name());
            let sides = place.sides(session, &gpus, &join, &name)?;
            for table in tables.iter().filter(|table| has(**table)) {
                let name = format!("{name}/{}", table.name());
                with_tables(session, &gpus, (&join, &sides, *table), &name)?;
            }
        }
    }
    Ok(())
}

/// Returns whether kernels of the first GPU read the memory of the second one, and change it by atomic operations.
fn has_other(gpus: &[Arc<Device>]) -> bool {
    let [own, other, ..] = gpus else {
        return false;
    };
    own.reaches(other) && own.has_atomics_on(other)
}
