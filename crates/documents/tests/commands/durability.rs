//! When a write is on the disk.

use std::path::Path;
use std::time::Duration;

use bson::{Document, doc};
use forebay_documents::{Location, Settings};

use crate::door::{Door, with};

/// A door that syncs when it is asked to, in the time of a test.
fn door(directory: &Path) -> Door {
    with(Settings {
        location: Location::Directory(directory.to_owned()),
        sync_interval: Duration::from_secs(3600),
        ..Settings::default()
    })
}

/// How far the journal is on the disk: noted after each sync.
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

/// The writes after which the journal was not further on the disk than before.
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
async fn others_are_acknowledged_before() {
    for concern in [doc! { "w": 1 }, doc! { "w": "majority", "j": false }] {
        assert_eq!(
            unsynced(concern.clone()).await.len(),
            writes().len(),
            "{concern}"
        );
    }
}
