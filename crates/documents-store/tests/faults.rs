//! Failing reads: the operation returns the error and changes nothing, and the store continues.

mod common;

use std::sync::Arc;
use std::time::Duration;

use bson::{RawBson, rawdoc};
use common::{assert_clean, create_index};
use forebay_documents_store::engine::fault::{Fault, FaultEngine};
use forebay_documents_store::engine::memory::MemoryEngine;
use forebay_documents_store::{
    Change, Collection, Direction, IndexBounds, IndexSpec, Namespace, Result, Store, StoreError,
};

/// Number of documents: more than the first page of a scan holds.
const DOCUMENTS: i64 = 40;

/// An operation that reads.
type Operation = fn(&Collection) -> Result<()>;

const OPERATIONS: [(&str, Operation); 9] = [
    ("get", |collection| collection.get(3).map(drop)),
    ("scan", |collection| {
        collection.scan(0).try_for_each(|record| record.map(drop))
    }),
    ("number by _id", |collection| {
        collection
            .number_by_id(bson::RawBsonRef::Int64(3))
            .map(drop)
    }),
    ("scan of an index", |collection| {
        let bounds = IndexBounds::equal(vec![RawBson::Int64(1)]);
        let mut scan = collection.index_scan("a_1", &bounds, Direction::Forward)?;
        scan.try_for_each(|number| number.map(drop))
    }),
    ("replace", |collection| {
        collection
            .replace(3, &rawdoc! { "_id": 3_i64, "a": 9_i64 })
            .map(drop)
    }),
    ("delete", |collection| collection.delete(4).map(drop)),
    ("several changes", |collection| {
        let document = rawdoc! { "_id": 5_i64, "a": 8_i64 };
        let insert = rawdoc! { "_id": DOCUMENTS, "a": 8_i64 };
        let changes = [
            Change::Replace(5, &document),
            Change::Insert(&insert),
            Change::Delete(6),
        ];
        let mut answers = collection.write(&changes, true).into_iter();
        answers.try_for_each(|answer| answer.map(drop))
    }),
    ("several changes in any order", |collection| {
        let changes = [Change::Delete(7), Change::Delete(8), Change::Delete(9)];
        let answers = collection.write(&changes, false);
        assert!(answers.iter().all(Result::is_ok) || answers.iter().all(Result::is_err));
        answers.into_iter().try_for_each(|answer| answer.map(drop))
    }),
    ("build of an index", |collection| {
        create_index(collection, IndexSpec::ascending("b"))
    }),
];

fn store() -> (Arc<FaultEngine>, Store) {
    let engine = Arc::new(FaultEngine::new(Arc::new(MemoryEngine::default())));
    let store = Store::with_engine(engine.clone(), Duration::from_secs(3600)).expect("opens");
    let collection = store.collection_or_create("db", "c").expect("creates");
    create_index(&collection, IndexSpec::ascending("a")).expect("builds");
    for id in 0..DOCUMENTS {
        let document = rawdoc! { "_id": id, "a": id % 3, "b": id };
        collection.insert(&document).expect("is taken");
    }
    (engine, store)
}

fn contents(collection: &Collection) -> Vec<(u64, Vec<u8>)> {
    let read = |record: Result<(u64, forebay_documents_store::Document)>| {
        let (number, document) = record.expect("reads");
        (number, document.raw().as_bytes().to_vec())
    };
    collection.scan(0).map(read).collect()
}

/// Runs an operation whose first `after` reads succeed and whose next read fails. Returns whether the operation reached
/// the failing read.
fn fails_at(name: &str, operation: Operation, after: u32) -> bool {
    let (engine, store) = store();
    let collection = store.collection("db", "c").expect("is there");
    let before = contents(&collection);
    engine.fail_read(after, Fault::Broken);
    let outcome = operation(&collection);
    // Consumes a fault that the operation did not reach.
    while engine.has_fault() {
        drop(collection.get(0));
    }
    let failed = outcome.is_err();
    if let Err(error) = outcome {
        assert!(matches!(error, StoreError::Io { .. }), "{name}: {error}");
        assert_eq!(contents(&collection), before, "{name} at read {after}");
        assert_eq!(collection.document_count(), before.len() as u64);
        operation(&collection).unwrap_or_else(|error| panic!("{name} again: {error}"));
    }
    assert_clean(&collection);
    failed
}

#[test]
fn a_failing_read_fails_only_its_operation() {
    for (name, operation) in OPERATIONS {
        let failed = (0..).take_while(|after| fails_at(name, operation, *after));
        assert!(failed.count() > 0, "{name} reads");
    }
}

#[test]
fn each_commit_makes_a_later_version() {
    let named = |name: &str| Namespace::new("db", name);
    let (engine, store) = store();
    let collection = store.collection("db", "c").expect("is there");
    let writes: [Operation; 4] = [
        |collection| collection.insert(&rawdoc! { "_id": DOCUMENTS }).map(drop),
        |collection| collection.replace(3, &rawdoc! { "_id": 3_i64 }).map(drop),
        |collection| collection.delete(4).map(drop),
        // What has failed may have been written.
        |collection| {
            let failed = collection.delete(5).expect_err("a broken disk");
            assert!(matches!(failed, StoreError::Io { .. }), "{failed}");
            Ok(())
        },
    ];
    let last = writes.len() - 1;
    for (index, write) in writes.into_iter().enumerate() {
        let before = collection.version();
        assert!(collection.has_version(before));
        if index == last {
            engine.fail_commit(0, Fault::Broken);
        }
        write(&collection).expect("is written");
        let version = collection.version();
        assert!(version > before && collection.has_version(version));
        assert!(!collection.has_version(before));
    }
    let (before, [from, to]) = (collection.version(), ["c", "d"].map(named));
    store.rename_collection(&from, &to, false).expect("renames");
    let version = collection.version();
    assert!(version > before && collection.has_version(version));
    store.drop_collection("db", "d").expect("drops");
    assert!(!collection.has_version(version));
}
