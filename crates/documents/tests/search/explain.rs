//! The output of `explain`, the statistics of searches, and the errors of strict mode.

use std::sync::Arc;

use bson::{Document, doc};

use crate::support::{Door, integer, stage};

const NAME: &str = "movies";

async fn door() -> Door {
    let door = Door::memory(2);
    let documents: Vec<Document> = (0..500)
        .map(|id| doc! { "_id": id, "title": format!("title {id}"), "year": 1900 + id % 100 })
        .collect();
    door.run(doc! { "insert": NAME, "documents": documents })
        .await;
    door.cache(NAME, &["title"]).await;
    door.flush(NAME);
    door
}

async fn found_stage(door: &Door, filter: Document, name: &str) -> Document {
    let explained = door
        .explain(doc! { "find": NAME, "filter": filter.clone() })
        .await;
    let executed = explained
        .get_document("executionStats")
        .expect("executionStats");
    match stage(executed, name) {
        Some(stage) => stage.clone(),
        None => panic!("no {name} for {filter} in {explained}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_shows_tier_buckets_and_devices() {
    let door = door().await;
    let found = found_stage(&door, doc! { "title": "title 7" }, "CACHE_SEARCH").await;
    assert_eq!(found.get_bool("exact").ok(), Some(true));
    let leaf = found.get_array("leaves").expect("leaves")[0]
        .as_document()
        .expect("a leaf");
    assert_eq!(leaf.get_str("field").ok(), Some("title"));
    assert_eq!(leaf.get_str("tier").ok(), Some("exact"));
    assert_eq!(integer(leaf.get("bucketsSearched")), 1, "{found}");
    assert!(integer(leaf.get("bucketsTotal")) > 1, "{found}");
    assert_eq!(integer(found.get("docsExamined")), 1, "{found}");

    let filter = doc! { "title": { "$regex": "le [0-9]+7$" }, "year": { "$lt": 1950 } };
    let found = found_stage(&door, filter, "CACHE_SEARCH").await;
    assert_eq!(found.get_bool("exact").ok(), Some(false));
    let devices = found.get_array("devices").expect("devices");
    assert_eq!(devices.len(), 2, "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_of_a_scan_says_why_the_cache_was_not_used() {
    let door = door().await;
    let explained = door
        .explain(doc! { "find": NAME, "filter": { "title": { "$gt": "t" } } })
        .await;
    assert!(
        explained
            .to_string()
            .contains("'title': caches answer equality"),
        "{explained}"
    );
    let explained = door
        .explain(doc! { "find": NAME, "filter": { "$or": [{ "title": "x" }, { "year": 1 }] } })
        .await;
    assert!(
        explained.to_string().contains("a branch of $or"),
        "{explained}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_searches_fail_instead_of_scanning() {
    let door = door().await;
    let ask = async |filter: Document| {
        door.ask(doc! { "find": NAME, "filter": filter, "comment": { "forebay": "strict" } })
            .await
    };
    let refused = ask(doc! { "title": { "$gt": "t" } }).await;
    assert_eq!(
        refused.get_str("codeName").ok(),
        Some("NoQueryExecutionPlans"),
        "{refused}"
    );
    assert_eq!(
        ask(doc! { "title": "title 1" }).await.get_f64("ok").ok(),
        Some(1.0)
    );
    assert_eq!(
        ask(doc! { "year": 1950 }).await.get_f64("ok").ok(),
        Some(1.0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_and_patterns_are_shown() {
    let door = door().await;
    let shown = door
        .admin(doc! { "forebayBuckets": format!("test.{NAME}.title") })
        .await;
    let buckets = shown.get_array("buckets").expect("buckets");
    assert!(buckets.len() > 1, "{shown}");
    let rows = buckets
        .iter()
        .map(|bucket| integer(bucket.as_document().and_then(|bucket| bucket.get("rows"))));
    assert_eq!(rows.sum::<i64>(), 500);
    let pattern = door.admin(doc! { "forebayPattern": "^abc" }).await;
    assert_eq!(pattern.get_str("tier").ok(), Some("prefix"), "{pattern}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_ends_the_search_of_the_cache() {
    let door = Door::memory(2);
    let documents: Vec<Document> = (0..2_000)
        .map(|id| doc! { "_id": id, "title": if id < 1_000 { "rare" } else { "common" } })
        .collect();
    door.run(doc! { "insert": NAME, "documents": documents })
        .await;
    door.cache(NAME, &["title"]).await;
    door.flush(NAME);
    let found = |command: Document| async {
        let explained = door.explain(command).await;
        let executed = explained.get_document("executionStats").expect("figures");
        let stage = stage(executed, "CACHE_SEARCH").expect("a search of the cache");
        (
            integer(stage.get("found")),
            integer(executed.get("nReturned")),
        )
    };
    let find = doc! { "find": NAME, "filter": { "title": "common" } };
    assert_eq!(found(find.clone()).await, (1_000, 1_000));
    let with = |name: &str, value: i32| {
        let mut command = find.clone();
        command.insert(name, value);
        command
    };
    assert_eq!(found(with("limit", 5)).await, (5, 5));
    assert_eq!(found(with("limit", 1_000)).await, (1_000, 1_000));
    let mut page = with("limit", 5);
    page.insert("skip", 5);
    assert_eq!(
        found(page).await,
        (1_000, 10),
        "pages are by record number, so all are needed"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_that_take_one_document_at_a_time_empty_a_cached_queue() {
    const CLIENTS: usize = 4;
    const TASKS: i32 = 400;
    let door = Arc::new(Door::memory(2));
    let documents: Vec<Document> = (0..TASKS)
        .map(|id| doc! { "_id": id, "state": "free" })
        .collect();
    door.run(doc! { "insert": NAME, "documents": documents })
        .await;
    door.cache(NAME, &["state"]).await;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let door = Arc::clone(&door);
            tokio::spawn(async move {
                let one = doc! { "q": { "state": "free" }, "limit": 1 };
                let take = doc! { "delete": NAME, "deletes": [one] };
                let mut taken = 0;
                while integer(door.run(take.clone()).await.get("n")) == 1 {
                    taken += 1;
                }
                taken
            })
        })
        .collect();
    let mut taken = 0;
    for client in clients {
        taken += client.await.expect("a client");
    }
    assert_eq!(taken, TASKS, "clients take documents until there are none");
}
