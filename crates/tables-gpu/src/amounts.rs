//! The work of a plan on the CPU, and of a fragment on a device, as far as it is known before they run.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::pruning::PrunableStatistics;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::physical_optimizer::pruning::PruningPredicateBuilder;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{CrossJoinExec, NestedLoopJoinExec};
use forebay_tables::VersionedScan;

use crate::alternatives::AlternativesExec;
use crate::column::Bytes;
use crate::columns::{Columns, Read, State};
use crate::declared::file_scan;
use crate::file_key::{FileKey, files};
use crate::operator::GpuFragmentExec;
use crate::origin::Origin;

/// Number of kinds of work of the CPU: a run, its tables, and the values that it reads of these.
pub(crate) const CPU_KINDS: usize = 3;
/// The same of a device: a run, its tables, the bytes that kernels read in its memory, in memory of the host and on the
/// disk, and the rows that come back.
pub(crate) const GPU_KINDS: usize = 6;
/// Indexes of kinds of a device.
pub(crate) const HOST: usize = 3;
pub(crate) const DISK: usize = 4;

/// Assumed bytes of a value: in a file without statistics, and in memory of a device before it is there.
const VALUE_BYTES: u64 = 4;

type Files = Vec<(FileKey, PartitionedFile)>;

impl Columns {
    /// Returns the work of a device. Columns that are not there count as if they were: the CPU answers while they are
    /// loaded, and later queries find them. How many rows come back is not known before.
    pub(crate) fn amounts(&self, reads: Vec<Read>) -> [u64; GPU_KINDS] {
        let tables = reads.len() as u64;
        // Files tell their numbers of rows, which may be any.
        let (mut bytes, mut assumed) = (Bytes::default(), 0_u64);
        for (source, files) in reads {
            for (file, rows) in counted(&source.origin, files) {
                let keys = source.columns.iter();
                let keys = keys.map(|column| Columns::key(&file, &source, *column));
                let keys: Vec<_> = keys.collect();
                // Other queries wait meanwhile, and the files may be many.
                let known = self.known.lock();
                for key in &keys {
                    match known.columns.get(key).map(|it| &it.state) {
                        Some(State::Here(column)) => bytes += column.bytes,
                        _ => assumed = assumed.saturating_add(rows.saturating_mul(VALUE_BYTES)),
                    }
                }
            }
        }
        let on_device = bytes.device.saturating_add(assumed);
        [1, tables, on_device, bytes.host, bytes.disk, 0]
    }
}

/// Returns those of the files with rows that may meet the conditions of a scan, or the version of a table, and their
/// numbers of rows.
fn counted(origin: &Origin, files: Files) -> Vec<(FileKey, u64)> {
    match origin {
        Origin::Files(scan) => counted_files(scan, files),
        Origin::Table(table) => {
            let rows = rows_in(table.version().bytes, &table.schema());
            files.into_iter().map(|(key, _)| (key, rows)).collect()
        }
        Origin::Plan(..) => Vec::new(),
    }
}

/// Returns the assumed number of rows in this many bytes.
fn rows_in(bytes: u64, schema: &SchemaRef) -> u64 {
    bytes / (VALUE_BYTES * schema.fields().len().max(1) as u64)
}

fn counted_files(scan: &FileScanConfig, mut found: Files) -> Vec<(FileKey, u64)> {
    let schema = scan.file_source.table_schema().table_schema();
    let statistics = found.iter().map(|(_, file)| file.statistics.clone());
    // A single file is not pruned: it is read, or the query takes little time on both.
    if found.len() > 1
        && let Some(statistics) = statistics.collect::<Option<Vec<_>>>()
        && let Some(filter) = scan.file_source.filter()
        && let Some(predicate) = PruningPredicateBuilder::new()
            .with_file_schema(Arc::clone(schema))
            .build(filter)
        && let Ok(kept) = predicate.prune(&PrunableStatistics::new(statistics, Arc::clone(schema)))
    {
        let mut kept = kept.into_iter();
        found.retain(|_| kept.next().unwrap_or(true));
    }
    let found = found.into_iter().map(|(key, file)| {
        let statistics = file.statistics.as_ref();
        let rows = statistics.and_then(|it| it.num_rows.get_value());
        let assumed = rows_in(file.object_meta.size, schema);
        (key, rows.map_or(assumed, |rows| *rows as u64))
    });
    found.collect()
}

/// What the CPU reads for a plan.
#[derive(Debug, Default)]
pub(crate) struct Scans {
    tables: u64,
    /// Number of values; the largest if it is not known.
    pub(crate) values: u64,
    /// Number of rows of the largest table, or of the pairs of a join of all pairs.
    rows: u64,
    /// Whether a device computes a part of the plan.
    pub(crate) has_fragment: bool,
}

impl Scans {
    pub(crate) fn of(plan: &Arc<dyn ExecutionPlan>) -> Scans {
        if let Some(scan) = file_scan(plan) {
            let columns = scan.projected_schema().map_or(1, |it| it.fields().len());
            // A scan of parts of files is one of unknown length.
            let rows = files(scan).map_or(u64::MAX, |files| {
                let rows = counted_files(scan, files).into_iter().map(|(_, rows)| rows);
                rows.fold(0, u64::saturating_add)
            });
            return Scans {
                tables: 1,
                values: rows.saturating_mul(columns.max(1) as u64),
                rows,
                has_fragment: false,
            };
        }
        if let Some(scan) = plan.downcast_ref::<VersionedScan>() {
            // The CPU reads whole documents, whatever the columns are.
            let bytes = scan.table().version().bytes;
            return Scans {
                tables: 1,
                values: bytes / VALUE_BYTES,
                rows: rows_in(bytes, &scan.table().schema()),
                has_fragment: false,
            };
        }
        let is_fragment = plan.is::<GpuFragmentExec>() || plan.is::<AlternativesExec>();
        let are_pairs = plan.is::<NestedLoopJoinExec>() || plan.is::<CrossJoinExec>();
        // The first input of a fragment is the plan of the CPU. Those behind read the same tables.
        let inputs = if is_fragment { 1 } else { usize::MAX };
        let mut all = Scans {
            has_fragment: is_fragment,
            ..Scans::default()
        };
        for input in plan.children().into_iter().take(inputs) {
            let of_input = Scans::of(input);
            all.tables += of_input.tables;
            all.values = all.values.saturating_add(of_input.values);
            all.has_fragment |= of_input.has_fragment;
            all.rows = match are_pairs {
                true => all.rows.max(1).saturating_mul(of_input.rows.max(1)),
                false => all.rows.max(of_input.rows),
            };
        }
        if are_pairs {
            all.values = all.values.saturating_add(all.rows);
        }
        all
    }

    pub(crate) fn amounts(&self) -> [u64; CPU_KINDS] {
        [1, self.tables, self.values]
    }
}
