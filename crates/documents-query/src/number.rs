//! BSON numbers: order and equality across int, long, double and decimal.

use std::cmp::Ordering;

use bson::raw::RawBsonRef;

use crate::decimal::{self, Decimal};

/// A BSON number. Ints and longs have the same representation.
#[derive(Debug, Clone, Copy)]
pub enum Number {
    /// An int or a long.
    Integer(i64),
    /// A double.
    Double(f64),
    /// A decimal.
    Decimal(Decimal),
}

impl Number {
    /// Returns the number if `value` is one.
    pub fn of(value: RawBsonRef<'_>) -> Option<Number> {
        match value {
            RawBsonRef::Int32(number) => Some(Number::Integer(i64::from(number))),
            RawBsonRef::Int64(number) => Some(Number::Integer(number)),
            RawBsonRef::Double(number) => Some(Number::Double(number)),
            RawBsonRef::Decimal128(number) => Some(Number::Decimal(number.into())),
            _ => None,
        }
    }

    /// Returns whether this is NaN.
    pub fn is_nan(self) -> bool {
        match self {
            Number::Integer(_) => false,
            Number::Double(number) => number.is_nan(),
            Number::Decimal(number) => number == Decimal::NaN,
        }
    }

    /// Returns the nearest double.
    pub fn to_f64(self) -> f64 {
        match self {
            Number::Integer(number) => number as f64,
            Number::Double(number) => number,
            Number::Decimal(number) => number.to_f64(),
        }
    }

    /// Returns the number as an integer, or `None` if it is not integral or does not fit into 64 bits.
    pub fn to_i64_exact(self) -> Option<i64> {
        match self {
            Number::Integer(number) => Some(number),
            Number::Double(number) => f64_to_i64_exact(number),
            Number::Decimal(number) => number.to_i64_exact(),
        }
    }

    /// Returns the integer part, clamped to the range of 64-bit integers. NaN is 0.
    pub fn to_i64_truncated(self) -> i64 {
        match self {
            Number::Integer(number) => number,
            Number::Double(number) => number as i64,
            Number::Decimal(number) => number
                .to_i64_exact()
                .unwrap_or_else(|| number.to_f64() as i64),
        }
    }
}

fn f64_to_i64_exact(number: f64) -> Option<i64> {
    // 2^63 is exact as a double, and is one more than the largest i64.
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    (number.fract() == 0.0 && (-LIMIT..LIMIT).contains(&number)).then_some(number as i64)
}

/// Orders two numbers by value. NaN is below all other numbers and equal to itself. Zero and minus zero are equal.
pub fn compare(a: Number, b: Number) -> Ordering {
    match (a, b) {
        (Number::Integer(a), Number::Integer(b)) => a.cmp(&b),
        (Number::Double(a), Number::Double(b)) => compare_doubles(a, b),
        (Number::Integer(a), Number::Double(b)) => compare_mixed(a, b),
        (Number::Double(a), Number::Integer(b)) => compare_mixed(b, a).reverse(),
        (Number::Decimal(a), Number::Decimal(b)) => decimal::compare(a, b),
        (Number::Double(a), Number::Decimal(b)) => decimal::compare_f64(a, b),
        (Number::Decimal(a), Number::Double(b)) => decimal::compare_f64(b, a).reverse(),
        (Number::Integer(a), Number::Decimal(b)) => decimal::compare(a.into(), b),
        (Number::Decimal(a), Number::Integer(b)) => decimal::compare(a, b.into()),
    }
}

fn compare_doubles(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b)
        .unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()))
}

/// Compares an integer and a double exactly, although neither type can represent all values of the other.
fn compare_mixed(integer: i64, double: f64) -> Ordering {
    if double.is_nan() {
        return Ordering::Greater;
    }
    let rounded = integer as f64;
    match rounded.partial_cmp(&double) {
        Some(Ordering::Equal) | None => i128::from(integer).cmp(&(double as i128)),
        Some(order) => order,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_and_doubles_compare_exactly_beyond_2_to_53() {
        let double = Number::Double(9_007_199_254_740_992.0);
        assert_eq!(
            compare(Number::Integer(9_007_199_254_740_993), double),
            Ordering::Greater
        );
        assert_eq!(
            compare(Number::Integer(9_007_199_254_740_992), double),
            Ordering::Equal
        );
        assert_eq!(
            compare(
                Number::Integer(i64::MAX),
                Number::Double(9_223_372_036_854_775_808.0)
            ),
            Ordering::Less
        );
    }

    #[test]
    fn nan_is_the_smallest_number() {
        let nan = Number::Double(f64::NAN);
        assert_eq!(
            compare(nan, Number::Double(f64::NEG_INFINITY)),
            Ordering::Less
        );
        assert_eq!(compare(Number::Integer(i64::MIN), nan), Ordering::Greater);
        assert_eq!(compare(nan, nan), Ordering::Equal);
        assert_eq!(compare(nan, Number::Decimal(Decimal::NaN)), Ordering::Equal);
    }

    #[test]
    fn zero_has_no_sign() {
        assert_eq!(
            compare(Number::Double(-0.0), Number::Integer(0)),
            Ordering::Equal
        );
    }
}
