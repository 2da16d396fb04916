//! Documents as rows: BSON values in Arrow columns.

use std::collections::HashMap;
use std::sync::Arc;

use bson::{Bson, RawBsonRef, RawDocument};
use datafusion::arrow::array::{
    ArrayRef, BinaryBuilder, BooleanBuilder, Float64Builder, Int64Builder, RecordBatch,
    RecordBatchOptions, StringViewBuilder, TimestampMillisecondBuilder,
};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::{DataFusionError, Result};
use forebay_tables::{Code, ColumnError, SqlError};

use crate::column::{Column, Columns, Kind, type_name};

/// Rows that are being built, of documents.
pub(crate) struct Rows {
    schema: SchemaRef,
    columns: Vec<Column>,
    places: HashMap<String, usize>,
    builders: Vec<Builder>,
    /// The number of rows that each column has.
    lengths: Vec<usize>,
    rows: usize,
    /// The column with the whole document.
    document: Option<usize>,
}

enum Builder {
    Bool(BooleanBuilder),
    Int(Int64Builder),
    Float(Float64Builder),
    Text(StringViewBuilder),
    Date(TimestampMillisecondBuilder),
    Binary(BinaryBuilder),
}

impl Rows {
    /// Returns no rows of these columns.
    pub(crate) fn new(columns: &Columns) -> Rows {
        let named = columns.columns.iter().enumerate();
        let fields = named
            .clone()
            .filter(|(_, column)| column.kind != Kind::Document);
        let document = named
            .clone()
            .find(|(_, column)| column.kind == Kind::Document);
        Rows {
            schema: Arc::clone(&columns.schema),
            places: fields
                .map(|(place, column)| (column.name.clone(), place))
                .collect(),
            builders: columns.columns.iter().map(Builder::new).collect(),
            lengths: vec![0; columns.columns.len()],
            rows: 0,
            document: document.map(|(place, _)| place),
            columns: columns.columns.clone(),
        }
    }

    /// Adds the row of a document.
    ///
    /// # Errors
    /// If a value is not of its column's type, or the document is malformed.
    pub(crate) fn add(&mut self, document: &RawDocument) -> Result<()> {
        for element in document {
            let (name, value) = element.map_err(malformed)?;
            let Some(place) = self.places.get(name.as_str()).copied() else {
                continue;
            };
            // Of a key that occurs twice, the first value counts.
            if self.lengths[place] > self.rows {
                continue;
            }
            if !self.builders[place].add(self.columns[place].kind, value)? {
                return Err(self.mismatch(place, value, document));
            }
            self.lengths[place] += 1;
        }
        if let Some(place) = self.document {
            self.builders[place].add_json(&Bson::Document(document.try_into().map_err(malformed)?));
            self.lengths[place] += 1;
        }
        self.rows += 1;
        for (builder, length) in self.builders.iter_mut().zip(&mut self.lengths) {
            if *length < self.rows {
                builder.add_null();
                *length += 1;
            }
        }
        Ok(())
    }

    /// Returns the number of rows added since the last batch.
    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    /// Returns the rows added since the last batch.
    ///
    /// # Errors
    /// Never, unless there is a defect.
    pub(crate) fn take(&mut self) -> Result<RecordBatch> {
        let arrays = self.builders.iter_mut().map(Builder::finish).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options)?;
        self.rows = 0;
        self.lengths.fill(0);
        Ok(batch)
    }

    /// Returns the error of a value that is not of its column's type.
    fn mismatch(
        &self,
        place: usize,
        value: RawBsonRef<'_>,
        document: &RawDocument,
    ) -> DataFusionError {
        let name = &self.columns[place].name;
        let id = document.get("_id").ok().flatten();
        let id = id.and_then(|id| Bson::try_from(id).ok());
        let message = format!(
            "the field \"{name}\" of the document with _id {} has a value of type {}, but the column is of type {}",
            id.map_or_else(|| "?".to_owned(), |id| json(&id)),
            type_name(value.element_type()),
            self.columns[place].kind.sql_name(),
        );
        let hint = "the type is that of a sample of the collection; the column with the whole document has all values";
        let error = SqlError::new(Code::DatatypeMismatch, message).with_hint(hint);
        let column = name.clone();
        DataFusionError::External(Box::new(ColumnError { column, error }))
    }
}

fn malformed(error: bson::error::Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// Returns a value as relaxed Extended JSON.
fn json(value: &Bson) -> String {
    value.clone().into_relaxed_extjson().to_string()
}

impl Builder {
    fn new(column: &Column) -> Builder {
        match column.kind {
            Kind::Bool => Builder::Bool(BooleanBuilder::new()),
            Kind::Int => Builder::Int(Int64Builder::new()),
            Kind::Float => Builder::Float(Float64Builder::new()),
            Kind::Date => {
                let builder = TimestampMillisecondBuilder::new();
                Builder::Date(builder.with_timezone("UTC"))
            }
            Kind::Binary => Builder::Binary(BinaryBuilder::new()),
            Kind::Text | Kind::ObjectId | Kind::Decimal | Kind::Json | Kind::Document => {
                Builder::Text(StringViewBuilder::new())
            }
        }
    }

    /// Adds a value. Returns `false` if it is not of the column's kind.
    ///
    /// # Errors
    /// If the value is malformed.
    fn add(&mut self, kind: Kind, value: RawBsonRef<'_>) -> Result<bool> {
        if matches!(value, RawBsonRef::Null | RawBsonRef::Undefined) {
            self.add_null();
            return Ok(true);
        }
        match (self, value) {
            (Builder::Bool(builder), RawBsonRef::Boolean(value)) => builder.append_value(value),
            (Builder::Int(builder), RawBsonRef::Int32(value)) => {
                builder.append_value(value.into());
            }
            (Builder::Int(builder), RawBsonRef::Int64(value)) => builder.append_value(value),
            (Builder::Float(builder), RawBsonRef::Double(value)) => builder.append_value(value),
            (Builder::Float(builder), RawBsonRef::Int32(value)) => {
                builder.append_value(value.into());
            }
            (Builder::Float(builder), RawBsonRef::Int64(value)) => {
                builder.append_value(value as f64);
            }
            (Builder::Date(builder), RawBsonRef::DateTime(value)) => {
                builder.append_value(value.timestamp_millis());
            }
            (Builder::Binary(builder), RawBsonRef::Binary(value)) => {
                builder.append_value(value.bytes);
            }
            (Builder::Text(builder), RawBsonRef::String(value))
                if matches!(kind, Kind::Text | Kind::Json) =>
            {
                builder.append_value(value);
            }
            (Builder::Text(builder), RawBsonRef::ObjectId(value)) if kind == Kind::ObjectId => {
                builder.append_value(value.to_hex());
            }
            (Builder::Text(builder), RawBsonRef::Decimal128(value)) if kind == Kind::Decimal => {
                builder.append_value(value.to_string());
            }
            (builder @ Builder::Text(_), value) if kind == Kind::Json => {
                builder.add_json(&value.try_into().map_err(malformed)?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn add_json(&mut self, value: &Bson) {
        if let Builder::Text(builder) = self {
            builder.append_value(json(value));
        }
    }

    fn add_null(&mut self) {
        match self {
            Builder::Bool(builder) => builder.append_null(),
            Builder::Int(builder) => builder.append_null(),
            Builder::Float(builder) => builder.append_null(),
            Builder::Text(builder) => builder.append_null(),
            Builder::Date(builder) => builder.append_null(),
            Builder::Binary(builder) => builder.append_null(),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Builder::Bool(builder) => Arc::new(builder.finish()),
            Builder::Int(builder) => Arc::new(builder.finish()),
            Builder::Float(builder) => Arc::new(builder.finish()),
            Builder::Text(builder) => Arc::new(builder.finish()),
            Builder::Date(builder) => Arc::new(builder.finish()),
            Builder::Binary(builder) => Arc::new(builder.finish()),
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::{doc, rawdoc};
    use datafusion::arrow::util::pretty::pretty_format_batches;

    use super::*;

    #[test]
    fn values_become_rows_and_missing_ones_null() {
        let id = bson::oid::ObjectId::parse_str("0123456789abcdef01234567").expect("an identifier");
        let date = bson::DateTime::from_millis(1_000);
        let sample = [
            rawdoc! { "_id": id, "n": 1, "f": 1.5, "t": "a", "d": date, "m": 1, "b": true },
            rawdoc! { "_id": id, "m": [1, "x"], "n": 2_i64, "f": 2 },
            rawdoc! { "_id": id, "m": "text" },
        ];
        let columns = Columns::of(sample.iter().map(AsRef::as_ref), &[]);
        let columns = columns.projected(Some(&(0..columns.columns.len() - 1).collect()));
        let mut rows = Rows::new(&columns);
        for document in &sample {
            rows.add(document).expect("values of the columns' types");
        }
        let batch = rows.take().expect("columns of one length");
        let text = pretty_format_batches(&[batch])
            .expect("a table")
            .to_string();
        let expected = "\
+--------------------------+---+-----+---+----------------------+---------+------+
| _id                      | n | f   | t | d                    | m       | b    |
+--------------------------+---+-----+---+----------------------+---------+------+
| 0123456789abcdef01234567 | 1 | 1.5 | a | 1970-01-01T00:00:01Z | 1       | true |
| 0123456789abcdef01234567 | 2 | 2.0 |   |                      | [1,\"x\"] |      |
| 0123456789abcdef01234567 |   |     |   |                      | text    |      |
+--------------------------+---+-----+---+----------------------+---------+------+";
        assert_eq!(text, expected);
        assert_eq!(rows.take().expect("no rows").num_rows(), 0);
    }

    #[test]
    fn a_value_of_another_type_names_its_document_and_field() {
        let sample = rawdoc! { "_id": 1, "n": 1 };
        let columns = Columns::of([sample.as_ref()], &[]);
        let mut rows = Rows::new(&columns);
        let error = rows.add(&rawdoc! { "_id": 7, "n": "seven" }).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("\"n\" of the document with _id 7"), "{text}");
        assert!(text.contains("type string"), "{text}");
    }

    #[test]
    fn the_whole_document_is_json() {
        let sample = rawdoc! { "_id": 1, "n": { "a": [1, 2.5] } };
        let columns = Columns::of([sample.as_ref()], &[]).projected(Some(&vec![2]));
        let mut rows = Rows::new(&columns);
        rows.add(&sample).expect("a document");
        let batch = rows.take().expect("a column");
        let expected = Bson::from(doc! { "_id": 1, "n": { "a": [1, 2.5] } });
        let text = datafusion::arrow::util::display::array_value_to_string(batch.column(0), 0);
        assert_eq!(text.expect("a text"), json(&expected));
    }
}
