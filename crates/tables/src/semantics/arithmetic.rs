//! Arithmetic that fails instead of wrapping, and rounding.

use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Datum};
use datafusion::arrow::compute::kernels::numeric::{add, div, mul, sub};
use datafusion::arrow::compute::{cast, unary};
use datafusion::arrow::datatypes::{ArrowPrimitiveType, DataType, Float32Type, Float64Type};
use datafusion::arrow::error::ArrowError;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{ColumnarValue, Operator, ScalarFunctionArgs, ScalarUDF};
use datafusion::physical_expr_common::datum::apply;

use super::native::native;
use crate::error::{Code, SqlError};

/// Computes an operator for all rows.
type Kernel = fn(&dyn Datum, &dyn Datum) -> Result<ArrayRef, ArrowError>;

/// Returns the function of an operator of integers that fails if the result exceeds their type.
pub(super) fn checked(op: Operator) -> Option<Arc<ScalarUDF>> {
    static PLUS: LazyLock<Arc<ScalarUDF>> =
        LazyLock::new(|| native("int_plus", 2, first, |arguments| computed(arguments, add)));
    static MINUS: LazyLock<Arc<ScalarUDF>> =
        LazyLock::new(|| native("int_minus", 2, first, |arguments| computed(arguments, sub)));
    static TIMES: LazyLock<Arc<ScalarUDF>> =
        LazyLock::new(|| native("int_times", 2, first, |arguments| computed(arguments, mul)));
    Some(Arc::clone(match op {
        Operator::Plus => &PLUS,
        Operator::Minus => &MINUS,
        Operator::Multiply => &TIMES,
        _ => return None,
    }))
}

/// Returns the division of floats that fails if the divisor is zero.
pub(super) fn divide_floats() -> Arc<ScalarUDF> {
    static DIVIDE: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
        native("float_divide", 2, first, |arguments| {
            computed(arguments, divided)
        })
    });
    Arc::clone(&DIVIDE)
}

/// Returns the function that rounds floats, halves to even numbers.
pub(super) fn round_to_even() -> Arc<ScalarUDF> {
    static ROUND: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
        native("round_to_even", 1, first, |arguments| {
            each(&arguments.args[0], |values| {
                Ok(match values.data_type() {
                    DataType::Float32 => Arc::new(unary::<_, _, Float32Type>(
                        values.as_primitive::<Float32Type>(),
                        f32::round_ties_even,
                    )),
                    _ => Arc::new(unary::<_, _, Float64Type>(
                        values.as_primitive::<Float64Type>(),
                        f64::round_ties_even,
                    )),
                })
            })
        })
    });
    Arc::clone(&ROUND)
}

/// Returns the function that rounds decimals to whole numbers, halves away from zero.
pub(super) fn round_decimal() -> Arc<ScalarUDF> {
    static ROUND: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
        native("round_decimal", 1, whole, |arguments| {
            let to = arguments.return_type().clone();
            each(&arguments.args[0], |values| Ok(cast(values, &to)?))
        })
    });
    Arc::clone(&ROUND)
}

/// Returns the type of the first argument.
fn first(types: &[DataType]) -> Result<DataType> {
    Ok(types[0].clone())
}

/// Returns the type of whole numbers of a decimal type.
fn whole(types: &[DataType]) -> Result<DataType> {
    Ok(match &types[0] {
        DataType::Decimal128(precision, _) => DataType::Decimal128(*precision, 0),
        other => other.clone(),
    })
}

/// Computes a value for each row of an argument.
pub(super) fn each(
    argument: &ColumnarValue,
    compute: impl Fn(&ArrayRef) -> Result<ArrayRef>,
) -> Result<ColumnarValue> {
    match argument {
        ColumnarValue::Array(values) => Ok(ColumnarValue::Array(compute(values)?)),
        ColumnarValue::Scalar(value) => {
            let values = compute(&value.to_array()?)?;
            let value = datafusion::scalar::ScalarValue::try_from_array(&values, 0)?;
            Ok(ColumnarValue::Scalar(value))
        }
    }
}

fn computed(arguments: ScalarFunctionArgs, kernel: Kernel) -> Result<ColumnarValue> {
    let [left, right] = &*arguments.args else {
        return Err(DataFusionError::Internal(
            "an operator has two sides".into(),
        ));
    };
    apply(left, right, kernel).map_err(|error| match error {
        DataFusionError::ArrowError(inner, _)
            if matches!(*inner, ArrowError::ArithmeticOverflow(_)) =>
        {
            let name = match left.data_type() {
                DataType::Int8 | DataType::Int16 => "smallint",
                DataType::Int32 => "integer",
                _ => "bigint",
            };
            failed(Code::NumericValueOutOfRange, format!("{name} out of range"))
        }
        other => other,
    })
}

fn failed(code: Code, message: impl Into<String>) -> DataFusionError {
    DataFusionError::External(Box::new(SqlError::new(code, message)))
}

fn divided(left: &dyn Datum, right: &dyn Datum) -> Result<ArrayRef, ArrowError> {
    let is_by_zero = match right.get().0.data_type() {
        DataType::Float32 => divides_by_zero::<Float32Type>(left, right, 0.0),
        DataType::Float64 => divides_by_zero::<Float64Type>(left, right, 0.0),
        _ => false,
    };
    match is_by_zero {
        true => Err(ArrowError::DivideByZero),
        false => div(left, right),
    }
}

fn divides_by_zero<T: ArrowPrimitiveType>(
    left: &dyn Datum,
    right: &dyn Datum,
    zero: T::Native,
) -> bool {
    let (divisors, is_scalar) = right.get();
    let divisors = divisors.as_primitive::<T>();
    if !divisors.values().contains(&zero) {
        return false;
    }
    let (dividends, is_one) = left.get();
    if is_scalar {
        return divisors.is_valid(0) && dividends.null_count() < dividends.len();
    }
    (0..divisors.len()).any(|row| {
        divisors.is_valid(row)
            && divisors.value(row) == zero
            && dividends.is_valid(if is_one { 0 } else { row })
    })
}
