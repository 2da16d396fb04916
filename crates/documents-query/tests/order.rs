//! Comparison and encoding agree: `memcmp` orders two keys like their values.

use std::cmp::Ordering;
use std::str::FromStr;

use bson::raw::{RawArrayBuf, RawBson, RawBsonRef, RawDocumentBuf};
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, DateTime, Decimal128, Regex, Timestamp, doc};
use forebay_documents_query::key::{self, Direction};
use forebay_documents_query::{Sort, TopK, compare};
use proptest::prelude::*;

fn number() -> impl Strategy<Value = Bson> {
    let near = prop_oneof![
        Just(0_i64),
        Just(1 << 53),
        Just(-(1 << 53)),
        Just(i64::MAX),
        Just(i64::MIN),
        -20..20_i64
    ];
    let integer = (near, -3..=3_i64).prop_map(|(base, offset)| base.saturating_add(offset));
    prop_oneof![
        any::<i32>().prop_map(Bson::Int32),
        (-5..5_i32).prop_map(Bson::Int32),
        integer.clone().prop_map(Bson::Int64),
        integer.clone().prop_map(|value| Bson::Double(value as f64)),
        integer
            .clone()
            .prop_map(|value| decimal(&value.to_string())),
        any::<f64>().prop_map(Bson::Double),
        (-40..40_i32).prop_map(|tenths| Bson::Double(f64::from(tenths) / 10.0)),
        (-40..40_i32).prop_map(|tenths| decimal(&format!("{tenths}E-1"))),
        (any::<i64>(), -400..400_i32)
            .prop_map(|(digits, exponent)| decimal(&format!("{digits}E{exponent}"))),
        prop_oneof![
            Just("NaN"),
            Just("Infinity"),
            Just("-Infinity"),
            Just("-0"),
            Just("1E-6176"),
            Just("9E6111")
        ]
        .prop_map(decimal),
        prop_oneof![
            Just(f64::NAN),
            Just(f64::INFINITY),
            Just(f64::NEG_INFINITY),
            Just(-0.0),
            Just(f64::MAX),
            Just(5e-324)
        ]
        .prop_map(Bson::Double),
    ]
}

fn decimal(text: &str) -> Bson {
    Bson::Decimal128(Decimal128::from_str(text).expect("the strategies write decimals"))
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        proptest::collection::vec(
            prop_oneof![
                Just('\0'),
                Just('\u{1}'),
                Just('a'),
                Just('b'),
                Just('é'),
                Just('\u{10ffff}')
            ],
            0..5
        )
        .prop_map(|characters| characters.into_iter().collect()),
    ]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("a".to_owned()),
        Just("ab".to_owned()),
        Just("b".to_owned())
    ]
}

fn scalar() -> impl Strategy<Value = Bson> {
    let bytes = proptest::collection::vec(prop_oneof![Just(0_u8), Just(255), any::<u8>()], 0..4);
    prop_oneof![
        4 => number(),
        2 => text().prop_map(Bson::String),
        1 => text().prop_map(Bson::Symbol),
        1 => any::<bool>().prop_map(Bson::Boolean),
        1 => prop_oneof![Just(Bson::Null), Just(Bson::Undefined), Just(Bson::MinKey), Just(Bson::MaxKey)],
        1 => any::<i64>().prop_map(|ms| Bson::DateTime(DateTime::from_millis(ms))),
        1 => any::<(u32, u32)>().prop_map(|(time, increment)| Bson::Timestamp(Timestamp { time, increment })),
        1 => any::<[u8; 12]>().prop_map(|id| Bson::ObjectId(id.into())),
        1 => (bytes, 0..6_u8).prop_map(|(bytes, subtype)| Bson::Binary(Binary { subtype: BinarySubtype::from(subtype), bytes })),
        1 => (name(), name()).prop_map(|(pattern, options)| {
            Bson::RegularExpression(Regex {
                pattern: pattern.try_into().expect("no NUL"),
                options: options.try_into().expect("no NUL"),
            })
        }),
        1 => text().prop_map(Bson::JavaScriptCode),
    ]
}

fn value() -> impl Strategy<Value = Bson> {
    scalar().prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Bson::Array),
            proptest::collection::vec((name(), inner), 0..3)
                .prop_map(|fields| Bson::Document(fields.into_iter().collect())),
        ]
    })
}

fn raw(value: Bson) -> RawBson {
    RawBson::try_from(value).expect("names have no NUL")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn keys_order_as_values_do(a in value(), b in value()) {
        let (a, b) = (raw(a), raw(b));
        let (a_ref, b_ref) = (a.as_raw_bson_ref(), b.as_raw_bson_ref());
        let order = compare(a_ref, b_ref);
        prop_assert_eq!(order, key::encode(a_ref).cmp(&key::encode(b_ref)), "{:?} and {:?}", a, b);
        prop_assert_eq!(order.reverse(), compare(b_ref, a_ref));
        prop_assert_eq!(compare(a_ref, a_ref), Ordering::Equal);
    }

    #[test]
    fn keys_of_numbers_order_as_numbers_do(a in number(), b in number()) {
        let (a, b) = (raw(a), raw(b));
        let (a_ref, b_ref) = (a.as_raw_bson_ref(), b.as_raw_bson_ref());
        prop_assert_eq!(compare(a_ref, b_ref), key::encode(a_ref).cmp(&key::encode(b_ref)), "{:?} and {:?}", a, b);
    }

    #[test]
    fn descending_keys_order_the_other_way(a in value(), b in value(), tail in value()) {
        let (a, b, tail) = (raw(a), raw(b), raw(tail));
        let directed = |value: RawBsonRef<'_>| {
            let mut out = Vec::new();
            key::append_directed(&mut out, value, Direction::Descending);
            key::append(&mut out, tail.as_raw_bson_ref());
            out
        };
        let order = compare(a.as_raw_bson_ref(), b.as_raw_bson_ref());
        let found = directed(a.as_raw_bson_ref()).cmp(&directed(b.as_raw_bson_ref()));
        prop_assert_eq!(order.reverse(), found);
    }

    #[test]
    fn compound_keys_order_by_their_first_difference(a in value(), b in value(), c in value(), d in value()) {
        let (a, b, c, d) = (raw(a), raw(b), raw(c), raw(d));
        let pair = |first: &RawBson, second: &RawBson| {
            let mut out = key::encode(first.as_raw_bson_ref());
            key::append(&mut out, second.as_raw_bson_ref());
            out
        };
        let first = compare(a.as_raw_bson_ref(), c.as_raw_bson_ref());
        let order = first.then_with(|| compare(b.as_raw_bson_ref(), d.as_raw_bson_ref()));
        prop_assert_eq!(order, pair(&a, &b).cmp(&pair(&c, &d)));
    }

    #[test]
    fn a_prefix_of_a_string_is_a_prefix_of_its_key(prefix in text(), rest in text(), other in value()) {
        let begins = key::string_prefix(&prefix);
        let whole = RawBson::String(format!("{prefix}{rest}"));
        prop_assert!(key::encode(whole.as_raw_bson_ref()).starts_with(&begins));
        let other = raw(other);
        let is_prefix = matches!(other.as_raw_bson_ref(), RawBsonRef::String(text) | RawBsonRef::Symbol(text) if text.starts_with(&prefix));
        prop_assert_eq!(key::encode(other.as_raw_bson_ref()).starts_with(&begins), is_prefix);
    }

    #[test]
    fn the_first_few_are_those_of_a_whole_sort(values in proptest::collection::vec(-5..5_i32, 0..40), count in 0..10_usize) {
        let sort = Sort::parse(&RawDocumentBuf::try_from(doc! { "a": -1 }).expect("a document")).expect("a sort");
        let mut top = TopK::new(count);
        for (place, value) in values.iter().enumerate() {
            let document = RawDocumentBuf::try_from(doc! { "a": *value }).expect("a document");
            top.push(sort.key(&document), (-*value, place));
        }
        let mut all: Vec<_> = values.iter().enumerate().map(|(place, value)| (-*value, place)).collect();
        all.sort();
        all.truncate(count);
        prop_assert_eq!(top.into_sorted(), all);
    }
}

#[test]
fn types_order_as_mongodb_orders_them() {
    let ascending = [
        Bson::MinKey,
        Bson::Undefined,
        Bson::Null,
        Bson::Double(f64::NAN),
        Bson::Int32(5),
        Bson::String("a".to_owned()),
        Bson::Document(doc! { "a": 1 }),
        Bson::Array(vec![Bson::Int32(1)]),
        Bson::Binary(Binary {
            subtype: BinarySubtype::Generic,
            bytes: vec![],
        }),
        Bson::ObjectId([0; 12].into()),
        Bson::Boolean(false),
        Bson::Boolean(true),
        Bson::DateTime(DateTime::from_millis(0)),
        Bson::Timestamp(Timestamp {
            time: 0,
            increment: 0,
        }),
        Bson::RegularExpression(Regex {
            pattern: "a".try_into().expect("no NUL"),
            options: "".try_into().expect("no NUL"),
        }),
        Bson::MaxKey,
    ];
    for pair in ascending.windows(2) {
        let (a, b) = (raw(pair[0].clone()), raw(pair[1].clone()));
        assert_eq!(
            compare(a.as_raw_bson_ref(), b.as_raw_bson_ref()),
            Ordering::Less,
            "{pair:?}"
        );
    }
}

#[test]
fn documents_compare_type_then_name_then_value() {
    let less = [
        (doc! { "a": 1 }, doc! { "a": 2 }),
        (doc! { "b": 1 }, doc! { "a": "x" }),
        (doc! { "a": 9 }, doc! { "b": 1 }),
        (doc! { "a": 1 }, doc! { "a": 1, "b": 0 }),
        (doc! {}, doc! { "a": Bson::MinKey }),
    ];
    for (a, b) in less {
        let (a, b) = (raw(Bson::Document(a)), raw(Bson::Document(b)));
        assert_eq!(
            compare(a.as_raw_bson_ref(), b.as_raw_bson_ref()),
            Ordering::Less,
            "{a:?} {b:?}"
        );
    }
}

#[test]
fn an_empty_array_is_smaller_than_a_full_one() {
    let (empty, full) = (
        RawBson::Array(RawArrayBuf::new()),
        raw(Bson::Array(vec![Bson::MinKey])),
    );
    assert_eq!(
        compare(empty.as_raw_bson_ref(), full.as_raw_bson_ref()),
        Ordering::Less
    );
}
