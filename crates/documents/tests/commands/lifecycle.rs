//! Creating, renaming and dropping collections and databases, and restarting.

use bson::{Document, doc};

use crate::door::{at, door};

fn names(documents: &[Document]) -> Vec<&str> {
    documents
        .iter()
        .map(|document| document.get_str("name").unwrap())
        .collect()
}

#[tokio::test]
async fn collections_are_created_listed_renamed_and_dropped() {
    let door = door();
    door.ok(doc! { "create": "b" }).await;
    door.ok(doc! { "create": "b" }).await;
    door.insert("a", [doc! { "_id": 1 }]).await;
    let listed = door.all(doc! { "listCollections": 1 }).await;
    assert_eq!(names(&listed), ["a", "b"]);
    assert!(listed[0].get_document("info").unwrap().contains_key("uuid"));
    let listed = door
        .all(doc! { "listCollections": 1, "nameOnly": true, "filter": { "name": "b" } })
        .await;
    assert_eq!(listed, [doc! { "name": "b", "type": "collection" }]);
    assert_eq!(
        door.code(doc! { "renameCollection": "test.a", "to": "test.b", "$db": "admin" })
            .await,
        48
    );
    door.admin(doc! { "renameCollection": "test.a", "to": "test.b", "dropTarget": true })
        .await;
    assert_eq!(names(&door.all(doc! { "listCollections": 1 }).await), ["b"]);
    assert_eq!(door.count("b", doc! {}).await, 1);
    door.admin(doc! { "renameCollection": "test.b", "to": "other.b" })
        .await;
    let databases = door
        .admin(doc! { "listDatabases": 1, "nameOnly": true })
        .await;
    assert_eq!(
        databases.get_array("databases").unwrap(),
        &[doc! { "name": "other" }.into()]
    );
    assert_eq!(
        door.ok(doc! { "dropDatabase": 1, "$db": "other" }).await,
        doc! { "dropped": "other", "ok": 1.0 }
    );
    assert_eq!(
        door.ok(doc! { "drop": "nothing" }).await,
        doc! { "ok": 1.0 }
    );
    assert_eq!(
        door.code(doc! { "create": "x", "capped": true, "size": 5 })
            .await,
        238
    );
    let images = |enabled: bool| doc! { "create": "x", "changeStreamPreAndPostImages": { "enabled": enabled } };
    assert_eq!(door.code(images(true)).await, 238);
    door.ok(images(false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_finds_documents_indexes_and_caches() {
    let directory = tempfile::tempdir().unwrap();
    {
        let door = at(directory.path());
        door.insert(
            "c",
            (0..1000).map(|id| doc! { "_id": id, "s": format!("s{}", id % 10), "a": id }),
        )
        .await;
        door.ok(doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a_1" }] })
            .await;
        door.cache("c", "s").await;
        door.ok(doc! { "insert": "c", "documents": [{ "_id": 5000, "s": "s1" }], "writeConcern": { "j": true } }).await;
        door.documents.shutdown().unwrap();
    }
    let door = at(directory.path());
    let query = doc! { "s": { "$regex": "^s1$" } };
    assert_eq!(
        door.count("c", query.clone()).await,
        101,
        "whether the cache is ready or not"
    );
    door.cache_is_ready("c").await;
    assert_eq!(door.count("c", query.clone()).await, 101);
    let explained = door
        .ok(doc! { "explain": { "count": "c", "query": query } })
        .await;
    assert!(explained.to_string().contains("CACHE_COUNT"), "{explained}");
    let explained = door
        .ok(doc! { "explain": { "find": "c", "filter": { "a": 7 } } })
        .await;
    assert!(explained.to_string().contains("IXSCAN"), "{explained}");
    assert!(
        door.ok(doc! { "validate": "c" })
            .await
            .get_bool("valid")
            .unwrap()
    );
    door.documents.shutdown().unwrap();
}
