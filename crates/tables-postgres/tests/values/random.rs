//! Random bytes and texts, which must not panic, and round trips of random values.

use datafusion::arrow::array::types::*;
use datafusion::arrow::array::*;
use datafusion::arrow::datatypes::i256;
use datafusion::common::ScalarValue;
use forebay_tables_postgres::decode::parameter;
use pgwire::api::Type;
use proptest::prelude::*;

use super::{
    PARAMETER_TYPES, arr, binary, check_type, decimal, interval, list, primitive, text,
    text_of_scalar,
};

fn any_type() -> impl Strategy<Value = Type> {
    prop::sample::select(PARAMETER_TYPES)
}

/// Returns texts that are close to those of values.
fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[-+0-9.eE:TZ /{},\"\\\\a-cNUL]{0,40}",
        "[0-9]{3,7}-[0-9]{1,2}-[0-9]{1,2}[T ][0-9]{1,2}:[0-9]{2}(:[0-9]{2}(\\.[0-9]{0,9})?)?( ?[+-][0-9:]{1,8}| [A-Z]{1,3})?( BC)?",
        "(([+-]?[0-9]{1,10}(\\.[0-9]{1,16})? ?(year|mon|day|h|sec|us|week|century)s? ){0,4}([+-]?[0-9]{1,12}:[0-9]{2}(:[0-9.]{1,5})?)?( ago)?)",
        "[{]{0,7}(([0-9a]|NULL|\"[^\"]{0,3}\"|\\\\.)[,}{]){0,6}[}]{0,7}",
        "\\PC{0,20}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn decoding_random_bytes_does_not_panic(
        type_ in any_type(),
        is_binary: bool,
        bytes in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        if let Ok(value) = parameter(&type_, is_binary, Some(&bytes)) {
            check_type(&type_, &value);
        }
    }

    #[test]
    fn decoding_random_arrays_does_not_panic(
        mut bytes in prop::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(2), Just(0xff), any::<u8>()], 0..96),
        dimensions in 0_u8..8,
    ) {
        for type_ in [Type::INT4_ARRAY, Type::NUMERIC_ARRAY, Type::TEXT_ARRAY] {
            let oid = if type_ == Type::INT4_ARRAY { 23_u32 } else if type_ == Type::TEXT_ARRAY { 25 } else { 1700 };
            if bytes.len() >= 12 {
                bytes[..4].copy_from_slice(&[0, 0, 0, dimensions]);
                bytes[8..12].copy_from_slice(&oid.to_be_bytes());
            }
            let _ = parameter(&type_, true, Some(&bytes));
        }
    }

    #[test]
    fn what_is_read_from_random_texts_is_printed_and_read_again(type_ in any_type(), text in any_text()) {
        let Ok(value) = parameter(&type_, false, Some(text.as_bytes())) else { return Ok(()) };
        let array = value.to_array().unwrap();
        let printed = text_of_scalar(&value);
        let again = parameter(&type_, false, Some(printed.as_bytes())).unwrap();
        prop_assert_eq!(text_of_scalar(&again), printed.clone());
        let bytes = binary(&array);
        if !matches!(type_, Type::UUID | Type::JSONB | Type::UUID_ARRAY | Type::OID) {
            let again = parameter(&type_, true, Some(&bytes)).unwrap();
            prop_assert_eq!(text_of_scalar(&again), printed);
        }
    }

    #[test]
    fn binary_numbers_are_read_as_the_same(value: i128, shift in 0_u32..127, scale in -20_i8..=38) {
        let value = value >> shift;
        let digits = value.unsigned_abs().to_string().len();
        prop_assume!(digits <= 38 && digits as i32 - i32::from(scale) <= 76);
        let array = decimal(value, 38, scale);
        let read = parameter(&Type::NUMERIC, true, Some(&binary(&array))).unwrap();
        let read_text = parameter(&Type::NUMERIC, false, Some(text(&array).as_bytes())).unwrap();
        prop_assert_eq!(&read, &read_text);
        prop_assert_eq!(text_of_scalar(&read), text(&array));
        if let (ScalarValue::Decimal128(Some(number), _, read_scale), 0..) = (&read, scale) {
            prop_assert_eq!((*number, *read_scale), (value, scale));
        }
    }

    #[test]
    fn binary_numbers_of_256_bits_are_read_as_the_same(low: u128, high: i128, shift in 0_u32..127, scale in 0_i8..=76) {
        let value = i256::from_parts(low, high >> shift);
        prop_assume!(value.to_string().trim_start_matches('-').len() <= 76);
        let array = Decimal256Array::from(vec![value]).with_precision_and_scale(76, scale).unwrap();
        let array = arr(array);
        let read = parameter(&Type::NUMERIC, true, Some(&binary(&array))).unwrap();
        prop_assert_eq!(text_of_scalar(&read), text(&array));
        prop_assert_eq!(binary(&read.to_array().unwrap()), binary(&array));
    }

    #[test]
    fn random_numbers_are_read_as_the_same(double: f64, single: f32, long: i64) {
        let read = |type_, array: &ArrayRef| parameter(&type_, false, Some(text(array).as_bytes())).unwrap();
        prop_assert_eq!(read(Type::FLOAT8, &primitive::<Float64Type>(double)), ScalarValue::from(double));
        prop_assert_eq!(read(Type::FLOAT4, &primitive::<Float32Type>(single)), ScalarValue::from(single));
        prop_assert_eq!(read(Type::INT8, &primitive::<Int64Type>(long)), ScalarValue::from(long));
    }

    #[test]
    fn random_times_are_read_as_the_same(
        micros in -210_866_803_200_000_000..=i64::MAX,
        days in -2_440_588..=2_145_042_905,
        months: i32,
        interval_days: i32,
        interval_micros in i64::MIN / 1000..=i64::MAX / 1000,
    ) {
        let read = |type_: Type, array: &ArrayRef| {
            let binary = parameter(&type_, true, Some(&binary(array))).unwrap();
            let text = parameter(&type_, false, Some(text(array).as_bytes())).unwrap();
            prop_assert_eq!(&binary, &text);
            Ok(text)
        };
        let timestamp = read(Type::TIMESTAMP, &primitive::<TimestampMicrosecondType>(micros))?;
        prop_assert_eq!(timestamp, ScalarValue::TimestampMicrosecond(Some(micros), None));
        prop_assert_eq!(read(Type::DATE, &primitive::<Date32Type>(days))?, ScalarValue::Date32(Some(days)));
        let array = interval(months, interval_days, interval_micros * 1000);
        let expected = IntervalMonthDayNano::new(months, interval_days, interval_micros * 1000);
        prop_assert_eq!(read(Type::INTERVAL, &array)?, ScalarValue::IntervalMonthDayNano(Some(expected)));
    }

    #[test]
    fn random_texts_in_arrays_are_read_as_the_same(items in prop::collection::vec(prop::option::of("[ -~\t\nä]{0,6}"), 0..5)) {
        let array = list(arr(StringArray::from(items)));
        let expected = ScalarValue::try_from_array(&array, 0).unwrap();
        let read = parameter(&Type::TEXT_ARRAY, false, Some(text(&array).as_bytes())).unwrap();
        prop_assert_eq!(&read, &expected);
        prop_assert_eq!(&parameter(&Type::TEXT_ARRAY, true, Some(&binary(&array))).unwrap(), &expected);
    }
}
