//! BSON values in the notation of MongoDB's error messages.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter, Write};

use bson::raw::{RawBsonRef, RawDocument};

use crate::element::{array_values, elements};

/// Maximum bytes of a value in a message. Longer values are truncated.
const SHOWN_BYTES_MAX: usize = 512;
/// Maximum nesting depth in a message.
const SHOWN_DEPTH_MAX: usize = 20;

/// Formats a value in the notation of MongoDB's error messages: `{ a: 1, b: "x" }`.
pub fn value(value: RawBsonRef<'_>) -> String {
    let mut text = Cut::default();
    // Writing fails only when the text is already long enough.
    let _ = write!(text, "{}", Shown { value, depth: 0 });
    cut(&text.0).into_owned()
}

/// Formats a document in the notation of MongoDB's error messages.
pub fn document(document: &RawDocument) -> String {
    value(RawBsonRef::Document(document))
}

/// Formats a field with its value: `$size: -1`.
pub fn field(name: &str, shown: RawBsonRef<'_>) -> String {
    format!("{name}: {}", value(shown))
}

/// Returns a client's text for use in a message. Truncates a long text.
pub fn cut(text: &str) -> Cow<'_, str> {
    match text.len() > SHOWN_BYTES_MAX {
        true => {
            let end = text.floor_char_boundary(SHOWN_BYTES_MAX);
            Cow::Owned(format!("{}...", &text[..end]))
        }
        false => Cow::Borrowed(text),
    }
}

/// The text of a value in a message. Refuses further writes once it is longer than [`SHOWN_BYTES_MAX`].
#[derive(Default)]
struct Cut(String);

impl Write for Cut {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let left = (SHOWN_BYTES_MAX + 1).saturating_sub(self.0.len());
        let end = part.ceil_char_boundary(left);
        self.0.push_str(&part[..end]);
        match self.0.len() > SHOWN_BYTES_MAX {
            true => Err(fmt::Error),
            false => Ok(()),
        }
    }
}

struct Shown<'a> {
    value: RawBsonRef<'a>,
    depth: usize,
}

impl Shown<'_> {
    fn inner<'b>(&self, value: RawBsonRef<'b>) -> Shown<'b> {
        Shown {
            value,
            depth: self.depth + 1,
        }
    }

    fn document(&self, f: &mut Formatter<'_>, document: &RawDocument) -> fmt::Result {
        f.write_str("{")?;
        for (index, element) in elements(document).enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(
                f,
                "{separator} {}: {}",
                element.key,
                self.inner(element.value())
            )?;
        }
        f.write_str(if document.is_empty() { "}" } else { " }" })
    }

    fn rare(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.value {
            RawBsonRef::ObjectId(id) => write!(f, "ObjectId('{}')", id.to_hex()),
            RawBsonRef::DateTime(date) => write!(f, "new Date({})", date.timestamp_millis()),
            RawBsonRef::Timestamp(stamp) => {
                write!(f, "Timestamp({}, {})", stamp.time, stamp.increment)
            }
            RawBsonRef::RegularExpression(regex) => {
                write!(f, "/{}/{}", regex.pattern, regex.options)
            }
            RawBsonRef::Decimal128(number) => write!(f, "{number}"),
            RawBsonRef::Binary(binary) => write!(
                f,
                "BinData({}, {} bytes)",
                u8::from(binary.subtype),
                binary.bytes.len()
            ),
            RawBsonRef::MinKey => f.write_str("MinKey"),
            RawBsonRef::MaxKey => f.write_str("MaxKey"),
            RawBsonRef::Undefined => f.write_str("undefined"),
            RawBsonRef::JavaScriptCode(code) => f.write_str(code),
            other => f.write_str(crate::element::type_name(other.element_type())),
        }
    }
}

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.depth > SHOWN_DEPTH_MAX {
            return f.write_str("...");
        }
        match self.value {
            RawBsonRef::Document(document) => self.document(f, document),
            RawBsonRef::Array(array) => {
                f.write_str("[")?;
                for (index, value) in array_values(array).enumerate() {
                    write!(
                        f,
                        "{} {}",
                        if index == 0 { "" } else { "," },
                        self.inner(value)
                    )?;
                }
                f.write_str(if array.is_empty() { "]" } else { " ]" })
            }
            RawBsonRef::String(text) | RawBsonRef::Symbol(text) => write!(f, "\"{text}\""),
            RawBsonRef::Int32(number) => write!(f, "{number}"),
            RawBsonRef::Int64(number) => write!(f, "{number}"),
            RawBsonRef::Double(number) if number.is_finite() => write!(f, "{number:?}"),
            RawBsonRef::Double(number) if number.is_nan() => f.write_str("nan"),
            RawBsonRef::Double(number) => f.write_str(if number > 0.0 { "inf" } else { "-inf" }),
            RawBsonRef::Boolean(flag) => write!(f, "{flag}"),
            RawBsonRef::Null => f.write_str("null"),
            _ => self.rare(f),
        }
    }
}
