//! Set operators on arrays: order and duplicates are ignored.

use std::collections::BTreeMap;

use bson::raw::RawBsonRef;

use super::function::{Function, any, between, exactly};
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

/// Memory of the set of all elements of an array, as a multiple of the array's bytes. An entry of the set takes about
/// 100 bytes; an element with its index takes at least 8 bytes in a long array.
const ENTRIES: usize = 12;

type Set<'b> = BTreeMap<Vec<u8>, RawBsonRef<'b>>;

fn set_of<'b>(operand: &'b Value<'_>, name: &str, code: Code) -> Result<Set<'b>, Error> {
    match operand.as_array() {
        Some(array) => {
            let entry = |(index, held)| {
                evaluation::check_element(index)?;
                Ok((key::encode(held), held))
            };
            array_values(array).enumerate().map(entry).collect()
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

/// Reserves memory for the sets of all operands.
fn reserve_sets(operands: &[Value<'_>]) -> Result<(), Error> {
    let bytes: usize = operands.iter().map(Value::bytes).sum();
    evaluation::reserve(bytes.saturating_mul(ENTRIES))
}

fn made(set: &Set<'_>) -> Value<'static> {
    Value::Owned(value::array(set.values().copied()))
}

fn union<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    reserve_sets(operands)?;
    if operands.iter().any(Value::is_nullish) {
        return Ok(Value::NULL);
    }
    let mut all = Set::new();
    for operand in operands {
        all.extend(set_of(operand, "$setUnion", Code::Location17043)?);
    }
    Ok(made(&all))
}

fn intersection<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    reserve_sets(operands)?;
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
    Ok(made(&common.unwrap_or_default()))
}

fn difference<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    reserve_sets(operands)?;
    if operands.iter().any(Value::is_nullish) {
        return Ok(Value::NULL);
    }
    let second = set_of(&operands[1], "$setDifference", Code::Location17049)?;
    let Some(first) = operands[0].as_array() else {
        return set_of(&operands[0], "$setDifference", Code::Location17048).map(|_| Value::NULL);
    };
    let mut seen = second;
    let mut kept = Vec::new();
    for (index, held) in array_values(first).enumerate() {
        evaluation::check_element(index)?;
        if seen.insert(key::encode(held), held).is_none() {
            kept.push(held);
        }
    }
    Ok(Value::Owned(value::array(kept)))
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
