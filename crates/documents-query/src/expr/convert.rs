//! Conversions between types.

use std::borrow::Cow;

use bson::DateTime;
use bson::oid::ObjectId;
use bson::raw::{RawBson, RawBsonRef};

use super::Value;
use super::function::{Function, exactly};
use crate::display;
use crate::element::is_truthy;
use crate::error::{Code, Error};
use crate::number::Number;

pub(super) const FUNCTIONS: &[Function] = &[
    exactly("$type", 1, |operands| {
        Ok(operands[0].type_name().to_owned().into())
    }),
    exactly("$isNumber", 1, |operands| {
        Ok(operands[0].get().and_then(Number::of).is_some().into())
    }),
    exactly("$toString", 1, |operands| present(operands, to_text)),
    exactly("$toBool", 1, |operands| present(operands, to_bool)),
    exactly("$toInt", 1, |operands| present(operands, to_int)),
    exactly("$toLong", 1, |operands| present(operands, to_long)),
    exactly("$toDouble", 1, |operands| present(operands, to_double)),
    exactly("$toDate", 1, |operands| present(operands, to_date)),
    exactly("$toObjectId", 1, |operands| present(operands, to_object_id)),
];

fn present<'a>(
    operands: &[Value<'a>],
    convert: fn(RawBsonRef<'_>) -> Result<Value<'static>, Error>,
) -> Result<Value<'a>, Error> {
    match operands[0].get() {
        Some(value) if !operands[0].is_nullish() => convert(value),
        _ => Ok(Value::NULL),
    }
}

fn failure(message: String) -> Error {
    Error::new(
        Code::ConversionFailure,
        format!("{message} in $convert with no onError value"),
    )
}

fn unsupported(value: RawBsonRef<'_>, target: &str) -> Error {
    let kind = crate::element::type_name(value.element_type());
    failure(format!("Unsupported conversion from {kind} to {target}"))
}

/// Converts a string, number, date or timestamp to text. Converts null and missing values to empty text.
pub(super) fn text_or_empty<'v>(value: &'v Value<'_>, name: &str) -> Result<Cow<'v, str>, Error> {
    match value.get() {
        _ if value.is_nullish() => Ok(Cow::Borrowed("")),
        Some(RawBsonRef::DateTime(date)) => Ok(iso_date(date).into()),
        Some(found) => text_of(found).ok_or_else(|| {
            Error::new(
                Code::Location16007,
                format!(
                    "can't convert from BSON type {} to String in {name}",
                    value.type_name()
                ),
            )
        }),
        None => Ok(Cow::Borrowed("")),
    }
}

fn text_of(value: RawBsonRef<'_>) -> Option<Cow<'_, str>> {
    Some(match value {
        RawBsonRef::String(text) | RawBsonRef::Symbol(text) | RawBsonRef::JavaScriptCode(text) => {
            Cow::Borrowed(text)
        }
        RawBsonRef::Int32(number) => number.to_string().into(),
        RawBsonRef::Int64(number) => number.to_string().into(),
        RawBsonRef::Double(number) => double_text(number).into(),
        RawBsonRef::Decimal128(number) => number.to_string().into(),
        RawBsonRef::ObjectId(id) => id.to_hex().into(),
        _ => return None,
    })
}

/// Formats a double as MongoDB does: integral values without a fraction.
fn double_text(number: f64) -> String {
    match number {
        number if number.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        number if number != 0.0 && !(1e-5..1e16).contains(&number.abs()) => exponent_text(number),
        number => number.to_string(),
    }
}

/// Formats a double as `1e+20` or `1.5e-07`: with a signed exponent of at least two digits.
fn exponent_text(number: f64) -> String {
    let text = format!("{number:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = exponent
        .strip_prefix('-')
        .map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}e{sign}{digits:0>2}")
}

fn iso_date(date: DateTime) -> String {
    super::date::Civil::of(date).to_iso()
}

fn to_text(value: RawBsonRef<'_>) -> Result<Value<'static>, Error> {
    match value {
        RawBsonRef::Boolean(flag) => Ok(flag.to_string().into()),
        RawBsonRef::DateTime(date) => Ok(iso_date(date).into()),
        other => Ok(text_of(other)
            .ok_or_else(|| unsupported(other, "string"))?
            .into_owned()
            .into()),
    }
}

fn to_bool(value: RawBsonRef<'_>) -> Result<Value<'static>, Error> {
    Ok(is_truthy(value).into())
}

fn to_int(value: RawBsonRef<'_>) -> Result<Value<'static>, Error> {
    let number = whole(value, "int")?;
    let int = i32::try_from(number);
    int.map(Value::from)
        .map_err(|_| failure(format!("Conversion would overflow target type: {number}")))
}

fn to_long(value: RawBsonRef<'_>) -> Result<Value<'static>, Error> {
    match value {
        RawBsonRef::DateTime(date) => Ok(date.timestamp_millis().into()),
        other => Ok(whole(other, "long")?.into()),
    }
}

fn whole(value: RawBsonRef<'_>, target: &str) -> Result<i64, Error> {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    match value {
        RawBsonRef::Boolean(flag) => Ok(i64::from(flag)),
        RawBsonRef::String(text) => text.parse().map_err(|_| not_a_number(text)),
        other => match Number::of(other) {
            None => Err(unsupported(other, target)),
            Some(Number::Integer(number)) => Ok(number),
            Some(number) if number.is_nan() => {
                Err(failure(format!("Attempt to convert NaN value to {target}")))
            }
            Some(number) if number.to_f64().is_infinite() => Err(failure(format!(
                "Attempt to convert infinity value to {target}"
            ))),
            Some(number) if (-LIMIT..LIMIT).contains(&number.to_f64()) => {
                Ok(number.to_i64_truncated())
            }
            Some(number) => Err(failure(format!(
                "Conversion would overflow target type: {}",
                number.to_f64()
            ))),
        },
    }
}

fn not_a_number(text: &str) -> Error {
    failure(format!("Failed to parse number '{}'", display::cut(text)))
}

fn to_double(value: RawBsonRef<'_>) -> Result<Value<'static>, Error> {
    match value {
        RawBsonRef::Boolean(flag) => Ok(f64::from(u8::from(flag)).into()),
        RawBsonRef::DateTime(date) => Ok((date.timestamp_millis() as f64).into()),
        RawBsonRef::String(text) if text.trim() == text && !text.is_empty() => text
            .parse::<f64>()
            .map(Value::from)
            .map_err(|_| not_a_number(text)),
        RawBsonRef::String(text) => Err(not_a_number(text)),
        other => Number::of(other)
            .map(|number| number.to_f64().into())
            .ok_or_else(|| unsupported(other, "double")),
    }
}

fn to_date(value: RawBsonRef<'_>) -> Result<Value<'static>, Error> {
    let date = match value {
        RawBsonRef::DateTime(date) => date,
        RawBsonRef::Int64(milliseconds) => DateTime::from_millis(milliseconds),
        RawBsonRef::Double(_) | RawBsonRef::Decimal128(_) => {
            DateTime::from_millis(whole(value, "date")?)
        }
        RawBsonRef::ObjectId(id) => id.timestamp(),
        RawBsonRef::Timestamp(stamp) => DateTime::from_millis(i64::from(stamp.time) * 1000),
        RawBsonRef::String(text) => parse_date(text)?,
        other => return Err(unsupported(other, "date")),
    };
    Ok(Value::Ref(RawBsonRef::DateTime(date)))
}

fn parse_date(text: &str) -> Result<DateTime, Error> {
    let day_only = text.len() == 10;
    let full = if day_only {
        Cow::Owned(format!("{text}T00:00:00Z"))
    } else {
        Cow::Borrowed(text)
    };
    DateTime::parse_rfc3339_str(&*full).map_err(|_| {
        failure(format!(
            "Error parsing date string '{}'",
            display::cut(text)
        ))
    })
}

fn to_object_id(value: RawBsonRef<'_>) -> Result<Value<'static>, Error> {
    match value {
        RawBsonRef::ObjectId(id) => Ok(Value::Owned(RawBson::ObjectId(id))),
        RawBsonRef::String(text) => {
            let id = ObjectId::parse_str(text).map_err(|_| {
                failure(format!("Failed to parse objectId '{}'", display::cut(text)))
            })?;
            Ok(Value::Owned(RawBson::ObjectId(id)))
        }
        other => Err(unsupported(other, "objectId")),
    }
}
