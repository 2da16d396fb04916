//! Aggregation pipelines.

use bson::{Bson, Document, doc};

use forebay_documents::Settings;
use forebay_memory::Account;

use crate::door::{self, Door, door};

async fn run(door: &Door, pipeline: Vec<Document>) -> Vec<Document> {
    door.all(doc! { "aggregate": "c", "pipeline": pipeline, "cursor": {} })
        .await
}

/// Returns a server with 300 documents. Each of the three values of `a` occurs in 100 documents.
async fn thirds() -> Door {
    let door = door();
    let document = |id| doc! { "_id": id, "a": id % 3, "tags": ["x", format!("t{}", id % 2)] };
    door.insert("c", (0..300).map(document)).await;
    door
}

#[tokio::test]
async fn matches_are_counted() {
    let door = thirds().await;
    assert_eq!(
        run(
            &door,
            vec![doc! { "$match": { "a": 1 } }, doc! { "$count": "n" }]
        )
        .await,
        [doc! { "n": 100 }]
    );
    assert_eq!(
        run(
            &door,
            vec![doc! { "$match": { "a": 7 } }, doc! { "$count": "n" }]
        )
        .await,
        [] as [Document; 0]
    );
    for (a, counted) in [
        (1, vec![doc! { "_id": 1, "n": 100, "twice": 200 }]),
        (7, Vec::new()),
    ] {
        let count_documents = vec![
            doc! { "$match": { "a": a } },
            doc! { "$group": { "_id": 1, "n": { "$sum": 1 }, "twice": { "$sum": 2 } } },
        ];
        assert_eq!(run(&door, count_documents).await, counted);
    }
}

#[tokio::test]
async fn stages_follow_one_another() {
    let door = thirds().await;
    let groups = run(
        &door,
        vec![
            doc! { "$group": { "_id": "$a", "n": { "$sum": 1 } } },
            doc! { "$sort": { "_id": -1 } },
        ],
    )
    .await;
    assert_eq!(
        groups,
        [
            doc! { "_id": 2, "n": 100 },
            doc! { "_id": 1, "n": 100 },
            doc! { "_id": 0, "n": 100 }
        ]
    );
    let unwound = run(
        &door,
        vec![
            doc! { "$unwind": "$tags" },
            doc! { "$sortByCount": "$tags" },
            doc! { "$limit": 1 },
        ],
    )
    .await;
    assert_eq!(unwound, [doc! { "_id": "x", "count": 300 }]);
    let last = run(
        &door,
        vec![
            doc! { "$sort": { "_id": -1 } },
            doc! { "$limit": 2 },
            doc! { "$project": { "a": 1 } },
        ],
    )
    .await;
    assert_eq!(
        last,
        [doc! { "_id": 299, "a": 2 }, doc! { "_id": 298, "a": 1 }]
    );
    assert_eq!(
        run(&door, vec![]).await.len(),
        300,
        "through several batches"
    );
    assert_eq!(
        door.all(doc! { "aggregate": "nothing", "pipeline": [{ "$count": "n" }], "cursor": {} })
            .await
            .len(),
        0
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_from_the_cache_equal_groups_from_documents() {
    let door = door();
    let value = |id: i32| match id % 7 {
        0 => Bson::Null,
        1 => Bson::Int32(id % 3),
        2 => Bson::Array(vec!["x".into(), "y".into()]),
        other => Bson::String(format!("v{}", other % 3)),
    };
    let documents: Vec<Document> = (0..700)
        .map(|id| {
            if id % 11 == 0 {
                doc! { "_id": id }
            } else {
                doc! { "_id": id, "s": value(id) }
            }
        })
        .collect();
    door.insert("c", documents.clone()).await;
    door.insert("plain", documents).await;
    door.cache("c", "s").await;
    for group in [
        doc! { "$group": { "_id": "$s", "n": { "$sum": 1 }, "m": { "$count": {} } } },
        doc! { "$sortByCount": "$s" },
    ] {
        let pipeline = vec![group, doc! { "$sort": { "_id": 1 } }];
        let cached = run(&door, pipeline.clone()).await;
        let plain = door
            .all(doc! { "aggregate": "plain", "pipeline": pipeline, "cursor": {} })
            .await;
        assert_eq!(cached, plain);
    }
    let explain = doc! { "explain": { "aggregate": "c", "pipeline": [{ "$sortByCount": "$s" }], "cursor": {} } };
    assert!(
        door.ok(explain)
            .await
            .to_string()
            .contains("CACHE_DISTINCT")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_runs_a_group_like_the_command() {
    let door = door();
    let value = |id: i32| match id % 2 {
        0 => Bson::String("x".to_owned()),
        _ => Bson::Array(vec!["x".into(), "y".into()]),
    };
    door.insert("c", (0..100).map(|id| doc! { "_id": id, "s": value(id) }))
        .await;
    door.cache("c", "s").await;
    let group = doc! { "aggregate": "c", "pipeline": [{ "$sortByCount": "$s" }], "cursor": {} };
    assert_eq!(examined(&door, group.clone()).await, 50);
    let distinct = doc! { "distinct": "c", "key": "s" };
    assert_eq!(examined(&door, distinct).await, 0);
    let mut hinted = group;
    hinted.insert("hint", "_id_");
    assert_eq!(examined(&door, hinted).await, 100);
}

/// Returns the number of documents that a command reads.
async fn examined(door: &Door, command: Document) -> i64 {
    let explained = door.ok(doc! { "explain": command }).await;
    let figures = explained.get_document("executionStats").unwrap();
    figures.get_i64("totalDocsExamined").unwrap()
}

#[tokio::test]
async fn statistics_are_available_as_stages() {
    let door = door();
    door.insert("c", (0..3).map(|id| doc! { "_id": id })).await;
    let indexes = run(
        &door,
        vec![
            doc! { "$indexStats": {} },
            doc! { "$project": { "name": 1 } },
        ],
    )
    .await;
    assert_eq!(indexes, [doc! { "name": "_id_" }]);
    let figures = run(&door, vec![doc! { "$collStats": { "count": {} } }]).await;
    assert_eq!(figures[0].get_i64("count").ok(), Some(3));
}

#[tokio::test]
async fn every_command_with_expressions_accepts_variables_of_let() {
    let door = door();
    door.insert("c", (0..5).map(|id| doc! { "_id": id, "n": id * 10 }))
        .await;
    let wanted = doc! { "$expr": { "$eq": ["$n", "$$limits.low"] } };
    let variables = doc! { "limits": { "low": { "$add": [10, 10] } }, "again": "$$limits.low" };
    let found = door
        .all(doc! { "find": "c", "filter": wanted.clone(), "projection": { "again": "$$again" }, "let": variables.clone() })
        .await;
    assert_eq!(found, [doc! { "_id": 2, "again": 20 }]);
    let pipeline = vec![
        doc! { "$match": wanted.clone() },
        doc! { "$group": { "_id": "$$again", "n": { "$sum": 1 } } },
    ];
    let command =
        doc! { "aggregate": "c", "pipeline": pipeline, "cursor": {}, "let": variables.clone() };
    assert_eq!(door.all(command).await, [doc! { "_id": 20, "n": 1 }]);
    let entry = doc! { "q": wanted.clone(), "u": [{ "$set": { "n": "$$new" } }] };
    let update =
        doc! { "update": "c", "updates": [entry], "let": { "limits": { "low": 20 }, "new": "x" } };
    assert_eq!(door.ok(update).await.get_i32("nModified").ok(), Some(1));
    let modify = doc! { "findAndModify": "c", "query": { "$expr": { "$eq": ["$n", "$$old"] } }, "update": [{ "$set": { "n": "$$new" } }], "let": { "old": "x", "new": { "$literal": "$y" } }, "new": true };
    assert_eq!(
        door.ok(modify).await.get_document("value").ok(),
        Some(&doc! { "_id": 2, "n": "$y" })
    );
    let delete = doc! { "delete": "c", "deletes": [{ "q": { "$expr": { "$gt": ["$n", "$$most"] } }, "limit": 0 }], "let": { "most": 20 } };
    assert_eq!(door.ok(delete).await.get_i32("n").ok(), Some(3));
    let nothing = doc! { "find": "c", "filter": { "_id": 0 }, "projection": { "n": "$$gone" }, "let": { "gone": "$$REMOVE" } };
    assert_eq!(door.all(nothing).await, [doc! { "_id": 0 }]);
}

#[tokio::test]
async fn out_replaces_the_target() {
    let door = door();
    door.insert(
        "c",
        (0..1_000).map(|id| doc! { "_id": id, "name": format!("name {id}"), "n": id % 7 }),
    )
    .await;
    door.insert("target", [doc! { "_id": "old" }]).await;
    let indexes = vec![
        doc! { "key": { "n": 1 }, "name": "n_1" },
        doc! { "key": { "name": "cache" }, "name": "name_cache" },
    ];
    door.ok(doc! { "createIndexes": "target", "indexes": indexes })
        .await;
    let stages = vec![
        doc! { "$match": { "n": 3 } },
        doc! { "$out": { "db": "test", "coll": "target" } },
    ];
    assert_eq!(run(&door, stages).await, [] as [Document; 0]);
    let count = doc! { "count": "target", "query": { "name": { "$regex": "^name" }, "n": 3 } };
    assert_eq!(door.ok(count).await.get_i32("n").ok(), Some(143));
    let listed = door.all(doc! { "listIndexes": "target" }).await;
    assert_eq!(listed.len(), 3, "{listed:?}");
    // If a unique index rejects a document, nothing is changed.
    let unique = doc! { "key": { "u": 1 }, "name": "u_1", "unique": true, "sparse": true };
    door.ok(doc! { "createIndexes": "target", "indexes": [unique] })
        .await;
    let failing = doc! { "aggregate": "c", "pipeline": [{ "$set": { "u": 1 } }, { "$out": "target" }], "cursor": {} };
    assert_eq!(door.code(failing).await, 11000);
    let collections = door
        .all(doc! { "listCollections": 1, "nameOnly": true })
        .await;
    assert_eq!(collections.len(), 2, "{collections:?}");
    assert_eq!(door.all(doc! { "find": "target" }).await.len(), 143);
    // `$out` may replace the collection that the pipeline reads.
    assert_eq!(
        run(&door, vec![doc! { "$limit": 5 }, doc! { "$out": "c" }]).await,
        [] as [Document; 0]
    );
    assert_eq!(door.all(doc! { "find": "c" }).await.len(), 5);
}

#[tokio::test]
async fn merge_inserts_replaces_or_merges_documents() {
    let target = || vec![doc! { "_id": 1, "a": "old", "b": 1 }];
    let merged = [
        (
            doc! { "into": "t" },
            vec![
                doc! { "_id": 1, "a": "new", "b": 1 },
                doc! { "_id": 2, "a": "new" },
            ],
        ),
        (
            doc! { "into": { "db": "test", "coll": "t" }, "whenMatched": "replace", "whenNotMatched": "discard" },
            vec![doc! { "_id": 1, "a": "new" }],
        ),
        (
            doc! { "into": "t", "whenMatched": "keepExisting" },
            vec![
                doc! { "_id": 1, "a": "old", "b": 1 },
                doc! { "_id": 2, "a": "new" },
            ],
        ),
    ];
    for (merge, expected) in merged {
        let door = door();
        door.insert("c", [1, 2].map(|id| doc! { "_id": id, "a": "new" }))
            .await;
        door.insert("t", target()).await;
        run(&door, vec![doc! { "$merge": merge.clone() }]).await;
        let found = door.all(doc! { "find": "t", "sort": { "_id": 1 } }).await;
        assert_eq!(found, expected, "{merge}");
    }
}

#[tokio::test]
async fn merge_matches_documents_by_the_fields_of_a_unique_index() {
    let door = door();
    door.insert("c", (0..4).map(|n| doc! { "_id": n, "k": n % 2, "n": n }))
        .await;
    let by_k = |pipeline: Document| doc! { "aggregate": "c", "pipeline": [pipeline, { "$unset": "_id" }, { "$merge": { "into": "t", "on": "k" } }], "cursor": {} };
    let all = by_k(doc! { "$match": {} });
    assert_eq!(door.code(all.clone()).await, 51183);
    let unique = doc! { "key": { "k": 1 }, "name": "k_1", "unique": true };
    door.ok(doc! { "createIndexes": "t", "indexes": [unique] })
        .await;
    door.ok(all).await;
    let merged = door
        .all(doc! { "find": "t", "sort": { "k": 1 }, "projection": { "_id": 0 } })
        .await;
    assert_eq!(merged, [doc! { "k": 0, "n": 2 }, doc! { "k": 1, "n": 3 }]);
    assert_eq!(door.code(by_k(doc! { "$unset": "k" })).await, 51132);
    // The pipeline does not read the documents that it writes.
    let again = vec![
        doc! { "$set": { "_id": { "$add": ["$_id", 10] } } },
        doc! { "$merge": "c" },
    ];
    run(&door, again).await;
    assert_eq!(door.all(doc! { "find": "c" }).await.len(), 8);
}

#[tokio::test]
async fn a_merge_holds_as_much_as_the_account_has_room_for() {
    let memory = Account::new(16 << 20);
    let door = door::with(Settings {
        memory: memory.clone(),
        ..Settings::default()
    });
    door.insert("c", (0..100).map(|id| doc! { "_id": id }))
        .await;
    let enlarged = |into: &str| {
        let text = doc! { "$literal": "x".repeat(200_000) };
        let pipeline = vec![doc! { "$set": { "text": text } }, doc! { "$merge": into }];
        doc! { "aggregate": "c", "pipeline": pipeline, "cursor": {} }
    };
    // Documents for another collection are written while others are read.
    door.ok(enlarged("other")).await;
    // Documents for the collection that is read are all read first.
    assert_eq!(door.code(enlarged("c")).await, 146);
    assert_eq!(memory.figures().used_bytes, 0);
}

#[tokio::test]
async fn wrong_outputs_are_refused() {
    let door = door();
    door.insert("c", [doc! { "_id": 1 }]).await;
    door.insert("t", [doc! { "_id": 1 }]).await;
    for (stage, code) in [
        (doc! { "$out": 1 }, 16990),
        (doc! { "$out": "system.x" }, 73),
        (doc! { "$merge": 1 }, 51178),
        (doc! { "$merge": { "on": "a" } }, 40414),
        (doc! { "$merge": { "into": "t", "on": 1 } }, 51186),
        (doc! { "$merge": { "into": "t", "frob": 1 } }, 40415),
        (doc! { "$merge": { "into": "t", "whenMatched": "frob" } }, 2),
        (doc! { "$merge": { "into": "t", "whenMatched": [] } }, 238),
        (
            doc! { "$merge": { "into": "t", "whenMatched": "fail", "whenNotMatched": "fail" } },
            51181,
        ),
        (
            doc! { "$merge": { "into": "t", "whenMatched": "fail" } },
            11000,
        ),
        (
            doc! { "$merge": { "into": "none", "whenNotMatched": "fail" } },
            13113,
        ),
    ] {
        let command = doc! { "aggregate": "c", "pipeline": [stage.clone()], "cursor": {} };
        assert_eq!(door.code(command).await, code, "{stage}");
    }
    let plan =
        doc! { "explain": { "aggregate": "c", "pipeline": [{ "$out": "t" }], "cursor": {} } };
    door.ok(plan).await;
    assert_eq!(door.all(doc! { "find": "t" }).await, [doc! { "_id": 1 }]);
}

#[tokio::test]
async fn documents_may_be_given_in_the_pipeline() {
    let door = door();
    let given = |documents: bson::Bson| doc! { "aggregate": 1, "pipeline": [{ "$documents": documents }, { "$match": { "a": { "$gt": 1 } } }], "cursor": {} };
    let documents = bson::bson!([{ "a": 1 }, { "a": { "$add": [1, 1] } }]);
    assert_eq!(door.all(given(documents)).await, [doc! { "a": 2 }]);
    assert_eq!(door.code(given(bson::bson!([1]))).await, 5858203);
    let behind = doc! { "aggregate": "c", "pipeline": [{ "$documents": [] }], "cursor": {} };
    assert_eq!(door.code(behind).await, 40602);
}
