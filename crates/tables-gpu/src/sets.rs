//! Aggregates by grouping sets (`ROLLUP`, `CUBE`): kernels compute the states of the groups by all keys. Each set has
//! these states with NULL in place of the keys that are not in the set, and the CPU merges the states of equal keys.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::aggregates::{
    AggregateExec, AggregateMode, PhysicalGroupBy, evaluate_group_by,
};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning,
    PlanProperties, ReplaceChildrenOptions,
};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::fragment::is_moving;

type Plan = Arc<dyn ExecutionPlan>;

/// Rows of states that are repeated for all sets at once.
const ROWS_OF_SLICE: usize = 1 << 13;

/// Returns the states of the groups of each set, from those of the groups by all keys, which are its input.
#[derive(Debug)]
pub(crate) struct SetsExec {
    states: Plan,
    /// The sets, over the columns of the input.
    sets: PhysicalGroupBy,
    /// Returns the groups of sets without keys, which there are even without rows.
    of_no_rows: Plan,
    properties: Arc<PlanProperties>,
}

/// Returns the first step of an aggregate with the keys of all its grouping sets as those of one.
///
/// # Errors
/// If DataFusion refuses the aggregate.
pub(crate) fn by_all_keys(first: &AggregateExec) -> Result<AggregateExec> {
    AggregateExec::try_new(
        AggregateMode::Partial,
        PhysicalGroupBy::new_single(first.group_expr().expr().to_vec()),
        first.aggr_expr().to_vec(),
        first.filter_expr().to_vec(),
        Arc::clone(first.input()),
        first.input_schema(),
    )
}

/// Returns the plan of an aggregate whose first step has grouping sets, with the states of the groups by all keys as
/// the input.
///
/// # Errors
/// If DataFusion refuses a part of it.
pub(crate) fn above(
    aggregate: &AggregateExec,
    first: &AggregateExec,
    states: Plan,
) -> Result<Plan> {
    let of_no_rows = AggregateExec::try_new(
        AggregateMode::Partial,
        first.group_expr().clone(),
        first.aggr_expr().to_vec(),
        first.filter_expr().to_vec(),
        Arc::new(EmptyExec::new(first.input().schema())),
        first.input_schema(),
    )?;
    let sets = SetsExec::new(states, first.group_expr(), Arc::new(of_no_rows));
    merged(aggregate, first, Arc::new(sets))
}

/// Returns the plan of an aggregate with other states instead of those of its first step.
///
/// # Errors
/// If DataFusion refuses a part of it.
pub(crate) fn merged(
    aggregate: &AggregateExec,
    first: &AggregateExec,
    states: Plan,
) -> Result<Plan> {
    if *first.mode() == AggregateMode::Partial {
        let mut input = with_below(aggregate.input(), states)?;
        let is_single = *aggregate.mode() == AggregateMode::Final;
        if is_single && input.properties().partitioning.partition_count() > 1 {
            input = Arc::new(CoalescePartitionsExec::new(input));
        }
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        return Arc::new(aggregate.clone()).replace_children(vec![input], options);
    }
    let merged = AggregateExec::try_new(
        AggregateMode::Final,
        first.group_expr().as_final(),
        first.aggr_expr().to_vec(),
        first.filter_expr().to_vec(),
        Arc::new(CoalescePartitionsExec::new(states)),
        first.input_schema(),
    )?;
    Ok(Arc::new(merged))
}

/// Returns operators that move rows above another input.
fn with_below(plan: &Plan, below: Plan) -> Result<Plan> {
    if !is_moving(plan) {
        return Ok(below);
    }
    let input = with_below(plan.children()[0], below)?;
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    Arc::clone(plan).replace_children(vec![input], options)
}

impl SetsExec {
    fn new(states: Plan, sets: &PhysicalGroupBy, of_no_rows: Plan) -> SetsExec {
        let keys = sets.expr().iter().enumerate();
        let keys = keys.map(|(index, (_, name))| {
            let key: Arc<dyn PhysicalExpr> = Arc::new(Column::new(name, index));
            (key, name.clone())
        });
        let (nulls, groups) = (sets.null_expr().to_vec(), sets.groups().to_vec());
        SetsExec {
            sets: PhysicalGroupBy::new(keys.collect(), nulls, groups, true),
            properties: properties_of(&states, &of_no_rows),
            states,
            of_no_rows,
        }
    }
}

/// Returns the properties of the states of sets: those of groups in each partition of the input.
fn properties_of(states: &Plan, of_no_rows: &Plan) -> Arc<PlanProperties> {
    let count = states.properties().partitioning.partition_count();
    Arc::new(PlanProperties::new(
        EquivalenceProperties::new(of_no_rows.schema()),
        Partitioning::UnknownPartitioning(count),
        EmissionType::Final,
        Boundedness::Bounded,
    ))
}

/// Returns the states of the groups of each set.
fn of_sets(
    states: &RecordBatch,
    sets: &PhysicalGroupBy,
    schema: &SchemaRef,
) -> Result<Vec<RecordBatch>> {
    let of_aggregates = &states.columns()[sets.expr().len()..];
    let keys = evaluate_group_by(sets, states)?.into_iter();
    let all = keys.map(|keys| {
        let columns = keys.into_iter().chain(of_aggregates.iter().cloned());
        Ok(RecordBatch::try_new(Arc::clone(schema), columns.collect())?)
    });
    all.collect()
}

/// Returns the rows of a batch in batches of a few.
fn sliced(batch: RecordBatch) -> impl Iterator<Item = RecordBatch> {
    let firsts = (0..batch.num_rows()).step_by(ROWS_OF_SLICE);
    firsts.map(move |first| batch.slice(first, ROWS_OF_SLICE.min(batch.num_rows() - first)))
}

impl DisplayAs for SetsExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SetsExec: sets={}", self.sets.groups().len())
    }
}

impl ExecutionPlan for SetsExec {
    fn name(&self) -> &str {
        "SetsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Plan> {
        vec![&self.states]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Plan>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Plan> {
        let states = children.pop();
        let states = states.ok_or_else(|| DataFusionError::Internal("no input".to_owned()))?;
        Ok(Arc::new(SetsExec {
            properties: properties_of(&states, &self.of_no_rows),
            states,
            sets: self.sets.clone(),
            of_no_rows: Arc::clone(&self.of_no_rows),
        }))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Plan>) -> Result<Plan> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, options)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let states = self.states.execute(partition, Arc::clone(&context))?;
        let (sets, schema) = (self.sets.clone(), self.schema());
        let has_rows = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&has_rows);
        let of_sets = states.map(move |states| {
            let states = states?;
            seen.fetch_or(states.num_rows() > 0, Ordering::Relaxed);
            let (sets, schema) = (sets.clone(), Arc::clone(&schema));
            let slices = stream::iter(sliced(states));
            let of_slices = slices.map(move |slice| {
                let batches = of_sets(&slice, &sets, &schema)?;
                Ok::<_, DataFusionError>(stream::iter(batches).map(Ok))
            });
            Ok::<_, DataFusionError>(of_slices.try_flatten())
        });
        let of_no_rows = Arc::clone(&self.of_no_rows);
        let last = stream::once(async move {
            let schema = of_no_rows.schema();
            match has_rows.load(Ordering::Relaxed) {
                true => Ok(EmptyExec::new(schema).execute(0, context)?),
                false => of_no_rows.execute(0, context),
            }
        });
        let all = of_sets.try_flatten().chain(last.try_flatten()).boxed();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), all)))
    }
}
