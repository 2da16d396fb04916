//! Operators above an aggregate that keep some of its groups.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column};
use datafusion::physical_expr::utils::{collect_columns, split_conjunction};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};

use crate::fragment::{Exprs, is_moving, over_rows};
use crate::operator::GpuFragmentExec;
use crate::reduced::with_fewer_groups;
use crate::selection::{Condition, Selection, Top};

/// Most digits of a decimal.
const DIGITS_MAX: u32 = 38;
/// Maximum number of conditions that a kernel tests, each a constant.
const CONDITIONS_MAX: usize = 16;

type Plan = Arc<dyn ExecutionPlan>;

/// Tells the operators of a device below a filter, a limited sort or a join which groups are kept. What is above them
/// stays.
pub(crate) fn selected(plan: Plan) -> Result<Transformed<Plan>> {
    let inputs = if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let all = split_conjunction(filter.predicate());
        let all: Exprs = all.into_iter().map(Arc::clone).collect();
        let is_complete = filter.fetch().is_none();
        with_conditions(filter.input(), &all, is_complete).map(|input| vec![input])
    } else if let Some(sort) = plan.downcast_ref::<SortExec>() {
        with_top(sort).map(|input| vec![input])
    } else if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        with_fewer_groups(join).map(Vec::from)
    } else {
        None
    };
    match inputs {
        Some(inputs) => Ok(Transformed::yes(with_inputs(&plan, inputs)?)),
        None => Ok(Transformed::no(plan)),
    }
}

fn with_inputs(plan: &Plan, inputs: Vec<Plan>) -> Result<Plan> {
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep);
    Arc::clone(plan).replace_children(inputs, options)
}

/// Returns a plan whose operator of a device tests as many of the conditions `all` on its rows as it can; `None` if
/// it can test none. `is_complete` tells that the plan above keeps all rows that satisfy them.
fn with_conditions(plan: &Plan, all: &Exprs, is_complete: bool) -> Option<Plan> {
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let columns = projection.expr().iter().map(|it| Arc::clone(&it.expr));
        let columns: Exprs = columns.collect();
        let all = all.iter().map(|it| over_rows(it, &columns));
        let all = all.collect::<std::result::Result<Exprs, _>>().ok()?;
        // Only an operator right above the filter uses whether the conditions are complete.
        let input = with_conditions(projection.input(), &all, false)?;
        return with_inputs(plan, vec![input]).ok();
    }
    let aggregate = plan.downcast_ref::<GpuFragmentExec>()?;
    let count = all.len();
    let conditions = all.iter().filter_map(|it| condition(it, aggregate));
    let conditions: Vec<_> = conditions.take(CONDITIONS_MAX).collect();
    if conditions.is_empty() {
        return None;
    }
    let selection = Selection {
        is_complete: is_complete && conditions.len() == count,
        conditions,
        top: None,
    };
    Some(Arc::new(aggregate.with_selection(selection)))
}

/// Returns a comparison of an aggregate with a constant or a scalar subquery.
fn condition(expr: &Arc<dyn PhysicalExpr>, of: &GpuFragmentExec) -> Option<Condition> {
    let binary = expr.downcast_ref::<BinaryExpr>()?;
    let (aggregate, value, operator) = match collect_columns(binary.right()).is_empty() {
        true => (binary.left(), binary.right(), *binary.op()),
        false => (binary.right(), binary.left(), binary.op().swap()?),
    };
    let is_known = matches!(
        operator,
        Operator::Eq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq
    );
    if !is_known || !collect_columns(value).is_empty() || is_volatile(value) {
        return None;
    }
    // A decimal is compared with one of more digits behind the point.
    let column = match aggregate.downcast_ref::<CastExpr>() {
        Some(cast) => cast.expr(),
        None => aggregate,
    };
    let index = column.downcast_ref::<Column>()?.index();
    let schema = of.schema();
    let own = digits(schema.field(index).data_type())?;
    let compared = digits(&aggregate.data_type(&schema).ok()?)?;
    let of_value = digits(&value.data_type(&schema).ok()?)?;
    // A cast to fewer digits may fail.
    let keeps_all =
        compared.before >= own.before || compared.before + compared.behind == DIGITS_MAX;
    if of_value.behind != compared.behind || !keeps_all {
        return None;
    }
    Some(Condition {
        aggregate: of.aggregate_of(index)?,
        operator,
        value: Arc::clone(value),
        exponent: compared.behind.checked_sub(own.behind)?,
    })
}

/// How many digits before and behind the point a number may have.
struct Digits {
    before: u32,
    behind: u32,
}

/// Returns the digits of numbers that kernels compare.
fn digits(data_type: &DataType) -> Option<Digits> {
    let (before, behind) = match data_type {
        // Kernels have only unsigned numbers below 2^63, which have at most 19 digits.
        DataType::Int64 | DataType::UInt64 => (19, 0),
        DataType::Decimal128(digits, behind) => {
            let behind = u8::try_from(*behind).ok()?;
            (digits.checked_sub(behind)?, behind)
        }
        _ => return None,
    };
    Some(Digits {
        before: before.into(),
        behind: behind.into(),
    })
}

/// Returns what is below a sort, if an operator of a device is there whose groups are sorted by an aggregate first.
fn with_top(sort: &SortExec) -> Option<Plan> {
    let first = sort.expr().first();
    let column = first.expr.downcast_ref::<Column>()?.index();
    let count = sort.fetch()? as u64;
    limited(sort.input(), column, &|aggregate| Top {
        aggregate,
        is_descending: first.options.descending,
        has_nulls_first: first.options.nulls_first,
        count,
    })
}

/// Returns a plan whose operator of a device returns the first groups by a column of the plan.
fn limited(plan: &Plan, column: usize, top: &dyn Fn(usize) -> Top) -> Option<Plan> {
    if let Some(aggregate) = plan.downcast_ref::<GpuFragmentExec>() {
        let mut selection = aggregate.selection().clone();
        selection.top = Some(top(aggregate.aggregate_of(column)?));
        return Some(Arc::new(aggregate.with_selection(selection)));
    }
    let below = if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let expr = &projection.expr().get(column)?.expr;
        expr.downcast_ref::<Column>()?.index()
    } else if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let below = filter.input().downcast_ref::<GpuFragmentExec>();
        if !below.is_some_and(|it| it.selection().is_complete) {
            return None;
        }
        match filter.projection() {
            Some(kept) => *kept.get(column)?,
            None => column,
        }
    } else if is_moving(plan) {
        column
    } else {
        return None;
    };
    let input = limited(plan.children().first()?, below, top)?;
    with_inputs(plan, vec![input]).ok()
}
