//! Object operators.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use bson::raw::{RawBson, RawBsonRef, RawDocument};

use super::function::{Function, any, exactly};
use super::value::ArrayWriter;
use super::{Value, evaluation};
use crate::element::{Writer, elements, payload_bytes};
use crate::error::{Code, Error};

pub(super) const FUNCTIONS: &[Function] = &[
    any("$mergeObjects", merge),
    exactly("$objectToArray", 1, to_array),
];

fn merge<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    reserve_fields(operands.iter().filter_map(Value::get))?;
    let mut fields = FieldList::default();
    for operand in operands {
        for element in mergeable(operand)?.into_iter().flat_map(elements) {
            evaluation::check_element(fields.len())?;
            fields.set(element.key, element.value());
        }
    }
    Ok(Value::Owned(fields.finish()))
}

/// Returns an operand of `$mergeObjects` as a document, or `None` for null and missing values.
///
/// # Errors
/// `Location40400` for any other value.
pub(crate) fn mergeable<'v>(value: &'v Value<'_>) -> Result<Option<&'v RawDocument>, Error> {
    if value.is_nullish() {
        return Ok(None);
    }
    let Some(document) = value.as_document() else {
        let shown = crate::display::value(value.or_null());
        let message = format!(
            "$mergeObjects requires object inputs, but input {shown} is of type {}",
            value.type_name()
        );
        return Err(Error::new(Code::Location40400, message));
    };
    Ok(Some(document))
}

/// Maximum number of bytes that a [`FieldList`] takes for each field: an entry in `fields`, and an entry in `places`, a
/// map that grows by doubling.
const FIELD_BYTES: usize = size_of::<(&str, RawBsonRef<'_>)>() + 4 * size_of::<(&str, usize)>();

/// Reserves memory for a [`FieldList`] with a field for each element of `containers` (documents and arrays), and for
/// the document that is then built from the list.
pub(super) fn reserve_fields<'b>(
    containers: impl Iterator<Item = RawBsonRef<'b>> + Clone,
) -> Result<(), Error> {
    let made_bytes: usize = containers.clone().map(payload_bytes).sum();
    evaluation::reserve_beside(made_bytes + evaluation::items_bytes(containers, FIELD_BYTES))
}

/// A list of fields with distinct names, in the order in which the names first appeared. If a name appears again, the
/// later value replaces the earlier one.
#[derive(Default)]
pub(super) struct FieldList<'v> {
    fields: Vec<(&'v str, RawBsonRef<'v>)>,
    places: HashMap<&'v str, usize>,
}

impl<'v> FieldList<'v> {
    /// Adds a field, or replaces the value of a field with the same name.
    pub fn set(&mut self, name: &'v str, value: RawBsonRef<'v>) {
        match self.places.entry(name) {
            Entry::Occupied(place) => self.fields[*place.get()].1 = value,
            Entry::Vacant(place) => {
                place.insert(self.fields.len());
                self.fields.push((name, value));
            }
        }
    }

    /// Returns the number of fields.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Returns a document with the fields.
    pub fn finish(self) -> RawBson {
        let mut writer = Writer::new();
        for (name, value) in &self.fields {
            writer.value(name, *value);
        }
        RawBson::Document(writer.finish())
    }
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
    let mut pairs = ArrayWriter::new();
    for (index, element) in elements(document).enumerate() {
        evaluation::check_element(index)?;
        pairs.push_pair(&element)?;
    }
    Ok(Value::Owned(pairs.finish()))
}
