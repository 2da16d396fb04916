//! Filters that operators make while a query runs, at the scans that they reach.
//!
//! A hash join knows the keys of its build side before it reads its probe side. DataFusion 55 moves the filter of these
//! keys to the scan, which leaves out row groups with it. Rows are left out too if Parquet evaluates filters while it
//! decodes, which is slower for most queries (decision 0025). Here an operator above the scan leaves them out.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use datafusion::arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use datafusion::arrow::compute::{BatchCoalescer, filter_record_batch, prep_null_mask_filter};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{
    BinaryExpr, Column, IsNotNullExpr, IsNullExpr, Literal,
};
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::utils::split_conjunction;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions,
    replace_children_if_necessary,
};
use futures_util::{Stream, StreamExt};

/// Time that a row costs the operators above a scan. A filter that takes longer for what it leaves out is not worth it.
///
/// PERF: TPC-H at scale factor 1, two busy cores, November 2026, DataFusion alone with the rules and thresholds of this
/// crate. The filter of a join takes 8 ns a row, and 30 ns if the join has a hash table for each partition. Processor
/// seconds of queries 3, 5, 8, 9, 10, 13, 17, 18, 20 and 21, two runs:
/// - without filters, and with DataFusion's thresholds of joins: 4.52 and 4.63
/// - with 20 ns: 3.81 and 3.78; query 17, where groups are made above: 0.59 and 0.56
/// - with 40 ns: 3.69 and 3.77; query 17: 0.46 and 0.48
const SAVED: Duration = Duration::from_nanos(40);
/// Maximum number of batches that pass until a filter that was not worth it is tried again.
const PAUSE_MAX: usize = 64;

/// The rule. It comes after those that move filters.
#[derive(Debug)]
pub(crate) struct DynamicFilters;

impl PhysicalOptimizerRule for DynamicFilters {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        filtered(plan)
    }

    fn name(&self) -> &str {
        "dynamic_filters"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Returns a plan whose scans are filtered.
fn filtered(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(filters) = filters_of(&plan) {
        return Ok(match filters.is_empty() {
            true => plan,
            false => Arc::new(DynamicFilterExec::new(plan, filters)),
        });
    }
    let children = plan.children().into_iter().cloned();
    let children = children.map(filtered).collect::<Result<_>>()?;
    replace_children_if_necessary(plan, children)
}

/// Returns the dynamic filters of a scan, or of a filter above one, over the columns that it returns; `None` for other
/// plans. A filter of a column that is not returned is left out.
fn filters_of(plan: &Arc<dyn ExecutionPlan>) -> Option<Vec<Arc<dyn PhysicalExpr>>> {
    let projected = |filters: Vec<Arc<dyn PhysicalExpr>>, projection: &ProjectionExprs| {
        let of_columns = filters.iter().map(|filter| projection.project_expr(filter));
        of_columns.flatten().collect()
    };
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let filters = filters_of(filter.input())?;
        return Some(match filter.projection() {
            Some(columns) => {
                let schema = filter.input().schema();
                projected(filters, &ProjectionExprs::from_indices(columns, &schema))
            }
            None => filters,
        });
    }
    let scan = plan.downcast_ref::<DataSourceExec>()?;
    let scan = scan.data_source().downcast_ref::<FileScanConfig>()?;
    let source = scan.file_source();
    let Some(predicate) = source.filter() else {
        return Some(Vec::new());
    };
    let parts = split_conjunction(&predicate).into_iter();
    let filters = parts
        .filter(|part| part.snapshot_generation() != 0)
        .cloned();
    let filters = filters.collect();
    Some(match source.projection() {
        Some(projection) => projected(filters, projection),
        None => filters,
    })
}

/// Returns whether a filter is over floats.
fn is_of_floats(filter: &Arc<dyn PhysicalExpr>, schema: &SchemaRef) -> bool {
    let mut over = filter.children().into_iter();
    over.any(|it| it.data_type(schema).is_ok_and(|it| it.is_floating()))
}

/// Returns whether a filter currently only compares columns with values, as that of TopK does. `BinaryExpr` turns -0
/// into 0 and then compares bits in total order, where NaN is greater than all numbers. TopK drops the same rows
/// itself. The filter of a join with few keys is a list that compares bits. It would leave out 0 if the join has the
/// key -0, which is equal.
fn only_compares(filter: &Arc<dyn PhysicalExpr>) -> Result<bool> {
    let has_others = filter.exists(|node| {
        let is_value = node.is::<Column>() || node.is::<Literal>();
        let is_test = node.is::<IsNullExpr>() || node.is::<IsNotNullExpr>();
        Ok(!(is_value || is_test || node.is::<BinaryExpr>()))
    });
    Ok(!has_others?)
}

/// Leaves out rows that operators above do not need. It may return some of them.
#[derive(Debug)]
struct DynamicFilterExec {
    input: Arc<dyn ExecutionPlan>,
    filters: Vec<Arc<dyn PhysicalExpr>>,
    metrics: ExecutionPlanMetricsSet,
}

impl DynamicFilterExec {
    fn new(
        input: Arc<dyn ExecutionPlan>,
        filters: Vec<Arc<dyn PhysicalExpr>>,
    ) -> DynamicFilterExec {
        DynamicFilterExec {
            input,
            filters,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// Returns the operator above another input.
    fn of(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Arc<dyn ExecutionPlan> {
        let input = inputs.swap_remove(0);
        Arc::new(DynamicFilterExec::new(input, self.filters.clone()))
    }
}

impl DisplayAs for DynamicFilterExec {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DynamicFilterExec: ")?;
        for (index, filter) in self.filters.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { " AND " })?;
            write!(f, "{filter}")?;
        }
        Ok(())
    }
}

impl ExecutionPlan for DynamicFilterExec {
    fn name(&self) -> &str {
        "DynamicFilterExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let mut recursion = TreeNodeRecursion::Continue;
        for filter in &self.filters {
            recursion = visit(filter)?;
            if recursion == TreeNodeRecursion::Stop {
                break;
            }
        }
        Ok(recursion)
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self.of(children))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self.of(children))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let rows = context.session_config().batch_size();
        let schema = self.schema();
        let filters = self.filters.iter().map(|it| Filter::new(it, &schema));
        let batches = BatchCoalescer::new(Arc::clone(&schema), rows);
        Ok(Box::pin(Filtered {
            input: self.input.execute(partition, context)?,
            filters: filters.collect(),
            batches: batches.with_biggest_coalesce_batch_size(Some(rows / 2)),
            has_ended: false,
            metrics: BaselineMetrics::new(&self.metrics, partition),
        }))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// The rows of a partition.
struct Filtered {
    input: SendableRecordBatchStream,
    filters: Vec<Filter>,
    /// Joins small batches.
    batches: BatchCoalescer,
    has_ended: bool,
    metrics: BaselineMetrics,
}

impl Filtered {
    /// Filters a batch and adds its rows to those that are returned next.
    fn add(&mut self, mut batch: RecordBatch) -> Result<()> {
        let _timer = self.metrics.elapsed_compute().timer();
        for filter in &mut self.filters {
            if let Some(kept) = filter.kept(&batch)? {
                batch = filter_record_batch(&batch, &kept)?;
            }
        }
        if batch.num_rows() > 0 {
            self.batches.push_batch(batch)?;
        }
        Ok(())
    }
}

impl Stream for Filtered {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(batch) = self.batches.next_completed_batch() {
                let batch = Poll::Ready(Some(Ok(batch)));
                return self.metrics.record_poll(batch);
            }
            if self.has_ended {
                return Poll::Ready(None);
            }
            match ready!(self.input.poll_next_unpin(context)) {
                Some(batch) => {
                    let added = batch.and_then(|batch| self.add(batch));
                    if let Err(error) = added {
                        return Poll::Ready(Some(Err(error)));
                    }
                }
                None => {
                    self.has_ended = true;
                    self.batches.finish_buffered_batch()?;
                }
            }
        }
    }
}

impl RecordBatchStream for Filtered {
    fn schema(&self) -> SchemaRef {
        self.input.schema()
    }
}

/// A filter, and whether it is worth its evaluation.
struct Filter {
    expr: Arc<dyn PhysicalExpr>,
    is_of_floats: bool,
    /// Number of batches that pass before the next evaluation.
    pause: usize,
    /// Of these, those that are still to pass.
    passing: usize,
}

impl Filter {
    fn new(expr: &Arc<dyn PhysicalExpr>, schema: &SchemaRef) -> Filter {
        Filter {
            expr: Arc::clone(expr),
            is_of_floats: is_of_floats(expr, schema),
            pause: 0,
            passing: 0,
        }
    }

    /// Returns which rows of a batch are kept; `None` if all are.
    fn kept(&mut self, batch: &RecordBatch) -> Result<Option<BooleanArray>> {
        if self.passing > 0 {
            self.passing -= 1;
            return Ok(None);
        }
        let start = Instant::now();
        let rows = batch.num_rows();
        let now = self.expr.snapshot()?;
        let now = now.unwrap_or_else(|| Arc::clone(&self.expr));
        if self.is_of_floats && !only_compares(&now)? {
            return Ok(None);
        }
        let kept = match now.evaluate(batch)? {
            ColumnarValue::Array(kept) => kept.as_boolean().clone(),
            // The filter is not made yet, or the build side is empty.
            ColumnarValue::Scalar(value) => match value.to_array_of_size(rows)?.as_boolean() {
                kept if kept.true_count() == rows => return Ok(None),
                kept => kept.clone(),
            },
        };
        let left_out = u32::try_from(rows - kept.true_count()).unwrap_or(u32::MAX);
        if start.elapsed() > SAVED * left_out {
            self.pause = (self.pause * 2).clamp(1, PAUSE_MAX);
            self.passing = self.pause;
            return Ok(None);
        }
        self.pause = 0;
        Ok(Some(match kept.null_count() {
            0 => kept,
            _ => prep_null_mask_filter(&kept),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array};
    use datafusion::arrow::datatypes::Int64Type;
    use datafusion::datasource::memory::MemorySourceConfig;
    use datafusion::logical_expr::Operator;
    use datafusion::physical_expr::expressions::{
        DynamicFilterPhysicalExpr, binary, col, in_list, lit,
    };
    use datafusion::physical_plan::collect;

    use super::*;

    fn batch(numbers: impl IntoIterator<Item = Option<i64>>) -> RecordBatch {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter(numbers));
        RecordBatch::try_from_iter([("n", numbers)]).expect("one column")
    }

    fn below(limit: i64, schema: &SchemaRef) -> Arc<dyn PhysicalExpr> {
        let column = col("n", schema).expect("the column");
        binary(column, Operator::Lt, lit(limit), schema).expect("a comparison")
    }

    #[tokio::test]
    async fn rows_that_the_filter_keeps_stay_in_their_order() {
        let numbers = (0..10).map(|part| {
            let numbers = part * 50_000..(part + 1) * 50_000;
            batch(numbers.map(|n| (n % 5 != 0).then_some(n % 1_000)))
        });
        let batches: Vec<_> = numbers.collect();
        let schema = batches[0].schema();
        let input = MemorySourceConfig::try_new_exec(&[batches], Arc::clone(&schema), None);
        let input = input.expect("a plan");
        let filters = vec![below(10, &schema), below(5, &schema)];
        let filtered = Arc::new(DynamicFilterExec::new(input, filters));
        let context = Arc::new(TaskContext::default());
        let found = collect(filtered, context).await.expect("rows");
        let found = found
            .iter()
            .flat_map(|batch| batch.column(0).as_primitive::<Int64Type>());
        // A filter that takes long, as on a busy machine, leaves out nothing for a while.
        let found: Vec<i64> = found.flatten().filter(|n| *n < 5).collect();
        let wanted: BTreeSet<i64> = (1..5).collect();
        assert_eq!(found.len(), 500 * wanted.len());
        assert!(found.chunks(wanted.len()).all(|few| few.iter().eq(&wanted)));
    }

    #[test]
    fn filters_of_floats_keep_each_zero_and_nan() {
        let others = std::iter::repeat_n(-7.5, 100_000);
        let numbers = [0.0, -0.0, f64::NAN].into_iter().chain(others);
        let numbers: ArrayRef = Arc::new(Float64Array::from_iter_values(numbers));
        let batch = RecordBatch::try_from_iter([("x", numbers)]).expect("one column");
        let schema = batch.schema();
        let x = || col("x", &schema).expect("the column");
        let than = |operator, value: f64| {
            binary(x(), operator, lit(value), &schema).expect("a comparison")
        };
        let is_in = |value: f64| in_list(x(), vec![lit(value)], &false, &schema).expect("a list");
        let (greater, less) = (Operator::Gt, Operator::Lt);
        for (now, wanted) in [
            (than(greater, -0.0), Some([false, false, true])),
            (than(greater, -1.0), Some([true; 3])),
            (than(greater, f64::INFINITY), Some([false, false, true])),
            (than(greater, f64::NAN), Some([false; 3])),
            (than(Operator::GtEq, 0.0), Some([true; 3])),
            (than(Operator::Eq, -0.0), Some([true, true, false])),
            (than(less, -9.0), Some([false; 3])),
            // Lists compare bits.
            (is_in(-0.0), None),
            (is_in(f64::NAN), None),
        ] {
            let dynamic = DynamicFilterPhysicalExpr::new(vec![x()], lit(true));
            dynamic.update(Arc::clone(&now)).expect("a filter");
            let dynamic: Arc<dyn PhysicalExpr> = Arc::new(dynamic);
            let mut filter = Filter::new(&dynamic, &schema);
            let Some(kept) = filter.kept(&batch).expect("a mask") else {
                // On a busy machine, a filter may take too long.
                assert!(wanted.is_none() || filter.passing > 0, "{now}");
                continue;
            };
            let kept = [0, 1, 2].map(|row| kept.value(row));
            assert_eq!(Some(kept), wanted, "{now}");
        }
    }

    #[test]
    fn a_filter_that_leaves_out_nothing_pauses_for_longer_each_time() {
        let batch = batch((0..100).map(Some));
        let schema = batch.schema();
        let mut filter = Filter::new(&below(1_000, &schema), &schema);
        for pause in [1, 2, 4, 8, 16, 32, 64, 64] {
            assert_eq!(filter.kept(&batch).expect("a mask"), None);
            assert_eq!(filter.passing, pause);
            for _ in 0..pause {
                assert_eq!(filter.kept(&batch).expect("a mask"), None);
            }
        }
    }
}
