//! The rows of a statement on their way into data files: checked as assignments in PostgreSQL are.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringViewArray};
use datafusion::arrow::compute::{CastOptions, cast_with_options};
use datafusion::arrow::datatypes::{DataType, Decimal128Type, Field, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::error::DataFusionError;
use forebay_memory::{Account, Share};
use forebay_tables_delta::{COLUMN_TEXT_TYPE, DataFile, Writer};

use super::Managed;
use crate::error::{Code, Result, SqlError};

/// Writes rows to data files of a table.
#[derive(Debug)]
pub(super) struct Sink {
    table: String,
    schema: SchemaRef,
    writer: Writer,
    lengths: Vec<Option<Length>>,
    /// The memory of rows that are not on the disk yet.
    share: Share,
}

/// The length of texts.
#[derive(Debug, Clone)]
struct Length {
    characters: usize,
    /// `char`: trailing blanks mean nothing.
    is_padded: bool,
    /// As PostgreSQL prints the type.
    type_name: String,
}

impl Sink {
    pub(super) fn new(managed: &Managed, account: &Account) -> Sink {
        let schema = managed.schema();
        Sink {
            table: managed.name.clone(),
            lengths: schema
                .fields()
                .iter()
                .map(|field| length_of(field))
                .collect(),
            schema,
            writer: managed.table.writer(),
            share: account.share(),
        }
    }

    pub(super) fn rows(&self) -> u64 {
        self.writer.rows()
    }

    /// Writes rows with a column for each of the table.
    ///
    /// # Errors
    /// If a value does not fit its column, the disk is full, or there is no memory.
    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let fields = self
            .schema
            .fields()
            .iter()
            .zip(batch.columns())
            .zip(&self.lengths);
        let columns = fields.map(|((field, column), length)| {
            let column = cast(column, field.data_type())?;
            check_digits(&column, field.name())?;
            let column = match length {
                Some(length) => length.applied(column)?,
                None => column,
            };
            match field.is_nullable() || column.logical_null_count() == 0 {
                true => Ok(column),
                false => Err(is_null(field.name(), &self.table)),
            }
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns).map_err(failed)?;
        self.writer.write(&batch)?;
        let bytes = self.writer.memory_bytes();
        self.share.try_resize(bytes).map_err(|full| {
            SqlError::new(Code::OutOfMemory, full.to_string())
                .with_hint("try again later, or raise --memory-bytes-max")
        })
    }

    /// Syncs the files. They belong to the table after a commit.
    ///
    /// # Errors
    /// If the disk is full.
    pub(super) fn finish(self) -> Result<Vec<Arc<DataFile>>> {
        Ok(self.writer.finish()?)
    }
}

fn failed(error: ArrowError) -> SqlError {
    DataFusionError::from(error).into()
}

fn cast(column: &ArrayRef, data_type: &DataType) -> Result<ArrayRef> {
    if column.data_type() == data_type {
        return Ok(Arc::clone(column));
    }
    // A value that does not fit is an error, not null.
    let options = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    cast_with_options(column, data_type, &options).map_err(failed)
}

/// Refuses decimals with more digits than their type has. Sums of the largest type do not overflow otherwise.
fn check_digits(column: &ArrayRef, name: &str) -> Result<()> {
    let DataType::Decimal128(precision, _) = *column.data_type() else {
        return Ok(());
    };
    let values = column.as_primitive::<Decimal128Type>();
    values
        .validate_decimal_precision(precision)
        .map_err(|error| {
            let message = format!("a value of column \"{name}\" has too many digits: {error}");
            SqlError::new(Code::NumericValueOutOfRange, message)
        })
}

fn is_null(column: &str, table: &str) -> SqlError {
    let message = format!(
        "null value in column \"{column}\" of relation \"{table}\" violates not-null constraint"
    );
    SqlError::new(Code::NotNullViolation, message)
}

fn length_of(field: &Field) -> Option<Length> {
    let text_type = field.metadata().get(COLUMN_TEXT_TYPE)?;
    let (name, length) = text_type.strip_suffix(')')?.split_once('(')?;
    let is_padded = name == "char";
    let name = if is_padded {
        "character"
    } else {
        "character varying"
    };
    Some(Length {
        characters: length.parse().ok()?,
        is_padded,
        type_name: format!("{name}({length})"),
    })
}

impl Length {
    fn applied(&self, column: ArrayRef) -> Result<ArrayRef> {
        let texts = column.as_string_view();
        let is_fitting =
            |text: &str| text.len() <= self.characters && !(self.is_padded && text.ends_with(' '));
        if texts.iter().flatten().all(is_fitting) {
            return Ok(column);
        }
        let texts = texts
            .iter()
            .map(|text| text.map(|text| self.of(text)).transpose());
        let texts: StringViewArray = texts.collect::<Result<_>>()?;
        Ok(Arc::new(texts))
    }

    /// Returns a text without the blanks that the type does not have.
    fn of<'a>(&self, text: &'a str) -> Result<&'a str> {
        let end = text.char_indices().nth(self.characters);
        let (kept, rest) = text.split_at(end.map_or(text.len(), |(end, _)| end));
        if !rest.trim_end_matches(' ').is_empty() {
            let message = format!("value too long for type {}", self.type_name);
            return Err(SqlError::new(Code::StringTooLong, message));
        }
        Ok(match self.is_padded {
            true => kept.trim_end_matches(' '),
            false => kept,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_of_postgresql() {
        let of = |name: &str, text: &str| {
            let metadata = [(COLUMN_TEXT_TYPE.to_owned(), name.to_owned())];
            let field = Field::new("a", DataType::Utf8View, true).with_metadata(metadata.into());
            let length = length_of(&field).expect("a length");
            length
                .of(text)
                .map(str::to_owned)
                .map_err(|error| error.message)
        };
        assert_eq!(of("varchar(3)", "éàü"), Ok("éàü".to_owned()));
        assert_eq!(of("varchar(3)", "ab   "), Ok("ab ".to_owned()));
        assert_eq!(of("char(3)", "ab "), Ok("ab".to_owned()));
        let error = "value too long for type character varying(3)";
        assert_eq!(of("varchar(3)", "abcd"), Err(error.to_owned()));
        let error = "value too long for type character(2)";
        assert_eq!(of("char(2)", "abc"), Err(error.to_owned()));
    }
}
