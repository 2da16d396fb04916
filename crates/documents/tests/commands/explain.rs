//! What `explain` names.

use bson::doc;

use crate::door::door;

#[tokio::test]
async fn the_stage_is_named() {
    let door = door();
    door.insert("c", (0..100).map(|id| doc! { "_id": id, "a": id }))
        .await;
    door.ok(doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a_1" }] })
        .await;
    for (command, stage) in [
        (doc! { "find": "c", "filter": { "_id": 1 } }, "IDHACK"),
        (doc! { "find": "c", "filter": { "a": 1 } }, "IXSCAN"),
        (doc! { "find": "c", "filter": { "b": 1 } }, "COLLSCAN"),
        (
            doc! { "count": "c", "query": { "a": { "$gt": 5 } } },
            "IXSCAN",
        ),
        (doc! { "distinct": "c", "key": "a" }, "COLLSCAN"),
        (
            doc! { "aggregate": "c", "pipeline": [{ "$match": { "a": 1 } }, { "$count": "n" }], "cursor": {} },
            "IXSCAN",
        ),
        (
            doc! { "update": "c", "updates": [{ "q": { "a": 1 }, "u": { "$set": { "a": 2 } } }] },
            "IXSCAN",
        ),
        (
            doc! { "delete": "c", "deletes": [{ "q": { "b": 1 }, "limit": 0 }] },
            "COLLSCAN",
        ),
        (doc! { "find": "nothing" }, "EOF"),
    ] {
        let planned = door
            .ok(doc! { "explain": command.clone(), "verbosity": "queryPlanner" })
            .await;
        assert!(
            planned
                .get_document("queryPlanner")
                .unwrap()
                .to_string()
                .contains(stage),
            "{planned}"
        );
        assert!(!planned.contains_key("executionStats"));
        let run = door.ok(doc! { "explain": command }).await;
        assert!(
            run.get_document("executionStats")
                .unwrap()
                .get_bool("executionSuccess")
                .unwrap(),
            "{run}"
        );
    }
    let explained = door
        .ok(doc! { "explain": { "find": "c", "filter": { "a": { "$lt": 10 } }, "limit": 3 } })
        .await;
    let figures = explained.get_document("executionStats").unwrap();
    assert_eq!(figures.get_i64("nReturned").ok(), Some(3));
    assert_eq!(
        door.count("c", doc! { "a": 1 }).await,
        1,
        "nothing was written"
    );
}
