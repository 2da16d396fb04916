//! Array operators.

use bson::raw::{RawArray, RawBsonRef, RawDocument};

use super::function::{Function, any, between, exactly};
use super::object::{FieldList, reserve_fields};
use super::{Value, check_bytes, evaluation, value};
use crate::compare::equal;
use crate::element::{array_values, elements, get, type_name};
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

/// Converts an operand that must be a 32-bit integer.
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
    let kept = array_values(array).skip(start).take(length);
    Ok(Value::Owned(value::array(kept, 0)?))
}

/// Returns the start and the length of a slice of `count` elements from `position`, in an array of `size` elements. A
/// negative `position` counts from the end of the array. Without a position, a negative `count` selects the last
/// elements. The slice may extend beyond the end of the array.
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
    let mut arrays = Vec::with_capacity(operands.len());
    for operand in operands {
        match operand.as_array() {
            _ if operand.is_nullish() => return Ok(Value::NULL),
            Some(array) => arrays.push(array),
            None => {
                let message = format!(
                    "$concatArrays only supports arrays, not {}",
                    operand.type_name()
                );
                return Err(Error::new(Code::Location28664, message));
            }
        }
    }
    let values = arrays.into_iter().flat_map(array_values);
    Ok(Value::Owned(value::array(values, 0)?))
}

fn reverse<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    match operands[0].as_array() {
        _ if operands[0].is_nullish() => Ok(Value::NULL),
        Some(array) => {
            let list_bytes = evaluation::items_bytes(
                [RawBsonRef::Array(array)].into_iter(),
                size_of::<RawBsonRef<'_>>(),
            );
            evaluation::reserve_beside(list_bytes)?;
            let values: Vec<_> = array_values(array).collect();
            let values = values.into_iter().rev();
            Ok(Value::Owned(value::array(values, list_bytes)?))
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

/// Number of bytes that one number takes in an array, with its index.
const NUMBER_BYTES: usize = 12;

/// Maximum count of numbers that `$range` may return: as many as fit into a document of 16 MB.
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
    check_bytes(count.max(0) as usize * NUMBER_BYTES)?;
    let numbers = (0..count.max(0)).map(|index| RawBsonRef::Int32((start + index * step) as i32));
    Ok(Value::Owned(value::array(numbers, 0)?))
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
    reserve_fields([RawBsonRef::Array(array)].into_iter())?;
    let form = Form::of_first(array)?;
    let mut fields = FieldList::default();
    for (index, entry) in array_values(array).enumerate() {
        evaluation::check_element(index)?;
        let (key, held) = form.pair(entry)?;
        fields.set(key, held);
    }
    Ok(Value::Owned(fields.finish()))
}

/// Form of the entries that `$arrayToObject` converts to fields. All entries must have the form of the first entry.
#[derive(Clone, Copy)]
enum Form {
    /// `[name, value]`
    Pairs,
    /// `{k: name, v: value}`
    Objects,
}

impl Form {
    fn of_first(array: &RawArray) -> Result<Form, Error> {
        match array_values(array).next() {
            Some(RawBsonRef::Document(_)) => Ok(Form::Objects),
            Some(RawBsonRef::Array(_)) | None => Ok(Form::Pairs),
            Some(other) => Err(Error::new(
                Code::Location40398,
                format!(
                    "Unrecognised input type format for $arrayToObject: {}",
                    type_name(other.element_type())
                ),
            )),
        }
    }

    /// Returns the field name and the value of an entry.
    fn pair(self, entry: RawBsonRef<'_>) -> Result<(&str, RawBsonRef<'_>), Error> {
        let (found, not_text, has_null) = match (self, entry) {
            (Form::Pairs, RawBsonRef::Array(array)) => (
                pair_of_array(array)?,
                Code::Location40395,
                Code::Location4940400,
            ),
            (Form::Objects, RawBsonRef::Document(document)) => (
                pair_of_object(document)?,
                Code::Location40394,
                Code::Location4940401,
            ),
            _ => return Err(self.mixed(entry)),
        };
        match found {
            (RawBsonRef::String(name), _) if name.contains('\0') => Err(Error::new(
                has_null,
                "Key field cannot contain an embedded null byte",
            )),
            (RawBsonRef::String(name), held) => Ok((name, held)),
            (other, _) => Err(Error::new(
                not_text,
                format!(
                    "$arrayToObject requires the name of a field to be of type string, found: {}",
                    type_name(other.element_type())
                ),
            )),
        }
    }

    fn mixed(self, entry: RawBsonRef<'_>) -> Error {
        let (code, first) = match self {
            Form::Pairs => (Code::Location40396, "Array"),
            Form::Objects => (Code::Location40391, "Object"),
        };
        let found = type_name(entry.element_type());
        let message = format!(
            "$arrayToObject requires a consistent input format. Elements must all be arrays or all be objects. {first} was detected, now found: {found}"
        );
        Error::new(code, message)
    }
}

fn pair_of_array(array: &RawArray) -> Result<(RawBsonRef<'_>, RawBsonRef<'_>), Error> {
    let values: Vec<_> = array_values(array).take(3).collect();
    match values.as_slice() {
        [key, held] => Ok((*key, *held)),
        _ => Err(Error::new(
            Code::Location40397,
            "$arrayToObject requires an array of size 2 arrays",
        )),
    }
}

fn pair_of_object(document: &RawDocument) -> Result<(RawBsonRef<'_>, RawBsonRef<'_>), Error> {
    let count = elements(document).count();
    if count != 2 {
        let message = format!(
            "$arrayToObject requires an object keys of 'k' and 'v'. Found incorrect number of keys:{count}"
        );
        return Err(Error::new(Code::Location40392, message));
    }
    match (get(document, "k"), get(document, "v")) {
        (Some(key), Some(held)) => Ok((key, held)),
        _ => Err(Error::new(
            Code::Location40393,
            "$arrayToObject requires an object with keys 'k' and 'v'",
        )),
    }
}
