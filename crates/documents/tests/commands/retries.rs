//! Retryable writes: a write that is sent again with its transaction number gets the same answer and is not applied
//! again.

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};
use forebay_documents::{Location, Settings};

use crate::door::{Door, with};

fn settings() -> Settings {
    Settings {
        retryable_writes: true,
        ..Settings::default()
    }
}

fn lsid(session: u8) -> Bson {
    let id = Binary {
        subtype: BinarySubtype::Uuid,
        bytes: vec![session; 16],
    };
    Bson::Document(doc! { "id": id })
}

/// Returns the command as a driver sends it in a session.
fn numbered(mut command: Document, session: u8, number: i64) -> Document {
    command.insert("lsid", lsid(session));
    command.insert("txnNumber", number);
    command
}

/// Sends a retryable write twice, and checks that both replies are equal. Returns the reply.
async fn twice(door: &Door, command: Document, number: i64) -> Document {
    let command = numbered(command, 1, number);
    let first = door.ok(command.clone()).await;
    let mut again = door.ok(command).await;
    assert!(again.remove("retriedStmtIds").is_some(), "{again}");
    assert_eq!(again, first);
    first
}

async fn contents(door: &Door) -> Vec<Document> {
    door.all(doc! { "find": "c", "sort": { "_id": 1 } }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_write_is_applied_once() {
    let door = with(settings());
    let documents = [doc! { "_id": 1, "n": 0 }, doc! { "_id": 2, "n": 0 }];
    let insert = doc! { "insert": "c", "documents": documents.to_vec() };
    assert_eq!(twice(&door, insert, 1).await, doc! { "n": 2, "ok": 1.0 });
    let updates = [
        doc! { "q": { "_id": 1 }, "u": { "$inc": { "n": 1 } } },
        doc! { "q": { "_id": 3 }, "u": { "$inc": { "n": 1 } }, "upsert": true },
    ];
    let updated = twice(
        &door,
        doc! { "update": "c", "updates": updates.to_vec() },
        2,
    )
    .await;
    let upserted = [doc! { "index": 1, "_id": 3 }];
    assert_eq!(
        updated,
        doc! { "n": 2, "nModified": 1, "upserted": upserted.to_vec(), "ok": 1.0 }
    );
    let modify = doc! { "findAndModify": "c", "query": { "_id": 2 }, "update": { "$inc": { "n": 5 } },
    "fields": { "n": 1, "_id": 0 } };
    let modified = twice(&door, modify, 3).await;
    assert_eq!(modified.get_document("value").unwrap(), &doc! { "n": 0 });
    let upsert = doc! { "findAndModify": "c", "query": { "_id": 4 }, "update": { "$inc": { "n": 5 } }, "upsert": true,
    "new": true };
    let made = twice(&door, upsert, 4).await;
    let last = doc! { "n": 1, "updatedExisting": false, "upserted": 4 };
    assert_eq!(made.get_document("lastErrorObject").unwrap(), &last);
    assert_eq!(
        contents(&door).await,
        [
            doc! { "_id": 1, "n": 1 },
            doc! { "_id": 2, "n": 5 },
            doc! { "_id": 3, "n": 1 },
            doc! { "_id": 4, "n": 5 },
        ]
    );
    let remove =
        doc! { "findAndModify": "c", "query": { "n": 5 }, "sort": { "_id": 1 }, "remove": true };
    let removed = twice(&door, remove, 5).await;
    let value = removed.get_document("value").unwrap();
    assert_eq!(value, &doc! { "_id": 2, "n": 5 });
    let deletes = [doc! { "q": {}, "limit": 1 }];
    let deleted = twice(
        &door,
        doc! { "delete": "c", "deletes": deletes.to_vec() },
        6,
    )
    .await;
    assert_eq!(deleted, doc! { "n": 1, "ok": 1.0 });
    assert_eq!(contents(&door).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retried_batch_applies_the_statements_that_were_not_applied() {
    let door = with(settings());
    door.insert("c", [doc! { "_id": 2 }]).await;
    let insert = |ids: &[i32]| {
        let documents: Vec<_> = ids.iter().map(|id| doc! { "_id": id }).collect();
        let command = doc! { "insert": "c", "documents": documents, "ordered": false };
        numbered(command, 1, 1)
    };
    let first = door.ok(insert(&[1, 2, 3])).await;
    assert_eq!(first.get_i32("n").ok(), Some(2));
    assert_eq!(first.get_array("writeErrors").unwrap().len(), 1);
    let remove = [doc! { "q": { "_id": 2 }, "limit": 1 }];
    door.ok(doc! { "delete": "c", "deletes": remove.to_vec() })
        .await;
    let again = door.ok(insert(&[1, 2, 3])).await;
    let retried = doc! { "n": 3, "ok": 1.0, "retriedStmtIds": [0, 2] };
    assert_eq!(again, retried);
    // The driver may choose the id of the first statement. With `stmtId: 2`, the statements have the ids 2 and 3.
    let mut rest = insert(&[3, 4]);
    rest.insert("stmtId", 2);
    let rest = door.ok(rest).await;
    assert_eq!(rest, doc! { "n": 2, "ok": 1.0, "retriedStmtIds": [2] });
    assert_eq!(contents(&door).await.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_applied_nothing_does_not_get_the_answer_before() {
    let door = with(settings());
    let insert = |id: i32| doc! { "insert": "c", "documents": [{ "_id": id }] };
    door.ok(numbered(insert(1), 1, 1)).await;
    let update =
        doc! { "update": "c", "updates": [{ "q": { "_id": 2 }, "u": { "$set": { "a": 1 } } }] };
    let update = numbered(update, 1, 2);
    let first = door.ok(update.clone()).await;
    assert_eq!(first, doc! { "n": 0, "nModified": 0, "ok": 1.0 });
    door.ok(insert(2)).await;
    let again = door.ok(update).await;
    assert_eq!(again, doc! { "n": 1, "nModified": 1, "ok": 1.0 });
    assert_eq!(
        contents(&door).await,
        [doc! { "_id": 1 }, doc! { "_id": 2, "a": 1 }]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn outcomes_survive_a_restart_if_they_are_kept() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let at = |retryable_writes| {
        with(Settings {
            location: Location::Directory(folder.path().to_owned()),
            retryable_writes,
            ..settings()
        })
    };
    let increment = || {
        let updates = [doc! { "q": { "_id": 1 }, "u": { "$inc": { "n": 1 } }, "upsert": true }];
        numbered(doc! { "update": "c", "updates": updates.to_vec() }, 1, 7)
    };
    let door = at(true);
    let first = door.ok(increment()).await;
    drop(door);
    let door = at(true);
    let mut again = door.ok(increment()).await;
    again.remove("retriedStmtIds");
    assert_eq!(again, first);
    assert_eq!(
        door.code(numbered(doc! { "insert": "c", "documents": [{}] }, 1, 6))
            .await,
        225
    );
    assert_eq!(contents(&door).await, [doc! { "_id": 1, "n": 1 }]);
    drop(door);
    let door = at(false);
    assert_eq!(door.code(increment()).await, 20);
    drop(door);
    // The restarted server has no outcomes of earlier writes.
    let door = at(true);
    assert_eq!(
        door.ok(increment()).await.get_i32("nModified").ok(),
        Some(1)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_are_refused_where_they_have_no_meaning() {
    let door = with(settings());
    let insert = |id: i32| doc! { "insert": "c", "documents": [{ "_id": id }] };
    let many = [doc! { "q": {}, "u": { "$set": { "a": 1 } }, "multi": true }];
    let all = [doc! { "q": {}, "limit": 0 }];
    for (command, code) in [
        (numbered(insert(1), 1, -1), 72),
        (numbered(doc! { "find": "c" }, 1, 1), 50768),
        (
            doc! { "insert": "c", "documents": [{}], "txnNumber": 1_i64 },
            72,
        ),
    ] {
        assert_eq!(door.code(command).await, code);
    }
    for command in [
        doc! { "update": "c", "updates": many.to_vec() },
        doc! { "delete": "c", "deletes": all.to_vec() },
    ] {
        let reply = door.ok(numbered(command, 1, 1)).await;
        let errors = reply.get_array("writeErrors").expect("the command fails");
        assert_eq!(
            errors[0].as_document().unwrap().get_i32("code").ok(),
            Some(72)
        );
    }
    door.ok(numbered(insert(1), 1, 5)).await;
    assert_eq!(door.code(numbered(insert(2), 1, 4)).await, 225);
    // Another session has its own transaction numbers. After a session has ended, its id may be used with the same
    // numbers again.
    door.ok(numbered(insert(2), 2, 4)).await;
    door.ok(doc! { "endSessions": [lsid(1)] }).await;
    door.ok(numbered(insert(3), 1, 4)).await;
    assert_eq!(contents(&door).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_wants_more_members_is_applied_and_reports_that_there_are_none() {
    let door = with(settings());
    let insert = doc! { "insert": "c", "documents": [{ "_id": 1 }], "writeConcern": { "w": 2 } };
    let reply = door.ok(insert.clone()).await;
    let error = reply.get_document("writeConcernError").expect("an error");
    assert_eq!(error.get_i32("code").ok(), Some(100));
    assert_eq!(contents(&door).await.len(), 1);
    let standalone = with(Settings::default());
    assert_eq!(standalone.code(insert).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_write_sent_by_many_connections_at_once_is_applied_once() {
    let door = std::sync::Arc::new(with(settings()));
    door.insert("c", [doc! { "_id": 1, "n": 0 }]).await;
    let tasks: Vec<_> = (0..40)
        .map(|task: i64| {
            let door = door.clone();
            tokio::spawn(async move {
                let updates = [doc! { "q": { "_id": 1 }, "u": { "$inc": { "n": 1 } } }];
                let command = doc! { "update": "c", "updates": updates.to_vec() };
                door.ok(numbered(command, (task % 4) as u8, 1)).await
            })
        })
        .collect();
    for task in tasks {
        let reply = task.await.expect("no panic");
        assert_eq!(reply.get_i32("nModified").ok(), Some(1));
    }
    assert_eq!(contents(&door).await, [doc! { "_id": 1, "n": 4 }]);
}
