//! Operations on Decimal128 values that the comparison of BSON values needs: decoding, exact comparison, conversion to
//! double.

use std::cmp::Ordering;

use bson::Decimal128;

const COEFFICIENT_MAX: u128 = 9_999_999_999_999_999_999_999_999_999_999_999;
const EXPONENT_BIAS: i32 = 6176;

/// A decoded Decimal128 value.
///
/// Sources: IEEE 754-2008 decimal128 in binary integer encoding, as the BSON specification requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decimal {
    /// `(-1)^negative * coefficient * 10^exponent`.
    Finite {
        /// Whether the sign is minus. Zero has a sign too.
        negative: bool,
        /// At most 34 digits.
        coefficient: u128,
        /// From -6176 to 6111.
        exponent: i32,
    },
    /// Plus or minus infinity.
    Infinity {
        /// Whether the sign is minus.
        negative: bool,
    },
    /// Not a number.
    NaN,
}

impl From<Decimal128> for Decimal {
    fn from(value: Decimal128) -> Decimal {
        let bits = u128::from_le_bytes(value.bytes());
        let negative = bits >> 127 == 1;
        match (bits >> 122) & 0b1_1111 {
            0b1_1111 => Decimal::NaN,
            0b1_1110 => Decimal::Infinity { negative },
            _ => finite(negative, bits),
        }
    }
}

impl From<i64> for Decimal {
    fn from(value: i64) -> Decimal {
        Decimal::Finite {
            negative: value < 0,
            coefficient: u128::from(value.unsigned_abs()),
            exponent: 0,
        }
    }
}

/// Decodes a finite value. A coefficient with more than 34 digits is not canonical and counts as zero.
fn finite(negative: bool, bits: u128) -> Decimal {
    let large = (bits >> 125) & 0b11 == 0b11;
    let exponent_shift = if large { 111 } else { 113 };
    let exponent = ((bits >> exponent_shift) & 0x3FFF) as i32 - EXPONENT_BIAS;
    let coefficient = if large { 0 } else { bits & ((1 << 113) - 1) };
    let coefficient = if coefficient > COEFFICIENT_MAX {
        0
    } else {
        coefficient
    };
    Decimal::Finite {
        negative,
        coefficient,
        exponent,
    }
}

impl Decimal {
    /// Returns whether the value is zero, with any sign and exponent.
    pub fn is_zero(&self) -> bool {
        matches!(self, Decimal::Finite { coefficient: 0, .. })
    }

    /// Returns the nearest double.
    pub fn to_f64(self) -> f64 {
        match self {
            Decimal::NaN => f64::NAN,
            Decimal::Infinity { negative: false } => f64::INFINITY,
            Decimal::Infinity { negative: true } => f64::NEG_INFINITY,
            Decimal::Finite {
                negative,
                coefficient,
                exponent,
            } => {
                let magnitude: f64 = format!("{coefficient}e{exponent}").parse().unwrap_or(0.0);
                if negative { -magnitude } else { magnitude }
            }
        }
    }

    /// Returns the value as an integer, or `None` if it is not integral or does not fit into 64 bits.
    pub fn to_i64_exact(self) -> Option<i64> {
        let digits = self.digits()?;
        let integer = digits.integer()?;
        i64::try_from(if digits.negative { -integer } else { integer }).ok()
    }

    /// Returns the sign, the significant digits and the exponent of the first digit; `None` for infinities and NaN.
    pub(crate) fn digits(self) -> Option<Digits> {
        let Decimal::Finite {
            negative,
            coefficient,
            exponent,
        } = self
        else {
            return None;
        };
        let all = coefficient.to_string();
        let kept = all.trim_end_matches('0').to_owned();
        let place = if coefficient == 0 {
            0
        } else {
            exponent + all.len() as i32 - 1
        };
        Some(Digits {
            negative: negative && coefficient != 0,
            place,
            digits: kept,
        })
    }
}

/// A finite number as decimal digits: `d.ddd * 10^place`, without trailing zeros. Zero has no digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Digits {
    pub negative: bool,
    pub place: i32,
    pub digits: String,
}

impl Digits {
    /// Returns the exact decimal expansion of a finite double.
    pub fn of_f64(value: f64) -> Digits {
        // No double has more than 767 significant digits.
        let text = format!("{:.770e}", value.abs());
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
        let digits = digits.trim_end_matches('0').to_owned();
        let place = if digits.is_empty() {
            0
        } else {
            exponent.parse().unwrap_or(0)
        };
        Digits {
            negative: value < 0.0,
            place,
            digits,
        }
    }

    fn integer(&self) -> Option<i128> {
        if self.digits.is_empty() {
            return Some(0);
        }
        let zeros = self.place + 1 - self.digits.len() as i32;
        if zeros < 0 || self.place > 30 {
            return None;
        }
        format!("{}{}", self.digits, "0".repeat(zeros as usize))
            .parse()
            .ok()
    }

    fn signum(&self) -> i32 {
        match (self.digits.is_empty(), self.negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        }
    }

    fn compare_magnitude(&self, other: &Digits) -> Ordering {
        self.place
            .cmp(&other.place)
            .then_with(|| self.digits.cmp(&other.digits))
    }
}

impl PartialOrd for Digits {
    fn partial_cmp(&self, other: &Digits) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Digits {
    fn cmp(&self, other: &Digits) -> Ordering {
        self.signum()
            .cmp(&other.signum())
            .then_with(|| match self.signum() {
                0 => Ordering::Equal,
                1 => self.compare_magnitude(other),
                _ => other.compare_magnitude(self),
            })
    }
}

/// Orders two decimals exactly. NaN is below all other numbers and equal to itself.
pub fn compare(a: Decimal, b: Decimal) -> Ordering {
    match (a.digits(), b.digits()) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => class(a).cmp(&class(b)),
    }
}

fn class(value: Decimal) -> i32 {
    match value {
        Decimal::NaN => -2,
        Decimal::Infinity { negative: true } => -1,
        Decimal::Finite { .. } => 0,
        Decimal::Infinity { negative: false } => 1,
    }
}

/// Orders a double and a decimal exactly. NaN is below all other numbers and equal to itself.
pub fn compare_f64(a: f64, b: Decimal) -> Ordering {
    let nearest = b.to_f64();
    match (a.is_nan(), nearest.is_nan()) {
        (true, true) => return Ordering::Equal,
        (true, false) => return Ordering::Less,
        (false, true) => return Ordering::Greater,
        (false, false) => {}
    }
    match a.partial_cmp(&nearest) {
        // Rounding preserves order: if the values differ after rounding, they have the same order before rounding.
        Some(Ordering::Equal) | None => compare_equal_doubles(a, b),
        Some(order) => order,
    }
}

fn compare_equal_doubles(a: f64, b: Decimal) -> Ordering {
    match b.digits() {
        None => Ordering::Equal,
        Some(_) if a.is_infinite() => {
            if a > 0.0 {
                Ordering::Greater
            } else {
                Ordering::Less
            }
        }
        Some(digits) => Digits::of_f64(a).cmp(&digits),
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use super::*;

    fn decimal(text: &str) -> Decimal {
        Decimal128::from_str(text)
            .expect("a literal of the test")
            .into()
    }

    #[test]
    fn equal_values_of_different_exponents_are_equal() {
        assert_eq!(compare(decimal("1.0"), decimal("1")), Ordering::Equal);
        assert_eq!(compare(decimal("10E2"), decimal("1000")), Ordering::Equal);
        assert_eq!(compare(decimal("-0"), decimal("0E10")), Ordering::Equal);
    }

    #[test]
    fn decimals_order_by_value() {
        let ascending = [
            "NaN",
            "-Infinity",
            "-1E6000",
            "-2",
            "-1.5",
            "0",
            "1E-6000",
            "0.1",
            "9",
            "10",
            "1E400",
            "Infinity",
        ];
        for pair in ascending.windows(2) {
            assert_eq!(
                compare(decimal(pair[0]), decimal(pair[1])),
                Ordering::Less,
                "{pair:?}"
            );
        }
    }

    #[test]
    fn doubles_compare_by_their_exact_expansion() {
        assert_eq!(compare_f64(0.5, decimal("0.5")), Ordering::Equal);
        assert_eq!(compare_f64(0.1, decimal("0.1")), Ordering::Greater);
        assert_eq!(
            compare_f64(f64::INFINITY, decimal("1E6000")),
            Ordering::Greater
        );
        assert_eq!(compare_f64(f64::NAN, decimal("NaN")), Ordering::Equal);
        assert_eq!(compare_f64(1.0, decimal("NaN")), Ordering::Greater);
    }

    #[test]
    fn integers_come_out_exactly() {
        assert_eq!(decimal("12E3").to_i64_exact(), Some(12_000));
        assert_eq!(decimal("-7").to_i64_exact(), Some(-7));
        assert_eq!(decimal("1.5").to_i64_exact(), None);
        assert_eq!(decimal("1E30").to_i64_exact(), None);
        assert_eq!(
            decimal("9223372036854775807").to_i64_exact(),
            Some(i64::MAX)
        );
    }
}
