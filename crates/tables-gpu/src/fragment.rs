//! The part of a plan that one kernel computes: aggregates over rows of a scan that conditions keep.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::datasource::physical_plan::{FileScanConfig, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning};

use crate::reason::Reason;

type Result<T> = std::result::Result<T, Reason>;
type Exprs = Vec<Arc<dyn PhysicalExpr>>;

/// An aggregate, over columns of the table.
#[derive(Debug, Clone)]
pub(crate) struct Aggregate {
    pub(crate) function: Arc<AggregateFunctionExpr>,
    pub(crate) arguments: Exprs,
    pub(crate) filter: Option<Arc<dyn PhysicalExpr>>,
}

/// A fragment. All expressions are over the columns of the table.
#[derive(Debug, Clone)]
pub(crate) struct Fragment {
    pub(crate) scan: FileScanConfig,
    /// Conditions that all hold for a row that counts.
    pub(crate) filters: Exprs,
    pub(crate) keys: Exprs,
    pub(crate) aggregates: Vec<Aggregate>,
}

/// What an operator returns: expressions over the columns of a table.
struct Rows {
    scan: FileScanConfig,
    columns: Exprs,
    filters: Exprs,
}

impl Fragment {
    /// Returns the fragment of an aggregate operator that reads files.
    ///
    /// # Errors
    /// Why it is none.
    pub(crate) fn of(aggregate: &AggregateExec) -> Result<Fragment> {
        let groups = aggregate.group_expr();
        if *aggregate.mode() != AggregateMode::Partial {
            return Err(Reason::new("an aggregate of aggregates"));
        }
        if !groups.is_single() || groups.has_grouping_set() {
            return Err(Reason::new("grouping sets"));
        }
        if aggregate.limit_options().is_some() {
            return Err(Reason::new("an aggregate with a limit"));
        }
        let rows = rows(aggregate.input())?;
        let keys = groups.expr().iter();
        let keys = keys.map(|(key, _)| over_table(key, &rows.columns));
        let functions = aggregate.aggr_expr().iter().zip(aggregate.filter_expr());
        let aggregates = functions.map(|(function, filter)| {
            let arguments = function.expressions();
            let arguments = arguments.iter().map(|it| over_table(it, &rows.columns));
            let filter = filter.as_ref().map(|it| over_table(it, &rows.columns));
            Ok(Aggregate {
                function: Arc::clone(function),
                arguments: arguments.collect::<Result<_>>()?,
                filter: filter.transpose()?,
            })
        });
        Ok(Fragment {
            keys: keys.collect::<Result<_>>()?,
            aggregates: aggregates.collect::<Result<_>>()?,
            filters: rows.filters,
            scan: rows.scan,
        })
    }

    /// Returns the indexes of the columns that the fragment reads, in order.
    pub(crate) fn columns(&self) -> Vec<usize> {
        let aggregates = self.aggregates.iter();
        let of_aggregates = aggregates.flat_map(|it| it.arguments.iter().chain(&it.filter));
        let exprs = self.filters.iter().chain(&self.keys).chain(of_aggregates);
        let columns = exprs.flat_map(collect_columns).map(|it| it.index());
        let mut columns: Vec<usize> = columns.collect();
        columns.sort_unstable();
        columns.dedup();
        columns
    }
}

/// Returns an expression over the columns of an operator as one over those of the table.
fn over_table(expr: &Arc<dyn PhysicalExpr>, columns: &Exprs) -> Result<Arc<dyn PhysicalExpr>> {
    let replaced = Arc::clone(expr).transform_down(|node| {
        let Some(column) = node.downcast_ref::<Column>() else {
            return Ok(Transformed::no(node));
        };
        // What replaces a column has columns of the table, which are none of the operator's.
        let replacement = Arc::clone(&columns[column.index()]);
        Ok(Transformed::new(
            replacement,
            true,
            datafusion::common::tree_node::TreeNodeRecursion::Jump,
        ))
    });
    replaced.data().map_err(Reason::of)
}

fn rows(plan: &Arc<dyn ExecutionPlan>) -> Result<Rows> {
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let mut rows = rows(filter.input())?;
        if filter.fetch().is_some() {
            return Err(Reason::new("a filter with a limit"));
        }
        rows.filters
            .push(over_table(filter.predicate(), &rows.columns)?);
        if let Some(kept) = filter.projection() {
            rows.columns = kept
                .iter()
                .map(|it| Arc::clone(&rows.columns[*it]))
                .collect();
        }
        return Ok(rows);
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let mut rows = rows(projection.input())?;
        let exprs = projection.expr().iter();
        let exprs = exprs.map(|it| over_table(&it.expr, &rows.columns));
        rows.columns = exprs.collect::<Result<_>>()?;
        return Ok(rows);
    }
    let repartition = plan.downcast_ref::<RepartitionExec>();
    let is_moved =
        repartition.is_some_and(|it| matches!(it.partitioning(), Partitioning::RoundRobinBatch(_)));
    if is_moved || plan.is::<CooperativeExec>() {
        return rows(plan.children()[0]);
    }
    let scan = plan.downcast_ref::<DataSourceExec>();
    let scan = scan.and_then(|it| it.data_source().downcast_ref::<FileScanConfig>());
    let scan = scan.ok_or_else(|| Reason::new(format!("{} is below", plan.name())))?;
    of_scan(scan)
}

fn of_scan(scan: &FileScanConfig) -> Result<Rows> {
    let Some(source) = scan.file_source.downcast_ref::<ParquetSource>() else {
        let text = format!("files of type {}", scan.file_source.file_type());
        return Err(Reason::new(text));
    };
    // No operator tests the conditions again then.
    if source.table_parquet_options().global.pushdown_filters && scan.file_source.filter().is_some()
    {
        return Err(Reason::new(
            "conditions that are tested while files are decoded",
        ));
    }
    if scan.limit.is_some() {
        return Err(Reason::new("a scan with a limit"));
    }
    let schema = scan.file_source.table_schema().table_schema();
    let columns = match scan.file_source.projection() {
        Some(projection) => projection.iter().map(|it| Arc::clone(&it.expr)).collect(),
        None => {
            let fields = schema.fields().iter().enumerate();
            let columns =
                fields.map(|(index, field)| Arc::new(Column::new(field.name(), index)) as _);
            columns.collect()
        }
    };
    Ok(Rows {
        scan: scan.clone(),
        columns,
        filters: Vec::new(),
    })
}
