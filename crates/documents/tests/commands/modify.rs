//! `findAndModify`.

use bson::{Bson, doc};

use crate::door::door;

#[tokio::test]
async fn the_document_before_or_after_is_returned() {
    let door = door();
    door.insert("c", (0..5).map(|id| doc! { "_id": id, "a": 10 - id }))
        .await;
    let reply = door.ok(doc! { "findAndModify": "c", "query": {}, "sort": { "a": 1 }, "update": { "$set": { "b": 1 } } }).await;
    assert_eq!(
        reply,
        doc! { "lastErrorObject": { "n": 1, "updatedExisting": true }, "value": { "_id": 4, "a": 6 }, "ok": 1.0 }
    );
    let reply = door.ok(doc! { "findAndModify": "c", "query": { "_id": 4 }, "update": { "$inc": { "b": 1 } }, "new": true, "fields": { "b": 1 } }).await;
    assert_eq!(
        reply.get_document("value").unwrap(),
        &doc! { "_id": 4, "b": 2 }
    );
    let reply = door
        .ok(doc! { "findAndModify": "c", "query": { "_id": 9 }, "update": { "$set": { "b": 1 } } })
        .await;
    assert_eq!(reply.get("value"), Some(&Bson::Null));
    let reply = door.ok(doc! { "findAndModify": "c", "query": { "_id": 9 }, "update": { "$set": { "b": 1 } }, "upsert": true, "new": true }).await;
    assert_eq!(
        reply,
        doc! { "lastErrorObject": { "n": 1, "updatedExisting": false, "upserted": 9 }, "value": { "_id": 9, "b": 1 }, "ok": 1.0 }
    );
}

#[tokio::test]
async fn a_removed_document_is_returned() {
    let door = door();
    door.insert("c", (0..5).map(|id| doc! { "_id": id })).await;
    let reply = door
        .ok(doc! { "findAndModify": "c", "sort": { "_id": -1 }, "remove": true })
        .await;
    assert_eq!(
        reply,
        doc! { "lastErrorObject": { "n": 1 }, "value": { "_id": 4 }, "ok": 1.0 }
    );
    assert_eq!(door.ids("c", doc! {}).await, [0, 1, 2, 3]);
    assert_eq!(
        door.code(doc! { "findAndModify": "c", "remove": true, "update": { "a": 1 } })
            .await,
        9
    );
    assert_eq!(door.code(doc! { "findAndModify": "c" }).await, 9);
    assert_eq!(
        door.code(doc! { "findAndModify": "c", "remove": true, "new": true })
            .await,
        9
    );
}
