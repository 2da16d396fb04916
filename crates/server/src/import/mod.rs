//! Readers for the formats that `forebay import` accepts.

mod bson_dump;
mod csv;
mod format;
mod json;
mod send;

use std::fmt;
use std::io::{self, BufRead};

use bson::RawDocumentBuf;

pub use csv::other_delimiter;
pub use format::Format;
pub use send::{Origin, Outcome, Sender};

/// Maximum bytes of a document in the input. It exceeds the limit of stored documents, so that a document above that
/// limit can be refused while its neighbours are imported.
const INPUT_BYTES_MAX: usize = 64 << 20;

/// Why reading stopped early.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A line of the input is malformed.
    #[error("line {line}: {problem}")]
    Line {
        /// Line number, from 1.
        line: u64,
        problem: String,
    },
    /// A line of the input is malformed at a known byte.
    #[error("line {line}, column {column}: {problem}")]
    Column {
        /// Line number, from 1.
        line: u64,
        /// Column number, from 1.
        column: u64,
        problem: String,
    },
    /// A document of the input is malformed, in a format without lines.
    #[error("document {number}: {problem}")]
    Document {
        /// Number of the document, from 1.
        number: u64,
        problem: String,
    },
    /// The input cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The callback that receives the documents returned false, to stop.
    #[error("stopped")]
    Stopped,
}

/// Where a document begins in the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// Line number, from 1.
    Line(u64),
    /// Number of the document, from 1.
    Document(u64),
}

impl fmt::Display for Position {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Position::Line(line) => write!(formatter, "line {line}"),
            Position::Document(number) => write!(formatter, "document {number}"),
        }
    }
}

/// A callback that receives documents. Returns false to stop.
pub type Emit<'a> = dyn FnMut(Position, RawDocumentBuf) -> bool + 'a;

/// Checks that a name, from a flag or a CSV column, can be the name of a field in documents.
///
/// # Errors
/// If queries could not address the field.
pub fn check_field_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.contains(['.', '\0']) || name.starts_with('$') {
        return Err(format!("the name {name:?} cannot be a field name"));
    }
    Ok(())
}

/// Options of the readers of JSON and CSV.
#[derive(Debug, Clone, Default)]
pub struct Shape {
    /// If set, a string in JSON becomes a document with only this field.
    pub field: Option<String>,
    /// Column delimiter of CSV.
    pub delimiter: Option<u8>,
    /// Whether all values of CSV are read as strings.
    pub as_text: bool,
}

/// Reads all documents of `input`. Returns the CSV columns of mixed types, in which some values became strings and
/// other values became numbers or booleans.
///
/// # Errors
/// At the first malformed document. The documents before it have been emitted.
pub fn read(
    input: &mut dyn BufRead,
    format: Format,
    shape: &Shape,
    emit: &mut Emit<'_>,
) -> Result<Vec<String>, ReadError> {
    match format {
        Format::Json => json::read_array(input, shape, emit)?,
        Format::JsonLines => json::read_lines(input, shape, emit)?,
        Format::Csv => return csv::read(input, shape, emit),
        Format::Bson => bson_dump::read(input, emit)?,
    }
    Ok(Vec::new())
}

/// Reads one line of at most `max` bytes, without its line end. Returns `None` at the end of the input.
fn read_line(input: &mut dyn BufRead, line: u64, max: usize) -> Result<Option<Vec<u8>>, ReadError> {
    let mut bytes = Vec::new();
    let limit = max as u64 + 1;
    let count = io::Read::take(&mut *input, limit).read_until(b'\n', &mut bytes)?;
    match count {
        0 => return Ok(None),
        count if count > max => {
            return Err(ReadError::Line {
                line,
                problem: format!("longer than {max} bytes"),
            });
        }
        _ => {}
    }
    while bytes
        .last()
        .is_some_and(|byte| matches!(byte, b'\n' | b'\r'))
    {
        bytes.pop();
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `text` and returns the documents as relaxed extended JSON.
    pub(super) fn documents(
        text: &[u8],
        format: Format,
        shape: &Shape,
    ) -> Result<Vec<String>, ReadError> {
        let mut all = Vec::new();
        read(&mut &text[..], format, shape, &mut |_, document| {
            let document = bson::Document::try_from(document).expect("readers emit valid BSON");
            all.push(
                bson::Bson::Document(document)
                    .into_relaxed_extjson()
                    .to_string(),
            );
            true
        })?;
        Ok(all)
    }

    #[test]
    fn documents_come_with_their_positions() {
        let positions = |text: &[u8], format| {
            let mut all = Vec::new();
            let read = read(
                &mut &text[..],
                format,
                &Shape::default(),
                &mut |position, _| {
                    all.push(position.to_string());
                    true
                },
            );
            read.expect("valid");
            all.join(", ")
        };
        assert_eq!(positions(b"{}\n\n{}", Format::JsonLines), "line 1, line 3");
        let spread = b"{}\n{\n}\n{\n}\n";
        assert_eq!(
            positions(spread, Format::JsonLines),
            "line 1, document 2, document 3"
        );
        assert_eq!(
            positions(b"[{}, {}]", Format::Json),
            "document 1, document 2"
        );
        assert_eq!(positions(b"a\n\"1\n\"\n2\n", Format::Csv), "line 2, line 4");
        let dump = b"\x05\0\0\0\0\x05\0\0\0\0";
        assert_eq!(positions(dump, Format::Bson), "document 1, document 2");
    }

    #[test]
    fn reading_stops_when_nobody_listens() {
        let mut count = 0;
        let ended = read(
            &mut &b"{}\n{}\n{}\n"[..],
            Format::JsonLines,
            &Shape::default(),
            &mut |_, _| {
                count += 1;
                count < 2
            },
        );
        assert!(matches!(ended, Err(ReadError::Stopped)));
        assert_eq!(count, 2);
    }
}
