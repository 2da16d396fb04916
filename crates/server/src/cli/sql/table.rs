//! A result as a table of aligned columns. Keeps the rows that it shows, or the first rows, from which the widths of
//! the columns are taken.

use std::collections::VecDeque;
use std::io::{self, Write};

use console::style;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::arrow::error::ArrowError;

use super::cells::{Cell, Row, cell_of_text, rows};
use super::columns::{Shown, fit};
use super::failure::Failure;

/// Number of rows from which the widths of columns are taken, if all rows are shown.
const SAMPLE_ROWS: usize = 1_000;
/// Bytes of cells after which the widths are taken from fewer rows.
const SAMPLE_BYTES: usize = 4 << 20;
/// Text in place of what is left out.
const LEFT_OUT: &str = "…";

/// What a table may take of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Columns of the terminal; `None` if cells are never cut.
    pub width: Option<usize>,
    /// Maximum number of rows; `None` for all.
    pub rows_max: Option<usize>,
    /// Whether an empty line comes before the table.
    pub is_apart: bool,
}

/// A table that is being written.
pub struct Table {
    layout: Layout,
    names: Row,
    /// Whether the cells of a column are numbers, which are aligned at their right.
    numbers: Vec<bool>,
    /// The first rows, while they are kept.
    first: Vec<Row>,
    first_bytes: usize,
    /// The last rows, if not all rows are shown.
    last: VecDeque<Row>,
    /// Number of rows so far.
    count: u64,
    /// The columns, since the first row was written.
    columns: Option<Vec<Shown>>,
}

/// What a table left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Number of rows that are shown, if some are not.
    pub rows_shown: Option<u64>,
    /// Number of columns, and the number that is shown, if some are not.
    pub columns: Option<(usize, usize)>,
}

impl Table {
    /// Returns a table without rows.
    pub fn new(schema: &Schema, layout: Layout) -> Table {
        let fields = schema.fields();
        Table {
            layout: match is_plan(schema) {
                // A terminal wraps the long lines of a plan, which would be of no use when cut.
                true => Layout {
                    width: None,
                    rows_max: None,
                    ..layout
                },
                false => layout,
            },
            names: fields
                .iter()
                .map(|field| cell_of_text(field.name()))
                .collect(),
            numbers: fields
                .iter()
                .map(|field| is_number(field.data_type()))
                .collect(),
            first: Vec::new(),
            first_bytes: 0,
            last: VecDeque::new(),
            count: 0,
            columns: None,
        }
    }

    /// Returns whether rows are written before the last one is known.
    pub fn is_streamed(&self) -> bool {
        self.layout.rows_max.is_none()
    }

    /// Adds rows, and writes them if all rows are shown.
    ///
    /// # Errors
    /// If a value has no text, or the output cannot be written.
    pub fn push(&mut self, batch: &RecordBatch, out: &mut impl Write) -> Result<(), Failure> {
        self.count += batch.num_rows() as u64;
        match self.layout.rows_max {
            Some(max) => Ok(self.keep(batch, max)?),
            None => self.stream(batch, out),
        }
    }

    /// Keeps the first rows and the last rows.
    fn keep(&mut self, batch: &RecordBatch, max: usize) -> Result<(), ArrowError> {
        let first_max = max.div_ceil(2);
        let first = (first_max - self.first.len()).min(batch.num_rows());
        let last = (max - first_max).min(batch.num_rows() - first);
        let is_cut = self.layout.width.is_some();
        self.first.extend(rows(batch, 0..first, is_cut)?);
        let end = batch.num_rows();
        self.last.extend(rows(batch, end - last..end, is_cut)?);
        let surplus = self.last.len().saturating_sub(max - first_max);
        self.last.drain(..surplus);
        Ok(())
    }

    fn stream(&mut self, batch: &RecordBatch, out: &mut impl Write) -> Result<(), Failure> {
        let is_cut = self.layout.width.is_some();
        // Not more rows at a time than the widths are taken from, so that their cells need little memory.
        for start in (0..batch.num_rows()).step_by(SAMPLE_ROWS) {
            let end = (start + SAMPLE_ROWS).min(batch.num_rows());
            let rows = rows(batch, start..end, is_cut)?;
            match &self.columns {
                Some(columns) => write_rows(out, columns, &rows, self.layout)?,
                None => {
                    self.first_bytes += rows.iter().flatten().map(Cell::bytes).sum::<usize>();
                    self.first.extend(rows);
                    if self.first.len() >= SAMPLE_ROWS || self.first_bytes >= SAMPLE_BYTES {
                        self.begin(out)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Determines the columns, and writes the rows that were kept.
    fn begin(&mut self, out: &mut impl Write) -> Result<(), Failure> {
        let all = || self.first.iter().chain(&self.last);
        let width = |column: usize| {
            let cells = all().map(|row| row[column].width());
            cells.max().unwrap_or(0).max(self.names[column].width())
        };
        let widths: Vec<usize> = (0..self.names.len()).map(width).collect();
        let columns = fit(&widths, &self.numbers, self.layout.width);
        if self.layout.is_apart {
            write_line(out, "")?;
        }
        write_head(out, &columns, &self.names, self.layout)?;
        write_rows(out, &columns, &self.first, self.layout)?;
        self.columns = Some(columns);
        self.first.clear();
        Ok(())
    }

    /// Writes what is not written yet. Returns what the table left out.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn finish(mut self, out: &mut impl Write) -> Result<LeftOut, Failure> {
        let shown = (self.first.len() + self.last.len()) as u64;
        if self.names.is_empty() {
            return Ok(LeftOut::default());
        }
        if self.columns.is_none() {
            self.begin(out)?;
        }
        let columns = self.columns.unwrap_or_default();
        let is_short = self.layout.rows_max.is_some_and(|_| shown != self.count);
        if is_short {
            let row = vec![cell_of_text(LEFT_OUT); self.names.len()];
            write_rows(out, &columns, &[row], self.layout)?;
        }
        write_rows(out, &columns, self.last.make_contiguous(), self.layout)?;
        let has_gap = columns.iter().any(|column| column.index.is_none());
        let columns_shown = columns.len() - usize::from(has_gap);
        Ok(LeftOut {
            rows_shown: is_short.then_some(shown),
            columns: has_gap.then_some((self.names.len(), columns_shown)),
        })
    }
}

/// Returns whether a result is the output of `EXPLAIN`.
fn is_plan(schema: &Schema) -> bool {
    let names: Vec<&str> = schema
        .fields()
        .iter()
        .map(|field| field.name().as_str())
        .collect();
    names == ["plan_type", "plan"] || names == ["QUERY PLAN"]
}

fn is_number(kind: &DataType) -> bool {
    match kind {
        DataType::Dictionary(_, values) => is_number(values),
        kind => kind.is_numeric(),
    }
}

fn write_head(
    out: &mut impl Write,
    columns: &[Shown],
    names: &Row,
    layout: Layout,
) -> Result<(), Failure> {
    write_rows(out, columns, std::slice::from_ref(names), layout)?;
    let lines: Vec<String> = columns
        .iter()
        .map(|column| "-".repeat(column.width + 2))
        .collect();
    write_line(out, &lines.join("+"))
}

fn write_rows(
    out: &mut impl Write,
    columns: &[Shown],
    rows: &[Row],
    layout: Layout,
) -> Result<(), Failure> {
    let gap = cell_of_text(LEFT_OUT);
    for row in rows {
        let cells: Vec<(&Cell, &Shown)> = columns
            .iter()
            .map(|column| (column.index.map_or(&gap, |index| &row[index]), column))
            .collect();
        let height = cells.iter().map(|(cell, _)| cell.lines.len()).max();
        for line in 0..height.unwrap_or(0) {
            let parts = cells
                .iter()
                .map(|(cell, column)| part(cell, line, column, layout));
            let text = parts.collect::<Vec<_>>().join("|");
            write_line(out, text.trim_end())?;
        }
    }
    Ok(())
}

/// Returns one line of a cell in its column, between spaces. A plus sign follows it if the cell has more lines.
fn part(cell: &Cell, line: usize, column: &Shown, layout: Layout) -> String {
    let text = cell.lines.get(line).map_or("", String::as_str);
    let cut = match layout.width {
        Some(_) => console::truncate_str(text, column.width, LEFT_OUT),
        None => text.into(),
    };
    let taken = console::measure_text_width(&cut);
    // A width in a format has a limit.
    let padding = " ".repeat(column.width.saturating_sub(taken));
    let more = if line + 1 < cell.lines.len() {
        '+'
    } else {
        ' '
    };
    let cut = match cell.is_null && layout.width.is_some() {
        true => style(cut).dim().to_string(),
        false => cut.into_owned(),
    };
    match column.is_number {
        true => format!(" {padding}{cut}{more}"),
        false => format!(" {cut}{padding}{more}"),
    }
}

fn write_line(out: &mut impl Write, line: &str) -> Result<(), Failure> {
    let written = out
        .write_all(line.as_bytes())
        .and_then(|()| out.write_all(b"\n"));
    written.map_err(|error: io::Error| Failure::Output(error.into()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{Int64Array, StringArray};
    use datafusion::arrow::datatypes::Field;

    use super::*;

    fn batch(numbers: std::ops::Range<i64>, texts: impl Fn(i64) -> Option<String>) -> RecordBatch {
        let schema = Schema::new(vec![
            Field::new("id", DataType::Int64, true),
            Field::new("name", DataType::Utf8, true),
        ]);
        let names: StringArray = numbers.clone().map(texts).collect();
        let ids = Int64Array::from_iter_values(numbers);
        RecordBatch::try_new(Arc::new(schema), vec![Arc::new(ids), Arc::new(names)])
            .expect("a batch")
    }

    fn table(batches: &[RecordBatch], layout: Layout) -> (String, LeftOut) {
        let mut out = Vec::new();
        let mut table = Table::new(&batches[0].schema(), layout);
        for batch in batches {
            table.push(batch, &mut out).expect("written");
        }
        let left_out = table.finish(&mut out).expect("written");
        (String::from_utf8(out).expect("UTF-8"), left_out)
    }

    const ALL: Layout = Layout {
        width: None,
        rows_max: None,
        is_apart: false,
    };

    #[test]
    fn columns_line_up() {
        let texts = |id| (id != 9).then(|| format!("日本\t{id}"));
        let (text, left_out) = table(&[batch(8..11, texts)], ALL);
        assert_eq!(
            text,
            " id | name\n----+----------\n  8 | 日本\\t8\n  9 | NULL\n 10 | 日本\\t10\n"
        );
        assert_eq!(left_out, LeftOut::default());
    }

    #[test]
    fn lines_of_a_cell_stay_in_their_column() {
        let (text, _) = table(&[batch(1..2, |_| Some("a\nbc".to_owned()))], ALL);
        assert_eq!(text, " id | name\n----+------\n  1 | a   +\n    | bc\n");
    }

    #[test]
    fn the_first_and_the_last_rows_are_shown() {
        let layout = Layout {
            width: Some(20),
            rows_max: Some(5),
            ..ALL
        };
        let name = |id: i64| Some(id.to_string());
        let batches = [batch(0..2, name), batch(2..7, name), batch(7..8, name)];
        let (text, left_out) = table(&batches, layout);
        let ids: Vec<&str> = text
            .lines()
            .skip(2)
            .map(|line| line.split('|').next().unwrap_or_default().trim())
            .collect();
        assert_eq!(ids, ["0", "1", "2", "…", "6", "7"]);
        assert_eq!(left_out.rows_shown, Some(5));
        let (text, left_out) = table(&[batch(0..5, name)], layout);
        assert_eq!((text.lines().count(), left_out.rows_shown), (7, None));
    }

    #[test]
    fn no_rows_are_a_header() {
        let (text, _) = table(&[batch(0..0, |_| None)], ALL);
        assert_eq!(text, " id | name\n----+------\n");
    }

    #[test]
    fn all_rows_of_a_long_result_are_written() {
        let name = |id: i64| Some("x".repeat(if id > 2_500 { 30 } else { 3 }));
        let batches = [batch(0..1_500, name), batch(1_500..3_000, name)];
        let (text, _) = table(&batches, ALL);
        assert_eq!(text.lines().count(), 3_002);
        assert!(text.lines().last().is_some_and(|line| line.len() > 30));
    }

    #[test]
    fn wide_cells_are_cut_at_a_terminal() {
        let layout = Layout {
            width: Some(20),
            ..ALL
        };
        let (text, _) = table(&[batch(0..3, |_| Some("日本".repeat(50)))], layout);
        assert!(text.contains('…'), "{text}");
        for line in text.lines() {
            assert!(console::measure_text_width(line) <= 20, "{line}");
        }
    }
}
