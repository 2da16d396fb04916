//! Basic operations of the store, on both engines.

mod common;

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bson::{RawBson, doc, rawdoc};
use common::{assert_clean, create_index, insert, numbers, on_both_engines};
use forebay_documents_store::engine::memory::MemoryEngine;
use forebay_documents_store::engine::{Batch, Engine, Entries, KeyRange, PartitionKind};
use forebay_documents_store::{
    Change, CollectionOptions, Direction, IndexBounds, IndexField, IndexKind, IndexSpec,
    NUMBER_MAX, Namespace, Store, StoreError,
};

#[test]
fn documents_come_and_go() {
    on_both_engines(|store| {
        let collection = store
            .create_collection("db", "c", CollectionOptions::default())
            .expect("the name is free");
        let number = insert(&collection, rawdoc! { "_id": 1, "a": "x" });
        assert_eq!(
            collection
                .get(number)
                .expect("reads")
                .expect("is there")
                .get_str("a")
                .ok(),
            Some("x")
        );
        assert_eq!(
            collection
                .number_by_id(RawBson::Double(1.0).as_raw_bson_ref())
                .expect("reads"),
            Some(number)
        );

        let old = collection
            .replace(number, &rawdoc! { "_id": 1, "a": "y" })
            .expect("replaces")
            .expect("was there");
        assert_eq!(old.get_str("a").ok(), Some("x"));
        assert_eq!(collection.document_count(), 1);
        assert!(matches!(
            collection.replace(number, &rawdoc! { "_id": 2 }),
            Err(StoreError::IdChanged)
        ));

        collection
            .delete(number)
            .expect("deletes")
            .expect("was there");
        assert_eq!(
            (collection.document_count(), collection.document_bytes()),
            (0, 0)
        );
        assert!(collection.delete(number).expect("answers").is_none());
        assert_eq!(
            insert(&collection, rawdoc! { "_id": 1 }),
            number + 1,
            "numbers are never used again"
        );
        assert_clean(&collection);
    });
}

#[test]
fn one_answer_a_document() {
    on_both_engines(|store| {
        let collection = store.collection_or_create("db", "c").expect("creates");
        let documents = [
            rawdoc! { "_id": 1 },
            rawdoc! { "_id": 1.0 },
            rawdoc! {},
            rawdoc! { "_id": 2 },
        ];
        let documents: Vec<&bson::RawDocument> =
            documents.iter().map(|document| document.as_ref()).collect();

        let answers = collection.insert_many(&documents, false);
        assert!(matches!(
            answers[..],
            [
                Ok(0),
                Err(StoreError::DuplicateKey { .. }),
                Err(StoreError::MissingId),
                Ok(1)
            ]
        ));
        let message = answers[1].as_ref().expect_err("a duplicate").to_string();
        assert_eq!(
            message,
            "E11000 duplicate key error collection: db.c index: _id_ dup key: { _id: 1.0 }"
        );

        let answers = collection.insert_many(&documents[3..], true);
        assert!(
            matches!(answers[..], [Err(StoreError::DuplicateKey { .. })]),
            "known from an earlier batch"
        );
        assert_eq!(collection.document_count(), 2);
        assert_clean(&collection);
    });
}

#[test]
fn many_documents_take_several_batches() {
    on_both_engines(|store| {
        let collection = store.collection_or_create("db", "c").expect("creates");
        let documents: Vec<bson::RawDocumentBuf> = (0..2_500)
            .map(|id| rawdoc! { "_id": (id * 7919) % 2_500 })
            .collect();
        let documents: Vec<&bson::RawDocument> =
            documents.iter().map(|document| document.as_ref()).collect();
        assert!(
            collection
                .insert_many(&documents, true)
                .iter()
                .all(Result::is_ok)
        );
        let scanned: Vec<u64> = collection
            .scan(0)
            .map(|record| record.expect("reads").0)
            .collect();
        assert_eq!(scanned, (0..2_500).collect::<Vec<_>>());
        let some: Vec<u64> = collection
            .scan_range(10..13, Direction::Backward)
            .map(|record| record.expect("reads").0)
            .collect();
        assert_eq!(some, [12, 11, 10]);
        assert_clean(&collection);
    });
}

#[test]
fn indexes_answer_equality_and_ranges() {
    on_both_engines(|store| {
        let collection = store.collection_or_create("db", "c").expect("creates");
        for (id, a) in [5, 3, 9, 1, 7].into_iter().enumerate() {
            insert(&collection, rawdoc! { "_id": id as i64, "a": a });
        }
        create_index(&collection, IndexSpec::ascending("a")).expect("builds over what is there");
        insert(&collection, rawdoc! { "_id": 5, "a": 4 });
        let all = IndexBounds::all();
        assert_eq!(
            numbers(&collection, "a_1", &all, Direction::Forward),
            [3, 1, 5, 0, 4, 2]
        );
        assert_eq!(
            numbers(&collection, "a_1", &all, Direction::Backward),
            [2, 4, 0, 5, 1, 3]
        );
        let five = IndexBounds::equal(vec![RawBson::Double(5.0)]);
        assert_eq!(numbers(&collection, "a_1", &five, Direction::Forward), [0]);
        let range = IndexBounds::range(
            vec![],
            Bound::Excluded(RawBson::Int32(3)),
            Bound::Included(RawBson::Int32(7)),
        );
        assert_eq!(
            numbers(&collection, "a_1", &range, Direction::Forward),
            [5, 0, 4]
        );
        assert_clean(&collection);
    });
}

#[test]
fn string_prefixes_are_a_range() {
    on_both_engines(|store| {
        let collection = store.collection_or_create("db", "c").expect("creates");
        let descending = IndexField {
            path: "s".to_owned(),
            kind: IndexKind::Descending,
        };
        create_index(&collection, IndexSpec::ascending("s")).expect("builds");
        create_index(&collection, IndexSpec::new("s_-1", vec![descending])).expect("builds");
        for (id, s) in ["ab", "abc", "ac", "a", "ab\u{10FFFF}"]
            .into_iter()
            .enumerate()
        {
            insert(&collection, rawdoc! { "_id": id as i64, "s": s });
        }
        insert(&collection, rawdoc! { "_id": 9, "s": 1 });
        let bounds = IndexBounds::string_prefix(vec![], "ab");
        assert_eq!(
            numbers(&collection, "s_1", &bounds, Direction::Forward),
            [0, 1, 4]
        );
        assert_eq!(
            numbers(&collection, "s_-1", &bounds, Direction::Forward),
            [4, 1, 0]
        );
    });
}

#[test]
fn unique_indexes_refuse_and_let_go() {
    on_both_engines(|store| {
        let collection = store.collection_or_create("db", "c").expect("creates");
        create_index(&collection, IndexSpec::ascending("a").unique()).expect("builds");
        let first = insert(&collection, rawdoc! { "_id": 1, "a": ["x", "y"] });
        let taken = collection
            .insert(&rawdoc! { "_id": 2, "a": "y" })
            .expect_err("y is taken");
        let StoreError::DuplicateKey {
            values,
            pattern,
            index,
            ..
        } = taken
        else {
            panic!("{taken}")
        };
        assert_eq!(
            bson::Document::try_from(values).expect("BSON"),
            doc! { "a": "y" }
        );
        assert_eq!(
            bson::Document::try_from(pattern).expect("BSON"),
            doc! { "a": 1 }
        );
        assert_eq!(index, "a_1");
        collection
            .replace(first, &rawdoc! { "_id": 1, "a": ["x"] })
            .expect("the replacement removes key y");
        insert(&collection, rawdoc! { "_id": 2, "a": "y" });
        insert(&collection, rawdoc! { "_id": 3 });
        assert!(
            collection.insert(&rawdoc! { "_id": 4, "a": null }).is_err(),
            "missing is null"
        );
        assert_clean(&collection);
    });
}

#[test]
fn a_sparse_unique_index_leaves_missing_fields_out() {
    on_both_engines(|store| {
        let collection = store.collection_or_create("db", "c").expect("creates");
        create_index(&collection, IndexSpec::ascending("a").unique().sparse()).expect("builds");
        insert(&collection, rawdoc! { "_id": 1 });
        insert(&collection, rawdoc! { "_id": 2 });
        insert(&collection, rawdoc! { "_id": 3, "a": null });
        assert_eq!(
            numbers(&collection, "a_1", &IndexBounds::all(), Direction::Forward),
            [2]
        );
        assert_clean(&collection);
    });
}

#[test]
fn a_build_over_duplicates_fails_and_leaves_nothing() {
    on_both_engines(|store| {
        let collection = store.collection_or_create("db", "c").expect("creates");
        for id in 0..2_000 {
            insert(&collection, rawdoc! { "_id": id, "a": id % 1_999 });
        }
        let failed = create_index(&collection, IndexSpec::ascending("a").unique());
        assert!(
            matches!(failed, Err(StoreError::DuplicateKey { .. })),
            "{failed:?}"
        );
        assert_eq!(collection.indexes().len(), 1);
        let missing = collection
            .index_scan("a_1", &IndexBounds::all(), Direction::Forward)
            .err();
        assert!(matches!(missing, Some(StoreError::IndexNotFound { .. })));
        create_index(&collection, IndexSpec::ascending("a")).expect("builds without uniqueness");
        assert!(matches!(
            create_index(&collection, IndexSpec::ascending("a")),
            Err(StoreError::IndexExists { .. })
        ));
        collection.drop_index("a_1").expect("is there");
        assert!(collection.drop_index("_id_").is_err());
        assert_clean(&collection);
    });
}

#[test]
fn a_document_with_parallel_arrays_is_refused() {
    on_both_engines(|store| {
        let collection = store.collection_or_create("db", "c").expect("creates");
        let field = |path: &str| IndexField {
            path: path.to_owned(),
            kind: IndexKind::Ascending,
        };
        create_index(
            &collection,
            IndexSpec::new("ab", vec![field("a"), field("b")]),
        )
        .expect("builds");
        let refused = collection
            .insert(&rawdoc! { "_id": 1, "a": [1], "b": [2] })
            .expect_err("two arrays");
        assert_eq!(refused.to_string(), "cannot index parallel arrays [b] [a]");
        assert_eq!(collection.document_count(), 0);
        insert(&collection, rawdoc! { "_id": 1, "a": [1, 2], "b": 2 });
        assert_clean(&collection);
    });
}

#[test]
fn a_key_too_long_is_refused() {
    on_both_engines(|store| {
        let collection = store.collection_or_create("db", "c").expect("creates");
        create_index(&collection, IndexSpec::ascending("a")).expect("builds");
        let long = "x".repeat(60_001);
        let refused = collection.insert(&rawdoc! { "_id": 1, "a": long.as_str() });
        assert!(matches!(refused, Err(StoreError::KeyTooLong { .. })));
        insert(&collection, rawdoc! { "_id": 1, "b": long });
        assert_clean(&collection);
    });
}

#[test]
fn cache_indexes_are_only_recorded() {
    on_both_engines(|store| {
        let collection = store.collection_or_create("db", "c").expect("creates");
        let field = IndexField {
            path: "a".to_owned(),
            kind: IndexKind::Cache,
        };
        create_index(&collection, IndexSpec::new("a_cache", vec![field])).expect("records");
        insert(&collection, rawdoc! { "_id": 1, "a": "x" });
        assert!(collection.indexes()[1].complete);
        assert!(
            collection
                .index_scan("a_cache", &IndexBounds::all(), Direction::Forward)
                .is_err()
        );
        assert_clean(&collection);
    });
}

#[test]
fn changes_of_one_batch_see_one_another() {
    use forebay_documents_store::{Change, Changed};
    on_both_engines(|store| {
        let collection = store.collection_or_create("db", "c").expect("creates");
        create_index(&collection, IndexSpec::ascending("a").unique()).expect("builds");
        let (one, two, moved) = (
            rawdoc! { "_id": 1, "a": 1 },
            rawdoc! { "_id": 2, "a": 1 },
            rawdoc! { "_id": 1, "a": 2 },
        );
        let changes = [
            Change::Insert(&one),
            Change::Insert(&two),
            Change::Replace(0, &moved),
            Change::Insert(&two),
        ];
        let answers = collection.write(&changes, false);
        assert!(matches!(
            answers[..],
            [
                Ok(Changed::Inserted(0)),
                Err(StoreError::DuplicateKey { .. }),
                Ok(Changed::Replaced(_)),
                Ok(Changed::Inserted(1))
            ]
        ));
        let changes = [
            Change::Delete(0),
            Change::Delete(0),
            Change::Insert(&moved),
            Change::Delete(2),
            Change::Delete(1),
        ];
        let answers = collection.write(&changes, true);
        assert!(matches!(
            answers[..],
            [
                Ok(Changed::Deleted(_)),
                Ok(Changed::Absent),
                Ok(Changed::Inserted(2)),
                Ok(Changed::Deleted(_)),
                Ok(Changed::Deleted(_))
            ]
        ));
        assert_eq!(collection.document_count(), 0);
        assert_clean(&collection);
    });
}

#[test]
fn a_note_is_kept_with_the_changes_of_its_batch() {
    use forebay_documents_store::{Change, Changed};
    on_both_engines(|store| {
        let collection = store.collection_or_create("db", "c").expect("creates");
        assert_eq!(collection.note().expect("reads"), None);
        let (one, two) = (rawdoc! { "_id": 1 }, rawdoc! { "_id": 2 });
        let changes = [Change::Insert(&one), Change::Insert(&two)];
        let changed = collection.write_noted(&changes, Some(b"a"));
        let expected = [Changed::Inserted(0), Changed::Inserted(1)];
        assert_eq!(changed.expect("writes"), expected);
        let twice = [Change::Delete(0), Change::Insert(&two)];
        let refused = collection.write_noted(&twice, Some(b"b"));
        assert!(matches!(refused, Err(StoreError::DuplicateKey { .. })));
        assert_eq!(collection.document_count(), 2, "all or nothing");
        let note = || collection.note().expect("reads");
        assert_eq!(note().as_deref(), Some(&b"a"[..]));
        collection.write_noted(&[], Some(b"c")).expect("writes");
        collection
            .write_noted(&[Change::Delete(1)], None)
            .expect("writes");
        assert_eq!(note().as_deref(), Some(&b"c"[..]));
        let (from, to) = (Namespace::new("db", "c"), Namespace::new("db", "d"));
        store.rename_collection(&from, &to, false).expect("renames");
        assert_eq!(note().as_deref(), Some(&b"c"[..]));
        assert_clean(&collection);
        store.drop_collection("db", "d").expect("drops");
        assert_eq!(note(), None);
        assert!(collection.write_noted(&[], Some(b"d")).is_err());
    });
}

#[test]
fn collections_are_listed_renamed_and_dropped() {
    on_both_engines(|store| {
        let a = store
            .create_collection(
                "one",
                "a",
                CollectionOptions {
                    options: rawdoc! { "x": 1 },
                },
            )
            .expect("is free");
        insert(&a, rawdoc! { "_id": 1 });
        store
            .create_collection("two", "b", CollectionOptions::default())
            .expect("is free");
        let again = store.create_collection("one", "a", CollectionOptions::default());
        assert!(matches!(again, Err(StoreError::NamespaceExists { .. })));
        assert_eq!(store.databases(), ["one", "two"]);

        let (from, to) = (Namespace::new("one", "a"), Namespace::new("two", "b"));
        assert!(matches!(
            store.rename_collection(&from, &to, false),
            Err(StoreError::NamespaceExists { .. })
        ));
        store
            .rename_collection(&from, &to, true)
            .expect("the target may be dropped");
        assert_eq!(store.databases(), ["two"]);
        let moved = store.collection("two", "b").expect("has the new name");
        assert!(Arc::ptr_eq(&a, &moved));
        assert_eq!((moved.document_count(), moved.namespace()), (1, to));

        assert!(store.drop_database("two").expect("drops"));
        assert!(!store.drop_collection("two", "b").expect("answers"));
        assert!(a.is_dropped());
        assert!(matches!(
            a.insert(&rawdoc! { "_id": 2 }),
            Err(StoreError::CollectionDropped { .. })
        ));
        assert!(matches!(a.get(0), Err(StoreError::PartitionDropped)));
        assert_eq!(store.databases(), [""; 0]);
    });
}

#[test]
fn user_records_are_kept() {
    on_both_engines(|store| {
        let users = store.users();
        users.put("ann", b"1").expect("writes");
        users.put("bob", b"2").expect("writes");
        users.put("ann", b"3").expect("writes");
        assert_eq!(users.list().expect("reads"), ["ann", "bob"]);
        assert_eq!(users.get("ann").expect("reads"), Some(b"3".to_vec()));
        assert!(users.remove("ann").expect("writes"));
        assert!(!users.remove("ann").expect("answers"));
        assert_eq!(users.get("ann").expect("reads"), None);
    });
}

#[test]
fn a_scan_of_what_is_dropped_meanwhile_fails() {
    on_both_engines(|store| {
        let collection = store
            .create_collection("db", "c", CollectionOptions::default())
            .expect("the name is free");
        for id in 0..5_000 {
            insert(&collection, rawdoc! { "_id": id, "a": id });
        }
        create_index(&collection, IndexSpec::ascending("a")).expect("is built");
        let mut by_index = collection
            .index_scan("a_1", &IndexBounds::all(), Direction::Forward)
            .expect("the index is there");
        let mut by_number = collection.scan(0);
        assert!(matches!(by_index.next(), Some(Ok(_))));
        assert!(matches!(by_number.next(), Some(Ok(_))));

        collection.drop_index("a_1").expect("drops");
        let error = by_index.find_map(Result::err);
        assert!(matches!(error, Some(StoreError::PartitionDropped)));
        assert!(by_index.next().is_none());

        store.drop_collection("db", "c").expect("drops");
        let error = by_number.find_map(Result::err);
        assert!(matches!(error, Some(StoreError::PartitionDropped)));
    });
}

/// Sets the next record number of all collections.
fn use_numbers(engine: &Arc<MemoryEngine>, next: u64) {
    let catalogue = engine
        .open_partition("catalogue", PartitionKind::Catalogue)
        .expect("is there")
        .id;
    let statistics = KeyRange::prefix(b"s");
    let mut batch = Batch::default();
    for entry in Entries::new(engine.clone(), catalogue, statistics, Direction::Forward) {
        let (key, value) = entry.expect("reads");
        let mut value = value.to_vec();
        value[16..].copy_from_slice(&next.to_be_bytes());
        batch.put(catalogue, key, value);
    }
    engine.commit(batch).expect("writes");
}

#[test]
fn record_numbers_come_to_an_end() {
    let engine = Arc::new(MemoryEngine::default());
    let open = || Store::with_engine(engine.clone(), Duration::from_secs(60)).expect("opens");
    let store = open();
    assert_eq!(store.sizes().inserts_left, None);
    store.collection_or_create("db", "c").expect("creates");
    assert_eq!(store.sizes().inserts_left, Some(NUMBER_MAX));
    drop(store);

    use_numbers(&engine, NUMBER_MAX - 2);
    let store = open();
    let collection = store.collection("db", "c").expect("is there");
    assert_eq!(collection.inserts_left(), 2);
    let last = insert(&collection, rawdoc! { "_id": 1 });
    collection
        .write(&[Change::Delete(last)], true)
        .remove(0)
        .expect("deletes");
    insert(&collection, rawdoc! { "_id": 2 });
    assert_eq!(store.sizes().inserts_left, Some(0));
    let refused = collection.insert(&rawdoc! { "_id": 3 });
    let refused = refused.expect_err("no number is left");
    assert!(matches!(refused, StoreError::NumbersExhausted { .. }));
    assert!(
        refused.to_string().contains("copy it to a new collection"),
        "{refused}"
    );
    assert_clean(&collection);
}

#[test]
fn a_scan_that_rests_returns_each_document_once() {
    on_both_engines(|store| {
        let collection = store
            .create_collection("db", "c", CollectionOptions::default())
            .expect("the name is free");
        let text = "x".repeat(30_000);
        let document = |id: i32| rawdoc! { "_id": id, "a": text.as_str() };
        let inserted: Vec<u64> = (0..40)
            .map(|id| insert(&collection, document(id)))
            .collect();
        for direction in [Direction::Forward, Direction::Backward] {
            let mut scan = collection.scan_range(0..u64::MAX, direction);
            let mut read = Vec::new();
            while let Some(row) = scan.next() {
                read.push(row.expect("the scan reads").0);
                scan.rest();
            }
            if direction == Direction::Backward {
                read.reverse();
            }
            assert_eq!(read, inserted);
        }
    });
}
