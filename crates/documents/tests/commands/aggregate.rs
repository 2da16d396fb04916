//! Pipelines.

use bson::{Bson, Document, doc};

use crate::door::{Door, door};

async fn run(door: &Door, pipeline: Vec<Document>) -> Vec<Document> {
    door.all(doc! { "aggregate": "c", "pipeline": pipeline, "cursor": {} })
        .await
}

#[tokio::test]
async fn stages_follow_one_another() {
    let door = door();
    door.insert(
        "c",
        (0..300).map(|id| doc! { "_id": id, "a": id % 3, "tags": ["x", format!("t{}", id % 2)] }),
    )
    .await;
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
async fn explain_runs_a_group_as_it_is_run() {
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

/// The documents that a command reads.
async fn examined(door: &Door, command: Document) -> i64 {
    let explained = door.ok(doc! { "explain": command }).await;
    let figures = explained.get_document("executionStats").unwrap();
    figures.get_i64("totalDocsExamined").unwrap()
}

#[tokio::test]
async fn statistics_are_stages_too() {
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
