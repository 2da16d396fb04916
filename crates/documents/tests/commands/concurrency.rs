//! Several concurrent clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use forebay_documents::{ClientContext, DEPARTED_WRITE_TIME, Link};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::door::{Door, batch, door};

const CLIENTS: i32 = 4;
const ROUNDS: i32 = 100;
/// Each client inserts until this many of its inserts have overlapped a replacement of the collection.
const ROUNDS_MET: usize = 20;
/// Number of concurrent slow commands of one client. It exceeds the number of commands that may run at the same time.
const CROWD: usize = 160;
/// Maximum duration of a command. A longer one is considered stuck.
const PATIENCE: Duration = Duration::from_secs(60);
/// Codes of commands that were stopped.
const EXPIRED: i32 = 50;
const INTERRUPTED: i32 = 11601;

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

/// Returns the same server with a different client, on the host `host`.
fn of_host(door: &Door, host: u8) -> Arc<Door> {
    Arc::new(Door {
        documents: door.documents.clone(),
        client: ClientContext {
            peer: Some(([10, 0, 0, host], 1).into()),
            ..ClientContext::default()
        },
    })
}

/// Returns an expression that evaluates `inner` for each number of a long range, and adds up the results.
fn sum(inner: Document) -> Document {
    sum_of(100_000, inner)
}

/// Returns an expression that evaluates `inner` `count` times, and adds up the results.
fn sum_of(count: i32, inner: Document) -> Document {
    doc! { "$sum": { "$map": { "input": { "$range": [0, count] }, "in": inner } } }
}

/// Stops all commands when dropped, so that endless commands also end when a test fails.
struct Stops(Arc<Door>);

impl Drop for Stops {
    fn drop(&mut self) {
        let stopped = self.0.documents.shutdown();
        stopped.expect("the store is in memory");
    }
}

fn endless() -> Document {
    sum(sum(sum(doc! { "$add": [1, 1] })))
}

/// Returns an update of document 1 of `c` that never ends.
fn endless_update() -> Document {
    let update = doc! { "q": { "_id": 1 }, "u": [{ "$set": { "y": endless() } }] };
    doc! { "update": "c", "updates": [update] }
}

/// Sends the command from `count` connections of a client.
fn send(door: &Arc<Door>, command: &Document, count: usize) -> Vec<JoinHandle<Document>> {
    let sent = (0..count).map(|_| {
        let (door, command) = (door.clone(), command.clone());
        tokio::spawn(async move { door.ask(command).await })
    });
    sent.collect()
}

/// Waits until `count` commands run or wait, besides the `currentOp` that looks for them.
async fn until_running(door: &Door, count: usize) -> Vec<Document> {
    let all_run = async {
        loop {
            let running = door.admin(doc! { "currentOp": 1 }).await;
            let mut running = batch(&running, "inprog");
            running.retain(|operation| !operation.to_string().contains("currentOp"));
            if running.len() == count {
                return running;
            }
        }
    };
    timeout(PATIENCE, all_run).await.expect("all run")
}

/// Returns the error code of a write that failed.
fn write_code(reply: &Document) -> i32 {
    let whole = reply.get_i32("code").ok();
    let errors = reply.get_array("writeErrors").ok();
    let first = errors.and_then(|errors| errors.first()?.as_document()?.get_i32("code").ok());
    whole.or(first).expect("the write failed")
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    timeout(PATIENCE, work)
        .await
        .expect("the command does not wait for another")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn slow_reads_of_one_client_keep_no_other_from_reading() {
    let door = Arc::new(door());
    door.insert("c", [doc! { "_id": 1 }]).await;
    let slow = doc! { "find": "c", "filter": { "$expr": { "$gt": [endless(), 0] } } };
    let greedy = send(&of_host(&door, 1), &slow, CROWD);
    until_running(&door, CROWD).await;
    let other = of_host(&door, 2);
    let find = doc! { "find": "c", "filter": { "$expr": { "$eq": ["$_id", 1] } } };
    let found = timeout(PATIENCE, other.all(find)).await;
    door.documents.shutdown().expect("the store is in memory");
    assert_eq!(found.expect("there is a place"), [doc! { "_id": 1 }]);
    for command in greedy {
        command.await.expect("the command ends");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn endless_writes_of_one_client_keep_no_other_from_writing() {
    let door = Arc::new(door());
    door.insert("c", (1..4).map(|id| doc! { "_id": id })).await;
    let stops = Stops(door.clone());
    let (greedy, other) = (of_host(&door, 1), of_host(&door, 2));
    let endless = send(&greedy, &endless_update(), CROWD);
    until_running(&door, CROWD).await;
    for write in [
        doc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": { "$set": { "x": 1 } } }] },
        doc! { "update": "c", "updates": [{ "q": {}, "u": [{ "$set": { "z": 1 } }], "multi": true }] },
        doc! { "findAndModify": "c", "query": { "_id": 2 }, "update": { "$set": { "x": 2 } } },
        doc! { "delete": "c", "deletes": [{ "q": { "_id": 3 }, "limit": 1 }] },
        doc! { "insert": "c", "documents": vec![doc! {}; 20] },
    ] {
        in_time(other.ok(write)).await;
    }
    let found = other.all(doc! { "find": "c", "filter": { "z": 1 } }).await;
    let expected = [
        doc! { "_id": 1, "x": 1, "z": 1 },
        doc! { "_id": 2, "z": 1, "x": 2 },
    ];
    assert_eq!(found, expected);

    // Further writes of the same client wait, and end at their time limit or when they are killed.
    let mut waiting = doc! { "delete": "c", "deletes": [{ "q": {}, "limit": 1 }], "maxTimeMS": 10 };
    assert_eq!(in_time(greedy.code(waiting.clone())).await, EXPIRED);
    waiting.remove("maxTimeMS");
    let killed = send(&greedy, &waiting, 1);
    let running = until_running(&door, CROWD + 1).await;
    let delete = running
        .iter()
        .find(|operation| operation.get_str("op").ok() == Some("remove"));
    let id = delete
        .expect("a waiting delete")
        .get_i32("opid")
        .expect("a number");
    door.admin(doc! { "killOp": 1, "op": id }).await;
    for killed in killed {
        let reply = in_time(killed).await.expect("no panic");
        assert_eq!(write_code(&reply), INTERRUPTED);
    }
    drop(stops);
    for write in endless {
        let reply = in_time(write).await.expect("no panic");
        assert_eq!(write_code(&reply), INTERRUPTED);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn slow_updates_of_many_clients_all_count() {
    const SLOW_ROUNDS: i32 = 3;
    let door = Arc::new(door());
    door.insert("c", [doc! { "_id": 1, "n": 0 }]).await;
    let slow = doc! { "$multiply": [0, sum(doc! { "$add": [1, 1] })] };
    let more = doc! { "$set": { "n": { "$add": ["$n", 1, slow] } } };
    let update = doc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": [more] }] };
    for _ in 0..SLOW_ROUNDS {
        for client in send(&door, &update, CLIENTS as usize) {
            let reply = client.await.expect("no panic");
            assert_eq!(reply, doc! { "n": 1, "nModified": 1, "ok": 1.0 });
        }
    }
    let found = door.all(doc! { "find": "c" }).await;
    assert_eq!(found, [doc! { "_id": 1, "n": CLIENTS * SLOW_ROUNDS }]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_slow_update_of_a_document_that_is_incremented_all_the_time_is_written() {
    let door = Arc::new(door());
    door.insert("c", [doc! { "_id": 1, "n": 0 }]).await;
    let _stops = Stops(door.clone());
    let incrementing = Arc::new(AtomicBool::new(true));
    let increments = {
        let (door, incrementing) = (door.clone(), incrementing.clone());
        let increment =
            doc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": { "$inc": { "n": 1 } } }] };
        tokio::spawn(async move {
            let mut count = 0;
            while incrementing.load(Ordering::Relaxed) {
                door.ok(increment.clone()).await;
                count += 1;
                tokio::task::yield_now().await;
            }
            count
        })
    };
    // Slower than an increment. Also on a busy machine, it takes less than a turn at the write lock may (a second).
    let slow = doc! { "$set": { "y": sum_of(10_000, doc! { "$add": [1, 1] }) } };
    let update = doc! { "q": { "_id": 1 }, "u": [slow] };
    let update = doc! { "update": "c", "updates": [update], "maxTimeMS": 30_000 };
    for _ in 0..3 {
        let reply = door.ask(update.clone()).await;
        assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
    }
    incrementing.store(false, Ordering::Relaxed);
    let count: i32 = increments.await.expect("no panic");
    let found = door.all(doc! { "find": "c" }).await;
    assert_eq!(found, [doc! { "_id": 1, "n": count, "y": 20_000 }]);
}

/// A connection that a test can disconnect.
#[derive(Debug, Default)]
struct Departure(AtomicBool);

impl Link for Departure {
    fn is_lost(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writes_of_a_client_that_has_left_are_applied_unless_they_take_long() {
    let door = Arc::new(door());
    door.insert("c", [doc! { "_id": 1 }]).await;
    let _stops = Stops(door.clone());
    let link = Arc::new(Departure::default());
    let leaving = Arc::new(Door {
        documents: door.documents.clone(),
        client: ClientContext {
            link: Some(link.clone()),
            ..ClientContext::default()
        },
    });
    let mut endless = send(&leaving, &endless_update(), 1);
    until_running(&door, 1).await;
    link.0.store(true, Ordering::Relaxed);
    let left = Instant::now();
    door.documents.kill_abandoned(left);
    let storm = (0..ROUNDS)
        .map(|id| doc! { "insert": "d", "documents": [{ "_id": id }], "writeConcern": { "w": 0 } });
    for insert in storm {
        leaving.ok(insert).await;
        door.documents.kill_abandoned(left);
    }
    assert_eq!(door.count("d", doc! {}).await, ROUNDS);
    let almost = DEPARTED_WRITE_TIME - Duration::from_millis(1);
    door.documents.kill_abandoned(left + almost);
    until_running(&door, 1).await;
    assert!(!endless[0].is_finished());
    let kills = async {
        // The grace period of the update begins when the update leaves its queue, which may be later than `left`.
        let mut now = left;
        while !endless[0].is_finished() {
            now += DEPARTED_WRITE_TIME;
            door.documents.kill_abandoned(now);
            tokio::task::yield_now().await;
        }
    };
    in_time(kills).await;
    let reply = endless.remove(0).await.expect("no panic");
    assert_eq!(write_code(&reply), INTERRUPTED);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn index_builds_stop_at_their_time_limit_and_leave_writes_alone() {
    let door = Arc::new(door());
    let documents = (0..20_000).map(|id| doc! { "_id": id, "a": [id, id + 1, id + 2] });
    door.insert("c", documents).await;
    let create = |name: String| {
        let indexes: Vec<_> = (0..16)
            .map(|number| doc! { "key": { "a": 1, format!("{name}{number}"): 1 }, "name": format!("{name}{number}") })
            .collect();
        doc! { "createIndexes": "c", "indexes": indexes, "maxTimeMS": 50 }
    };
    let builds: Vec<_> = (0..CROWD)
        .map(|build| {
            let (door, create) = (door.clone(), create(format!("b{build}_")));
            tokio::spawn(async move { door.code(create).await })
        })
        .collect();
    door.insert("other", [doc! { "_id": 1, "n": 0 }]).await;
    let update = doc! { "q": { "_id": 1 }, "u": { "$inc": { "n": 1 } } };
    door.ok(doc! { "update": "other", "updates": [update] })
        .await;
    for build in builds {
        assert_eq!(timeout(PATIENCE, build).await.unwrap().unwrap(), EXPIRED);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_validation_stops_at_its_time_limit() {
    let door = Arc::new(door());
    let documents = (0..20_000).map(|id| doc! { "_id": id, "a": [id, id + 1, id + 2] });
    door.insert("c", documents).await;
    assert_eq!(
        door.code(doc! { "validate": "c", "maxTimeMS": 1 }).await,
        EXPIRED
    );
    door.ok(doc! { "validate": "c" }).await;
}
