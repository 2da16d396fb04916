//! A nearly full disk: writes are refused, reads continue, acknowledged writes are kept, and writes continue once there
//! is free space. `processes/limits.rs` tests a full disk.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bson::{RawDocumentBuf, rawdoc};
use common::assert_clean;
use forebay_documents_store::engine::fault::{Fault, FaultEngine};
use forebay_documents_store::engine::memory::MemoryEngine;
use forebay_documents_store::engine::reserve::ReserveEngine;
use forebay_documents_store::{Change, Collection, Store, StoreError, StoreOptions};

fn document(id: i64) -> RawDocumentBuf {
    rawdoc! { "_id": id, "pad": "x".repeat(500_000) }
}

#[test]
fn a_failed_sync_stops_writes_until_one_succeeds() {
    let engine = Arc::new(FaultEngine::new(Arc::new(MemoryEngine::default())));
    // The interval is so long that the background thread does not sync during this test.
    let store = Store::with_engine(engine.clone(), Duration::from_secs(3600)).expect("opens");
    let collection = store.collection_or_create("db", "c").expect("creates");
    collection.insert(&document(0)).expect("is taken");

    engine.fail_sync(0, Fault::Broken);
    store.sync().expect_err("fails");
    let refused = collection.insert(&document(1));
    assert!(
        matches!(refused, Err(StoreError::NotSynced { .. })),
        "{refused:?}"
    );
    let other = store.collection_or_create("db", "d").map(drop);
    assert!(
        matches!(other, Err(StoreError::NotSynced { .. })),
        "{other:?}"
    );
    let asked = store.check_writable();
    assert!(
        matches!(asked, Err(StoreError::NotSynced { .. })),
        "{asked:?}"
    );
    assert_eq!(collection.document_count(), 1);

    store.sync().expect("succeeds");
    store.check_writable().expect("writes are accepted again");
    collection
        .insert(&document(1))
        .expect("a write is accepted again");
    assert_clean(&collection);
}

/// Inserts documents until one is refused. Returns the number of documents that the collection then has, and the error.
fn fill(collection: &Collection) -> (i64, StoreError) {
    let present = collection.document_count() as i64;
    let refused = |id| {
        collection
            .insert(&document(id))
            .err()
            .map(|error| (id, error))
    };
    (present..present + 1_000)
        .find_map(refused)
        .expect("the limit is reached")
}

const RESERVE: u64 = 1 << 20;

/// Opens a store on a disk whose free bytes the test sets.
fn store_with(free: &Arc<AtomicU64>) -> Store {
    let free = Arc::clone(free);
    let free_bytes = Box::new(move || Ok(free.load(Ordering::SeqCst)));
    let engine = ReserveEngine::new(Arc::new(MemoryEngine::default()), RESERVE, free_bytes);
    Store::with_engine(Arc::new(engine), Duration::from_secs(1)).expect("opens")
}

#[test]
fn writes_continue_when_there_is_space_again() {
    let free = Arc::new(AtomicU64::new(RESERVE + (8 << 20)));
    let store = store_with(&free);
    let collection = store.collection_or_create("db", "c").expect("creates");
    for id in 0..5 {
        collection.insert(&document(id)).expect("there is space");
    }

    free.store(RESERVE - 1, Ordering::SeqCst);
    let (taken, error) = fill(&collection);
    assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
    let told = error.to_string();
    assert!(
        told.contains("needs 1 MiB of free space, but 0 MiB are free"),
        "{told}"
    );
    let again = collection.insert(&document(taken));
    assert!(matches!(again, Err(StoreError::DiskFull { .. })));
    let other = store.collection_or_create("db", "d");
    assert!(matches!(other, Err(StoreError::DiskFull { .. })));
    let asked = store.check_writable();
    assert!(matches!(asked, Err(StoreError::DiskFull { .. })));
    assert_eq!(collection.document_count(), taken as u64);
    assert_clean(&collection);

    let number = collection
        .number_by_id(bson::RawBsonRef::Int64(0))
        .expect("reads continue")
        .expect("the first insert was accepted");
    let deleted = collection.write(&[Change::Delete(number)], true);
    assert!(deleted[0].is_ok(), "a delete is accepted: {deleted:?}");

    free.store(RESERVE + (1 << 30), Ordering::SeqCst);
    collection
        .insert(&document(taken))
        .expect("there is space again");
    store.check_writable().expect("there is space again");
    store.collection_or_create("db", "d").expect("likewise");
    assert_eq!(collection.document_count(), taken as u64);
    assert_clean(&collection);
}

#[test]
fn a_store_on_a_directory_keeps_its_reserve() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = Store::open(StoreOptions {
        disk_reserve_bytes: u64::MAX,
        ..StoreOptions::directory(directory.path())
    });
    let refused = store.and_then(|store| store.collection_or_create("db", "c").map(drop));
    assert!(matches!(refused, Err(StoreError::DiskFull { .. })));
}
