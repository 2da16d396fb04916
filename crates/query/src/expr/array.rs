//! Arrays.

use bson::raw::{RawArray, RawBsonRef};

use super::function::{Function, any, between, exactly};
use super::{Value, value};
use crate::compare::equal;
use crate::element::{array_values, elements};
use crate::error::{Code, Error};
use crate::number::Number;

pub(super) const FUNCTIONS: &[Function] = &[
    exactly("$size", 1, size),
    exactly("$isArray", 1, |operands| {
        Ok(operands[0].as_array().is_some().into())
    }),
    exactly("$arrayElemAt", 2, element_at),
    exactly("$first", 1, |operands| {
        end_of(operands, "$first", |array| array_values(array).next())
    }),
    exactly("$last", 1, |operands| {
        end_of(operands, "$last", |array| array_values(array).last())
    }),
    exactly("$in", 2, contains),
    between("$slice", 2, 3, slice),
    any("$concatArrays", concat),
    exactly("$reverseArray", 1, reverse),
    between("$indexOfArray", 2, 4, index_of),
    between("$range", 2, 3, range),
    exactly("$arrayToObject", 1, to_object),
];

fn size<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    match operands[0].as_array() {
        Some(array) => Ok((array_values(array).count() as i32).into()),
        None => {
            let message = format!(
                "The argument to $size must be an array, but was of type: {}",
                operands[0].type_name()
            );
            Err(Error::new(Code::Location17124, message))
        }
    }
}

/// A 32-bit integer that an operand must be.
fn integer(operand: &Value<'_>, codes: [Code; 2], what: &str) -> Result<i64, Error> {
    let Some(number) = operand.get().and_then(Number::of) else {
        return Err(Error::new(
            codes[0],
            format!(
                "{what} must be a numeric value, but is {}",
                operand.type_name()
            ),
        ));
    };
    match number
        .to_i64_exact()
        .filter(|number| i32::try_from(*number).is_ok())
    {
        Some(number) => Ok(number),
        None => {
            let shown = crate::display::value(operand.or_null());
            Err(Error::new(
                codes[1],
                format!("{what} must be representable as a 32-bit integer: {shown}"),
            ))
        }
    }
}

fn at(array: &RawArray, index: i64) -> Option<RawBsonRef<'_>> {
    let index = if index < 0 {
        index + array_values(array).count() as i64
    } else {
        index
    };
    array_values(array).nth(usize::try_from(index).ok()?)
}

fn element_at<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    if operands.iter().any(Value::is_nullish) {
        return Ok(Value::NULL);
    }
    let Some(array) = operands[0].as_array() else {
        let message = format!(
            "$arrayElemAt's first argument must be an array, but is {}",
            operands[0].type_name()
        );
        return Err(Error::new(Code::Location28689, message));
    };
    let codes = [Code::Location28690, Code::Location28691];
    let index = integer(&operands[1], codes, "$arrayElemAt's second argument")?;
    Ok(Value::from_option(at(array, index)).into_static())
}

fn end_of<'a>(
    operands: &[Value<'a>],
    name: &str,
    end: for<'x> fn(&'x RawArray) -> Option<RawBsonRef<'x>>,
) -> Result<Value<'a>, Error> {
    match operands[0].as_array() {
        _ if operands[0].is_nullish() => Ok(Value::NULL),
        Some(array) => Ok(Value::from_option(end(array)).into_static()),
        None => {
            let message = format!(
                "{name}'s argument must be an array, but is {}",
                operands[0].type_name()
            );
            Err(Error::new(Code::Location28689, message))
        }
    }
}

fn contains<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let Some(array) = operands[1].as_array() else {
        let message = format!(
            "$in requires an array as a second argument, found: {}",
            operands[1].type_name()
        );
        return Err(Error::new(Code::Location40081, message));
    };
    Ok(operands[0]
        .get()
        .is_some_and(|wanted| array_values(array).any(|held| equal(held, wanted)))
        .into())
}

fn slice<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    if operands.iter().any(Value::is_nullish) {
        return Ok(Value::NULL);
    }
    let Some(array) = operands[0].as_array() else {
        let message = format!(
            "First argument to $slice must be an array, but is of type: {}",
            operands[0].type_name()
        );
        return Err(Error::new(Code::Location28724, message));
    };
    let second = integer(
        &operands[1],
        [Code::Location28725, Code::Location28726],
        "Second argument to $slice",
    )?;
    let (position, count) = match operands.get(2) {
        None => (None, second),
        Some(count) => match integer(
            count,
            [Code::Location28727, Code::Location28728],
            "Third argument to $slice",
        )? {
            count @ 1.. => (Some(second), count),
            count => {
                return Err(Error::new(
                    Code::Location28729,
                    format!("Third argument to $slice must be positive: {count}"),
                ));
            }
        },
    };
    let (start, length) = slice_bounds(array_values(array).count(), position, count);
    Ok(Value::Owned(value::array(
        array_values(array).skip(start).take(length),
    )))
}

/// Where a slice of an array of `size` starts and how long it is: `count` elements from `position`, or from the end
/// where either is negative.
pub(crate) fn slice_bounds(size: usize, position: Option<i64>, count: i64) -> (usize, usize) {
    let size = size as i64;
    let (start, length) = match position {
        None if count < 0 => (size.saturating_add(count).max(0), count.saturating_neg()),
        None => (0, count),
        Some(position) if position < 0 => (size.saturating_add(position).max(0), count),
        Some(position) => (position.min(size), count),
    };
    (start as usize, length.max(0) as usize)
}

fn concat<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let mut values = Vec::new();
    for operand in operands {
        match operand.as_array() {
            _ if operand.is_nullish() => return Ok(Value::NULL),
            Some(array) => values.extend(array_values(array)),
            None => {
                let message = format!(
                    "$concatArrays only supports arrays, not {}",
                    operand.type_name()
                );
                return Err(Error::new(Code::Location28664, message));
            }
        }
    }
    Ok(Value::Owned(value::array(values)))
}

fn reverse<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    match operands[0].as_array() {
        _ if operands[0].is_nullish() => Ok(Value::NULL),
        Some(array) => {
            let values: Vec<_> = array_values(array).collect();
            Ok(Value::Owned(value::array(values.into_iter().rev())))
        }
        None => {
            let message = format!(
                "The argument to $reverseArray must be an array, but was of type: {}",
                operands[0].type_name()
            );
            Err(Error::new(Code::Location34435, message))
        }
    }
}

fn index_of<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    if operands[0].is_nullish() {
        return Ok(Value::NULL);
    }
    let Some(array) = operands[0].as_array() else {
        let message = format!(
            "$indexOfArray requires an array as a first argument, found: {}",
            operands[0].type_name()
        );
        return Err(Error::new(Code::Location40090, message));
    };
    let bound = |index: usize, default: i64| match operands.get(index) {
        None => Ok(default),
        Some(operand) => integer(operand, [Code::Location40096; 2], "$indexOfArray index"),
    };
    let (start, end) = (bound(2, 0)?, bound(3, i64::MAX)?);
    let found = array_values(array).enumerate().find(|(index, held)| {
        (start..end).contains(&(*index as i64))
            && operands[1].get().is_some_and(|wanted| equal(*held, wanted))
    });
    Ok(found.map_or(-1, |(index, _)| index as i32).into())
}

/// Numbers that `$range` may make: what fits one document of 16 MB.
const RANGE_COUNT_MAX: i64 = 1_000_000;

fn range<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let start = integer(
        &operands[0],
        [Code::Location34443, Code::Location34444],
        "$range requires a numeric starting value, which",
    )?;
    let end = integer(
        &operands[1],
        [Code::Location34445, Code::Location34446],
        "$range requires a numeric ending value, which",
    )?;
    let step = match operands.get(2) {
        None => 1,
        Some(step) => integer(
            step,
            [Code::Location34447, Code::Location34448],
            "$range requires a numeric step value, which",
        )?,
    };
    if step == 0 {
        return Err(Error::new(
            Code::Location34449,
            "$range requires a non-zero step value",
        ));
    }
    let count = (end - start + step - step.signum()) / step;
    if count > RANGE_COUNT_MAX {
        return Err(Error::new(
            Code::ExceededMemoryLimit,
            format!("$range would use too much memory: {count} numbers"),
        ));
    }
    let numbers = (0..count.max(0)).map(|index| RawBsonRef::Int32((start + index * step) as i32));
    Ok(Value::Owned(value::array(numbers)))
}

fn to_object<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let array = match operands[0].as_array() {
        _ if operands[0].is_nullish() => return Ok(Value::NULL),
        Some(array) => array,
        None => {
            let message = format!(
                "$arrayToObject requires an array input, found: {}",
                operands[0].type_name()
            );
            return Err(Error::new(Code::Location40386, message));
        }
    };
    let mut fields: Vec<(&str, RawBsonRef<'_>)> = Vec::new();
    for entry in array_values(array) {
        let (key, held) = pair(entry)?;
        match fields.iter_mut().find(|(name, _)| *name == key) {
            Some(field) => field.1 = held,
            None => fields.push((key, held)),
        }
    }
    let mut writer = crate::element::Writer::new();
    fields
        .iter()
        .for_each(|(name, held)| writer.value(name, *held));
    Ok(Value::Owned(bson::raw::RawBson::Document(writer.finish())))
}

fn pair(entry: RawBsonRef<'_>) -> Result<(&str, RawBsonRef<'_>), Error> {
    let fail = |code, what: &str| Error::new(code, format!("$arrayToObject requires {what}"));
    let (key, held) = match entry {
        RawBsonRef::Array(array) => {
            let values: Vec<_> = array_values(array).collect();
            let [key, held] = values.as_slice() else {
                return Err(fail(Code::Location40397, "an array of size 2 arrays"));
            };
            (*key, *held)
        }
        RawBsonRef::Document(document) if elements(document).count() == 2 => {
            match (
                crate::element::get(document, "k"),
                crate::element::get(document, "v"),
            ) {
                (Some(key), Some(held)) => (key, held),
                _ => return Err(fail(Code::Location40393, "an object with keys 'k' and 'v'")),
            }
        }
        RawBsonRef::Document(_) => {
            return Err(fail(Code::Location40392, "an object keys of 'k' and 'v'"));
        }
        _ => {
            return Err(fail(
                Code::Location40398,
                "an array of pairs or of objects with 'k' and 'v'",
            ));
        }
    };
    match key {
        RawBsonRef::String(name) => Ok((name, held)),
        _ => Err(fail(
            Code::Location40395,
            "an array of key-value pairs, where the key must be of type string",
        )),
    }
}
