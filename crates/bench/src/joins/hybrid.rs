//! Joins whose table lies partly in host memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use forebay_device::Device;
use forebay_hash_index::{ProbeKeys, Side, Width, Workload};

use super::device::{all, generate, on_gpu, once};
use super::report::Sample;
use super::spilled::side_bytes;
use super::{Session, start_gpus};

/// Thousandths of the table that are on the device: all, less and less, none. 667 is a table of 1.5 times its share.
const SHARES: [u64; 6] = [1000, 900, 750, 667, 500, 0];
/// Device memory beside both sides and a bit for each slot.
const OTHER_BYTES: u64 = 256 << 20;

/// A metric, and the time of a sample that it is of.
type Part = (&'static str, fn(&Sample) -> Option<Duration>);

/// Returns the workload of a scale. At 1, a table by key takes 8 GiB, one with linear probing 32 GiB.
pub(super) fn workload(scale: f64) -> Workload {
    let scaled = |rows: u64| ((rows as f64 * scale) as u64).max(1 << 20);
    Workload {
        width: Width::Eight,
        build_rows: scaled(1 << 30),
        probe_rows: scaled(1 << 28),
        probe_keys: ProbeKeys::Uniform,
    }
}

/// Measures the joins with each table and share, both sides in device memory, and compares each with the model: the
/// time is that of a table on the device and that of one in host memory, by their shares.
pub(super) fn measure(session: &mut Session, workload: Workload) -> Result<()> {
    let join = session.answer(workload);
    // The chunks of the table are not part of the budget.
    let budget = side_bytes(&workload) + workload.build_rows / 8 + OTHER_BYTES;
    let devices = start_gpus("cuda:0", Some(budget))?;
    let gpu = devices.list().remove(0);
    let build = generate(&gpu, workload, all(&workload, Side::Build))?;
    let probe = generate(&gpu, workload, all(&workload, Side::Probe))?;
    for (table, shape) in session.shapes(&workload) {
        let slot_bytes = shape.slot_bytes();
        let memory = on_gpu(&gpu, move |cuda| {
            Ok(cuda.hybrid_memory(slot_bytes, slot_bytes)?)
        })?;
        let mut times = Vec::new();
        for share in SHARES {
            let (moved, bytes) = (memory.clone(), slot_bytes * share / 1000);
            let began = Instant::now();
            on_gpu(&gpu, move |cuda| Ok(moved.set_device_bytes(cuda, bytes)?))?;
            let moved = began.elapsed().as_secs_f64();
            let name = format!("join-hybrid/{}/{share}", table.name());
            let of_share = [("device_share", memory.device_share()), ("move_s", moved)];
            for (metric, value) in of_share {
                let case = (name.as_str(), gpu.name());
                session.report.add_apart(case, metric, &[value])?;
            }
            let samples = session.add((name.clone(), gpu.name()), &join, || {
                let sides = (build.clone(), probe.clone());
                once(&gpu, (shape, memory.all()), sides)
            })?;
            times.push((name, memory.device_share(), samples));
        }
        report_model(session, &gpu, &times)?;
    }
    Ok(())
}

/// Reports each rate as a fraction of the model's.
fn report_model(
    session: &mut Session,
    gpu: &Arc<Device>,
    cases: &[(String, f64, Vec<Sample>)],
) -> Result<()> {
    let of_part: [Part; 2] = [
        ("of_model", |sample| Some(sample.time())),
        ("probe_of_model", |sample| Some(sample.of_table()?.1)),
    ];
    for (metric, time) in of_part {
        let median = |samples: &[Sample]| {
            let mut times: Vec<_> = samples.iter().filter_map(time).collect();
            times.sort();
            times[times.len() / 2].as_secs_f64()
        };
        let (Some((_, _, all)), Some((_, _, none))) = (cases.first(), cases.last()) else {
            return Ok(());
        };
        let (on_device, in_host) = (median(all), median(none));
        for (name, share, samples) in &cases[1..cases.len() - 1] {
            let predicted = share * on_device + (1.0 - share) * in_host;
            let of_model = predicted / median(samples);
            let case = (name.as_str(), gpu.name());
            session.report.add_apart(case, metric, &[of_model])?;
        }
    }
    Ok(())
}
