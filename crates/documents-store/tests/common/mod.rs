//! Helpers for the store's tests.
#![allow(dead_code, reason = "each suite uses some of it")]

pub mod operations;

use std::path::Path;

use bson::RawDocumentBuf;
use forebay_cancel::Stop;
use forebay_documents_store::{
    Collection, Direction, IndexBounds, IndexSpec, Store, StoreError, StoreOptions,
};

/// Runs a test on a store in memory and on one in a directory.
pub fn on_both_engines(test: impl Fn(&Store)) {
    test(&Store::open(StoreOptions::memory()).expect("a store in memory opens"));
    let directory = tempfile::tempdir().expect("a temporary directory");
    test(&Store::open(StoreOptions::directory(directory.path())).expect("a new directory opens"));
}

/// Returns options with write buffers so small that tables are flushed and compacted all the time.
pub fn small_buffers(directory: &Path) -> StoreOptions {
    StoreOptions {
        write_buffer_bytes: 16 << 10,
        write_buffers_bytes_max: 1 << 20,
        ..StoreOptions::directory(directory)
    }
}

pub fn insert(collection: &Collection, document: RawDocumentBuf) -> u64 {
    collection.insert(&document).expect("the document is new")
}

pub fn numbers(
    collection: &Collection,
    index: &str,
    bounds: &IndexBounds,
    direction: Direction,
) -> Vec<u64> {
    let scan = collection
        .index_scan(index, bounds, direction)
        .expect("the index is complete");
    scan.map(|number| number.expect("the scan reads")).collect()
}

pub fn create_index(collection: &Collection, spec: IndexSpec) -> Result<(), StoreError> {
    collection.create_index(spec, Default::default())
}

pub fn assert_clean(collection: &Collection) {
    let report = collection
        .verify(&Stop::never())
        .expect("the collection can be read");
    assert!(report.is_clean(), "{:?}", report.problems);
}
