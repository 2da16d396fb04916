//! Aggregates of rows that several plans return (`UNION ALL`): kernels compute the states of the groups of each plan,
//! and the CPU merges the states of equal keys. A full join has the rows of a right join, and those of its left side
//! without a match.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::{JoinType, ScalarValue};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, IsNullExpr, Literal};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};
use forebay_tables::VersionedScan;

use crate::fragment::{Exprs, is_moving, over_rows, rows};
use crate::reason::Reason;

type Plan = Arc<dyn ExecutionPlan>;
type Result<T> = std::result::Result<T, Reason>;

/// Returns the same as [`parts`], if the CPU may compute one of the parts while kernels compute another.
///
/// # Errors
/// Why kernels do not compute them.
pub(crate) fn inputs(plan: &Plan) -> Option<Result<Vec<Plan>>> {
    let parts = parts(plan)?;
    Some(parts.and_then(|parts| match share_tables(&parts) {
        true => Err(Reason::new(
            "two parts of the plan read a table that may change between them",
        )),
        false => Ok(parts),
    }))
}

/// Returns whether parts of a full join read the same table that has versions.
fn share_tables(parts: &[Plan]) -> bool {
    let mut all = BTreeSet::new();
    parts.iter().any(|part| {
        let of_part = tables(part);
        let is_read = !all.is_disjoint(&of_part);
        all.extend(of_part);
        is_read
    })
}

/// Returns the addresses of the tables that have versions. Each scan of a query has its own, also of the same table.
fn tables(plan: &Plan) -> BTreeSet<*const ()> {
    let below = plan.children().into_iter().flat_map(tables);
    let own = plan.downcast_ref::<VersionedScan>();
    let own = own.map(|it| Arc::as_ptr(it.table()).cast::<()>());
    below.chain(own).collect()
}

/// Returns plans that together return the rows of a union or a full join; `None` if the plan is neither.
///
/// # Errors
/// Why kernels do not compute them.
pub(crate) fn parts(plan: &Plan) -> Option<Result<Vec<Plan>>> {
    if plan.fetch().is_some() {
        return None;
    }
    if let Some(union) = plan.downcast_ref::<UnionExec>() {
        let of_inputs = union.inputs().iter();
        let of_inputs = of_inputs.map(|it| parts(it).unwrap_or_else(|| Ok(vec![Arc::clone(it)])));
        let of_inputs: Result<Vec<_>> = of_inputs.collect();
        return Some(of_inputs.map(|it| it.concat()));
    }
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        return (*join.join_type() == JoinType::Full).then(|| parts_of_full(join));
    }
    if is_moving(plan) {
        return parts(plan.children()[0]);
    }
    if !plan.is::<FilterExec>() && !plan.is::<ProjectionExec>() {
        return None;
    }
    let below = parts(plan.children()[0])?;
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    let above = |part| {
        let above = Arc::clone(plan).replace_children(vec![part], options);
        above.map_err(Reason::of)
    };
    Some(below.and_then(|parts| parts.into_iter().map(above).collect()))
}

/// Returns the right join of the sides of a full join, and the rows of its left side without a match.
fn parts_of_full(join: &HashJoinExec) -> Result<Vec<Plan>> {
    for side in [join.left(), join.right()] {
        // Both parts read the side, and a plan that runs twice may return other rows.
        if rows(side)?.has_plan() {
            return Err(Reason::new("a full join with rows of a plan"));
        }
    }
    let of_type = |[left, right]: [Plan; 2], join_type: JoinType, projection| {
        HashJoinExec::try_new(
            left,
            right,
            join.on().to_vec(),
            join.filter().cloned(),
            &join_type,
            projection,
            *join.partition_mode(),
            join.null_equality(),
            false,
        )
        .map_err(Reason::of)
    };
    let sides = [join.left(), join.right()].map(Arc::clone);
    // The CPU may run both parts, so they share no state.
    let again = sides.clone().map(reset_plan_states);
    let [left, right] = again;
    let kept = join.projection.as_ref().map(|it| it.to_vec());
    let matched = of_type(sides, JoinType::Right, kept)?;
    let again = [left.map_err(Reason::of)?, right.map_err(Reason::of)?];
    let unmatched: Plan = match join.filter() {
        None => Arc::new(of_type(again, JoinType::LeftAnti, None)?),
        Some(_) => without_match(of_type(again, JoinType::Left, None)?)?,
    };
    let of_left = join.left().schema().fields().len();
    let all = of_left + join.right().schema().fields().len();
    let kept = match &join.projection {
        Some(kept) => kept.to_vec(),
        None => (0..all).collect(),
    };
    let schema = join.schema();
    let columns = kept.iter().zip(schema.fields()).map(|(index, field)| {
        let null = || ScalarValue::try_new_null(field.data_type()).map_err(Reason::of);
        let column: Arc<dyn PhysicalExpr> = match *index < of_left {
            true => Arc::new(Column::new(field.name(), *index)),
            false => Arc::new(Literal::new(null()?)),
        };
        Ok((column, field.name().clone()))
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    let unmatched = ProjectionExec::try_new(columns, unmatched).map_err(Reason::of)?;
    Ok(vec![Arc::new(matched), Arc::new(unmatched)])
}

/// Returns the rows of a left join without a match: in these, and no others, a key of the right side is NULL.
fn without_match(join: HashJoinExec) -> Result<Plan> {
    let of_left = join.left().schema().fields().len();
    let right = join.right().schema();
    let columns = right.fields().iter().enumerate();
    let columns: Exprs = columns
        .map(|(index, field)| Arc::new(Column::new(field.name(), of_left + index)) as _)
        .collect();
    let (_, key) = &join.on()[0];
    let is_null = Arc::new(IsNullExpr::new(over_rows(key, &columns)?));
    let unmatched = FilterExec::try_new(is_null, Arc::new(join)).map_err(Reason::of)?;
    Ok(Arc::new(unmatched))
}

/// Returns the first step of an aggregate, for the rows of another plan.
///
/// # Errors
/// Why DataFusion refuses it.
pub(crate) fn of_part(first: &AggregateExec, part: &Plan) -> Result<AggregateExec> {
    AggregateExec::try_new(
        AggregateMode::Partial,
        first.group_expr().clone(),
        first.aggr_expr().to_vec(),
        first.filter_expr().to_vec(),
        Arc::clone(part),
        part.schema(),
    )
    .map_err(Reason::of)
}
