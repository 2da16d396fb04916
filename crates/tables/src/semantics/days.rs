//! Days and times of timestamps.
//!
//! DataFusion takes casts for ones that keep the order. `CAST(t AS time) < '00:30'` left out files that go over
//! midnight, and `CAST(t AS date) < '2026-01-02'` failed if the bounds of `t` were known.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::DFSchema;
use datafusion::logical_expr::{Expr, ExprSchemable, Operator, ScalarUDF, lit};
use datafusion::scalar::ScalarValue;

use super::native;

const SECONDS_OF_DAY: i64 = 24 * 60 * 60;
/// Name of the function that hides a timestamp from what DataFusion knows of it.
const INSTANT: &str = "instant";

/// Returns the function that hides a value before its cast.
pub(super) fn of_cast(from: &DataType, to: &DataType) -> Option<Arc<ScalarUDF>> {
    let is_part = matches!(
        to,
        DataType::Date32 | DataType::Time32(_) | DataType::Time64(_)
    );
    (is_part && matches!(from, DataType::Timestamp(..))).then(|| native::named(INSTANT))
}

/// Returns the comparison of a timestamp's day with another day as one of the timestamp with the ends of that day.
/// Files are left out by it.
pub(super) fn compared(left: &Expr, op: Operator, right: &Expr, schema: &DFSchema) -> Option<Expr> {
    let (cast, op, day) = match (left, right) {
        (Expr::Cast(cast), Expr::Literal(ScalarValue::Date32(Some(day)), _)) => (cast, op, day),
        (Expr::Literal(ScalarValue::Date32(Some(day)), _), Expr::Cast(cast)) => {
            (cast, op.swap()?, day)
        }
        _ => return None,
    };
    let moment = match &*cast.expr {
        Expr::ScalarFunction(call) if call.func.name() == INSTANT => call.args.first()?,
        moment => moment,
    };
    let DataType::Timestamp(unit, None) = moment.get_type(schema).ok()? else {
        return None;
    };
    if *cast.field.data_type() != DataType::Date32 {
        return None;
    }
    let first = midnight(i64::from(*day), unit)?;
    let next = midnight(i64::from(*day) + 1, unit)?;
    let moment = moment.clone();
    Some(match op {
        Operator::Lt => moment.lt(first),
        Operator::LtEq => moment.lt(next),
        Operator::Gt => moment.gt_eq(next),
        Operator::GtEq => moment.gt_eq(first),
        Operator::Eq => moment.clone().gt_eq(first).and(moment.lt(next)),
        Operator::NotEq => moment.clone().lt(first).or(moment.gt_eq(next)),
        _ => return None,
    })
}

/// Returns the first moment of a day since 1970.
fn midnight(day: i64, unit: TimeUnit) -> Option<Expr> {
    let of_second = match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    };
    let moment = Some(day.checked_mul(SECONDS_OF_DAY * of_second)?);
    Some(lit(match unit {
        TimeUnit::Second => ScalarValue::TimestampSecond(moment, None),
        TimeUnit::Millisecond => ScalarValue::TimestampMillisecond(moment, None),
        TimeUnit::Microsecond => ScalarValue::TimestampMicrosecond(moment, None),
        TimeUnit::Nanosecond => ScalarValue::TimestampNanosecond(moment, None),
    }))
}
