//! Writes BSON straight into one buffer, so that a reply's documents are copied once.

use bson::{RawDocument, RawDocumentBuf};

const DOUBLE: u8 = 0x01;
const STRING: u8 = 0x02;
const DOCUMENT: u8 = 0x03;
const ARRAY: u8 = 0x04;
const INT64: u8 = 0x12;

/// A BSON document under construction, with nested documents and arrays opened and closed like brackets.
///
/// Keys are program text, never input; one that held a NUL would be cut there.
#[derive(Debug)]
pub struct Writer {
    bytes: Vec<u8>,
    open: Vec<usize>,
}

impl Writer {
    /// An empty document with room for `bytes`.
    pub fn with_capacity(bytes: usize) -> Writer {
        let mut writer = Writer {
            bytes: Vec::with_capacity(bytes),
            open: Vec::with_capacity(4),
        };
        writer.begin();
        writer
    }

    /// The bytes written so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    fn begin(&mut self) {
        self.open.push(self.bytes.len());
        self.bytes.extend_from_slice(&[0; 4]);
    }

    fn key(&mut self, kind: u8, key: &str) {
        self.bytes.push(kind);
        let end = key.bytes().position(|byte| byte == 0).unwrap_or(key.len());
        self.bytes.extend_from_slice(&key.as_bytes()[..end]);
        self.bytes.push(0);
    }

    /// Opens a nested document.
    pub fn begin_document(&mut self, key: &str) {
        self.key(DOCUMENT, key);
        self.begin();
    }

    /// Opens a nested array.
    pub fn begin_array(&mut self, key: &str) {
        self.key(ARRAY, key);
        self.begin();
    }

    /// Closes what was opened last.
    pub fn end(&mut self) {
        let start = self.open.pop().expect("every end has its begin");
        self.bytes.push(0);
        let length = u32::try_from(self.bytes.len() - start).expect("a reply is far below 4 GiB");
        self.bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// Appends a document as element `index` of the open array.
    pub fn element(&mut self, index: usize, value: &RawDocument) {
        self.bytes.push(DOCUMENT);
        push_decimal(&mut self.bytes, index);
        self.bytes.push(0);
        self.bytes.extend_from_slice(value.as_bytes());
    }

    /// Appends a 64-bit integer.
    pub fn int64(&mut self, key: &str, value: i64) {
        self.key(INT64, key);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends a double.
    pub fn double(&mut self, key: &str, value: f64) {
        self.key(DOUBLE, key);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends a string.
    pub fn string(&mut self, key: &str, value: &str) {
        self.key(STRING, key);
        let length =
            u32::try_from(value.len() + 1).expect("a string of a reply is far below 4 GiB");
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
    }

    /// Closes the document.
    pub fn finish(mut self) -> RawDocumentBuf {
        while !self.open.is_empty() {
            self.end();
        }
        RawDocumentBuf::from_bytes(self.bytes)
            .expect("the writer keeps lengths and terminators right")
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
            writer.element(index, &rawdoc! { "a": index as i32 });
        }
        writer.end();
        writer.int64("id", 5);
        writer.string("ns", "a.b");
        writer.end();
        writer.double("ok", 1.0);
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
