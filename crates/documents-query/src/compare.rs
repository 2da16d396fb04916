//! The order of BSON values across types.
//!
//! Sources: "Comparison/Sort Order" of the MongoDB manual; `BSONElement::compareElements` of the server.

use std::cmp::Ordering;

use bson::raw::{RawBinaryRef, RawBsonRef, RawDocument};

use crate::element::{Elements, array_elements, elements, encode_value};
use crate::number::{self, Number};

/// The class of a value in the order across types. Values of one class are compared with each other by value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "each class is named after its type")]
pub enum Class {
    MinKey = 0x01,
    Undefined = 0x03,
    Null = 0x05,
    Number = 0x0A,
    String = 0x0F,
    Object = 0x14,
    Array = 0x19,
    Binary = 0x1E,
    ObjectId = 0x23,
    Boolean = 0x28,
    Date = 0x2D,
    Timestamp = 0x2F,
    RegularExpression = 0x32,
    DbPointer = 0x37,
    Code = 0x3C,
    CodeWithScope = 0x41,
    MaxKey = 0x7F,
}

/// Returns the class of `value`. Strings and symbols have the same class, and so do the four types of numbers.
pub fn class(value: RawBsonRef<'_>) -> Class {
    match value {
        RawBsonRef::MinKey => Class::MinKey,
        RawBsonRef::Undefined => Class::Undefined,
        RawBsonRef::Null => Class::Null,
        RawBsonRef::Int32(_)
        | RawBsonRef::Int64(_)
        | RawBsonRef::Double(_)
        | RawBsonRef::Decimal128(_) => Class::Number,
        RawBsonRef::String(_) | RawBsonRef::Symbol(_) => Class::String,
        RawBsonRef::Document(_) => Class::Object,
        RawBsonRef::Array(_) => Class::Array,
        RawBsonRef::Binary(_) => Class::Binary,
        RawBsonRef::ObjectId(_) => Class::ObjectId,
        RawBsonRef::Boolean(_) => Class::Boolean,
        RawBsonRef::DateTime(_) => Class::Date,
        RawBsonRef::Timestamp(_) => Class::Timestamp,
        RawBsonRef::RegularExpression(_) => Class::RegularExpression,
        RawBsonRef::DbPointer(_) => Class::DbPointer,
        RawBsonRef::JavaScriptCode(_) => Class::Code,
        RawBsonRef::JavaScriptCodeWithScope(_) => Class::CodeWithScope,
        RawBsonRef::MaxKey => Class::MaxKey,
    }
}

/// Orders two values, first by class, then by value.
pub fn compare(a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> Ordering {
    class(a)
        .cmp(&class(b))
        .then_with(|| compare_within_class(a, b))
}

/// Returns whether two values are equal across types. For example, `1`, `1.0` and `NumberLong(1)` are equal.
pub fn equal(a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> bool {
    compare(a, b) == Ordering::Equal
}

/// Orders two values of one class. Returns `Equal` for values of different classes.
fn compare_within_class(a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> Ordering {
    compare_outside(a, b).then_with(|| Pair::inside(a, b).map_or(Ordering::Equal, compare_elements))
}

/// Orders two values of one class. Ignores the content of documents and arrays.
fn compare_outside(a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> Ordering {
    if let (Some(a), Some(b)) = (Number::of(a), Number::of(b)) {
        return number::compare(a, b);
    }
    if let (Some(a), Some(b)) = (string_of(a), string_of(b)) {
        return a.cmp(b);
    }
    match (a, b) {
        (RawBsonRef::Binary(a), RawBsonRef::Binary(b)) => compare_binaries(a, b),
        (RawBsonRef::ObjectId(a), RawBsonRef::ObjectId(b)) => a.cmp(&b),
        (RawBsonRef::Boolean(a), RawBsonRef::Boolean(b)) => a.cmp(&b),
        (RawBsonRef::DateTime(a), RawBsonRef::DateTime(b)) => a.cmp(&b),
        (RawBsonRef::Timestamp(a), RawBsonRef::Timestamp(b)) => {
            (a.time, a.increment).cmp(&(b.time, b.increment))
        }
        _ => compare_rare(a, b),
    }
}

fn compare_rare(a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> Ordering {
    match (a, b) {
        (RawBsonRef::RegularExpression(a), RawBsonRef::RegularExpression(b)) => {
            (a.pattern.as_str(), a.options.as_str()).cmp(&(b.pattern.as_str(), b.options.as_str()))
        }
        (RawBsonRef::JavaScriptCode(a), RawBsonRef::JavaScriptCode(b)) => a.cmp(b),
        (RawBsonRef::JavaScriptCodeWithScope(a), RawBsonRef::JavaScriptCodeWithScope(b)) => {
            a.code.cmp(b.code)
        }
        // DBPointers are compared by the length of the name, then by the bytes of the name and of the id.
        (RawBsonRef::DbPointer(_), RawBsonRef::DbPointer(_)) => {
            let (a, b) = (encode_value(a), encode_value(b));
            a.len().cmp(&b.len()).then_with(|| a.cmp(&b))
        }
        _ => Ordering::Equal,
    }
}

/// Returns the text of a string or a symbol.
pub fn string_of(value: RawBsonRef<'_>) -> Option<&str> {
    match value {
        RawBsonRef::String(text) | RawBsonRef::Symbol(text) => Some(text),
        _ => None,
    }
}

/// Orders documents field by field: by the value's class, then by the field's name, then by the value. If all compared
/// fields are equal, the document with fewer fields is smaller.
pub fn compare_documents(a: &RawDocument, b: &RawDocument) -> Ordering {
    compare_elements(Pair::of_documents(a, b))
}

/// Two documents or two arrays, read in parallel.
struct Pair<'a, 'b> {
    left: Elements<'a>,
    right: Elements<'b>,
    /// Whether field names are compared: true for documents, false for arrays.
    is_named: bool,
}

impl<'a, 'b> Pair<'a, 'b> {
    fn of_documents(left: &'a RawDocument, right: &'b RawDocument) -> Pair<'a, 'b> {
        Pair {
            left: elements(left),
            right: elements(right),
            is_named: true,
        }
    }

    /// Returns the contents of two values of one class if both are documents or both are arrays.
    fn inside(left: RawBsonRef<'a>, right: RawBsonRef<'b>) -> Option<Pair<'a, 'b>> {
        match (left, right) {
            (RawBsonRef::Document(left), RawBsonRef::Document(right)) => {
                Some(Pair::of_documents(left, right))
            }
            (RawBsonRef::Array(left), RawBsonRef::Array(right)) => Some(Pair {
                left: array_elements(left),
                right: array_elements(right),
                is_named: false,
            }),
            (
                RawBsonRef::JavaScriptCodeWithScope(left),
                RawBsonRef::JavaScriptCodeWithScope(right),
            ) => Some(Pair::of_documents(left.scope, right.scope)),
            _ => None,
        }
    }
}

/// Compares elements without recursion, because stored documents may nest deeper than the stack allows.
fn compare_elements(mut pair: Pair<'_, '_>) -> Ordering {
    let mut outer = Vec::new();
    loop {
        let (a, b) = match (pair.left.next(), pair.right.next()) {
            (Some(a), Some(b)) => (a, b),
            (None, None) => match outer.pop() {
                Some(around) => {
                    pair = around;
                    continue;
                }
                None => return Ordering::Equal,
            },
            (a, b) => return a.is_some().cmp(&b.is_some()),
        };
        let (left, right) = (a.value(), b.value());
        let order = class(left)
            .cmp(&class(right))
            .then_with(|| match pair.is_named {
                true => a.key.cmp(b.key),
                false => Ordering::Equal,
            })
            .then_with(|| compare_outside(left, right));
        if order != Ordering::Equal {
            return order;
        }
        if let Some(inside) = Pair::inside(left, right) {
            outer.push(std::mem::replace(&mut pair, inside));
        }
    }
}

/// Orders binary values by length, then subtype, then bytes.
fn compare_binaries(a: RawBinaryRef<'_>, b: RawBinaryRef<'_>) -> Ordering {
    let subtype = |binary: RawBinaryRef<'_>| u8::from(binary.subtype);
    (a.bytes.len(), subtype(a), a.bytes).cmp(&(b.bytes.len(), subtype(b), b.bytes))
}
