//! Aggregates whose groups are joined with other rows: only those groups are computed that a row may have.

use std::sync::Arc;

use datafusion::common::stats::Precision;
use datafusion::common::{JoinType, NullEquality};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};

use crate::fragment::{Exprs, Fragment, Rows, column_of, is_moving, over_rows, rows};
use crate::join::{Join, JoinKind};
use crate::operator::GpuFragmentExec;
use crate::packed::is_text;
use crate::reason::Reason;
use crate::rule::check;

type Plan = Arc<dyn ExecutionPlan>;

/// Returns the aggregate of a GPU below a plan, and expressions over the columns of the plan as those over its columns;
/// `None` if other operators than filters, projections and those that move rows are between.
fn aggregate_below<'a>(plan: &'a Plan, exprs: &Exprs) -> Option<(&'a GpuFragmentExec, Exprs)> {
    if let Some(groups) = plan.downcast_ref::<GpuFragmentExec>() {
        let are_values = !groups.fragment().is_listed && !groups.fragment().returns_states;
        return are_values.then(|| (groups, exprs.clone()));
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
        return aggregate_below(below, exprs);
    } else {
        return None;
    };
    let exprs = exprs.iter().map(|expr| over_rows(expr, &columns));
    let exprs = exprs.collect::<Result<Exprs, Reason>>().ok()?;
    aggregate_below(below, &exprs)
}

/// Returns whether a plan surely returns at most one row for values of these expressions: the groups of an aggregate,
/// or one row in all.
pub(crate) fn is_unique(plan: &Plan, keys: &Exprs) -> bool {
    let is_one_row = || {
        let known = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new());
        known.is_ok_and(|it| matches!(it.num_rows, Precision::Exact(0 | 1)))
    };
    let of_groups = aggregate_below(plan, keys).is_some_and(|(aggregate, keys)| {
        let columns: Vec<_> = keys.iter().filter_map(column_of).collect();
        let mut of_groups = 0..aggregate.fragment().keys.len();
        of_groups.all(|key| columns.contains(&key))
    });
    of_groups || is_one_row()
}

/// Returns a plan whose aggregate leaves out groups that no row that is kept can have: it gets a semi join with the
/// rows of a join that leaves out rows by the same key. `None` if there is no such join.
///
/// `keys` are the keys over the rows that are kept, `of_plan` those over the columns of the plan.
pub(crate) fn reduced(plan: &Plan, kept: &Rows, keys: &Exprs, of_plan: &Exprs) -> Option<Plan> {
    let (aggregate, of_aggregate) = aggregate_below(plan, of_plan)?;
    let mut fragment = Fragment::clone(aggregate.fragment());
    let mut is_reduced = false;
    for (key, of_aggregate) in keys.iter().zip(&of_aggregate) {
        let group_key = column_of(of_aggregate).and_then(|index| fragment.keys.get(index).cloned());
        let join = kept.joins.iter().find(|join| leaves_out(join, key));
        if let (Some(group_key), Some(join)) = (group_key, join) {
            // A join of the CPU may be one of a larger fragment, too.
            let mut known = fragment.rows.joins.iter();
            if known.any(|it| is_semi_join(it, &group_key, join)) {
                continue;
            }
            let first = fragment.rows.widen(&join.rows, false).ok()?;
            fragment.rows.joins.push(Join {
                kind: JoinKind::Semi,
                keys: vec![group_key],
                first,
                repeats: false,
                ..join.clone()
            });
            is_reduced = true;
        }
    }
    fragment.number();
    if !is_reduced || check(&fragment).is_err() {
        return None;
    }
    with_aggregate(plan, Arc::new(aggregate.with_fragment(fragment)))
}

/// Returns a join of the CPU whose aggregates leave out groups that no row of the other side can have; `None` if they
/// leave out none.
pub(crate) fn with_fewer_groups(join: &HashJoinExec) -> Option<[Plan; 2]> {
    if join.null_equality() != NullEquality::NullEqualsNothing || join.null_aware {
        return None;
    }
    // For each side, whether rows without a match are left out.
    let are_left_out = match join.join_type() {
        JoinType::Inner | JoinType::LeftSemi | JoinType::RightSemi => [true, true],
        JoinType::Left | JoinType::LeftAnti => [false, true],
        JoinType::Right | JoinType::RightAnti => [true, false],
        _ => return None,
    };
    let sides = [join.left(), join.right()];
    let keys = [0, 1].map(|side| {
        let keys = join.on().iter().map(|(left, right)| [left, right][side]);
        keys.cloned().collect::<Exprs>()
    });
    let reduced_sides = [0, 1].map(|side| {
        let mut kept = are_left_out[side]
            .then(|| rows(sides[1 - side]).ok())
            .flatten()?;
        // The CPU may read a later version of a table, with other keys than those of the groups.
        kept.joins.retain(|join| !join.rows.has_versions());
        let of_kept = keys[1 - side].iter();
        let of_kept = of_kept.map(|key| over_rows(key, &kept.columns));
        let of_kept = of_kept.collect::<Result<Exprs, Reason>>().ok()?;
        reduced(sides[side], &kept, &of_kept, &keys[side])
    });
    let [left, right] = reduced_sides;
    if left.is_none() && right.is_none() {
        return None;
    }
    let left = left.unwrap_or_else(|| Arc::clone(sides[0]));
    let right = right.unwrap_or_else(|| Arc::clone(sides[1]));
    Some([left, right])
}

/// Returns whether a join leaves out rows by the value of an expression alone.
fn leaves_out(join: &Join, key: &Arc<dyn PhysicalExpr>) -> bool {
    let ([own], [of_rows]) = (join.keys.as_slice(), join.keys_of_rows.as_slice()) else {
        return false;
    };
    // A column of the join that is its key is equal.
    let index = column_of(key).and_then(|it| it.checked_sub(join.first));
    let of_join = index.and_then(|it| join.rows.columns.get(it));
    let is_of_key = are_same(own, key) || of_join.is_some_and(|it| are_same(it, of_rows));
    let leaves_out = matches!(join.kind, JoinKind::Inner | JoinKind::Semi) && join.is_selective();
    // A plan that ran twice could return other rows.
    // Other rows that repeat a key would leave the whole aggregate to the CPU.
    // So would texts as keys with too many values.
    let has_texts = of_rows
        .data_type(&join.rows.schema)
        .is_ok_and(|it| is_text(&it));
    let mut joins = join.rows.joins.iter();
    let may_fail = has_texts || joins.any(|it| it.is_unique() || it.repeats);
    leaves_out && is_of_key && join.condition.is_none() && !join.rows.has_plan() && !may_fail
}

/// Returns whether a join is the semi join by a key with the rows of another join. Compares the bytes of the files
/// alone: a mistake forgoes or repeats a semi join, and changes no row.
fn is_semi_join(known: &Join, key: &Arc<dyn PhysicalExpr>, join: &Join) -> bool {
    known.kind == JoinKind::Semi
        && known.keys.as_slice() == std::slice::from_ref(key)
        && known.keys_of_rows == join.keys_of_rows
        && known.rows.filters == join.rows.filters
        && known.rows.joins.len() == join.rows.joins.len()
        && known.rows.origin.bytes() == join.rows.origin.bytes()
}

fn are_same(one: &Arc<dyn PhysicalExpr>, other: &Arc<dyn PhysicalExpr>) -> bool {
    match (column_of(one), column_of(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

/// Returns a plan with another aggregate below.
fn with_aggregate(plan: &Plan, aggregate: Plan) -> Option<Plan> {
    if plan.is::<GpuFragmentExec>() {
        return Some(aggregate);
    }
    let input = with_aggregate(plan.children()[0], aggregate)?;
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep);
    Arc::clone(plan).replace_children(vec![input], options).ok()
}
