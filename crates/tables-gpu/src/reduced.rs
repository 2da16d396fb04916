//! Aggregates whose groups are joined with other rows: only those groups are computed that a row may have.

use std::sync::Arc;

use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};

use crate::fragment::{Exprs, Fragment, Rows, is_moving, over_rows};
use crate::join::{Join, JoinKind};
use crate::operator::GpuAggregateExec;
use crate::reason::Reason;
use crate::rule::check;

type Plan = Arc<dyn ExecutionPlan>;

/// Returns the operator of groups that a plan returns, with the expressions over its columns that `exprs` are, which are
/// over those of the plan; `None` if the plan does more than to filter, move and compute.
fn of_groups<'a>(plan: &'a Plan, exprs: &Exprs) -> Option<(&'a GpuAggregateExec, Exprs)> {
    if let Some(groups) = plan.downcast_ref::<GpuAggregateExec>() {
        return Some((groups, exprs.clone()));
    }
    let below = plan.children().first().copied()?;
    let columns: Exprs = if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let columns = projection.expr().iter();
        columns.map(|it| Arc::clone(&it.expr)).collect()
    } else if let Some(filter) = plan.downcast_ref::<FilterExec>()
        && filter.fetch().is_none()
    {
        let all = (0..below.schema().fields().len()).collect::<Vec<_>>();
        let kept = filter.projection().as_deref().unwrap_or(&all).iter();
        let schema = below.schema();
        let columns = kept.map(|it| Arc::new(Column::new(schema.field(*it).name(), *it)) as _);
        columns.collect()
    } else if is_moving(plan) {
        return of_groups(below, exprs);
    } else {
        return None;
    };
    let exprs = exprs.iter().map(|expr| over_rows(expr, &columns));
    let exprs = exprs.collect::<Result<Exprs, Reason>>().ok()?;
    of_groups(below, &exprs)
}

/// Returns whether a plan surely returns at most one row for values of these expressions: the groups of an aggregate.
pub(crate) fn is_unique(plan: &Plan, keys: &Exprs) -> bool {
    of_groups(plan, keys).is_some_and(|(groups, keys)| {
        let columns: Vec<_> = keys.iter().filter_map(column).collect();
        let mut of_groups = 0..groups.fragment().keys.len();
        of_groups.all(|key| columns.contains(&key))
    })
}

/// Returns a plan of groups without those that no row has which is kept: the rows have the keys `keys` of the groups
/// `of_groups`, and joins before that leave out rows by one of them.
pub(crate) fn reduced(plan: &Plan, kept: &Rows, keys: &Exprs, of_plan: &Exprs) -> Option<Plan> {
    let (groups, of_groups) = of_groups(plan, of_plan)?;
    let mut fragment = Fragment::clone(groups.fragment());
    let mut is_reduced = false;
    for (key, of_groups) in keys.iter().zip(&of_groups) {
        let of_groups = column(of_groups).and_then(|index| fragment.keys.get(index).cloned());
        let join = kept.joins.iter().find(|join| leaves_out(join, key));
        if let (Some(of_groups), Some(join)) = (of_groups, join) {
            let first = fragment.rows.widen(&join.rows, false).ok()?;
            fragment.rows.joins.push(Join {
                kind: JoinKind::Semi,
                keys: vec![of_groups],
                first,
                ..join.clone()
            });
            is_reduced = true;
        }
    }
    fragment.number();
    if !is_reduced || check(&fragment).is_err() {
        return None;
    }
    let groups: Plan = Arc::new(groups.with_fragment(fragment));
    above(plan, groups)
}

/// Returns whether a join leaves out rows by the value of an expression alone.
fn leaves_out(join: &Join, key: &Arc<dyn PhysicalExpr>) -> bool {
    let ([own], [of_rows]) = (join.keys.as_slice(), join.keys_of_rows.as_slice()) else {
        return false;
    };
    // The join has the same value as a column.
    let index = column(key).and_then(|it| it.checked_sub(join.first));
    let of_join = index.and_then(|it| join.rows.columns.get(it));
    let is_of_key = are_same(own, key) || of_join.is_some_and(|it| are_same(it, of_rows));
    let leaves_out = matches!(join.kind, JoinKind::Inner | JoinKind::Semi) && join.is_selective();
    // A plan that ran twice could return other rows.
    leaves_out && is_of_key && join.differ.is_none() && !join.rows.has_plan()
}

fn are_same(one: &Arc<dyn PhysicalExpr>, other: &Arc<dyn PhysicalExpr>) -> bool {
    match (column(one), column(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

fn column(expr: &Arc<dyn PhysicalExpr>) -> Option<usize> {
    expr.downcast_ref::<Column>().map(Column::index)
}

/// Returns a plan with another operator of groups below.
fn above(plan: &Plan, groups: Plan) -> Option<Plan> {
    if plan.is::<GpuAggregateExec>() {
        return Some(groups);
    }
    let input = above(plan.children()[0], groups)?;
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep);
    Arc::clone(plan).replace_children(vec![input], options).ok()
}
