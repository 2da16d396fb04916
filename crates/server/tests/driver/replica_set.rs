//! A server that describes itself as a replica set with one member: its hello, and retried writes.

use std::process::Command;
use std::time::Duration;

use crate::raw::Raw;
use anyhow::{Result, ensure};
use bson::spec::BinarySubtype;
use bson::{Binary, RawDocumentBuf, doc, rawdoc};
use forebay_testkit::{Server, is_full, seed};
use forebay_wire_mongo::{Flags, OpMsg};
use mongodb::options::ClientOptions;
use mongodb::{Client, Collection};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");
/// Timeout for a reply.
const TIMEOUT: Duration = Duration::from_secs(60);

fn connect(server: &Server) -> Result<Raw> {
    Raw::connect(server.process().address(), TIMEOUT)
}

/// Encodes a message with flags.
fn flagged(body: RawDocumentBuf, flags: Flags) -> Vec<u8> {
    let message = OpMsg {
        flags,
        ..OpMsg::new(body)
    };
    message.encode(1, 0)
}

/// Makes a hello that the server answers as soon as the server's topology version differs from `known`.
fn awaiting(known: &RawDocumentBuf, max_await_ms: i64) -> Result<RawDocumentBuf> {
    let version = known.get_document("topologyVersion")?.to_owned();
    Ok(
        rawdoc! { "hello": 1, "topologyVersion": version, "maxAwaitTimeMS": max_await_ms, "$db": "admin" },
    )
}

fn hello() -> RawDocumentBuf {
    rawdoc! { "hello": 1, "$db": "admin" }
}

#[test]
fn hello_describes_a_primary_and_is_awaited_until_the_server_stops() -> Result<()> {
    let server = Server::start(BINARY, &["--mongodb-replica-set", "rs0/localhost:27017"])?;
    let mut raw = connect(&server)?;
    let answer = raw.ask(hello())?;
    assert_eq!(answer.get_str("setName")?, "rs0");
    for name in ["me", "primary"] {
        assert_eq!(answer.get_str(name)?, "localhost:27017");
    }
    assert!(answer.get_bool("isWritablePrimary")? && !answer.get_bool("secondary")?);
    let again = raw.ask(awaiting(&answer, 1)?)?;
    let version =
        |reply: &RawDocumentBuf| reply.get_document("topologyVersion").map(ToOwned::to_owned);
    assert_eq!(version(&again)?, version(&answer)?);
    // A hello with another process's topology version is answered at once.
    let stranger = rawdoc! { "topologyVersion": { "processId": bson::oid::ObjectId::new(), "counter": 0_i64 } };
    raw.ask(awaiting(&stranger, 3_600_000)?)?;
    let alone = raw.ask(rawdoc! { "hello": 1, "maxAwaitTimeMS": 5, "$db": "admin" })?;
    assert_eq!(alone.get_i32("code")?, 31368);

    let mut streaming = connect(&server)?;
    streaming.send(&flagged(awaiting(&answer, 1)?, Flags::EXHAUST_ALLOWED))?;
    for _ in 0..3 {
        assert!(continues(&streaming.receive()?)?);
    }
    // The first reply comes at once, because the hello has another process's topology version; the second is delayed.
    let mut held = connect(&server)?;
    held.send(&flagged(
        awaiting(&stranger, 50_000)?,
        Flags::EXHAUST_ALLOWED,
    ))?;
    assert!(continues(&held.receive()?)?);
    raw.ask(hello())?;
    let id = i32::try_from(server.process().id())?;
    kill(Pid::from_raw(id), Signal::SIGTERM)?;
    assert!(!continues(&held.receive()?)?);
    while continues(&streaming.receive()?)? {}
    Ok(())
}

/// Returns whether more replies follow this hello reply. The last reply reports that the server stops.
fn continues(reply: &OpMsg) -> Result<bool> {
    let more = reply.flags.has(Flags::MORE_TO_COME);
    if more {
        assert_eq!(reply.body.get_f64("ok")?, 1.0)
    } else {
        assert_eq!(reply.body.get_i32("code")?, 91)
    }
    Ok(more)
}

#[test]
fn a_standalone_can_be_awaited_too() -> Result<()> {
    let server = Server::start(BINARY, &[])?;
    let mut raw = connect(&server)?;
    let answer = raw.ask(hello())?;
    assert!(answer.get("setName")?.is_none());
    let again = raw.ask(awaiting(&answer, 1)?)?;
    assert!(again.get_bool("isWritablePrimary")?);
    let refused =
        raw.ask(rawdoc! { "configureFailPoint": "failCommand", "mode": "off", "$db": "admin" })?;
    assert_eq!(refused.get_i32("code")?, 59);
    server.stop()
}

/// Makes a command with a transaction number that increments a field of a document.
fn increment(number: i64) -> RawDocumentBuf {
    let id = Binary {
        subtype: BinarySubtype::Uuid,
        bytes: vec![7; 16],
    };
    let update = rawdoc! { "q": { "_id": 1 }, "u": { "$inc": { "n": 1 } }, "upsert": true };
    rawdoc! { "update": "c", "updates": [update], "lsid": { "id": id }, "txnNumber": number, "$db": "test" }
}

#[test]
fn a_write_that_is_retried_after_a_kill_is_applied_once() -> Result<()> {
    let mut random = fastrand::Rng::with_seed(seed("replica set"));
    let mut server = Server::start(
        BINARY,
        &["--mongodb-replica-set", "rs0", "--devices", "host:1"],
    )?;
    let rounds = if is_full() { 60 } else { 6 };
    for number in 1..=rounds {
        let mut raw = connect(&server)?;
        raw.send(&flagged(increment(number), Flags::default()))?;
        match random.u8(0..4) {
            0 => {}
            1 => std::thread::yield_now(),
            _ => drop(raw.receive()?),
        }
        server.kill();
        server.restart()?;
        let reply = connect(&server)?.ask(increment(number))?;
        assert_eq!(reply.get_i32("n")?, 1, "{reply:?}");
    }
    let mut raw = connect(&server)?;
    let older = raw.ask(increment(1))?;
    assert_eq!(older.get_i32("code")?, 225);
    let find = raw.ask(rawdoc! { "find": "c", "$db": "test" })?;
    let batch = find.get_document("cursor")?.get_array("firstBatch")?;
    let first = batch.get_document(0)?;
    assert_eq!(i64::from(first.get_i32("n")?), rounds);
    server.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_retries_writes_whose_replies_are_lost() -> Result<()> {
    let server = Server::start(
        BINARY,
        &["--mongodb-replica-set", "rs0", "--mongodb-test-commands"],
    )?;
    let mut options = ClientOptions::parse(server.uri()).await?;
    options.repl_set_name = Some("rs0".to_owned());
    let client = Client::with_options(options)?;
    let things: Collection<bson::Document> = client.database("test").collection("things");
    let admin = client.database("admin");
    let lose_reply =
        doc! { "configureFailPoint": "onPrimaryTransactionalWrite", "mode": { "times": 1 } };
    admin.run_command(lose_reply.clone()).await?;
    things.insert_one(doc! { "_id": 1, "n": 0 }).await?;
    admin.run_command(lose_reply.clone()).await?;
    let updated = things
        .update_one(doc! { "_id": 1 }, doc! { "$inc": { "n": 1 } })
        .await?;
    assert_eq!(updated.modified_count, 1);
    admin.run_command(lose_reply).await?;
    let found = things
        .find_one_and_update(doc! { "_id": 1 }, doc! { "$inc": { "n": 1 } })
        .await?;
    assert_eq!(found, Some(doc! { "_id": 1, "n": 1 }));
    let data = doc! { "failCommands": ["delete"], "errorCode": 91 };
    let stopping =
        doc! { "configureFailPoint": "failCommand", "mode": { "times": 1 }, "data": data };
    admin.run_command(stopping).await?;
    let deleted = things.delete_one(doc! { "n": 2 }).await?;
    ensure!(deleted.deleted_count == 1, "{deleted:?}");
    let mut session = client.start_session().await?;
    session.start_transaction().await?;
    let refused = things.insert_one(doc! {}).session(&mut session).await;
    ensure!(refused.is_err_and(|error| error.to_string().contains("transactions")));
    server.stop()
}

#[test]
fn commands_do_not_follow_the_address_of_the_replica_set() -> Result<()> {
    let server = Server::start(
        BINARY,
        &["--mongodb-replica-set", "rs0/db.example.invalid:27017"],
    )?;
    let listed = Command::new(BINARY)
        .args(["devices", "list", "--uri", server.uri()])
        .output()?;
    let said = String::from_utf8_lossy(&listed.stderr);
    ensure!(listed.status.success(), "{said}");
    server.stop()
}
