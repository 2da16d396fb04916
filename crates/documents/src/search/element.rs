//! Iterates over the elements of a raw BSON document without copying or validating values.
//!
//! Field extraction runs for each inserted document and needs few of its elements, so this iterator reads keys and
//! skips values by their length.

/// The BSON type bytes that field extraction distinguishes.
pub mod kind {
    /// A UTF-8 string.
    pub const STRING: u8 = 0x02;
    /// An embedded document.
    pub const DOCUMENT: u8 = 0x03;
    /// An array: a document with the keys "0", "1", ...
    pub const ARRAY: u8 = 0x04;
    /// The deprecated undefined value.
    pub const UNDEFINED: u8 = 0x06;
    /// Null.
    pub const NULL: u8 = 0x0A;
    /// A regular expression.
    pub const REGEX: u8 = 0x0B;
    /// The deprecated symbol, encoded as a string.
    pub const SYMBOL: u8 = 0x0E;
}

/// One element of a document: its type byte, its key and the bytes of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element<'a> {
    /// The type byte; see [`kind`].
    pub kind: u8,
    /// The key, without its terminating zero.
    pub key: &'a [u8],
    /// The encoded value. For a string, this includes the length and the terminating zero.
    pub value: &'a [u8],
}

/// The document is not well-formed BSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl<'a> Element<'a> {
    /// Returns the text of a string or symbol: the bytes between the length and the terminating zero.
    pub fn text(&self) -> Option<&'a [u8]> {
        self.value.get(4..self.value.len().checked_sub(1)?)
    }

    /// Returns the elements of an embedded document or array.
    pub fn children(&self) -> Elements<'a> {
        Elements::of(self.value)
    }
}

/// An iterator over the elements of a document, which ends after the first malformed element.
pub struct Elements<'a> {
    rest: &'a [u8],
}

impl<'a> Elements<'a> {
    /// Returns the elements of an encoded document, which begins with its length.
    pub fn of(document: &'a [u8]) -> Self {
        Elements {
            rest: document.get(4..).unwrap_or_default(),
        }
    }

    #[inline]
    fn read(&mut self) -> Result<Option<Element<'a>>, Malformed> {
        let (&kind, rest) = self.rest.split_first().ok_or(Malformed)?;
        if kind == 0 {
            return Ok(None);
        }
        let key_end = rest.iter().position(|byte| *byte == 0).ok_or(Malformed)?;
        let (key, rest) = (&rest[..key_end], &rest[key_end + 1..]);
        let length = value_length(kind, rest)?;
        let value = rest.get(..length).ok_or(Malformed)?;
        self.rest = &rest[length..];
        Ok(Some(Element { kind, key, value }))
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<Element<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let element = self.read();
        if !matches!(element, Ok(Some(_))) {
            self.rest = &[];
        }
        element.transpose()
    }
}

/// Returns the number of bytes of the value at the start of `bytes`.
fn value_length(kind: u8, bytes: &[u8]) -> Result<usize, Malformed> {
    match kind {
        kind::UNDEFINED | kind::NULL | 0x7F | 0xFF => Ok(0),
        0x08 => Ok(1),
        0x10 => Ok(4),
        0x01 | 0x09 | 0x11 | 0x12 => Ok(8),
        0x07 => Ok(12),
        0x13 => Ok(16),
        kind::STRING | kind::SYMBOL | 0x0D => Ok(4 + at_least(length_prefix(bytes)?, 1)?),
        kind::DOCUMENT | kind::ARRAY => at_least(length_prefix(bytes)?, 5),
        0x0F => at_least(length_prefix(bytes)?, 14),
        0x05 => Ok(5 + length_prefix(bytes)?),
        0x0C => Ok(4 + at_least(length_prefix(bytes)?, 1)? + 12),
        kind::REGEX => regex_length(bytes),
        _ => Err(Malformed),
    }
}

fn length_prefix(bytes: &[u8]) -> Result<usize, Malformed> {
    let prefix = bytes.first_chunk::<4>().ok_or(Malformed)?;
    usize::try_from(i32::from_le_bytes(*prefix)).map_err(|_| Malformed)
}

fn at_least(length: usize, minimum: usize) -> Result<usize, Malformed> {
    if length < minimum {
        return Err(Malformed);
    }
    Ok(length)
}

/// Returns the number of bytes of a regular expression, which consists of two zero-terminated strings.
fn regex_length(bytes: &[u8]) -> Result<usize, Malformed> {
    let mut zeros = memchr::memchr_iter(0, bytes);
    zeros.next().ok_or(Malformed)?;
    Ok(zeros.next().ok_or(Malformed)? + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Bson, rawdoc};

    fn every_type() -> bson::RawDocumentBuf {
        rawdoc! {
            "double": 1.5, "string": "text", "document": { "a": 1 }, "array": ["x"],
            "binary": bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: vec![1, 2] },
            "undefined": bson::RawBson::Undefined, "id": bson::oid::ObjectId::new(), "true": true,
            "date": bson::DateTime::now(), "null": bson::RawBson::Null,
            "regex": bson::Regex { pattern: bson::raw::cstr!("a").into(), options: bson::raw::cstr!("i").into() },
            "code": bson::RawBson::JavaScriptCode("f()".into()), "symbol": bson::RawBson::Symbol("s".into()),
            "int": 7, "timestamp": bson::Timestamp { time: 1, increment: 2 }, "long": 7_i64,
            "decimal": "1.5".parse::<bson::Decimal128>().expect("a decimal"),
            "min": bson::RawBson::MinKey, "max": bson::RawBson::MaxKey, "last": "z",
        }
    }

    #[test]
    fn steps_over_every_type() {
        let document = every_type();
        let keys: Vec<_> = Elements::of(document.as_bytes())
            .map(|element| String::from_utf8_lossy(element.expect("well-formed").key).into_owned())
            .collect();
        let decoded = bson::Document::try_from(document.as_ref()).expect("a document");
        assert_eq!(keys, decoded.keys().cloned().collect::<Vec<_>>());
        assert_eq!(decoded.get("last"), Some(&Bson::String("z".into())));
    }

    #[test]
    fn reads_text_and_children() {
        let document = rawdoc! { "s": "a\0b", "list": ["x"] };
        let elements: Vec<_> = Elements::of(document.as_bytes())
            .map(|e| e.expect("well-formed"))
            .collect();
        assert_eq!(elements[0].text(), Some(&b"a\0b"[..]));
        let child = elements[1]
            .children()
            .next()
            .expect("one")
            .expect("well-formed");
        assert_eq!((child.key, child.text()), (&b"0"[..], Some(&b"x"[..])));
    }

    #[test]
    fn a_cut_document_ends_with_an_error_wherever_it_is_cut() {
        let document = every_type();
        for end in 5..document.as_bytes().len() - 1 {
            let last = Elements::of(&document.as_bytes()[..end]).last();
            // A document that is cut exactly between two elements lacks only the final zero.
            assert!(
                matches!(last, Some(Err(Malformed)) | None)
                    || ends_between_elements(&document, end),
                "cut at {end}"
            );
        }
    }

    fn ends_between_elements(document: &bson::RawDocument, end: usize) -> bool {
        let mut rest = Elements::of(document.as_bytes());
        while let Some(Ok(_)) = rest.next() {
            if document.as_bytes().len() - rest.rest.len() == end {
                return true;
            }
        }
        false
    }
}
