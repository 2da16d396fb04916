//! Values of all kinds and sizes, in deltas and buckets of all sizes.

mod common;

use std::sync::Arc;

use common::{Pair, Value, leaf, options, regex, small_settings};
use forebay_documents_cache::{
    CacheError, CacheSettings, Expr, FieldValue, Predicate, SearchError, Want,
};
use forebay_text::Program;

fn string(text: impl Into<String>) -> Value {
    Value::String(text.into())
}

fn pair(settings: CacheSettings) -> Pair {
    Pair::new(2, options(u64::MAX), settings, 1)
}

fn equals(text: impl AsRef<[u8]>) -> Expr {
    leaf(0, Predicate::Equals(text.as_ref().to_vec()))
}

#[test]
fn sizes_around_the_borders_of_chunks_and_buckets() {
    for rows in [
        0, 1, 2, 7, 8, 9, 23, 24, 25, 31, 32, 33, 63, 64, 65, 127, 128, 129, 500,
    ] {
        let mut pair = pair(small_settings());
        for number in 0..rows {
            pair.insert(number, vec![string(format!("{:03}", number * 7 % 500))]);
        }
        for _ in 0..2 {
            for predicate in [
                regex("7$"),
                regex("^1.*3"),
                Predicate::Equals(b"007".to_vec()),
            ] {
                pair.check_all_wants(&leaf(0, predicate));
            }
            pair.check_all_wants(&Expr::All);
            pair.collection.flush();
        }
        let stats = pair.collection.stats(0).expect("a field");
        assert_eq!(
            (stats.rows, stats.delta_rows),
            (u64::from(rows), 0),
            "{stats:?}"
        );
    }
}

#[test]
fn odd_and_long_values() {
    let mut pair = pair(CacheSettings {
        value_bytes_max: 1 << 20,
        ..small_settings()
    });
    let long = "x".repeat(65_537);
    let too_long = "y".repeat((1 << 20) + 1);
    let values = [
        "",
        "\0",
        "\0\0",
        "a\0b",
        "a\nb",
        "a\n",
        "\n",
        "é",
        "ﬀ\u{10ffff}",
        "a",
        "ab",
        &long,
        &format!("{long}z"),
        &format!("{long}\0"),
    ];
    for (number, value) in values.iter().enumerate() {
        pair.insert(number as u32, vec![string(*value)]);
    }
    for _ in 0..2 {
        for value in values {
            pair.check_all_wants(&equals(value));
            pair.check_all_wants(&leaf(
                0,
                Predicate::Program(Arc::new(Program::prefix(value))),
            ));
        }
        for pattern in ["a.b", "a$", "^$", "\\n", "\\x00", "z$", "[^\\x00-\\x7f]"] {
            pair.check_all_wants(&leaf(0, regex(pattern)));
        }
        pair.collection.flush();
    }
    pair.collection
        .insert(100, &[FieldValue::String(too_long.as_bytes())])
        .expect("a new number");
    let not_utf8 = [
        FieldValue::String(b"\xC0b"),
        FieldValue::Strings(vec![b"a", b"\xFF"]),
    ];
    for (number, value) in (101..).zip(not_utf8) {
        let inserted = pair.collection.insert(number, &[value]);
        inserted.expect("a new number");
    }
    let recheck = pair.search(&equals(&too_long), Want::Count).recheck;
    assert!((100..103).all(|number| recheck.contains(number)));
}

#[test]
fn identical_values_stay_in_one_bucket_which_is_reported() {
    let mut pair = pair(small_settings());
    for number in 0..200 {
        pair.insert(number, vec![string("same")]);
    }
    pair.collection.flush();
    let stats = pair.collection.stats(0).expect("a field");
    assert_eq!(stats.buckets.len(), 1);
    assert!(stats.buckets[0].unsplittable, "{stats:?}");
    pair.check_all_wants(&equals("same"));
    // A different value makes the bucket splittable. The identical values stay together.
    pair.insert(200, vec![string("samf")]);
    pair.collection.flush();
    let stats = pair.collection.stats(0).expect("a field");
    let rows: Vec<_> = stats
        .buckets
        .iter()
        .map(|b| (b.rows, b.unsplittable, b.prefix_bytes))
        .collect();
    assert_eq!(rows, [(200, true, 4), (1, false, 4)], "{stats:?}");
    pair.check_all_wants(&leaf(0, regex("sam")));
}

#[test]
fn longer_prefixes_split_a_common_one_and_few_buckets_are_searched() {
    let mut pair = pair(small_settings());
    for number in 0..400 {
        pair.insert(number, vec![string(format!("common/prefix/{number:03}"))]);
    }
    pair.collection.flush();
    let stats = pair.collection.stats(0).expect("a field");
    assert!(stats.buckets.len() >= 400 / 24, "{stats:?}");
    assert!(
        stats.buckets.iter().all(|bucket| bucket.rows <= 24),
        "{stats:?}"
    );
    assert!(
        stats
            .buckets
            .iter()
            .skip(1)
            .all(|bucket| bucket.prefix_bytes > 14),
        "{stats:?}"
    );
    let answer = pair.check(&equals("common/prefix/123"), Want::Count);
    assert_eq!(answer.report.leaves[0].buckets_searched, 1);
    let prefix = Predicate::Program(Arc::new(Program::prefix("common/prefix/12")));
    let answer = pair.check(&leaf(0, prefix), Want::Count);
    assert!(answer.report.leaves[0].buckets_searched < stats.buckets.len() / 2);
}

#[test]
fn buckets_merge_when_rows_go() {
    let mut pair = pair(small_settings());
    for number in 0..400 {
        pair.insert(number, vec![string(format!("{number:03}"))]);
    }
    pair.collection.flush();
    let many = pair.collection.stats(0).expect("a field").buckets.len();
    for number in (0..400).filter(|number| number % 10 > 0) {
        pair.remove(number);
    }
    pair.check_all_wants(&leaf(0, regex("^1")));
    pair.collection.flush();
    pair.check_all_wants(&leaf(0, regex("^1")));
    let stats = pair.collection.stats(0).expect("a field");
    assert!(
        stats.buckets.len() * 3 <= many,
        "{many} buckets became {}",
        stats.buckets.len()
    );
    assert_eq!(stats.rows, 40);
}

#[test]
fn a_cleared_cache_is_empty() {
    let mut pair = pair(small_settings());
    for number in 0..100 {
        pair.insert(number, vec![string(format!("{number}"))]);
    }
    pair.collection.flush();
    pair.collection.clear();
    pair.model.documents.clear();
    pair.check_all_wants(&Expr::All);
    pair.insert(1, vec![string("again")]);
    pair.check_all_wants(&leaf(0, regex("a")));
}

#[test]
fn contradictions_are_errors_that_change_nothing() {
    let mut pair = pair(small_settings());
    pair.insert(1, vec![string("a")]);
    let collection = &pair.collection;
    let a = [FieldValue::String(b"a")];
    let b = [FieldValue::String(b"b")];
    assert_eq!(
        collection.insert(1, &a),
        Err(CacheError::NumberInUse { number: 1 })
    );
    let two = [FieldValue::Null, FieldValue::Null];
    assert_eq!(
        collection.insert(2, &two),
        Err(CacheError::FieldCount {
            given: 2,
            declared: 1
        })
    );
    let mut batch = collection.batch(2);
    two.iter()
        .for_each(|value| batch.push(std::slice::from_ref(value)));
    assert_eq!(
        collection.insert_batch(&[2, 1], &batch),
        Err(CacheError::NumberInUse { number: 1 })
    );
    assert_eq!(
        collection.insert_batch(&[2, 2], &batch),
        Err(CacheError::NumberInUse { number: 2 })
    );
    assert_eq!(
        collection.remove(2, &a),
        Err(CacheError::UnknownNumber { number: 2 })
    );
    assert_eq!(
        collection.update(2, &a, &b),
        Err(CacheError::UnknownNumber { number: 2 })
    );
    pair.check_all_wants(&leaf(0, regex("")));
    let unknown = CacheError::UnknownValue {
        number: 1,
        field: 0,
    };
    assert_eq!(collection.remove(1, &b), Err(unknown));
    // After an update, the cache no longer has the document's old value, so removing the old value fails.
    for number in 10..30 {
        pair.insert(number, vec![string("a")]);
    }
    pair.collection.flush();
    pair.update(10, vec![string("b")]);
    let unknown = CacheError::UnknownValue {
        number: 10,
        field: 0,
    };
    assert_eq!(pair.collection.remove(10, &a), Err(unknown));
}

#[test]
fn limits_and_unknown_fields_are_errors() {
    let mut pair = pair(small_settings());
    for number in 0..100 {
        pair.insert(number, vec![string(format!("value {number}"))]);
    }
    let search = |expr: Expr, want: Want| {
        let request = forebay_documents_cache::SearchRequest {
            expr,
            want,
            stop: forebay_cancel::Stop::never(),
        };
        common::runtime()
            .block_on(pair.collection.search(request))
            .map(|answer| answer.count)
    };
    let values = |bytes_max| Want::ValueCounts {
        field: 0,
        elements: true,
        bytes_max,
    };
    assert_eq!(
        search(Expr::All, values(100)),
        Err(SearchError::ValuesTooLarge { bytes_max: 100 })
    );
    assert_eq!(search(Expr::All, values(100_000)), Ok(100));
    let unknown = Err(SearchError::UnknownField {
        field: 1,
        declared: 1,
    });
    assert_eq!(search(leaf(1, Predicate::IsNull), Want::Count), unknown);
    let beyond = Want::ValueCounts {
        field: 1,
        elements: true,
        bytes_max: 1,
    };
    assert_eq!(search(Expr::All, beyond), unknown);
}

#[test]
fn memory_above_the_values_is_small() {
    let pair = pair(CacheSettings {
        background: false,
        ..CacheSettings::default()
    });
    let values: Vec<String> = (0..300_000)
        .map(|number| format!("{:08x}", number * 2_654_435_761u64 % (1 << 32)))
        .collect();
    let mut batch = pair.collection.batch(values.len());
    for value in &values {
        batch.push(&[FieldValue::String(value.as_bytes())]);
    }
    let numbers: Vec<u32> = (0..300_000).collect();
    pair.collection
        .insert_batch(&numbers, &batch)
        .expect("new numbers");
    pair.collection.flush();
    let stats = pair.collection.stats(0).expect("a field");
    assert_eq!((stats.rows, stats.value_bytes), (300_000, 2_400_000));
    let above = stats.overhead_bytes as f64 / 300_000.0;
    assert!(
        (9.0..20.0).contains(&above),
        "{above} bytes per document besides the values"
    );
}
