//! The commands that a driver sends when it connects.

use crate::door::door;
use bson::doc;

#[tokio::test]
async fn documents_are_inserted_found_and_counted() {
    let door = door();
    door.ok(doc! { "ping": 1 }).await;
    door.insert(
        "names",
        (0..500).map(|id| doc! { "_id": id, "name": format!("n{id}") }),
    )
    .await;
    assert_eq!(door.count("names", doc! {}).await, 500);
    assert_eq!(door.count("names", doc! { "name": "n7" }).await, 1);
    assert_eq!(door.ids("names", doc! { "_id": 9 }).await, [9]);
    assert_eq!(
        door.ids("names", doc! { "_id": { "$gte": 490, "$lt": 493 } })
            .await,
        [490, 491, 492]
    );
    assert_eq!(
        door.ids("names", doc! {}).await,
        (0..500).collect::<Vec<_>>()
    );
    assert_eq!(door.ids("nothing", doc! {}).await, [] as [i32; 0]);
}

#[tokio::test]
async fn unknown_commands_and_arguments_get_mongodbs_errors() {
    let door = door();
    let reply = door.ask(doc! { "frobnicate": 1 }).await;
    assert_eq!(
        reply,
        doc! { "ok": 0.0, "errmsg": "no such command: 'frobnicate'", "code": 59, "codeName": "CommandNotFound" }
    );
    let reply = door.ask(doc! { "find": "a", "frob": 1 }).await;
    assert_eq!(reply.get_i32("code").ok(), Some(40415));
    assert_eq!(
        reply.get_str("errmsg").ok(),
        Some("BSON field 'find.frob' is an unknown field.")
    );
}
