//! What `\d` shows: the tables, and the columns of a table.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::arrow::datatypes::{DataType, Field, SchemaRef, TimeUnit};
use datafusion::arrow::error::ArrowError;
use forebay_tables::Session;

use super::failure::Failure;

/// Returns the names of the tables.
///
/// # Errors
/// If they do not fit in an Arrow array.
pub async fn tables(session: &Session) -> Result<RecordBatch, Failure> {
    let names = session.table_names().await;
    Ok(batch([("table", names)])?)
}

/// Returns the columns of a table, or of a file whose path is in single quotes.
///
/// # Errors
/// If there is no such table.
pub async fn schema(session: &Session, name: &str) -> forebay_tables::Result<SchemaRef> {
    let path = name
        .strip_prefix('\'')
        .and_then(|path| path.strip_suffix('\''));
    match path.map(|path| path.replace("''", "'")) {
        // Without a slash, it would be the name of a table in a schema.
        Some(path) if !path.contains('/') => session.describe(&format!("./{path}")).await,
        Some(path) => session.describe(&path).await,
        None => session.describe(name).await,
    }
}

/// Returns the names, types and nullability of a table's columns.
///
/// # Errors
/// If there is no such table.
pub async fn columns(session: &Session, name: &str) -> Result<RecordBatch, Failure> {
    let schema = schema(session, name).await?;
    let each =
        |text: fn(&Field) -> String| schema.fields().iter().map(|field| text(field)).collect();
    let null = |field: &Field| if field.is_nullable() { "" } else { "not null" }.to_owned();
    Ok(batch([
        ("column", each(|field| field.name().clone())),
        ("type", each(|field| type_name(field.data_type()))),
        ("null", each(null)),
    ])?)
}

fn batch<const N: usize>(columns: [(&str, Vec<String>); N]) -> Result<RecordBatch, ArrowError> {
    let array = |texts| -> ArrayRef { Arc::new(StringArray::from(texts)) };
    RecordBatch::try_from_iter(columns.map(|(name, texts)| (name, array(texts))))
}

/// Returns the name of a type in SQL, or Arrow's name of a type that SQL does not have.
fn type_name(kind: &DataType) -> String {
    let name = match kind {
        DataType::Boolean => "boolean",
        DataType::Int8 => "tinyint",
        DataType::Int16 => "smallint",
        DataType::Int32 => "integer",
        DataType::Int64 => "bigint",
        DataType::UInt8 => "tinyint unsigned",
        DataType::UInt16 => "smallint unsigned",
        DataType::UInt32 => "integer unsigned",
        DataType::UInt64 => "bigint unsigned",
        DataType::Float32 => "real",
        DataType::Float64 => "double precision",
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "text",
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "bytea",
        DataType::Date32 | DataType::Date64 => "date",
        DataType::Time32(_) | DataType::Time64(_) => "time",
        DataType::Interval(_) => "interval",
        DataType::Timestamp(unit, zone) => return timestamp_name(*unit, zone.is_some()),
        DataType::Decimal32(digits, scale)
        | DataType::Decimal64(digits, scale)
        | DataType::Decimal128(digits, scale)
        | DataType::Decimal256(digits, scale) => return format!("numeric({digits},{scale})"),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            return format!("{}[]", type_name(item.data_type()));
        }
        DataType::Dictionary(_, values) => return type_name(values),
        other => return other.to_string(),
    };
    name.to_owned()
}

fn timestamp_name(unit: TimeUnit, has_zone: bool) -> String {
    let digits = match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    };
    let zone = if has_zone { " with time zone" } else { "" };
    format!("timestamp({digits}){zone}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_names_of_sql() {
        let list = DataType::List(Arc::new(Field::new("item", DataType::Utf8View, true)));
        for (kind, name) in [
            (DataType::Int64, "bigint"),
            (DataType::Decimal128(15, 2), "numeric(15,2)"),
            (
                DataType::Timestamp(TimeUnit::Microsecond, None),
                "timestamp(6)",
            ),
            (list, "text[]"),
            (DataType::Null, "Null"),
        ] {
            assert_eq!(type_name(&kind), name);
        }
    }
}
