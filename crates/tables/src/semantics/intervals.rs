//! Lengths of intervals.

use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{ArrayRef, AsArray, Decimal128Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{
    DataType, DurationNanosecondType, IntervalMonthDayNanoType, IntervalUnit, TimeUnit,
};
use datafusion::error::Result;
use datafusion::logical_expr::ScalarUDF;

use super::arithmetic::each;
use super::native::native;

const NANOS_OF_DAY: i128 = 86_400 * 1_000_000_000;
const DAYS_OF_MONTH: i128 = 30;
/// The type of lengths, in nanoseconds.
const LENGTH: DataType = DataType::Decimal128(38, 0);

/// Returns whether values of a type are lengths of time.
pub(super) fn is_interval(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Interval(_) | DataType::Duration(_))
}

/// Returns the function that tells how long an interval is. A month has 30 days, as PostgreSQL compares intervals.
pub(super) fn length() -> Arc<ScalarUDF> {
    static LENGTHS: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
        native(
            "interval_length",
            1,
            |_| Ok(LENGTH),
            |arguments| each(&arguments.args[0], lengths),
        )
    });
    Arc::clone(&LENGTHS)
}

fn lengths(values: &ArrayRef) -> Result<ArrayRef> {
    let lengths: Decimal128Array = match values.data_type() {
        DataType::Duration(_) => {
            let values = cast(values, &DataType::Duration(TimeUnit::Nanosecond))?;
            let values = values.as_primitive::<DurationNanosecondType>();
            values.iter().map(|value| value.map(i128::from)).collect()
        }
        _ => {
            let values = cast(values, &DataType::Interval(IntervalUnit::MonthDayNano))?;
            let values = values.as_primitive::<IntervalMonthDayNanoType>();
            let length = values.iter().map(|value| {
                value.map(|value| {
                    let days = i128::from(value.months) * DAYS_OF_MONTH + i128::from(value.days);
                    days * NANOS_OF_DAY + i128::from(value.nanoseconds)
                })
            });
            length.collect()
        }
    };
    Ok(Arc::new(lengths.with_data_type(LENGTH)))
}
