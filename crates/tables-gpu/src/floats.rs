//! Floats as integers: what columns keep of them, and the exact sums of kernels.
//!
//! Most floats in files are decimals: prices, distances, rates. The chunk of such a column keeps integers, which
//! kernels divide by a power of ten; the quotient is the float, bit for bit. Other chunks keep the bits, as integers
//! that order as the floats do.

use datafusion::arrow::datatypes::DataType;

/// The exponent of a chunk that keeps bits.
pub(crate) const BITS: u32 = 32;
/// Number of exponents of decimals.
pub(crate) const EXPONENTS: u32 = POWERS.len() as u32;
/// Powers of ten that are floats, as in `numbers.cuh`. Exponents of chunks are smaller than their number.
const POWERS: [f64; 19] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18,
];
/// Integers up to this are floats.
const INTEGER_MAX: f64 = (1_u64 << 53) as f64;

/// Bits from one part of a number that is added to the next, and of the high part.
const PART_BITS: i32 = 41;
const HIGH_BITS: i32 = 40;
/// The largest exponent of a power of two that is a normal float, as its reciprocal is.
const POWER_MAX: i32 = 1022;
/// Least bits, in front of the point, of a number that is added.
const LEAST_BITS: i32 = 40;

/// Largest absolute value of a part.
pub(crate) const PART_MAX: u128 = 1 << (PART_BITS - 1);

pub(crate) fn is_float(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Float32 | DataType::Float64)
}

/// Returns an integer that orders as a float does: -NaN, -infinity, numbers, with -0 before 0, infinity, NaN.
pub(crate) fn ordered(float: f64) -> i64 {
    with_order(float.to_bits().cast_signed())
}

/// Returns the float of such an integer.
pub(crate) fn float_of(ordered: i64) -> f64 {
    f64::from_bits(with_order(ordered).cast_unsigned())
}

/// Returns the bits of a float as an integer that orders as it does, or these bits again.
fn with_order(bits: i64) -> i64 {
    bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed()
}

/// Returns an integer divided by a power of ten, rounded as kernels do.
pub(crate) fn decimal(number: i64, exponent: u32) -> f64 {
    let (number, power) = (number as f64, POWERS[exponent as usize]);
    let inverse = 1.0 / power;
    let quotient = number * inverse;
    let rest = (-quotient).mul_add(power, number);
    rest.mul_add(inverse, quotient)
}

/// Returns the integer that a float is, times a power of ten.
pub(crate) fn integer(float: f64, exponent: u32, is_single: bool) -> Option<i64> {
    let scaled = (float * POWERS[exponent as usize]).round_ties_even();
    if scaled.is_nan() || scaled.abs() > INTEGER_MAX {
        return None;
    }
    let decimal = decimal(scaled as i64, exponent);
    let decimal = match is_single {
        true => f64::from(decimal as f32),
        false => decimal,
    };
    (decimal.to_bits() == float.to_bits()).then_some(scaled as i64)
}

/// Returns whether no other integer with the same exponent is the same float: it has few enough digits.
pub(crate) fn is_unique(integer: i64, is_single: bool) -> bool {
    let most = if is_single {
        1_000_000
    } else {
        1_000_000_000_000_000
    };
    integer.unsigned_abs() <= most
}

/// Returns the integers of floats with an exponent, or the first float that has no such integer.
fn integers(
    numbers: &[i64],
    valid: &[bool],
    (exponent, is_single): (u32, bool),
) -> Result<Vec<i64>, f64> {
    let integers = numbers.iter().zip(valid).map(|(number, valid)| {
        let float = float_of(*number);
        match valid {
            true => integer(float, exponent, is_single).ok_or(float),
            false => Ok(0),
        }
    });
    integers.collect()
}

/// Makes what a chunk keeps of floats, which are given as ordered integers. Returns the exponent, at least `first` if
/// that can be, or [`BITS`].
pub(crate) fn encode(numbers: &mut [i64], valid: &[bool], first: u32, is_single: bool) -> u32 {
    let mut exponent = first;
    loop {
        let float = match integers(numbers, valid, (exponent, is_single)) {
            Ok(integers) => {
                numbers.copy_from_slice(&integers);
                return exponent;
            }
            Err(float) => float,
        };
        let mut next = exponent + 1..POWERS.len() as u32;
        let next = next.find(|exponent| integer(float, *exponent, is_single).is_some());
        // Large numbers have room for fewer digits than those of chunks before.
        let is_before = || (0..first).any(|it| integer(float, it, is_single).is_some());
        exponent = match next {
            Some(next) => next,
            None if exponent == first && is_before() => {
                return encode(numbers, valid, 0, is_single);
            }
            None => break,
        };
    }
    if is_single {
        for number in numbers {
            let bits = (float_of(*number) as f32).to_bits().cast_signed();
            *number = (bits ^ ((bits >> 31).cast_unsigned() >> 1).cast_signed()).into();
        }
    }
    BITS
}

/// How kernels add floats: as integers in three parts, so that sums are the same in any order.
///
/// The integer of a float has 121 bits if the float has the largest absolute value that a row may have. What is rounded
/// behind them is nothing for floats that are at least `2^-68` of the largest; kernels leave a sum to the CPU if a row
/// has less than about `2^-80` of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Binary logarithm of what the middle part is multiplied by.
    shift: i32,
}

impl Parts {
    /// Returns the parts of floats of at most this absolute value, which is finite.
    pub(crate) fn of(largest: f64) -> Parts {
        let shift = match largest > 0.0 {
            // The logarithm may be rounded to the next integer.
            true => PART_BITS + HIGH_BITS - 1 - largest.log2().floor() as i32,
            false => 0,
        };
        Parts {
            shift: shift.min(POWER_MAX - PART_BITS),
        }
    }

    /// Returns what kernels multiply by for the high part and for the others, and the least absolute value that is
    /// added.
    pub(crate) fn scales(self) -> [f64; 3] {
        [
            power(self.shift - PART_BITS),
            power(self.shift),
            power(LEAST_BITS - PART_BITS - self.shift),
        ]
    }

    /// Returns a sum from the sums of the parts, the high one first.
    pub(crate) fn sum(self, [high, middle, low]: [i128; 3]) -> f64 {
        let mask = (1 << PART_BITS) - 1;
        let middle = middle + (low >> PART_BITS);
        let high = high + (middle >> PART_BITS);
        let (middle, low) = (middle & mask, low & mask);
        let both = (high << PART_BITS) + middle;
        if both.unsigned_abs() < 1 << (127 - PART_BITS) {
            let all = (both << PART_BITS) + low;
            return all as f64
                * power(-self.shift / 2)
                * power(-self.shift - PART_BITS + self.shift / 2);
        }
        // The last bit tells whether others are behind it, so that the sum is rounded once.
        let sum = both | i128::from(low != 0);
        sum as f64 * power(-self.shift / 2) * power(-self.shift + self.shift / 2)
    }
}

fn power(exponent: i32) -> f64 {
    2_f64.powi(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(floats: &[f64], is_single: bool) -> (u32, Vec<i64>) {
        let mut numbers: Vec<i64> = floats.iter().map(|it| ordered(*it)).collect();
        let valid = vec![true; floats.len()];
        let exponent = encode(&mut numbers, &valid, 0, is_single);
        (exponent, numbers)
    }

    #[test]
    fn integers_order_as_their_floats() {
        let nan = f64::NAN.copysign(1.0);
        let floats = [
            -nan,
            f64::NEG_INFINITY,
            -1e300,
            -1.5,
            -f64::from_bits(1),
            -0.0,
            0.0,
            5e-324,
            0.1,
            1e300,
            f64::INFINITY,
            nan,
        ];
        let integers = floats.map(ordered);
        assert!(integers.is_sorted_by(|one, other| one < other));
        assert_eq!(
            integers.map(|it| float_of(it).to_bits()),
            floats.map(f64::to_bits)
        );
    }

    #[test]
    fn decimals_are_kept_as_integers() {
        assert_eq!(encoded(&[1.5, -0.25, 3.0], false), (2, vec![150, -25, 300]));
        assert_eq!(encoded(&[0.1, 0.2, 0.7], false), (1, vec![1, 2, 7]));
        assert_eq!(encoded(&[f64::from(0.1_f32)], true), (1, vec![1]));
        assert_eq!(encoded(&[], false), (0, vec![]));
        for other in [
            -0.0,
            f64::NAN,
            f64::INFINITY,
            100.0 / 3.0,
            1e17,
            f64::from(0.1_f32),
        ] {
            let (exponent, numbers) = encoded(&[0.5, other], false);
            assert_eq!(
                (exponent, float_of(numbers[1]).to_bits()),
                (BITS, other.to_bits())
            );
        }
        let (exponent, numbers) = encoded(&[-1.5, f64::from(1e-30_f32)], true);
        assert!(exponent == BITS && numbers[0] < numbers[1] && numbers[0] < 0);
    }

    #[test]
    fn integers_with_few_digits_are_the_same_with_other_exponents() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..100_000 {
            let (first, more) = (random.u32(0..9), random.u32(0..7));
            let more_is = 10_i64.pow(more);
            for (is_single, most) in [(true, 1_000_000), (false, 1_000_000_000_000_000)] {
                let number = random.i64(-most / more_is..=most / more_is);
                let float = decimal(number, first);
                let float = if is_single {
                    f64::from(float as f32)
                } else {
                    float
                };
                assert!(is_unique(number * more_is, is_single));
                let found = integer(float, first + more, is_single);
                assert_eq!(found, Some(number * more_is), "{float} {first} {more}");
            }
        }
        assert!(!is_unique(54_880_700, true));
    }

    #[test]
    fn random_decimals_are_the_floats_of_their_texts() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..100_000 {
            let (exponent, bits) = (random.u32(0..POWERS.len() as u32), random.u32(1..53));
            let number = random.i64(i64::MIN..) >> (63 - bits);
            let text = format!("{number}e-{exponent}");
            let float: f64 = text.parse().expect("a number");
            assert_eq!(
                decimal(number, exponent).to_bits(),
                float.to_bits(),
                "{text}"
            );
        }
    }

    /// Returns the parts of a float, as kernels make them.
    fn parts_of(parts: Parts, float: f64) -> [i128; 3] {
        let [of_high, others, _] = parts.scales();
        let high = (float * of_high).round_ties_even();
        let rest = (-high).mul_add(power(PART_BITS), float * others);
        let middle = rest.round_ties_even();
        let low = ((rest - middle) * power(PART_BITS)).round_ties_even();
        let parts = [high, middle, low];
        assert!(
            parts.iter().all(|it| it.abs() <= PART_MAX as f64),
            "{float}: {parts:?}"
        );
        parts.map(|it| it as i128)
    }

    #[test]
    fn floats_are_the_sums_of_their_parts() {
        for largest in [1.0, 0.75, 3.0, 1e-280, 1e-320, 1e300, f64::MAX, 5e-324, 0.0] {
            let parts = Parts::of(largest);
            assert!(parts.scales().into_iter().all(f64::is_normal), "{largest}");
            for float in [largest, largest * 0.7, -largest / 3e20] {
                let sum = parts.sum(parts_of(parts, float));
                let is_kept = float.abs() >= parts.scales()[2] || float == 0.0;
                assert!(sum == float || !is_kept, "{float} of {largest}: {sum}");
            }
        }
    }

    #[test]
    fn sums_are_exact() {
        let mut random = fastrand::Rng::with_seed(2);
        let parts = Parts::of(1e9);
        let mut sums = [0; 3];
        let mut exact = 0;
        for _ in 0..10_000 {
            let number = random.i64(-1_000_000_000_000_000..1_000_000_000_000_000);
            exact += i128::from(number);
            // A power of two, so that it is the float.
            let float = number as f64 * power(-20);
            let of_float = parts_of(parts, float);
            sums.iter_mut()
                .zip(of_float)
                .for_each(|(sum, part)| *sum += part);
        }
        assert_eq!(parts.sum(sums), exact as f64 * power(-20));
        let many = sums.map(|it| it << 33);
        assert_eq!(parts.sum(many), exact as f64 * power(13));
    }
}
