//! `$bitsAllSet`, `$bitsAllClear`, `$bitsAnySet`, `$bitsAnyClear`.

use bson::raw::{RawArray, RawBsonRef};

use crate::display;
use crate::element::array_values;
use crate::error::Error;
use crate::number::Number;

/// The condition that the selected bits must meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BitWant {
    /// `$bitsAllSet`
    AllSet,
    /// `$bitsAllClear`
    AllClear,
    /// `$bitsAnySet`
    AnySet,
    /// `$bitsAnyClear`
    AnyClear,
}

/// A test of selected bits of an integer or a binary value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BitTest {
    /// The condition on the bits.
    pub want: BitWant,
    /// The positions of the selected bits, counted from the lowest bit.
    pub positions: Vec<u32>,
}

impl BitTest {
    /// Parses the operand: an array of positions, or a mask as a number or as binary.
    pub(super) fn parse(
        name: &str,
        want: BitWant,
        operand: RawBsonRef<'_>,
    ) -> Result<BitTest, Error> {
        let positions = match operand {
            RawBsonRef::Array(array) => positions_of_array(array)?,
            RawBsonRef::Binary(binary) => positions_of_bytes(binary.bytes),
            other => match Number::of(other) {
                Some(number) => positions_of_mask(name, other, number)?,
                None => {
                    let shown = display::field(name, other);
                    return Err(Error::bad_value(format!(
                        "{name} takes an Array, a number, or a BinData but received: {shown}"
                    )));
                }
            },
        };
        Ok(BitTest { want, positions })
    }

    /// Returns the maximum bytes of memory for the positions that a binary mask selects.
    pub(super) fn mask_bytes(mask: &[u8]) -> usize {
        let bits: usize = mask.iter().map(|byte| byte.count_ones() as usize).sum();
        bits * size_of::<u32>()
    }

    /// Returns whether the value is an integral number or a binary value, and its selected bits meet the condition.
    pub(super) fn passes(&self, value: RawBsonRef<'_>) -> bool {
        match value {
            RawBsonRef::Binary(binary) => {
                self.holds(|position| bit_of_bytes(binary.bytes, position))
            }
            other => match Number::of(other).and_then(Number::to_i64_exact) {
                // Bits beyond the width have the value of the sign bit.
                Some(integer) => self.holds(|position| integer >> position.min(63) & 1 == 1),
                None => false,
            },
        }
    }

    fn holds(&self, bit: impl Fn(u32) -> bool) -> bool {
        let mut positions = self.positions.iter().copied();
        match self.want {
            BitWant::AllSet => positions.all(bit),
            BitWant::AllClear => !positions.any(bit),
            BitWant::AnySet => positions.any(bit),
            BitWant::AnyClear => positions.any(|position| !bit(position)),
        }
    }
}

fn bit_of_bytes(bytes: &[u8], position: u32) -> bool {
    bytes
        .get(position as usize / 8)
        .is_some_and(|byte| byte >> (position % 8) & 1 == 1)
}

fn positions_of_bytes(bytes: &[u8]) -> Vec<u32> {
    (0..bytes.len() as u32 * 8)
        .filter(|position| bit_of_bytes(bytes, *position))
        .collect()
}

fn positions_of_mask(
    name: &str,
    operand: RawBsonRef<'_>,
    number: Number,
) -> Result<Vec<u32>, Error> {
    let shown = || display::field(name, operand);
    let Some(mask) = number.to_i64_exact() else {
        return Err(Error::parse(format!("Expected an integer: {}", shown())));
    };
    if mask < 0 {
        return Err(Error::parse(format!(
            "Expected a non-negative number in: {}",
            shown()
        )));
    }
    Ok((0..63)
        .filter(|position| mask >> position & 1 == 1)
        .collect())
}

fn positions_of_array(array: &RawArray) -> Result<Vec<u32>, Error> {
    array_values(array)
        .enumerate()
        .map(|(index, value)| position(index, value))
        .collect()
}

fn position(index: usize, value: RawBsonRef<'_>) -> Result<u32, Error> {
    let shown = || display::field(&index.to_string(), value);
    let Some(position) = Number::of(value).and_then(Number::to_i64_exact) else {
        return Err(Error::bad_value(format!(
            "bit positions must be an integer but got: {}",
            shown()
        )));
    };
    if position < 0 {
        return Err(Error::bad_value(format!(
            "bit positions must be >= 0 but got: {}",
            shown()
        )));
    }
    i32::try_from(position)
        .map(|position| position as u32)
        .map_err(|_| {
            Error::bad_value(format!(
                "bit positions cannot be represented as a 32-bit signed integer: {}",
                shown()
            ))
        })
}
