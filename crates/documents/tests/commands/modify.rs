//! `findAndModify`.

use bson::{Bson, doc};

use forebay_documents::Settings;
use forebay_memory::Account;

use crate::door::{self, door};

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

#[tokio::test]
async fn the_copies_of_a_document_that_an_update_enlarges_are_charged() {
    let array = doc! { "$range": [0, 500_000] };
    let pipeline = vec![doc! { "$set": { "a": array } }];
    let update = |upsert: bool| {
        let statement =
            doc! { "q": { "_id": i32::from(upsert) }, "u": pipeline.clone(), "upsert": upsert };
        doc! { "update": "c", "updates": [statement] }
    };
    for (account_bytes, code) in [(32 << 20, 146), (64 << 20, 0)] {
        for upsert in [false, true] {
            let memory = Account::new(account_bytes);
            let door = door::with(Settings {
                memory: memory.clone(),
                ..Settings::default()
            });
            door.insert("c", [doc! { "_id": 0 }]).await;
            let reply = door.ask(update(upsert)).await;
            let errors = reply.get_array("writeErrors");
            let error = errors.ok().and_then(|errors| errors[0].as_document());
            let found = error.map_or(0, |error| error.get_i32("code").expect("a code"));
            assert_eq!(found, code, "{reply}");
            assert_eq!(memory.figures().used_bytes, 0);
        }
    }
}

#[tokio::test]
async fn the_variables_of_a_command_are_held_once() {
    let memory = Account::default();
    let door = door::with(Settings {
        memory: memory.clone(),
        ..Settings::default()
    });
    let variables = doc! { "x": { "$range": [0, 200_000] } };
    let parsed = doc! { "q": { "_id": 1 }, "u": [{ "$set": { "x": { "$size": "$$x" } } }] };
    door.ok(doc! { "update": "c", "updates": vec![parsed; 3], "let": variables })
        .await;
    // The value has 2.3 MB, and twice as much while it is evaluated.
    assert!(memory.figures().peak_bytes < 6_000_000);
}
