//! Joins on the CPU, by all cores.

use std::time::Instant;

use anyhow::Result;
use forebay_device::AlignedBytes;
use forebay_hash_index::{HostIndex, HostRows, Side, Workload};

use super::report::Sample;
use super::{Join, Session, Table};

/// Both columns of a side in host memory.
pub(super) struct Columns {
    pub(super) keys: AlignedBytes,
    pub(super) payloads: AlignedBytes,
    /// Bytes of each column; the memory is rounded up to pages.
    pub(super) bytes: usize,
}

impl Columns {
    /// Generates a side by `threads` threads.
    pub(super) fn generate(workload: &Workload, side: Side, threads: usize) -> Columns {
        let bytes = (workload.rows(side) * workload.width.bytes()) as usize;
        let mut columns = Columns {
            keys: AlignedBytes::zeroed(bytes),
            payloads: AlignedBytes::zeroed(bytes),
            bytes,
        };
        let both = (&mut columns.keys[..bytes], &mut columns.payloads[..bytes]);
        workload.generate(side, both, threads);
        columns
    }

    fn rows(&self) -> HostRows<'_> {
        HostRows {
            keys: &self.keys[..self.bytes],
            payloads: &self.payloads[..self.bytes],
        }
    }
}

/// Measures the joins of a workload with each table.
pub(super) fn measure(session: &mut Session, join: &Join) -> Result<()> {
    let threads = session.threads;
    let sides = [Side::Build, Side::Probe];
    let [build, probe] = sides.map(|side| Columns::generate(&join.workload, side, threads));
    let devices = format!("host:{threads}");
    for table in session.tables.clone() {
        let name = format!("join-cpu/{}/{}", join.tuples.letter(), table.name());
        session.add((name, &devices), join, || {
            once(table, &join.workload, (&build, &probe), threads)
        })?;
    }
    Ok(())
}

fn once(
    table: Table,
    workload: &Workload,
    (build, probe): (&Columns, &Columns),
    threads: usize,
) -> Result<Sample> {
    let began = Instant::now();
    let index = HostIndex::new(table.shape(workload));
    let allocated = Instant::now();
    let index = index.build(build.rows(), threads)?;
    let built = Instant::now();
    let totals = index.probe(probe.rows(), threads);
    Ok(Sample {
        allocation: Some(allocated - began),
        build: built - allocated,
        probe: built.elapsed(),
        totals,
    })
}
