//! A result as CSV (RFC 4180), with a header. Differs from Arrow's writer in that it writes lists and structs too, and
//! that empty strings are quoted, so that they differ from nulls.

use datafusion::arrow::array::{Array, RecordBatch};
use datafusion::arrow::datatypes::Schema;
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};

/// Returns the line of names.
pub fn header(schema: &Schema) -> String {
    let mut text = String::new();
    for (index, field) in schema.fields().iter().enumerate() {
        separate(&mut text, index);
        push(&mut text, field.name());
    }
    text.push('\n');
    text
}

/// Returns the lines of a batch.
///
/// # Errors
/// If a value has no text, such as a date that is too large.
pub fn lines(batch: &RecordBatch) -> Result<String, ArrowError> {
    let options = FormatOptions::new();
    let columns = batch.columns().iter();
    let columns = columns.map(|column| {
        let formatter = ArrayFormatter::try_new(column, &options)?;
        Ok((formatter, column.logical_nulls()))
    });
    let columns: Vec<_> = columns.collect::<Result<_, ArrowError>>()?;
    let (mut text, mut cell) = (String::new(), String::new());
    for row in 0..batch.num_rows() {
        for (index, (formatter, nulls)) in columns.iter().enumerate() {
            separate(&mut text, index);
            if nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row)) {
                cell.clear();
                formatter.value(row).write(&mut cell)?;
                push(&mut text, &cell);
            } else if columns.len() == 1 {
                // Readers skip empty lines.
                text.push_str("\"\"");
            }
        }
        text.push('\n');
    }
    Ok(text)
}

fn separate(text: &mut String, index: usize) {
    if index > 0 {
        text.push(',');
    }
}

/// Adds a cell, in quotes if it needs them.
fn push(text: &mut String, cell: &str) {
    if !cell.is_empty() && !cell.contains(['"', ',', '\n', '\r']) {
        text.push_str(cell);
        return;
    }
    text.push('"');
    text.push_str(&cell.replace('"', "\"\""));
    text.push('"');
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{ArrayRef, Int64Array, StringArray};

    use super::*;

    #[test]
    fn cells_are_quoted_if_they_need_it() {
        let names = [Some("a,b"), Some("say \"x\"\n"), Some(""), None, Some("é")];
        let ids = [Some(1), None, Some(3), Some(4), Some(5)];
        let columns: [(&str, ArrayRef); 2] = [
            ("id", Arc::new(Int64Array::from(ids.to_vec()))),
            ("the, name", Arc::new(StringArray::from(names.to_vec()))),
        ];
        let batch = RecordBatch::try_from_iter(columns).expect("a batch");
        assert_eq!(header(&batch.schema()), "id,\"the, name\"\n");
        assert_eq!(
            lines(&batch).expect("text"),
            "1,\"a,b\"\n,\"say \"\"x\"\"\n\"\n3,\"\"\n4,\n5,é\n"
        );
    }

    #[test]
    fn a_row_of_one_null_is_no_empty_line() {
        let column: ArrayRef = Arc::new(StringArray::from(vec![None::<&str>]));
        let batch = RecordBatch::try_from_iter_with_nullable([("a", column, true)]);
        assert_eq!(lines(&batch.expect("a batch")).expect("text"), "\"\"\n");
    }
}
