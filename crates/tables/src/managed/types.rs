//! The columns of a `CREATE TABLE`.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::{
    DECIMAL_DEFAULT_SCALE, DECIMAL128_MAX_PRECISION, DataType, Field, Schema, SchemaRef, TimeUnit,
};
use datafusion::execution::SessionState;
use datafusion::sql::sqlparser::ast::{
    ArrayElemTypeDef, CharacterLength, ColumnDef, ColumnOption, DataType as Sql, ExactNumberInfo,
    TimezoneInfo,
};
use forebay_tables_delta::{COLUMN_DEFAULT, COLUMN_TEXT_TYPE, check_type};

use super::defaults;
use crate::error::{Code, Result, SqlError};
use crate::names;
use crate::parse::folded;

/// Maximum columns of a table, as in PostgreSQL.
const COLUMNS_MAX: usize = 1_600;
/// Bits of the mantissa of a `real`.
const REAL_BITS: u64 = 24;

/// Returns the columns of a table, and notices for the client.
///
/// # Errors
/// If a column has a type or a constraint that managed tables do not have.
pub(super) fn columns(
    state: &SessionState,
    columns: &[ColumnDef],
) -> Result<(SchemaRef, Vec<SqlError>)> {
    let mut notices = Vec::new();
    let fields = columns.iter().map(|column| {
        let name = folded(&column.name);
        let (data_type, text_type) = type_of(&column.data_type)
            .map_err(|error| of_column(error, &name))?;
        if is_open_numeric(&column.data_type) {
            let message = format!(
                "column \"{name}\": numeric is numeric({DECIMAL128_MAX_PRECISION}, {DECIMAL_DEFAULT_SCALE}) here"
            );
            notices.push(SqlError::new(Code::FeatureNotSupported, message));
        }
        let field = Field::new(&name, data_type, true);
        with_options(state, field, text_type, column)
    });
    let fields = fields.collect::<Result<Vec<Field>>>()?;
    checked(Schema::new(fields)).map(|schema| (schema, notices))
}

/// Returns the columns of a table for the rows of a query.
///
/// # Errors
/// If a column has a type that managed tables do not have.
pub(super) fn of_query(columns: &Schema) -> Result<SchemaRef> {
    let fields = columns.fields().iter();
    let fields = fields.map(|field| Field::new(field.name(), stored(field.data_type()), true));
    checked(Schema::new(fields.collect::<Vec<_>>()))
}

fn checked(schema: Schema) -> Result<SchemaRef> {
    names::check_unique(&schema)?;
    let count = schema.fields().len();
    if count == 0 {
        return Err(SqlError::unsupported("a table without columns"));
    }
    if count > COLUMNS_MAX {
        let message = format!("tables can have at most {COLUMNS_MAX} columns");
        return Err(SqlError::new(Code::LimitExceeded, message));
    }
    for field in schema.fields() {
        check_type(field.data_type()).map_err(|error| of_column(error.into(), field.name()))?;
    }
    Ok(Arc::new(schema))
}

fn of_column(error: SqlError, name: &str) -> SqlError {
    SqlError {
        message: format!("column \"{name}\": {}", error.message),
        ..error
    }
}

/// Adds what follows the type of a column.
fn with_options(
    state: &SessionState,
    mut field: Field,
    text_type: Option<String>,
    column: &ColumnDef,
) -> Result<Field> {
    let mut metadata = HashMap::new();
    metadata.extend(text_type.map(|text_type| (COLUMN_TEXT_TYPE.to_owned(), text_type)));
    for option in &column.options {
        let (refused, hint) = match &option.option {
            ColumnOption::Null => continue,
            ColumnOption::NotNull => {
                field = field.with_nullable(false);
                continue;
            }
            ColumnOption::Default(default) => {
                let text = default.to_string();
                defaults::check(state, &text, field.data_type())
                    .map_err(|error| of_column(error, field.name()))?;
                metadata.insert(COLUMN_DEFAULT.to_owned(), text);
                continue;
            }
            ColumnOption::PrimaryKey(_) => ("PRIMARY KEY", NO_KEYS),
            ColumnOption::Unique(_) => ("UNIQUE", NO_KEYS),
            ColumnOption::ForeignKey(_) => ("REFERENCES", NO_KEYS),
            ColumnOption::Check(_) => ("CHECK", "check the rows before they are inserted"),
            ColumnOption::Generated { .. } | ColumnOption::Identity(_) => {
                ("GENERATED", "let the client tell the numbers")
            }
            ColumnOption::Collation(_) => ("COLLATE", "texts are ordered by their bytes"),
            _ => ("this option", "use NOT NULL and DEFAULT"),
        };
        let error = SqlError::unsupported(format!("{refused} in CREATE TABLE"));
        return Err(of_column(error.with_hint(hint), field.name()));
    }
    Ok(field.with_metadata(metadata))
}

/// Why keys are refused: a key that is not enforced would be believed.
pub(super) const NO_KEYS: &str = "managed tables have no indexes and enforce no keys: leave it out";

fn is_open_numeric(sql: &Sql) -> bool {
    matches!(
        sql,
        Sql::Numeric(ExactNumberInfo::None)
            | Sql::Decimal(ExactNumberInfo::None)
            | Sql::Dec(ExactNumberInfo::None)
    )
}

/// Returns the type of a column, and the text of one that limits the length of texts.
fn type_of(sql: &Sql) -> Result<(DataType, Option<String>)> {
    let text = |name: &str, length: Option<CharacterLength>, default: Option<u64>| {
        let length = match length {
            Some(CharacterLength::IntegerLength { length, .. }) => Some(length),
            Some(CharacterLength::Max) => None,
            None => default,
        };
        if length == Some(0) {
            let message = format!("length for type {name} must be at least 1");
            return Err(SqlError::new(Code::InvalidParameterValue, message));
        }
        let text_type = length.map(|length| format!("{name}({length})"));
        Ok((DataType::Utf8View, text_type))
    };
    let plain = match sql {
        Sql::Varchar(length) | Sql::CharacterVarying(length) | Sql::CharVarying(length) => {
            return text("varchar", *length, None);
        }
        Sql::Char(length) | Sql::Character(length) => return text("char", *length, Some(1)),
        Sql::Text => DataType::Utf8View,
        Sql::Boolean | Sql::Bool => DataType::Boolean,
        Sql::SmallInt(None) | Sql::Int2(None) => DataType::Int16,
        Sql::Int(None) | Sql::Integer(None) | Sql::Int4(None) => DataType::Int32,
        Sql::BigInt(None) | Sql::Int8(None) => DataType::Int64,
        Sql::Real | Sql::Float4 => DataType::Float32,
        Sql::DoublePrecision | Sql::Float8 | Sql::Float(ExactNumberInfo::None) => DataType::Float64,
        Sql::Float(ExactNumberInfo::Precision(bits)) => match *bits <= REAL_BITS {
            true => DataType::Float32,
            false => DataType::Float64,
        },
        Sql::Numeric(info) | Sql::Decimal(info) | Sql::Dec(info) => decimal(*info)?,
        Sql::Bytea => DataType::BinaryView,
        Sql::Date => DataType::Date32,
        Sql::Timestamp(None | Some(6), zone) => {
            let zone = match zone {
                TimezoneInfo::None | TimezoneInfo::WithoutTimeZone => None,
                TimezoneInfo::Tz | TimezoneInfo::WithTimeZone => Some("UTC".into()),
            };
            DataType::Timestamp(TimeUnit::Microsecond, zone)
        }
        Sql::Array(ArrayElemTypeDef::SquareBracket(item, _)) => match type_of(item)? {
            (item, None) => DataType::new_list(item, true),
            (_, Some(item)) => return Err(unsupported(&format!("{item}[]"))),
        },
        other => return Err(unsupported(&other.to_string().to_lowercase())),
    };
    Ok((plain, None))
}

fn decimal(info: ExactNumberInfo) -> Result<DataType> {
    let (digits, scale) = match info {
        ExactNumberInfo::None => {
            return Ok(DataType::Decimal128(
                DECIMAL128_MAX_PRECISION,
                DECIMAL_DEFAULT_SCALE,
            ));
        }
        ExactNumberInfo::Precision(digits) => (digits, 0),
        ExactNumberInfo::PrecisionAndScale(digits, scale) => (digits, scale),
    };
    let is_possible = (1..=DECIMAL128_MAX_PRECISION.into()).contains(&digits)
        && i64::try_from(digits).is_ok_and(|digits| (0..=digits).contains(&scale));
    match (u8::try_from(digits), i8::try_from(scale)) {
        (Ok(digits), Ok(scale)) if is_possible => Ok(DataType::Decimal128(digits, scale)),
        _ => Err(
            unsupported(&format!("numeric({digits}, {scale})")).with_hint(format!(
                "use up to {DECIMAL128_MAX_PRECISION} digits, of which decimals are a part"
            )),
        ),
    }
}

fn unsupported(name: &str) -> SqlError {
    let hint = match name {
        "time" | "time without time zone" | "interval" | "uuid" | "json" | "jsonb" => "use text",
        "serial" | "bigserial" | "smallserial" => {
            "use integer or bigint, and let the client tell the numbers"
        }
        _ => {
            "use boolean, smallint, integer, bigint, real, double precision, numeric, text, varchar, char, bytea, \
              date, timestamp, timestamptz, or arrays of them"
        }
    };
    SqlError::unsupported(format!("the type {name} in a managed table")).with_hint(hint)
}

/// Returns the type in which the values of a query are stored.
fn stored(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Null | DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary | DataType::FixedSizeBinary(_) => {
            DataType::BinaryView
        }
        DataType::Int8 | DataType::UInt8 => DataType::Int16,
        DataType::UInt16 => DataType::Int32,
        DataType::UInt32 => DataType::Int64,
        DataType::UInt64 => DataType::Decimal128(20, 0),
        DataType::Float16 => DataType::Float32,
        DataType::Date64 => DataType::Date32,
        DataType::Timestamp(_, zone) => {
            let zone = zone.as_ref().map(|_| "UTC".into());
            DataType::Timestamp(TimeUnit::Microsecond, zone)
        }
        DataType::Decimal32(digits, scale) | DataType::Decimal64(digits, scale) => {
            DataType::Decimal128(*digits, *scale)
        }
        DataType::Dictionary(_, values) => stored(values),
        DataType::RunEndEncoded(_, values) => stored(values.data_type()),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            DataType::new_list(stored(item.data_type()), true)
        }
        other => other.clone(),
    }
}
