//! Rules that give parts of plans to GPUs: what sessions choose, and what the rules report.

use std::any::Any;
use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::ResolvedTableReference;
use datafusion::common::config::{ConfigEntry, ConfigExtension, ExtensionOptions};
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use futures_util::future::BoxFuture;

use crate::error::{Code, SqlError};

/// What a session chooses for parts of its plans on GPUs, by `forebay.gpu`, `forebay.compile` and `forebay.strict`. A
/// rule of physical plans finds it among the extensions of the options.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuOptions {
    /// Whether GPUs are used.
    pub is_on: bool,
    /// Whether a query waits until its columns are in device memory.
    pub loads: bool,
    /// Whether a query waits for its kernels to be compiled.
    pub waits: bool,
    /// Whether a query fails if a part that was planned for the GPU is not computed there.
    pub strict: bool,
}

/// What a GPU does for queries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuFigures {
    /// Name of the device.
    pub device: String,
    /// Number of aggregates, and of joins without one, that it has computed.
    pub aggregates: u64,
    /// Number of aggregates over files that the GPU was not given when a query was planned, or gave up in a run, by the
    /// reason, the most frequent first.
    pub on_cpu: Vec<(String, u64)>,
    /// The same by the kind of the reason, of all kinds.
    pub on_cpu_kinds: Vec<(&'static str, u64)>,
    /// Number of columns of files in its memory, or in memory of the host that it reads.
    pub columns: usize,
    /// Their bytes in its memory.
    pub column_bytes: u64,
    /// Their bytes in memory of the host.
    pub host_bytes: u64,
    /// Bytes of their files on the disk.
    pub disk_bytes: u64,
}

/// The database, the schema and the name of a table.
pub type TableName = ResolvedTableReference;

/// A column of a file that a GPU reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuColumn {
    /// The managed table that the file is of, with its schema.
    pub table: Option<String>,
    /// Path or URL of the file, or the name of a collection, shortened at its start.
    pub file: String,
    /// Name of the column, or what is computed of it, shortened.
    pub name: String,
    /// Whether it is declared.
    pub is_declared: bool,
    /// Number of rows.
    pub rows: u64,
    /// Bytes in memory of the GPU.
    pub device_bytes: u64,
    /// Bytes in memory of the host.
    pub host_bytes: u64,
    /// Bytes that are in a column file alone.
    pub disk_bytes: u64,
    /// Time since the last use.
    pub unused: Duration,
}

/// The largest columns that a GPU reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuColumns {
    /// Name of the device.
    pub device: String,
    /// The columns, the largest first.
    pub largest: Vec<GpuColumn>,
    /// Number of the others, and their bytes in all places.
    pub left_out: (usize, u64),
}

/// A rule that gives parts of plans to a GPU. It reads [`GpuOptions`].
pub trait GpuRule: PhysicalOptimizerRule + Send + Sync {
    /// Returns counts since the start, and what is in the memory of the GPU.
    fn figures(&self) -> GpuFigures;

    /// Returns whether columns of a type can be kept for the GPU.
    fn keeps(&self, data_type: &DataType) -> bool;

    /// Leaves these files, and the versioned tables with these ids, to the CPU if the session lets the server choose.
    /// Replaces the files and tables of the last call.
    fn leave_to_cpu(&self, files: Vec<ListingTableUrl>, tables: HashSet<String>);

    /// Brings columns of a declared table to the GPU: those of these names, or all that it can keep. They are the last
    /// to give way. The columns of files or versions that the table does not have any more are forgotten. The future
    /// ends when the columns are there, there is no room, or a versioned table has changed. In the last case it
    /// returns `false`. Dropping it ends the work.
    ///
    /// # Errors
    /// If the files cannot be read, or have too many columns.
    fn bring<'a>(
        &'a self,
        table: &'a TableName,
        columns: Option<&'a [String]>,
        scan: Arc<dyn ExecutionPlan>,
        context: Arc<TaskContext>,
    ) -> BoxFuture<'a, Result<bool>>;

    /// Returns whether all columns of a declared table are there that have room.
    fn is_there(&self, table: &TableName) -> bool;

    /// Forgets the declarations of all tables but these, and the columns of their files.
    fn retain_declared(&self, tables: &BTreeSet<TableName>);

    /// Returns the largest columns, at most `limit`. The tables that they are of are not known here.
    fn columns(&self, limit: usize) -> GpuColumns;

    /// Returns the source of the kernels of a plan, with the plan as comments, and why parts of it are the CPU's. What
    /// a run does before these kernels is done: scalar subqueries run, and so do the kernels of joins.
    ///
    /// # Errors
    /// If a scalar subquery fails.
    fn kernels<'a>(
        &'a self,
        plan: &'a Arc<dyn ExecutionPlan>,
        context: Arc<TaskContext>,
    ) -> BoxFuture<'a, Result<String>>;
}

/// Name of the operator of a fragment on a GPU. A plan is kept for later runs if all its rows come from such operators.
/// The operator counts its rows among its metrics if the GPU returned them. [`ExecutionPlan::repartitioned`] into one
/// partition returns the operator of a kept plan, which fails with [`PlanAgain`] if the GPU does not compute it.
///
/// [`ExecutionPlan::repartitioned`]: datafusion::physical_plan::ExecutionPlan::repartitioned
pub const GPU_OPERATOR: &str = "GpuFragmentExec";

/// Name of an operator with two inputs that return the same rows. The second one has operators of [`GPU_OPERATOR`] that
/// fail with [`PlanAgain`] if the GPU does not compute them: then the first one runs.
pub const ALTERNATIVES_OPERATOR: &str = "AlternativesExec";

/// The error of an operator of a kept plan that the GPU does not compute: the query is planned again, for the CPU.
#[derive(Debug)]
pub struct PlanAgain;

impl PlanAgain {
    /// Returns whether another plan may return the rows of one that failed with this error: an operator's error of this
    /// type caused it, or too little memory, of which another plan may need less.
    pub fn may_help(error: &DataFusionError) -> bool {
        match error.find_root() {
            DataFusionError::External(error) => error.is::<PlanAgain>(),
            DataFusionError::ResourcesExhausted(_) => true,
            _ => false,
        }
    }
}

impl fmt::Display for PlanAgain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the GPU does not compute a part of a kept plan")
    }
}

impl std::error::Error for PlanAgain {}

impl ConfigExtension for GpuOptions {
    const PREFIX: &'static str = "forebay";
}

impl ExtensionOptions for GpuOptions {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, _value: &str) -> Result<()> {
        let text = format!("forebay.{key} is a setting of a session");
        Err(DataFusionError::Configuration(text))
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        Vec::new()
    }
}

/// Returns the error of what cannot be done without a GPU.
pub(crate) fn no_gpu(what: &str) -> SqlError {
    let message = format!("{what}: this process has no GPU");
    let hint = "`forebay doctor` tells what is missing; `forebay sql` has none, `serve` has those of --devices";
    SqlError::new(Code::ObjectNotInState, message).with_hint(hint)
}
