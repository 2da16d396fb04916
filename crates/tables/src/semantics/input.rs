//! Casts of texts to bytes, arrays, timestamps and numbers, which read the texts as PostgreSQL does.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{ArrayRef, AsArray, BinaryArray, ListArray, StringArray};
use datafusion::arrow::buffer::{NullBuffer, OffsetBuffer};
use datafusion::arrow::compute::kernels::length::length;
use datafusion::arrow::compute::{cast, cast_with_options};
use datafusion::arrow::datatypes::{DataType, Field, Float32Type, Float64Type};
use datafusion::common::format::DEFAULT_CAST_OPTIONS;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::ScalarUDF;

use super::arithmetic::each;
use super::native::native;
use crate::bytea::bytea_of_text;
use crate::error::{Code, SqlError};
use crate::rewrite::array_items;

/// Returns the function that reads the texts before a cast; `None` if DataFusion reads them right.
pub(super) fn of_cast(from: &DataType, to: &DataType) -> Option<Arc<ScalarUDF>> {
    static BYTES: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
        native(
            "bytea",
            1,
            |_| Ok(DataType::Binary),
            |arguments| each(&arguments.args[0], bytes),
        )
    });
    static LISTS: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
        native(
            "array_of_text",
            1,
            |_| Ok(DataType::List(item())),
            |arguments| each(&arguments.args[0], lists),
        )
    });
    static TIMES: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
        native(
            "timestamp_text",
            1,
            |_| Ok(DataType::Utf8),
            |arguments| each(&arguments.args[0], |texts| times(texts, false)),
        )
    });
    static TIMES_IN_ZONE: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
        native(
            "timestamptz_text",
            1,
            |_| Ok(DataType::Utf8),
            |arguments| each(&arguments.args[0], |texts| times(texts, true)),
        )
    });
    static REALS: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
        native(
            "float4",
            1,
            |_| Ok(DataType::Float32),
            |arguments| each(&arguments.args[0], reals),
        )
    });
    let is_wide = *from == DataType::Float64 || from.is_decimal();
    if *to == DataType::Float32 && (is_wide || from.is_string()) {
        return Some(Arc::clone(&REALS));
    }
    if !from.is_string() {
        return None;
    }
    match to {
        DataType::Binary | DataType::BinaryView | DataType::LargeBinary => Some(Arc::clone(&BYTES)),
        DataType::List(to) if !to.data_type().is_nested() => Some(Arc::clone(&LISTS)),
        DataType::Timestamp(_, None) => Some(Arc::clone(&TIMES)),
        DataType::Timestamp(_, Some(_)) => Some(Arc::clone(&TIMES_IN_ZONE)),
        _ => None,
    }
}

/// Returns the function of the number of bytes.
pub(super) fn octets() -> Arc<ScalarUDF> {
    static OCTETS: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
        native(
            "bytea_length",
            1,
            |_| Ok(DataType::Int32),
            |arguments| {
                each(&arguments.args[0], |values| {
                    Ok(length(&cast(values, &DataType::Binary)?)?)
                })
            },
        )
    });
    Arc::clone(&OCTETS)
}

fn item() -> Arc<Field> {
    Arc::new(Field::new_list_field(DataType::Utf8, true))
}

fn failed(error: SqlError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

fn times(texts: &ArrayRef, has_zone: bool) -> Result<ArrayRef> {
    let texts = cast(texts, &DataType::Utf8)?;
    let texts = texts.as_string::<i32>().iter();
    let times = texts.map(|text| text.map(|text| timestamp(text, has_zone)));
    Ok(Arc::new(times.collect::<StringArray>()))
}

/// Returns a timestamp such as `2026-01-01 9:00+02` as DataFusion reads it: with seconds, and without the offset if its
/// type has no zone. Other texts stay as they are.
fn timestamp(text: &str, has_zone: bool) -> Cow<'_, str> {
    let text = text.trim();
    let Some((date, time)) = text.split_once([' ', 'T']) else {
        return Cow::Borrowed(text);
    };
    let is_part = |byte: u8| byte.is_ascii_digit() || matches!(byte, b':' | b'.');
    let end = time.bytes().position(|byte| !is_part(byte));
    let (clock, zone) = time.split_at(end.unwrap_or(time.len()));
    let is_offset = zone.trim().starts_with(['+', '-']) || zone.trim().eq_ignore_ascii_case("z");
    let zone = if is_offset && !has_zone { "" } else { zone };
    let hour = if matches!(clock.find(':'), Some(1)) || clock.len() == 1 {
        "0"
    } else {
        ""
    };
    let rest = match clock.matches(':').count() {
        _ if clock.is_empty() => "",
        0 => ":00:00",
        1 => ":00",
        _ => "",
    };
    Cow::Owned(format!("{date} {hour}{clock}{rest}{zone}"))
}

fn bytes(texts: &ArrayRef) -> Result<ArrayRef> {
    let texts = cast(texts, &DataType::Utf8)?;
    let texts = texts.as_string::<i32>().iter();
    let values = texts.map(|text| text.map(bytea_of_text).transpose().map_err(failed));
    let values: Vec<Option<Vec<u8>>> = values.collect::<Result<_>>()?;
    Ok(Arc::new(BinaryArray::from_iter(values)))
}

fn reals(values: &ArrayRef) -> Result<ArrayRef> {
    let wide = cast_with_options(values, &DataType::Float64, &DEFAULT_CAST_OPTIONS)?;
    let narrow = cast_with_options(values, &DataType::Float32, &DEFAULT_CAST_OPTIONS)?;
    let exceeds = |(wide, narrow): (Option<f64>, Option<f32>)| {
        wide.is_some_and(f64::is_finite) && narrow.is_some_and(f32::is_infinite)
    };
    let pairs = wide.as_primitive::<Float64Type>().iter();
    let mut pairs = pairs.zip(narrow.as_primitive::<Float32Type>().iter());
    match pairs.any(exceeds) {
        true => {
            let message = "a number is out of range for type real";
            Err(failed(SqlError::new(Code::NumericValueOutOfRange, message)))
        }
        false => Ok(narrow),
    }
}

fn lists(texts: &ArrayRef) -> Result<ArrayRef> {
    let texts = cast(texts, &DataType::Utf8)?;
    let texts = texts.as_string::<i32>();
    let (mut items, mut lengths) = (Vec::new(), Vec::new());
    for text in texts {
        let found = match text {
            None => Vec::new(),
            Some(text) => array_items(text).ok_or_else(|| malformed(text))?,
        };
        lengths.push(found.len());
        items.extend(found);
    }
    let values: ArrayRef = Arc::new(StringArray::from(items));
    let nulls = NullBuffer::from_iter(texts.iter().map(|text| text.is_some()));
    let offsets = OffsetBuffer::from_lengths(lengths);
    let list = ListArray::try_new(item(), offsets, values, Some(nulls))?;
    Ok(Arc::new(list))
}

fn malformed(text: &str) -> DataFusionError {
    let message = format!("malformed array literal: \"{text}\"");
    failed(SqlError::new(Code::InvalidTextRepresentation, message))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::Array;

    use super::*;

    #[test]
    fn timestamps_have_seconds() {
        let of = |text| timestamp(text, false).into_owned();
        assert_eq!(of("2026-01-01 10:00"), "2026-01-01 10:00:00");
        assert_eq!(of("2026-01-01T9"), "2026-01-01 09:00:00");
        assert_eq!(of(" 2026-01-01 10:00:01.5+02"), "2026-01-01 10:00:01.5");
        assert_eq!(of("2026-01-01"), "2026-01-01");
        assert_eq!(of("2026-01-01 noon"), "2026-01-01 noon");
        assert_eq!(
            timestamp("2026-01-01 10:00+02", true),
            "2026-01-01 10:00:00+02"
        );
    }

    #[test]
    fn texts_become_lists() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec![
            Some("{a,\"b,c\",NULL}"),
            None,
            Some("{}"),
        ]));
        let found = lists(&texts).expect("arrays");
        let lists = found.as_list::<i32>();
        assert_eq!(lists.value_length(0), 3);
        assert_eq!(lists.value(0).as_string::<i32>().value(1), "b,c");
        assert!(lists.value(0).is_null(2) && lists.is_null(1));
        assert_eq!(lists.value_length(2), 0);
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["{a"]));
        super::lists(&texts).expect_err("malformed");
    }
}
