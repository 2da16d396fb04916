//! Reading raw BSON element by element.
//!
//! [`Elements`] never fails. It ends where a document is malformed, and returns a value that cannot be decoded (a
//! string that is not UTF-8) as an opaque binary value. Such a field exists, equals itself, and matches no string and
//! no pattern. A client cannot send an opaque value, because no binary value that a client sends is decoded with an
//! opaque value's subtype. Copies of an element keep its original bytes, so updates and projections do not change the
//! element.

use bson::raw::{
    RawArray, RawBinaryRef, RawBsonRef, RawDocument, RawDocumentBuf, RawElement, RawIter,
};
use bson::spec::{BinarySubtype, ElementType};

use crate::error::{Code, Error};
use crate::limits::DOCUMENT_DEPTH_MAX;
pub use crate::writer::Writer;

/// Difference between the binary subtype of an opaque value and the value's BSON type.
///
/// The resulting subtype is below 0x80, so it is never decoded as `UserDefined`, and it is none of the subtypes with a
/// special layout.
const OPAQUE_SUBTYPE_BASE: u8 = 0x40;

/// The lowest subtype that is decoded as `UserDefined`.
const USER_SUBTYPE_MIN: u8 = 0x80;

/// One element of a document or an array.
pub struct Element<'a> {
    /// The field name. In an array, the index in decimal.
    pub key: &'a str,
    /// Type byte, name and value, as stored in the document.
    pub bytes: &'a [u8],
    raw: RawElement<'a>,
}

impl<'a> Element<'a> {
    /// Returns the value. Values that cannot be decoded are returned as opaque binary values, see the module's
    /// documentation.
    pub fn value(&self) -> RawBsonRef<'a> {
        self.raw.value().unwrap_or_else(|_| self.opaque())
    }

    /// Returns the BSON type.
    pub fn kind(&self) -> ElementType {
        self.raw.element_type()
    }

    /// Returns the bytes of the value without type and name.
    pub fn value_bytes(&self) -> &'a [u8] {
        &self.bytes[1 + self.key.len() + 1..]
    }

    fn opaque(&self) -> RawBsonRef<'a> {
        RawBsonRef::Binary(RawBinaryRef {
            subtype: BinarySubtype::UserDefined(OPAQUE_SUBTYPE_BASE | self.kind() as u8),
            bytes: self.value_bytes(),
        })
    }
}

/// Iterator over the elements of a document or an array, in order.
pub struct Elements<'a> {
    document: &'a [u8],
    offset: usize,
    inner: RawIter<'a>,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Element<'a>;

    fn next(&mut self) -> Option<Element<'a>> {
        let raw = self.inner.next()?.ok()?;
        let key = raw.key().as_str();
        let end = self.offset + 1 + key.len() + 1 + raw.size();
        let bytes = self.document.get(self.offset..end)?;
        self.offset = end;
        Some(Element { key, bytes, raw })
    }
}

/// Iterates over the elements of `document`.
pub fn elements(document: &RawDocument) -> Elements<'_> {
    Elements {
        document: document.as_bytes(),
        offset: 4,
        inner: document.iter_elements(),
    }
}

/// Iterates over the elements of `array`.
pub fn array_elements(array: &RawArray) -> Elements<'_> {
    Elements {
        document: array.as_bytes(),
        offset: 4,
        inner: array.iter_elements(),
    }
}

/// Iterates over the values of `array`.
pub fn array_values(array: &RawArray) -> impl Iterator<Item = RawBsonRef<'_>> {
    array_elements(array).map(|element| element.value())
}

/// Returns the length in bytes of a value. Returns 0 for numbers and other values that are always small.
pub(crate) fn payload_bytes(value: RawBsonRef<'_>) -> usize {
    match value {
        RawBsonRef::String(text) | RawBsonRef::Symbol(text) | RawBsonRef::JavaScriptCode(text) => {
            text.len()
        }
        RawBsonRef::Binary(binary) => binary.bytes.len(),
        RawBsonRef::Document(document) => document.as_bytes().len(),
        RawBsonRef::Array(array) => array.as_bytes().len(),
        RawBsonRef::RegularExpression(regex) => {
            regex.pattern.as_str().len() + regex.options.as_str().len()
        }
        RawBsonRef::JavaScriptCodeWithScope(code) => code.code.len() + code.scope.as_bytes().len(),
        RawBsonRef::DbPointer(_) => encode_value(value).len(),
        _ => 0,
    }
}

/// Returns the number of elements of a document or an array, and 0 for other values.
pub(crate) fn count(value: RawBsonRef<'_>) -> usize {
    match value {
        RawBsonRef::Document(document) => elements(document).count(),
        RawBsonRef::Array(array) => array_elements(array).count(),
        _ => 0,
    }
}

/// Returns the value of the first field called `key`.
pub fn get<'a>(document: &'a RawDocument, key: &str) -> Option<RawBsonRef<'a>> {
    elements(document)
        .find(|element| element.key == key)
        .map(|element| element.value())
}

/// Returns whether a value counts as true where MongoDB accepts any value as a flag. All values do except `false`,
/// zero, null and undefined.
pub fn is_truthy(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Boolean(flag) => flag,
        RawBsonRef::Int32(number) => number != 0,
        RawBsonRef::Int64(number) => number != 0,
        RawBsonRef::Double(number) => number != 0.0,
        RawBsonRef::Decimal128(number) => !crate::decimal::Decimal::from(number).is_zero(),
        RawBsonRef::Null | RawBsonRef::Undefined => false,
        _ => true,
    }
}

/// Minimum bytes that a level of nesting adds. The smallest level is a document whose only field has an empty name.
const LEVEL_BYTES_MIN: usize = 7;

/// Returns whether documents and arrays nest more than `levels` deep.
///
/// Descends only into values that have enough bytes to nest more than `levels` deep. Small values thus cost nothing.
pub fn nests_deeper(value: RawBsonRef<'_>, levels: usize) -> bool {
    let (bytes, mut inside) = match value {
        RawBsonRef::Document(document) => (document.as_bytes().len(), elements(document)),
        RawBsonRef::Array(array) => (array.as_bytes().len(), array_elements(array)),
        RawBsonRef::JavaScriptCodeWithScope(code) => {
            (code.scope.as_bytes().len(), elements(code.scope))
        }
        _ => return false,
    };
    match levels {
        0 => true,
        _ if bytes < levels * LEVEL_BYTES_MIN => false,
        _ => inside.any(|element| nests_deeper(element.value(), levels - 1)),
    }
}

/// Returns an error if a document nests deeper than [`DOCUMENT_DEPTH_MAX`].
///
/// # Errors
/// `Overflow`.
pub fn check_depth(value: RawBsonRef<'_>) -> Result<(), Error> {
    check_depth_within(value, 0)
}

/// Returns an error if a value inside `levels` documents and arrays exceeds a total nesting depth of
/// [`DOCUMENT_DEPTH_MAX`].
///
/// # Errors
/// `Overflow`.
pub fn check_depth_within(value: RawBsonRef<'_>, levels: usize) -> Result<(), Error> {
    let fits = DOCUMENT_DEPTH_MAX
        .checked_sub(levels)
        .is_some_and(|left| !nests_deeper(value, left));
    match fits {
        true => Ok(()),
        false => Err(too_deep()),
    }
}

pub(crate) fn too_deep() -> Error {
    let message = format!("BSONObj exceeds maximum nested object depth of {DOCUMENT_DEPTH_MAX}");
    Error::new(Code::Overflow, message)
}

/// Returns whether the name of a document's first field is an operator.
pub(crate) fn first_is_operator(document: &RawDocument) -> bool {
    elements(document)
        .next()
        .is_some_and(|first| first.key.starts_with('$'))
}

/// Returns MongoDB's name of a type, as used in error messages and by `$type`.
pub fn type_name(kind: ElementType) -> &'static str {
    match kind {
        ElementType::Double => "double",
        ElementType::String => "string",
        ElementType::EmbeddedDocument => "object",
        ElementType::Array => "array",
        ElementType::Binary => "binData",
        ElementType::Undefined => "undefined",
        ElementType::ObjectId => "objectId",
        ElementType::Boolean => "bool",
        ElementType::DateTime => "date",
        ElementType::Null => "null",
        ElementType::RegularExpression => "regex",
        ElementType::DbPointer => "dbPointer",
        ElementType::JavaScriptCode => "javascript",
        ElementType::Symbol => "symbol",
        ElementType::JavaScriptCodeWithScope => "javascriptWithScope",
        ElementType::Int32 => "int",
        ElementType::Timestamp => "timestamp",
        ElementType::Int64 => "long",
        ElementType::Decimal128 => "decimal",
        ElementType::MinKey => "minKey",
        ElementType::MaxKey => "maxKey",
    }
}

/// Returns the type and the bytes of an opaque value, which [`Elements`] could not decode; `None` for other values.
pub(crate) fn opaque_parts(value: RawBsonRef<'_>) -> Option<(ElementType, &[u8])> {
    let RawBsonRef::Binary(binary) = value else {
        return None;
    };
    match binary.subtype {
        BinarySubtype::UserDefined(subtype) if subtype < USER_SUBTYPE_MIN => {
            let kind = ElementType::from(subtype & !OPAQUE_SUBTYPE_BASE)?;
            Some((kind, binary.bytes))
        }
        _ => None,
    }
}

/// Encodes a value of any type, as it is in a document after its type and name.
pub(crate) fn encode_value(value: RawBsonRef<'_>) -> Vec<u8> {
    const EMPTY_NAME: &bson::raw::CStr = bson::raw::cstr!("");
    let mut single = RawDocumentBuf::new();
    single.append(EMPTY_NAME, value);
    let bytes = single.as_bytes();
    bytes[6..bytes.len() - 1].to_vec()
}

/// Returns the bytes that a value takes in a document, without its type and name. May be a few bytes too many.
pub fn encoded_bytes(value: RawBsonRef<'_>) -> usize {
    match value {
        RawBsonRef::Document(document) => document.as_bytes().len(),
        RawBsonRef::Array(array) => array.as_bytes().len(),
        RawBsonRef::String(text) | RawBsonRef::Symbol(text) | RawBsonRef::JavaScriptCode(text) => {
            text.len() + 5
        }
        // Nine more bytes at most: the length, the subtype, and the second length that subtype 2 has.
        RawBsonRef::Binary(binary) => binary.bytes.len() + 9,
        RawBsonRef::Int32(_) => 4,
        RawBsonRef::Boolean(_) => 1,
        RawBsonRef::Int64(_)
        | RawBsonRef::Double(_)
        | RawBsonRef::DateTime(_)
        | RawBsonRef::Timestamp(_) => 8,
        RawBsonRef::ObjectId(_) => 12,
        RawBsonRef::Decimal128(_) => 16,
        RawBsonRef::Null | RawBsonRef::Undefined | RawBsonRef::MinKey | RawBsonRef::MaxKey => 0,
        other => encode_value(other).len(),
    }
}
