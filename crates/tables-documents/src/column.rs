//! The columns of a collection, by a sample of its documents.

use std::collections::HashMap;
use std::sync::Arc;

use bson::spec::{BinarySubtype, ElementType};
use bson::{RawBsonRef, RawDocument};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};

/// Name of the column with the whole document; with `_` before it if documents have a field of this name.
const DOCUMENT: &str = "document";
/// Maximum number of columns. Further fields are only in the column with the whole document.
const COLUMNS_MAX: usize = 1_000;

/// The kind of values in a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Booleans.
    Bool,
    /// Integers of 32 and 64 bits.
    Int,
    /// Numbers of which some have a fraction.
    Float,
    /// Strings.
    Text,
    /// Dates, in UTC.
    Date,
    /// Identifiers, written in hexadecimal digits.
    ObjectId,
    /// Bytes.
    Binary,
    /// Decimal numbers, as text.
    Decimal,
    /// Values of several or of other types, as JSON; a string as it is.
    Json,
    /// The whole document, as JSON.
    Document,
}

impl Kind {
    /// Returns the kind of a value; `None` for null.
    pub(crate) fn of(value: RawBsonRef<'_>) -> Option<Kind> {
        Some(match value {
            RawBsonRef::Null | RawBsonRef::Undefined => return None,
            RawBsonRef::Boolean(_) => Kind::Bool,
            RawBsonRef::Int32(_) | RawBsonRef::Int64(_) => Kind::Int,
            RawBsonRef::Double(_) => Kind::Float,
            RawBsonRef::String(_) => Kind::Text,
            RawBsonRef::DateTime(_) => Kind::Date,
            RawBsonRef::ObjectId(_) => Kind::ObjectId,
            RawBsonRef::Decimal128(_) => Kind::Decimal,
            RawBsonRef::Binary(binary) if binary.subtype == BinarySubtype::Generic => Kind::Binary,
            _ => Kind::Json,
        })
    }

    /// Returns the kind of a column with values of both kinds.
    fn with(self, other: Kind) -> Kind {
        match (self, other) {
            (mine, others) if mine == others => mine,
            (Kind::Int, Kind::Float) | (Kind::Float, Kind::Int) => Kind::Float,
            _ => Kind::Json,
        }
    }

    /// Returns the name of the column's type in SQL.
    pub(crate) fn sql_name(self) -> &'static str {
        match self {
            Kind::Bool => "boolean",
            Kind::Int => "bigint",
            Kind::Float => "double precision",
            Kind::Date => "timestamp with time zone",
            Kind::Binary => "bytea",
            Kind::Text | Kind::ObjectId | Kind::Decimal | Kind::Json | Kind::Document => "text",
        }
    }

    fn data_type(self) -> DataType {
        match self {
            Kind::Bool => DataType::Boolean,
            Kind::Int => DataType::Int64,
            Kind::Float => DataType::Float64,
            Kind::Date => DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())),
            Kind::Binary => DataType::Binary,
            Kind::Text | Kind::ObjectId | Kind::Decimal | Kind::Json | Kind::Document => {
                DataType::Utf8View
            }
        }
    }
}

/// A column.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    /// The name of the field, or of the column with the whole document.
    pub(crate) name: String,
    /// The kind of its values.
    pub(crate) kind: Kind,
    /// Whether the field is cached, and each document has a string or null in it, or lacks it. The cache then answers
    /// conditions exactly as SQL means them.
    pub(crate) is_exact: bool,
}

impl Column {
    /// Returns whether a filter or a projection can name the field.
    pub(crate) fn has_path(&self) -> bool {
        self.kind != Kind::Document
            && !self.name.is_empty()
            && !self.name.starts_with('$')
            && !self.name.contains(['.', '\0'])
    }
}

/// The columns of a collection.
#[derive(Debug, Clone)]
pub(crate) struct Columns {
    pub(crate) columns: Vec<Column>,
    pub(crate) schema: SchemaRef,
}

impl Columns {
    /// Returns the columns of a collection with these documents. `exact` are the cached fields of which
    /// [`Column::is_exact`] is true.
    pub(crate) fn of<'a>(
        sample: impl IntoIterator<Item = &'a RawDocument>,
        exact: &[String],
    ) -> Columns {
        let mut found = Found::default();
        for document in sample {
            found.add(document);
        }
        let mut columns: Vec<Column> = found.columns;
        for column in &mut columns {
            column.is_exact = column.kind == Kind::Text && exact.contains(&column.name);
        }
        let mut name = DOCUMENT.to_owned();
        while columns.iter().any(|column| column.name == name) {
            name.insert(0, '_');
        }
        columns.push(Column {
            name,
            kind: Kind::Document,
            is_exact: false,
        });
        Columns::new(columns)
    }

    /// Returns a column of texts and one of numbers.
    pub(crate) fn of_groups(text: &str, number: &str) -> Columns {
        let column = |name: &str, kind| Column {
            name: name.to_owned(),
            kind,
            is_exact: false,
        };
        Columns::new(vec![column(text, Kind::Text), column(number, Kind::Int)])
    }

    fn new(columns: Vec<Column>) -> Columns {
        let fields = columns
            .iter()
            .map(|column| Field::new(&column.name, column.kind.data_type(), true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        Columns { columns, schema }
    }

    /// Returns the columns at `indexes`, or all.
    pub(crate) fn projected(&self, indexes: Option<&Vec<usize>>) -> Columns {
        let Some(indexes) = indexes else {
            return self.clone();
        };
        let found = indexes
            .iter()
            .filter_map(|index| self.columns.get(*index).cloned());
        Columns::new(found.collect())
    }

    /// Returns the column of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }
}

/// The fields found so far.
#[derive(Default)]
struct Found {
    places: HashMap<String, usize>,
    columns: Vec<Column>,
    /// Whether a field has had a value other than null.
    known: Vec<bool>,
}

impl Found {
    fn add(&mut self, document: &RawDocument) {
        for (name, value) in document.iter().flatten() {
            let name = name.as_str();
            let kind = Kind::of(value);
            match self.places.get(name) {
                Some(place) => self.widen(*place, kind),
                None if self.columns.len() < COLUMNS_MAX => {
                    self.places.insert(name.to_owned(), self.columns.len());
                    self.known.push(kind.is_some());
                    self.columns.push(Column {
                        name: name.to_owned(),
                        // A field that is null in all documents may have any value elsewhere.
                        kind: kind.unwrap_or(Kind::Json),
                        is_exact: false,
                    });
                }
                None => {}
            }
        }
    }

    fn widen(&mut self, place: usize, kind: Option<Kind>) {
        let Some(kind) = kind else {
            return;
        };
        let column = &mut self.columns[place];
        column.kind = match self.known[place] {
            true => column.kind.with(kind),
            false => kind,
        };
        self.known[place] = true;
    }
}

/// Returns the name of a value's type, as `$type` has it.
pub(crate) fn type_name(element: ElementType) -> &'static str {
    match element {
        ElementType::Double => "double",
        ElementType::String => "string",
        ElementType::EmbeddedDocument => "object",
        ElementType::Array => "array",
        ElementType::Binary => "binData",
        ElementType::ObjectId => "objectId",
        ElementType::Boolean => "bool",
        ElementType::DateTime => "date",
        ElementType::RegularExpression => "regex",
        ElementType::Int32 => "int",
        ElementType::Timestamp => "timestamp",
        ElementType::Int64 => "long",
        ElementType::Decimal128 => "decimal",
        _ => "of another type",
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn the_kind_of_a_column_fits_all_sampled_values() {
        let sample = [
            rawdoc! { "_id": 1, "a": 1, "b": "x", "c": bson::RawBson::Null, "d": true },
            rawdoc! { "_id": 2_i64, "a": 1.5, "b": 7, "c": "later", "e": bson::RawBson::Null },
            rawdoc! { "_id": 3, "document": { "x": 1 } },
        ];
        let columns = Columns::of(sample.iter().map(AsRef::as_ref), &["c".to_owned()]);
        let kinds = columns
            .columns
            .iter()
            .map(|column| (column.name.as_str(), column.kind, column.is_exact));
        assert_eq!(
            kinds.collect::<Vec<_>>(),
            [
                ("_id", Kind::Int, false),
                ("a", Kind::Float, false),
                ("b", Kind::Json, false),
                ("c", Kind::Text, true),
                ("d", Kind::Bool, false),
                ("e", Kind::Json, false),
                ("document", Kind::Json, false),
                ("_document", Kind::Document, false),
            ]
        );
    }
}
