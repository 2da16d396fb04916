//! Rows of Arrow's batches as PostgreSQL's `DataRow` messages.
//!
//! [`RowEncoder`] resolves the types of a batch once; writing a row then neither downcasts nor allocates, except for
//! nested types and numbers in exponential notation.
//!
//! Nanoseconds are rounded half to even to microseconds, which PostgreSQL's times have. Values that PostgreSQL's types
//! cannot hold are errors. Lists become arrays; in text, lists of lists may differ in length and be null, which
//! PostgreSQL's arrays cannot. Structures, maps and unions become JSON.

use bytes::{BufMut, BytesMut};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::array::timezone::Tz;
use forebay_tables::{Code, SqlError};

pub(crate) mod binary;
pub(crate) mod calendar;
mod digits;
mod float;
mod nested;
mod text;
mod values;

use binary::{length_of, length_prefixed};
use digits::Digits;
use text::Style;
use values::{Column, Values, out_of_range};

/// The first byte of a `DataRow` message.
const DATA_ROW: u8 = b'D';

/// The length of a null value.
const NULL_LENGTH: i32 = -1;

/// The largest `time` in microseconds, which PostgreSQL prints as `24:00:00`.
const TIME_MAX: i64 = calendar::DAY_MICROS;

/// The format of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Text, as PostgreSQL prints it.
    Text,
    /// PostgreSQL's binary format.
    Binary,
}

impl Format {
    /// Returns the format of each of `count` columns, from the format codes of a `Bind` message: no code for text
    /// alone, one code for all columns, or one a column.
    ///
    /// # Errors
    /// If the count of the codes is another one, or a code is neither 0 nor 1.
    pub fn of_codes(codes: &[i16], count: usize) -> Result<Vec<Format>, SqlError> {
        match codes {
            [] => Ok(vec![Format::Text; count]),
            [code] => Ok(vec![Format::of_code(*code)?; count]),
            codes if codes.len() == count => {
                codes.iter().map(|code| Format::of_code(*code)).collect()
            }
            codes => Err(SqlError::new(
                Code::ProtocolViolation,
                format!(
                    "there are {} format codes, but {count} columns",
                    codes.len()
                ),
            )),
        }
    }

    /// Returns the format of a code.
    ///
    /// # Errors
    /// If the code is neither 0 nor 1.
    pub fn of_code(code: i16) -> Result<Format, SqlError> {
        match code {
            0 => Ok(Format::Text),
            1 => Ok(Format::Binary),
            _ => Err(SqlError::new(
                Code::InvalidParameterValue,
                format!("unsupported format code: {code}"),
            )),
        }
    }

    /// Returns the code that the protocol has for the format.
    pub fn code(self) -> i16 {
        match self {
            Format::Text => 0,
            Format::Binary => 1,
        }
    }
}

/// The settings of a session that change texts.
#[derive(Debug, Clone, Copy)]
pub struct TextSettings {
    /// The time zone in which times with a time zone are printed.
    pub time_zone: Tz,
}

/// Encodes the rows of a batch.
#[derive(Debug)]
pub struct RowEncoder {
    columns: Vec<(Column, Format)>,
    column_count: i16,
    rows: usize,
}

impl RowEncoder {
    /// Resolves the types of a batch, whose columns are to have `formats`.
    ///
    /// The arrays are shared, not copied, except for small integers, dictionaries' keys and dictionaries of lists.
    ///
    /// # Errors
    /// If the counts of columns and formats differ, or there are more columns than a message holds.
    pub fn new(
        batch: &RecordBatch,
        formats: &[Format],
        settings: &TextSettings,
    ) -> Result<RowEncoder, SqlError> {
        if formats.len() != batch.num_columns() {
            let message = "the count of formats is not that of columns";
            return Err(SqlError::new(Code::InternalError, message));
        }
        let column_count = i16::try_from(formats.len())
            .map_err(|_| SqlError::new(Code::LimitExceeded, "a row has too many columns"))?;
        let columns = batch.columns().iter().zip(formats);
        let columns = columns
            .map(|(array, format)| Ok((Column::new(array, settings.time_zone)?, *format)))
            .collect::<Result<_, SqlError>>()?;
        Ok(RowEncoder {
            columns,
            column_count,
            rows: batch.num_rows(),
        })
    }

    /// Returns the count of rows.
    pub fn row_count(&self) -> usize {
        self.rows
    }

    /// Appends the message of a row.
    ///
    /// # Errors
    /// If PostgreSQL's type cannot hold a value, the message exceeds 2 GiB, or there is no such row. `out` is then as
    /// it was.
    pub fn encode(&self, row: usize, out: &mut BytesMut) -> Result<(), SqlError> {
        let start = out.len();
        let result = self.check_row(row).and_then(|()| self.message(row, out));
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    /// Appends the value of a column, without its length, in the format of the column, and returns whether there is
    /// one: nothing is appended for a null. This is for `COPY`, which escapes the text itself.
    ///
    /// # Errors
    /// If PostgreSQL's type cannot hold the value, or there is no such row or column. `out` is then as it was.
    pub fn encode_cell(
        &self,
        row: usize,
        column: usize,
        out: &mut BytesMut,
    ) -> Result<bool, SqlError> {
        self.check_row(row)?;
        let found = self.columns.get(column);
        let (column, format) = found.ok_or_else(|| no_such("column", column))?;
        if column.is_null(row) {
            return Ok(false);
        }
        let start = out.len();
        let result = column.values.write(row, *format, out);
        if result.is_err() {
            out.truncate(start);
        }
        result.map(|()| true)
    }

    fn check_row(&self, row: usize) -> Result<(), SqlError> {
        match row < self.rows {
            true => Ok(()),
            false => Err(no_such("row", row)),
        }
    }

    fn message(&self, row: usize, out: &mut BytesMut) -> Result<(), SqlError> {
        out.put_u8(DATA_ROW);
        let start = out.len();
        out.put_i32(0);
        out.put_i16(self.column_count);
        for (column, format) in &self.columns {
            if column.is_null(row) {
                out.put_i32(NULL_LENGTH);
            } else {
                length_prefixed(out, |out| column.values.write(row, *format, out))?;
            }
        }
        let length = length_of(out.len() - start)?;
        out[start..start + size_of::<i32>()].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }
}

fn no_such(what: &str, index: usize) -> SqlError {
    SqlError::new(
        Code::InternalError,
        format!("the batch has no {what} {index}"),
    )
}

impl Values {
    fn write(&self, row: usize, format: Format, out: &mut BytesMut) -> Result<(), SqlError> {
        match format {
            Format::Text => self.text(row, out),
            Format::Binary => self.binary(row, out),
        }
    }

    /// Writes the value of a row as text.
    fn text(&self, row: usize, out: &mut BytesMut) -> Result<(), SqlError> {
        self.styled_text(row, Style::Iso, out)
    }

    /// Writes the value of a row as text, with times in a style.
    fn styled_text(&self, row: usize, style: Style, out: &mut BytesMut) -> Result<(), SqlError> {
        match self {
            Values::Boolean(bits) => text::boolean(bits.value(row), out),
            Values::Int16(values) => text::signed(i64::from(values[row]), out),
            Values::Int32(values) => text::signed(i64::from(values[row]), out),
            Values::Int64(values) => text::signed(values[row], out),
            Values::UInt64(values) => text::unsigned(values[row], out),
            Values::Float32(values) => text::single(values[row], out),
            Values::Float64(values) => text::double(values[row], out),
            Values::Indexed(rows, values) => {
                return values.values.styled_text(rows[row], style, out);
            }
            Values::List(list) => return list.text(row, out),
            Values::Record(record) => return record.json(row, out),
            Values::Map(map) => return map.json(row, out),
            Values::Union(union) => return union.json(row, out),
            _ => return self.decimal_or_time_text(row, style, out),
        }
        Ok(())
    }

    fn decimal_or_time_text(
        &self,
        row: usize,
        style: Style,
        out: &mut BytesMut,
    ) -> Result<(), SqlError> {
        match self {
            Values::Decimal(values, scale) => {
                let value = values[row];
                text::decimal(value < 0, Digits::of_i128(value).as_slice(), *scale, out);
            }
            Values::WideDecimal(values, scale) => {
                let value = values[row];
                text::decimal(
                    value.is_negative(),
                    Digits::of_i256(value).as_slice(),
                    *scale,
                    out,
                );
            }
            Values::Date(_) | Values::DateMillis(_) => text::date(self.date(row)?.0, out),
            Values::Time(_) => text::time(self.time(row)?, out),
            Values::Timestamp(_) => text::timestamp(self.timestamp(row)?.0, style, out),
            Values::TimestampTz(_, zone) => {
                text::timestamp_in_zone(self.timestamp(row)?.0, Some(*zone), style, out);
            }
            Values::Interval(values) => text::interval(values[row], out),
            Values::Duration(ticks) => {
                let (days, micros) = days_of(ticks.micros(row)?);
                text::interval_of_micros(0, days, micros, out);
            }
            _ => self.raw_or_bytea_text(row, out),
        }
        Ok(())
    }

    fn raw_or_bytea_text(&self, row: usize, out: &mut BytesMut) {
        let bytes = self.bytes(row);
        match self {
            Values::Text(_) | Values::LargeText(_) | Values::TextView(_) => out.put_slice(bytes),
            _ => text::bytea(bytes, out),
        }
    }

    /// Writes the value of a row in binary.
    fn binary(&self, row: usize, out: &mut BytesMut) -> Result<(), SqlError> {
        match self {
            Values::Boolean(bits) => out.put_u8(u8::from(bits.value(row))),
            Values::Int16(values) => out.put_i16(values[row]),
            Values::Int32(values) => out.put_i32(values[row]),
            Values::Int64(values) => out.put_i64(values[row]),
            Values::Float32(values) => out.put_f32(values[row]),
            Values::Float64(values) => out.put_f64(values[row]),
            Values::Indexed(rows, values) => return values.values.binary(rows[row], out),
            Values::List(list) => return list.binary(row, out),
            Values::Record(record) => return record.json(row, out),
            Values::Map(map) => return map.json(row, out),
            Values::Union(union) => return union.json(row, out),
            _ => return self.decimal_or_time_binary(row, out),
        }
        Ok(())
    }

    fn decimal_or_time_binary(&self, row: usize, out: &mut BytesMut) -> Result<(), SqlError> {
        match self {
            Values::UInt64(values) => {
                binary::decimal(false, Digits::of_u64(values[row]).as_slice(), 0, out);
            }
            Values::Decimal(values, scale) => {
                let value = values[row];
                binary::decimal(value < 0, Digits::of_i128(value).as_slice(), *scale, out);
            }
            Values::WideDecimal(values, scale) => {
                let value = values[row];
                binary::decimal(
                    value.is_negative(),
                    Digits::of_i256(value).as_slice(),
                    *scale,
                    out,
                );
            }
            Values::Date(_) | Values::DateMillis(_) => out.put_i32(self.date(row)?.1),
            Values::Time(_) => out.put_i64(self.time(row)?),
            Values::Timestamp(_) | Values::TimestampTz(..) => out.put_i64(self.timestamp(row)?.1),
            Values::Interval(values) => binary::interval(values[row], out),
            Values::Duration(ticks) => {
                let (days, micros) = days_of(ticks.micros(row)?);
                binary::interval_of_micros(0, days, micros, out);
            }
            _ => out.put_slice(self.bytes(row)),
        }
        Ok(())
    }

    /// Returns the bytes of a string or binary value.
    fn bytes(&self, row: usize) -> &[u8] {
        match self {
            Values::Text(array) => array.value(row).as_bytes(),
            Values::LargeText(array) => array.value(row).as_bytes(),
            Values::TextView(array) => array.value(row).as_bytes(),
            Values::Bytes(array) => array.value(row),
            Values::LargeBytes(array) => array.value(row),
            Values::BytesView(array) => array.value(row),
            Values::FixedBytes(array) => array.value(row),
            _ => &[],
        }
    }

    /// Returns the days since 1970 and since 2000.
    fn date(&self, row: usize) -> Result<(i64, i32), SqlError> {
        let days = match self {
            Values::DateMillis(values) => values[row].div_euclid(calendar::DAY_MICROS / 1000),
            Values::Date(values) => i64::from(values[row]),
            _ => return Err(out_of_range("date")),
        };
        let pg = calendar::pg_days(days).ok_or_else(|| out_of_range("date"))?;
        Ok((days, pg))
    }

    /// Returns the microseconds since midnight.
    fn time(&self, row: usize) -> Result<i64, SqlError> {
        let Values::Time(ticks) = self else {
            return Err(out_of_range("time"));
        };
        let micros = ticks.micros(row)?;
        let is_valid = (0..=TIME_MAX).contains(&micros);
        is_valid
            .then_some(micros)
            .ok_or_else(|| out_of_range("time"))
    }

    /// Returns the microseconds since 1970 and since 2000.
    fn timestamp(&self, row: usize) -> Result<(i64, i64), SqlError> {
        let (Values::Timestamp(ticks) | Values::TimestampTz(ticks, _)) = self else {
            return Err(out_of_range("timestamp"));
        };
        let micros = ticks.micros(row).map_err(|_| out_of_range("timestamp"))?;
        let pg = calendar::pg_micros(micros).ok_or_else(|| out_of_range("timestamp"))?;
        Ok((micros, pg))
    }

    /// Returns whether the text of values is a number.
    fn is_number(&self) -> bool {
        matches!(
            self,
            Values::Int16(_)
                | Values::Int32(_)
                | Values::Int64(_)
                | Values::UInt64(_)
                | Values::Float32(_)
                | Values::Float64(_)
                | Values::Decimal(..)
                | Values::WideDecimal(..)
        )
    }

    /// Returns whether the text of values is JSON.
    fn is_json(&self) -> bool {
        matches!(self, Values::Record(_) | Values::Map(_) | Values::Union(_))
    }
}

/// Returns the days and microseconds of a time between two others, as PostgreSQL shows it.
fn days_of(micros: i64) -> (i32, i64) {
    // All days of 64 bits of microseconds have fewer than 32 bits.
    let days = micros / calendar::DAY_MICROS;
    (
        i32::try_from(days).unwrap_or(i32::MAX),
        micros % calendar::DAY_MICROS,
    )
}
