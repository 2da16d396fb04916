//! Parameters of plans, replaced by their values.

use datafusion::arrow::datatypes::{DECIMAL_DEFAULT_SCALE, DECIMAL128_MAX_PRECISION, DataType};
use datafusion::common::ParamValues;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::scalar::ScalarValue;

use crate::error::Result;

/// The type that DataFusion takes for `numeric` without a precision.
const NUMERIC: DataType = DataType::Decimal128(DECIMAL128_MAX_PRECISION, DECIMAL_DEFAULT_SCALE);

/// Returns a plan with the values of its parameters, from `$1` on.
///
/// # Errors
/// If a parameter has no value, or its type does not fit.
pub(crate) fn bound(plan: LogicalPlan, values: &[ScalarValue]) -> Result<LogicalPlan> {
    let plan = match values.iter().any(is_decimal) {
        true => with_all_digits(plan, values)?,
        false => plan,
    };
    let values = ParamValues::from(values.to_vec());
    Ok(plan.replace_params_with_values(&values)?)
}

fn is_decimal(value: &ScalarValue) -> bool {
    matches!(
        value,
        ScalarValue::Decimal128(Some(_), ..) | ScalarValue::Decimal256(Some(_), ..)
    )
}

/// Removes the casts of decimals in `$1::numeric`, which would round them to ten decimals.
fn with_all_digits(plan: LogicalPlan, values: &[ScalarValue]) -> Result<LogicalPlan> {
    let plan = plan.transform_up_with_subqueries(|node| {
        let names = NamePreserver::new(&node);
        node.map_expressions(|expr| {
            let name = names.save(&expr);
            let expr = expr.transform_up(|inner| Ok(uncast(inner, values)))?;
            Ok(expr.update_data(|expr| name.restore(expr)))
        })
    })?;
    Ok(plan.data)
}

fn uncast(expr: Expr, values: &[ScalarValue]) -> Transformed<Expr> {
    match expr {
        Expr::Cast(cast)
            if *cast.field.data_type() == NUMERIC && has_decimal(&cast.expr, values) =>
        {
            Transformed::yes(*cast.expr)
        }
        other => Transformed::no(other),
    }
}

/// Returns whether an expression is a parameter whose value is a decimal.
fn has_decimal(expr: &Expr, values: &[ScalarValue]) -> bool {
    let Expr::Placeholder(parameter) = expr else {
        return false;
    };
    let number = parameter.id.strip_prefix('$');
    let number = number.and_then(|number| number.parse::<usize>().ok());
    let index = number.and_then(|number| number.checked_sub(1));
    index
        .and_then(|index| values.get(index))
        .is_some_and(is_decimal)
}
