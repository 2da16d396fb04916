//! Physical plans that are kept for statements that run again on a GPU.
//!
//! DataFusion makes the physical plan of a star query in 5 to 10 ms, and a GPU computes the query in less. A plan is
//! kept after all its rows came from fragments on a GPU: the operators above them can be made again for each run. If
//! one does not run on the GPU the next time, the query is planned again.

use std::sync::Arc;

use datafusion::common::internal_datafusion_err;
use datafusion::config::ConfigOptions;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::SessionState;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};
use datafusion::scalar::ScalarValue;

use crate::error::Result;
use crate::gpu::{ALTERNATIVES_OPERATOR, GPU_OPERATOR, GpuOptions};
use crate::managed::Version;
use crate::rows::Query;

const AGGREGATE: &str = "AggregateExec";
/// Operators that may be above fragments. None returns a row before all fragments that it reads have run: a join, with
/// one partition, reads its left input to the end and waits for rows of the right one. Each is made without its state
/// by `replace_children` and `reset_state`. The filter that a hash join makes for scans has no reader.
const ABOVE: [&str; 16] = [
    AGGREGATE,
    "CoalescePartitionsExec",
    "CooperativeExec",
    "CrossJoinExec",
    "FilterExec",
    "GlobalLimitExec",
    "HashJoinExec",
    "LocalLimitExec",
    "NestedLoopJoinExec",
    "OnCpuExec",
    "ProjectionExec",
    "RepartitionExec",
    "SetsExec",
    "SortExec",
    "SortExec(TopK)",
    MERGE,
];
/// Returns rows before all its inputs have run. In one partition, an aggregate above it returns no row before them. In
/// several, one of `DISTINCT ... LIMIT` may: such plans are not kept, as those with joins.
const UNION: &str = "UnionExec";
/// Runs scalar subqueries and then its first input, to whose expressions it gives their values.
const SUBQUERIES: &str = "ScalarSubqueryExec";
/// Returns a row that is part of the plan: what statistics of the files tell, for example.
const CONSTANT: &str = "PlaceholderRowExec";
/// Merges partitions in their order.
const MERGE: &str = "SortPreservingMergeExec";
/// Those that only distribute or collect rows, if they have no limit.
const MOVING: [&str; 3] = ["CoalescePartitionsExec", "RepartitionExec", MERGE];
/// Rows of fragments up to which the operators above them run in one partition. A thread combines them in a
/// millisecond, and to start tasks for each core takes longer.
const ROWS_OF_PARTITION: usize = 20_000;
/// Maximum bytes of the parameters of a plan that is kept.
const PARAMETERS_BYTES_MAX: usize = 1 << 10;
/// Estimated bytes of an operator, and of a file that one reads.
const OPERATOR_BYTES: usize = 8 << 10;
const FILE_BYTES: usize = 1 << 10;

/// What a physical plan is made for, besides the statement and its tables.
#[derive(Debug, PartialEq)]
pub(crate) struct Basis {
    parameters: Vec<ScalarValue>,
    gpu: GpuOptions,
    /// The versions of the managed tables.
    versions: Vec<Version>,
}

/// A physical plan whose fragments ran on a GPU.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) of: Basis,
    /// Whether it has scalar subqueries. Their values are where the expressions of the plan read them, so that only one
    /// run at a time may have the plan. It may be kept again after all rows of the run have been read.
    pub(crate) has_subqueries: bool,
    /// Estimated bytes.
    pub(crate) bytes: usize,
    plan: Arc<dyn ExecutionPlan>,
}

/// Returns the values of parameters as they are kept with a plan; `None` if they are too large.
pub(crate) fn kept_parameters(parameters: &[ScalarValue]) -> Option<Vec<ScalarValue>> {
    let bytes: usize = parameters.iter().map(ScalarValue::size).sum();
    (bytes <= PARAMETERS_BYTES_MAX).then(|| parameters.to_vec())
}

impl Basis {
    /// Returns what a plan of the query depends on now; `None` if it is not to be kept.
    ///
    /// # Errors
    /// If the version of a managed table cannot be read.
    pub(crate) fn new(query: &Query, state: &SessionState) -> Result<Option<Basis>> {
        let options = state.config_options();
        let gpu = options.extensions.get::<GpuOptions>();
        let Some(gpu) = gpu.filter(|it| it.is_on) else {
            return Ok(None);
        };
        // A prepared statement may run after the session has set another time zone.
        let is_of_session = query.planned.time_zone() == options.execution.time_zone.as_deref();
        let (Some(tables), Some(parameters), true) =
            (query.planned.tables(), &query.parameters, is_of_session)
        else {
            return Ok(None);
        };
        let versions = tables.map(|table| Version::seen(&**table, state));
        let versions: Vec<_> = versions.collect::<Result<_>>()?;
        Ok(Some(Basis {
            parameters: parameters.clone(),
            gpu: gpu.clone(),
            versions: versions.into_iter().flatten().collect(),
        }))
    }

    pub(crate) fn has_versions(&self) -> bool {
        !self.versions.is_empty()
    }

    /// Returns whether no managed table has a later version.
    pub(crate) fn is_current(&self) -> bool {
        self.versions.iter().all(Version::is_current)
    }
}

impl Physical {
    /// Returns a plan that ran to be kept; `None` if it cannot be.
    pub(crate) fn new(of: Basis, plan: &Arc<dyn ExecutionPlan>) -> Option<Physical> {
        let rows = rows_of_gpu(plan, false).filter(|_| has_fragment(plan))?;
        let plan = match rows <= ROWS_OF_PARTITION {
            true => in_one_partition(plan),
            false if joins(plan) => return None,
            false => kept(plan),
        };
        // The plan that ran has what its joins have built.
        let plan = plan.and_then(|plan| renewed(&plan)).ok()?;
        Some(Physical {
            has_subqueries: has_subqueries(&plan),
            bytes: bytes_of(&plan) + 2 * PARAMETERS_BYTES_MAX,
            plan,
            of,
        })
    }

    /// Returns the plan for one run.
    ///
    /// # Errors
    /// If an operator cannot be made again.
    pub(crate) fn renewed(&self) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        renewed(&self.plan)
    }
}

/// Returns the number of rows that a GPU returned to a plan that ran; `None` if not all its rows come from there.
/// `is_aggregated` tells whether an aggregate above reads all rows of the plan first.
fn rows_of_gpu(plan: &Arc<dyn ExecutionPlan>, is_aggregated: bool) -> Option<usize> {
    if plan.name() == GPU_OPERATOR {
        // It counts rows if the GPU returned them.
        return plan.metrics()?.output_rows();
    }
    if plan.name() == ALTERNATIVES_OPERATOR {
        return rows_of_gpu(plan.children()[1], is_aggregated);
    }
    let inputs = plan.children();
    let are_kept = match plan.name() {
        SUBQUERIES => true,
        CONSTANT => return Some(0),
        UNION => is_aggregated,
        // When all rows of a join have been read, a subquery below it may still run.
        name => ABOVE.contains(&name) && (inputs.len() == 1 || !has_subqueries(plan)),
    };
    if !are_kept || inputs.is_empty() {
        return None;
    }
    // In one partition, a union has no order that could be merged.
    let is_moving = MOVING.contains(&plan.name()) && plan.fetch().is_none() && plan.name() != MERGE;
    let is_aggregated = plan.name() == AGGREGATE || is_aggregated && is_moving;
    let inputs = inputs.into_iter();
    inputs.map(|it| rows_of_gpu(it, is_aggregated)).sum()
}

fn has_fragment(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.name() == GPU_OPERATOR || inputs(plan).any(has_fragment)
}

fn has_subqueries(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.name() == SUBQUERIES || inputs(plan).any(has_subqueries)
}

fn joins(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let is_join = plan.name() != SUBQUERIES && inputs(plan).count() > 1;
    is_join || inputs(plan).any(joins)
}

/// Returns the inputs of an operator above fragments, without the CPU's alternative; none of a fragment.
fn inputs(plan: &Arc<dyn ExecutionPlan>) -> impl Iterator<Item = &Arc<dyn ExecutionPlan>> {
    let left_out = match plan.name() {
        GPU_OPERATOR => usize::MAX,
        ALTERNATIVES_OPERATOR => 1,
        _ => 0,
    };
    plan.children().into_iter().skip(left_out)
}

/// Returns a plan for further runs, without what only distributes or collects rows.
fn in_one_partition(plan: &Arc<dyn ExecutionPlan>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    if plan.name() == GPU_OPERATOR {
        return for_runs(plan);
    }
    if plan.name() == ALTERNATIVES_OPERATOR {
        return in_one_partition(plan.children()[1]);
    }
    let inputs = plan.children().into_iter().map(in_one_partition);
    let mut inputs = inputs.collect::<DataFusionResult<Vec<_>>>()?;
    if MOVING.contains(&plan.name())
        && plan.fetch().is_none()
        && let Some(input) = inputs.pop()
    {
        return Ok(input);
    }
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    let plan = Arc::clone(plan).replace_children(inputs, options)?;
    Ok(match plan.name() {
        UNION => Arc::new(CoalescePartitionsExec::new(plan)),
        _ => plan,
    })
}

/// Returns a plan for further runs, with its partitions.
fn kept(plan: &Arc<dyn ExecutionPlan>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    if plan.name() == GPU_OPERATOR {
        return for_runs(plan);
    }
    if plan.name() == ALTERNATIVES_OPERATOR {
        return kept(plan.children()[1]);
    }
    let inputs = plan.children().into_iter().map(kept);
    let inputs = inputs.collect::<DataFusionResult<_>>()?;
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    Arc::clone(plan).replace_children(inputs, options)
}

/// Returns the operator of a fragment for further runs.
fn for_runs(fragment: &Arc<dyn ExecutionPlan>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    let alone = fragment.repartitioned(1, &ConfigOptions::default())?;
    alone.ok_or_else(|| internal_datafusion_err!("a fragment that cannot be kept"))
}

/// Returns a plan that is kept for one more run.
fn renewed(plan: &Arc<dyn ExecutionPlan>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    if plan.name() == GPU_OPERATOR {
        return Arc::clone(plan).reset_state();
    }
    let inputs = plan.children().into_iter().map(renewed);
    let inputs = inputs.collect::<DataFusionResult<_>>()?;
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep);
    Arc::clone(plan)
        .replace_children(inputs, options)?
        .reset_state()
}

fn bytes_of(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let scan = plan.downcast_ref::<DataSourceExec>();
    let scan = scan.and_then(|it| it.data_source().downcast_ref::<FileScanConfig>());
    let files = scan.map_or(0, |it| it.file_groups.iter().map(|group| group.len()).sum());
    let inputs: usize = plan.children().into_iter().map(bytes_of).sum();
    OPERATOR_BYTES + files * FILE_BYTES + inputs
}
