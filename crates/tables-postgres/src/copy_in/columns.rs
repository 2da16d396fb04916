//! The values of a column of `COPY ... FROM STDIN`.

use std::sync::Arc;

use datafusion::arrow::array::timezone::Tz;
use datafusion::arrow::array::{
    ArrayRef, BinaryViewBuilder, Decimal128Builder, PrimitiveBuilder, StringViewBuilder,
    new_empty_array,
};
use datafusion::arrow::datatypes::{
    DataType, Decimal128Type, DecimalType, Field, Float64Type, Int16Type, Int32Type, Int64Type,
};
use datafusion::common::ScalarValue;
use forebay_tables::{Code, SqlError};
use pgwire::api::Type;

use crate::decode::{self, utf8};
use crate::types;

/// Maximum digits of a decimal that is read without the general reader.
const SHORT_DIGITS_MAX: usize = 18;

/// A column, and its values of the current batch.
#[derive(Debug)]
pub(super) struct Column {
    field: Field,
    pg_type: Type,
    zone: Option<Tz>,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Int16(PrimitiveBuilder<Int16Type>),
    Int32(PrimitiveBuilder<Int32Type>),
    Int64(PrimitiveBuilder<Int64Type>),
    Float64(PrimitiveBuilder<Float64Type>),
    Decimal(Decimal128Builder, u8, i8),
    Text(StringViewBuilder),
    Bytes(BinaryViewBuilder),
    Other(Vec<ScalarValue>),
}

impl Values {
    fn new(data_type: &DataType) -> Result<Values, SqlError> {
        Ok(match data_type {
            DataType::Int16 => Values::Int16(PrimitiveBuilder::new()),
            DataType::Int32 => Values::Int32(PrimitiveBuilder::new()),
            DataType::Int64 => Values::Int64(PrimitiveBuilder::new()),
            DataType::Float64 => Values::Float64(PrimitiveBuilder::new()),
            DataType::Utf8View => Values::Text(StringViewBuilder::new()),
            DataType::BinaryView => Values::Bytes(BinaryViewBuilder::new()),
            DataType::Decimal128(precision, scale) => {
                let builder = Decimal128Builder::new();
                let builder = builder.with_precision_and_scale(*precision, *scale);
                let builder = builder.map_err(internal)?;
                Values::Decimal(builder, *precision, *scale)
            }
            _ => Values::Other(Vec::new()),
        })
    }

    fn push(&mut self, value: ScalarValue) -> Result<(), SqlError> {
        match (self, value) {
            (Values::Int16(values), ScalarValue::Int16(value)) => values.append_option(value),
            (Values::Int32(values), ScalarValue::Int32(value)) => values.append_option(value),
            (Values::Int64(values), ScalarValue::Int64(value)) => values.append_option(value),
            (Values::Float64(values), ScalarValue::Float64(value)) => values.append_option(value),
            (Values::Text(values), ScalarValue::Utf8(value)) => values.append_option(value),
            (Values::Bytes(values), ScalarValue::Binary(value)) => values.append_option(value),
            (
                Values::Decimal(values, precision, scale),
                ScalarValue::Decimal128(value, _, from),
            ) => {
                let value = value.map(|value| rescaled(value, from, *precision, *scale));
                values.append_option(value.transpose()?);
            }
            (Values::Decimal(_, precision, scale), ScalarValue::Decimal256(..)) => {
                return Err(overflow(*precision, *scale));
            }
            (Values::Other(values), value) => values.push(value),
            (_, value) => {
                return Err(internal(format!("a value of type {}", value.data_type())));
            }
        }
        Ok(())
    }
}

fn internal(error: impl ToString) -> SqlError {
    SqlError::new(Code::InternalError, error.to_string())
}

impl Column {
    pub(super) fn new(field: &Field, zone: Option<Tz>) -> Result<Column, SqlError> {
        let pg_type = types::pg_type(field.data_type());
        Ok(Column {
            values: Values::new(field.data_type())?,
            field: field.clone().with_nullable(true),
            pg_type,
            zone,
        })
    }

    pub(super) fn name(&self) -> &str {
        self.field.name()
    }

    pub(super) fn field(&self) -> Field {
        self.field.clone()
    }

    /// Adds a value that is written as text, or a null.
    ///
    /// # Errors
    /// If it is not one of the column's type.
    pub(super) fn push_text(&mut self, text: Option<&[u8]>) -> Result<(), SqlError> {
        match (&mut self.values, text) {
            (Values::Text(values), text) => {
                let text = text.map(|text| utf8(text, false)).transpose()?;
                values.append_option(text);
                Ok(())
            }
            (Values::Decimal(values, precision, scale), Some(text))
                if short_decimal(text).is_some() =>
            {
                let (value, from) = short_decimal(text).unwrap_or_default();
                values.append_value(rescaled(value, from, *precision, *scale)?);
                Ok(())
            }
            _ => self.push(false, text),
        }
    }

    /// Adds a value in PostgreSQL's binary format, or a null.
    ///
    /// # Errors
    /// If it is not one of the column's type.
    pub(super) fn push_binary(&mut self, bytes: Option<&[u8]>) -> Result<(), SqlError> {
        self.push(true, bytes)
    }

    fn push(&mut self, binary: bool, bytes: Option<&[u8]>) -> Result<(), SqlError> {
        let value = match self.zone {
            Some(zone) => decode::parameter_in_zone(&self.pg_type, binary, bytes, zone),
            None => decode::parameter(&self.pg_type, binary, bytes),
        };
        self.values.push(value?)
    }

    /// Returns the values and begins the next batch.
    pub(super) fn finish(&mut self) -> Result<ArrayRef, SqlError> {
        Ok(match &mut self.values {
            Values::Int16(values) => Arc::new(values.finish()),
            Values::Int32(values) => Arc::new(values.finish()),
            Values::Int64(values) => Arc::new(values.finish()),
            Values::Float64(values) => Arc::new(values.finish()),
            Values::Decimal(values, ..) => Arc::new(values.finish()),
            Values::Text(values) => Arc::new(values.finish()),
            Values::Bytes(values) => Arc::new(values.finish()),
            Values::Other(values) => match values.is_empty() {
                true => new_empty_array(self.field.data_type()),
                false => ScalarValue::iter_to_array(std::mem::take(values))?,
            },
        })
    }
}

/// Reads a decimal such as `-12.5`, as its digits and their scale; `None` if it needs the general reader.
fn short_decimal(text: &[u8]) -> Option<(i128, i8)> {
    let (is_negative, digits) = match text.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    if digits.is_empty() || digits.len() > SHORT_DIGITS_MAX {
        return None;
    }
    let (mut value, mut scale) = (0_i64, None);
    for byte in digits {
        match byte {
            b'0'..=b'9' => {
                value = value * 10 + i64::from(byte - b'0');
                scale = scale.map(|scale: i8| scale + 1);
            }
            b'.' if scale.is_none() && digits.len() > 1 => scale = Some(0),
            _ => return None,
        }
    }
    let value = if is_negative { -value } else { value };
    Some((value.into(), scale.unwrap_or(0)))
}

/// Returns a decimal with another scale. Digits beyond it are rounded, halves away from zero.
///
/// # Errors
/// If it has more digits than `precision`.
fn rescaled(value: i128, from: i8, precision: u8, scale: i8) -> Result<i128, SqlError> {
    let power = |digits: i16| {
        u32::try_from(digits)
            .ok()
            .and_then(|digits| 10_i128.checked_pow(digits))
    };
    let digits = i16::from(scale) - i16::from(from);
    let value = match digits {
        0 => Some(value),
        1.. if value == 0 => Some(0),
        1.. => power(digits).and_then(|power| value.checked_mul(power)),
        // A number that is divided by more than it can be is zero.
        _ => Some(power(-digits).map_or(0, |power| {
            let (quotient, rest) = (value / power, value % power);
            quotient + i128::from(rest.abs() >= power - rest.abs()) * value.signum()
        })),
    };
    let value = value.ok_or_else(|| overflow(precision, scale))?;
    let validated = Decimal128Type::validate_decimal_precision(value, precision, scale);
    validated
        .map(|()| value)
        .map_err(|_| overflow(precision, scale))
}

fn overflow(precision: u8, scale: i8) -> SqlError {
    SqlError::new(Code::NumericValueOutOfRange, "numeric field overflow").with_hint(format!(
        "a value of numeric({precision}, {scale}) has at most {} digits before the point",
        i16::from(precision) - i16::from(scale)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_rounded_and_bounded() {
        assert_eq!(short_decimal(b"-12.50"), Some((-1250, 2)));
        assert_eq!(short_decimal(b".5"), Some((5, 1)));
        for other in ["", "-", ".", "1e3", " 1", "1.2.3", "NaN"] {
            assert_eq!(short_decimal(other.as_bytes()), None, "{other}");
        }
        assert_eq!(rescaled(1250, 2, 5, 1).expect("it fits"), 125);
        assert_eq!(rescaled(-1255, 2, 5, 1).expect("it fits"), -126);
        assert_eq!(rescaled(12, 0, 5, 2).expect("it fits"), 1200);
        let error = rescaled(99_995, 2, 4, 1).expect_err("too large");
        assert_eq!(error.code, Code::NumericValueOutOfRange);
    }
}
