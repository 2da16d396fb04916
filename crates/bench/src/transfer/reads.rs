//! Reads of every memory: figure 3 of Lutz et al.

use std::sync::Arc;

use anyhow::{Context, Result};
use forebay_device::Device;
use forebay_movement::MoveError;
use forebay_movement::measure::{Pattern, Reading, read_by_cpu, read_by_device, read_peer};

use super::Session;

/// Measures reads of host memory by all cores.
pub(super) fn by_cpu(session: &mut Session) -> Result<()> {
    let readings = read_by_cpu(session.plan);
    add(session, "cpu-host-memory", "host", readings)
}

/// Measures reads of the first GPU's memory, of host memory and of the other GPUs' memory, by the first GPU.
pub(super) fn by_gpu(session: &mut Session) -> Result<()> {
    let gpu = first(session)?;
    for (memory, of_host) in [("device-memory", false), ("host-memory", true)] {
        let readings = read_by_device(&gpu, of_host, session.plan)?;
        add(session, memory, gpu.name(), readings)?;
    }
    for peer in session.gpus.clone().iter().skip(1) {
        let devices = format!("{},{}", gpu.name(), peer.name());
        match read_peer(&gpu, peer, session.plan)? {
            Some(readings) => add(session, "peer-memory", &devices, readings)?,
            None => session.report.note(&format!(
                "peer-memory: {} cannot access the memory of {} (no peer access)",
                gpu.name(),
                peer.name()
            )),
        }
    }
    Ok(())
}

/// Returns the GPU that is measured.
pub(super) fn first(session: &Session) -> Result<Arc<Device>> {
    session.gpus.first().cloned().context("there is no GPU")
}

/// Reports the readings of one memory, each as soon as it is measured.
fn add(
    session: &mut Session,
    memory: &str,
    devices: &str,
    readings: impl Iterator<Item = Result<Reading, MoveError>>,
) -> Result<()> {
    for reading in readings {
        let reading = reading?;
        let case = format!("read/{memory}/{}", reading.pattern);
        let giga = |rates: Vec<f64>| rates.into_iter().map(|rate| rate / 1e9).collect::<Vec<_>>();
        let (metric, samples) = match reading.pattern {
            Pattern::Sequential | Pattern::SequentialBulk => {
                ("gb_per_s", giga(reading.bytes_per_s()))
            }
            Pattern::Random { .. } => ("giga_reads_per_s", giga(reading.accesses_per_s())),
            Pattern::Dependent => ("latency_ns", reading.access_ns()),
        };
        session.report.add(case, devices, metric, &samples)?;
    }
    Ok(())
}
