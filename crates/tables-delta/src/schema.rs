//! Columns of a table, as Arrow and as Delta Lake describe them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Error, Result};

/// Key of a field's metadata: the SQL text of a column's default.
pub const COLUMN_DEFAULT: &str = "CURRENT_DEFAULT";
/// Key of a field's metadata: the type of a text with a length, such as `varchar(10)` or `char(3)`.
pub const COLUMN_TEXT_TYPE: &str = "__CHAR_VARCHAR_TYPE_STRING";

/// Maximum digits of a decimal.
const DIGITS_MAX: u8 = 38;

/// The columns, as they are in the log.
#[derive(Serialize, Deserialize)]
struct Columns {
    #[serde(rename = "type")]
    kind: String,
    fields: Vec<Column>,
}

#[derive(Serialize, Deserialize)]
struct Column {
    name: String,
    #[serde(rename = "type")]
    data_type: Value,
    nullable: bool,
    #[serde(default)]
    metadata: BTreeMap<String, Value>,
}

/// Returns the text of columns for the log.
///
/// # Errors
/// If a column has a type that tables do not have.
pub(crate) fn to_text(schema: &Schema) -> Result<String> {
    let column = |field: &Arc<Field>| {
        let metadata = field.metadata().iter();
        let metadata = metadata.map(|(key, value)| (key.clone(), Value::from(value.as_str())));
        Ok(Column {
            name: field.name().clone(),
            data_type: type_to_json(field.data_type())?,
            nullable: field.is_nullable(),
            metadata: metadata.collect(),
        })
    };
    let columns = Columns {
        kind: "struct".to_owned(),
        fields: schema.fields().iter().map(column).collect::<Result<_>>()?,
    };
    serde_json::to_string(&columns).map_err(|error| Error::Unsupported(error.to_string()))
}

/// Returns the columns of a text of the log.
///
/// # Errors
/// If the text is malformed, or a column has a type that this crate does not have.
pub(crate) fn of_text(text: &str) -> Result<SchemaRef> {
    let malformed = |error| Error::Unsupported(format!("the schema {text:?} ({error})"));
    let columns: Columns = serde_json::from_str(text).map_err(malformed)?;
    let field = |column: Column| {
        let texts = column
            .metadata
            .into_iter()
            .filter_map(|(key, value)| match value {
                Value::String(text) => Some((key, text)),
                _ => None,
            });
        let metadata: HashMap<String, String> = texts.collect();
        let data_type = type_of_json(&column.data_type)?;
        Ok(Field::new(column.name, data_type, column.nullable).with_metadata(metadata))
    };
    let fields = columns.fields.into_iter().map(field);
    Ok(Arc::new(Schema::new(fields.collect::<Result<Vec<_>>>()?)))
}

/// Refuses a type that columns cannot have.
///
/// # Errors
/// [`Error::Unsupported`].
pub fn check_type(data_type: &DataType) -> Result<()> {
    type_to_json(data_type).map(drop)
}

fn type_to_json(data_type: &DataType) -> Result<Value> {
    Ok(match data_type {
        DataType::Boolean => json!("boolean"),
        DataType::Int8 => json!("byte"),
        DataType::Int16 => json!("short"),
        DataType::Int32 => json!("integer"),
        DataType::Int64 => json!("long"),
        DataType::Float32 => json!("float"),
        DataType::Float64 => json!("double"),
        DataType::Utf8View => json!("string"),
        DataType::BinaryView => json!("binary"),
        DataType::Date32 => json!("date"),
        DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => json!("timestamp"),
        DataType::Timestamp(TimeUnit::Microsecond, None) => json!("timestamp_ntz"),
        DataType::Decimal128(digits, scale) if *scale >= 0 => {
            json!(format!("decimal({digits},{scale})"))
        }
        DataType::List(item) => json!({
            "type": "array",
            "elementType": type_to_json(item.data_type())?,
            "containsNull": item.is_nullable(),
        }),
        other => return Err(Error::Unsupported(format!("the type {other}"))),
    })
}

fn type_of_json(json: &Value) -> Result<DataType> {
    let unknown = || Error::Unsupported(format!("the type {json}"));
    if let Value::Object(nested) = json {
        let item = nested.get("elementType").ok_or_else(unknown)?;
        let has_nulls = nested.get("containsNull").and_then(Value::as_bool);
        let item = Field::new_list_field(type_of_json(item)?, has_nulls.unwrap_or(true));
        return Ok(DataType::List(Arc::new(item)));
    }
    Ok(match json.as_str().ok_or_else(unknown)? {
        "boolean" => DataType::Boolean,
        "byte" => DataType::Int8,
        "short" => DataType::Int16,
        "integer" => DataType::Int32,
        "long" => DataType::Int64,
        "float" => DataType::Float32,
        "double" => DataType::Float64,
        "string" => DataType::Utf8View,
        "binary" => DataType::BinaryView,
        "date" => DataType::Date32,
        "timestamp" => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        "timestamp_ntz" => DataType::Timestamp(TimeUnit::Microsecond, None),
        decimal => of_decimal(decimal).ok_or_else(unknown)?,
    })
}

fn of_decimal(text: &str) -> Option<DataType> {
    let inner = text.strip_prefix("decimal(")?.strip_suffix(')')?;
    let (digits, scale) = inner.split_once(',')?;
    let (digits, scale) = (digits.trim().parse().ok()?, scale.trim().parse().ok()?);
    let is_possible =
        (1..=DIGITS_MAX).contains(&digits) && (0..=i8::try_from(digits).ok()?).contains(&scale);
    is_possible.then_some(DataType::Decimal128(digits, scale))
}

/// Returns whether a column has times without a zone, which are a feature of their own in Delta Lake.
pub(crate) fn has_times_without_zone(schema: &Schema) -> bool {
    fn is_one(data_type: &DataType) -> bool {
        match data_type {
            DataType::Timestamp(_, None) => true,
            DataType::List(item) => is_one(item.data_type()),
            _ => false,
        }
    }
    schema
        .fields()
        .iter()
        .any(|field| is_one(field.data_type()))
}

/// Returns whether a column has a default.
pub(crate) fn has_defaults(schema: &Schema) -> bool {
    let mut fields = schema.fields().iter();
    fields.any(|field| field.metadata().contains_key(COLUMN_DEFAULT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_read_back_as_they_were_written() {
        let list = DataType::new_list(DataType::Utf8View, true);
        let default = HashMap::from([(COLUMN_DEFAULT.to_owned(), "'a'".to_owned())]);
        let schema = Schema::new(vec![
            Field::new("a b", DataType::Int16, false),
            Field::new("d", DataType::Decimal128(12, 2), true),
            Field::new("l", list, true),
            Field::new("t", DataType::Utf8View, true).with_metadata(default),
            Field::new(
                "z",
                DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
                true,
            ),
        ]);
        let text = to_text(&schema).expect("types that tables have");
        assert_eq!(*of_text(&text).expect("it was written"), schema);
        assert!(has_defaults(&schema) && !has_times_without_zone(&schema));
    }

    #[test]
    fn other_types_are_refused() {
        check_type(&DataType::Time64(TimeUnit::Microsecond)).expect_err("no times of a day");
        check_type(&DataType::Decimal256(50, 1)).expect_err("too many digits");
        for other in [
            "{}",
            r#"{"type":"struct","fields":[{"name":"a","type":"void","nullable":true}]}"#,
        ] {
            of_text(other).expect_err(other);
        }
    }
}
