//! The plain paths through the store, on both engines.

use std::ops::Bound;
use std::sync::Arc;

use bson::{RawBson, RawDocumentBuf, doc, rawdoc};
use forebay_store::{
    BuildProgress, Collection, CollectionOptions, Direction, IndexBounds, IndexField, IndexKind, IndexSpec, Location, Namespace,
    Store, StoreError, StoreOptions,
};

fn on_both_engines(test: impl Fn(&Store)) {
    test(&Store::open(StoreOptions::memory()).expect("a store in memory opens"));
    let directory = tempfile::tempdir().expect("a temporary directory");
    test(&Store::open(StoreOptions::directory(directory.path())).expect("a new directory opens"));
}

fn insert(collection: &Collection, document: RawDocumentBuf) -> u64 {
    collection.insert(&document).expect("the document is new")
}

fn numbers(collection: &Collection, index: &str, bounds: &IndexBounds, direction: Direction) -> Vec<u64> {
    let scan = collection.index_scan(index, bounds, direction).expect("the index is complete");
    scan.map(|number| number.expect("the scan reads")).collect()
}

fn create_index(collection: &Collection, spec: IndexSpec) -> Result<(), StoreError> {
    collection.create_index(spec, Arc::default())
}

fn assert_clean(collection: &Collection) {
    let report = collection.verify().expect("the collection can be read");
    assert!(report.is_clean(), "{:?}", report.problems);
}

#[test]
fn documents_come_and_go() {
    on_both_engines(|store| {
        let collection = store.create_collection("db", "c", CollectionOptions::default()).expect("the name is free");
        let number = insert(&collection, rawdoc! { "_id": 1, "a": "x" });
        assert_eq!(collection.get(number).expect("reads").expect("is there").get_str("a"), Ok("x"));
        assert_eq!(collection.number_by_id(RawBson::Double(1.0).as_raw_bson_ref()).expect("reads"), Some(number));

        let old = collection.replace(number, &rawdoc! { "_id": 1, "a": "y" }).expect("replaces").expect("was there");
        assert_eq!(old.get_str("a"), Ok("x"));
        assert_eq!(collection.document_count(), 1);
        assert!(matches!(collection.replace(number, &rawdoc! { "_id": 2 }), Err(StoreError::IdChanged)));

        collection.delete(number).expect("deletes").expect("was there");
        assert_eq!((collection.document_count(), collection.document_bytes()), (0, 0));
        assert!(collection.delete(number).expect("answers").is_none());
        assert_eq!(insert(&collection, rawdoc! { "_id": 1 }), number + 1, "numbers are never used again");
        assert_clean(&collection);
    });
}
