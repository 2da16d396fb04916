//! Lists, structures, maps, unions, dictionaries and runs.

use std::sync::Arc;

use datafusion::arrow::array::types::*;
use datafusion::arrow::array::*;
use datafusion::arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use datafusion::arrow::datatypes::{DataType, Field, UnionFields};
use forebay_tables::Code;
use forebay_tables_postgres::encode::Format;
use forebay_tables_postgres::types::pg_type;
use pgwire::api::Type;

use super::{
    arr, binary, decimal, encoded, hex, interval, list, lists, primitive, rows, some, text, texts,
};

#[test]
fn structures_are_json_as_postgresql_prints_it() {
    let fields: Vec<(&str, ArrayRef)> = vec![
        ("a", primitive::<Int32Type>(1)),
        (
            "b",
            arr(StringArray::from(vec![
                "q\"\\\n\t\u{1}\u{1f}\u{8}\u{c}\r/\u{7f}ä€",
            ])),
        ),
        ("c", primitive::<Float64Type>(1e20)),
        ("d", primitive::<Float64Type>(f64::NAN)),
        (
            "e",
            primitive::<TimestampMillisecondType>(1_577_836_800_500),
        ),
        (
            "f",
            arr(TimestampSecondArray::from(vec![1_577_836_800]).with_timezone("UTC")),
        ),
        ("g", primitive::<Date32Type>(-735_160)),
        ("h", arr(BinaryArray::from(vec![&b"\x01\xff"[..]]))),
        ("i", arr(BooleanArray::from(vec![true]))),
        ("j", list(arr(Int32Array::from(vec![Some(1), None])))),
        ("k", decimal(150, 3, 2)),
        ("l", interval(1, 0, 0)),
        ("m", primitive::<Time32SecondType>(14_706)),
        ("n", arr(Float64Array::from(vec![None]))),
        ("o", primitive::<Float64Type>(f64::NEG_INFINITY)),
    ];
    let fields = fields.into_iter().map(|(name, array)| {
        (
            Arc::new(Field::new(name, array.data_type().clone(), true)),
            array,
        )
    });
    let array = arr(StructArray::from(fields.collect::<Vec<_>>()));
    // From `row_to_json` of PostgreSQL.
    let json = "{\"a\":1,\"b\":\"q\\\"\\\\\\n\\t\\u0001\\u001f\\b\\f\\r/\u{7f}ä€\",\"c\":1e+20,\"d\":\"NaN\",\
        \"e\":\"2020-01-01T00:00:00.5\",\"f\":\"2020-01-01T05:30:00+05:30\",\"g\":\"0044-03-15 BC\",\
        \"h\":\"\\\\x01ff\",\"i\":true,\"j\":[1,null],\"k\":1.50,\"l\":\"1 mon\",\"m\":\"04:05:06\",\
        \"n\":null,\"o\":\"-Infinity\"}";
    assert_eq!(texts(&array), some(&[json]));
    assert_eq!(
        rows(&array, Format::Binary),
        [Some(json.as_bytes().to_vec())]
    );
    let quoted = json.replace('\\', "\\\\").replace('"', "\\\"");
    assert_eq!(texts(&list(array)), some(&[&format!("{{\"{quoted}\"}}")]));
}

#[test]
fn maps_and_unions_are_json() {
    let mut map = MapBuilder::new(None, Int32Builder::new(), StringBuilder::new());
    map.keys().append_value(1);
    map.values().append_value("x");
    map.keys().append_value(2);
    map.values().append_null();
    map.append(true).unwrap();
    map.append(true).unwrap();
    map.append(false).unwrap();
    let map = arr(map.finish());
    assert_eq!(
        texts(&map),
        some(&["{\"1\":\"x\",\"2\":null}", "{}", "NULL"])
    );

    let fields = [
        (0, Field::new("i", DataType::Int32, true)),
        (5, Field::new("s", DataType::Utf8, true)),
    ];
    let fields: UnionFields = fields
        .into_iter()
        .map(|(id, field)| (id, Arc::new(field)))
        .collect();
    let ids: ScalarBuffer<i8> = vec![5, 0, 0].into();
    let children = vec![
        arr(Int32Array::from(vec![Some(7), None])),
        arr(StringArray::from(vec!["s"])),
    ];
    let dense = UnionArray::try_new(fields, ids, Some(vec![0, 0, 1].into()), children).unwrap();
    assert_eq!(texts(&arr(dense.clone())), some(&["\"s\"", "7", "NULL"]));
    assert_eq!(texts(&arr(dense.slice(1, 1))), some(&["7"]));
}

#[test]
fn dictionaries_and_runs_are_their_values() {
    let dictionary: DictionaryArray<Int8Type> = vec![Some("a"), None, Some("b"), Some("a")]
        .into_iter()
        .collect();
    assert_eq!(
        texts(&arr(dictionary.clone())),
        some(&["a", "NULL", "b", "a"])
    );
    assert_eq!(texts(&arr(dictionary.slice(1, 2))), some(&["NULL", "b"]));
    let empty = DictionaryArray::new(
        Int32Array::from(vec![None, None]),
        arr(StringArray::new_null(0)),
    );
    assert_eq!(texts(&arr(empty)), some(&["NULL", "NULL"]));
    let nulls = StringArray::from(vec![None, Some("x")]);
    let null_values = DictionaryArray::new(Int32Array::from(vec![0, 1]), arr(nulls));
    assert_eq!(texts(&arr(null_values)), some(&["NULL", "x"]));
    let of_lists = DictionaryArray::new(
        UInt16Array::from(vec![Some(1), None, Some(0)]),
        lists(arr(Int32Array::from(vec![1, 2, 3])), [1, 2]),
    );
    assert_eq!(texts(&arr(of_lists)), some(&["{2,3}", "NULL", "{1}"]));
    let runs = RunArray::<Int32Type>::try_new(
        &Int32Array::from(vec![2, 3, 5]),
        &StringArray::from(vec![Some("a"), None, Some("b")]),
    );
    let runs = runs.unwrap();
    assert_eq!(
        texts(&arr(runs.clone())),
        some(&["a", "a", "NULL", "b", "b"])
    );
    assert_eq!(texts(&arr(runs.slice(1, 3))), some(&["a", "NULL", "b"]));
}

#[test]
fn every_kind_of_list_is_an_array() {
    let elements = arr(Int32Array::from(vec![1, 2, 3, 4]));
    let field = Arc::new(Field::new_list_field(DataType::Int32, true));
    let nulls = Some(NullBuffer::from(vec![true, false]));
    let halves = || OffsetBuffer::from_lengths([2, 2]);
    let starts = || ScalarBuffer::from(vec![2, 0]);
    let arrays = [
        arr(ListArray::new(
            field.clone(),
            halves(),
            elements.clone(),
            nulls.clone(),
        )),
        arr(LargeListArray::new(
            field.clone(),
            OffsetBuffer::from_lengths([2, 2]),
            elements.clone(),
            nulls.clone(),
        )),
        arr(FixedSizeListArray::new(
            field.clone(),
            2,
            elements.clone(),
            nulls.clone(),
        )),
    ];
    for array in arrays {
        assert_eq!(texts(&array), some(&["{1,2}", "NULL"]));
        assert_eq!(texts(&array.slice(0, 1)), some(&["{1,2}"]));
        assert_eq!(pg_type(array.data_type()), Type::INT4_ARRAY);
    }
    let views = ListViewArray::new(
        field.clone(),
        starts(),
        vec![2, 1].into(),
        elements.clone(),
        None,
    );
    assert_eq!(texts(&arr(views)), some(&["{3,4}", "{1}"]));
    let large = LargeListViewArray::new(
        field.clone(),
        vec![2, 0].into(),
        vec![2, 0].into(),
        elements.clone(),
        None,
    );
    assert_eq!(texts(&arr(large)), some(&["{3,4}", "{}"]));
    let sliced = FixedSizeListArray::new(field, 2, elements, None).slice(1, 1);
    assert_eq!(texts(&arr(sliced)), some(&["{3,4}"]));
}

#[test]
fn lists_that_are_no_arrays_have_texts_alone() {
    let ragged = list(lists(arr(Int32Array::from(vec![1, 2, 3])), [1, 2]));
    assert_eq!(text(&ragged), "{{1},{2,3}}");
    assert_eq!(
        encoded(&ragged, Format::Binary).unwrap_err().code,
        Code::DataException
    );
    let hollow = list(lists(arr(Int32Array::from(vec![0; 0])), [0, 0]));
    assert_eq!(text(&hollow), "{}");
    assert_eq!(hex(&binary(&hollow)), "000000000000000000000017");
    let mut deep = arr(Int32Array::from(vec![1]));
    for _ in 0..7 {
        deep = list(deep);
    }
    assert_eq!(text(&deep), "{{{{{{{1}}}}}}}");
    assert_eq!(
        encoded(&deep, Format::Binary).unwrap_err().code,
        Code::LimitExceeded
    );
}
