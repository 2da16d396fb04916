//! Cursors: batches, owners, and closing.

use std::time::Duration;

use bson::{Document, RawDocumentBuf, doc, rawdoc};
use forebay_documents::{Command, Settings};

use crate::door::{batch, door, with};

fn cursor(reply: &Document) -> (i64, usize) {
    let cursor = reply.get_document("cursor").unwrap();
    let name = if cursor.contains_key("firstBatch") {
        "firstBatch"
    } else {
        "nextBatch"
    };
    (cursor.get_i64("id").unwrap(), batch(cursor, name).len())
}

#[tokio::test]
async fn batches_have_the_requested_sizes() {
    let door = door();
    door.insert("c", (0..500).map(|id| doc! { "_id": id }))
        .await;
    let (id, count) = cursor(&door.ok(doc! { "find": "c" }).await);
    assert_eq!(count, 101);
    assert_eq!(
        cursor(
            &door
                .ok(doc! { "getMore": id, "collection": "c", "batchSize": 10 })
                .await
        ),
        (id, 10)
    );
    assert_eq!(
        cursor(&door.ok(doc! { "getMore": id, "collection": "c" }).await),
        (0, 389)
    );
    assert_eq!(
        door.code(doc! { "getMore": id, "collection": "c" }).await,
        43
    );
    let (id, count) = cursor(&door.ok(doc! { "find": "c", "batchSize": 0 }).await);
    assert!(id != 0 && count == 0);
    assert_eq!(
        cursor(
            &door
                .ok(doc! { "find": "c", "batchSize": 5, "singleBatch": true })
                .await
        ),
        (0, 5)
    );
    assert_eq!(
        cursor(&door.ok(doc! { "find": "c", "limit": 7 }).await),
        (0, 7)
    );
    assert_eq!(
        door.code(doc! { "find": "c", "batchSize": -1 }).await,
        51024
    );
    assert_eq!(door.code(doc! { "find": "c", "limit": "x" }).await, 14);
}

#[tokio::test]
async fn a_batch_ends_at_sixteen_megabytes() {
    let door = door();
    let text = "x".repeat(5 << 20);
    for id in 0..5 {
        door.insert("c", [doc! { "_id": id, "text": &text }]).await;
    }
    let (id, count) = cursor(&door.ok(doc! { "find": "c" }).await);
    assert_eq!(count, 3);
    assert_eq!(
        cursor(&door.ok(doc! { "getMore": id, "collection": "c" }).await),
        (0, 2)
    );
}

#[tokio::test]
async fn killed_cursors_are_closed() {
    let door = door();
    door.insert("c", (0..500).map(|id| doc! { "_id": id }))
        .await;
    let (id, _) = cursor(&door.ok(doc! { "find": "c" }).await);
    let reply = door
        .ok(doc! { "killCursors": "c", "cursors": [id, 5_i64] })
        .await;
    let expected = doc! {
        "cursorsKilled": [id], "cursorsNotFound": [5_i64], "cursorsAlive": [], "cursorsUnknown": [], "ok": 1.0,
    };
    assert_eq!(reply, expected);
    assert_eq!(
        door.code(doc! { "getMore": id, "collection": "c" }).await,
        43
    );
    let (id, _) = cursor(&door.ok(doc! { "find": "c" }).await);
    door.ok(doc! { "drop": "c" }).await;
    assert_eq!(
        door.code(doc! { "getMore": id, "collection": "c" }).await,
        43
    );
}

fn session(byte: u8) -> Document {
    let id = bson::Binary {
        subtype: bson::spec::BinarySubtype::Uuid,
        bytes: vec![byte; 16],
    };
    doc! { "id": id }
}

#[tokio::test]
async fn another_session_or_collection_cannot_use_a_cursor() {
    let door = door();
    door.insert("c", (0..500).map(|id| doc! { "_id": id }))
        .await;
    let (id, _) = cursor(&door.ok(doc! { "find": "c", "lsid": session(1) }).await);
    assert_eq!(
        door.code(doc! { "getMore": id, "collection": "c", "lsid": session(2) })
            .await,
        50738
    );
    assert_eq!(
        door.code(doc! { "getMore": id, "collection": "d", "lsid": session(1) })
            .await,
        13
    );
    door.ok(doc! { "getMore": id, "collection": "c", "batchSize": 1, "lsid": session(1) })
        .await;
    door.ok(doc! { "endSessions": [session(1)] }).await;
    assert_eq!(
        door.code(doc! { "getMore": id, "collection": "c", "lsid": session(1) })
            .await,
        43
    );
}

#[tokio::test]
async fn sessions_are_killed_with_their_cursors() {
    let door = door();
    door.insert("c", (0..9).map(|id| doc! { "_id": id })).await;
    let open = async |number: u8| {
        let find = doc! { "find": "c", "batchSize": 1, "lsid": session(number) };
        cursor(&door.ok(find).await).0
    };
    let is_open = async |id: i64, number: u8| {
        let more =
            doc! { "getMore": id, "collection": "c", "batchSize": 1, "lsid": session(number) };
        door.ask(more).await.get_f64("ok").ok() == Some(1.0)
    };
    let cases = [
        (doc! { "killSessions": [session(1)] }, true),
        (
            doc! { "killAllSessionsByPattern": [{ "lsid": session(1) }] },
            true,
        ),
        (
            doc! { "killAllSessions": [{ "user": "u", "db": "admin" }] },
            true,
        ),
        (doc! { "killSessions": [] }, false),
        (doc! { "killAllSessions": [] }, false),
        (doc! { "killAllSessionsByPattern": [] }, false),
    ];
    for (command, spares_second) in cases {
        let (first, second) = (open(1).await, open(2).await);
        let name = command.keys().next().cloned();
        let by_user = command.to_string().contains("user");
        door.ok(command).await;
        assert_eq!(is_open(first, 1).await, by_user, "{name:?}");
        assert_eq!(is_open(second, 2).await, spares_second, "{name:?}");
        door.ok(doc! { "endSessions": [session(1), session(2)] })
            .await;
    }
}

#[tokio::test]
async fn idle_cursors_expire() {
    let door = with(Settings {
        cursor_timeout: Duration::ZERO,
        ..Settings::default()
    });
    door.insert("c", (0..500).map(|id| doc! { "_id": id }))
        .await;
    let (idle, _) = cursor(&door.ok(doc! { "find": "c" }).await);
    let (kept, _) = cursor(&door.ok(doc! { "find": "c", "noCursorTimeout": true }).await);
    assert_eq!(
        door.code(doc! { "getMore": idle, "collection": "c" }).await,
        43
    );
    assert_eq!(
        cursor(&door.ok(doc! { "getMore": kept, "collection": "c" }).await),
        (0, 399)
    );
}

#[tokio::test]
async fn a_cursor_continues_during_inserts_and_deletes() {
    let door = door();
    door.insert("c", (0..2000).map(|id| doc! { "_id": id }))
        .await;
    let reply = door.ok(doc! { "find": "c", "batchSize": 100 }).await;
    let (id, _) = cursor(&reply);
    door.ok(doc! { "delete": "c", "deletes": [{ "q": { "_id": { "$gte": 1500 } }, "limit": 0 }] })
        .await;
    door.insert("c", (5000..5010).map(|id| doc! { "_id": id }))
        .await;
    let reply = door.ok(doc! { "getMore": id, "collection": "c" }).await;
    let rest = batch(reply.get_document("cursor").unwrap(), "nextBatch");
    let ids: Vec<i32> = rest
        .iter()
        .map(|document| document.get_i32("_id").unwrap())
        .collect();
    let stayed: Vec<i32> = ids.iter().copied().filter(|id| *id < 1500).collect();
    assert_eq!(stayed, (100..1500).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_find_over_supplied_documents_works_like_any_other() {
    let door = door();
    door.insert("c", [doc! { "_id": 100, "n": 0 }]).await;
    let given: Vec<RawDocumentBuf> = (0..10)
        .map(|id| rawdoc! { "_id": id, "n": id % 5, "tags": [id, 7] })
        .collect();
    let find = |find: RawDocumentBuf| {
        let (door, given) = (&door, given.clone());
        async move {
            let command = Command::from_body(find);
            let reply = door.documents.find_among(&door.client, command, given);
            Document::try_from(reply.await).unwrap()
        }
    };
    let reply = find(rawdoc! {
        "find": "c", "filter": { "n": { "$gte": 3 } }, "sort": { "n": -1, "_id": -1 }, "skip": 1, "limit": 2,
        "projection": { "n": 1 }, "$db": "test",
    });
    let expected = doc! { "firstBatch": [{ "_id": 4, "n": 4 }, { "_id": 8, "n": 3 }], "id": 0i64, "ns": "test.c" };
    assert_eq!(reply.await.get_document("cursor").unwrap(), &expected);
    let reply = find(rawdoc! { "find": "c", "batchSize": 3, "$db": "test" }).await;
    let (id, count) = cursor(&reply);
    assert_eq!(count, 3);
    let rest = door.ok(doc! { "getMore": id, "collection": "c" }).await;
    assert_eq!(cursor(&rest), (0, 7));
    let refused = find(rawdoc! { "find": "c", "filter": { "$foo": 1 }, "$db": "test" }).await;
    assert_eq!(refused.get_f64("ok").ok(), Some(0.0));
}
