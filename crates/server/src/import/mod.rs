//! Readers for the formats that `forebay import` accepts.

mod bson_dump;
mod csv;
mod format;
mod json;
mod send;

use std::io::{self, BufRead};

use bson::RawDocumentBuf;

pub use format::Format;
pub use send::{Outcome, Sender};

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
    /// The receiver of the documents stopped.
    #[error("stopped")]
    Stopped,
}

/// A callback that receives documents. Returns false to stop.
pub type Emit<'a> = dyn FnMut(RawDocumentBuf) -> bool + 'a;

/// Options of the readers of JSON and CSV.
#[derive(Debug, Clone, Default)]
pub struct Shape {
    /// If set, a string in JSON becomes a document with only this field.
    pub field: Option<String>,
    /// Column delimiter of CSV.
    pub delimiter: Option<u8>,
    /// Read all values of CSV as strings.
    pub as_text: bool,
}

/// Reads all documents of `input`. Returns the columns of CSV in which some values became strings, and others numbers
/// or booleans.
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
        read(&mut &text[..], format, shape, &mut |document| {
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
    fn reading_stops_when_nobody_listens() {
        let mut count = 0;
        let ended = read(
            &mut &b"{}\n{}\n{}\n"[..],
            Format::JsonLines,
            &Shape::default(),
            &mut |_| {
                count += 1;
                count < 2
            },
        );
        assert!(matches!(ended, Err(ReadError::Stopped)));
        assert_eq!(count, 2);
    }
}
