//! What an expression evaluates to.

use bson::raw::{RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocument};

use crate::element::{Writer, is_truthy, type_name};

/// A value that is missing, borrowed from a document or an expression, or made.
#[derive(Debug, Clone)]
pub enum Value<'a> {
    /// No value: a field that is not there.
    Missing,
    /// A value of a document or a literal.
    Ref(RawBsonRef<'a>),
    /// A computed value.
    Owned(RawBson),
}

impl<'a> Value<'a> {
    /// Null, which most operators give for null or missing operands.
    pub const NULL: Value<'static> = Value::Ref(RawBsonRef::Null);

    /// The value; `None` where it is missing.
    pub fn get(&self) -> Option<RawBsonRef<'_>> {
        match self {
            Value::Missing => None,
            Value::Ref(value) => Some(*value),
            Value::Owned(value) => Some(value.as_raw_bson_ref()),
        }
    }

    /// The value, null where it is missing.
    pub fn or_null(&self) -> RawBsonRef<'_> {
        self.get().unwrap_or(RawBsonRef::Null)
    }

    /// Whether the value is missing, null or undefined.
    pub fn is_nullish(&self) -> bool {
        matches!(
            self.get(),
            None | Some(RawBsonRef::Null | RawBsonRef::Undefined)
        )
    }

    /// Whether the value counts as true.
    pub fn is_true(&self) -> bool {
        self.get().is_some_and(is_truthy)
    }

    /// MongoDB's name of the type, `missing` included.
    pub fn type_name(&self) -> &'static str {
        self.get()
            .map_or("missing", |value| type_name(value.element_type()))
    }

    /// The array, if the value is one.
    pub fn as_array(&self) -> Option<&RawArray> {
        self.get()?.as_array()
    }

    /// The document, if the value is one.
    pub fn as_document(&self) -> Option<&RawDocument> {
        self.get()?.as_document()
    }

    /// The text, if the value is a string or a symbol.
    pub fn as_text(&self) -> Option<&str> {
        crate::compare::string_of(self.get()?)
    }

    /// The value without borrowing anything.
    pub fn into_static(self) -> Value<'static> {
        match self {
            Value::Missing => Value::Missing,
            Value::Ref(value) => Value::Owned(value.into()),
            Value::Owned(value) => Value::Owned(value),
        }
    }

    /// The value, owned; null where it is missing.
    pub fn into_owned(self) -> RawBson {
        match self {
            Value::Missing => RawBson::Null,
            Value::Ref(value) => value.into(),
            Value::Owned(value) => value,
        }
    }

    /// The first `Some`, as a value.
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

/// An array of values.
pub fn array<'v>(values: impl IntoIterator<Item = RawBsonRef<'v>>) -> RawBson {
    const NAME: &str = "a";
    let mut writer = Writer::new();
    writer.begin_array(NAME);
    for (index, value) in values.into_iter().enumerate() {
        writer.value(&index.to_string(), value);
    }
    let document = writer.finish();
    match crate::element::get(&document, NAME) {
        Some(value) => value.into(),
        None => RawBson::Array(RawArrayBuf::new()),
    }
}
