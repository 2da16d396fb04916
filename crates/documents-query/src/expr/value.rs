//! The result of an expression.

use bson::raw::{RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocument};

use super::{check_size, evaluation};
use crate::element::{Element, Writer, is_truthy, payload_bytes, type_name};
use crate::error::Error;

/// The result of an expression: missing, borrowed from a document or from the expression, or computed.
#[derive(Debug, Clone)]
pub enum Value<'a> {
    /// No value, for example of an absent field.
    Missing,
    /// A value borrowed from a document or a literal.
    Ref(RawBsonRef<'a>),
    /// A computed value.
    Owned(RawBson),
}

impl<'a> Value<'a> {
    /// Null, which most operators return for null or missing operands.
    pub const NULL: Value<'static> = Value::Ref(RawBsonRef::Null);

    /// Returns the value, or `None` if it is missing.
    pub fn get(&self) -> Option<RawBsonRef<'_>> {
        match self {
            Value::Missing => None,
            Value::Ref(value) => Some(*value),
            Value::Owned(value) => Some(value.as_raw_bson_ref()),
        }
    }

    /// Returns the value, or null if it is missing.
    pub fn or_null(&self) -> RawBsonRef<'_> {
        self.get().unwrap_or(RawBsonRef::Null)
    }

    /// Returns whether the value is missing, null or undefined.
    pub fn is_nullish(&self) -> bool {
        matches!(
            self.get(),
            None | Some(RawBsonRef::Null | RawBsonRef::Undefined)
        )
    }

    /// Returns the bytes of a string, document or other value that may be large; 0 for numbers and other small values.
    pub fn bytes(&self) -> usize {
        self.get().map_or(0, payload_bytes)
    }

    /// Returns whether MongoDB treats the value as true.
    pub fn is_true(&self) -> bool {
        self.get().is_some_and(is_truthy)
    }

    /// Returns MongoDB's name of the type, or `missing`.
    pub fn type_name(&self) -> &'static str {
        self.get()
            .map_or("missing", |value| type_name(value.element_type()))
    }

    /// Returns the array if the value is one.
    pub fn as_array(&self) -> Option<&RawArray> {
        self.get()?.as_array()
    }

    /// Returns the document if the value is one.
    pub fn as_document(&self) -> Option<&RawDocument> {
        self.get()?.as_document()
    }

    /// Returns the text if the value is a string or a symbol.
    pub fn as_text(&self) -> Option<&str> {
        crate::compare::string_of(self.get()?)
    }

    /// Converts to a value that borrows nothing.
    pub fn into_static(self) -> Value<'static> {
        match self {
            Value::Missing => Value::Missing,
            Value::Ref(value) => Value::Owned(value.into()),
            Value::Owned(value) => Value::Owned(value),
        }
    }

    /// Converts to an owned value; a missing value becomes null.
    pub fn into_owned(self) -> RawBson {
        match self {
            Value::Missing => RawBson::Null,
            Value::Ref(value) => value.into(),
            Value::Owned(value) => value,
        }
    }

    /// Converts `Some` to a borrowed value, and `None` to a missing value.
    pub fn from_option(value: Option<RawBsonRef<'a>>) -> Value<'a> {
        value.map_or(Value::Missing, Value::Ref)
    }
}

impl From<bool> for Value<'_> {
    fn from(flag: bool) -> Self {
        Value::Ref(RawBsonRef::Boolean(flag))
    }
}

impl From<i32> for Value<'_> {
    fn from(number: i32) -> Self {
        Value::Ref(RawBsonRef::Int32(number))
    }
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Value::Ref(RawBsonRef::Int64(number))
    }
}

impl From<f64> for Value<'_> {
    fn from(number: f64) -> Self {
        Value::Ref(RawBsonRef::Double(number))
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Value::Owned(RawBson::String(text))
    }
}

/// Builds an array of values, while the caller holds `beside_bytes` of temporary values.
///
/// # Errors
/// `ExceededMemoryLimit` if the array is too large.
pub(super) fn array<'v>(
    values: impl IntoIterator<Item = RawBsonRef<'v>>,
    beside_bytes: usize,
) -> Result<RawBson, Error> {
    let mut array = ArrayWriter::beside(beside_bytes);
    for (index, value) in values.into_iter().enumerate() {
        evaluation::check_element(index)?;
        array.push(value)?;
    }
    Ok(array.finish())
}

/// An array being built. Reserves memory for itself before it grows.
pub(crate) struct ArrayWriter {
    writer: Writer,
    count: usize,
    /// Number of bytes of temporary values that are held while the array is built.
    beside_bytes: usize,
    /// Number of bytes that the array may have before it must reserve more memory.
    reserved_bytes: usize,
}

impl ArrayWriter {
    const NAME: &'static str = "a";
    /// Number of bytes that an element takes besides its value, at most: its type, its index and lengths.
    const ELEMENT_BYTES: usize = 32;
    /// Number of bytes for which memory is reserved at a time.
    const STEP_BYTES: usize = 32 << 10;

    /// Creates an empty array for an operator's result, while the operator holds `beside_bytes` of temporary values.
    pub fn beside(beside_bytes: usize) -> ArrayWriter {
        let mut writer = Writer::new();
        writer.begin_array(ArrayWriter::NAME);
        ArrayWriter {
            writer,
            count: 0,
            beside_bytes,
            reserved_bytes: ArrayWriter::STEP_BYTES,
        }
    }

    /// Creates an empty array for an operator's result.
    pub fn new() -> ArrayWriter {
        ArrayWriter::beside(0)
    }

    /// Appends a value.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` if the array would be too large.
    pub fn push(&mut self, value: RawBsonRef<'_>) -> Result<(), Error> {
        self.make_room(payload_bytes(value))?;
        self.writer.value(&self.count.to_string(), value);
        self.count += 1;
        Ok(())
    }

    /// Appends `{k: name, v: value}` of a field.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` if the array would be too large.
    pub fn push_pair(&mut self, field: &Element<'_>) -> Result<(), Error> {
        self.make_room(field.bytes.len())?;
        self.writer.begin_document(&self.count.to_string());
        self.writer.value("k", RawBsonRef::String(field.key));
        self.writer.element_as("v", field);
        self.writer.end();
        self.count += 1;
        Ok(())
    }

    /// Reserves memory for one more element, whose value has at most `bytes` bytes.
    fn make_room(&mut self, bytes: usize) -> Result<(), Error> {
        let needed = self.bytes() + bytes + ArrayWriter::ELEMENT_BYTES;
        if needed <= self.reserved_bytes {
            return Ok(());
        }
        check_size(needed)?;
        self.reserved_bytes = needed.next_multiple_of(ArrayWriter::STEP_BYTES) + needed / 16;
        // `finish` copies the array, so that it is in memory twice.
        let array_bytes = self.reserved_bytes * evaluation::GROWTH;
        evaluation::reserve_beside(self.beside_bytes + array_bytes)
    }

    /// Returns the number of values.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of bytes written so far.
    pub fn bytes(&self) -> usize {
        self.writer.len()
    }

    /// Returns the finished array.
    pub fn finish(self) -> RawBson {
        let document = self.writer.finish();
        match crate::element::get(&document, ArrayWriter::NAME) {
            Some(value) => value.into(),
            None => RawBson::Array(RawArrayBuf::new()),
        }
    }
}
