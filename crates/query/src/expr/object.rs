//! Documents.

use bson::raw::{RawBson, RawBsonRef};

use super::Value;
use super::function::{Function, any, exactly};
use crate::element::{Writer, elements};
use crate::error::{Code, Error};

pub(super) const FUNCTIONS: &[Function] = &[
    any("$mergeObjects", merge),
    exactly("$objectToArray", 1, to_array),
];

fn merge<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let mut fields: Vec<(&str, RawBsonRef<'_>)> = Vec::new();
    for operand in operands.iter().filter(|operand| !operand.is_nullish()) {
        let Some(document) = operand.as_document() else {
            let shown = crate::display::value(operand.or_null());
            let message = format!(
                "$mergeObjects requires object inputs, but input {shown} is of type {}",
                operand.type_name()
            );
            return Err(Error::new(Code::Location40400, message));
        };
        for element in elements(document) {
            match fields.iter_mut().find(|(name, _)| *name == element.key) {
                Some(field) => field.1 = element.value(),
                None => fields.push((element.key, element.value())),
            }
        }
    }
    let mut writer = Writer::new();
    fields
        .iter()
        .for_each(|(name, held)| writer.value(name, *held));
    Ok(Value::Owned(RawBson::Document(writer.finish())))
}

fn to_array<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let document = match operands[0].as_document() {
        _ if operands[0].is_nullish() => return Ok(Value::NULL),
        Some(document) => document,
        None => {
            let message = format!(
                "$objectToArray requires a document input, found: {}",
                operands[0].type_name()
            );
            return Err(Error::new(Code::Location40390, message));
        }
    };
    let pairs: Vec<_> = elements(document)
        .map(|element| {
            let mut writer = Writer::new();
            writer.value("k", RawBsonRef::String(element.key));
            writer.element_as("v", &element);
            writer.finish()
        })
        .collect();
    Ok(Value::Owned(super::value::array(
        pairs.iter().map(|pair| RawBsonRef::Document(pair)),
    )))
}
