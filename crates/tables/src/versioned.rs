//! Versioned tables: those without files, such as collections of documents, whose columns GPUs keep by version.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Statistics;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, StatisticsArgs,
};
use futures_util::future::BoxFuture;

use crate::error::SqlError;

/// An error about a value of one column. Scans of other columns do not fail because of it.
#[derive(Debug)]
pub struct ColumnError {
    /// Name of the column.
    pub column: String,
    /// What clients are told.
    pub error: SqlError,
}

impl std::error::Error for ColumnError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl fmt::Display for ColumnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

/// A version of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableVersion {
    /// Name of the table, with those of its source and schema.
    pub name: String,
    /// Tells the table from others that had the same name.
    pub id: String,
    /// Number of the version, larger than those of earlier versions.
    pub number: u64,
    /// Estimated bytes of the rows.
    pub bytes: u64,
}

/// A table without files, whose columns GPUs keep by version.
pub trait VersionedTable: fmt::Debug + Send + Sync {
    /// Returns the columns.
    fn schema(&self) -> SchemaRef;

    /// Returns the version that plans over this table are made for.
    fn version(&self) -> &TableVersion;

    /// Returns whether the table still has this version, and no change of it is being committed. If it returns true
    /// before and after a scan, the rows of the scan are those of the version.
    fn is_current(&self) -> bool;

    /// Plans a scan of columns, by their indexes, of all rows in one partition. The rows of a version are in the same
    /// order in each scan.
    ///
    /// # Errors
    /// If the table cannot be read.
    fn scan_all<'a>(
        &'a self,
        columns: &'a [usize],
    ) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>>;
}

/// A scan of a versioned table, with what a GPU that keeps the table's columns needs to replace it. `EXPLAIN`
/// shows the scan alone.
#[derive(Debug)]
pub struct VersionedScan {
    scan: Arc<dyn ExecutionPlan>,
    table: Arc<dyn VersionedTable>,
    columns: Vec<usize>,
    differs: Option<&'static str>,
}

impl VersionedScan {
    /// Returns a scan of columns of a table, by their indexes. `differs` tells why its rows are not all those of the
    /// table's version; `None` if they are, but for rows that do not meet a condition that is evaluated again.
    pub fn new(
        scan: Arc<dyn ExecutionPlan>,
        table: Arc<dyn VersionedTable>,
        columns: Vec<usize>,
        differs: Option<&'static str>,
    ) -> VersionedScan {
        VersionedScan {
            scan,
            table,
            columns,
            differs,
        }
    }

    /// Returns the table.
    pub fn table(&self) -> &Arc<dyn VersionedTable> {
        &self.table
    }

    /// Returns the indexes of the columns.
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// Returns why columns of the table's version cannot replace the scan.
    pub fn differs(&self) -> Option<&'static str> {
        self.differs
    }
}

impl DisplayAs for VersionedScan {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.scan.fmt_as(format, f)
    }
}

impl ExecutionPlan for VersionedScan {
    fn name(&self) -> &str {
        self.scan.name()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.scan.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.scan.execute(partition, context)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.scan.metrics()
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        self.scan.statistics_from_inputs(inputs, args)
    }
}
