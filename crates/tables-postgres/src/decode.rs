//! Parameters of statements: PostgreSQL's text and binary formats as Arrow's values.
//!
//! Everything here comes from a client that is not trusted. Lengths and counts are checked against the bytes that are
//! there before memory is reserved, and malformed values are errors with PostgreSQL's messages.
//!
//! Accepted texts are those that drivers send, not all that PostgreSQL accepts: see [`parameter`].

use std::str::FromStr;

use datafusion::arrow::array::timezone::Tz;
use datafusion::common::ScalarValue;
use forebay_tables::{Code, SqlError, bytea_of_text};
use pgwire::api::Type;

use crate::types::{arrow_type, is_text, item_type};

mod array;
mod datetime;
mod interval;
mod numeric;

/// The version of the binary format of `jsonb`.
const JSONB_VERSION: u8 = 1;

/// Bytes of a `uuid`.
const UUID_BYTES: usize = 16;

/// Places of the hyphens of a `uuid`'s text, in digits before them.
const UUID_HYPHENS: [usize; 4] = [8, 12, 16, 20];

/// Returns the value of a parameter of type `type_`, or a typed null if there are no bytes.
///
/// The value has the type that [`arrow_type`] tells. A `numeric` is a `Decimal128` or `Decimal256` with the precision
/// and scale of the value. An array of several dimensions is a list of lists; lower bounds are ignored in binary.
///
/// Dates and times in text are ISO 8601 with a space or `T`, a fraction, an offset or the name of a zone, and `BC`. A
/// `timestamptz` without a zone is in UTC; [`parameter_in_zone`] takes another one.
///
/// # Errors
/// If the bytes are malformed, the value is out of range, the type is not supported, or the value is one that Arrow
/// lacks: `numeric` NaN and infinities, infinite times, and `24:00:00`.
pub fn parameter(
    type_: &Type,
    binary: bool,
    bytes: Option<&[u8]>,
) -> Result<ScalarValue, SqlError> {
    let zone = None;
    value(type_, binary, bytes, zone)
}

/// Does the same as [`parameter`], except that a `timestamptz` without a zone is in `zone`, which is that of the
/// session.
///
/// # Errors
/// As of [`parameter`].
pub fn parameter_in_zone(
    type_: &Type,
    binary: bool,
    bytes: Option<&[u8]>,
    zone: Tz,
) -> Result<ScalarValue, SqlError> {
    value(type_, binary, bytes, Some(zone))
}

fn value(
    type_: &Type,
    binary: bool,
    bytes: Option<&[u8]>,
    zone: Option<Tz>,
) -> Result<ScalarValue, SqlError> {
    let Some(bytes) = bytes else {
        return null(type_);
    };
    if let Some(item) = item_type(type_) {
        return array::value(item, binary, bytes, zone);
    }
    match binary {
        true => scalar_of_binary(type_, bytes),
        false => scalar_of_text(type_, utf8(bytes, false)?, zone),
    }
}

/// Returns the null of a type.
fn null(type_: &Type) -> Result<ScalarValue, SqlError> {
    if *type_ == Type::NUMERIC {
        return Ok(numeric::null());
    }
    if *type_ == Type::NUMERIC_ARRAY {
        return Ok(array::null_of_numerics());
    }
    let data_type = arrow_type(type_).ok_or_else(|| unsupported(type_))?;
    ScalarValue::try_from(&data_type).map_err(SqlError::from)
}

fn unsupported(type_: &Type) -> SqlError {
    SqlError::unsupported(format!("a parameter of type {}", sql_name(type_)))
}

/// Returns the name that PostgreSQL's messages have for a type.
fn sql_name(type_: &Type) -> &str {
    match *type_ {
        Type::BOOL => "boolean",
        Type::INT2 => "smallint",
        Type::INT4 => "integer",
        Type::INT8 => "bigint",
        Type::FLOAT4 => "real",
        Type::FLOAT8 => "double precision",
        Type::TIMESTAMPTZ => "timestamp with time zone",
        _ => type_.name(),
    }
}

/// Returns the error of a text that is not of the type.
fn invalid_text(type_: &Type, text: &str) -> SqlError {
    let name = sql_name(type_);
    let message = format!("invalid input syntax for type {name}: \"{text}\"");
    SqlError::new(Code::InvalidTextRepresentation, message)
}

/// Returns the error of bytes that are not of the type.
fn invalid_binary(type_: &Type) -> SqlError {
    let name = sql_name(type_);
    let message = format!("incorrect binary data format for type {name}");
    SqlError::new(Code::InvalidBinaryRepresentation, message)
}

/// Returns the error of a value that the type does not hold.
fn out_of_range(type_: &Type, text: &str) -> SqlError {
    let message = match *type_ {
        Type::FLOAT4 | Type::FLOAT8 => {
            format!("\"{text}\" is out of range for type {}", sql_name(type_))
        }
        _ => format!(
            "value \"{text}\" is out of range for type {}",
            sql_name(type_)
        ),
    };
    SqlError::new(Code::NumericValueOutOfRange, message)
}

/// Returns bytes as text.
///
/// # Errors
/// If they are not UTF-8, or contain a zero, which PostgreSQL's texts cannot.
pub(crate) fn utf8(bytes: &[u8], binary: bool) -> Result<&str, SqlError> {
    let code = match binary {
        true => Code::InvalidBinaryRepresentation,
        false => Code::InvalidTextRepresentation,
    };
    let invalid = |at: usize| {
        let byte = bytes.get(at).copied().unwrap_or_default();
        let message = format!("invalid byte sequence for encoding \"UTF8\": 0x{byte:02x}");
        SqlError::new(code, message)
    };
    let text = std::str::from_utf8(bytes).map_err(|error| invalid(error.valid_up_to()))?;
    match text.find('\0') {
        Some(at) => Err(invalid(at)),
        None => Ok(text),
    }
}

/// Removes the white space around a value that PostgreSQL ignores.
fn trimmed(text: &str) -> &str {
    text.trim_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c'])
}

fn scalar_of_text(type_: &Type, text: &str, zone: Option<Tz>) -> Result<ScalarValue, SqlError> {
    Ok(match *type_ {
        Type::BOOL => ScalarValue::Boolean(Some(boolean(text)?)),
        Type::INT2 => ScalarValue::Int16(Some(integer(type_, text)?)),
        Type::INT4 => ScalarValue::Int32(Some(integer(type_, text)?)),
        Type::INT8 => ScalarValue::Int64(Some(integer(type_, text)?)),
        Type::OID => ScalarValue::Int64(Some(i64::from(integer::<u32>(type_, text)?))),
        Type::FLOAT4 => ScalarValue::Float32(Some(float4(text)?)),
        Type::FLOAT8 => ScalarValue::Float64(Some(float8(text)?)),
        Type::NUMERIC => numeric::of_text(text)?.scalar(),
        Type::BYTEA => ScalarValue::Binary(Some(bytea_of_text(text)?)),
        Type::DATE => datetime::date(text)?,
        Type::TIME => datetime::time(text)?,
        Type::TIMESTAMP => datetime::timestamp(text)?,
        Type::TIMESTAMPTZ => datetime::timestamp_in_zone(text, zone)?,
        Type::INTERVAL => interval::of_text(text)?,
        Type::UUID => ScalarValue::Utf8(Some(uuid(text)?)),
        Type::JSON | Type::JSONB => ScalarValue::Utf8(Some(text.to_owned())),
        _ if is_text(type_) => ScalarValue::Utf8(Some(text.to_owned())),
        _ => return Err(unsupported(type_)),
    })
}

/// Reads a prefix of `true`, `false`, `yes` or `no`, or `on`, `off`, `1`, `0`.
fn boolean(text: &str) -> Result<bool, SqlError> {
    let word = trimmed(text).to_ascii_lowercase();
    let is =
        |full: &str, prefix_bytes: usize| word.len() >= prefix_bytes && full.starts_with(&word);
    if is("true", 1) || is("yes", 1) || word == "on" || word == "1" {
        Ok(true)
    } else if is("false", 1) || is("no", 1) || is("off", 2) || word == "0" {
        Ok(false)
    } else {
        Err(invalid_text(&Type::BOOL, text))
    }
}

fn integer<T: FromStr<Err = std::num::ParseIntError>>(
    type_: &Type,
    text: &str,
) -> Result<T, SqlError> {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
    trimmed(text)
        .parse()
        .map_err(|error: std::num::ParseIntError| match error.kind() {
            PosOverflow | NegOverflow => out_of_range(type_, text),
            _ => invalid_text(type_, text),
        })
}

fn float4(text: &str) -> Result<f32, SqlError> {
    let invalid = |_| invalid_text(&Type::FLOAT4, text);
    let value: f32 = trimmed(text).parse().map_err(invalid)?;
    match is_rounded_away(text, value == 0.0, value.is_infinite()) {
        true => Err(out_of_range(&Type::FLOAT4, trimmed(text))),
        false => Ok(value),
    }
}

fn float8(text: &str) -> Result<f64, SqlError> {
    let invalid = |_| invalid_text(&Type::FLOAT8, text);
    let value: f64 = trimmed(text).parse().map_err(invalid)?;
    match is_rounded_away(text, value == 0.0, value.is_infinite()) {
        true => Err(out_of_range(&Type::FLOAT8, trimmed(text))),
        false => Ok(value),
    }
}

/// Returns whether a text tells a number that became zero or infinite.
fn is_rounded_away(text: &str, is_zero: bool, is_infinite: bool) -> bool {
    let mut mantissa = text.bytes().take_while(|byte| !matches!(byte, b'e' | b'E'));
    let has_digits = |byte: u8| matches!(byte, b'1'..=b'9');
    (is_zero || is_infinite) && mantissa.any(has_digits)
}

/// Reads a `uuid` of 32 hexadecimal digits with or without hyphens and braces, and returns its usual text.
fn uuid(text: &str) -> Result<String, SqlError> {
    let inner = text
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'));
    let mut digits = String::with_capacity(2 * UUID_BYTES);
    for letter in inner.unwrap_or(text).chars() {
        let is_hyphen = letter == '-' && digits.len().is_multiple_of(4) && !digits.is_empty();
        match letter.is_ascii_hexdigit() && digits.len() < 2 * UUID_BYTES {
            true => digits.push(letter.to_ascii_lowercase()),
            false if is_hyphen => {}
            false => return Err(invalid_text(&Type::UUID, text)),
        }
    }
    match digits.len() == 2 * UUID_BYTES && !inner.unwrap_or(text).ends_with('-') {
        true => Ok(hyphenated(&digits)),
        false => Err(invalid_text(&Type::UUID, text)),
    }
}

/// Adds the hyphens of a `uuid` to its digits.
fn hyphenated(digits: &str) -> String {
    let mut text = String::with_capacity(digits.len() + UUID_HYPHENS.len());
    for (index, digit) in digits.chars().enumerate() {
        if UUID_HYPHENS.contains(&index) {
            text.push('-');
        }
        text.push(digit);
    }
    text
}

fn scalar_of_binary(type_: &Type, bytes: &[u8]) -> Result<ScalarValue, SqlError> {
    let text = |bytes| Ok::<_, SqlError>(ScalarValue::Utf8(Some(utf8(bytes, true)?.to_owned())));
    Ok(match *type_ {
        Type::BOOL => ScalarValue::Boolean(Some(fixed::<1>(type_, bytes)? != [0])),
        Type::INT2 => ScalarValue::Int16(Some(i16::from_be_bytes(fixed(type_, bytes)?))),
        Type::INT4 => ScalarValue::Int32(Some(i32::from_be_bytes(fixed(type_, bytes)?))),
        Type::INT8 => ScalarValue::Int64(Some(i64::from_be_bytes(fixed(type_, bytes)?))),
        Type::OID => ScalarValue::Int64(Some(u32::from_be_bytes(fixed(type_, bytes)?).into())),
        Type::FLOAT4 => ScalarValue::Float32(Some(f32::from_be_bytes(fixed(type_, bytes)?))),
        Type::FLOAT8 => ScalarValue::Float64(Some(f64::from_be_bytes(fixed(type_, bytes)?))),
        Type::NUMERIC => numeric::of_binary(bytes)?.scalar(),
        Type::BYTEA => ScalarValue::Binary(Some(bytes.to_owned())),
        Type::DATE => datetime::date_of_binary(i32::from_be_bytes(fixed(type_, bytes)?))?,
        Type::TIME => datetime::time_of_binary(i64::from_be_bytes(fixed(type_, bytes)?))?,
        Type::TIMESTAMP | Type::TIMESTAMPTZ => {
            datetime::timestamp_of_binary(type_, i64::from_be_bytes(fixed(type_, bytes)?))?
        }
        Type::INTERVAL => interval::of_binary(fixed(type_, bytes)?)?,
        Type::UUID => ScalarValue::Utf8(Some(uuid_of_binary(fixed(type_, bytes)?))),
        Type::JSON => text(bytes)?,
        Type::JSONB => text(jsonb(bytes)?)?,
        _ if is_text(type_) => text(bytes)?,
        _ => return Err(unsupported(type_)),
    })
}

/// Returns the bytes of a value whose type has a fixed length.
fn fixed<const N: usize>(type_: &Type, bytes: &[u8]) -> Result<[u8; N], SqlError> {
    bytes.try_into().map_err(|_| invalid_binary(type_))
}

fn uuid_of_binary(bytes: [u8; UUID_BYTES]) -> String {
    let number = u128::from_be_bytes(bytes);
    hyphenated(&format!("{number:032x}"))
}

/// Returns the text of a `jsonb`, which a version precedes.
fn jsonb(bytes: &[u8]) -> Result<&[u8], SqlError> {
    match bytes.split_first() {
        Some((&JSONB_VERSION, text)) => Ok(text),
        Some((version, _)) => {
            let message = format!("unsupported jsonb version number {version}");
            Err(SqlError::new(Code::InvalidBinaryRepresentation, message))
        }
        None => Err(invalid_binary(&Type::JSONB)),
    }
}
