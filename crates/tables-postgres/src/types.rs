//! Maps Arrow types to PostgreSQL types and back.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, IntervalUnit, TimeUnit};
use pgwire::api::Type;

/// Bytes of the header of a variable-length value, which PostgreSQL adds to a type modifier.
const HEADER_BYTES: i32 = 4;

/// Bits of a modifier of `numeric` that hold the scale.
const SCALE_BITS: i32 = 0x7ff;

/// The types that arrays may have as elements, each with its array type.
static ARRAYS: &[(Type, Type)] = &[
    (Type::BOOL, Type::BOOL_ARRAY),
    (Type::INT2, Type::INT2_ARRAY),
    (Type::INT4, Type::INT4_ARRAY),
    (Type::INT8, Type::INT8_ARRAY),
    (Type::OID, Type::OID_ARRAY),
    (Type::NUMERIC, Type::NUMERIC_ARRAY),
    (Type::FLOAT4, Type::FLOAT4_ARRAY),
    (Type::FLOAT8, Type::FLOAT8_ARRAY),
    (Type::TEXT, Type::TEXT_ARRAY),
    (Type::VARCHAR, Type::VARCHAR_ARRAY),
    (Type::BPCHAR, Type::BPCHAR_ARRAY),
    (Type::NAME, Type::NAME_ARRAY),
    (Type::CHAR, Type::CHAR_ARRAY),
    (Type::BYTEA, Type::BYTEA_ARRAY),
    (Type::DATE, Type::DATE_ARRAY),
    (Type::TIME, Type::TIME_ARRAY),
    (Type::TIMESTAMP, Type::TIMESTAMP_ARRAY),
    (Type::TIMESTAMPTZ, Type::TIMESTAMPTZ_ARRAY),
    (Type::INTERVAL, Type::INTERVAL_ARRAY),
    (Type::UUID, Type::UUID_ARRAY),
    (Type::JSON, Type::JSON_ARRAY),
    (Type::JSONB, Type::JSONB_ARRAY),
];

/// Returns the type that clients see for a column of `data_type`.
///
/// An unsigned integer gets the next wider signed type, and `UInt64` gets `numeric`. Lists of lists have the array type
/// of their innermost elements, as in PostgreSQL. Structures, maps and unions are shown as `json`.
pub fn pg_type(data_type: &DataType) -> Type {
    match data_type {
        DataType::Boolean => Type::BOOL,
        DataType::Int8 | DataType::Int16 | DataType::UInt8 => Type::INT2,
        DataType::Int32 | DataType::UInt16 => Type::INT4,
        DataType::Int64 | DataType::UInt32 => Type::INT8,
        DataType::UInt64
        | DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => Type::NUMERIC,
        DataType::Float16 | DataType::Float32 => Type::FLOAT4,
        DataType::Float64 => Type::FLOAT8,
        DataType::Null | DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Type::TEXT,
        DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => Type::BYTEA,
        DataType::Struct(_) | DataType::Map(..) | DataType::Union(..) => Type::JSON,
        DataType::Dictionary(_, values) => pg_type(values),
        DataType::RunEndEncoded(_, values) => pg_type(values.data_type()),
        other => temporal_or_list(other),
    }
}

/// Returns the type of dates, times and lists.
fn temporal_or_list(data_type: &DataType) -> Type {
    match data_type {
        DataType::Date32 | DataType::Date64 => Type::DATE,
        DataType::Time32(_) | DataType::Time64(_) => Type::TIME,
        DataType::Timestamp(_, None) => Type::TIMESTAMP,
        DataType::Timestamp(_, Some(_)) => Type::TIMESTAMPTZ,
        DataType::Interval(_) | DataType::Duration(_) => Type::INTERVAL,
        _ => element(data_type).map_or(Type::TEXT, |inner| array_of(&pg_type(inner))),
    }
}

/// Returns the type of a list's elements, or `None` if `data_type` is not a list.
pub(crate) fn element(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _) => Some(field.data_type()),
        _ => None,
    }
}

/// Returns the array type of `element`. An array's array type is itself.
fn array_of(element: &Type) -> Type {
    if item_type(element).is_some() {
        return element.clone();
    }
    let found = ARRAYS.iter().find(|(item, _)| item == element);
    found.map_or(Type::TEXT_ARRAY, |(_, array)| array.clone())
}

/// Returns the type of an array type's elements, or `None` if `pg` is not an array type that this server reads.
pub(crate) fn item_type(pg: &Type) -> Option<&'static Type> {
    let found = ARRAYS.iter().find(|(_, array)| array == pg);
    found.map(|(item, _)| item)
}

/// Returns the bytes of a value in PostgreSQL's storage (`typlen`): -1 if they vary, -2 for a C string.
pub fn size(pg: &Type) -> i16 {
    match *pg {
        Type::BOOL | Type::CHAR => 1,
        Type::INT2 => 2,
        Type::INT4 | Type::FLOAT4 | Type::OID | Type::DATE => 4,
        Type::INT8 | Type::FLOAT8 | Type::TIME | Type::TIMESTAMP | Type::TIMESTAMPTZ => 8,
        Type::INTERVAL | Type::UUID => 16,
        Type::NAME => 64,
        Type::UNKNOWN => -2,
        _ => -1,
    }
}

/// Returns the type modifier (`atttypmod`): the precision and scale of a decimal, or -1.
///
/// A list has the modifier of its elements.
pub fn modifier(data_type: &DataType) -> i32 {
    match data_type {
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => {
            ((i32::from(*precision) << 16) | (i32::from(*scale) & SCALE_BITS)) + HEADER_BYTES
        }
        DataType::Dictionary(_, values) => modifier(values),
        DataType::RunEndEncoded(_, values) => modifier(values.data_type()),
        other => element(other).map_or(-1, modifier),
    }
}

/// Returns the type of the values that [`crate::decode::parameter`] makes of the type that a client declares.
///
/// Returns `None` for `numeric` and its arrays, whose precision and scale are those of each value, and for types that
/// cannot be parameters; [`is_parameter`] tells these two apart.
///
/// `oid` is `Int64`, as Arrow's functions prefer signed integers. `uuid`, `json` and `jsonb` are text. A list has one
/// dimension, as PostgreSQL does not declare how many dimensions an array has; the value may have more.
pub fn arrow_type(pg: &Type) -> Option<DataType> {
    if let Some(item) = item_type(pg) {
        let field = Field::new_list_field(arrow_type(item)?, true);
        return Some(DataType::List(Arc::new(field)));
    }
    Some(match *pg {
        Type::BOOL => DataType::Boolean,
        Type::INT2 => DataType::Int16,
        Type::INT4 => DataType::Int32,
        Type::INT8 | Type::OID => DataType::Int64,
        Type::FLOAT4 => DataType::Float32,
        Type::FLOAT8 => DataType::Float64,
        Type::BYTEA => DataType::Binary,
        Type::DATE => DataType::Date32,
        Type::TIME => DataType::Time64(TimeUnit::Microsecond),
        Type::TIMESTAMP => DataType::Timestamp(TimeUnit::Microsecond, None),
        Type::TIMESTAMPTZ => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        Type::INTERVAL => DataType::Interval(IntervalUnit::MonthDayNano),
        Type::UUID | Type::JSON | Type::JSONB => DataType::Utf8,
        _ if is_text(pg) => DataType::Utf8,
        _ => return None,
    })
}

/// Returns whether the values of the type are plain text.
pub(crate) fn is_text(pg: &Type) -> bool {
    matches!(
        *pg,
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::CHAR | Type::UNKNOWN
    )
}

/// Returns whether a parameter may have the type.
pub fn is_parameter(pg: &Type) -> bool {
    matches!(*pg, Type::NUMERIC | Type::NUMERIC_ARRAY) || arrow_type(pg).is_some()
}
