//! The CPU's part of a join: all threads insert and probe morsels of rows.

use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use forebay_device::Device;
use forebay_device::cuda::Part;
use forebay_hash_index::{CopyInFlight, HostBuilder, HostRows, JoinTotals, TableShape};

use crate::JoinError;
use crate::crew::{Crew, Morsels};
use crate::join::{Spill, check_host_memory};

/// Rows that a thread takes at once: about 2 ms of probes, so that all processors end at nearly the same time.
pub(super) const MORSEL_ROWS: u64 = 1 << 15;

/// The table that the CPU probes.
pub(super) enum CpuTable {
    /// Its own, which it allocates.
    Own,
    /// A copy of the table of this device. The copy in flight arrives when that table is complete.
    Copied(Arc<Device>, Receiver<CopyInFlight<Spill>>),
}

/// What the CPU did.
#[derive(Debug, Default)]
pub(super) struct CpuPart {
    /// Its matches.
    pub(super) totals: JoinTotals,
    /// Number of rows that it probed with.
    pub(super) rows: u64,
    /// The time in which its own table was allocated.
    pub(super) allocate: Duration,
    /// Its own table. The caller frees it when it knows the time of the join.
    pub(super) table: Option<Box<dyn Any>>,
    /// The memory of the copied table.
    pub(super) memory: Option<Part<Spill>>,
}

/// The CPU as a processor of a join.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cpu<'a> {
    pub(super) crew: &'a Crew<'a>,
    pub(super) threads: usize,
    pub(super) shape: TableShape,
    /// The side from which it builds a table of its own.
    pub(super) build: HostRows<'a>,
    pub(super) probe: HostRows<'a>,
    /// The rows of the probe side that are left.
    pub(super) left: &'a Morsels,
}

impl Cpu<'_> {
    /// Builds a table or waits for a copy, and probes it with the rows that it takes.
    ///
    /// # Errors
    /// If host memory is too small, a row cannot be inserted, or the device of the copied table is lost. Errors of
    /// threads go to the crew.
    pub(super) fn work(&self, table: CpuTable) -> Result<CpuPart, JoinError> {
        match table {
            CpuTable::Own => self.with_own_table(),
            CpuTable::Copied(device, copies) => {
                // There is no copy if no probe rows are left or the GPU has failed. The crew knows the GPU's error.
                let Ok(copy) = copies.recv() else {
                    return Ok(CpuPart::default());
                };
                let table = copy.finish();
                let table = table.map_err(|fault| JoinError::lost(&device, &fault))?;
                let part = self.probe(|rows| table.probe_here(rows));
                Ok(CpuPart {
                    memory: Some(table.into_memory()),
                    ..part
                })
            }
        }
    }

    /// Allocates and builds a table, and probes it.
    fn with_own_table(&self) -> Result<CpuPart, JoinError> {
        check_host_memory(self.shape.bytes())?;
        let began = Instant::now();
        let builder = HostBuilder::new(self.shape, self.threads);
        let allocate = began.elapsed();
        self.insert(&builder);
        // Some build rows may not be inserted if no probe rows are left.
        if !self.crew.may_continue() || self.left.is_empty() {
            return Ok(CpuPart {
                allocate,
                table: Some(Box::new(builder)),
                ..CpuPart::default()
            });
        }
        let index = builder.finish().map_err(JoinError::Index)?;
        self.crew.mark_built();
        let part = self.probe(|rows| index.probe_here(rows));
        Ok(CpuPart {
            allocate,
            table: Some(Box::new(index)),
            ..part
        })
    }

    /// Inserts all rows of the build side. Ends earlier if other processors take the last rows of the probe side.
    fn insert(&self, builder: &HostBuilder) {
        let width = self.shape.width();
        let to_insert = Morsels::new(self.build.count(width));
        self.crew.on_threads(self.threads, || {
            while self.crew.may_continue() && !self.left.is_empty() {
                let Some(rows) = to_insert.take(MORSEL_ROWS) else {
                    break;
                };
                let rows = self.build.part(width, rows);
                builder.insert(rows).map_err(JoinError::Index)?;
            }
            Ok(())
        });
    }

    /// Probes a table until no rows are left.
    fn probe(&self, table: impl Fn(HostRows<'_>) -> JoinTotals + Sync) -> CpuPart {
        let width = self.shape.width();
        let parts = self.crew.on_threads(self.threads, || {
            let (mut totals, mut count) = (JoinTotals::default(), 0);
            while self.crew.may_continue() {
                let Some(rows) = self.left.take(MORSEL_ROWS) else {
                    break;
                };
                count += rows.end - rows.start;
                totals.add(table(self.probe.part(width, rows)));
            }
            Ok((totals, count))
        });
        let mut all = CpuPart::default();
        for (totals, rows) in parts {
            all.totals.add(totals);
            all.rows += rows;
        }
        all
    }
}
