//! Set operators on arrays: order and duplicates are ignored.

use std::collections::BTreeMap;

use bson::raw::RawBsonRef;

use super::function::{Function, any, between, exactly};
use super::value::ArrayWriter;
use super::{Value, evaluation, value};
use crate::element::array_values;
use crate::error::{Code, Error};
use crate::key;

pub(super) const FUNCTIONS: &[Function] = &[
    any("$setUnion", union),
    any("$setIntersection", intersection),
    exactly("$setDifference", 2, difference),
    exactly("$setIsSubset", 2, is_subset),
    between("$setEquals", 2, usize::MAX, equals),
];

/// Maximum number of bytes that a set takes for each element besides the bytes of its key: an entry in a node that is
/// half full, and the allocation of the key.
const ENTRY_BYTES: usize = 2 * size_of::<(Vec<u8>, RawBsonRef<'_>)>() + 32;

type Set<'b> = BTreeMap<Vec<u8>, RawBsonRef<'b>>;

fn set_of<'b>(operand: &'b Value<'_>, name: &str, code: Code) -> Result<Set<'b>, Error> {
    let mut set = Set::new();
    add_all(&mut set, operand, name, code)?;
    Ok(set)
}

/// Adds the elements of an array to a set.
fn add_all<'b>(
    set: &mut Set<'b>,
    operand: &'b Value<'_>,
    name: &str,
    code: Code,
) -> Result<(), Error> {
    match operand.as_array() {
        Some(array) => {
            for (index, held) in array_values(array).enumerate() {
                evaluation::check_element(index)?;
                set.insert(key::encode(held), held);
            }
            Ok(())
        }
        None => Err(Error::new(
            code,
            format!(
                "All operands of {name} must be arrays. One argument is of type: {}",
                operand.type_name()
            ),
        )),
    }
}

/// Reserves memory for the sets of all operands. Returns the bytes reserved.
fn reserve_sets(operands: &[Value<'_>]) -> Result<usize, Error> {
    let arrays = operands.iter().filter_map(Value::get);
    let keys_bytes: usize = arrays.clone().map(key::bytes_max).sum();
    let bytes = evaluation::items_bytes(arrays, ENTRY_BYTES) + keys_bytes;
    evaluation::reserve_beside(bytes)?;
    Ok(bytes)
}

fn made(set: &Set<'_>, set_bytes: usize) -> Result<Value<'static>, Error> {
    let values = set.values().copied();
    Ok(Value::Owned(value::array(values, set_bytes)?))
}

fn union<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let set_bytes = reserve_sets(operands)?;
    if operands.iter().any(Value::is_nullish) {
        return Ok(Value::NULL);
    }
    let mut all = Set::new();
    for operand in operands {
        add_all(&mut all, operand, "$setUnion", Code::Location17043)?;
    }
    made(&all, set_bytes)
}

fn intersection<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let set_bytes = reserve_sets(operands)?;
    if operands.iter().any(Value::is_nullish) {
        return Ok(Value::NULL);
    }
    let mut common: Option<Set<'_>> = None;
    for operand in operands {
        let set = set_of(operand, "$setIntersection", Code::Location17047)?;
        match &mut common {
            None => common = Some(set),
            Some(common) => common.retain(|key, _| set.contains_key(key)),
        }
    }
    made(&common.unwrap_or_default(), set_bytes)
}

fn difference<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let set_bytes = reserve_sets(operands)?;
    if operands.iter().any(Value::is_nullish) {
        return Ok(Value::NULL);
    }
    let second = set_of(&operands[1], "$setDifference", Code::Location17049)?;
    let Some(first) = operands[0].as_array() else {
        return set_of(&operands[0], "$setDifference", Code::Location17048).map(|_| Value::NULL);
    };
    let mut seen = second;
    let mut kept = ArrayWriter::beside(set_bytes);
    for (index, held) in array_values(first).enumerate() {
        evaluation::check_element(index)?;
        if seen.insert(key::encode(held), held).is_none() {
            kept.push(held)?;
        }
    }
    Ok(Value::Owned(kept.finish()))
}

fn is_subset<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    reserve_sets(operands)?;
    let first = set_of(&operands[0], "$setIsSubset", Code::Location17046)?;
    let second = set_of(&operands[1], "$setIsSubset", Code::Location17042)?;
    Ok(first.keys().all(|key| second.contains_key(key)).into())
}

fn equals<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    reserve_sets(operands)?;
    let first = set_of(&operands[0], "$setEquals", Code::Location17044)?;
    for operand in &operands[1..] {
        if !set_of(operand, "$setEquals", Code::Location17044)?
            .keys()
            .eq(first.keys())
        {
            return Ok(false.into());
        }
    }
    Ok(true.into())
}
