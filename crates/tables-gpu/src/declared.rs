//! Declared tables: their columns are brought here without a query, and stay.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use datafusion::datasource::listing::{ListingTableUrl, PartitionedFile};
use datafusion::datasource::physical_plan::{FileScanConfig, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use forebay_tables::TableName;

use crate::columns::{ColumnKey, Columns, FileKey, Known, Read, State, files};
use crate::fragment::Source;
use crate::load::load;
use crate::packed::is_packable;
use crate::placement::USES_LATELY;
use crate::reason::Reason;

/// Number of columns that are read at once. Queries that bring columns here wait for these alone.
const COLUMNS_AT_ONCE: usize = 4;
/// Time after which a declared column that found no room, or gave way, is tried again.
const RETRY: Duration = Duration::from_secs(300);

/// The columns of declared tables, and the files that are left to the CPU.
#[derive(Debug, Default)]
pub(crate) struct Declared {
    tables: HashMap<TableName, HashSet<ColumnKey>>,
    left_to_cpu: Vec<ListingTableUrl>,
}

impl Declared {
    pub(crate) fn has(&self, key: &ColumnKey) -> bool {
        self.tables.values().any(|columns| columns.contains(key))
    }

    fn are_left_to_cpu(&self, key: &ColumnKey) -> bool {
        self.left_to_cpu.iter().any(|url| key.file.is_of(url))
    }
}

impl Known {
    /// Notes the columns of a declared table, and forgets those of files that it does not have any more.
    pub(crate) fn declare(&mut self, table: &TableName, columns: HashSet<ColumnKey>) {
        let files: HashSet<FileKey> = columns.iter().map(|it| it.file.clone()).collect();
        let before = self.declared.tables.insert(table.clone(), columns);
        for key in before.into_iter().flatten() {
            if !files.contains(&key.file) && !self.declared.has(&key) {
                self.columns.remove(&key);
            }
        }
    }

    /// Returns whether a column is neither here nor refused, and was not without room lately.
    pub(crate) fn is_missing(&self, key: &ColumnKey) -> bool {
        let Some(entry) = self.columns.get(key) else {
            return true;
        };
        match &entry.state {
            State::Away(..0) => entry.used_at.elapsed() >= RETRY,
            State::Away(_) => true,
            State::Here(_) | State::Refused(_) => false,
        }
    }
}

impl Columns {
    /// Brings columns of a declared table here: those of these names, or all that can be packed. Those without room
    /// wait for the next call after a while.
    ///
    /// # Errors
    /// If the plan is no scan of whole Parquet files.
    pub(crate) async fn bring(
        self: &Arc<Self>,
        table: &TableName,
        names: Option<&[String]>,
        scan: &Arc<dyn ExecutionPlan>,
        context: &Arc<TaskContext>,
    ) -> Result<(), Reason> {
        let Some(scan) = file_scan(scan) else {
            // A table without files, or of other files than before.
            self.known.lock().declare(table, HashSet::new());
            return Ok(());
        };
        let wanted = wanted(scan, names);
        let found = files(scan)?;
        let source = Source::of_files(Arc::new(scan.clone()), wanted);
        let keys = found.iter().flat_map(|(file, _)| {
            let columns = source.columns.iter();
            columns.map(|column| Columns::key(file, &source, *column))
        });
        self.known.lock().declare(table, keys.collect());
        for file in found {
            for columns in source.columns.chunks(COLUMNS_AT_ONCE) {
                let part = (source.with_columns(columns.to_vec()), vec![file.clone()]);
                self.bring_part(part, context).await;
            }
        }
        Ok(())
    }

    /// Brings columns of a file here.
    async fn bring_part(
        self: &Arc<Self>,
        (source, files): (Source, Vec<(FileKey, PartitionedFile)>),
        context: &Arc<TaskContext>,
    ) {
        // Each round brings or refuses a column, or finds no room for all.
        for _ in 0..=source.columns.len() {
            let missing = {
                let known = self.known.lock();
                let missing = source.columns.iter().copied();
                let is_missing =
                    |column: &usize| known.is_missing(&Columns::key(&files[0].0, &source, *column));
                missing.filter(is_missing).collect::<Vec<_>>()
            };
            if missing.is_empty() {
                return;
            }
            let loading = Arc::clone(&self.loading).lock_owned().await;
            let read: Read = (Arc::new(source.with_columns(missing)), files.clone());
            // All columns of other tables give way.
            let began = self.now() + USES_LATELY;
            let with = (Arc::clone(context), began);
            if let Err(reason) = load(Arc::clone(self), vec![read], with, loading).await {
                tracing::debug!(%reason, "declared columns are not brought to the GPU");
            }
        }
    }

    /// Returns whether all columns of a declared table are here that have room and are not refused.
    pub(crate) fn is_declared_here(&self, table: &TableName) -> bool {
        let known = self.known.lock();
        let columns = known.declared.tables.get(table);
        columns.is_some_and(|columns| !columns.iter().any(|key| known.is_missing(key)))
    }

    #[cfg(test)]
    pub(crate) fn is_declared(&self, table: &TableName) -> bool {
        self.known.lock().declared.tables.contains_key(table)
    }

    /// Forgets which tables are declared, but for these. Their columns are as others then.
    pub(crate) fn retain_declared(&self, tables: &BTreeSet<TableName>) {
        let mut known = self.known.lock();
        known
            .declared
            .tables
            .retain(|table, _| tables.contains(table));
    }

    /// Leaves files to the CPU, and forgets their columns.
    pub(crate) fn leave_to_cpu(&self, files: Vec<ListingTableUrl>) {
        let mut known = self.known.lock();
        if known.declared.left_to_cpu == files {
            return;
        }
        let Known {
            columns, declared, ..
        } = &mut *known;
        declared.left_to_cpu = files;
        columns.retain(|key, _| !declared.are_left_to_cpu(key));
    }

    /// Returns whether one of the files is left to the CPU.
    pub(crate) fn are_left_to_cpu(&self, reads: &[Read]) -> bool {
        let known = self.known.lock();
        let urls = &known.declared.left_to_cpu;
        let mut files = reads.iter().flat_map(|(_, files)| files);
        !urls.is_empty() && files.any(|(file, _)| urls.iter().any(|url| file.is_of(url)))
    }

    /// Returns whether all columns of sources are declared.
    pub(crate) fn are_declared(&self, reads: &[Read]) -> bool {
        let known = self.known.lock();
        reads.iter().all(|(source, files)| {
            files.iter().all(|(file, _)| {
                let mut columns = source.columns.iter();
                columns.all(|column| known.declared.has(&Columns::key(file, source, *column)))
            })
        })
    }
}

/// Returns the scan of Parquet files that a plan is.
fn file_scan(plan: &Arc<dyn ExecutionPlan>) -> Option<&FileScanConfig> {
    let scan = plan.downcast_ref::<DataSourceExec>()?;
    let scan = scan.data_source().downcast_ref::<FileScanConfig>()?;
    scan.file_source.is::<ParquetSource>().then_some(scan)
}

/// Returns the indexes of columns of files: of those with these names, or of all that can be packed.
fn wanted(scan: &FileScanConfig, names: Option<&[String]>) -> Vec<usize> {
    let schema = scan.file_source.table_schema().file_schema();
    let fields = schema.fields().iter().enumerate();
    let wanted = fields.filter(|(_, field)| {
        let is_named = names.is_none_or(|names| names.contains(field.name()));
        is_named && is_packable(field.data_type())
    });
    wanted.map(|(index, _)| index).collect()
}
