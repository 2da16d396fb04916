//! Writes results to standard output.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::time::Duration;

use clap::ValueEnum;
use console::Term;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::Schema;
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::json::WriterBuilder;
use datafusion::arrow::json::writer::LineDelimited;
use forebay_terminal::{OutputError, note};

use super::csv;
use super::failure::Failure;
use super::table::{Layout, LeftOut, Table};
use crate::logging::one_line;

/// Number of rows shown at a terminal, unless the user sets another.
const ROWS_MAX: usize = 40;
/// Columns that a terminal is taken to have at least.
const WIDTH_MIN: usize = 20;
/// Bytes that are written at once.
const BUFFER_BYTES: usize = 64 << 10;

/// A format of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Aligned columns.
    Table,
    /// One JSON object a row.
    Json,
    /// Comma-separated values with a header.
    Csv,
}

/// Standard output, and how results are written to it.
pub struct Output {
    out: BufWriter<Stdout>,
    /// Whether a person reads the output.
    pub is_terminal: bool,
    /// The format of the next result.
    pub format: Format,
    /// Maximum number of rows in a table, as the user set it; 0 for all.
    pub rows_max: Option<usize>,
    /// Whether the time of each statement is shown.
    pub shows_time: bool,
    /// Number of results so far.
    count: u64,
}

/// A result that is being written.
pub enum Writing {
    /// A table.
    Table(Box<Table>),
    /// JSON lines.
    Json,
    /// CSV.
    Csv,
}

impl Output {
    /// Returns standard output.
    pub fn new(format: Format, rows_max: Option<usize>) -> Output {
        Output {
            out: BufWriter::with_capacity(BUFFER_BYTES, io::stdout()),
            is_terminal: io::stdout().is_terminal(),
            format,
            rows_max,
            shows_time: true,
            count: 0,
        }
    }

    /// Begins a result.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn begin(&mut self, schema: &Schema) -> Result<Writing, Failure> {
        self.count += 1;
        Ok(match self.format {
            Format::Table => Writing::Table(Box::new(Table::new(schema, self.layout()))),
            Format::Json => Writing::Json,
            Format::Csv => {
                self.write_text(&csv::header(schema))?;
                Writing::Csv
            }
        })
    }

    fn layout(&self) -> Layout {
        let rows_max = match self.is_terminal {
            true => self.rows_max.or(Some(ROWS_MAX)),
            false => self.rows_max,
        };
        Layout {
            width: self
                .is_terminal
                .then(|| usize::from(Term::stdout().size().1).max(WIDTH_MIN)),
            rows_max: rows_max.filter(|max| *max > 0),
            // At a terminal, the line about the result before separates the two.
            is_apart: self.count > 1 && !self.is_terminal,
        }
    }

    /// Returns whether the next rows are written to a terminal at once.
    pub fn draws_at_once(&self, writing: &Writing) -> bool {
        let is_streamed = match writing {
            Writing::Table(table) => table.is_streamed(),
            Writing::Json | Writing::Csv => true,
        };
        self.is_terminal && is_streamed
    }

    /// Writes rows, or keeps them until the end of the result.
    ///
    /// # Errors
    /// If a value has no text, or standard output cannot be written.
    pub fn push(&mut self, writing: &mut Writing, batch: &RecordBatch) -> Result<(), Failure> {
        match writing {
            Writing::Table(table) => table.push(batch, &mut self.out),
            Writing::Csv => self.write_text(&csv::lines(batch)?),
            Writing::Json => self.write_json(json(batch)?),
        }
    }

    /// Ends a result. Returns what it left out.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn finish(&mut self, writing: Writing) -> Result<LeftOut, Failure> {
        let left_out = match writing {
            Writing::Table(table) => table.finish(&mut self.out)?,
            Writing::Json | Writing::Csv => LeftOut::default(),
        };
        self.flush()?;
        Ok(left_out)
    }

    /// Writes what is still in memory.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn flush(&mut self) -> Result<(), Failure> {
        Ok(self.out.flush().map_err(OutputError::from)?)
    }

    /// Tells a person how a statement ended.
    pub fn tell(&self, ended: &str, elapsed: Duration) {
        if !self.is_terminal {
            return;
        }
        let ended = one_line(ended);
        match self.shows_time {
            true => note(format_args!("({ended}; {:.3} s)", elapsed.as_secs_f64())),
            false => note(format_args!("({ended})")),
        }
    }

    /// Writes text of several lines. A terminal gets no control characters of it.
    fn write_text(&mut self, text: &str) -> Result<(), Failure> {
        if !self.is_terminal {
            return self.write(text);
        }
        let lines: Vec<_> = text.split('\n').map(one_line).collect();
        self.write(&lines.join("\n"))
    }

    fn write_json(&mut self, text: Vec<u8>) -> Result<(), Failure> {
        if !self.is_terminal {
            return Ok(self.out.write_all(&text).map_err(OutputError::from)?);
        }
        self.write(&escaped_json(&String::from_utf8_lossy(&text)))
    }

    fn write(&mut self, text: &str) -> Result<(), Failure> {
        let written = self.out.write_all(text.as_bytes());
        Ok(written.map_err(OutputError::from)?)
    }
}

/// Describes a result that was written.
pub fn summary(rows: u64, left_out: LeftOut) -> String {
    let mut text = match rows {
        1 => "1 row".to_owned(),
        rows => format!("{rows} rows"),
    };
    if let Some(shown) = left_out.rows_shown {
        text.push_str(&format!(", {shown} shown"));
    }
    if let Some((count, shown)) = left_out.columns {
        text.push_str(&format!("; {count} columns, {shown} shown"));
    }
    text
}

/// Returns one JSON object a row.
fn json(batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
    let builder = WriterBuilder::new().with_explicit_nulls(true);
    let mut writer = builder.build::<_, LineDelimited>(Vec::new());
    writer.write(batch)?;
    writer.finish()?;
    Ok(writer.into_inner())
}

/// Escapes the characters in strings of JSON that control a terminal. JSON itself allows some of them.
fn escaped_json(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        let mut bytes = [0; 4];
        let letter_text: &str = letter.encode_utf8(&mut bytes);
        match letter {
            '\n' => escaped.push('\n'),
            _ if one_line(letter_text) == letter_text => escaped.push(letter),
            _ => escaped.push_str(&format!("\\u{:04x}", u32::from(letter))),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{ArrayRef, StringArray};

    use super::*;

    #[test]
    fn rows_become_lines_of_json() {
        let names: ArrayRef = Arc::new(StringArray::from(vec![Some("a\"\n"), None]));
        let batch = RecordBatch::try_from_iter_with_nullable([("name", names, true)]);
        let text = json(&batch.expect("a batch")).expect("JSON");
        assert_eq!(
            String::from_utf8_lossy(&text),
            "{\"name\":\"a\\\"\\n\"}\n{\"name\":null}\n"
        );
    }

    #[test]
    fn json_at_a_terminal_stays_json() {
        let escaped = escaped_json("{\"a\":\"\u{9b}1m\u{202e}é\"}\n");
        assert_eq!(escaped, "{\"a\":\"\\u009b1m\\u202eé\"}\n");
    }

    #[test]
    fn a_summary_tells_what_is_left_out() {
        assert_eq!(summary(1, LeftOut::default()), "1 row");
        let left_out = LeftOut {
            rows_shown: Some(40),
            columns: Some((90, 7)),
        };
        assert_eq!(
            summary(1_000, left_out),
            "1000 rows, 40 shown; 90 columns, 7 shown"
        );
    }
}
