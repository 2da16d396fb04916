//! Operators that compute expressions for fewer rows at a time if their values are long, and that can be stopped.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::task::Poll;

use datafusion::arrow::array::{Array, RecordBatch, RecordBatchOptions};
use datafusion::arrow::compute::concat;
use datafusion::arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::expressions::{BinaryExpr, Column, LikeExpr, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{
    HashJoinExec, NestedLoopJoinExec, NestedLoopJoinExecBuilder, SortMergeJoinExec,
};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties,
    ReplaceChildrenOptions,
};
use futures_util::{StreamExt, stream};
use tokio::task::coop;

use crate::lengths::{array_bytes, batch_bytes};
use crate::sized::{Limited, PART_BYTES, is_limit, limited_to, may_be_long};
use crate::stop;

/// Maximum bytes of the rows for which an expression is computed at once.
const INPUT_BYTES: usize = PART_BYTES / 2;
/// Maximum bytes of rows that a projection makes outside of the account.
const UNCOUNTED_BYTES: usize = 1 << 20;

/// Operators that can return many batches for one of their input. DataFusion yields when it reads input, so that a
/// cross join of two tables of ten million rows went on for 31 s after it was cancelled.
const MULTIPLYING: [&str; 6] = [
    "CrossJoinExec",
    "HashJoinExec",
    "NestedLoopJoinExec",
    "PiecewiseMergeJoinExec",
    "SortMergeJoinExec",
    "UnnestExec",
];

/// The rule that plans such operators.
#[derive(Debug)]
pub(crate) struct Sliced;

impl PhysicalOptimizerRule for Sliced {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            let is_multiplying = MULTIPLYING.contains(&node.name());
            let node = sliced(node)?;
            Ok(match is_multiplying {
                true => {
                    let cooperative = Arc::new(CooperativeExec::new(node.data));
                    Transformed::yes(Arc::new(Replaced::new(cooperative)) as _)
                }
                false => node,
            })
        })
        .data()
    }

    fn name(&self) -> &str {
        "sliced"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn sliced(node: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let new: Arc<dyn ExecutionPlan> = if let Some(filter) = node.downcast_ref::<FilterExec>()
        && is_slow(filter.predicate(), &filter.input().schema())
    {
        let predicate = conditions(filter.predicate(), &filter.input().schema());
        let filter = FilterExecBuilder::from(filter).with_predicate(predicate);
        Arc::new(filter.build()?)
    } else if let Some(projection) = node.downcast_ref::<ProjectionExec>()
        && computes_slowly(projection)
    {
        Arc::new(Replaced::new(node))
    } else if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>()
        && let Some(filter) = join.filter()
    {
        let join = NestedLoopJoinExecBuilder::from(join).with_filter(Some(join_filter(filter)));
        Arc::new(join.build()?)
    } else if let Some(join) = node.downcast_ref::<HashJoinExec>()
        && let Some(filter) = join.filter()
    {
        Arc::new(
            join.builder()
                .with_filter(Some(join_filter(filter)))
                .build()?,
        )
    } else if let Some(join) = node.downcast_ref::<SortMergeJoinExec>()
        && let Some(filter) = join.filter()
    {
        Arc::new(SortMergeJoinExec::try_new(
            Arc::clone(join.left()),
            Arc::clone(join.right()),
            join.on().to_vec(),
            Some(join_filter(filter)),
            join.join_type(),
            join.sort_options().to_vec(),
            join.null_equality(),
        )?)
    } else {
        return Ok(Transformed::no(node));
    };
    Ok(Transformed::yes(new))
}

fn computes_slowly(projection: &ProjectionExec) -> bool {
    let columns = projection.input().schema();
    let mut exprs = projection.expr().iter();
    exprs.any(|column| is_slow(&column.expr, &columns))
}

fn join_filter(filter: &JoinFilter) -> JoinFilter {
    JoinFilter::new(
        SlicedExpr::of(filter.expression()),
        filter.column_indices().to_vec(),
        Arc::clone(filter.schema()),
    )
}

/// Returns whether an expression of these columns computes something of long values.
fn is_slow(expr: &Arc<dyn PhysicalExpr>, columns: &Schema) -> bool {
    let is_long = |argument: &Arc<dyn PhysicalExpr>| {
        let data_type = argument.data_type(columns);
        !argument.is::<Literal>() && data_type.is_ok_and(|it| may_be_long(&it))
    };
    let mut found = false;
    let _ = expr.apply(|inner| {
        let call = inner.downcast_ref::<ScalarFunctionExpr>();
        found |= call.is_some_and(|call| {
            call.fun().inner().is::<Limited>() || call.args().iter().any(is_long)
        });
        found |= inner.is::<LikeExpr>()
            || inner
                .downcast_ref::<BinaryExpr>()
                .is_some_and(matches_texts);
        Ok(match found {
            true => TreeNodeRecursion::Stop,
            false => TreeNodeRecursion::Continue,
        })
    });
    found
}

fn matches_texts(expr: &BinaryExpr) -> bool {
    use Operator::{RegexIMatch, RegexMatch, RegexNotIMatch, RegexNotMatch, StringConcat};
    matches!(
        expr.op(),
        RegexMatch | RegexIMatch | RegexNotMatch | RegexNotIMatch | StringConcat
    )
}

/// Returns a condition whose parts are computed for few rows at a time if they are slow. The others stay as they are,
/// since plans know what they mean.
fn conditions(predicate: &Arc<dyn PhysicalExpr>, columns: &Schema) -> Arc<dyn PhysicalExpr> {
    match predicate.downcast_ref::<BinaryExpr>() {
        Some(both) if *both.op() == Operator::And => Arc::new(BinaryExpr::new(
            conditions(both.left(), columns),
            Operator::And,
            conditions(both.right(), columns),
        )),
        _ if is_slow(predicate, columns) => SlicedExpr::of(predicate),
        _ => Arc::clone(predicate),
    }
}

/// An expression whose own values are short, that is computed for fewer rows at a time if others are long.
#[derive(Debug, Eq)]
struct SlicedExpr(Arc<dyn PhysicalExpr>);

impl PartialEq for SlicedExpr {
    fn eq(&self, other: &SlicedExpr) -> bool {
        *self.0 == *other.0
    }
}

impl Hash for SlicedExpr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl SlicedExpr {
    fn of(expr: &Arc<dyn PhysicalExpr>) -> Arc<dyn PhysicalExpr> {
        Arc::new(SlicedExpr(Arc::clone(expr)))
    }
}

impl fmt::Display for SlicedExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PhysicalExpr for SlicedExpr {
    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.0.data_type(schema)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.0.nullable(schema)
    }

    fn return_field(&self, schema: &Schema) -> Result<FieldRef> {
        self.0.return_field(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let rows = batch.num_rows();
        if !is_long(batch)
            && let Some(value) = within_limit(rows, || self.0.evaluate(batch))?
        {
            return Ok(value);
        }
        let half = rows / 2;
        let first = self.evaluate(&batch.slice(0, half))?.into_array(half)?;
        let rest = self.evaluate(&batch.slice(half, rows - half))?;
        let rest = rest.into_array(rows - half)?;
        let parts: [&dyn Array; 2] = [&first, &rest];
        Ok(ColumnarValue::Array(concat(&parts)?))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.0]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        Ok(SlicedExpr::of(&children[0]))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_sql(f)
    }
}

/// Returns whether a batch has too many long rows to compute something for them at once.
fn is_long(batch: &RecordBatch) -> bool {
    batch.num_rows() > 1 && batch_bytes(batch) > INPUT_BYTES
}

/// Computes something for some rows; `None` if functions would return too much.
///
/// # Errors
/// If the statement was stopped, or `compute` fails.
fn within_limit<T>(rows: usize, compute: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
    stop::check()?;
    if rows <= 1 {
        return limited_to(usize::MAX, compute).map(Some);
    }
    match limited_to(PART_BYTES, compute) {
        Err(error) if is_limit(&error) => Ok(None),
        computed => computed.map(Some),
    }
}

/// An operator of DataFusion whose stream is ours. A projection returns fewer rows at a time if they are long, and
/// takes long rows from the account. A `CooperativeExec` yields in a way that can be nested.
#[derive(Debug)]
struct Replaced {
    /// A `ProjectionExec` or a `CooperativeExec`.
    inner: Arc<dyn ExecutionPlan>,
    metrics: ExecutionPlanMetricsSet,
}

impl Replaced {
    fn new(inner: Arc<dyn ExecutionPlan>) -> Replaced {
        Replaced {
            inner,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }
}

impl DisplayAs for Replaced {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt_as(format, f)
    }
}

impl ExecutionPlan for Replaced {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn downcast_delegate(&self) -> Option<&dyn ExecutionPlan> {
        Some(&*self.inner)
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.inner.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.inner.maintains_input_order()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inner.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.inner.apply_expressions(f)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let inner = Arc::clone(&self.inner).replace_children(children, options)?;
        Ok(Arc::new(Replaced::new(inner)))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, options)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if let Some(cooperative) = self.inner.downcast_ref::<CooperativeExec>() {
            return Ok(yielding(cooperative.input().execute(partition, context)?));
        }
        let Some(projection) = self.inner.downcast_ref::<ProjectionExec>() else {
            return self.inner.execute(partition, context);
        };
        let rows = Projecting {
            columns: projection.expr().to_vec(),
            schema: self.schema(),
            input: projection
                .input()
                .execute(partition, Arc::clone(&context))?,
            left: None,
            rows_max: context.session_config().batch_size(),
            rows: context.session_config().batch_size(),
            memory: MemoryConsumer::new("ProjectionExec").register(context.memory_pool()),
            metrics: BaselineMetrics::new(&self.metrics, partition),
        };
        let rows = stream::try_unfold(rows, |mut rows| async move {
            let next = rows.next().await?;
            Ok(next.map(|batch| (batch, rows)))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// Returns a stream that yields to other tasks, and to a cancellation, when the budget of its task is used up. Each
/// batch takes a unit.
///
/// DataFusion's `CooperativeStream` takes the unit before it polls its input, and gives it back if the input is not
/// ready. Of more than 128 in a row, none leaves a unit for the innermost, and the query goes on for ever. This one
/// takes it afterwards.
fn yielding(mut rows: SendableRecordBatchStream) -> SendableRecordBatchStream {
    let schema = rows.schema();
    let batches = stream::poll_fn(move |context| {
        if !coop::has_budget_remaining() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let polled = rows.poll_next_unpin(context);
        if polled.is_ready()
            && let Poll::Ready(unit) = coop::poll_proceed(context)
        {
            unit.made_progress();
        }
        polled
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, batches))
}

/// The run of a projection.
struct Projecting {
    columns: Vec<ProjectionExpr>,
    schema: SchemaRef,
    input: SendableRecordBatchStream,
    /// Rows of the input that are left.
    left: Option<RecordBatch>,
    rows_max: usize,
    /// Maximum number of rows that are computed next.
    rows: usize,
    /// The memory of the longest rows so far. What is released cannot be taken again at once.
    memory: MemoryReservation,
    metrics: BaselineMetrics,
}

impl Projecting {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let batch = match self.left.take() {
                Some(batch) => batch,
                None => match self.input.next().await.transpose()? {
                    Some(batch) => batch,
                    None => return Ok(None),
                },
            };
            let rows = batch.num_rows().min(self.rows);
            let computed = {
                let _timer = self.metrics.elapsed_compute().timer();
                self.computed(&batch.slice(0, rows))?
            };
            let Some(computed) = computed else {
                self.rows = (rows / 2).max(1);
                self.left = Some(batch);
                continue;
            };
            if rows < batch.num_rows() {
                self.left = Some(batch.slice(rows, batch.num_rows() - rows));
            }
            self.rows = (self.rows * 2).min(self.rows_max);
            self.metrics.output_rows().add(rows);
            return Ok(Some(computed));
        }
    }

    /// Returns the columns for the rows of a batch; `None` if they are too long.
    fn computed(&self, batch: &RecordBatch) -> Result<Option<RecordBatch>> {
        if is_long(batch) {
            return Ok(None);
        }
        let rows = batch.num_rows();
        let (mut columns, mut made) = (Vec::with_capacity(self.columns.len()), 0);
        for column in &self.columns {
            let value = within_limit(rows, || column.expr.evaluate(batch))?;
            let Some(value) = value else {
                return Ok(None);
            };
            if !column.expr.is::<Column>() {
                made += match &value {
                    ColumnarValue::Array(values) => array_bytes(values),
                    ColumnarValue::Scalar(value) => value.size().saturating_mul(rows),
                };
            }
            if made > PART_BYTES && rows > 1 {
                return Ok(None);
            }
            if made > UNCOUNTED_BYTES.max(self.memory.size()) {
                self.memory.try_resize(made)?;
            }
            columns.push(value.into_array(rows)?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let schema = Arc::clone(&self.schema);
        let batch = RecordBatch::try_new_with_options(schema, columns, &options)?;
        Ok(Some(batch))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    /// Returns a stream of batches without columns, which are ready at once.
    fn batches(count: usize) -> SendableRecordBatchStream {
        let schema = Arc::new(Schema::empty());
        let batch = RecordBatch::new_empty(Arc::clone(&schema));
        let batches = std::iter::repeat_n(batch, count).map(Ok);
        Box::pin(RecordBatchStreamAdapter::new(schema, stream::iter(batches)))
    }

    #[tokio::test]
    async fn more_streams_in_a_row_than_units_of_a_task_end() {
        let nested = (0..300).fold(batches(3), |rows, _| yielding(rows));
        let count = tokio::time::timeout(Duration::from_mins(1), nested.count()).await;
        assert_eq!(count, Ok(3));
    }

    #[tokio::test]
    async fn a_stream_that_is_always_ready_yields() {
        let mut rows = yielding(batches(1_000));
        let ready = poll_fn(|context| {
            let ready = (0..1_000).take_while(|_| rows.poll_next_unpin(context).is_ready());
            Poll::Ready(ready.count())
        });
        assert!(ready.await < 1_000);
    }
}
