//! Invalid commands fail with MongoDB's error codes.

use bson::{Bson, Document, doc};

use forebay_documents::Settings;
use forebay_memory::Account;

use crate::door::{self, door};

/// Commands and the codes of their errors.
type Cases = Vec<(Document, i32)>;

/// Returns invalid reads.
fn wrong_finds() -> Cases {
    vec![
        (doc! { "find": 1 }, 73),
        (doc! { "find": "" }, 73),
        (doc! { "find": "a$b" }, 73),
        (doc! { "find": "c", "filter": 1 }, 14),
        (doc! { "find": "c", "filter": { "a": { "$frob": 1 } } }, 2),
        (doc! { "find": "c", "filter": { "$frob": 1 } }, 2),
        (
            doc! { "find": "c", "filter": { "a": { "$regex": "(" } } },
            51091,
        ),
        (doc! { "find": "c", "tailable": true }, 238),
        (doc! { "find": "c", "collation": { "locale": "de" } }, 238),
        (doc! { "find": "c", "hint": "nothing" }, 2),
        (doc! { "find": "c", "hint": { "nothing": 1 } }, 2),
        (doc! { "find": "c", "let": { "x": "$a" } }, 4890500),
        (doc! { "find": "c", "let": { "X": 1 } }, 9),
        (
            doc! { "find": "c", "filter": { "$expr": "$$x" }, "let": { "y": 1 } },
            17276,
        ),
        (doc! { "find": "c", "maxTimeMS": -1 }, 2),
        (doc! { "find": "c", "maxTimeMS": "x" }, 14),
        (
            doc! { "find": "c", "readConcern": { "level": "snapshot" } },
            72,
        ),
        (doc! { "find": "c", "readConcern": { "level": "frob" } }, 2),
        (
            doc! { "find": "c", "autocommit": false, "txnNumber": 1_i64 },
            263,
        ),
        (doc! { "find": "c", "txnNumber": 1_i64 }, 20),
        (doc! { "find": "c", "apiVersion": "2" }, 322),
    ]
}

/// Returns other invalid commands.
fn wrong_commands() -> Cases {
    vec![
        (
            doc! { "update": "c", "updates": [{ "q": {}, "u": { "$set": { "a": 1 } }, "sort": { "a": 1 } }] },
            40415,
        ),
        (doc! { "ping": 1, "apiStrict": true }, 4886600),
        (
            doc! { "aggregate": "c", "pipeline": [{ "$changeStream": {} }], "cursor": {}, "readConcern": { "level": "local" } },
            72,
        ),
        (
            doc! { "aggregate": "c", "pipeline": [{ "$out": "d" }], "cursor": {}, "readConcern": { "level": "linearizable" } },
            72,
        ),
        (doc! { "ping": 1, "apiDeprecationErrors": false }, 4886600),
        (
            doc! { "distinct": "c", "key": "a", "apiVersion": "1", "apiStrict": true },
            323,
        ),
        (
            doc! { "aggregate": "c", "pipeline": [{ "$indexStats": {} }], "cursor": {}, "apiVersion": "1", "apiStrict": true },
            323,
        ),
        (doc! { "insert": "c" }, 40414),
        (doc! { "insert": "c", "documents": [] }, 16),
        (doc! { "insert": "c", "documents": [1] }, 14),
        (doc! { "insert": "system.x", "documents": [{}] }, 73),
        (
            doc! { "insert": "c", "documents": [{}], "writeConcern": { "w": 3 } },
            2,
        ),
        (
            doc! { "insert": "c", "documents": [{}], "writeConcern": { "w": "far" } },
            79,
        ),
        (doc! { "aggregate": "c", "pipeline": [] }, 9),
        (
            doc! { "aggregate": "c", "pipeline": [{ "$frob": 1 }], "cursor": {} },
            40324,
        ),
        (doc! { "aggregate": 1, "pipeline": [], "cursor": {} }, 73),
        (doc! { "getMore": "x", "collection": "c" }, 14),
        (doc! { "distinct": "c" }, 40414),
        (doc! { "listIndexes": "nothing" }, 26),
        (doc! { "commitTransaction": 1 }, 20),
        (doc! { "getParameter": "*" }, 13),
        (
            doc! { "renameCollection": "a.b", "to": "a.c", "$db": "admin" },
            26,
        ),
        (doc! { "explain": { "frob": 1 } }, 59),
        (doc! { "": 1 }, 59),
    ]
}

#[tokio::test]
async fn wrong_arguments_have_mongodbs_codes() {
    let door = door();
    door.insert("c", [doc! { "_id": 1, "a": "x" }]).await;
    for (command, code) in wrong_finds().into_iter().chain(wrong_commands()) {
        let reply = door.ask(command.clone()).await;
        assert_eq!(
            reply.get_i32("code").ok(),
            Some(code),
            "{command} -> {reply}"
        );
        assert!(
            reply.get_str("codeName").is_ok() && reply.get_str("errmsg").is_ok(),
            "{reply}"
        );
    }
}

#[tokio::test]
async fn a_statement_of_the_wrong_shape_fails_the_command_before_any_runs() {
    let door = door();
    door.insert("c", [doc! { "_id": 1, "a": 5 }]).await;
    let set = doc! { "$set": { "a": 6 } };
    let updates = [
        (doc! { "u": set.clone() }, 40414),
        (doc! { "q": {} }, 40414),
        (doc! { "q": 1, "u": set.clone() }, 14),
        (doc! { "q": {}, "u": 1 }, 9),
        (doc! { "q": {}, "u": set.clone(), "multi": "x" }, 14),
        (doc! { "q": {}, "u": set.clone(), "upsert": {} }, 14),
        (doc! { "q": {}, "u": set.clone(), "hint": 1 }, 9),
        (doc! { "q": {}, "u": set.clone(), "collation": 1 }, 14),
        (doc! { "q": {}, "u": set.clone(), "arrayFilters": {} }, 14),
        (doc! { "q": {}, "u": set.clone(), "arrayFilters": [1] }, 14),
        (doc! { "q": {}, "u": set.clone(), "limit": 1 }, 40415),
        (doc! { "frob": 1, "q": {}, "u": set.clone() }, 40415),
    ];
    for (wrong, code) in updates {
        let right = doc! { "q": { "_id": 1 }, "u": set.clone() };
        let command = doc! { "update": "c", "updates": [right, wrong], "ordered": false };
        assert_eq!(door.code(command.clone()).await, code, "{command}");
    }
    let deletes = [
        (doc! { "limit": 1 }, 40414),
        (doc! { "q": {} }, 40414),
        (doc! { "q": "x", "limit": 1 }, 14),
        (doc! { "q": {}, "limit": "x" }, 14),
        (doc! { "q": {}, "limit": 2 }, 9),
        (doc! { "q": {}, "limit": 1, "hint": true }, 9),
        (doc! { "q": {}, "limit": 1, "multi": true }, 40415),
    ];
    for (wrong, code) in deletes {
        let right = doc! { "q": { "_id": 1 }, "limit": 1 };
        let command = doc! { "delete": "c", "deletes": [right, wrong], "ordered": false };
        assert_eq!(door.code(command.clone()).await, code, "{command}");
    }
    let reply = door
        .ask(doc! { "update": "c", "updates": [{ "u": set }] })
        .await;
    assert_eq!(
        reply.get_str("errmsg").ok(),
        Some("BSON field 'update.updates.q' is missing but a required field")
    );
    assert_eq!(
        door.all(doc! { "find": "c" }).await,
        [doc! { "_id": 1, "a": 5 }]
    );
}

#[tokio::test]
async fn an_invalid_statement_fails_alone() {
    let door = door();
    door.insert("c", [doc! { "_id": 1, "a": 5 }]).await;
    let wrong = doc! { "q": { "a": { "$frob": 1 } }, "u": { "$set": { "a": 6 } } };
    let right = doc! { "q": { "_id": 1 }, "u": { "$set": { "a": 7 } } };
    let command = doc! { "update": "c", "updates": [wrong, right], "ordered": false };
    let reply = door.ok(command).await;
    let errors = reply.get_array("writeErrors").unwrap();
    let error = errors[0].as_document().unwrap();
    assert_eq!((errors.len(), error.get_i32("code").ok()), (1, Some(2)));
    assert_eq!(
        door.all(doc! { "find": "c" }).await,
        [doc! { "_id": 1, "a": 7 }]
    );
}

#[tokio::test]
async fn a_scan_ends_at_its_time_limit() {
    let door = door();
    door.insert(
        "c",
        (0..20_000).map(|id| doc! { "_id": id, "a": "x".repeat(200) }),
    )
    .await;
    let slow = doc! { "a": { "$regex": "(x+x+)+y" } };
    assert_eq!(
        door.code(doc! { "count": "c", "query": slow.clone(), "maxTimeMS": 1 })
            .await,
        50
    );
    assert_eq!(
        door.code(doc! { "find": "c", "filter": slow, "maxTimeMS": 1 })
            .await,
        50
    );
}

#[tokio::test]
async fn informational_commands_answer() {
    let door = door();
    for command in [
        doc! { "ping": 1 },
        doc! { "buildInfo": 1 },
        doc! { "serverStatus": 1 },
        doc! { "getParameter": "*" },
        doc! { "getLog": "startupWarnings" },
        doc! { "hostInfo": 1 },
        doc! { "getCmdLineOpts": 1 },
        doc! { "connectionStatus": 1, "showPrivileges": true },
        doc! { "listDatabases": 1 },
        doc! { "currentOp": 1 },
        doc! { "killOp": 1, "op": 5 },
        doc! { "whatsmyuri": 1 },
        doc! { "listCommands": 1 },
        doc! { "forebayDevices": 1 },
        doc! { "forebayStats": 1 },
        doc! { "dbStats": 1 },
        doc! { "collStats": "nothing" },
        doc! { "startSession": 1 },
        doc! { "aggregate": 1, "pipeline": [{ "$currentOp": {} }], "cursor": {} },
    ] {
        door.admin(command).await;
    }
    let parameters = door.admin(doc! { "getParameter": "*" }).await;
    assert!(parameters.contains_key("enableTestCommands"));
    let operations = door.admin(doc! { "currentOp": 1 }).await;
    let listed = operations.get_array("inprog").unwrap();
    assert_eq!(listed.len(), 1, "only the command itself: {operations}");
}

#[tokio::test]
async fn an_expression_that_fails_is_an_error_for_every_access_path() {
    let door = door();
    let documents = (0..100).map(|id| doc! { "_id": id, "t": "text", "zero": 0 });
    door.insert("c", documents).await;
    door.cache("c", "t").await;
    let divides = doc! { "$expr": { "$divide": [1, "$zero"] } };
    for found_by in [doc! { "t": { "$regex": "ex" } }, doc! { "_id": 1 }, doc! {}] {
        let mut filter = found_by;
        filter.extend(divides.clone());
        let find = door
            .code(doc! { "find": "c", "filter": filter.clone() })
            .await;
        let count = door
            .code(doc! { "count": "c", "query": filter.clone() })
            .await;
        let update = doc! { "q": filter.clone(), "u": { "$set": { "x": 1 } }, "multi": true };
        let updated = door.ok(doc! { "update": "c", "updates": [update] }).await;
        assert_eq!((find, count), (2, 2), "{filter}");
        assert!(updated.contains_key("writeErrors"), "{filter}: {updated}");
    }
}

#[tokio::test]
async fn documents_too_large_for_clients_are_refused() {
    let door = door();
    let text = "x".repeat(5 * 1024 * 1024);
    door.insert("c", [doc! { "_id": 1, "t": text }]).await;
    let large = doc! { "l": { "$concat": ["$t", "$t", "$t", "$t"] } };
    let stages = [doc! { "$project": large.clone() }];
    let find = doc! { "find": "c", "projection": large.clone() };
    let aggregate = doc! { "aggregate": "c", "pipeline": stages, "cursor": {} };
    let modify = doc! { "findAndModify": "c", "query": { "_id": 1 }, "update": { "$set": { "x": 1 } }, "fields": large };
    for command in [find, aggregate, modify] {
        let code = door.ask(command).await.get_i32("code");
        assert_eq!(code.ok(), Some(10334));
    }
    let length =
        doc! { "$project": { "n": { "$strLenBytes": { "$concat": ["$t", "$t", "$t", "$t"] } } } };
    let found = door
        .all(doc! { "aggregate": "c", "pipeline": [length], "cursor": {} })
        .await;
    assert_eq!(found, [doc! { "_id": 1, "n": 20 * 1024 * 1024 }]);
}

#[tokio::test]
async fn write_errors_are_charged_and_their_messages_are_bounded() {
    for (account_bytes, code) in [(8 << 20, 146), (64 << 20, 0)] {
        let memory = Account::new(account_bytes);
        let door = door::with(Settings {
            memory: memory.clone(),
            ..Settings::default()
        });
        let documents = vec![doc! { "_id": 1 }; 20_000];
        let reply = door
            .ask(doc! { "insert": "c", "documents": documents, "ordered": false })
            .await;
        assert_eq!(reply.get_i32("code").unwrap_or(0), code);
        if let Ok(errors) = reply.get_array("writeErrors") {
            let message = |error: &Bson| {
                error
                    .as_document()
                    .map(|error| error.get_str("errmsg").unwrap().len())
            };
            assert!(message(&errors[0]) > Some(50));
            assert_eq!(message(&errors[19_998]), Some(0));
        }
        assert_eq!(memory.figures().used_bytes, 0);
    }
}
