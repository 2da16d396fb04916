//! Values as text, as PostgreSQL 15 prints them with `DateStyle` ISO and `IntervalStyle` postgres.
//!
//! # Sources
//! `float8out`, `EncodeDateTime`, `EncodeInterval`, `byteaout` of PostgreSQL 15.

use std::fmt::{Arguments, Write};

use bytes::{BufMut, BytesMut};
use datafusion::arrow::array::timezone::Tz;
use datafusion::arrow::datatypes::IntervalMonthDayNano;

use super::calendar::{DAY_MICROS, Date, SECOND_MICROS, offset_seconds, round_to_micros};
use super::digits::Digits;
use super::float;

/// Digits of bytes in hexadecimal.
const HEX: &[u8; 16] = b"0123456789abcdef";

/// The two digits of each number below 100.
static PAIRS: [[u8; 2]; 100] = pairs();

/// How dates are printed with times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// `2020-01-31 10:00:00+00`, as in results.
    Iso,
    /// `2020-01-31T10:00:00+00:00`, as in JSON.
    Json,
}

const fn pairs() -> [[u8; 2]; 100] {
    let mut pairs = [[b'0'; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
}

/// Writes formatted text. Writing to memory does not fail.
fn write(out: &mut BytesMut, text: Arguments<'_>) {
    let result = out.write_fmt(text);
    debug_assert!(result.is_ok(), "writing to memory cannot fail");
}

/// Writes a boolean.
pub(super) fn boolean(value: bool, out: &mut BytesMut) {
    out.put_u8(if value { b't' } else { b'f' });
}

/// Writes a signed integer.
pub(super) fn signed(value: i64, out: &mut BytesMut) {
    if value < 0 {
        out.put_u8(b'-');
    }
    unsigned(value.unsigned_abs(), out);
}

/// Writes an unsigned integer.
pub(super) fn unsigned(value: u64, out: &mut BytesMut) {
    if value == 0 {
        out.put_u8(b'0');
    } else {
        out.put_slice(Digits::of_u64(value).as_slice());
    }
}

/// Writes the two last digits of a number.
fn pair(value: i64, out: &mut BytesMut) {
    let index = usize::try_from(value.rem_euclid(100)).unwrap_or(0);
    out.put_slice(&PAIRS[index]);
}

/// Writes a `float8`: the shortest digits that read back as the same number.
pub(super) fn double(value: f64, out: &mut BytesMut) {
    let size = value.abs();
    if is_special(value, out) {
        return;
    }
    if size == 0.0 || (1e-4..1e15).contains(&size) {
        float::positional(value, out);
    } else {
        exponential(&float::exponential(value), out);
    }
}

/// Writes a `float4`: the shortest digits that read back as the same number.
pub(super) fn single(value: f32, out: &mut BytesMut) {
    let size = value.abs();
    if is_special(f64::from(value), out) {
        return;
    }
    if size == 0.0 || (1e-4..1e6).contains(&size) {
        float::positional(value, out);
    } else {
        exponential(&float::exponential(value), out);
    }
}

/// Writes a value that is not a finite number, and returns whether it is one.
fn is_special(value: f64, out: &mut BytesMut) -> bool {
    if value.is_nan() {
        out.put_slice(b"NaN");
    } else if value.is_infinite() {
        out.put_slice(if value > 0.0 {
            b"Infinity"
        } else {
            b"-Infinity"
        });
    }
    !value.is_finite()
}

/// Writes a number that Rust formatted, like `1e-7`, with a sign and at least two digits of exponent: `1e-07`.
fn exponential(text: &str, out: &mut BytesMut) {
    let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    write(out, format_args!("{digits}e{sign}{exponent:0>2}"));
}

/// Writes a `numeric` with all digits of its scale.
pub(super) fn decimal(is_negative: bool, digits: &[u8], scale: i8, out: &mut BytesMut) {
    let fraction = usize::try_from(scale).unwrap_or(0);
    let (whole, rest) = digits.split_at(digits.len().saturating_sub(fraction));
    if is_negative {
        out.put_u8(b'-');
    }
    out.put_slice(if whole.is_empty() { b"0" } else { whole });
    if fraction > 0 {
        out.put_u8(b'.');
        out.put_bytes(b'0', fraction - rest.len());
        out.put_slice(rest);
    } else if !digits.is_empty() {
        out.put_bytes(b'0', usize::from(scale.unsigned_abs()));
    }
}

/// Writes a `bytea`.
pub(super) fn bytea(bytes: &[u8], out: &mut BytesMut) {
    out.reserve(2 + 2 * bytes.len());
    out.put_slice(b"\\x");
    hex(bytes, out);
}

/// Writes bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8], out: &mut BytesMut) {
    for byte in bytes {
        let digit = |nibble: u8| HEX[usize::from(nibble)];
        out.put_slice(&[digit(byte >> 4), digit(byte & 15)]);
    }
}

/// Writes a `date`.
pub(super) fn date(days: i64, out: &mut BytesMut) {
    let date = Date::of_days(days);
    year_month_day(date, out);
    era(date, out);
}

/// Writes a date without its era.
fn year_month_day(date: Date, out: &mut BytesMut) {
    let year = if date.year > 0 {
        date.year
    } else {
        1 - date.year
    };
    if year < 10_000 {
        pair(year / 100, out);
        pair(year, out);
    } else {
        signed(year, out);
    }
    out.put_u8(b'-');
    pair(date.month, out);
    out.put_u8(b'-');
    pair(date.day, out);
}

/// Writes the era of a year before 1.
fn era(date: Date, out: &mut BytesMut) {
    if date.year <= 0 {
        out.put_slice(b" BC");
    }
}

/// Writes a `time`, given in microseconds since midnight.
pub(super) fn time(micros: i64, out: &mut BytesMut) {
    clock(micros.unsigned_abs(), out);
}

/// Writes hours, minutes and seconds. Hours have at least two digits.
fn clock(micros: u64, out: &mut BytesMut) {
    let second_micros = SECOND_MICROS.unsigned_abs();
    let (seconds, fraction) = (micros / second_micros, micros % second_micros);
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let hours = number(seconds / 3600);
    if hours < 100 {
        pair(hours, out);
    } else {
        signed(hours, out);
    }
    out.put_u8(b':');
    pair(number(seconds / 60 % 60), out);
    out.put_u8(b':');
    pair(number(seconds % 60), out);
    fraction_of_second(number(fraction), out);
}

/// Writes microseconds of a second without trailing zeros, and nothing if there are none.
fn fraction_of_second(micros: i64, out: &mut BytesMut) {
    if micros == 0 {
        return;
    }
    out.put_u8(b'.');
    pair(micros / 10_000, out);
    pair(micros / 100, out);
    pair(micros, out);
    let kept = out.iter().rposition(|digit| *digit != b'0');
    out.truncate(kept.map_or(0, |last| last + 1));
}

/// Writes a `timestamp`, given in microseconds since 1970.
pub(super) fn timestamp(micros: i64, style: Style, out: &mut BytesMut) {
    let date = date_and_time(micros, 0, style, out);
    era(date, out);
}

/// Writes a `timestamptz`, given in microseconds since 1970, as clocks of `zone` show it.
pub(super) fn timestamp_in_zone(micros: i64, zone: Option<Tz>, style: Style, out: &mut BytesMut) {
    let offset = offset_seconds(micros, zone);
    let date = date_and_time(micros, offset, style, out);
    offset_of_zone(offset, style, out);
    era(date, out);
}

/// Writes the date and time of clocks that are `offset` seconds ahead, without the era, and returns the date.
fn date_and_time(micros: i64, offset: i64, style: Style, out: &mut BytesMut) -> Date {
    let (day, micros) = (micros.div_euclid(DAY_MICROS), micros.rem_euclid(DAY_MICROS));
    let micros = micros + offset * SECOND_MICROS;
    let date = Date::of_days(day + micros.div_euclid(DAY_MICROS));
    year_month_day(date, out);
    out.put_u8(if style == Style::Json { b'T' } else { b' ' });
    time(micros.rem_euclid(DAY_MICROS), out);
    date
}

/// Writes an offset from UTC: `+00`, `+05:30`, `-00:01:15`.
fn offset_of_zone(seconds: i64, style: Style, out: &mut BytesMut) {
    out.put_u8(if seconds < 0 { b'-' } else { b'+' });
    let seconds = seconds.abs();
    let (minute, second) = (seconds / 60 % 60, seconds % 60);
    pair(seconds / 3600, out);
    if minute != 0 || second != 0 || style == Style::Json {
        out.put_u8(b':');
        pair(minute, out);
    }
    if second != 0 {
        out.put_u8(b':');
        pair(second, out);
    }
}

/// Writes an `interval` in the style `postgres`. Nanoseconds are rounded half to even.
pub(super) fn interval(value: IntervalMonthDayNano, out: &mut BytesMut) {
    let micros = round_to_micros(value.nanoseconds);
    interval_of_micros(value.months, value.days, micros, out);
}

/// Writes an `interval` of months, days and microseconds.
///
/// A field after a negative one gets a plus sign if it is positive.
pub(super) fn interval_of_micros(months: i32, days: i32, micros: i64, out: &mut BytesMut) {
    let start = out.len();
    let mut is_after_negative = false;
    for (count, unit) in [(months / 12, "year"), (months % 12, "mon"), (days, "day")] {
        if count != 0 {
            let space = if out.len() > start { " " } else { "" };
            let plus = if is_after_negative && count > 0 {
                "+"
            } else {
                ""
            };
            let plural = if count == 1 { "" } else { "s" };
            write(out, format_args!("{space}{plus}{count} {unit}{plural}"));
            is_after_negative = count < 0;
        }
    }
    if micros != 0 || out.len() == start {
        let space = if out.len() > start { " " } else { "" };
        let sign = match micros {
            ..0 => "-",
            _ if is_after_negative => "+",
            _ => "",
        };
        write(out, format_args!("{space}{sign}"));
        clock(micros.unsigned_abs(), out);
    }
}
