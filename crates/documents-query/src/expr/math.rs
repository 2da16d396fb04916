//! Arithmetic with MongoDB's type rules. Where necessary, an int widens to a long and a long to a double. A number
//! added to a date counts as milliseconds.

use bson::DateTime;
use bson::raw::RawBsonRef;

use super::function::{Function, any, between, exactly};
use super::{Value, evaluation};
use crate::element::array_values;
use crate::error::{Code, Error};
use crate::number::Number;

pub(super) const FUNCTIONS: &[Function] = &[
    any("$add", add),
    any("$multiply", multiply),
    exactly("$subtract", 2, subtract),
    exactly("$divide", 2, divide),
    exactly("$mod", 2, modulo),
    exactly("$abs", 1, abs),
    exactly("$ceil", 1, |operands| rounded(operands, "$ceil", f64::ceil)),
    exactly("$floor", 1, |operands| {
        rounded(operands, "$floor", f64::floor)
    }),
    exactly("$sqrt", 1, sqrt),
    exactly("$exp", 1, |operands| real(operands, "$exp", f64::exp)),
    exactly("$ln", 1, |operands| logarithm(operands, "$ln", f64::ln)),
    exactly("$log10", 1, |operands| {
        logarithm(operands, "$log10", f64::log10)
    }),
    exactly("$pow", 2, pow),
    between("$round", 1, 2, |operands| {
        to_place(operands, "$round", f64::round_ties_even)
    }),
    between("$trunc", 1, 2, |operands| {
        to_place(operands, "$trunc", f64::trunc)
    }),
    any("$sum", |operands| Ok(sum_of(operands)?.0.value())),
    any("$avg", |operands| average(operands)),
    any("$min", |operands| Ok(extreme(operands, true))),
    any("$max", |operands| Ok(extreme(operands, false))),
];

/// Type of a sum, ordered from narrow to wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Width {
    Int,
    Long,
    Double,
}

/// A running sum that adds integers exactly.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sum {
    width: Width,
    integers: i128,
    doubles: f64,
    compensation: f64,
}

impl Default for Sum {
    fn default() -> Sum {
        Sum {
            width: Width::Int,
            integers: 0,
            doubles: 0.0,
            compensation: 0.0,
        }
    }
}

impl Sum {
    /// Adds a number. Ignores values that are not numbers.
    ///
    /// # Errors
    /// `NotImplemented` for a decimal.
    pub fn add(&mut self, value: RawBsonRef<'_>) -> Result<(), Error> {
        match value {
            RawBsonRef::Int32(number) => self.integers += i128::from(number),
            RawBsonRef::Int64(number) => {
                self.width = self.width.max(Width::Long);
                self.integers += i128::from(number);
            }
            RawBsonRef::Double(number) => {
                self.width = Width::Double;
                self.add_double(number);
            }
            RawBsonRef::Decimal128(_) => return Err(no_decimals()),
            _ => {}
        }
        Ok(())
    }

    /// Adds a double by Neumaier's summation: the part that a plain sum would round off is accumulated separately.
    fn add_double(&mut self, number: f64) {
        let total = self.doubles + number;
        let lost = match self.doubles.abs() >= number.abs() {
            true => (self.doubles - total) + number,
            false => (number - total) + self.doubles,
        };
        if lost.is_finite() {
            self.compensation += lost;
        }
        self.doubles = total;
    }

    /// Returns the sum as a double.
    pub fn to_f64(self) -> f64 {
        self.doubles + self.compensation + self.integers as f64
    }

    /// Returns the sum in the narrowest type allowed.
    pub fn value(self) -> Value<'static> {
        match self.width {
            Width::Double => self.to_f64().into(),
            width => integer(self.integers, width),
        }
    }
}

/// Returns an integer of type `width` or wider, or a double if the number does not fit into 64 bits.
fn integer(number: i128, width: Width) -> Value<'static> {
    match (i32::try_from(number), i64::try_from(number), width) {
        (Ok(int), _, Width::Int) => int.into(),
        (_, Ok(long), Width::Int | Width::Long) => long.into(),
        _ => (number as f64).into(),
    }
}

fn width_of(value: RawBsonRef<'_>) -> Width {
    match value {
        RawBsonRef::Int32(_) => Width::Int,
        RawBsonRef::Int64(_) => Width::Long,
        _ => Width::Double,
    }
}

/// Converts an operand to a number. Returns an error for a decimal, because arithmetic on decimals is not supported.
fn number(value: RawBsonRef<'_>, refuse: impl FnOnce() -> Error) -> Result<Number, Error> {
    match Number::of(value) {
        Some(Number::Decimal(_)) => Err(no_decimals()),
        Some(number) => Ok(number),
        None => Err(refuse()),
    }
}

/// Builds the error for arithmetic on decimals.
pub(crate) fn no_decimals() -> Error {
    Error::new(
        Code::NotImplemented,
        "arithmetic on decimal numbers is not supported by this server",
    )
}

/// Returns the values of the operands, or `None` if one is null or missing.
fn all_present<'b>(operands: &'b [Value<'_>]) -> Option<Vec<RawBsonRef<'b>>> {
    operands
        .iter()
        .map(|operand| {
            if operand.is_nullish() {
                None
            } else {
                operand.get()
            }
        })
        .collect()
}

fn type_of(value: RawBsonRef<'_>) -> &'static str {
    crate::element::type_name(value.element_type())
}

fn add<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let (mut sum, mut date, mut null) = (Sum::default(), None, false);
    for operand in operands {
        match operand.get() {
            _ if operand.is_nullish() => null = true,
            Some(RawBsonRef::DateTime(_)) if date.is_some() => {
                return Err(Error::new(
                    Code::Location16612,
                    "only one date allowed in an $add expression",
                ));
            }
            Some(RawBsonRef::DateTime(found)) => date = Some(found),
            other => {
                let value = other.unwrap_or(RawBsonRef::Null);
                let refuse = || {
                    Error::type_mismatch(format!(
                        "$add only supports numeric or date types, not {}",
                        type_of(value)
                    ))
                };
                number(value, refuse)?;
                sum.add(value)?;
            }
        }
    }
    match (null, date) {
        (true, _) => Ok(Value::NULL),
        (false, None) => Ok(sum.value()),
        (false, Some(date)) => shift_date(date, sum.to_f64()),
    }
}

fn shift_date<'a>(date: DateTime, milliseconds: f64) -> Result<Value<'a>, Error> {
    let shifted = date
        .timestamp_millis()
        .checked_add(milliseconds.round() as i64);
    let shifted = shifted.ok_or_else(|| Error::new(Code::Overflow, "date overflow in $add"))?;
    Ok(Value::Ref(RawBsonRef::DateTime(DateTime::from_millis(
        shifted,
    ))))
}

fn multiply<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let Some(values) = all_present(operands) else {
        return Ok(Value::NULL);
    };
    let (mut width, mut integers, mut product) = (Width::Int, Some(1_i128), 1.0_f64);
    for value in values {
        let refuse = || {
            Error::type_mismatch(format!(
                "$multiply only supports numeric types, not {}",
                type_of(value)
            ))
        };
        let number = number(value, refuse)?;
        width = width.max(width_of(value));
        product *= number.to_f64();
        integers = match number {
            Number::Integer(factor) => {
                integers.and_then(|total| total.checked_mul(i128::from(factor)))
            }
            _ => integers,
        };
    }
    Ok(match (width, integers) {
        (Width::Double, _) | (_, None) => product.into(),
        (width, Some(total)) => integer(total, width),
    })
}

fn subtract<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let Some(values) = all_present(operands) else {
        return Ok(Value::NULL);
    };
    let (left, right) = (values[0], values[1]);
    let refuse = || {
        Error::type_mismatch(format!(
            "can't $subtract {} from {}",
            type_of(right),
            type_of(left)
        ))
    };
    match (left, right) {
        (RawBsonRef::DateTime(a), RawBsonRef::DateTime(b)) => {
            let difference = a.timestamp_millis().checked_sub(b.timestamp_millis());
            Ok(difference
                .ok_or_else(|| Error::new(Code::Overflow, "overflow in $subtract"))?
                .into())
        }
        (RawBsonRef::DateTime(date), other) => shift_date(date, -number(other, refuse)?.to_f64()),
        _ => match (number(left, refuse)?, number(right, refuse)?) {
            (Number::Integer(a), Number::Integer(b)) => Ok(integer(
                i128::from(a) - i128::from(b),
                width_of(left).max(width_of(right)),
            )),
            (a, b) => Ok((a.to_f64() - b.to_f64()).into()),
        },
    }
}

fn divide<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let Some(values) = all_present(operands) else {
        return Ok(Value::NULL);
    };
    let (left, right) = (values[0], values[1]);
    let refuse = || {
        Error::type_mismatch(format!(
            "$divide only supports numeric types, not {} and {}",
            type_of(left),
            type_of(right)
        ))
    };
    let (dividend, divisor) = (
        number(left, refuse)?.to_f64(),
        number(right, refuse)?.to_f64(),
    );
    match divisor == 0.0 {
        true => Err(Error::bad_value("can't $divide by zero")),
        false => Ok((dividend / divisor).into()),
    }
}

fn modulo<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let Some(values) = all_present(operands) else {
        return Ok(Value::NULL);
    };
    let (left, right) = (values[0], values[1]);
    let refuse = || {
        let message = format!(
            "$mod only supports numeric types, not {} and {}",
            type_of(left),
            type_of(right)
        );
        Error::new(Code::Location16611, message)
    };
    let (dividend, divisor) = (number(left, refuse)?, number(right, refuse)?);
    if divisor.to_f64() == 0.0 {
        return Err(Error::new(Code::Location16610, "can't $mod by zero"));
    }
    Ok(match (dividend, divisor) {
        (Number::Integer(a), Number::Integer(b)) => integer(
            i128::from(a.wrapping_rem(b)),
            width_of(left).max(width_of(right)),
        ),
        (a, b) => (a.to_f64() % b.to_f64()).into(),
    })
}

fn single<'b>(
    operands: &'b [Value<'_>],
    name: &str,
) -> Result<Option<(RawBsonRef<'b>, Number)>, Error> {
    let Some(values) = all_present(&operands[..1]) else {
        return Ok(None);
    };
    let value = values[0];
    let refuse = || {
        Error::new(
            Code::Location28765,
            format!("{name} only supports numeric types, not {}", type_of(value)),
        )
    };
    Ok(Some((value, number(value, refuse)?)))
}

fn abs<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    Ok(match single(operands, "$abs")? {
        None => Value::NULL,
        Some((_, Number::Integer(i64::MIN))) => {
            return Err(Error::new(
                Code::Location28680,
                "can't take $abs of long long min",
            ));
        }
        Some((value, Number::Integer(number))) => {
            integer(i128::from(number).abs(), width_of(value))
        }
        Some((_, number)) => number.to_f64().abs().into(),
    })
}

fn rounded<'a>(
    operands: &[Value<'a>],
    name: &str,
    round: fn(f64) -> f64,
) -> Result<Value<'a>, Error> {
    Ok(match single(operands, name)? {
        None => Value::NULL,
        Some((value, Number::Integer(number))) => integer(i128::from(number), width_of(value)),
        Some((_, number)) => round(number.to_f64()).into(),
    })
}

fn real<'a>(
    operands: &[Value<'a>],
    name: &str,
    function: fn(f64) -> f64,
) -> Result<Value<'a>, Error> {
    Ok(single(operands, name)?.map_or(Value::NULL, |(_, number)| function(number.to_f64()).into()))
}

fn sqrt<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    match single(operands, "$sqrt")? {
        Some((_, number)) if number.to_f64() < 0.0 => Err(Error::new(
            Code::Location28714,
            "$sqrt's argument must be greater than or equal to 0",
        )),
        _ => real(operands, "$sqrt", f64::sqrt),
    }
}

fn logarithm<'a>(
    operands: &[Value<'a>],
    name: &str,
    function: fn(f64) -> f64,
) -> Result<Value<'a>, Error> {
    match single(operands, name)? {
        Some((_, number)) if number.to_f64() <= 0.0 => {
            let (code, shown) = (
                if name == "$ln" {
                    Code::Location28766
                } else {
                    Code::Location28761
                },
                number.to_f64(),
            );
            Err(Error::new(
                code,
                format!("{name}'s argument must be a positive number, but is {shown}"),
            ))
        }
        _ => real(operands, name, function),
    }
}

fn pow<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let Some(values) = all_present(operands) else {
        return Ok(Value::NULL);
    };
    let refuse = |code, role: &str, value| {
        Error::new(
            code,
            format!("$pow's {role} must be numeric, not {}", type_of(value)),
        )
    };
    let base = number(values[0], || refuse(Code::Location28762, "base", values[0]))?;
    let exponent = number(values[1], || {
        refuse(Code::Location28763, "exponent", values[1])
    })?;
    if base.to_f64() == 0.0 && exponent.to_f64() < 0.0 {
        return Err(Error::new(
            Code::Location28764,
            "$pow cannot take a base of 0 and a negative exponent",
        ));
    }
    if let (Number::Integer(base), Number::Integer(exponent @ 0..)) = (base, exponent)
        && let Ok(exponent) = u32::try_from(exponent)
        && let Some(power) = base.checked_pow(exponent)
    {
        return Ok(integer(
            i128::from(power),
            width_of(values[0]).max(width_of(values[1])),
        ));
    }
    Ok(base.to_f64().powf(exponent.to_f64()).into())
}

fn to_place<'a>(
    operands: &[Value<'a>],
    name: &str,
    round: fn(f64) -> f64,
) -> Result<Value<'a>, Error> {
    let Some((value, number)) = single(operands, name)? else {
        return Ok(Value::NULL);
    };
    let place = match operands.get(1) {
        None => 0,
        Some(place) if place.is_nullish() => return Ok(Value::NULL),
        Some(place) => round_place(place, name)?,
    };
    let scale = 10_f64.powi(place);
    Ok(match number {
        Number::Integer(_) if place >= 0 => Value::Ref(value).into_static(),
        Number::Integer(number) => integer(
            (round(number as f64 * scale) / scale) as i128,
            width_of(value),
        ),
        number if place == 0 => round(number.to_f64()).into(),
        number => (round(number.to_f64() * scale) / scale).into(),
    })
}

fn round_place(place: &Value<'_>, name: &str) -> Result<i32, Error> {
    let number = place
        .get()
        .and_then(Number::of)
        .and_then(Number::to_i64_exact);
    match number {
        Some(number @ -20..=100) => Ok(number as i32),
        Some(number) => Err(Error::new(
            Code::Location51083,
            format!(
                "cannot apply {name} with precision value {number} value must be in [-20, 100]"
            ),
        )),
        None => Err(Error::new(
            Code::Location51082,
            format!("precision argument to  {name} must be a integral value"),
        )),
    }
}

/// Returns the values that an operator aggregates: the elements of the only operand if it is an array, or else the
/// operands that are present.
fn spread<'b>(operands: &'b [Value<'_>]) -> Box<dyn Iterator<Item = RawBsonRef<'b>> + 'b> {
    match operands {
        [single] => match single.get() {
            Some(RawBsonRef::Array(array)) => Box::new(array_values(array)),
            other => Box::new(other.into_iter()),
        },
        several => Box::new(several.iter().filter_map(Value::get)),
    }
}

/// Returns the sum and the count of the numbers that the expressions `$sum` and `$avg` aggregate.
fn sum_of(operands: &[Value<'_>]) -> Result<(Sum, usize), Error> {
    let (mut sum, mut count) = (Sum::default(), 0);
    for number in spread(operands).filter(|value| Number::of(*value).is_some()) {
        evaluation::check_element(count)?;
        sum.add(number)?;
        count += 1;
    }
    Ok((sum, count))
}

fn average(operands: &[Value<'_>]) -> Result<Value<'static>, Error> {
    match sum_of(operands)? {
        (_, 0) => Ok(Value::NULL),
        (sum, count) => Ok((sum.to_f64() / count as f64).into()),
    }
}

/// Returns the smallest or largest operand. Ignores null and missing operands.
fn extreme(operands: &[Value<'_>], smallest: bool) -> Value<'static> {
    let present =
        spread(operands).filter(|value| !matches!(value, RawBsonRef::Null | RawBsonRef::Undefined));
    let order = |a: &RawBsonRef<'_>, b: &RawBsonRef<'_>| crate::compare::compare(*a, *b);
    let found = if smallest {
        present.min_by(order)
    } else {
        present.max_by(order)
    };
    found.map_or(Value::NULL, |value| Value::Ref(value).into_static())
}
