//! Rows of the three formats.

use std::ops::Range;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::array::timezone::Tz;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use forebay_memory::{Account, Held};
use forebay_tables::{Code, CopyFormat, CopyIn, CopyOptions, SqlError};

use super::columns::Column;

/// Rows of a batch.
const BATCH_ROWS: usize = 8_192;
/// Bytes of a batch, as the client wrote them.
const BATCH_BYTES: usize = 1 << 20;
/// Maximum bytes of a row.
const ROW_BYTES_MAX: usize = 64 << 20;
/// Maximum bytes of a value in a message.
const SHOWN_BYTES_MAX: usize = 100;
/// What the binary format begins with.
const SIGNATURE: &[u8] = b"PGCOPY\n\xff\r\n\0";
/// A flag of the binary format: rows begin with an identifier.
const HAS_IDENTIFIERS: u32 = 1 << 16;
/// What ends the data of the text formats, alone in a line.
const END: &[u8] = b"\\.";

/// Reads rows from the data of a `COPY`.
#[derive(Debug)]
pub(super) struct Reader {
    options: CopyOptions,
    table: String,
    columns: Vec<Column>,
    schema: SchemaRef,
    /// Data that was not read yet, from `start` on.
    input: Vec<u8>,
    start: usize,
    scan: Scan,
    held: Held,
    /// Number of the current line or row, counted from 1.
    line: u64,
    /// Rows and bytes of the current batch.
    rows: usize,
    bytes: usize,
    needs_header: bool,
    is_done: bool,
    scratch: Vec<u8>,
}

/// How far the end of a row was looked for.
#[derive(Debug, Default)]
struct Scan {
    /// Bytes since the start of the row.
    at: usize,
    is_escaped: bool,
    in_quotes: bool,
    breaks: u64,
}

impl Reader {
    /// Returns a reader of the rows of a `COPY`.
    ///
    /// # Errors
    /// If a column has a type that cannot be read.
    pub(super) fn new(
        copied: &CopyIn,
        zone: Option<Tz>,
        memory: &Account,
    ) -> Result<Reader, SqlError> {
        let fields = copied.columns().fields().iter();
        let columns = fields.map(|field| Column::new(field, zone));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        let options = copied.options().clone();
        Ok(Reader {
            needs_header: options.has_header || options.format == CopyFormat::Binary,
            options,
            table: copied.table().to_owned(),
            schema: schema_of(&columns),
            columns,
            input: Vec::new(),
            start: 0,
            scan: Scan::default(),
            held: Held::new(memory, BATCH_BYTES),
            line: 0,
            rows: 0,
            bytes: 0,
            is_done: false,
            scratch: Vec::new(),
        })
    }

    /// Adds data.
    ///
    /// # Errors
    /// If a row is too long, or there is no memory for it.
    pub(super) fn feed(&mut self, data: &[u8]) -> Result<(), SqlError> {
        if self.is_done {
            return Ok(());
        }
        self.input.drain(..self.start);
        self.start = 0;
        let bytes = self.input.len() + data.len();
        if self.input.len() > ROW_BYTES_MAX {
            let message = format!("a row is longer than {ROW_BYTES_MAX} bytes");
            return Err(self.located(SqlError::new(Code::LimitExceeded, message)));
        }
        if let Err(full) = self.held.set(bytes) {
            let error = SqlError::new(Code::OutOfMemory, full.to_string());
            return Err(self.located(error));
        }
        self.input.extend_from_slice(data);
        Ok(())
    }

    /// Returns the next rows if there are enough for a batch.
    ///
    /// # Errors
    /// If a row is malformed.
    pub(super) fn next_batch(&mut self) -> Result<Option<RecordBatch>, SqlError> {
        while !self.is_done {
            let read = match self.options.format {
                CopyFormat::Binary => self.read_binary()?,
                CopyFormat::Text | CopyFormat::Csv => self.read_line(false)?,
            };
            if !read {
                break;
            }
            if self.rows >= BATCH_ROWS || self.bytes >= BATCH_BYTES {
                return self.batch().map(Some);
            }
        }
        Ok(None)
    }

    /// Returns the last rows.
    ///
    /// # Errors
    /// If the data ends within a row.
    pub(super) fn finish(mut self) -> Result<Vec<RecordBatch>, SqlError> {
        let mut batches = Vec::new();
        if self.options.format != CopyFormat::Binary {
            if !self.is_done && self.start < self.input.len() {
                self.read_line(true)?;
            }
        } else if !self.is_done {
            let message = match self.needs_header {
                true => "COPY file signature not recognized",
                false => "unexpected EOF in COPY data",
            };
            return Err(self.located(SqlError::new(Code::BadCopyFileFormat, message)));
        }
        if self.rows > 0 {
            batches.push(self.batch()?);
        }
        Ok(batches)
    }

    fn batch(&mut self) -> Result<RecordBatch, SqlError> {
        (self.rows, self.bytes) = (0, 0);
        let arrays = self.columns.iter_mut().map(Column::finish);
        let arrays = arrays.collect::<Result<Vec<_>, _>>()?;
        let fields = self.schema.fields().iter().zip(&arrays);
        let fields = fields.map(|(field, array)| {
            field
                .as_ref()
                .clone()
                .with_data_type(array.data_type().clone())
        });
        let schema = std::sync::Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        RecordBatch::try_new(schema, arrays)
            .map_err(|error| SqlError::new(Code::InternalError, error.to_string()))
    }

    /// Reads a line. Returns false if there is no whole one.
    fn read_line(&mut self, is_last: bool) -> Result<bool, SqlError> {
        let rest = &self.input[self.start..];
        let (length, next) = match self.scan.end(rest, &self.options) {
            Some(length) => (length, length + 1),
            None if is_last => (rest.len(), rest.len()),
            None => return Ok(false),
        };
        self.line += 1;
        let mut line = self.start..self.start + length;
        self.start += next;
        self.bytes += next;
        let scan = std::mem::take(&mut self.scan);
        if self.input[line.clone()].ends_with(b"\r") {
            line.end -= 1;
        }
        if std::mem::take(&mut self.needs_header) {
            self.line += scan.breaks;
            return Ok(true);
        }
        if self.input[line.clone()] == *END {
            self.is_done = true;
            return Ok(true);
        }
        let read = match self.options.format {
            CopyFormat::Csv => self.read_csv(line),
            _ => self.read_text(line),
        };
        self.line += scan.breaks;
        self.rows += 1;
        read.map(|()| true)
    }

    fn read_text(&mut self, line: Range<usize>) -> Result<(), SqlError> {
        let mut rest = line.start;
        let count = self.columns.len();
        for index in 0..count {
            let field = &self.input[rest..line.end];
            let length = text_field(field, self.options.delimiter);
            let raw = &field[..length];
            let read = if raw == self.options.null.as_bytes() {
                self.columns[index].push_text(None)
            } else if raw.contains(&b'\\') {
                unescape(raw, &mut self.scratch);
                self.columns[index].push_text(Some(&self.scratch))
            } else {
                self.columns[index].push_text(Some(raw))
            };
            if let Err(error) = read {
                let value = String::from_utf8_lossy(raw).into_owned();
                return Err(self.at_column(error, index, &value));
            }
            rest = self.after_field(rest + length, line.end, index)?;
        }
        Ok(())
    }

    fn read_csv(&mut self, line: Range<usize>) -> Result<(), SqlError> {
        let mut rest = line.start;
        for index in 0..self.columns.len() {
            let field = csv_field(
                &self.input[rest..line.end],
                &self.options,
                &mut self.scratch,
            );
            let Some((length, is_quoted)) = field else {
                let error = SqlError::new(Code::BadCopyFileFormat, "unterminated CSV quoted field");
                return Err(self.located(error));
            };
            let value = match is_quoted {
                true => &*self.scratch,
                false => &self.input[rest..rest + length],
            };
            let is_null = !is_quoted && value == self.options.null.as_bytes();
            let read = self.columns[index].push_text((!is_null).then_some(value));
            if let Err(error) = read {
                let value = String::from_utf8_lossy(value).into_owned();
                return Err(self.at_column(error, index, &value));
            }
            rest = self.after_field(rest + length, line.end, index)?;
        }
        Ok(())
    }

    /// Returns where the field after that of column `index` begins.
    ///
    /// # Errors
    /// If there are too few or too many fields.
    fn after_field(&self, place: usize, end: usize, index: usize) -> Result<usize, SqlError> {
        let is_last = index + 1 == self.columns.len();
        let message = match (place < end, is_last) {
            (true, false) => return Ok(place + 1),
            (false, true) => return Ok(place),
            (true, true) => "extra data after last expected column".to_owned(),
            (false, false) => {
                format!(
                    "missing data for column \"{}\"",
                    self.columns[index + 1].name()
                )
            }
        };
        Err(self.located(SqlError::new(Code::BadCopyFileFormat, message)))
    }

    /// Reads a row of the binary format. Returns false if there is no whole one.
    fn read_binary(&mut self) -> Result<bool, SqlError> {
        if self.needs_header && !self.read_header()? {
            return Ok(false);
        }
        let mut rest = &self.input[self.start..];
        let Some(count) = take(&mut rest).map(i16::from_be_bytes) else {
            return Ok(false);
        };
        if count == -1 {
            self.is_done = true;
            return Ok(true);
        }
        if usize::try_from(count) != Ok(self.columns.len()) {
            self.line += 1;
            let message = format!(
                "row field count is {count}, expected {}",
                self.columns.len()
            );
            return Err(self.located(SqlError::new(Code::BadCopyFileFormat, message)));
        }
        // First, whether the whole row is there.
        let mut fields = Vec::with_capacity(self.columns.len());
        let mut place = self.start + size_of::<i16>();
        for _ in 0..self.columns.len() {
            let Some(length) = take(&mut &self.input[place..]).map(i32::from_be_bytes) else {
                return Ok(false);
            };
            place += size_of::<i32>();
            let Ok(length) = usize::try_from(length) else {
                fields.push(None);
                continue;
            };
            if length > self.input.len() - place {
                return Ok(false);
            }
            fields.push(Some(place..place + length));
            place += length;
        }
        self.line += 1;
        for (index, field) in fields.into_iter().enumerate() {
            let value = field.map(|field| &self.input[field]);
            if let Err(error) = self.columns[index].push_binary(value) {
                return Err(self.at_column(error, index, ""));
            }
        }
        self.bytes += place - self.start;
        self.start = place;
        self.rows += 1;
        Ok(true)
    }

    /// Reads the header of the binary format. Returns false if it is not whole.
    fn read_header(&mut self) -> Result<bool, SqlError> {
        let bad = |message: &str| SqlError::new(Code::BadCopyFileFormat, message);
        let rest = &self.input[self.start..];
        let known = rest.len().min(SIGNATURE.len());
        if rest[..known] != SIGNATURE[..known] {
            return Err(bad("COPY file signature not recognized"));
        }
        let mut rest = &rest[known..];
        let (Some(flags), Some(length)) = (take(&mut rest), take(&mut rest)) else {
            return Ok(false);
        };
        let flags = u32::from_be_bytes(flags);
        if flags & HAS_IDENTIFIERS != 0 {
            return Err(bad("invalid COPY file header (WITH OIDS)"));
        }
        if flags >> 16 != 0 {
            return Err(bad("unrecognized critical flags in COPY file header"));
        }
        let length = usize::try_from(i32::from_be_bytes(length));
        let length = length.map_err(|_| bad("invalid COPY file header (wrong length)"))?;
        if rest.len() < length {
            return Ok(false);
        }
        self.start = self.input.len() - rest.len() + length;
        self.needs_header = false;
        Ok(true)
    }

    /// Adds the line to an error.
    fn located(&self, error: SqlError) -> SqlError {
        let context = format!("COPY {}, line {}", self.table, self.line);
        SqlError {
            context: Some(context),
            ..error
        }
    }

    /// Adds the line, the column and its value to an error.
    fn at_column(&self, error: SqlError, index: usize, value: &str) -> SqlError {
        let name = self.columns[index].name();
        let mut context = format!("COPY {}, line {}, column {name}", self.table, self.line);
        if !value.is_empty() {
            let shown = &value[..value.floor_char_boundary(SHOWN_BYTES_MAX)];
            let more = if shown.len() < value.len() { "..." } else { "" };
            context = format!("{context}: \"{shown}{more}\"");
        }
        SqlError {
            context: Some(context),
            ..error
        }
    }
}

fn schema_of(columns: &[Column]) -> SchemaRef {
    let fields = columns.iter().map(Column::field);
    std::sync::Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// Takes bytes from the beginning of `rest`; `None` if there are too few.
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*taken)
}

impl Scan {
    /// Returns the length of the row, without the line break that ends it; `None` if that is not there yet.
    fn end(&mut self, rest: &[u8], options: &CopyOptions) -> Option<usize> {
        let is_csv = options.format == CopyFormat::Csv;
        let (quote, escape) = (options.quote, options.escape);
        for (index, &byte) in rest.iter().enumerate().skip(self.at) {
            if std::mem::take(&mut self.is_escaped) {
                self.breaks += u64::from(byte == b'\n');
            } else if byte == b'\n' {
                if !self.in_quotes {
                    self.at = 0;
                    return Some(index);
                }
                self.breaks += 1;
            } else if !is_csv {
                self.is_escaped = byte == b'\\';
            } else if self.in_quotes && escape != quote && byte == escape {
                self.is_escaped = true;
            } else if byte == quote {
                self.in_quotes = !self.in_quotes;
            }
        }
        self.at = rest.len();
        None
    }
}

/// Returns the length of the first field of a line of the text format.
fn text_field(line: &[u8], delimiter: u8) -> usize {
    let mut is_escaped = false;
    let end = line.iter().position(|&byte| {
        let is_end = !is_escaped && byte == delimiter;
        is_escaped = !is_escaped && byte == b'\\';
        is_end
    });
    end.unwrap_or(line.len())
}

/// Writes a value of the text format without its escapes to `out`.
fn unescape(raw: &[u8], out: &mut Vec<u8>) {
    out.clear();
    let mut rest = raw;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let Some((&letter, after)) = rest.split_first() else {
            out.push(byte);
            return;
        };
        rest = after;
        let byte = match letter {
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 11,
            b'0'..=b'7' => number(letter - b'0', &mut rest, 8, 2),
            b'x' if rest.first().is_some_and(u8::is_ascii_hexdigit) => number(0, &mut rest, 16, 2),
            other => other,
        };
        out.push(byte);
    }
}

/// Reads at most `count` further digits of a byte.
fn number(first: u8, rest: &mut &[u8], base: u32, count: usize) -> u8 {
    let mut value = u32::from(first);
    for _ in 0..count {
        let digit = rest
            .first()
            .and_then(|byte| char::from(*byte).to_digit(base));
        let Some(digit) = digit else {
            break;
        };
        value = value * base + digit;
        *rest = &rest[1..];
    }
    // PostgreSQL, too, takes the lower eight bits of three octal digits.
    value.to_le_bytes()[0]
}

/// Returns the length of the first field of a line of CSV, and whether it has quotes; its value is then in `out`.
/// Returns `None` if a quote has no end.
fn csv_field(line: &[u8], options: &CopyOptions, out: &mut Vec<u8>) -> Option<(usize, bool)> {
    let CopyOptions {
        delimiter,
        quote,
        escape,
        ..
    } = *options;
    let special = line
        .iter()
        .position(|byte| *byte == delimiter || *byte == quote);
    match special {
        None => return Some((line.len(), false)),
        Some(index) if line[index] == delimiter => return Some((index, false)),
        Some(_) => out.clear(),
    }
    let (mut index, mut in_quotes) = (0, false);
    while let Some(&byte) = line.get(index) {
        let next = line.get(index + 1);
        if !in_quotes && byte == delimiter {
            return Some((index, true));
        }
        if in_quotes && byte == escape && next.is_some_and(|next| *next == quote || *next == escape)
        {
            out.extend(next);
            index += 1;
        } else if byte == quote {
            in_quotes = !in_quotes;
        } else {
            out.push(byte);
        }
        index += 1;
    }
    (!in_quotes).then_some((index, true))
}

#[cfg(test)]
mod tests {
    use forebay_tables::QuotedColumns;

    use super::*;

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

    #[test]
    fn escapes_of_the_text_format_are_read() {
        let mut out = Vec::new();
        unescape(b"a\\tb\\\\c\\101\\x41\\q\\7z\\", &mut out);
        assert_eq!(out, b"a\tb\\cAAq\x07z\\");
        assert_eq!(text_field(b"a\\\tb\tc", b'\t'), 4);
        assert_eq!(text_field(b"a\\\\\tb", b'\t'), 3);
    }

    #[test]
    fn quotes_of_csv_are_read() {
        let csv = options(CopyFormat::Csv);
        let mut out = Vec::new();
        for (line, expected, value) in [
            ("a,b", Some((1, false)), ""),
            ("\"a,\"\"b\",c", Some((7, true)), "a,\"b"),
            ("x\"y\"z", Some((5, true)), "xyz"),
            ("\"\"", Some((2, true)), ""),
            ("\"a", None, "a"),
        ] {
            assert_eq!(
                csv_field(line.as_bytes(), &csv, &mut out),
                expected,
                "{line}"
            );
            if expected.is_some_and(|(_, is_quoted)| is_quoted) {
                assert_eq!(out, value.as_bytes(), "{line}");
            }
        }
        let other = CopyOptions {
            escape: b'\\',
            ..csv
        };
        assert_eq!(
            csv_field(b"\"a\\\"b\",c", &other, &mut out),
            Some((6, true))
        );
        assert_eq!(out, b"a\"b");
    }

    #[test]
    fn ends_of_rows_are_found_in_parts() {
        let text = options(CopyFormat::Text);
        let mut scan = Scan::default();
        assert_eq!(scan.end(b"a\\", &text), None);
        assert_eq!(scan.end(b"a\\\nb\nc", &text), Some(4));
        let csv = options(CopyFormat::Csv);
        let mut scan = Scan::default();
        assert_eq!(scan.end(b"\"a\n", &csv), None);
        assert_eq!(scan.end(b"\"a\n\"\"b\"\n", &csv), Some(7));
        assert_eq!(scan.breaks, 1);
    }
}
