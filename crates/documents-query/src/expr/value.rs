//! The result of an expression.

use bson::raw::{RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocument};

use crate::element::{Writer, is_truthy, type_name};

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

    /// Returns the bytes of a string, binary value, document or array; 0 for other values.
    pub fn bytes(&self) -> usize {
        match self.get() {
            Some(RawBsonRef::String(text) | RawBsonRef::Symbol(text)) => text.len(),
            Some(RawBsonRef::Binary(binary)) => binary.bytes.len(),
            Some(RawBsonRef::Document(document)) => document.as_bytes().len(),
            Some(RawBsonRef::Array(array)) => array.as_bytes().len(),
            _ => 0,
        }
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

/// Builds an array of values.
pub fn array<'v>(values: impl IntoIterator<Item = RawBsonRef<'v>>) -> RawBson {
    let mut array = ArrayWriter::new();
    values.into_iter().for_each(|value| array.push(value));
    array.finish()
}

/// An array being built.
pub(crate) struct ArrayWriter {
    writer: Writer,
    count: usize,
}

impl ArrayWriter {
    const NAME: &'static str = "a";

    /// Creates an empty array.
    pub fn new() -> ArrayWriter {
        let mut writer = Writer::new();
        writer.begin_array(ArrayWriter::NAME);
        ArrayWriter { writer, count: 0 }
    }

    /// Appends a value.
    pub fn push(&mut self, value: RawBsonRef<'_>) {
        self.writer.value(&self.count.to_string(), value);
        self.count += 1;
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
