//! Concurrency: reads and index builds beside writes, and drops of collections during writes and scans.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bson::{RawBson, rawdoc};
use common::{assert_clean, create_index, on_both_engines};
use forebay_documents_store::{BuildProgress, Direction, IndexBounds, IndexSpec, StoreError};

#[test]
fn an_index_is_built_beside_writers() {
    on_both_engines(|store| {
        let collection = store.collection_or_create("db", "c").expect("creates");
        for id in 0..5_000 {
            collection
                .insert(&rawdoc! { "_id": id, "a": id % 100 })
                .expect("inserts");
        }
        let ended = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let writer = threads.spawn(|| {
                let mut random = fastrand::Rng::with_seed(3);
                let mut id = 5_000;
                while !ended.load(Ordering::Acquire) {
                    let number = random.u64(..collection.next_number());
                    if let Some(old) = collection.get(number).expect("reads") {
                        let new = rawdoc! { "_id": old.get_i32("_id").expect("an id"), "a": [random.i32(0..100), 7] };
                        collection.replace(number, &new).expect("replaces");
                    }
                    collection.delete(random.u64(..collection.next_number())).expect("deletes");
                    collection.insert(&rawdoc! { "_id": id, "a": id % 100 }).expect("inserts");
                    id += 1;
                }
            });
            for _ in 0..3 {
                create_index(&collection, IndexSpec::ascending("a")).expect("builds");
                assert_clean(&collection);
                collection.drop_index("a_1").expect("drops");
            }
            create_index(&collection, IndexSpec::ascending("a")).expect("builds");
            ended.store(true, Ordering::Release);
            writer.join().expect("the writer ends well");
        });
        assert_clean(&collection);
    });
}

#[test]
fn a_build_can_be_cancelled() {
    on_both_engines(|store| {
        let collection = store.collection_or_create("db", "c").expect("creates");
        for id in 0..2_000 {
            collection.insert(&rawdoc! { "_id": id }).expect("inserts");
        }
        let progress = Arc::new(BuildProgress::default());
        progress.cancel();
        let built = collection.create_index(IndexSpec::ascending("a"), Arc::clone(&progress));
        assert!(
            matches!(built, Err(StoreError::BuildCancelled { .. })),
            "{built:?}"
        );
        assert_eq!(collection.indexes().len(), 1);
    });
}

#[test]
fn readers_continue_beside_writers() {
    on_both_engines(|store| {
        let collection = store.collection_or_create("db", "c").expect("creates");
        create_index(&collection, IndexSpec::ascending("a")).expect("builds");
        for id in 0..3_000 {
            collection
                .insert(&rawdoc! { "_id": id, "a": 1 })
                .expect("inserts");
        }
        let ended = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let writer = threads.spawn(|| {
                let mut id = 3_000;
                while !ended.load(Ordering::Acquire) {
                    collection
                        .insert(&rawdoc! { "_id": id, "a": 2 })
                        .expect("inserts");
                    collection.delete(id as u64 - 1_000).expect("deletes");
                    id += 1;
                }
            });
            for _ in 0..20 {
                let kept = collection
                    .scan(0)
                    .filter(|record| record.as_ref().expect("reads").0 < 2_000)
                    .count();
                assert_eq!(kept, 2_000, "documents that stay are always found");
                let bounds = IndexBounds::equal(vec![RawBson::Int32(1)]);
                let scan = collection
                    .index_scan("a_1", &bounds, Direction::Backward)
                    .expect("is complete");
                assert_eq!(
                    scan.filter(|number| *number.as_ref().expect("reads") < 2_000)
                        .count(),
                    2_000
                );
            }
            ended.store(true, Ordering::Release);
            writer.join().expect("the writer ends well");
        });
        assert_clean(&collection);
    });
}

#[test]
fn writers_of_several_collections_share_syncs() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = forebay_documents_store::Store::open(common::small_buffers(directory.path()))
        .expect("opens");
    std::thread::scope(|threads| {
        for thread in 0..4 {
            let store = &store;
            threads.spawn(move || {
                let collection = store
                    .collection_or_create("db", &format!("c{}", thread % 2))
                    .expect("creates");
                for id in 0..100 {
                    collection
                        .insert(&rawdoc! { "_id": thread * 1_000 + id })
                        .expect("inserts");
                    store.sync().expect("syncs");
                }
            });
        }
    });
    assert_eq!(store.sizes().documents, 400);
    store
        .all_collections()
        .iter()
        .for_each(|collection| assert_clean(collection));
}

#[test]
fn a_drop_ends_writes_and_scans() {
    on_both_engines(|store| {
        let collection = store.collection_or_create("db", "c").expect("creates");
        for id in 0..100 {
            collection.insert(&rawdoc! { "_id": id }).expect("inserts");
        }
        let mut scan = collection.scan(0);
        scan.next().expect("has documents").expect("reads");
        std::thread::scope(|threads| {
            let writer = threads.spawn(|| {
                (100..)
                    .map(|id| collection.insert(&rawdoc! { "_id": id }))
                    .find_map(Result::err)
                    .expect("ends by an error")
            });
            store.drop_collection("db", "c").expect("drops");
            let error = writer.join().expect("the writer ends well");
            assert!(
                matches!(error, StoreError::CollectionDropped { .. }),
                "{error}"
            );
        });
        let error = scan.find_map(Result::err);
        assert!(
            matches!(error, Some(StoreError::PartitionDropped)),
            "an open scan must not look complete: {error:?}"
        );
        let again = store.collection_or_create("db", "c").expect("creates");
        assert_eq!(again.document_count(), 0);
        assert_ne!(again.uuid(), collection.uuid());
    });
}
