//! The privileges that each role gives to users, and the errors for commands that users may not run.

use bson::{Document, doc};
use forebay_documents::{Rights, Role, User};

use super::door::{Door, door};

/// The error code `Unauthorized`.
const DENIED: i32 = 13;

/// Returns the same server with a different client: a user with these roles.
fn user(door: &Door, name: &str, roles: &[(&str, &str)]) -> Door {
    let role = |(name, db): &(&str, &str)| Role::new(name, db).expect("there is such a role");
    let mut client = door.client.clone();
    client.user = Some(User {
        name: name.to_owned(),
        db: "admin".to_owned(),
    });
    client.rights = Rights::Roles(roles.iter().map(role).collect());
    Door {
        documents: door.documents.clone(),
        client,
    }
}

/// Returns the error code of a reply, or 0 if it has none.
async fn code(door: &Door, db: &str, mut command: Document) -> i32 {
    command.insert("$db", db);
    let reply = door.ask(command).await;
    reply.get_i32("code").unwrap_or(0)
}

async fn with_documents() -> Door {
    let door = door();
    for db in ["shop", "bank"] {
        let insert =
            doc! { "insert": "things", "documents": [{ "_id": 1, "secret": db }], "$db": db };
        door.ok(insert).await;
    }
    door
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_roles_may_run_only_commands_about_the_user() {
    let own = [
        "abortTransaction",
        "buildInfo",
        "buildinfo",
        "commitTransaction",
        "connectionStatus",
        "endSessions",
        "getMore",
        "killCursors",
        "killSessions",
        "listCommands",
        "listDatabases",
        "ping",
        "refreshSessions",
        "startSession",
        "whatsmyuri",
    ];
    let door = with_documents().await;
    let eve = user(&door, "eve", &[]);
    for (name, _) in forebay_documents::commands() {
        for db in ["admin", "shop"] {
            let mut command = doc! { name: "things" };
            if name == "killOp" {
                command.insert("op", 1);
            }
            let denied = code(&eve, db, command).await == DENIED;
            // On every database except `admin`, `listDatabases` fails with the code of a denied command.
            let elsewhere = name == "listDatabases" && db == "shop";
            assert_eq!(denied, !own.contains(&name) || elsewhere, "{name} on {db}");
        }
    }
    let listed = eve.admin(doc! { "listDatabases": 1 }).await;
    assert_eq!(listed.get_array("databases").ok(), Some(&vec![]));
}

/// Returns commands. For each command, also returns whether the roles `read`, `readWrite` and `dbAdmin` of the
/// command's database allow it.
fn cases() -> Vec<(Document, [bool; 3])> {
    let aggregate =
        |stage: Document| doc! { "aggregate": "things", "pipeline": [stage], "cursor": {} };
    let (read, write) = ([true, true, false], [false, true, false]);
    let (define, inspect) = ([false, true, true], [true, true, true]);
    let administer = [false, false, true];
    let root = [false, false, false];
    vec![
        (doc! { "find": "things" }, read),
        (doc! { "count": "things" }, read),
        (doc! { "distinct": "things", "key": "_id" }, read),
        (aggregate(doc! { "$match": {} }), read),
        (aggregate(doc! { "$collStats": { "count": {} } }), inspect),
        (aggregate(doc! { "$indexStats": {} }), administer),
        (aggregate(doc! { "$out": "copy" }), write),
        (aggregate(doc! { "$merge": "copy" }), write),
        (
            aggregate(doc! { "$out": { "db": "bank", "coll": "copy" } }),
            root,
        ),
        (
            aggregate(doc! { "$merge": { "into": { "db": "bank", "coll": "copy" } } }),
            root,
        ),
        (doc! { "explain": { "find": "things" } }, read),
        (
            doc! { "explain": { "delete": "things", "deletes": [{ "q": {}, "limit": 0 }] } },
            write,
        ),
        (doc! { "insert": "things", "documents": [{}] }, write),
        (
            doc! { "update": "things", "updates": [{ "q": {}, "u": { "$set": { "a": 1 } } }] },
            write,
        ),
        (
            doc! { "findAndModify": "things", "query": {}, "update": { "$set": { "a": 2 } } },
            write,
        ),
        (
            doc! { "delete": "nothings", "deletes": [{ "q": {}, "limit": 0 }] },
            write,
        ),
        (
            doc! { "createIndexes": "things", "indexes": [{ "key": { "a": "cache" }, "name": "a_cache" }] },
            define,
        ),
        (doc! { "dropIndexes": "things", "index": "a_cache" }, define),
        (doc! { "create": "more" }, define),
        (doc! { "drop": "more" }, define),
        (doc! { "listCollections": 1 }, inspect),
        (doc! { "listIndexes": "things" }, inspect),
        (doc! { "collStats": "things" }, inspect),
        (doc! { "dbStats": 1 }, inspect),
        (doc! { "validate": "things" }, administer),
        (doc! { "forebayDevices": 1 }, root),
        (doc! { "serverStatus": 1 }, root),
        (doc! { "dropDatabase": 1 }, administer),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_grant_their_rights_on_their_database_only() {
    for (index, name) in ["read", "readWrite", "dbAdmin"].into_iter().enumerate() {
        let door = with_documents().await;
        let (here, elsewhere) = (
            user(&door, "ada", &[(name, "shop")]),
            user(&door, "eve", &[(name, "other")]),
        );
        let everywhere = match name {
            "read" => "readAnyDatabase",
            "readWrite" => "readWriteAnyDatabase",
            _ => "dbAdminAnyDatabase",
        };
        let everywhere = user(&door, "bob", &[(everywhere, "admin")]);
        for (command, allowed) in cases() {
            let denied = code(&elsewhere, "shop", command.clone()).await;
            assert_eq!(denied, DENIED, "{name} elsewhere: {command}");
            // A command on two databases needs privileges on both.
            let reaches_both = command.to_string().contains("bank") && name == "readWrite";
            let got = code(&everywhere, "shop", command.clone()).await;
            let expected = allowed[index] || reaches_both;
            assert_eq!(
                got != DENIED,
                expected,
                "{name} everywhere: {command} -> {got}"
            );
            let got = code(&here, "shop", command.clone()).await;
            assert_eq!(got != DENIED, allowed[index], "{name}: {command} -> {got}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_leave_out_names_that_a_user_may_not_see() {
    let door = with_documents().await;
    let ada = user(&door, "ada", &[("read", "shop")]);
    let listed = ada
        .admin(doc! { "listDatabases": 1, "nameOnly": true })
        .await;
    assert_eq!(
        listed.get_array("databases").ok(),
        Some(&vec![doc! { "name": "shop" }.into()])
    );
    let all = doc! { "listDatabases": 1, "authorizedDatabases": false };
    assert_eq!(code(&ada, "admin", all).await, DENIED);
    let names = doc! { "listCollections": 1, "nameOnly": true, "authorizedCollections": true, "$db": "bank" };
    let reply = ada.ok(names).await;
    let batch = reply
        .get_document("cursor")
        .and_then(|cursor| cursor.get_array("firstBatch"));
    assert_eq!(batch.ok(), Some(&vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_names_the_database_and_the_command() {
    let door = with_documents().await;
    let ada = user(&door, "ada", &[("read", "shop")]);
    let reply = ada
        .ask(doc! { "delete": "things", "deletes": [{ "q": {}, "limit": 0 }], "$db": "shop" })
        .await;
    assert_eq!(
        reply,
        doc! {
            "ok": 0.0,
            "errmsg": "not authorized on shop to execute command { delete: \"things\", deletes: [...], $db: \"shop\" }",
            "code": DENIED,
            "codeName": "Unauthorized",
        }
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn users_see_and_stop_their_own_operations_only() {
    let door = with_documents().await;
    let (ada, eve) = (
        user(&door, "ada", &[("readWrite", "shop")]),
        user(&door, "eve", &[("readWrite", "shop")]),
    );
    assert_eq!(code(&ada, "admin", doc! { "currentOp": 1 }).await, DENIED);
    let all =
        doc! { "aggregate": 1, "pipeline": [{ "$currentOp": { "allUsers": true } }], "cursor": {} };
    assert_eq!(code(&ada, "admin", all.clone()).await, DENIED);
    assert_eq!(code(&door, "admin", all).await, 0);

    // Each user sees only the user's own operations in `currentOp`.
    let own = ada.admin(doc! { "currentOp": 1, "$ownOps": true }).await;
    let own = own.get_array("inprog").expect("a list");
    assert_eq!(own.len(), 1);
    let others = doc! { "killOp": 1, "op": i32::MAX };
    assert_eq!(code(&eve, "admin", others.clone()).await, DENIED);
    assert_eq!(code(&door, "admin", others).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_user_leaves_no_cursor_and_sessions_of_others_stay() {
    let door = with_documents().await;
    let documents: Vec<Document> = (2..300).map(|id| doc! { "_id": id }).collect();
    door.ok(doc! { "insert": "things", "documents": documents, "$db": "shop" })
        .await;
    let session = doc! { "id": bson::Binary { subtype: bson::spec::BinarySubtype::Uuid, bytes: vec![7; 16] } };
    let (ada, eve) = (
        user(&door, "ada", &[("read", "shop")]),
        user(&door, "eve", &[("read", "shop")]),
    );
    let open = doc! { "find": "things", "batchSize": 1, "lsid": session.clone(), "$db": "shop" };
    let reply = ada.ok(open).await;
    let id = reply
        .get_document("cursor")
        .and_then(|cursor| cursor.get_i64("id"));
    let id = id.expect("a cursor");
    let more =
        doc! { "getMore": id, "collection": "things", "batchSize": 1, "lsid": session.clone() };

    assert_eq!(code(&eve, "shop", more.clone()).await, DENIED);
    assert_eq!(
        code(&eve, "shop", doc! { "endSessions": [session.clone()] }).await,
        0
    );
    assert_eq!(
        code(&door, "shop", doc! { "killSessions": [session] }).await,
        0
    );
    assert_eq!(
        code(&ada, "shop", more.clone()).await,
        0,
        "the cursor is ada's"
    );

    let name = ada.client.user.as_ref().expect("ada is a user");
    door.documents.end_user(name);
    assert_eq!(code(&ada, "shop", more).await, 43, "the cursor is closed");
}

/// Checks that stages that read another collection are refused. Once such a stage is supported, the rule of `aggregate`
/// must require the privilege to read the other collection.
#[tokio::test(flavor = "multi_thread")]
async fn stages_that_read_another_collection_are_not_supported() {
    let door = with_documents().await;
    let into = doc! { "from": "things", "as": "found", "startWith": "$_id", "connectFromField": "_id", "connectToField": "_id" };
    for stage in [
        doc! { "$lookup": { "from": "things", "localField": "_id", "foreignField": "_id", "as": "found" } },
        doc! { "$graphLookup": into },
        doc! { "$unionWith": "things" },
        doc! { "$facet": { "found": [{ "$unionWith": "things" }] } },
    ] {
        let command = doc! { "aggregate": "things", "pipeline": [stage], "cursor": {} };
        assert_eq!(code(&door, "shop", command.clone()).await, 238, "{command}");
    }
    let view = doc! { "create": "view", "viewOn": "things", "pipeline": [] };
    assert_ne!(code(&door, "shop", view).await, 0);
}
