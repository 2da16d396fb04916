//! Reads concatenated BSON documents, as mongodump writes them.

use std::io::{BufRead, Read};

use bson::RawDocumentBuf;
use forebay_wire_mongo::Limits;
use forebay_wire_mongo::validate::validate_document;

use super::{Emit, INPUT_BYTES_MAX, Position, ReadError};

/// Reads all documents.
///
/// # Errors
/// If a document is truncated, too large or invalid BSON.
pub fn read(input: &mut dyn BufRead, emit: &mut Emit<'_>) -> Result<(), ReadError> {
    let mut number = 1;
    while !input.fill_buf()?.is_empty() {
        let fault = |problem: String| ReadError::Document { number, problem };
        let document = read_document(input)?.map_err(fault)?;
        if !emit(Position::Document(number), document) {
            return Err(ReadError::Stopped);
        }
        number += 1;
    }
    Ok(())
}

/// Reads one document. The outer error is a failure to read the input, the inner error describes a malformed
/// document.
fn read_document(input: &mut dyn BufRead) -> Result<Result<RawDocumentBuf, String>, ReadError> {
    let mut length = [0; 4];
    let mut bytes = Vec::new();
    input.take(4).read_to_end(&mut bytes)?;
    if bytes.len() < length.len() {
        return Ok(Err("the file ends inside a document".to_owned()));
    }
    length.copy_from_slice(&bytes);
    let declared = usize::try_from(i32::from_le_bytes(length)).unwrap_or(0);
    if !(5..=INPUT_BYTES_MAX).contains(&declared) {
        return Ok(Err(format!(
            "invalid length: {} bytes",
            i32::from_le_bytes(length)
        )));
    }
    input.take(declared as u64 - 4).read_to_end(&mut bytes)?;
    if bytes.len() < declared {
        return Ok(Err("the file ends inside a document".to_owned()));
    }
    Ok(validated(bytes))
}

fn validated(bytes: Vec<u8>) -> Result<RawDocumentBuf, String> {
    let limits = Limits {
        document_bytes_max: INPUT_BYTES_MAX,
        ..Limits::default()
    };
    validate_document(&bytes, &limits).map_err(|error| error.to_string())?;
    RawDocumentBuf::from_bytes(bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::tests::documents;
    use super::super::{Format, Shape};
    use bson::rawdoc;

    #[test]
    fn documents_follow_each_other() {
        let bytes = [rawdoc! { "a": 1 }.into_bytes(), rawdoc! {}.into_bytes()].concat();
        let read = documents(&bytes, Format::Bson, &Shape::default()).expect("valid");
        assert_eq!(read, [r#"{"a":1}"#, "{}"]);
        let cut =
            documents(&bytes[..bytes.len() - 1], Format::Bson, &Shape::default()).expect_err("cut");
        assert_eq!(
            cut.to_string(),
            "document 2: the file ends inside a document"
        );
        let wild = documents(b"\xff\xff\xff\x7f\x00", Format::Bson, &Shape::default())
            .expect_err("too long");
        assert!(
            wild.to_string()
                .starts_with("document 1: invalid length: 2147483647")
        );
    }
}
