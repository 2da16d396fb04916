//! The rows of `COPY ... TO STDOUT`.
//!
//! # Sources
//! `copyto.c` of PostgreSQL 15.

use bytes::{BufMut, BytesMut};
use datafusion::arrow::datatypes::Schema;
use forebay_tables::{Code, CopyFormat, CopyOptions, QuotedColumns, SqlError};
use pgwire::messages::copy::CopyOutResponse;

use crate::encode::binary::length_of;
use crate::encode::{Format, RowEncoder};

/// The first byte of a `CopyData` message.
const COPY_DATA: u8 = b'd';
/// What the binary format begins with: its signature, no flags, and no further header.
const SIGNATURE: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// What the binary format ends with, in place of a number of columns.
const END: i16 = -1;
/// The length of a null value in the binary format.
const NULL_LENGTH: i32 = -1;

/// Writes rows as `CopyData` messages, one a row.
#[derive(Debug)]
pub(crate) struct CopyWriter {
    options: CopyOptions,
    /// For each column, whether CSV quotes all its values.
    is_quoted: Vec<bool>,
    /// Whether the signature is still to be written. PostgreSQL writes it into the first message.
    needs_signature: bool,
    /// The value in progress.
    value: BytesMut,
}

impl CopyWriter {
    /// Returns a writer of rows of these columns.
    ///
    /// # Errors
    /// If the options name a column that there is not.
    pub(crate) fn new(options: CopyOptions, columns: &Schema) -> Result<CopyWriter, SqlError> {
        let count = columns.fields().len();
        let mut is_quoted = vec![options.quoted == QuotedColumns::All; count];
        if let QuotedColumns::Named(names) = &options.quoted {
            for name in names {
                let index = columns.index_of(name).map_err(|_| {
                    let message = format!("FORCE_QUOTE column \"{name}\" is not a column of COPY");
                    SqlError::new(Code::UndefinedColumn, message)
                })?;
                is_quoted[index] = true;
            }
        }
        Ok(CopyWriter {
            needs_signature: options.format == CopyFormat::Binary,
            options,
            is_quoted,
            value: BytesMut::new(),
        })
    }

    /// Returns the format in which values are encoded.
    pub(crate) fn format(&self) -> Format {
        match self.options.format {
            CopyFormat::Text | CopyFormat::Csv => Format::Text,
            CopyFormat::Binary => Format::Binary,
        }
    }

    /// Returns the message that begins the rows.
    pub(crate) fn response(&self) -> CopyOutResponse {
        let code = self.format().code();
        let count = self.is_quoted.len();
        CopyOutResponse::new(
            i8::from(code != 0),
            i16::try_from(count).unwrap_or(i16::MAX),
            vec![code; count],
        )
    }

    /// Appends the names of the columns, if they are wanted.
    pub(crate) fn put_head(
        &mut self,
        columns: &Schema,
        out: &mut BytesMut,
    ) -> Result<(), SqlError> {
        if !self.options.has_header {
            return Ok(());
        }
        message(out, |out| {
            for (index, field) in columns.fields().iter().enumerate() {
                self.value.clear();
                self.value.put_slice(field.name().as_bytes());
                self.put_text(index, true, false, out);
            }
            out.put_u8(b'\n');
            Ok(())
        })
    }

    /// Appends the message of a row.
    ///
    /// # Errors
    /// If PostgreSQL's type cannot hold a value, or the message exceeds 2 GiB. `out` is then as it was.
    pub(crate) fn put_row(
        &mut self,
        rows: &RowEncoder,
        row: usize,
        out: &mut BytesMut,
    ) -> Result<(), SqlError> {
        match self.options.format {
            CopyFormat::Binary => message(out, |out| self.put_binary_row(rows, row, out)),
            CopyFormat::Text | CopyFormat::Csv => message(out, |out| {
                for column in 0..self.is_quoted.len() {
                    self.value.clear();
                    let has_value = rows.encode_cell(row, column, &mut self.value)?;
                    self.put_text(column, has_value, self.is_quoted[column], out);
                }
                out.put_u8(b'\n');
                Ok(())
            }),
        }
    }

    /// Appends what ends the rows.
    pub(crate) fn put_end(&mut self, out: &mut BytesMut) -> Result<(), SqlError> {
        if self.options.format != CopyFormat::Binary {
            return Ok(());
        }
        message(out, |out| {
            self.put_signature(out);
            out.put_i16(END);
            Ok(())
        })
    }

    fn put_signature(&mut self, out: &mut BytesMut) {
        if std::mem::take(&mut self.needs_signature) {
            out.put_slice(SIGNATURE);
        }
    }

    fn put_binary_row(
        &mut self,
        rows: &RowEncoder,
        row: usize,
        out: &mut BytesMut,
    ) -> Result<(), SqlError> {
        self.put_signature(out);
        let count = self.is_quoted.len();
        out.put_i16(i16::try_from(count).unwrap_or(i16::MAX));
        for column in 0..count {
            let start = out.len();
            out.put_i32(NULL_LENGTH);
            if rows.encode_cell(row, column, out)? {
                let length = length_of(out.len() - start - size_of::<i32>())?;
                out[start..start + size_of::<i32>()].copy_from_slice(&length.to_be_bytes());
            }
        }
        Ok(())
    }

    /// Appends the value in progress, or a null, and before it the delimiter if it is not the first of its row.
    fn put_text(&self, column: usize, has_value: bool, is_quoted: bool, out: &mut BytesMut) {
        if column > 0 {
            out.put_u8(self.options.delimiter);
        }
        if !has_value {
            out.put_slice(self.options.null.as_bytes());
        } else if self.options.format == CopyFormat::Text {
            escape(&self.value, self.options.delimiter, out);
        } else if is_quoted || self.needs_quotes() {
            self.quote(out);
        } else {
            out.put_slice(&self.value);
        }
    }

    /// Returns whether a reader of CSV would read the value in progress as another one.
    fn needs_quotes(&self) -> bool {
        let CopyOptions {
            delimiter, quote, ..
        } = self.options;
        // Alone in a line, `\.` ends the rows.
        let is_end = self.is_quoted.len() == 1 && *self.value == b"\\."[..];
        is_end
            || *self.value == *self.options.null.as_bytes()
            || self
                .value
                .iter()
                .any(|byte| [delimiter, quote, b'\n', b'\r'].contains(byte))
    }

    /// Appends the value in progress in quotes.
    fn quote(&self, out: &mut BytesMut) {
        let CopyOptions { quote, escape, .. } = self.options;
        out.put_u8(quote);
        for byte in &self.value {
            if *byte == quote || *byte == escape {
                out.put_u8(escape);
            }
            out.put_u8(*byte);
        }
        out.put_u8(quote);
    }
}

/// Appends a `CopyData` message of what `write` appends. `out` is as it was if that fails.
fn message(
    out: &mut BytesMut,
    write: impl FnOnce(&mut BytesMut) -> Result<(), SqlError>,
) -> Result<(), SqlError> {
    let start = out.len();
    out.put_u8(COPY_DATA);
    out.put_i32(0);
    let written = write(out).and_then(|()| length_of(out.len() - start - 1));
    match written {
        Ok(length) => {
            out[start + 1..start + 1 + size_of::<i32>()].copy_from_slice(&length.to_be_bytes());
            Ok(())
        }
        Err(error) => {
            out.truncate(start);
            Err(error)
        }
    }
}

/// Appends a value of the text format.
fn escape(value: &[u8], delimiter: u8, out: &mut BytesMut) {
    let is_special = |byte: u8| byte < b' ' || byte == b'\\' || byte == delimiter;
    let mut rest = value;
    while let Some(index) = rest.iter().position(|byte| is_special(*byte)) {
        out.put_slice(&rest[..index]);
        let letter = match rest[index] {
            8 => Some(b'b'),
            b'\t' => Some(b't'),
            b'\n' => Some(b'n'),
            11 => Some(b'v'),
            12 => Some(b'f'),
            b'\r' => Some(b'r'),
            byte if byte == b'\\' || byte == delimiter => Some(byte),
            _ => None,
        };
        match letter {
            Some(letter) => out.put_slice(&[b'\\', letter]),
            None => out.put_u8(rest[index]),
        }
        rest = &rest[index + 1..];
    }
    out.put_slice(rest);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{ArrayRef, Int32Array, RecordBatch, StringArray};

    use super::*;
    use crate::encode::TextSettings;

    fn options(format: CopyFormat) -> CopyOptions {
        let is_csv = format == CopyFormat::Csv;
        CopyOptions {
            format,
            has_header: false,
            delimiter: if is_csv { b',' } else { b'\t' },
            null: if is_csv { "" } else { "\\N" }.to_owned(),
            quote: b'"',
            escape: b'"',
            quoted: QuotedColumns::Named(Vec::new()),
        }
    }

    /// Returns the contents of the messages of a table's rows.
    fn written(options: CopyOptions, columns: Vec<(&str, ArrayRef)>) -> Vec<Vec<u8>> {
        let batch = RecordBatch::try_from_iter(columns).expect("a batch");
        let mut writer = CopyWriter::new(options, &batch.schema()).expect("a writer");
        let formats = vec![writer.format(); batch.num_columns()];
        let settings = TextSettings {
            time_zone: "UTC".parse().expect("a zone"),
        };
        let rows = RowEncoder::new(&batch, &formats, &settings).expect("rows");
        let mut out = BytesMut::new();
        writer.put_head(&batch.schema(), &mut out).expect("a head");
        for row in 0..batch.num_rows() {
            writer.put_row(&rows, row, &mut out).expect("a row");
        }
        writer.put_end(&mut out).expect("an end");
        let mut messages = Vec::new();
        while !out.is_empty() {
            let length = u32::from_be_bytes(out[1..5].try_into().expect("four bytes")) as usize;
            let message = out.split_to(length + 1);
            assert_eq!(message[0], COPY_DATA);
            messages.push(message[5..].to_vec());
        }
        messages
    }

    fn texts(values: &[Option<&str>]) -> ArrayRef {
        Arc::new(StringArray::from(values.to_vec()))
    }

    #[test]
    fn texts_are_escaped() {
        let values = texts(&[
            Some("a\tb\\c\n\r\u{8}\u{b}\u{c}\u{1}é"),
            None,
            Some(""),
            Some("\\N"),
        ]);
        let columns = vec![("a", Arc::clone(&values)), ("b", values)];
        let lines = written(options(CopyFormat::Text), columns);
        let line = "a\\tb\\\\c\\n\\r\\b\\v\\f\u{1}é";
        assert_eq!(lines[0], format!("{line}\t{line}\n").as_bytes());
        assert_eq!(lines[1], b"\\N\t\\N\n");
        assert_eq!(lines[2], b"\t\n");
        assert_eq!(lines[3], b"\\\\N\t\\\\N\n");
        let with_bar = CopyOptions {
            delimiter: b'|',
            has_header: true,
            ..options(CopyFormat::Text)
        };
        let lines = written(with_bar, vec![("x|", texts(&[Some("a|b")]))]);
        assert_eq!(lines, [b"x\\|\n".to_vec(), b"a\\|b\n".to_vec()]);
    }

    #[test]
    fn csv_is_quoted_where_it_must_be() {
        let values = [
            None,
            Some(""),
            Some("a,b"),
            Some("\"a\""),
            Some("a\nb"),
            Some("\\."),
            Some(" a"),
        ];
        let lines = written(options(CopyFormat::Csv), vec![("a", texts(&values))]);
        let expected = [
            "\n",
            "\"\"\n",
            "\"a,b\"\n",
            "\"\"\"a\"\"\"\n",
            "\"a\nb\"\n",
            "\"\\.\"\n",
            " a\n",
        ];
        assert_eq!(lines, expected.map(|line| line.as_bytes().to_vec()));
        let other = CopyOptions {
            has_header: true,
            null: "-".to_owned(),
            quote: b'\'',
            escape: b'\\',
            quoted: QuotedColumns::Named(vec!["b".to_owned()]),
            ..options(CopyFormat::Csv)
        };
        let columns = vec![
            ("a", texts(&[Some("it's"), Some("-")])),
            ("b", texts(&[Some("\\"), None])),
        ];
        let lines = written(other, columns);
        let expected = ["a,b\n", "'it\\'s','\\\\'\n", "'-',-\n"];
        assert_eq!(lines, expected.map(|line| line.as_bytes().to_vec()));
    }

    #[test]
    fn columns_to_quote_must_exist() {
        let batch = RecordBatch::try_from_iter([("a", texts(&[]))]).expect("a batch");
        let with = |quoted| {
            let options = CopyOptions {
                quoted,
                ..options(CopyFormat::Csv)
            };
            CopyWriter::new(options, &batch.schema()).map(|writer| writer.is_quoted)
        };
        assert_eq!(with(QuotedColumns::All).expect("all"), [true]);
        let error = with(QuotedColumns::Named(vec!["b".to_owned()])).expect_err("no column");
        assert_eq!(error.code, Code::UndefinedColumn);
    }

    #[test]
    fn the_binary_format_has_a_signature_and_an_end() {
        let none = written(options(CopyFormat::Binary), vec![("a", texts(&[]))]);
        assert_eq!(none, [[SIGNATURE, b"\xff\xff"].concat()]);
        let numbers: ArrayRef = Arc::new(Int32Array::from(vec![Some(258), None]));
        let messages = written(options(CopyFormat::Binary), vec![("a", numbers)]);
        assert_eq!(messages[0][..19], *SIGNATURE);
        assert_eq!(messages[0][19..], *b"\0\x01\0\0\0\x04\0\0\x01\x02");
        assert_eq!(messages[1], b"\0\x01\xff\xff\xff\xff");
        assert_eq!(messages[2], b"\xff\xff");
    }
}
