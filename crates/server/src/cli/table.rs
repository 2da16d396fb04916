//! Formats documents as a plain-text table.

use std::fmt::Write;

use bson::{Bson, Document};

use crate::logging::one_line;

/// Returns the table. Each of the `columns` is a heading and a field.
pub fn of(columns: &[(&str, &str)], rows: &[Document]) -> String {
    let head: Vec<String> = columns
        .iter()
        .map(|(heading, _)| (*heading).to_owned())
        .collect();
    let cells = |row: &Document| {
        columns
            .iter()
            .map(|(_, field)| row.get(field).map(plain).unwrap_or_default())
            .map(|text| one_line(&text).into_owned())
            .collect()
    };
    let lines: Vec<Vec<String>> = std::iter::once(head)
        .chain(rows.iter().map(cells))
        .collect();
    let width = |column: usize| {
        lines
            .iter()
            .map(|line| line[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let padded: Vec<String> = line
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        let _ = writeln!(text, "{}", padded.join("  ").trim_end());
    }
    text
}

/// Formats a value as plain text: strings without quotes, binary data as hexadecimal digits.
pub fn plain(value: &Bson) -> String {
    match value {
        Bson::String(text) => text.clone(),
        Bson::Binary(binary) => binary
            .bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn columns_line_up() {
        let rows = [doc! { "id": 1, "name": "host:0" }, doc! { "id": 22_i64 }];
        let table = of(&[("id", "id"), ("name", "name")], &rows);
        assert_eq!(table, "id  name\n1   host:0\n22\n");
    }
}
