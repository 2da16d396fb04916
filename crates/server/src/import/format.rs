//! Detects the format of a file.

use std::io::{self, BufRead};
use std::path::Path;

use clap::ValueEnum;

/// The formats of `forebay import`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One JSON array of documents.
    Json,
    /// One JSON document per line, or pretty-printed documents.
    #[value(alias = "jsonl", alias = "ndjson")]
    JsonLines,
    /// Comma-separated values after a line of column names.
    Csv,
    /// Concatenated BSON documents, as mongodump writes them.
    Bson,
}

/// Why a format cannot be detected.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// Neither the file's name nor its first byte identifies the format.
    #[error("cannot detect the format: give --format json, json-lines, csv or bson")]
    Unknown,
    /// The input cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Format {
    /// Detects the format from the file's name, or else from its first bytes, which are not consumed.
    ///
    /// # Errors
    /// If neither identifies the format.
    pub fn detect(path: Option<&Path>, input: &mut dyn BufRead) -> Result<Format, FormatError> {
        match path
            .and_then(Path::extension)
            .and_then(|extension| extension.to_str())
        {
            Some("csv" | "tsv") => Ok(Format::Csv),
            Some("bson") => Ok(Format::Bson),
            Some("jsonl" | "ndjson") => Ok(Format::JsonLines),
            _ => by_content(input.fill_buf()?),
        }
    }
}

fn by_content(start: &[u8]) -> Result<Format, FormatError> {
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    match text.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None => Ok(Format::JsonLines),
        Some(b'[') => Ok(Format::Json),
        Some(b'{' | b'"') => Ok(Format::JsonLines),
        Some(_) => Err(FormatError::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(name: &str, content: &str) -> Option<Format> {
        Format::detect(Some(Path::new(name)), &mut content.as_bytes()).ok()
    }

    #[test]
    fn names_win_over_content() {
        assert_eq!(detect("a.csv", "{}"), Some(Format::Csv));
        assert_eq!(detect("a.bson", ""), Some(Format::Bson));
        assert_eq!(detect("a.json", "  [1]"), Some(Format::Json));
        assert_eq!(detect("a.json", "{}\n{}"), Some(Format::JsonLines));
        assert_eq!(detect("a.txt", "hello"), None);
    }
}
