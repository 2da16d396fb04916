//! Joins on the CPU, by all cores.

use std::time::Instant;

use anyhow::{Result, ensure};
use forebay_device::{AlignedBytes, available_host_bytes};
use forebay_hash_index::{HostIndex, HostPartitions, HostRows, Side, TableShape, Workload};

use super::report::{Sample, Times};
use super::{Join, Session, Table};

/// Both columns of a side in host memory.
pub(super) struct Columns {
    pub(super) keys: AlignedBytes,
    pub(super) payloads: AlignedBytes,
    /// Bytes of the keys; the memory is rounded up to pages.
    key_bytes: usize,
    /// Bytes of the payloads.
    bytes: usize,
}

impl Columns {
    /// Generates a side by `threads` threads.
    ///
    /// # Errors
    /// If the host has too little memory.
    pub(super) fn generate(workload: &Workload, side: Side, threads: usize) -> Result<Columns> {
        let (rows, width) = (workload.rows(side), workload.width);
        let (needed, available) = (rows * width.row_bytes(), available_host_bytes());
        ensure!(
            needed <= available,
            "a side of {rows} rows needs {needed} bytes of host memory; {available} bytes are available"
        );
        let key_bytes = (rows * width.key_bytes()) as usize;
        let bytes = (rows * width.payload_bytes()) as usize;
        let mut columns = Columns {
            keys: AlignedBytes::zeroed(key_bytes),
            payloads: AlignedBytes::zeroed(bytes),
            key_bytes,
            bytes,
        };
        let keys = &mut columns.keys[..key_bytes];
        let both = (keys, &mut columns.payloads[..bytes]);
        workload.generate(side, both, threads);
        Ok(columns)
    }

    pub(super) fn rows(&self) -> HostRows<'_> {
        HostRows {
            keys: &self.keys[..self.key_bytes],
            payloads: &self.payloads[..self.bytes],
        }
    }
}

/// Measures the joins of a workload with each table. The names of the cases begin with `name`.
pub(super) fn measure(session: &mut Session, join: &Join, name: &str) -> Result<()> {
    let threads = session.threads;
    let side = |side| Columns::generate(&join.workload, side, threads);
    let (build, probe) = (side(Side::Build)?, side(Side::Probe)?);
    let devices = format!("host:{threads}");
    let case = |table: Table| format!("{name}/{}", table.name());
    for (table, shape) in session.shapes(&join.workload) {
        session.add((case(table), &devices), join, || {
            once(shape, (&build, &probe), threads)
        })?;
    }
    if session.tables.contains(&Table::Partitioned) {
        session.add((case(Table::Partitioned), &devices), join, || {
            partitioned(&join.workload, (&build, &probe), threads)
        })?;
    }
    Ok(())
}

fn once(shape: TableShape, (build, probe): (&Columns, &Columns), threads: usize) -> Result<Sample> {
    let began = Instant::now();
    let index = HostIndex::new(shape);
    let allocated = Instant::now();
    let index = index.build(build.rows(), threads)?;
    let built = Instant::now();
    let totals = index.probe(probe.rows(), threads);
    Ok(Sample {
        allocation: Some(allocated - began),
        times: Times::Table {
            build: built - allocated,
            probe: built.elapsed(),
        },
        totals,
    })
}

/// Joins by partitions once. The time includes allocating their memory.
fn partitioned(
    workload: &Workload,
    (build, probe): (&Columns, &Columns),
    threads: usize,
) -> Result<Sample> {
    let began = Instant::now();
    let (width, bits) = (
        workload.width,
        HostPartitions::bits_for(workload.width, workload.build_rows),
    );
    let divide = |side: &Columns| HostPartitions::of(side.rows(), width, bits, threads);
    let (build, probe) = (divide(build), divide(probe));
    let divided = Instant::now();
    let totals = build.join(&probe, threads)?;
    Ok(Sample {
        allocation: None,
        times: Times::Partitions {
            divide: divided - began,
            join: divided.elapsed(),
        },
        totals,
    })
}
