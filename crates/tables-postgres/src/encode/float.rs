//! Floating-point numbers as PostgreSQL prints them.
//!
//! Both Rust and PostgreSQL print the shortest digits that read back as the same number, and of those the closest. They
//! differ in two cases, which PostgreSQL's way is taken of:
//!
//! - Digits that are exactly halfway between two numbers read back as the one whose last bit is zero. Rust prints such
//!   digits (`1e23`), and PostgreSQL does not (`9.999999999999999e+22`). Only integers too large for the bits of a
//!   number have such digits, as a fraction would need more digits than are ever printed.
//! - A number can be exactly halfway between two texts of the same length. Rust prints the larger one, and PostgreSQL
//!   the one whose last digit is even. Only fractions have such texts.
//!
//! # Sources
//! `src/common/d2s.c` and `f2s.c` of PostgreSQL 15.

use std::fmt::{Display, LowerExp, Write};
use std::str::FromStr;

use bytes::BytesMut;
use datafusion::arrow::datatypes::i256;

/// The largest power of two that halfway digits have as a factor, with room to spare.
const EXPONENT_MAX: i32 = 120;

/// A type of floating-point numbers.
pub(super) trait Float: Copy + PartialEq + Display + LowerExp + FromStr {
    /// The largest count of digits that a number needs after the first one.
    const DIGITS_AFTER_FIRST: usize;

    /// Returns an integer and a power of two whose product is the absolute value, and whether the number below is only
    /// half as far away as that above. The number is not subnormal.
    fn parts(self) -> (u64, i32, bool);
}

impl Float for f64 {
    const DIGITS_AFTER_FIRST: usize = 16;

    fn parts(self) -> (u64, i32, bool) {
        let bits = self.to_bits();
        let (fraction, exponent) = (bits & ((1 << 52) - 1), (bits >> 52) & 0x7ff);
        (
            fraction | (1 << 52),
            i32::try_from(exponent).unwrap_or(0) - 1075,
            fraction == 0,
        )
    }
}

impl Float for f32 {
    const DIGITS_AFTER_FIRST: usize = 8;

    fn parts(self) -> (u64, i32, bool) {
        let bits = self.to_bits();
        let (fraction, exponent) = (bits & ((1 << 23) - 1), (bits >> 23) & 0xff);
        let integer = u64::from(fraction | (1 << 23));
        (
            integer,
            i32::try_from(exponent).unwrap_or(0) - 150,
            fraction == 0,
        )
    }
}

/// Writes a finite number like `-1.5`.
pub(super) fn positional<F: Float>(value: F, out: &mut BytesMut) {
    let start = out.len();
    // Writing to memory does not fail.
    let _ = write!(out, "{value}");
    let text = &out[start..];
    let point = text.iter().position(|byte| *byte == b'.');
    let Some(decimals) = point.map(|point| text.len() - point - 1) else {
        return;
    };
    if needs_decimals(value, decimals + 1) {
        out.truncate(start);
        let _ = write!(out, "{value:.decimals$}");
    }
}

/// Returns the text of a finite number like `-1.5e-7`.
pub(super) fn exponential<F: Float>(value: F) -> String {
    let mut text = format!("{value:e}");
    if is_tie(value, &text) {
        let digits = digits_after_first(&text);
        let even = format!("{value:.digits$e}");
        return if even.parse().is_ok_and(|read: F| read == value) {
            even
        } else {
            text
        };
    }
    for digits in digits_after_first(&text) + 1..=F::DIGITS_AFTER_FIRST {
        if !is_halfway(value, &text) {
            break;
        }
        text = format!("{value:.digits$e}");
    }
    text
}

/// Returns the count of digits between the point and the exponent.
fn digits_after_first(text: &str) -> usize {
    let digits = text
        .bytes()
        .take_while(|byte| *byte != b'e')
        .filter(u8::is_ascii_digit);
    digits.count().saturating_sub(1)
}

/// Returns whether a number is exactly halfway between the digits of a text and others of the same length.
fn is_tie<F: Float>(value: F, text: &str) -> bool {
    let exponent: i64 = text
        .split_once('e')
        .and_then(|(_, power)| power.parse().ok())
        .unwrap_or(0);
    let decimals = i64::try_from(digits_after_first(text)).unwrap_or(0) - exponent;
    usize::try_from(decimals + 1).is_ok_and(|decimals| needs_decimals(value, decimals))
}

/// Returns whether a number has exactly `decimals` digits after the point, none of them redundant.
fn needs_decimals<F: Float>(value: F, decimals: usize) -> bool {
    let (integer, exponent, _) = value.parts();
    let halvings = -i64::from(exponent) - i64::from(integer.trailing_zeros());
    decimals > 0 && usize::try_from(halvings) == Ok(decimals)
}

/// Returns whether digits are exactly halfway between a number and one beside it.
fn is_halfway<F: Float>(value: F, text: &str) -> bool {
    let (integer, exponent, is_close_below) = value.parts();
    if !(1..=EXPONENT_MAX).contains(&exponent) {
        return false;
    }
    let power = u8::try_from(exponent).unwrap_or(0);
    let four_times = |quarters: i128| Some(i256::from_i128(quarters) << power);
    let quarters = i128::from(integer) * 4;
    let below = quarters - if is_close_below { 1 } else { 2 };
    let number = integer_of(text).and_then(|number| number.checked_mul(i256::from_i128(4)));
    number.is_some() && (number == four_times(quarters + 2) || number == four_times(below))
}

/// Returns the absolute value of a text like `-1.5e20`, if it is an integer of at most 256 bits.
fn integer_of(text: &str) -> Option<i256> {
    let (mantissa, exponent) = text.trim_start_matches('-').split_once('e')?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let power = exponent
        .parse::<u32>()
        .ok()?
        .checked_sub(u32::try_from(fraction.len()).ok()?)?;
    i256::from_i128(digits).checked_mul(i256::from_i128(10).checked_pow(power)?)
}
