//! Values of `numeric`.

use datafusion::arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION as DIGITS_MAX, DataType, i256,
};
use datafusion::common::ScalarValue;
use forebay_tables::{Code, SqlError};
use pgwire::api::Type;

use super::{invalid_binary, invalid_text, trimmed};
use crate::encode::binary::NEGATIVE;

/// Base of the digits of the binary format.
const BASE: i16 = 10_000;

/// Decimal digits of a digit of the binary format.
const GROUP_DIGITS: i64 = 4;

/// The sign field of NaN.
const NAN: u16 = 0xC000;

/// The sign field of infinity, which a bit more makes negative.
const INFINITY: u16 = 0xD000;

/// The sign field of negative infinity.
const NEGATIVE_INFINITY: u16 = 0xF000;

/// The largest exponent of a text that is read; each larger one is out of range, too.
const EXPONENT_MAX: i64 = 100_000;

/// A decimal number: an integer, and how many of its digits follow the point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Numeric {
    value: i256,
    scale: u8,
}

/// Returns the null of `numeric`.
pub(super) fn null() -> ScalarValue {
    ScalarValue::Decimal128(None, 1, 0)
}

impl Numeric {
    /// Returns the number of `digits`, the first of which counts ten to the power of `power`, with `scale` digits after
    /// the point. Further digits are cut off.
    fn new(
        is_negative: bool,
        digits: impl Iterator<Item = u8>,
        mut power: i64,
        scale: i64,
    ) -> Result<Numeric, SqlError> {
        let scale = u8::try_from(scale)
            .ok()
            .filter(|scale| *scale <= DIGITS_MAX);
        let scale = scale.ok_or_else(too_long)?;
        let mut value = i256::ZERO;
        for digit in digits {
            if power < -i64::from(scale) {
                break;
            }
            let digit = i256::from_i128(i128::from(digit));
            value = shifted(value, 1)?.wrapping_add(digit);
            power -= 1;
        }
        let value = shifted(value, power + 1 + i64::from(scale))?;
        let value = if is_negative {
            value.wrapping_neg()
        } else {
            value
        };
        Ok(Numeric { value, scale })
    }

    /// Returns the digits that the number needs: those it has, or as many as its scale.
    fn precision(self) -> u8 {
        let digits = self
            .value
            .wrapping_abs()
            .checked_ilog10()
            .map_or(1, |log| log + 1);
        u8::try_from(digits).unwrap_or(u8::MAX).max(self.scale)
    }

    /// Returns the number with the smallest precision and scale.
    pub(super) fn scalar(self) -> ScalarValue {
        let scale = self.scale.cast_signed();
        match (self.precision(), self.value.to_i128()) {
            (precision @ ..=DECIMAL128_MAX_PRECISION, Some(value)) => {
                ScalarValue::Decimal128(Some(value), precision, scale)
            }
            (precision, _) => ScalarValue::Decimal256(Some(self.value), precision, scale),
        }
    }

    /// Returns the number with another type, which [`common_type`] returned.
    pub(super) fn scalar_of_type(self, data_type: &DataType) -> Result<ScalarValue, SqlError> {
        let (precision, scale) = match data_type {
            DataType::Decimal128(precision, scale) | DataType::Decimal256(precision, scale) => {
                (*precision, *scale)
            }
            _ => (1, 0),
        };
        let value = shifted(self.value, i64::from(scale) - i64::from(self.scale))?;
        Ok(match (data_type, value.to_i128()) {
            (DataType::Decimal128(..), Some(value)) => {
                ScalarValue::Decimal128(Some(value), precision, scale)
            }
            _ => ScalarValue::Decimal256(Some(value), precision, scale),
        })
    }
}

/// Returns the smallest type that holds all numbers.
///
/// # Errors
/// If there is none.
pub(super) fn common_type(numbers: impl Iterator<Item = Numeric>) -> Result<DataType, SqlError> {
    let (mut whole, mut scale) = (0, 0);
    for number in numbers {
        whole = whole.max(number.precision() - number.scale);
        scale = scale.max(number.scale);
    }
    match (whole + scale).max(1) {
        precision @ ..=DECIMAL128_MAX_PRECISION => {
            Ok(DataType::Decimal128(precision, scale.cast_signed()))
        }
        precision @ ..=DIGITS_MAX => Ok(DataType::Decimal256(precision, scale.cast_signed())),
        _ => Err(too_long()),
    }
}

/// Returns a number times ten to the power of `power`.
///
/// # Errors
/// If the result has too many digits.
fn shifted(value: i256, power: i64) -> Result<i256, SqlError> {
    if value == i256::ZERO || power <= 0 {
        return Ok(value);
    }
    let power = u32::try_from(power).map_err(|_| too_long())?;
    let log = value.wrapping_abs().checked_ilog10().unwrap_or(0);
    if log.saturating_add(power) >= u32::from(DIGITS_MAX) {
        return Err(too_long());
    }
    Ok(value.wrapping_mul(i256::from_i128(10).wrapping_pow(power)))
}

fn too_long() -> SqlError {
    let message = format!("a numeric value has more than {DIGITS_MAX} digits");
    SqlError::new(Code::NumericValueOutOfRange, message)
}

fn not_finite(code: Code, name: &str) -> SqlError {
    SqlError::new(code, format!("numeric {name} is not supported"))
}

/// Reads `-12.5`, `.5`, `1e-3`.
pub(super) fn of_text(text: &str) -> Result<Numeric, SqlError> {
    let number = trimmed(text);
    let (is_negative, unsigned) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    if let Some(name) = special_name(unsigned) {
        return Err(not_finite(Code::InvalidTextRepresentation, name));
    }
    let invalid = || invalid_text(&Type::NUMERIC, text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent_of(exponent).ok_or_else(invalid)?),
        None => (unsigned, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = || whole.bytes().chain(fraction.bytes());
    if digits().next().is_none() || !digits().all(|digit| digit.is_ascii_digit()) {
        return Err(invalid());
    }
    let scale = (length(fraction) - exponent).max(0);
    let power = length(whole) - 1 + exponent;
    Numeric::new(
        is_negative,
        digits().map(|digit| digit - b'0'),
        power,
        scale,
    )
}

fn length(text: &str) -> i64 {
    i64::try_from(text.len()).unwrap_or(i64::MAX)
}

fn special_name(text: &str) -> Option<&'static str> {
    let is = |name: &str| text.eq_ignore_ascii_case(name);
    if is("nan") {
        Some("NaN")
    } else if is("infinity") || is("inf") {
        Some("Infinity")
    } else {
        None
    }
}

/// Reads an exponent. One that is far too large is cut to one that is too large.
fn exponent_of(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let size = digits.parse().unwrap_or(EXPONENT_MAX).min(EXPONENT_MAX);
    Some(if text.starts_with('-') { -size } else { size })
}

/// The fields of the binary format.
struct Header {
    group_count: usize,
    weight: i16,
    sign: u16,
    scale: i16,
}

/// Reads the binary format: the count of groups of four digits, the power of 10000 of the first, the sign, the scale,
/// the groups.
pub(super) fn of_binary(bytes: &[u8]) -> Result<Numeric, SqlError> {
    let invalid = || invalid_binary(&Type::NUMERIC);
    let (header, groups) = header(bytes).ok_or_else(invalid)?;
    let (groups, rest) = groups.as_chunks::<2>();
    if groups.len() != header.group_count || !rest.is_empty() || header.scale < 0 {
        return Err(invalid());
    }
    let is_negative = match header.sign {
        0 => false,
        NEGATIVE => true,
        NAN => return Err(not_finite(Code::InvalidBinaryRepresentation, "NaN")),
        INFINITY | NEGATIVE_INFINITY => {
            return Err(not_finite(Code::InvalidBinaryRepresentation, "Infinity"));
        }
        _ => return Err(invalid()),
    };
    let groups = groups.iter().map(|group| i16::from_be_bytes(*group));
    if groups.clone().any(|group| !(0..BASE).contains(&group)) {
        return Err(invalid());
    }
    let power = i64::from(header.weight) * GROUP_DIGITS + GROUP_DIGITS - 1;
    let digits = groups.flat_map(digits_of);
    Numeric::new(is_negative, digits, power, header.scale.into())
}

fn header(bytes: &[u8]) -> Option<(Header, &[u8])> {
    let (fields, rest) = bytes.split_first_chunk::<8>()?;
    let [a, b, c, d, e, f, g, h] = *fields;
    let header = Header {
        group_count: usize::try_from(i16::from_be_bytes([a, b])).ok()?,
        weight: i16::from_be_bytes([c, d]),
        sign: u16::from_be_bytes([e, f]),
        scale: i16::from_be_bytes([g, h]),
    };
    Some((header, rest))
}

/// Returns the four decimal digits of a group.
fn digits_of(group: i16) -> [u8; 4] {
    [1000, 100, 10, 1].map(|power| u8::try_from(group / power % 10).unwrap_or(0))
}
