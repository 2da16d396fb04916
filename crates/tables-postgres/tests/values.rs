//! Values in PostgreSQL's formats: what a PostgreSQL 15 prints, round trips, malformed input, random input.

use std::sync::Arc;

use bytes::BytesMut;
use datafusion::arrow::array::timezone::Tz;
use datafusion::arrow::array::types::*;
use datafusion::arrow::array::*;
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::datatypes::{DataType, Field, Fields, IntervalUnit, TimeUnit, i256};
use datafusion::common::ScalarValue;
use forebay_tables::{Code, SqlError};
use forebay_tables_postgres::decode::{parameter, parameter_in_zone};
use forebay_tables_postgres::encode::{Format, RowEncoder, TextSettings};
use forebay_tables_postgres::types::{arrow_type, is_parameter, modifier, pg_type, size};
use pgwire::api::Type;

#[path = "values/expected.rs"]
#[rustfmt::skip]
mod expected;
#[path = "values/nested.rs"]
mod nested;
#[path = "values/random.rs"]
mod random;

/// An array of one value, and how PostgreSQL prints and sends it.
pub struct Case {
    array: ArrayRef,
    text: &'static str,
    hex: &'static str,
}

fn case(array: ArrayRef, text: &'static str, hex: &'static str) -> Case {
    Case { array, text, hex }
}

fn arr(array: impl Array + 'static) -> ArrayRef {
    Arc::new(array)
}

fn primitive<T: ArrowPrimitiveType>(value: T::Native) -> ArrayRef {
    arr(PrimitiveArray::<T>::from_value(value, 1))
}

fn decimal(value: i128, precision: u8, scale: i8) -> ArrayRef {
    let array = Decimal128Array::from(vec![value]);
    arr(array.with_precision_and_scale(precision, scale).unwrap())
}

fn wide_decimal(value: &str, scale: i8) -> ArrayRef {
    let array = Decimal256Array::from(vec![i256::from_string(value).unwrap()]);
    arr(array.with_precision_and_scale(76, scale).unwrap())
}

fn interval(months: i32, days: i32, nanos: i64) -> ArrayRef {
    primitive::<IntervalMonthDayNanoType>(IntervalMonthDayNano::new(months, days, nanos))
}

/// Returns a list of all elements.
fn list(elements: ArrayRef) -> ArrayRef {
    let length = elements.len();
    lists(elements, [length])
}

/// Returns lists of some lengths.
fn lists(elements: ArrayRef, lengths: impl IntoIterator<Item = usize>) -> ArrayRef {
    let field = Arc::new(Field::new_list_field(elements.data_type().clone(), true));
    arr(ListArray::new(
        field,
        OffsetBuffer::from_lengths(lengths),
        elements,
        None,
    ))
}

/// Returns `{{1,2},{NULL,4},{5,6}}`.
fn matrix() -> ArrayRef {
    let elements = Int32Array::from(vec![Some(1), Some(2), None, Some(4), Some(5), Some(6)]);
    list(lists(arr(elements), [2, 2, 2]))
}

fn zone(name: &str) -> TextSettings {
    TextSettings {
        time_zone: name.parse::<Tz>().unwrap(),
    }
}

fn encoder(array: ArrayRef, format: Format, settings: &TextSettings) -> RowEncoder {
    let batch = RecordBatch::try_from_iter_with_nullable([("a", array, true)]).unwrap();
    RowEncoder::new(&batch, &[format], settings).unwrap()
}

fn encoded(array: &ArrayRef, format: Format) -> Result<Option<Vec<u8>>, SqlError> {
    let mut out = BytesMut::new();
    let encoder = encoder(array.clone(), format, &zone("UTC"));
    let is_there = encoder.encode_cell(0, 0, &mut out)?;
    Ok(is_there.then(|| out.to_vec()))
}

fn text(array: &ArrayRef) -> String {
    String::from_utf8(encoded(array, Format::Text).unwrap().unwrap()).unwrap()
}

fn binary(array: &ArrayRef) -> Vec<u8> {
    encoded(array, Format::Binary).unwrap().unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(hex: &str) -> Vec<u8> {
    let pairs = (0..hex.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

fn text_of_scalar(value: &ScalarValue) -> String {
    text(&value.to_array().unwrap())
}

fn all_cases() -> Vec<Case> {
    use expected::*;
    let cases = [
        scalars(),
        floats(),
        decimals(),
        strings(),
        dates(),
        times(),
        timestamps(),
        intervals(),
        arrays(),
    ];
    cases.into_iter().flatten().collect()
}

#[test]
fn values_are_encoded_as_postgresql_does() {
    for case in all_cases() {
        assert_eq!(text(&case.array), case.text, "{:?}", case.array);
        assert_eq!(hex(&binary(&case.array)), case.hex, "{:?}", case.array);
    }
}

/// Returns whether Arrow has the value: its times end before `24:00:00`.
fn is_readable(case: &Case) -> bool {
    case.text != "24:00:00"
}

#[test]
fn encoded_values_are_decoded_to_the_same() {
    for case in all_cases().iter().filter(|case| is_readable(case)) {
        let type_ = pg_type(case.array.data_type());
        let from_text = parameter(&type_, false, Some(case.text.as_bytes())).unwrap();
        let from_binary = parameter(&type_, true, Some(&unhex(case.hex))).unwrap();
        assert_eq!(text_of_scalar(&from_text), case.text);
        assert_eq!(text_of_scalar(&from_binary), case.text);
        for value in [from_text, from_binary] {
            assert_eq!(
                hex(&binary(&value.to_array().unwrap())),
                case.hex,
                "{value:?}"
            );
            check_type(&type_, &value);
        }
    }
}

/// Checks that a value has the type that [`arrow_type`] tells.
fn check_type(type_: &Type, value: &ScalarValue) {
    let is_nested = |data_type: &DataType| match data_type {
        DataType::List(field) => matches!(field.data_type(), DataType::List(_)),
        _ => false,
    };
    match arrow_type(type_) {
        Some(data_type) if !is_nested(&value.data_type()) => {
            assert_eq!(value.data_type(), data_type)
        }
        _ => assert!(is_parameter(type_)),
    }
}

#[test]
fn texts_are_read_as_postgresql_does() {
    for (type_, input, expected) in expected::TEXTS {
        let value = parameter(type_, false, Some(input.as_bytes()));
        if let Ok(value) = &value {
            check_type(type_, value);
        }
        let actual = value.map(|value| text_of_scalar(&value));
        let expected = expected
            .map(str::to_owned)
            .map_err(|(code, text)| SqlError::new(code, text));
        assert_eq!(actual, expected, "{type_} {input:?}");
    }
}

#[test]
fn texts_that_this_server_reads_differently() {
    let read = |type_, text: &str| parameter(&type_, false, Some(text.as_bytes()));
    let code = |type_, text| read(type_, text).unwrap_err().code;
    // PostgreSQL: `{1.5,2.50}`; the elements of a list have one scale.
    assert_eq!(
        text_of_scalar(&read(Type::NUMERIC_ARRAY, "{1.5,2.50}").unwrap()),
        "{1.50,2.50}"
    );
    // PostgreSQL: `24:00:00`.
    assert_eq!(code(Type::TIME, "23:59:60"), Code::NumericValueOutOfRange);
    assert_eq!(code(Type::TIME, "24:00:00"), Code::NumericValueOutOfRange);
    // PostgreSQL has NaN and infinities.
    assert_eq!(code(Type::NUMERIC, "NaN"), Code::InvalidTextRepresentation);
    assert_eq!(
        code(Type::NUMERIC, "-Infinity"),
        Code::InvalidTextRepresentation
    );
    assert_eq!(code(Type::TIMESTAMP, "infinity"), Code::FeatureNotSupported);
    assert_eq!(code(Type::DATE, "-infinity"), Code::FeatureNotSupported);
    // PostgreSQL has 131072 digits.
    assert_eq!(code(Type::NUMERIC, "1e76"), Code::NumericValueOutOfRange);
    assert_eq!(code(Type::NUMERIC, "1e-77"), Code::NumericValueOutOfRange);
    assert_eq!(
        code(Type::NUMERIC, "1e999999999999999999999"),
        Code::NumericValueOutOfRange
    );
    // PostgreSQL counts from 2000, and Arrow from 1970.
    assert_eq!(
        code(Type::TIMESTAMP, "294276-12-31 23:59:59"),
        Code::NumericValueOutOfRange
    );
    // PostgreSQL: codes 22009 and 22023.
    assert_eq!(
        code(Type::TIMESTAMPTZ, "2020-01-31 10:00:00+16"),
        Code::InvalidDatetimeFormat
    );
    assert_eq!(
        code(Type::TIMESTAMPTZ, "2020-01-31 10:00 Mars/Phobos"),
        Code::InvalidDatetimeFormat
    );
    // PostgreSQL reads all of these.
    assert_eq!(
        code(Type::TIMESTAMP, "Jan 31 2020"),
        Code::InvalidDatetimeFormat
    );
    assert_eq!(code(Type::TIME, "04:05 PM"), Code::InvalidDatetimeFormat);
    assert_eq!(code(Type::INTERVAL, "P1DT2H"), Code::InvalidDatetimeFormat);
    assert_eq!(
        code(Type::INT4_ARRAY, "[2:3]={1,2}"),
        Code::FeatureNotSupported
    );
}

#[test]
fn times_are_printed_and_read_in_time_zones() {
    for (name, micros, expected, hex_expected) in expected::IN_ZONES {
        // `chrono-tz` has no rules after 2100.
        let is_far = *micros > 4_000_000_000_000_000 && name.contains('/');
        let array = TimestampMicrosecondArray::from(vec![*micros]).with_timezone("UTC");
        let encoder = encoder(arr(array), Format::Text, &zone(name));
        let mut out = BytesMut::new();
        encoder.encode_cell(0, 0, &mut out).unwrap();
        let text = String::from_utf8(out.to_vec()).unwrap();
        if !is_far {
            assert_eq!(text, *expected, "{name}");
        }
        for value in [
            parameter(&Type::TIMESTAMPTZ, false, Some(text.as_bytes())).unwrap(),
            parameter(&Type::TIMESTAMPTZ, true, Some(&unhex(hex_expected))).unwrap(),
        ] {
            assert_eq!(
                value,
                ScalarValue::TimestampMicrosecond(Some(*micros), Some("UTC".into()))
            );
        }
    }
}

#[test]
fn a_time_without_a_zone_is_in_that_of_the_session() {
    let read = |text: &str| {
        let zone = zone("America/New_York").time_zone;
        let value = parameter_in_zone(&Type::TIMESTAMPTZ, false, Some(text.as_bytes()), zone);
        text_of_scalar(&value.unwrap())
    };
    assert_eq!(read("2020-01-31 10:00:00"), "2020-01-31 15:00:00+00");
    assert_eq!(read("2020-07-31"), "2020-07-31 04:00:00+00");
    assert_eq!(read("2020-03-08 02:30:00"), "2020-03-08 07:30:00+00");
    assert_eq!(read("2020-11-01 01:30:00"), "2020-11-01 06:30:00+00");
    assert_eq!(read("2020-01-31 10:00:00+00"), "2020-01-31 10:00:00+00");
}

/// Returns all rows in a format, with `None` for nulls.
fn rows(array: &ArrayRef, format: Format) -> Vec<Option<Vec<u8>>> {
    let encoder = encoder(array.clone(), format, &zone("Asia/Kolkata"));
    let row = |row| {
        let mut out = BytesMut::new();
        encoder
            .encode_cell(row, 0, &mut out)
            .unwrap()
            .then(|| out.to_vec())
    };
    (0..encoder.row_count()).map(row).collect()
}

fn texts(array: &ArrayRef) -> Vec<Option<String>> {
    let rows = rows(array, Format::Text).into_iter();
    rows.map(|row| row.map(|bytes| String::from_utf8(bytes).unwrap()))
        .collect()
}

fn some(texts: &[&str]) -> Vec<Option<String>> {
    texts
        .iter()
        .map(|text| (*text != "NULL").then(|| (*text).to_owned()))
        .collect()
}

#[test]
fn values_that_postgresql_does_not_hold_are_errors() {
    let arrays = [
        primitive::<TimestampSecondType>(i64::MAX),
        primitive::<TimestampSecondType>(i64::MIN),
        primitive::<TimestampMillisecondType>(i64::MAX),
        primitive::<TimestampMicrosecondType>(i64::MIN),
        primitive::<TimestampMicrosecondType>(-210_866_803_200_000_001),
        arr(TimestampMicrosecondArray::from(vec![i64::MIN]).with_timezone("UTC")),
        primitive::<Date32Type>(i32::MAX),
        primitive::<Date32Type>(i32::MIN),
        primitive::<Date32Type>(-2_440_589),
        primitive::<Date32Type>(2_145_042_906),
        primitive::<Date64Type>(i64::MAX),
        primitive::<Date64Type>(i64::MIN),
        primitive::<Time32SecondType>(-1),
        primitive::<Time64MicrosecondType>(86_400_000_001),
        primitive::<Time64NanosecondType>(i64::MAX),
        primitive::<DurationSecondType>(i64::MAX),
        primitive::<DurationMillisecondType>(i64::MIN),
    ];
    for array in arrays {
        for format in [Format::Text, Format::Binary] {
            let error = encoded(&array, format).unwrap_err();
            assert_eq!(error.code, Code::NumericValueOutOfRange, "{array:?}");
            let encoder = encoder(array.clone(), format, &zone("UTC"));
            let mut out = BytesMut::from(&b"before"[..]);
            assert_eq!(encoder.encode(0, &mut out), Err(error));
            assert_eq!(out, &b"before"[..]);
        }
    }
}

#[test]
fn the_last_times_of_postgresql_are_encoded() {
    // PostgreSQL: '294276-12-31 23:59:59.999999', of which Arrow holds what 64 bits hold from 1970 on.
    assert_eq!(
        text(&primitive::<TimestampMicrosecondType>(i64::MAX)),
        "294247-01-10 04:00:54.775807"
    );
    assert_eq!(
        hex(&binary(&primitive::<TimestampMicrosecondType>(i64::MAX))),
        "7ffca2fec4c81fff"
    );
    assert_eq!(
        text(&primitive::<TimestampNanosecondType>(i64::MIN)),
        "1677-09-21 00:12:43.145224"
    );
    for (name, expected) in [
        ("Asia/Kolkata", "294247-01-10 09:30:54.775807+05:30"),
        ("-08", "294247-01-09 20:00:54.775807-08"),
    ] {
        let array = TimestampMicrosecondArray::from(vec![i64::MAX]).with_timezone("UTC");
        let mut out = BytesMut::new();
        encoder(arr(array), Format::Text, &zone(name))
            .encode_cell(0, 0, &mut out)
            .unwrap();
        assert_eq!(out, expected.as_bytes());
    }
}

#[test]
fn a_row_is_a_message() {
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("a", arr(Int32Array::from(vec![Some(1), None])), true),
        ("b", arr(StringArray::from(vec!["x", ""])), true),
        ("c", arr(NullArray::new(2)), true),
    ]);
    let batch = batch.unwrap();
    let formats = Format::of_codes(&[1, 0, 0], 3).unwrap();
    let encoder = RowEncoder::new(&batch, &formats, &zone("UTC")).unwrap();
    let mut out = BytesMut::new();
    encoder.encode(0, &mut out).unwrap();
    encoder.encode(1, &mut out).unwrap();
    let rows = [
        "44000000170003000000040000000100000001\
         78ffffffff",
        "44000000120003ffffffff00000000ffffffff",
    ];
    assert_eq!(hex(&out), rows.concat());
    assert_eq!(
        encoder.encode(2, &mut out).unwrap_err().code,
        Code::InternalError
    );
    assert_eq!(
        encoder.encode_cell(0, 3, &mut out).unwrap_err().code,
        Code::InternalError
    );
    assert!(RowEncoder::new(&batch, &[Format::Text], &zone("UTC")).is_err());
}

#[test]
fn format_codes() {
    use Format::{Binary, Text};
    assert_eq!(Format::of_codes(&[], 2), Ok(vec![Text, Text]));
    assert_eq!(Format::of_codes(&[1], 2), Ok(vec![Binary, Binary]));
    assert_eq!(Format::of_codes(&[0, 1], 2), Ok(vec![Text, Binary]));
    assert_eq!(
        Format::of_codes(&[0, 1], 3).unwrap_err().code,
        Code::ProtocolViolation
    );
    assert_eq!(
        Format::of_codes(&[2], 1).unwrap_err().code,
        Code::InvalidParameterValue
    );
    assert_eq!([Text.code(), Binary.code()], [0, 1]);
}

#[test]
fn types_of_columns() {
    let text_list = DataType::new_list(DataType::new_list(DataType::Utf8, true), true);
    let dictionary = DataType::Dictionary(DataType::Int8.into(), text_list.clone().into());
    let cases = [
        (DataType::Null, Type::TEXT, -1, -1),
        (DataType::Boolean, Type::BOOL, 1, -1),
        (DataType::UInt8, Type::INT2, 2, -1),
        (DataType::UInt16, Type::INT4, 4, -1),
        (DataType::UInt32, Type::INT8, 8, -1),
        (DataType::UInt64, Type::NUMERIC, -1, -1),
        (DataType::Float16, Type::FLOAT4, 4, -1),
        // `atttypmod` of numeric(10,2), numeric(38,38), numeric(5,-2) in PostgreSQL.
        (DataType::Decimal128(10, 2), Type::NUMERIC, -1, 655_366),
        (DataType::Decimal128(38, 38), Type::NUMERIC, -1, 2_490_410),
        (DataType::Decimal64(5, -2), Type::NUMERIC, -1, 329_730),
        (
            DataType::new_list(DataType::Decimal128(10, 2), true),
            Type::NUMERIC_ARRAY,
            -1,
            655_366,
        ),
        (text_list, Type::TEXT_ARRAY, -1, -1),
        (dictionary, Type::TEXT_ARRAY, -1, -1),
        (DataType::Struct(Fields::empty()), Type::JSON, -1, -1),
        (
            DataType::new_list(DataType::Struct(Fields::empty()), true),
            Type::JSON_ARRAY,
            -1,
            -1,
        ),
        (DataType::Duration(TimeUnit::Second), Type::INTERVAL, 16, -1),
        (
            DataType::Interval(IntervalUnit::DayTime),
            Type::INTERVAL,
            16,
            -1,
        ),
        (
            DataType::Timestamp(TimeUnit::Second, None),
            Type::TIMESTAMP,
            8,
            -1,
        ),
        (
            DataType::Timestamp(TimeUnit::Second, Some("UTC".into())),
            Type::TIMESTAMPTZ,
            8,
            -1,
        ),
        (DataType::Date64, Type::DATE, 4, -1),
        (DataType::Time32(TimeUnit::Second), Type::TIME, 8, -1),
    ];
    for (data_type, pg, bytes, type_modifier) in cases {
        assert_eq!(pg_type(&data_type), pg, "{data_type}");
        assert_eq!(size(&pg), bytes, "{data_type}");
        assert_eq!(modifier(&data_type), type_modifier, "{data_type}");
    }
}

/// All types that parameters may have.
const PARAMETER_TYPES: &[Type] = &[
    Type::BOOL,
    Type::INT2,
    Type::INT4,
    Type::INT8,
    Type::OID,
    Type::FLOAT4,
    Type::FLOAT8,
    Type::NUMERIC,
    Type::TEXT,
    Type::VARCHAR,
    Type::BPCHAR,
    Type::NAME,
    Type::CHAR,
    Type::UNKNOWN,
    Type::BYTEA,
    Type::DATE,
    Type::TIME,
    Type::TIMESTAMP,
    Type::TIMESTAMPTZ,
    Type::INTERVAL,
    Type::UUID,
    Type::JSON,
    Type::JSONB,
    Type::BOOL_ARRAY,
    Type::INT4_ARRAY,
    Type::NUMERIC_ARRAY,
    Type::TEXT_ARRAY,
    Type::BYTEA_ARRAY,
    Type::TIMESTAMPTZ_ARRAY,
    Type::INTERVAL_ARRAY,
    Type::UUID_ARRAY,
];

#[test]
fn absent_parameters_are_typed_nulls() {
    for type_ in PARAMETER_TYPES {
        for is_binary in [false, true] {
            let value = parameter(type_, is_binary, None).unwrap();
            assert!(value.is_null(), "{type_}");
            check_type(type_, &value);
        }
    }
    let unsupported = parameter(&Type::INET, false, None).unwrap_err();
    assert_eq!(unsupported.code, Code::FeatureNotSupported);
    assert_eq!(
        unsupported.message,
        "a parameter of type inet is not supported"
    );
    assert!(!is_parameter(&Type::INET));
}

#[test]
fn malformed_binary_values_are_errors() {
    use Code::{InvalidBinaryRepresentation as Invalid, NumericValueOutOfRange as Range};
    let cases = [
        (Type::BOOL, "", Invalid),
        (Type::BOOL, "0001", Invalid),
        (Type::INT4, "000001", Invalid),
        (Type::FLOAT8, "0000000000000000ff", Invalid),
        (Type::DATE, "7fffffff", Code::FeatureNotSupported),
        (Type::DATE, "7ffffffe", Range),
        (Type::TIME, "ffffffffffffffff", Range),
        (
            Type::TIMESTAMP,
            "7fffffffffffffff",
            Code::FeatureNotSupported,
        ),
        (Type::TIMESTAMP, "7ffffffffffffffe", Range),
        (Type::TIMESTAMPTZ, "8000000000000001", Range),
        (Type::INTERVAL, "7fffffffffffffff0000000000000000", Range),
        (Type::INTERVAL, "00", Invalid),
        (Type::UUID, "00", Invalid),
        (Type::JSONB, "", Invalid),
        (Type::JSONB, "027b7d", Invalid),
        (Type::TEXT, "ff", Invalid),
        (Type::TEXT, "610062", Invalid),
        // Numbers: too short, too many or too few groups, a negative count, signs, scales, groups, sizes.
        (Type::NUMERIC, "0000", Invalid),
        (Type::NUMERIC, "00010000000000000001ffff", Invalid),
        (Type::NUMERIC, "7fff000000000000", Invalid),
        (Type::NUMERIC, "ffff000000000000", Invalid),
        (Type::NUMERIC, "00010000c00000000001", Invalid),
        (Type::NUMERIC, "00000000c0000000", Invalid),
        (Type::NUMERIC, "00000000d0000000", Invalid),
        (Type::NUMERIC, "00000000f0000000", Invalid),
        (Type::NUMERIC, "0001000012340000ffff", Invalid),
        (Type::NUMERIC, "000100000000ffff0001", Invalid),
        (Type::NUMERIC, "00010000000000002710", Invalid),
        (Type::NUMERIC, "0001000000000000ffff", Invalid),
        (Type::NUMERIC, "00017fff000000000001", Range),
        (Type::NUMERIC, "00010000000003e80001", Range),
        (Type::NUMERIC, "00010013000000000001", Range),
    ];
    for (type_, bytes, code) in cases {
        let error = parameter(&type_, true, Some(&unhex(bytes))).unwrap_err();
        assert_eq!(error.code, code, "{type_} {bytes} {error}");
    }
}

/// Too short, counts of dimensions, types, lengths, elements, and what follows them.
#[test]
fn malformed_binary_arrays_are_errors() {
    use Code::{InvalidBinaryRepresentation as Invalid, LimitExceeded};
    let cases = [
        ("00000001", Invalid),
        ("000000070000000000000017", LimitExceeded),
        ("ffffffff0000000000000017", Invalid),
        ("000000000000000000000019", Invalid),
        ("00000001000000000000001700000001", Invalid),
        ("0000000100000000000000177fffffff00000001", Invalid),
        ("000000010000000000000017ffffffff00000001", Invalid),
        (
            "0000000200000000000000177fffffff000000017fffffff00000001ffffffff",
            Invalid,
        ),
        ("0000000100000000000000170000000100000001", Invalid),
        ("00000001000000000000001700000001000000017fffffff", Invalid),
        ("0000000100000000000000170000000100000001fffffffe", Invalid),
        (
            "00000001000000000000001700000001000000010000000200ff",
            Invalid,
        ),
        ("00000000000000000000001700", Invalid),
    ];
    for (bytes, code) in cases {
        let error = parameter(&Type::INT4_ARRAY, true, Some(&unhex(bytes))).unwrap_err();
        assert_eq!(error.code, code, "{bytes} {error}");
    }
}

#[test]
fn binary_values_that_postgresql_reads() {
    let cases = [
        (Type::OID, "ffffffff", "4294967295"),
        (Type::BOOL, "02", "t"),
        (Type::JSONB, "017b7d", "{}"),
        (
            Type::UUID,
            "a0eebc999c0b4ef8bb6d6bb9bd380a11",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        ),
        // Digits beyond the scale are cut off, and zero groups at the ends do not count.
        (Type::NUMERIC, "0002000000000001000104d2", "1.1"),
        (Type::NUMERIC, "0003000200000000000000000001", "1"),
    ];
    for (type_, bytes, expected) in cases {
        let value = parameter(&type_, true, Some(&unhex(bytes))).unwrap();
        assert_eq!(text_of_scalar(&value), expected);
    }
    let zero = parameter(&Type::NUMERIC, true, Some(&unhex("0000000040000002"))).unwrap();
    assert_eq!(text_of_scalar(&zero), "0.00");
    let empty = parameter(
        &Type::INT4_ARRAY,
        true,
        Some(&unhex("000000010000000000000017000000000000000a")),
    );
    assert_eq!(text_of_scalar(&empty.unwrap()), "{}");
}

#[test]
fn malformed_texts_are_errors() {
    for type_ in PARAMETER_TYPES {
        for bytes in [&b"\xff"[..], b"a\xc3", b"1\0"] {
            let error = parameter(type_, false, Some(bytes)).unwrap_err();
            assert_eq!(error.code, Code::InvalidTextRepresentation);
            assert!(
                error
                    .message
                    .starts_with("invalid byte sequence for encoding \"UTF8\": 0x")
            );
        }
    }
    let long = [b'{'].repeat(1_000_000);
    assert_eq!(
        parameter(&Type::INT4_ARRAY, false, Some(&long))
            .unwrap_err()
            .code,
        Code::LimitExceeded
    );
    let digits = [b'9'].repeat(1_000_000);
    let out_of_range = parameter(&Type::NUMERIC, false, Some(&digits)).unwrap_err();
    assert_eq!(out_of_range.code, Code::NumericValueOutOfRange);
    let zeros = [b'0'].repeat(1_000_000);
    assert_eq!(
        text_of_scalar(&parameter(&Type::NUMERIC, false, Some(&zeros)).unwrap()),
        "0"
    );
}
