//! Values of `interval`.

use datafusion::arrow::compute::kernels::cast_utils::{
    IntervalParseConfig, IntervalUnit, parse_interval_month_day_nano_config,
};
use datafusion::arrow::datatypes::IntervalMonthDayNano;
use datafusion::common::ScalarValue;
use forebay_tables::{Code, SqlError};

use super::datetime::clock;
use super::trimmed;

/// Bytes of the binary format.
const BYTES: usize = 16;

fn out_of_range() -> SqlError {
    SqlError::new(Code::NumericValueOutOfRange, "interval out of range")
}

/// Reads the binary format: microseconds, days, months.
pub(super) fn of_binary(bytes: [u8; BYTES]) -> Result<ScalarValue, SqlError> {
    let [micros @ .., _, _, _, _, _, _, _, _] = bytes;
    let [_, _, _, _, _, _, _, _, days @ .., _, _, _, _] = bytes;
    let [_, _, _, _, _, _, _, _, _, _, _, _, months @ ..] = bytes;
    let nanos = i64::from_be_bytes(micros)
        .checked_mul(1000)
        .ok_or_else(out_of_range)?;
    let (months, days) = (i32::from_be_bytes(months), i32::from_be_bytes(days));
    Ok(scalar(IntervalMonthDayNano::new(months, days, nanos)))
}

fn scalar(value: IntervalMonthDayNano) -> ScalarValue {
    ScalarValue::IntervalMonthDayNano(Some(value))
}

/// Reads a text like `1 year 2 mons -3 days 04:05:06.5`, or like `@ 1 hour 5 mins ago`.
pub(super) fn of_text(text: &str) -> Result<ScalarValue, SqlError> {
    let parsed = parse(text).ok_or_else(|| {
        let message = format!("invalid input syntax for type interval: \"{text}\"");
        SqlError::new(Code::InvalidDatetimeFormat, message)
    })?;
    parsed.map(scalar).ok_or_else(|| {
        let message = format!("interval field value out of range: \"{text}\"");
        SqlError::new(Code::InvalidDatetimeFormat, message)
    })
}

/// Reads a text. Returns `None` if it is malformed, and `Some(None)` if a field is out of range.
///
/// Arrow reads the words with units; it does not know clocks, plus signs and `ago`.
fn parse(text: &str) -> Option<Option<IntervalMonthDayNano>> {
    let text = trimmed(text);
    let text = text.strip_prefix('@').unwrap_or(text);
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let (words, is_ago) = match words.as_slice() {
        [words @ .., last] if last.eq_ignore_ascii_case("ago") => (words, true),
        words => (words, false),
    };
    let (clocks, units): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| word.contains(':'));
    let clock_nanos = match clocks.as_slice() {
        [] if units.is_empty() => return None,
        [] => 0,
        [word] => match signed_clock(word)? {
            Some(nanos) => nanos,
            None => return Some(None),
        },
        _ => return None,
    };
    let value = match units.is_empty() {
        true => IntervalMonthDayNano::ZERO,
        false => of_units(&units)?,
    };
    Some(sum(value, clock_nanos, is_ago))
}

/// Reads amounts with units. An amount without a unit is seconds.
fn of_units(words: &[&str]) -> Option<IntervalMonthDayNano> {
    let words = words
        .iter()
        .map(|word| word.strip_prefix('+').unwrap_or(word));
    let text = words.collect::<Vec<_>>().join(" ");
    let config = IntervalParseConfig::new(IntervalUnit::Second);
    parse_interval_month_day_nano_config(&text, config).ok()
}

/// Reads hours, minutes and seconds with a sign, as nanoseconds. Returns `Some(None)` if they are out of range.
fn signed_clock(word: &str) -> Option<Option<i64>> {
    let (is_negative, unsigned) = match word.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, word.strip_prefix('+').unwrap_or(word)),
    };
    let nanos = clock(unsigned)?.and_then(|micros| micros.checked_mul(1000));
    Some(nanos.map(|nanos| if is_negative { -nanos } else { nanos }))
}

/// Returns an interval and nanoseconds more, negated if it is in the past, or `None` on overflow.
fn sum(value: IntervalMonthDayNano, nanos: i64, is_ago: bool) -> Option<IntervalMonthDayNano> {
    let nanos = value.nanoseconds.checked_add(nanos)?;
    match is_ago {
        false => Some(IntervalMonthDayNano::new(value.months, value.days, nanos)),
        true => Some(IntervalMonthDayNano::new(
            value.months.checked_neg()?,
            value.days.checked_neg()?,
            nanos.checked_neg()?,
        )),
    }
}
