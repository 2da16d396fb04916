//! Values in PostgreSQL's binary format.
//!
//! # Sources
//! The functions `*send` of PostgreSQL 15.

use bytes::{BufMut, BytesMut};
use datafusion::arrow::datatypes::IntervalMonthDayNano;
use forebay_tables::{Code, SqlError};

use super::calendar::round_to_micros;

/// Most dimensions of an array.
pub(crate) const DIMENSIONS_MAX: usize = 6;

/// Decimal digits of one digit of `numeric`.
const GROUP_DIGITS: i16 = 4;

/// The sign field of a negative `numeric`.
pub(crate) const NEGATIVE: u16 = 0x4000;

/// Appends what `write` writes, after its length.
pub(super) fn length_prefixed(
    out: &mut BytesMut,
    write: impl FnOnce(&mut BytesMut) -> Result<(), SqlError>,
) -> Result<(), SqlError> {
    let start = out.len();
    out.put_i32(0);
    write(out)?;
    let length = length_of(out.len() - start - size_of::<i32>())?;
    out[start..start + size_of::<i32>()].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

/// Returns a length as the protocol has it.
///
/// # Errors
/// If it exceeds 2 GiB.
pub(crate) fn length_of(bytes: usize) -> Result<i32, SqlError> {
    let message = "a row exceeds the 2 GiB that a message holds";
    i32::try_from(bytes).map_err(|_| SqlError::new(Code::LimitExceeded, message))
}

/// Writes a `numeric`: groups of four digits, aligned to the decimal point, without zero groups at either end.
///
/// `digits` are ASCII and begin with a nonzero digit; zero has none. The value has `scale` of them after the point.
pub(super) fn decimal(is_negative: bool, digits: &[u8], scale: i8, out: &mut BytesMut) {
    let last = digits.iter().rposition(|digit| *digit != b'0');
    let kept = &digits[..last.map_or(0, |last| last + 1)];
    let before_point = small(digits.len()) - i16::from(scale);
    let in_first_group = match before_point.rem_euclid(GROUP_DIGITS) {
        0 => GROUP_DIGITS,
        digits => digits,
    };
    let (first, rest) = kept.split_at(kept.len().min(size(in_first_group)));
    let rest = rest.chunks(size(GROUP_DIGITS));
    let group_count = small(rest.len()) + i16::from(!first.is_empty());
    let weight = (before_point - in_first_group) / GROUP_DIGITS;
    out.put_i16(group_count);
    out.put_i16(if group_count == 0 { 0 } else { weight });
    out.put_u16(if is_negative && group_count > 0 {
        NEGATIVE
    } else {
        0
    });
    out.put_i16(i16::from(scale.max(0)));
    if !first.is_empty() {
        out.put_i16(group(first, in_first_group));
    }
    rest.for_each(|digits| out.put_i16(group(digits, GROUP_DIGITS)));
}

/// Returns a count of digits, of which there are less than 100.
fn small(count: usize) -> i16 {
    i16::try_from(count).unwrap_or(i16::MAX)
}

/// Returns the size of a group.
fn size(digits: i16) -> usize {
    usize::from(digits.unsigned_abs())
}

/// Returns the number that `count` digits have, the last of which are zeros and may be absent.
fn group(digits: &[u8], count: i16) -> i16 {
    let padded = digits
        .iter()
        .chain(std::iter::repeat(&b'0'))
        .take(size(count));
    padded.fold(0, |number, digit| number * 10 + i16::from(digit - b'0'))
}

/// Writes an `interval`. Nanoseconds are rounded half to even.
pub(super) fn interval(value: IntervalMonthDayNano, out: &mut BytesMut) {
    interval_of_micros(
        value.months,
        value.days,
        round_to_micros(value.nanoseconds),
        out,
    );
}

/// Writes an `interval` of months, days and microseconds.
pub(super) fn interval_of_micros(months: i32, days: i32, micros: i64, out: &mut BytesMut) {
    out.put_i64(micros);
    out.put_i32(days);
    out.put_i32(months);
}
