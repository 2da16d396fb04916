//! `insert`, `find`, `update` and `delete`, with the replies that drivers read.

use bson::{Bson, Document, Timestamp, doc};

use crate::door::door;

#[tokio::test]
async fn duplicate_keys_are_reported_per_document() {
    let door = door();
    door.insert("c", [doc! { "_id": 1 }]).await;
    let documents = vec![doc! { "_id": 2 }, doc! { "_id": 1 }, doc! { "_id": 3 }];
    let reply = door
        .ok(doc! { "insert": "c", "documents": documents.clone() })
        .await;
    assert_eq!(reply.get_i32("n").ok(), Some(1));
    let errors = reply.get_array("writeErrors").unwrap();
    let error = errors[0].as_document().unwrap();
    assert_eq!(
        (
            error.get_i32("index").unwrap(),
            error.get_i32("code").unwrap()
        ),
        (1, 11000)
    );
    assert_eq!(
        error.get_document("keyPattern").unwrap(),
        &doc! { "_id": 1 }
    );
    assert_eq!(error.get_document("keyValue").unwrap(), &doc! { "_id": 1 });
    let reply = door
        .ok(doc! { "insert": "c", "documents": documents, "ordered": false })
        .await;
    assert_eq!(reply.get_i32("n").ok(), Some(1));
    assert_eq!(reply.get_array("writeErrors").unwrap().len(), 2);
    assert_eq!(door.ids("c", doc! {}).await, [1, 2, 3]);
}

#[tokio::test]
async fn an_ordered_insert_ends_at_the_first_wrong_document() {
    let door = door();
    let documents = vec![doc! { "_id": 1 }, doc! { "_id": [1] }, doc! { "_id": 3 }];
    let reply = door
        .ok(doc! { "insert": "c", "documents": documents })
        .await;
    assert_eq!(reply.get_i32("n").ok(), Some(1));
    assert_eq!(reply.get_array("writeErrors").unwrap().len(), 1);
    // The store rejects the first document, and the check of `_id` rejects the second. The first failure is reported.
    let documents = vec![doc! { "_id": 1 }, doc! { "_id": [1] }];
    let reply = door
        .ok(doc! { "insert": "c", "documents": documents })
        .await;
    let errors = reply.get_array("writeErrors").unwrap();
    assert_eq!(errors.len(), 1);
    assert_eq!(
        errors[0].as_document().unwrap().get_i32("index").ok(),
        Some(0)
    );
}

#[tokio::test]
async fn updates_change_insert_and_count() {
    let door = door();
    door.insert("c", (0..10).map(|id| doc! { "_id": id, "a": id % 2 }))
        .await;
    let update = |statement: Document| doc! { "update": "c", "updates": [statement] };
    let reply = door
        .ok(update(
            doc! { "q": { "a": 1 }, "u": { "$set": { "b": 1 } } },
        ))
        .await;
    assert_eq!(reply, doc! { "n": 1, "nModified": 1, "ok": 1.0 });
    let reply = door
        .ok(update(
            doc! { "q": { "a": 1 }, "u": { "$set": { "b": 1 } }, "multi": true },
        ))
        .await;
    assert_eq!(reply, doc! { "n": 5, "nModified": 4, "ok": 1.0 });
    let reply = door
        .ok(update(
            doc! { "q": { "_id": 77 }, "u": { "$set": { "b": 2 } }, "upsert": true },
        ))
        .await;
    assert_eq!(
        reply,
        doc! { "n": 1, "nModified": 0, "upserted": [{ "index": 0, "_id": 77 }], "ok": 1.0 }
    );
    let reply = door
        .ok(update(doc! { "q": { "_id": 0 }, "u": { "x": 1 } }))
        .await;
    assert_eq!(reply, doc! { "n": 1, "nModified": 1, "ok": 1.0 });
    assert_eq!(
        door.all(doc! { "find": "c", "filter": { "_id": 0 } }).await,
        [doc! { "_id": 0, "x": 1 }]
    );
    let reply = door
        .ok(update(
            doc! { "q": { "_id": 0 }, "u": { "_id": 5, "x": 1 } },
        ))
        .await;
    let errors = reply.get_array("writeErrors").unwrap();
    assert_eq!(
        errors[0].as_document().unwrap().get_i32("code").ok(),
        Some(66)
    );
    let reply = door
        .ok(update(doc! { "q": {}, "u": { "x": 1 }, "multi": true }))
        .await;
    assert_eq!(
        reply.get_array("writeErrors").unwrap()[0]
            .as_document()
            .unwrap()
            .get_i32("code")
            .ok(),
        Some(9)
    );
}

#[tokio::test]
async fn an_update_of_many_that_fails_counts_earlier_changes() {
    let door = door();
    door.insert("c", (0..10).map(|id| doc! { "_id": id, "a": id }))
        .await;
    let index = doc! { "key": { "b": 1 }, "name": "b", "unique": true, "sparse": true };
    door.ok(doc! { "createIndexes": "c", "indexes": [index] })
        .await;
    let update = doc! { "q": {}, "u": { "$set": { "b": 1 } }, "multi": true };
    let reply = door.ok(doc! { "update": "c", "updates": [update] }).await;
    assert_eq!(reply.get_i32("n").ok(), Some(1));
    assert_eq!(reply.get_i32("nModified").ok(), Some(1));
    assert_eq!(reply.get_array("writeErrors").unwrap().len(), 1);
}

#[tokio::test]
async fn positional_updates_and_array_filters_reach_elements() {
    let door = door();
    door.insert("c", [doc! { "_id": 1, "a": [1, 2, 3, 2] }])
        .await;
    door.ok(
        doc! { "update": "c", "updates": [{ "q": { "a": 2 }, "u": { "$set": { "a.$": 20 } } }] },
    )
    .await;
    door.ok(doc! { "update": "c", "updates": [{ "q": {}, "u": { "$inc": { "a.$[x]": 100 } }, "arrayFilters": [{ "x": { "$lt": 3 } }] }] }).await;
    assert_eq!(
        door.all(doc! { "find": "c" }).await,
        [doc! { "_id": 1, "a": [101, 20, 3, 102] }]
    );
}

#[tokio::test]
async fn deletes_take_one_or_all() {
    let door = door();
    door.insert("c", (0..1000).map(|id| doc! { "_id": id, "a": id % 4 }))
        .await;
    let delete = |statement: Document| doc! { "delete": "c", "deletes": [statement] };
    assert_eq!(
        door.ok(delete(doc! { "q": { "a": 1 }, "limit": 1 })).await,
        doc! { "n": 1, "ok": 1.0 }
    );
    assert_eq!(
        door.ok(delete(doc! { "q": { "a": 1 }, "limit": 0 })).await,
        doc! { "n": 249, "ok": 1.0 }
    );
    assert_eq!(
        door.ok(delete(doc! { "q": { "_id": 0 }, "limit": 0 }))
            .await,
        doc! { "n": 1, "ok": 1.0 }
    );
    assert_eq!(door.count("c", doc! {}).await, 749);
    assert_eq!(door.code(delete(doc! { "q": {}, "limit": 2 })).await, 9);
    assert_eq!(door.count("c", doc! {}).await, 749);
}

#[tokio::test]
async fn sort_skip_limit_and_projection_shape_a_find() {
    let door = door();
    door.insert(
        "c",
        (0..50).map(|id| doc! { "_id": id, "a": (id * 7) % 50, "b": { "c": id } }),
    )
    .await;
    let find = doc! { "find": "c", "sort": { "a": -1 }, "skip": 2, "limit": 3, "projection": { "_id": 0, "a": 1 } };
    assert_eq!(
        door.all(find).await,
        [doc! { "a": 47 }, doc! { "a": 46 }, doc! { "a": 45 }]
    );
    let find =
        doc! { "find": "c", "sort": { "$natural": -1 }, "limit": 2, "projection": { "b.c": 1 } };
    assert_eq!(
        door.all(find).await,
        [
            doc! { "_id": 49, "b": { "c": 49 } },
            doc! { "_id": 48, "b": { "c": 48 } }
        ]
    );
    let find = doc! { "find": "c", "filter": { "_id": 5 }, "projection": { "a": 1 } };
    assert_eq!(door.all(find).await, [doc! { "_id": 5, "a": 35 }]);
    assert_eq!(
        door.ok(doc! { "count": "c", "query": {}, "skip": 10, "limit": 20 })
            .await
            .get_i32("n")
            .ok(),
        Some(20)
    );
}

#[tokio::test]
async fn distinct_values_unwind_arrays() {
    let door = door();
    let values = [
        doc! { "a": 1 },
        doc! { "a": 1.0 },
        doc! { "a": [1, "x"] },
        doc! { "a": null },
        doc! { "b": 1 },
    ];
    door.insert("c", values).await;
    let reply = door.ok(doc! { "distinct": "c", "key": "a" }).await;
    assert_eq!(reply, doc! { "values": [null, 1, "x"], "ok": 1.0 });
    let reply = door
        .ok(doc! { "distinct": "c", "key": "a", "query": { "a": "x" } })
        .await;
    assert_eq!(reply, doc! { "values": [1, "x"], "ok": 1.0 });
}

#[tokio::test]
async fn distinct_values_are_sorted_with_a_cache_and_without() {
    let door = door();
    let values: [Bson; 8] = [
        "b".into(),
        doc! { "x": 1 }.into(),
        "a".into(),
        7.into(),
        Bson::Null,
        true.into(),
        2.5.into(),
        "c".into(),
    ];
    door.insert("c", values.iter().map(|value| doc! { "a": value }))
        .await;
    let sorted = doc! { "values": [null, 2.5, 7, "a", "b", "c", { "x": 1 }, true], "ok": 1.0 };
    let distinct = doc! { "distinct": "c", "key": "a" };
    assert_eq!(door.ok(distinct.clone()).await, sorted);
    let cache = doc! { "key": { "a": "cache" }, "name": "a_cache" };
    door.ok(doc! { "createIndexes": "c", "indexes": [cache] })
        .await;
    assert_eq!(door.ok(distinct).await, sorted);
}

#[tokio::test]
async fn too_deep_documents_are_neither_computed_nor_stored() {
    let door = door();
    door.insert("c", [doc! { "_id": 1 }]).await;
    let deep = |levels: i32| doc! { "$reduce": { "input": { "$range": [0, levels] }, "initialValue": [], "in": ["$$value"] } };
    let aggregate =
        |stages: Vec<Document>| doc! { "aggregate": "c", "pipeline": stages, "cursor": {} };
    let set = doc! { "$set": { "x": deep(5000) } };
    for last in [
        doc! { "$out": "o" },
        doc! { "$merge": "m" },
        doc! { "$sort": { "x": 1 } },
        doc! { "$group": { "_id": "$x" } },
    ] {
        assert_eq!(door.code(aggregate(vec![set.clone(), last])).await, 15);
    }
    assert_eq!(
        door.code(doc! { "find": "c", "projection": { "x": deep(5000) } })
            .await,
        15
    );
    let update = doc! { "q": {}, "u": [set], "multi": true };
    let reply = door.ask(doc! { "update": "c", "updates": [update] }).await;
    let error = reply.get_array("writeErrors").expect("an error")[0].as_document();
    assert_eq!(error.expect("a document").get_i32("code").ok(), Some(15));
    // The deepest allowed value can be stored, indexed and used as a sort key.
    door.ok(aggregate(vec![
        doc! { "$set": { "x": deep(197) } },
        doc! { "$out": "o" },
    ]))
    .await;
    door.ok(doc! { "createIndexes": "o", "indexes": [{ "key": { "x": 1 }, "name": "x" }] })
        .await;
    let find = doc! { "find": "o", "sort": { "x": -1 } };
    assert_eq!(door.all(find).await.len(), 1);
    let valid = door.ok(doc! { "validate": "o" }).await;
    assert_eq!(valid.get_bool("valid").ok(), Some(true));
}

#[tokio::test]
async fn empty_timestamps_of_new_documents_are_filled_in() {
    let door = door();
    let empty = Timestamp {
        time: 0,
        increment: 0,
    };
    let document = doc! { "_id": empty, "a": empty, "n": { "t": empty }, "b": empty };
    door.insert("c", [document.clone()]).await;
    let replace = doc! { "q": { "_id": 2 }, "u": document_without_id(&document), "upsert": true };
    door.ok(doc! { "update": "c", "updates": [replace.clone()] })
        .await;
    door.ok(doc! { "update": "c", "updates": [replace] }).await;
    let found = door.all(doc! { "find": "c" }).await;
    assert_eq!(found.len(), 2);
    for document in found {
        let (a, b) = (time(&document, "a"), time(&document, "b"));
        assert!(a.time > 1_600_000_000 && a < b, "{document}");
        let nested = document.get_document("n").expect("is there");
        assert_eq!(time(nested, "t"), empty);
    }
    assert_eq!(door.count("c", doc! { "_id": empty }).await, 1);
}

fn document_without_id(document: &Document) -> Document {
    let mut without = document.clone();
    without.remove("_id");
    without
}

fn time(document: &Document, name: &str) -> Timestamp {
    document.get_timestamp(name).expect("a timestamp")
}

#[tokio::test]
async fn a_deletion_may_bypass_validation() {
    let door = door();
    door.insert("c", [doc! { "_id": 1 }]).await;
    let deletes = [doc! { "q": {}, "limit": 1 }];
    let command =
        doc! { "delete": "c", "deletes": deletes.to_vec(), "bypassDocumentValidation": true };
    assert_eq!(door.ok(command).await, doc! { "n": 1, "ok": 1.0 });
}
