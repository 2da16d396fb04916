//! The tables of a run.

use clap::ValueEnum;
use forebay_hash_index::{TableShape, Workload};

/// The layouts of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Table {
    /// An array by key.
    Perfect,
    /// Linear probing, half of the slots empty or more.
    LinearProbing,
    /// Buckets of 64 bytes, a third of the slots empty or more.
    Bucketed,
    /// Both sides in partitions: on the CPU, whose caches their tables fit in, and in the sections `spilled`, `gpus`
    /// and `build-scaling`.
    Partitioned,
}

/// All tables.
pub(super) const TABLES: [Table; 4] = [
    Table::Perfect,
    Table::LinearProbing,
    Table::Bucketed,
    Table::Partitioned,
];

/// The tables of which there is one for the whole build side.
pub(super) const WHOLE_TABLES: [Table; 3] = [Table::Perfect, Table::LinearProbing, Table::Bucketed];

/// The tables that can have composite keys.
pub(super) const COMPOSITE_TABLES: [Table; 2] = [Table::LinearProbing, Table::Partitioned];

impl Table {
    /// Returns the name in cases.
    pub(super) fn name(self) -> &'static str {
        match self {
            Table::Perfect => "perfect",
            Table::LinearProbing => "linear-probing",
            Table::Bucketed => "bucketed",
            Table::Partitioned => "partitioned",
        }
    }

    /// Returns whether the table can have the keys of a workload: composite ones need linear probing or partitions.
    pub(super) fn supports(self, workload: &Workload) -> bool {
        workload.width.is_single() || COMPOSITE_TABLES.contains(&self)
    }

    /// Returns the shape of a table for the build side of a workload; `None` if it does not support the workload, or
    /// there is one for each partition.
    pub(super) fn shape(self, workload: &Workload) -> Option<TableShape> {
        let (width, rows) = (workload.width, workload.build_rows);
        if !self.supports(workload) {
            return None;
        }
        Some(match self {
            Table::Perfect => TableShape::perfect(width, 0..rows),
            Table::LinearProbing => TableShape::linear_probing(width, rows),
            Table::Bucketed => TableShape::bucketed(width, rows),
            Table::Partitioned => return None,
        })
    }
}
