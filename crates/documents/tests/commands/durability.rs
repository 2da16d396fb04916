//! Write concerns: which replies wait for the disk.

use std::path::Path;
use std::time::Duration;

use bson::{Document, doc};
use forebay_documents::{Location, Settings};

use crate::door::{Door, with};

/// Opens a server that, during a test, syncs only on request.
fn door(directory: &Path) -> Door {
    with(Settings {
        location: Location::Directory(directory.to_owned()),
        sync_interval: Duration::from_secs(3600),
        ..Settings::default()
    })
}

/// Returns the journal's synced position, which is recorded after each sync.
fn synced(directory: &Path) -> Vec<u8> {
    std::fs::read(directory.join("tables/synced")).unwrap()
}

fn writes() -> Vec<Document> {
    let change = doc! { "q": {}, "u": { "$inc": { "n": 1 } } };
    let key = doc! { "key": { "n": 1 }, "name": "n_1" };
    vec![
        doc! { "insert": "c", "documents": [{ "_id": 1, "n": 1 }] },
        doc! { "update": "c", "updates": [change] },
        doc! { "findAndModify": "c", "query": {}, "update": { "$inc": { "n": 1 } } },
        doc! { "createIndexes": "c", "indexes": [key] },
        doc! { "aggregate": "c", "pipeline": [{ "$out": "d" }], "cursor": {} },
        doc! { "delete": "c", "deletes": [{ "q": {}, "limit": 0 }] },
        doc! { "create": "e" },
        doc! { "drop": "c" },
    ]
}

/// Returns the names of the writes whose replies came without a sync.
async fn unsynced(concern: Document) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let door = door(directory.path());
    let mut unsynced = Vec::new();
    for mut write in writes() {
        let before = synced(directory.path());
        let name = write.keys().next().unwrap().clone();
        write.insert("writeConcern", concern.clone());
        door.ok(write).await;
        if synced(directory.path()) == before {
            unsynced.push(name);
        }
    }
    unsynced
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_is_acknowledged_from_the_journal() {
    let none: [&str; 0] = [];
    assert_eq!(unsynced(doc! { "w": "majority" }).await, none);
    assert_eq!(unsynced(doc! { "w": 1, "j": true }).await, none);
    assert_eq!(unsynced(doc! { "w": "majority", "j": true }).await, none);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_writes_are_acknowledged_before_a_sync() {
    for concern in [doc! { "w": 1 }, doc! { "w": "majority", "j": false }] {
        assert_eq!(
            unsynced(concern.clone()).await.len(),
            writes().len(),
            "{concern}"
        );
    }
}
