//! Decimal digits of integers.

use datafusion::arrow::datatypes::i256;

/// Digits of the longest integer, which has 256 bits, and some more that make room for whole chunks.
const DIGITS_MAX: usize = 96;

/// Digits of a chunk, which 64 bits hold.
const CHUNK_DIGITS: usize = 19;

/// The number after the largest chunk.
const CHUNK: u64 = 10_000_000_000_000_000_000;

/// The decimal digits of the absolute value of an integer, as ASCII without leading zeros. Zero has no digits.
#[derive(Debug)]
pub(super) struct Digits {
    bytes: [u8; DIGITS_MAX],
    start: usize,
}

impl Digits {
    fn new() -> Digits {
        Digits {
            bytes: [b'0'; DIGITS_MAX],
            start: DIGITS_MAX,
        }
    }

    /// Returns the digits of `value`.
    pub(super) fn of_u64(value: u64) -> Digits {
        let mut digits = Digits::new();
        digits.prepend(value);
        digits
    }

    /// Returns the digits of `value`.
    pub(super) fn of_i128(value: i128) -> Digits {
        let mut digits = Digits::new();
        let mut rest = value.unsigned_abs();
        let chunk = u128::from(CHUNK);
        while let Err(_too_large) = u64::try_from(rest) {
            digits.prepend_chunk(u64::try_from(rest % chunk).unwrap_or(0));
            rest /= chunk;
        }
        digits.prepend(u64::try_from(rest).unwrap_or(0));
        digits
    }

    /// Returns the digits of `value`.
    pub(super) fn of_i256(value: i256) -> Digits {
        if let Some(value) = value.to_i128() {
            return Digits::of_i128(value);
        }
        let mut digits = Digits::new();
        let text = value.to_string();
        for digit in text.bytes().rev().filter(u8::is_ascii_digit) {
            digits.push_front(digit);
        }
        digits
    }

    /// Returns the digits, most significant first.
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Adds the digits of `value` before the others.
    fn prepend(&mut self, mut value: u64) {
        while value > 0 {
            self.push_front(b'0' + u8::try_from(value % 10).unwrap_or(0));
            value /= 10;
        }
    }

    /// Adds the digits of `value` and leading zeros before the others.
    fn prepend_chunk(&mut self, value: u64) {
        let start = self.start - CHUNK_DIGITS;
        self.prepend(value);
        self.start = start;
    }

    fn push_front(&mut self, digit: u8) {
        self.start -= 1;
        self.bytes[self.start] = digit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_of_integers() {
        for value in [
            0,
            1,
            9,
            10,
            i128::from(u64::MAX),
            i128::from(u64::MAX) + 1,
            i128::MAX,
            i128::MIN,
        ] {
            let digits = match value {
                0 => String::new(),
                _ => value.unsigned_abs().to_string(),
            };
            assert_eq!(Digits::of_i128(value).as_slice(), digits.as_bytes());
            assert_eq!(
                Digits::of_i256(i256::from_i128(value)).as_slice(),
                digits.as_bytes()
            );
        }
        for value in [i256::MAX, i256::MIN] {
            let digits = value.to_string().replace('-', "");
            assert_eq!(Digits::of_i256(value).as_slice(), digits.as_bytes());
        }
    }
}
