//! `$type`: sets of BSON types by number or alias.

use bson::raw::RawBsonRef;
use bson::spec::ElementType;

use crate::element::{array_values, type_name};
use crate::error::Error;
use crate::number::Number;

/// A set of BSON types, as a bitmap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TypeSet(u32);

const ALL_TYPES: [ElementType; 21] = [
    ElementType::Double,
    ElementType::String,
    ElementType::EmbeddedDocument,
    ElementType::Array,
    ElementType::Binary,
    ElementType::Undefined,
    ElementType::ObjectId,
    ElementType::Boolean,
    ElementType::DateTime,
    ElementType::Null,
    ElementType::RegularExpression,
    ElementType::DbPointer,
    ElementType::JavaScriptCode,
    ElementType::Symbol,
    ElementType::JavaScriptCodeWithScope,
    ElementType::Int32,
    ElementType::Timestamp,
    ElementType::Int64,
    ElementType::Decimal128,
    ElementType::MinKey,
    ElementType::MaxKey,
];

const NUMBERS: [ElementType; 4] = [
    ElementType::Double,
    ElementType::Int32,
    ElementType::Int64,
    ElementType::Decimal128,
];

impl TypeSet {
    /// Returns whether `kind` is in the set.
    pub fn contains(self, kind: ElementType) -> bool {
        self.0 & bit(kind) != 0
    }

    /// Parses the operand of `$type` on `field`: a number, an alias, or an array of numbers and aliases.
    pub(super) fn parse(field: &str, operand: RawBsonRef<'_>) -> Result<TypeSet, Error> {
        let mut set = TypeSet::default();
        match operand {
            RawBsonRef::Array(array) => array_values(array).try_for_each(|entry| set.add(entry))?,
            other => set.add(other)?,
        }
        if set.0 == 0 {
            return Err(Error::parse(format!(
                "{field} must match at least one type"
            )));
        }
        Ok(set)
    }

    fn add(&mut self, entry: RawBsonRef<'_>) -> Result<(), Error> {
        match entry {
            RawBsonRef::String("number") => NUMBERS.iter().for_each(|kind| self.0 |= bit(*kind)),
            RawBsonRef::String(alias) => self.0 |= bit(by_alias(alias)?),
            other => self.0 |= bit(by_number(other)?),
        }
        Ok(())
    }
}

fn bit(kind: ElementType) -> u32 {
    let position = ALL_TYPES
        .iter()
        .position(|known| *known == kind)
        .unwrap_or(31);
    1 << position
}

fn by_alias(alias: &str) -> Result<ElementType, Error> {
    let found = ALL_TYPES.iter().find(|kind| type_name(**kind) == alias);
    found
        .copied()
        .ok_or_else(|| Error::bad_value(format!("Unknown type name alias: {alias}")))
}

fn by_number(value: RawBsonRef<'_>) -> Result<ElementType, Error> {
    let Some(number) = Number::of(value) else {
        return Err(Error::type_mismatch(
            "type must be represented as a number or a string",
        ));
    };
    let code = number.to_i64_exact();
    let kind = match code {
        Some(-1) => Some(ElementType::MinKey),
        Some(code) => u8::try_from(code)
            .ok()
            .filter(|code| *code <= 127)
            .and_then(ElementType::from),
        None => None,
    };
    kind.ok_or_else(|| invalid_number(value, code))
}

fn invalid_number(value: RawBsonRef<'_>, code: Option<i64>) -> Error {
    let shown = code.map_or_else(|| crate::display::value(value), |code| code.to_string());
    match code {
        Some(0) => Error::bad_value("Invalid numerical type code: 0. Instead use {$exists:false}."),
        _ => Error::bad_value(format!("Invalid numerical type code: {shown}")),
    }
}
