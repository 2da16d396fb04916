//! `$inc`, `$mul`, `$min`, `$max`, `$bit`.

use bson::raw::{RawBson, RawBsonRef};

use super::operator::{Scene, put};
use super::tree::{Outcome, Tree};
use crate::compare::compare;
use crate::display;
use crate::element::elements;
use crate::error::Error;
use crate::expr::no_decimals;
use crate::limits::Limits;
use crate::number::Number;

/// Parses the operand of `$inc` and `$mul`.
pub(super) fn parse_operand(
    verb: &str,
    path: &str,
    operand: RawBsonRef<'_>,
) -> Result<RawBson, Error> {
    match Number::of(operand) {
        Some(_) => Ok(operand.into()),
        None => {
            let shown = display::field(path, operand);
            Err(Error::type_mismatch(format!(
                "Cannot {verb} with non-numeric argument: {{{shown}}}"
            )))
        }
    }
}

pub(super) fn add<'a>(
    place: Option<&mut Tree<'a>>,
    operand: &RawBson,
    scene: &Scene<'_>,
) -> Result<Outcome<'a>, Error> {
    let Some(place) = place else {
        return Ok(Outcome::Put(operand.clone().into()));
    };
    let arithmetic = Arithmetic {
        name: "$inc",
        integers: i64::checked_add,
        doubles: |a, b| a + b,
    };
    arithmetic.apply(place, operand, scene)
}

/// Applies `$mul`. A missing field becomes zero of the operand's type.
pub(super) fn multiply<'a>(
    place: Option<&mut Tree<'a>>,
    operand: &RawBson,
    scene: &Scene<'_>,
) -> Result<Outcome<'a>, Error> {
    let arithmetic = Arithmetic {
        name: "$mul",
        integers: i64::checked_mul,
        doubles: |a, b| a * b,
    };
    match place {
        Some(place) => arithmetic.apply(place, operand, scene),
        None => Ok(Outcome::Put(zero_like(operand).into())),
    }
}

fn zero_like(operand: &RawBson) -> RawBson {
    match operand {
        RawBson::Int32(_) => RawBson::Int32(0),
        RawBson::Int64(_) => RawBson::Int64(0),
        RawBson::Decimal128(_) => RawBson::Decimal128(bson::Decimal128::from_bytes(ZERO_DECIMAL)),
        _ => RawBson::Double(0.0),
    }
}

/// Decimal zero with exponent zero: the exponent's bias of 6176 starts at bit 113.
const ZERO_DECIMAL: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x40, 0x30];

struct Arithmetic {
    name: &'static str,
    integers: fn(i64, i64) -> Option<i64>,
    doubles: fn(f64, f64) -> f64,
}

impl Arithmetic {
    fn apply<'a>(
        &self,
        place: &Tree<'_>,
        operand: &RawBson,
        scene: &Scene<'_>,
    ) -> Result<Outcome<'a>, Error> {
        let current = place
            .scalar()
            .and_then(|value| Number::of(value).map(|number| (value, number)));
        let Some((value, number)) = current else {
            return Err(Error::type_mismatch(format!(
                "Cannot apply {} to a value of non-numeric type. {{{}}} has the field '{}' of non-numeric type {}",
                self.name,
                scene.id,
                scene.name,
                place.type_name()
            )));
        };
        self.result(value, number, operand, scene)
            .map(|result| Outcome::Put(result.into()))
    }

    /// Computes the result. Ints widen to longs; an overflow of a long is an error.
    fn result(
        &self,
        value: RawBsonRef<'_>,
        number: Number,
        operand: &RawBson,
        scene: &Scene<'_>,
    ) -> Result<RawBson, Error> {
        let right = Number::of(operand.as_raw_bson_ref()).unwrap_or(Number::Integer(0));
        match (number, right) {
            (Number::Decimal(_), _) | (_, Number::Decimal(_)) => Err(no_decimals()),
            (Number::Integer(a), Number::Integer(b)) => {
                let result = (self.integers)(a, b).ok_or_else(|| self.overflow(value, scene))?;
                let ints = matches!((value, operand), (RawBsonRef::Int32(_), RawBson::Int32(_)));
                Ok(match i32::try_from(result) {
                    Ok(int) if ints => RawBson::Int32(int),
                    _ => RawBson::Int64(result),
                })
            }
            (a, b) => Ok(RawBson::Double((self.doubles)(a.to_f64(), b.to_f64()))),
        }
    }

    fn overflow(&self, value: RawBsonRef<'_>, scene: &Scene<'_>) -> Error {
        let kind = if matches!(value, RawBsonRef::Int32(_)) {
            "NumberInt"
        } else {
            "NumberLong"
        };
        Error::bad_value(format!(
            "Failed to apply {} operations to current value (({kind}){}) for document {{{}}}",
            self.name,
            display::value(value),
            scene.id
        ))
    }
}

/// Applies `$min` or `$max`. The operand replaces the current value if it is smaller (`$min`) or larger (`$max`) than
/// that value.
pub(super) fn extreme<'a>(
    place: Option<&mut Tree<'a>>,
    operand: &RawBson,
    smaller: bool,
) -> Result<Outcome<'a>, Error> {
    let Some(place) = place else {
        return put(operand);
    };
    let current = place.to_bson();
    let order = compare(operand.as_raw_bson_ref(), current.as_raw_bson_ref());
    match if smaller {
        order.is_lt()
    } else {
        order.is_gt()
    } {
        true => put(operand),
        false => Ok(Outcome::Keep),
    }
}

/// One operation of `$bit`.
#[derive(Debug, Clone)]
pub(super) struct Bit {
    operation: fn(i64, i64) -> i64,
    operand: RawBson,
}

impl Bit {
    pub fn parse(path: &str, operand: RawBsonRef<'_>, limits: &Limits) -> Result<Vec<Bit>, Error> {
        let shown = || display::value(operand);
        let RawBsonRef::Document(document) = operand else {
            let kind = crate::element::type_name(operand.element_type());
            return Err(Error::bad_value(format!(
                "The $bit modifier is not compatible with a {kind}. You must pass in an embedded document: {{$bit: {{{path}: {}}}}}",
                shown()
            )));
        };
        let bits = elements(document)
            .map(|element| {
                limits.hold(2 * size_of::<Bit>())?;
                Bit::one(element.key, element.value())
            })
            .collect::<Result<Vec<_>, _>>()?;
        match bits.is_empty() {
            true => Err(Error::bad_value(format!(
                "You must pass in at least one bitwise operation. The format is: {{$bit: {{field: {{and/or/xor: #}}}}. Got: {}",
                shown()
            ))),
            false => Ok(bits),
        }
    }

    fn one(name: &str, operand: RawBsonRef<'_>) -> Result<Bit, Error> {
        let operation: fn(i64, i64) -> i64 = match name {
            "and" => |a, b| a & b,
            "or" => |a, b| a | b,
            "xor" => |a, b| a ^ b,
            _ => {
                return Err(Error::bad_value(format!(
                    "The $bit modifier only supports 'and', 'or', and 'xor', not '{name}' which is an unknown operator: {{{}}}",
                    display::field(name, operand)
                )));
            }
        };
        match operand {
            RawBsonRef::Int32(_) | RawBsonRef::Int64(_) => Ok(Bit {
                operation,
                operand: operand.into(),
            }),
            other => Err(Error::bad_value(format!(
                "The $bit modifier field must be an Integer(32/64 bit); a '{}' is not supported here: {{{}}}",
                crate::element::type_name(other.element_type()),
                display::field(name, operand)
            ))),
        }
    }
}

pub(super) fn bits<'a>(
    place: Option<&mut Tree<'a>>,
    bits: &[Bit],
    scene: &Scene<'_>,
) -> Result<Outcome<'a>, Error> {
    let mut current = match place
        .as_deref()
        .map(|place| (place.scalar(), place.type_name()))
    {
        None => RawBson::Int32(0),
        Some((Some(value @ (RawBsonRef::Int32(_) | RawBsonRef::Int64(_))), _)) => value.into(),
        Some((_, kind)) => {
            return Err(Error::bad_value(format!(
                "Cannot apply $bit to a value of non-integral type.{{{}}} has the field {} of non-integer type {kind}",
                scene.id, scene.name
            )));
        }
    };
    for bit in bits {
        current = combine(&current, bit);
    }
    Ok(Outcome::Put(current.into()))
}

fn combine(current: &RawBson, bit: &Bit) -> RawBson {
    let integer = |value: &RawBson| {
        value
            .as_i32()
            .map(i64::from)
            .or(value.as_i64())
            .unwrap_or(0)
    };
    let result = (bit.operation)(integer(current), integer(&bit.operand));
    match (current, &bit.operand) {
        // Both operands are ints, so the result fits into an int.
        (RawBson::Int32(_), RawBson::Int32(_)) => RawBson::Int32(result as i32),
        _ => RawBson::Int64(result),
    }
}
