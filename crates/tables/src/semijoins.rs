//! Semi joins below inner joins.
//!
//! `o_orderkey IN (SELECT ... GROUP BY ... HAVING ...)` is a semi join above the joins of the query, whose hash tables
//! then have rows that it leaves out. Query 18 of TPC-H needs more than 3 GiB so at scale factor 10, and less than
//! 1 GiB with the semi join below.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, JoinType};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, Join, LogicalPlan, Projection};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

/// Moves a semi join with groups below inner joins, to the input that has its keys.
#[derive(Debug)]
pub(crate) struct SemiJoins;

impl OptimizerRule for SemiJoins {
    fn name(&self) -> &str {
        "semi_joins"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        match plan {
            LogicalPlan::Join(semi)
                if semi.join_type == JoinType::LeftSemi
                    && semi.filter.is_none()
                    && returns_groups(&semi.right) =>
            {
                moved(semi)
            }
            plan => Ok(Transformed::no(plan)),
        }
    }
}

/// Returns whether a plan returns groups, perhaps fewer or fewer columns of them.
fn returns_groups(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Aggregate(aggregate) => !aggregate.group_expr.is_empty(),
        LogicalPlan::Projection(projection) => returns_groups(&projection.input),
        LogicalPlan::Filter(filter) => returns_groups(&filter.input),
        LogicalPlan::SubqueryAlias(alias) => returns_groups(&alias.input),
        _ => false,
    }
}

/// Returns the semi join one step lower.
fn moved(semi: Join) -> Result<Transformed<LogicalPlan>> {
    let keys: Vec<&Expr> = semi.on.iter().map(|(left, _)| left).collect();
    match semi.left.as_ref() {
        LogicalPlan::Projection(columns) if has_columns_alone(columns) => {
            let lower = below(&semi, &columns.input)?;
            let above = Projection::try_new(columns.expr.clone(), Arc::new(lower))?;
            Ok(Transformed::yes(LogicalPlan::Projection(above)))
        }
        LogicalPlan::Join(join) if join.join_type == JoinType::Inner => {
            let mut join = join.clone();
            if keys.iter().all(|key| is_of(key, join.left.schema())) {
                join.left = Arc::new(below(&semi, &join.left)?);
            } else if keys.iter().all(|key| is_of(key, join.right.schema())) {
                join.right = Arc::new(below(&semi, &join.right)?);
            } else {
                return Ok(Transformed::no(LogicalPlan::Join(semi)));
            }
            Ok(Transformed::yes(LogicalPlan::Join(join)))
        }
        _ => Ok(Transformed::no(LogicalPlan::Join(semi))),
    }
}

/// Returns the semi join of another input.
fn below(semi: &Join, input: &Arc<LogicalPlan>) -> Result<LogicalPlan> {
    let join = Join::try_new(
        Arc::clone(input),
        Arc::clone(&semi.right),
        semi.on.clone(),
        None,
        semi.join_type,
        semi.join_constraint,
        semi.null_equality,
        semi.null_aware,
    )?;
    Ok(LogicalPlan::Join(join))
}

fn has_columns_alone(projection: &Projection) -> bool {
    let mut expressions = projection.expr.iter();
    expressions.all(|expr| matches!(expr, Expr::Column(_)))
}

/// Returns whether an expression uses columns of a schema alone.
fn is_of(expr: &Expr, schema: &DFSchema) -> bool {
    let columns = expr.column_refs();
    !columns.is_empty() && columns.into_iter().all(|column| schema.has_column(column))
}
