//! Texts of values, as PostgreSQL writes them.

use std::fmt::Write;
use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{ArrayRef, AsArray, StringArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{
    DataType, DurationMicrosecondType, Float32Type, Float64Type, IntervalMonthDayNanoType,
    IntervalUnit, TimeUnit,
};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::Result;
use datafusion::logical_expr::ScalarUDF;

use super::arithmetic::each;
use super::native::native;

const MICROS_OF_DAY: i64 = 86_400 * 1_000_000;

/// Returns the function that writes values of a type which are cast to a text; `None` if DataFusion writes them right.
pub(super) fn of_cast(from: &DataType, to: &DataType) -> Option<Arc<ScalarUDF>> {
    static TEXT: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
        native(
            "text",
            1,
            |_| Ok(DataType::Utf8),
            |arguments| each(&arguments.args[0], texts),
        )
    });
    let is_text = matches!(
        to,
        DataType::Utf8 | DataType::Utf8View | DataType::LargeUtf8
    );
    let is_other = matches!(
        from,
        DataType::Timestamp(..)
            | DataType::Interval(_)
            | DataType::Duration(_)
            | DataType::Float32
            | DataType::Float64
    );
    // DataFusion compares the bounds of other numbers as texts, too.
    let is_other = is_other || from.is_numeric();
    (is_text && is_other).then(|| Arc::clone(&TEXT))
}

fn texts(values: &ArrayRef) -> Result<ArrayRef> {
    let texts: StringArray = match values.data_type() {
        DataType::Float32 => {
            let values = values.as_primitive::<Float32Type>().iter();
            let text =
                |value: f32| float(format!("{value:e}"), 6, value.is_finite(), f64::from(value));
            values.map(|value| value.map(text)).collect()
        }
        DataType::Float64 => {
            let values = values.as_primitive::<Float64Type>().iter();
            let text = |value: f64| float(format!("{value:e}"), 15, value.is_finite(), value);
            values.map(|value| value.map(text)).collect()
        }
        DataType::Interval(_) => {
            let values = cast(values, &DataType::Interval(IntervalUnit::MonthDayNano))?;
            let values = values.as_primitive::<IntervalMonthDayNanoType>().iter();
            let text = values.map(|value| {
                value.map(|value| interval(value.months, value.days, value.nanoseconds / 1000))
            });
            text.collect()
        }
        DataType::Duration(_) => {
            let values = cast(values, &DataType::Duration(TimeUnit::Microsecond))?;
            let values = values.as_primitive::<DurationMicrosecondType>().iter();
            let text = values.map(|value| {
                value.map(|micros| {
                    let days = i32::try_from(micros / MICROS_OF_DAY).unwrap_or(i32::MAX);
                    interval(0, days, micros % MICROS_OF_DAY)
                })
            });
            text.collect()
        }
        DataType::Timestamp(..) => return timestamps(values),
        _ => return Ok(cast(values, &DataType::Utf8)?),
    };
    Ok(Arc::new(texts))
}

fn timestamps(values: &ArrayRef) -> Result<ArrayRef> {
    let options = FormatOptions::new()
        .with_timestamp_format(Some("%Y-%m-%d %H:%M:%S%.6f"))
        .with_timestamp_tz_format(Some("%Y-%m-%d %H:%M:%S%.6f%:z"));
    let formatter = ArrayFormatter::try_new(values, &options)?;
    let texts: StringArray = (0..values.len())
        .map(|row| {
            values
                .is_valid(row)
                .then(|| shortened(&formatter.value(row).to_string()))
        })
        .collect();
    Ok(Arc::new(texts))
}

/// Returns the text of a time without zeros at the end of its fraction, and without minutes of its zone that are zero.
fn shortened(text: &str) -> String {
    let (time, zone) = match text.split_once('.') {
        Some((time, rest)) => {
            let end = rest.find(['+', '-']).unwrap_or(rest.len());
            let fraction = rest[..end].trim_end_matches('0');
            let zone = &rest[end..];
            match fraction {
                "" => (time.to_owned(), zone),
                fraction => (format!("{time}.{fraction}"), zone),
            }
        }
        None => (text.to_owned(), ""),
    };
    format!("{time}{}", zone.strip_suffix(":00").unwrap_or(zone))
}

/// Returns the text of a float of which `scientific` is the shortest one. Exponents are written from `digits` on.
fn float(scientific: String, digits: i32, is_finite: bool, value: f64) -> String {
    if !is_finite {
        return match value {
            value if value.is_nan() => "NaN",
            value if value > 0.0 => "Infinity",
            _ => "-Infinity",
        }
        .to_owned();
    }
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(mantissa) => ("-", mantissa),
        None => ("", mantissa),
    };
    if !(-4..digits).contains(&exponent) {
        let mark = if exponent < 0 { '-' } else { '+' };
        return format!("{sign}{mantissa}e{mark}{:02}", exponent.abs());
    }
    let figures: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let whole = usize::try_from(exponent + 1).unwrap_or(0);
    if exponent < 0 {
        let zeros = usize::try_from(-exponent - 1).unwrap_or(0);
        return format!("{sign}0.{}{figures}", "0".repeat(zeros));
    }
    match figures.len() > whole {
        true => format!("{sign}{}.{}", &figures[..whole], &figures[whole..]),
        false => format!("{sign}{figures}{}", "0".repeat(whole - figures.len())),
    }
}

/// Returns the text of an interval.
fn interval(months: i32, days: i32, micros: i64) -> String {
    let mut text = String::new();
    let mut is_negative_before = false;
    for (count, unit) in [(months / 12, "year"), (months % 12, "mon"), (days, "day")] {
        if count == 0 {
            continue;
        }
        let separator = if text.is_empty() { "" } else { " " };
        let plus = if is_negative_before && count > 0 {
            "+"
        } else {
            ""
        };
        let plural = if count == 1 { "" } else { "s" };
        let _ = write!(text, "{separator}{plus}{count} {unit}{plural}");
        is_negative_before = count < 0;
    }
    if micros != 0 || text.is_empty() {
        let separator = if text.is_empty() { "" } else { " " };
        let sign = match micros {
            ..0 => "-",
            _ if is_negative_before => "+",
            _ => "",
        };
        let total = micros.unsigned_abs();
        let seconds = total / 1_000_000;
        let _ = write!(
            text,
            "{separator}{sign}{:02}:{:02}:{:02}",
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60
        );
        let fraction = total % 1_000_000;
        if fraction != 0 {
            let _ = write!(text, ".{}", format!("{fraction:06}").trim_end_matches('0'));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_in_postgresql() {
        for (value, expected) in [
            (0.1, "0.1"),
            (-1.0, "-1"),
            (100.0, "100"),
            (123.25, "123.25"),
            (1e14, "100000000000000"),
            (1e15, "1e+15"),
            (1.5e20, "1.5e+20"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (f64::NEG_INFINITY, "-Infinity"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(
                float(format!("{value:e}"), 15, value.is_finite(), value),
                expected
            );
        }
    }

    #[test]
    fn intervals_are_written_as_in_postgresql() {
        for (months, days, micros, expected) in [
            (0, 0, 0, "00:00:00"),
            (14, 3, 0, "1 year 2 mons 3 days"),
            (0, 1, 7_200_000_000, "1 day 02:00:00"),
            (-1, 2, 500_000, "-1 mons +2 days 00:00:00.5"),
            (0, -1, 1_000_000, "-1 days +00:00:01"),
            (0, 0, -1_500_000, "-00:00:01.5"),
        ] {
            assert_eq!(interval(months, days, micros), expected);
        }
    }

    #[test]
    fn times_are_shortened() {
        for (text, expected) in [
            ("2020-01-01 10:00:00.000000", "2020-01-01 10:00:00"),
            (
                "2020-01-01 10:00:00.120000+00:00",
                "2020-01-01 10:00:00.12+00",
            ),
            (
                "2020-01-01 10:00:00.000000-05:30",
                "2020-01-01 10:00:00-05:30",
            ),
        ] {
            assert_eq!(shortened(text), expected);
        }
    }
}
