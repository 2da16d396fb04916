//! A writer of BSON documents.

use bson::RawBson;
use bson::raw::{RawBsonRef, RawDocument, RawDocumentBuf};
use bson::spec::ElementType;

use crate::element::{Element, encode_value, opaque_parts};

/// Maximum factor between the capacity of a finished document and its bytes.
const CAPACITY_GROWTH: usize = 2;
/// Maximum capacity of a finished small document.
const CAPACITY_FREE_BYTES: usize = 256;

/// Builds a document element by element. Does not check field names; duplicates are kept.
#[derive(Debug)]
pub struct Writer {
    bytes: Vec<u8>,
    open: Vec<usize>,
}

impl Default for Writer {
    fn default() -> Writer {
        Writer::new()
    }
}

impl Writer {
    /// Creates an empty document.
    pub fn new() -> Writer {
        Writer::with_capacity(64)
    }

    /// Creates an empty document with capacity for `bytes`.
    pub fn with_capacity(bytes: usize) -> Writer {
        let mut buffer = Vec::with_capacity(bytes.max(5));
        buffer.extend_from_slice(&[0; 4]);
        Writer {
            bytes: buffer,
            open: vec![0],
        }
    }

    /// Appends an element of another document unchanged.
    pub fn element(&mut self, element: &Element<'_>) {
        self.bytes.extend_from_slice(element.bytes);
    }

    /// Appends an element's value under another name.
    pub fn element_as(&mut self, key: &str, element: &Element<'_>) {
        self.raw(key, element.kind(), element.value_bytes());
    }

    /// Appends a value, passed as its type and its bytes.
    pub fn raw(&mut self, key: &str, kind: ElementType, value: &[u8]) {
        self.header(kind as u8, key);
        self.bytes.extend_from_slice(value);
    }

    /// Appends a value.
    pub fn value(&mut self, key: &str, value: RawBsonRef<'_>) {
        if let Some((kind, bytes)) = opaque_parts(value) {
            return self.raw(key, kind, bytes);
        }
        self.header(value.element_type() as u8, key);
        append_value(&mut self.bytes, value);
    }

    /// Appends an owned value.
    pub fn owned(&mut self, key: &str, value: &RawBson) {
        self.value(key, value.as_raw_bson_ref());
    }

    /// Opens an embedded document; [`Writer::end`] closes it.
    pub fn begin_document(&mut self, key: &str) {
        self.begin(ElementType::EmbeddedDocument, key);
    }

    /// Opens an array. Its elements must be named `"0"`, `"1"`, and so on.
    pub fn begin_array(&mut self, key: &str) {
        self.begin(ElementType::Array, key);
    }

    /// Appends a document as element `index` of the open array. Writes the index without allocating a string.
    pub fn document_at(&mut self, index: usize, document: &RawDocument) {
        self.bytes.push(ElementType::EmbeddedDocument as u8);
        push_decimal(&mut self.bytes, index);
        self.bytes.push(0);
        self.bytes.extend_from_slice(document.as_bytes());
    }

    /// Closes the innermost open document or array.
    pub fn end(&mut self) {
        let start = self.open.pop().unwrap_or(0);
        self.bytes.push(0);
        let size = (self.bytes.len() - start) as i32;
        self.bytes[start..start + 4].copy_from_slice(&size.to_le_bytes());
    }

    /// Returns the number of bytes written so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the number of open documents and arrays, including the outermost document.
    pub fn depth(&self) -> usize {
        self.open.len()
    }

    /// Returns whether nothing has been written yet.
    pub fn is_empty(&self) -> bool {
        self.bytes.len() == 4
    }

    /// Closes all open documents and arrays, and returns the document.
    pub fn finish(mut self) -> RawDocumentBuf {
        while !self.open.is_empty() {
            self.end();
        }
        if self.bytes.capacity() > CAPACITY_GROWTH * self.bytes.len() + CAPACITY_FREE_BYTES {
            self.bytes.shrink_to_fit();
        }
        RawDocumentBuf::from_bytes(self.bytes)
            .expect("the writer has written the document's length and terminator")
    }

    fn begin(&mut self, kind: ElementType, key: &str) {
        self.header(kind as u8, key);
        self.open.push(self.bytes.len());
        self.bytes.extend_from_slice(&[0; 4]);
    }

    fn header(&mut self, kind: u8, key: &str) {
        self.bytes.push(kind);
        // A name cannot contain NUL, so `key` is truncated at its first NUL.
        let end = key.bytes().position(|byte| byte == 0).unwrap_or(key.len());
        self.bytes.extend_from_slice(&key.as_bytes()[..end]);
        self.bytes.push(0);
    }
}

fn append_value(bytes: &mut Vec<u8>, value: RawBsonRef<'_>) {
    match value {
        RawBsonRef::Document(document) => bytes.extend_from_slice(document.as_bytes()),
        RawBsonRef::Array(array) => bytes.extend_from_slice(array.as_bytes()),
        RawBsonRef::String(text) => {
            bytes.extend_from_slice(&(text.len() as i32 + 1).to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
            bytes.push(0);
        }
        RawBsonRef::Int32(number) => bytes.extend_from_slice(&number.to_le_bytes()),
        RawBsonRef::Int64(number) => bytes.extend_from_slice(&number.to_le_bytes()),
        RawBsonRef::Double(number) => bytes.extend_from_slice(&number.to_le_bytes()),
        RawBsonRef::Boolean(flag) => bytes.push(u8::from(flag)),
        RawBsonRef::ObjectId(id) => bytes.extend_from_slice(&id.bytes()),
        other => bytes.extend_from_slice(&encode_value(other)),
    }
}

fn push_decimal(bytes: &mut Vec<u8>, value: usize) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = value;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    bytes.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn nested_documents_equal_the_ones_of_the_bson_crate() {
        let mut writer = Writer::with_capacity(64);
        writer.begin_document("cursor");
        writer.begin_array("firstBatch");
        for index in 0..12 {
            writer.document_at(index, &rawdoc! { "a": index as i32 });
        }
        writer.end();
        writer.value("id", RawBsonRef::Int64(5));
        writer.value("ns", RawBsonRef::String("a.b"));
        writer.end();
        writer.value("ok", RawBsonRef::Double(1.0));
        let written = writer.finish();
        let batch = (0..12)
            .map(|index| rawdoc! { "a": index })
            .collect::<bson::RawArrayBuf>();
        let expected =
            rawdoc! { "cursor": { "firstBatch": batch, "id": 5i64, "ns": "a.b" }, "ok": 1.0 };
        assert_eq!(written.as_bytes(), expected.as_bytes());
    }

    #[test]
    fn decimals_are_those_of_display() {
        for value in [0, 9, 10, 99, 100, 12345, usize::MAX] {
            let mut bytes = Vec::new();
            push_decimal(&mut bytes, value);
            assert_eq!(bytes, value.to_string().into_bytes());
        }
    }
}
