//! The cells of a table as text.

use std::fmt::{self, Write};
use std::ops::Range;

use console::measure_text_width;
use datafusion::arrow::array::{Array, RecordBatch};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::util::display::{ArrayFormatter, DurationFormat, FormatOptions};

use crate::logging::one_line;

/// Text of a null.
const NULL: &str = "NULL";
/// Maximum bytes of a cell that will be cut to the width of a terminal.
const CUT_BYTES_MAX: usize = 16 << 10;
/// Maximum lines of such a cell.
const CUT_LINES_MAX: usize = 100;

/// The cells of a row.
pub type Row = Vec<Cell>;

/// A value as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// The lines of the text, at least one. What controls a terminal is escaped.
    pub lines: Vec<String>,
    /// Whether the value is null.
    pub is_null: bool,
}

impl Cell {
    /// Returns the columns of a terminal that the longest line takes.
    pub fn width(&self) -> usize {
        let widths = self.lines.iter().map(|line| measure_text_width(line));
        widths.max().unwrap_or(0)
    }

    /// Returns the bytes of the text.
    pub fn bytes(&self) -> usize {
        self.lines.iter().map(String::len).sum()
    }
}

/// Returns a cell of one line.
pub fn cell_of_text(text: &str) -> Cell {
    Cell {
        lines: vec![one_line(text).into_owned()],
        is_null: false,
    }
}

/// Returns rows of a batch as text. If `is_cut`, only the beginning of long values.
///
/// # Errors
/// If a value cannot be written as text.
pub fn rows(
    batch: &RecordBatch,
    range: Range<usize>,
    is_cut: bool,
) -> Result<Vec<Row>, ArrowError> {
    let options = options();
    let mut rows: Vec<Row> = range.clone().map(|_| Row::new()).collect();
    for column in batch.columns() {
        let formatter = ArrayFormatter::try_new(column, &options)?;
        let nulls = column.logical_nulls();
        for (row, index) in rows.iter_mut().zip(range.clone()) {
            let is_null = nulls.as_ref().is_some_and(|nulls| nulls.is_null(index));
            row.push(match is_null {
                true => Cell {
                    is_null,
                    ..cell_of_text(NULL)
                },
                false => cell(&formatter, index, is_cut)?,
            });
        }
    }
    Ok(rows)
}

/// Returns how values are written: times as PostgreSQL writes them.
fn options() -> FormatOptions<'static> {
    FormatOptions::new()
        .with_display_error(true)
        .with_null(NULL)
        .with_datetime_format(Some("%Y-%m-%d %H:%M:%S%.f"))
        .with_timestamp_format(Some("%Y-%m-%d %H:%M:%S%.f"))
        .with_timestamp_tz_format(Some("%Y-%m-%d %H:%M:%S%.f%:z"))
        .with_duration_format(DurationFormat::Pretty)
}

fn cell(formatter: &ArrayFormatter<'_>, index: usize, is_cut: bool) -> Result<Cell, ArrowError> {
    let (bytes_max, lines_max) = match is_cut {
        true => (CUT_BYTES_MAX, CUT_LINES_MAX),
        false => (usize::MAX, usize::MAX),
    };
    let mut text = Beginning {
        text: String::new(),
        bytes_max,
    };
    write!(text, "{}", formatter.value(index))
        .map_err(|error| ArrowError::CastError(error.to_string()))?;
    let text = text.text.replace("\r\n", "\n");
    let lines = text
        .trim_end_matches('\n')
        .split('\n')
        .take(lines_max)
        .map(one_line);
    Ok(Cell {
        lines: lines.map(Into::into).collect(),
        is_null: false,
    })
}

/// Keeps the beginning of what is written.
struct Beginning {
    text: String,
    bytes_max: usize,
}

impl Write for Beginning {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes_max.saturating_sub(self.text.len());
        let mut end = text.len().min(room);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.text.push_str(&text[..end]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_ends_between_characters() {
        let mut beginning = Beginning {
            text: String::new(),
            bytes_max: 4,
        };
        for part in ["aé", "é", "b"] {
            beginning.write_str(part).expect("never fails");
        }
        assert!(beginning.text.starts_with("aé"), "{}", beginning.text);
        assert!(beginning.text.len() <= 4);
    }
}
