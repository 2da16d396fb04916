//! Several concurrent clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bson::{Bson, Document, doc};
use forebay_documents::ClientContext;
use tokio::time::timeout;

use crate::door::{Door, door};

const CLIENTS: i32 = 4;
const ROUNDS: i32 = 100;
/// Number of inserts of each client that must overlap a replacement of the collection.
const ROUNDS_MET: usize = 20;
/// Number of concurrent slow commands of one client. It exceeds the maximum number of permits.
const CROWD: usize = 160;
/// Maximum duration of a command. A longer one is considered stuck.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn increments_of_many_clients_all_count() {
    let door = Arc::new(door());
    door.insert("c", [doc! { "_id": 1, "n": 0 }]).await;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let door = door.clone();
            tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    door.ok(doc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": { "$inc": { "n": 1 } } }] }).await;
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(
        door.all(doc! { "find": "c" }).await,
        [doc! { "_id": 1, "n": CLIENTS * ROUNDS }]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_queue_gives_each_document_to_one_client() {
    let door = Arc::new(door());
    door.insert(
        "c",
        (0..CLIENTS * ROUNDS).map(|id| doc! { "_id": id, "free": true }),
    )
    .await;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let door = door.clone();
            tokio::spawn(async move {
                let mut taken = Vec::new();
                loop {
                    let take =
                        doc! { "findAndModify": "c", "query": { "free": true }, "remove": true };
                    match door.ok(take).await.get("value") {
                        Some(Bson::Document(value)) => taken.push(value.get_i32("_id").unwrap()),
                        _ => return taken,
                    }
                }
            })
        })
        .collect();
    let mut taken = Vec::new();
    for client in clients {
        taken.extend(client.await.unwrap());
    }
    taken.sort_unstable();
    assert_eq!(taken, (0..CLIENTS * ROUNDS).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn searches_stay_right_while_clients_write() {
    let door = Arc::new(door());
    door.insert(
        "c",
        (0..2000).map(|id| doc! { "_id": id, "s": format!("keep{id}"), "t": "x" }),
    )
    .await;
    door.cache("c", "s").await;
    let writers: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let door = door.clone();
            tokio::spawn(async move {
                for round in 0..ROUNDS {
                    let id = 10_000 + client * ROUNDS + round;
                    door.insert("c", [doc! { "_id": id, "s": format!("new{id}") }]).await;
                    assert_eq!(door.ids("c", doc! { "s": format!("new{id}") }).await, [id], "a client reads what it wrote");
                    let update = doc! { "q": { "_id": id }, "u": { "$set": { "s": format!("changed{id}") } } };
                    door.ok(doc! { "update": "c", "updates": [update] }).await;
                    assert_eq!(door.count("c", doc! { "s": format!("new{id}") }).await, 0);
                    if round % 2 == 0 {
                        door.ok(doc! { "delete": "c", "deletes": [{ "q": { "_id": id }, "limit": 1 }] }).await;
                    }
                }
            })
        })
        .collect();
    let kept = doc! { "s": { "$regex": "^keep" } };
    for _ in 0..20 {
        assert_eq!(door.count("c", kept.clone()).await, 2000);
        assert_eq!(door.ids("c", kept.clone()).await.len(), 2000);
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(
        door.count("c", doc! { "s": { "$regex": "changed" } }).await,
        CLIENTS * ROUNDS / 2
    );
    assert!(
        door.ok(doc! { "validate": "c" })
            .await
            .get_bool("valid")
            .unwrap()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn create_indexes_replies_after_another_client_has_created_the_index() {
    let door = Arc::new(door());
    let document = |id: i32| doc! { "_id": id, "a": id, "s": format!("name{id}") };
    door.insert("c", (0..3000).map(document)).await;
    let ordinary = doc! { "key": { "a": 1 }, "name": "a_1" };
    let cache = doc! { "key": { "s": "cache" }, "name": "s_cache" };
    let create = doc! { "createIndexes": "c", "indexes": [ordinary, cache] };
    for _ in 0..10 {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (door, create) = (door.clone(), create.clone());
                tokio::spawn(async move {
                    let reply = door.ok(create).await;
                    assert_eq!(reply.get_i32("numIndexesAfter").ok(), Some(3));
                    let find = doc! { "find": "c", "filter": { "a": 1 } };
                    let plan = door.ok(doc! { "explain": find }).await.to_string();
                    assert!(plan.contains("IXSCAN"), "{plan}");
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
        door.ok(doc! { "dropIndexes": "c", "index": "*" }).await;
    }
}

/// Runs a command many times from many clients while the collection `c` is dropped repeatedly. `check` tests each
/// reply.
async fn while_dropping(command: fn(i32) -> bson::Document, check: fn(bson::Document)) {
    let door = Arc::new(door());
    let writers: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let door = door.clone();
            tokio::spawn(async move {
                for round in 0..ROUNDS {
                    check(door.ok(command(client * ROUNDS + round)).await);
                }
            })
        })
        .collect();
    while writers.iter().any(|writer| !writer.is_finished()) {
        door.ask(doc! { "drop": "c" }).await;
    }
    for writer in writers {
        writer.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_insert_recreates_a_collection_that_is_dropped_during_it() {
    while_dropping(
        |_| doc! { "insert": "c", "documents": vec![doc! {}; 20] },
        |reply| assert_eq!(reply, doc! { "n": 20, "ok": 1.0 }),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_upsert_recreates_a_collection_that_is_dropped_during_it() {
    while_dropping(
        |id| {
            let upsert = doc! { "q": { "k": id }, "u": { "$set": { "a": 1 } }, "upsert": true };
            doc! { "update": "c", "updates": vec![upsert; 5] }
        },
        |reply| {
            assert!(!reply.contains_key("writeErrors"), "{reply}");
            assert_eq!(reply.get_i32("n").ok(), Some(5));
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_find_and_modify_recreates_a_collection_that_is_dropped_during_it() {
    while_dropping(
        |id| doc! { "findAndModify": "c", "query": { "k": id }, "update": { "$set": { "a": 1 } }, "upsert": true, "new": true },
        |reply| assert_eq!(reply.get_document("value").unwrap().get_i32("a").ok(), Some(1)),
    )
    .await;
}

/// Inserts until [`ROUNDS_MET`] inserts have each overlapped the end of a replacement.
async fn insert_during_replacements(door: Arc<Door>, replaced: Arc<AtomicUsize>) {
    let mut met = 0;
    while met < ROUNDS_MET {
        let before = replaced.load(Ordering::SeqCst);
        door.insert("c", vec![doc! {}; 50]).await;
        met += usize::from(replaced.load(Ordering::SeqCst) > before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_insert_waits_for_the_collection_that_replaces_its_own() {
    let door = Arc::new(door());
    door.insert("source", [doc! { "_id": -1 }]).await;
    let replaced = Arc::new(AtomicUsize::new(0));
    let writers: Vec<_> = (0..CLIENTS)
        .map(|_| insert_during_replacements(door.clone(), replaced.clone()))
        .map(tokio::spawn)
        .collect();
    while writers.iter().any(|writer| !writer.is_finished()) {
        let round = replaced.load(Ordering::SeqCst);
        if round.is_multiple_of(2) {
            let out = doc! { "aggregate": "source", "pipeline": [{ "$out": "c" }], "cursor": {} };
            door.ok(out).await;
        } else {
            door.ok(doc! { "create": "d" }).await;
            door.admin(doc! { "renameCollection": "test.d", "to": "test.c", "dropTarget": true })
                .await;
        }
        replaced.fetch_add(1, Ordering::SeqCst);
    }
    for writer in writers {
        writer.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn slow_reads_of_one_client_keep_no_other_from_reading() {
    let door = Arc::new(door());
    door.insert("c", [doc! { "_id": 1 }]).await;
    let of_host = |host: u8| {
        Arc::new(Door {
            documents: door.documents.clone(),
            client: ClientContext {
                peer: Some(([10, 0, 0, host], 1).into()),
                ..ClientContext::default()
            },
        })
    };
    let sum = |inner: Document| doc! { "$sum": { "$map": { "input": { "$range": [0, 100_000] }, "in": inner } } };
    let endless = sum(sum(sum(doc! { "$add": [1, 1] })));
    let slow = doc! { "find": "c", "filter": { "$expr": { "$gt": [endless, 0] } } };
    let greedy: Vec<_> = (0..CROWD)
        .map(|_| {
            let (door, slow) = (of_host(1), slow.clone());
            tokio::spawn(async move { door.code(slow).await })
        })
        .collect();
    let all_run = async {
        loop {
            let running = door.admin(doc! { "currentOp": 1 }).await;
            if running.get_array("inprog").expect("a list").len() > CROWD {
                break;
            }
        }
    };
    timeout(PATIENCE, all_run).await.expect("all run");
    let other = of_host(2);
    let find = doc! { "find": "c", "filter": { "$expr": { "$eq": ["$_id", 1] } } };
    let found = timeout(PATIENCE, other.all(find)).await;
    door.documents.shutdown().expect("the store is in memory");
    assert_eq!(found.expect("there is a place"), [doc! { "_id": 1 }]);
    for command in greedy {
        command.await.expect("it ends");
    }
}
