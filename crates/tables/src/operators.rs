//! Operators whose meaning depends on the types of their sides while a statement is planned.

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::DFSchema;
use datafusion::error::Result;
use datafusion::logical_expr::planner::{
    ExprPlanner, PlannerResult, RawAggregateExpr, RawBinaryExpr,
};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Operator, cast};
use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::ast::BinaryOperator;

/// Times without a zone, as PostgreSQL has them.
const TIMESTAMP: DataType = DataType::Timestamp(TimeUnit::Microsecond, None);
const NANOS_OF_DAY: i64 = 86_400 * 1_000_000_000;

/// Plans dates with intervals, which are timestamps, and aggregates of casts.
#[derive(Debug)]
pub(crate) struct Dates;

impl ExprPlanner for Dates {
    fn plan_aggregate(
        &self,
        mut expr: RawAggregateExpr,
    ) -> Result<PlannerResult<RawAggregateExpr>> {
        let arguments = expr.args.into_iter();
        expr.args = arguments.map(crate::semantics::typed).collect();
        Ok(PlannerResult::Original(expr))
    }

    fn plan_binary_op(
        &self,
        expr: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>> {
        use BinaryOperator as Sql;
        let op = match expr.op {
            Sql::Plus => Operator::Plus,
            Sql::Minus => Operator::Minus,
            Sql::Eq => Operator::Eq,
            Sql::NotEq => Operator::NotEq,
            Sql::Lt => Operator::Lt,
            Sql::LtEq => Operator::LtEq,
            Sql::Gt => Operator::Gt,
            Sql::GtEq => Operator::GtEq,
            _ => return Ok(PlannerResult::Original(expr)),
        };
        if matches!(op, Operator::Plus | Operator::Minus) {
            return added(expr, op, schema);
        }
        compared(expr, op, schema)
    }
}

/// Plans a sum of a date and an interval.
fn added(
    expr: RawBinaryExpr,
    op: Operator,
    schema: &DFSchema,
) -> Result<PlannerResult<RawBinaryExpr>> {
    let is_interval = |data_type: &DataType| matches!(data_type, DataType::Interval(_));
    let (Ok(left), Ok(right)) = (expr.left.get_type(schema), expr.right.get_type(schema)) else {
        return Ok(PlannerResult::Original(expr));
    };
    let (left, right) = match (left, right) {
        (DataType::Date32, other) if is_interval(&other) => {
            (cast(expr.left, TIMESTAMP), expr.right)
        }
        (other, DataType::Date32) if is_interval(&other) && op == Operator::Plus => {
            (cast(expr.right, TIMESTAMP), expr.left)
        }
        _ => return Ok(PlannerResult::Original(expr)),
    };
    Ok(PlannerResult::Planned(binary(left, op, right)))
}

/// Plans the comparison of a date with a sum of a date and whole days or months. Dates are compared then, which finds
/// rows in files faster.
fn compared(
    expr: RawBinaryExpr,
    op: Operator,
    schema: &DFSchema,
) -> Result<PlannerResult<RawBinaryExpr>> {
    let (left, right) = match (date_sum(&expr.left), date_sum(&expr.right)) {
        (None, Some(sum)) if is_date(&expr.left, schema) => (expr.left, sum),
        (Some(sum), None) if is_date(&expr.right, schema) => (sum, expr.right),
        _ => return Ok(PlannerResult::Original(expr)),
    };
    Ok(PlannerResult::Planned(binary(left, op, right)))
}

fn is_date(expr: &Expr, schema: &DFSchema) -> bool {
    matches!(expr.get_type(schema), Ok(DataType::Date32))
}

/// Returns the sum of a date and whole days or months as a date; `None` if an expression is another.
fn date_sum(expr: &Expr) -> Option<Expr> {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = expr else {
        return None;
    };
    let (Operator::Plus | Operator::Minus, Expr::Cast(date)) = (op, &**left) else {
        return None;
    };
    let Expr::Literal(ScalarValue::IntervalMonthDayNano(Some(interval)), _) = &**right else {
        return None;
    };
    let is_date = match &*date.expr {
        Expr::Cast(inner) => *inner.field.data_type() == DataType::Date32,
        Expr::Literal(ScalarValue::Date32(_), _) => true,
        _ => false,
    };
    if !is_date || *date.field.data_type() != TIMESTAMP || interval.nanoseconds % NANOS_OF_DAY != 0
    {
        return None;
    }
    Some(binary((*date.expr).clone(), *op, (**right).clone()))
}

fn binary(left: Expr, op: Operator, right: Expr) -> Expr {
    Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right)))
}
