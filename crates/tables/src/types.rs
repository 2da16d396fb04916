//! `pg_typeof` and `age`.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, IntervalMonthDayNanoArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{
    DataType, FieldRef, IntervalMonthDayNano, IntervalUnit, Schema, TimeUnit,
    TimestampMicrosecondType,
};
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::scalar::ScalarValue;

const MICROS_OF_DAY: i64 = 86_400 * 1_000_000;

/// Returns `pg_typeof`.
pub(crate) fn pg_typeof() -> ScalarUDF {
    ScalarUDF::new_from_impl(TypeOf {
        signature: Signature::any(1, Volatility::Stable),
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct TypeOf {
    signature: Signature,
}

impl ScalarUDFImpl for TypeOf {
    fn name(&self) -> &str {
        "pg_typeof"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _types: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let name = type_name(arguments.arg_fields[0].data_type());
        Ok(ColumnarValue::Scalar(ScalarValue::from(name)))
    }
}

/// Returns whether columns have the same names and types for a client.
pub(crate) fn are_same_columns(before: &Schema, after: &Schema) -> bool {
    let columns = |schema: &Schema| -> Vec<(String, String)> {
        let fields = schema.fields().iter();
        let column = |field: &FieldRef| (field.name().clone(), type_name(field.data_type()));
        fields.map(column).collect()
    };
    std::ptr::eq(before, after) || columns(before) == columns(after)
}

/// Returns the name of a type, as PostgreSQL prints it.
pub(crate) fn type_name(data_type: &DataType) -> String {
    let name = match data_type {
        DataType::Null => "unknown",
        DataType::Boolean => "boolean",
        DataType::Int8 | DataType::Int16 | DataType::UInt8 => "smallint",
        DataType::Int32 | DataType::UInt16 => "integer",
        DataType::Int64 | DataType::UInt32 => "bigint",
        DataType::Float16 | DataType::Float32 => "real",
        DataType::Float64 => "double precision",
        DataType::Date32 | DataType::Date64 => "date",
        DataType::Time32(_) | DataType::Time64(_) => "time without time zone",
        DataType::Timestamp(_, None) => "timestamp without time zone",
        DataType::Timestamp(_, Some(_)) => "timestamp with time zone",
        DataType::Interval(_) | DataType::Duration(_) => "interval",
        DataType::Struct(_) | DataType::Map(..) | DataType::Union(..) => "json",
        DataType::Dictionary(_, values) => return type_name(values),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            return match item.data_type() {
                list @ (DataType::List(_) | DataType::LargeList(_)) => type_name(list),
                other => format!("{}[]", type_name(other)),
            };
        }
        other if other.is_binary() => "bytea",
        other if other.is_numeric() => "numeric",
        _ => "text",
    };
    name.to_owned()
}

/// Returns `age`, the years, months and days between two times.
pub(crate) fn age() -> ScalarUDF {
    let time = DataType::Timestamp(TimeUnit::Microsecond, None);
    ScalarUDF::new_from_impl(Age {
        signature: Signature::exact(vec![time.clone(), time], Volatility::Immutable),
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Age {
    signature: Signature,
}

impl ScalarUDFImpl for Age {
    fn name(&self) -> &str {
        "age"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _types: &[DataType]) -> Result<DataType> {
        Ok(DataType::Interval(IntervalUnit::MonthDayNano))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = ColumnarValue::values_to_arrays(&arguments.args)?;
        let time = DataType::Timestamp(TimeUnit::Microsecond, None);
        let times = rows.iter().map(|times| cast(times, &time));
        let times: Vec<ArrayRef> = times.collect::<Result<_, _>>()?;
        let [late, early] = [0, 1].map(|index| {
            let times: &ArrayRef = &times[index];
            times.as_primitive::<TimestampMicrosecondType>()
        });
        let ages = late.iter().zip(early.iter());
        let ages: IntervalMonthDayNanoArray = ages
            .map(|(late, early)| Some(between(late?, early?)))
            .collect();
        Ok(ColumnarValue::Array(Arc::new(ages)))
    }
}

/// Returns the age at a time.
fn between(late: i64, early: i64) -> IntervalMonthDayNano {
    if late < early {
        let age = between(early, late);
        return IntervalMonthDayNano::new(-age.months, -age.days, -age.nanoseconds);
    }
    let (to, from) = (Date::of_micros(late), Date::of_micros(early));
    let mut micros = late.rem_euclid(MICROS_OF_DAY) - early.rem_euclid(MICROS_OF_DAY);
    let mut days = to.day - from.day;
    let mut months = (to.year - from.year) * 12 + to.month - from.month;
    if micros < 0 {
        micros += MICROS_OF_DAY;
        days -= 1;
    }
    if days < 0 {
        days += from.days_of_month();
        months -= 1;
    }
    let small = |value: i64| i32::try_from(value).unwrap_or(i32::MAX);
    IntervalMonthDayNano::new(small(months), small(days), micros * 1000)
}

/// A day.
#[derive(Debug, Clone, Copy)]
struct Date {
    year: i64,
    /// From 1.
    month: i64,
    /// From 1.
    day: i64,
}

impl Date {
    /// Returns the day of a time. Years begin with March here, so that leap days are at the end.
    fn of_micros(micros: i64) -> Date {
        let days = micros.div_euclid(MICROS_OF_DAY) + 719_468;
        let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = year + era * 400 + i64::from(month <= 2);
        Date { year, month, day }
    }

    fn days_of_month(self) -> i64 {
        let is_leap = self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0);
        match self.month {
            2 if is_leap => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = MICROS_OF_DAY;

    #[test]
    fn ages_have_years_and_months() {
        // 2020-01-31 is day 18292 since 1970, 2019-02-28 is day 17955.
        for (late, early, months, days, micros) in [
            (18_292 * DAY, 17_955 * DAY, 11, 3, 0),
            (17_955 * DAY, 18_292 * DAY, -11, -3, 0),
            (
                18_292 * DAY,
                18_291 * DAY + 1_000_000,
                0,
                0,
                DAY - 1_000_000,
            ),
            (0, 0, 0, 0, 0),
        ] {
            let age = between(late, early);
            assert_eq!(
                (age.months, age.days, age.nanoseconds / 1000),
                (months, days, micros)
            );
        }
    }
}
