//! Sends bytes that no driver sends. The server answers with a clear error, or closes only that connection. Another
//! client keeps working and loses nothing.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bson::{Bson, Document, RawDocumentBuf, bson, doc, rawdoc};
use bytes::Bytes;
use forebay_testkit::{Server, seed};
use forebay_wire_mongo::{
    Body, Compressor, Flags, HEADER_BYTES, Header, Limits, Message, OpMsg, OpQuery, Sequence,
    compress,
};

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");
/// Timeout for a reply.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A client that can send any bytes.
struct Raw(TcpStream);

impl Raw {
    fn connect(server: &Server) -> Result<Raw> {
        let stream = TcpStream::connect(server.process().address())?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Raw(stream))
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.0.write_all(bytes)?)
    }

    /// Reads the next reply. Returns `None` if the server closed the connection.
    fn receive(&mut self) -> Result<Option<Message>> {
        let mut head = [0; HEADER_BYTES];
        match self.0.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                return Err(error.into());
            }
            Err(_) => return Ok(None),
        }
        let header = Header::parse(&head, &Limits::default())?;
        let mut frame = head.to_vec();
        frame.resize(header.message_bytes, 0);
        self.0.read_exact(&mut frame[HEADER_BYTES..])?;
        Ok(Some(Message::decode(
            Bytes::from(frame),
            &Limits::default(),
        )?))
    }

    /// Reads the body of the next reply.
    fn reply(&mut self) -> Result<RawDocumentBuf> {
        match self
            .receive()?
            .context("the server closed the connection")?
            .body
        {
            Body::Msg(message) => Ok(message.body),
            Body::Reply(reply) => Ok(reply.document),
            Body::Query(_) => anyhow::bail!("a query from the server"),
        }
    }

    fn ask(&mut self, bytes: &[u8]) -> Result<RawDocumentBuf> {
        self.send(bytes)?;
        self.reply()
    }

    fn ping(&mut self) -> Result<()> {
        let reply = self.ask(&message(rawdoc! { "ping": 1, "$db": "admin" }))?;
        ensure!(reply.get_f64("ok")? == 1.0, "{reply:?}");
        Ok(())
    }
}

fn message(body: RawDocumentBuf) -> Vec<u8> {
    OpMsg::new(body).encode(1, 0)
}

fn code(reply: &RawDocumentBuf) -> Result<i32> {
    ensure!(
        reply.get_f64("ok")? == 0.0,
        "this should have failed: {reply:?}"
    );
    Ok(reply.get_i32("code")?)
}

/// Makes a body with `depth` nested documents. Uses raw bytes, because the BSON library refuses deep nesting.
fn nested(depth: usize) -> Vec<u8> {
    let mut document = vec![5, 0, 0, 0, 0];
    for _ in 1..depth {
        let length = (document.len() + 8) as i32;
        document = [&length.to_le_bytes()[..], b"\x03a\0", &document, &[0]].concat();
    }
    document
}

/// Makes an `OP_MSG` with these bytes as its body.
fn around(body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Header {
        message_bytes: HEADER_BYTES + 5 + body.len(),
        request_id: 9,
        response_to: 0,
        op_code: 2013,
    }
    .write(&mut bytes);
    bytes.extend_from_slice(&[0; 5]);
    bytes.extend_from_slice(body);
    bytes
}

fn patched(mut bytes: Vec<u8>, at: usize, value: i32) -> Vec<u8> {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    bytes
}

#[test]
fn bad_content_is_answered_and_the_connection_stays_open() -> Result<()> {
    let server = Server::start(BINARY, &[])?;
    let mut raw = Raw::connect(&server)?;
    let unknown_type = [13, 0, 0, 0, 0x77, b'a', 0, 1, 0, 0, 0, 0, 0];
    assert_eq!(code(&raw.ask(&around(&unknown_type))?)?, 22);
    assert_eq!(code(&raw.ask(&around(&nested(201)))?)?, 15);
    assert_eq!(code(&raw.ask(&around(&nested(100_000)))?)?, 15);
    assert_eq!(code(&raw.ask(&message(rawdoc! { "ping": 1 }))?)?, 40571);
    assert_eq!(
        code(&raw.ask(&message(rawdoc! { "noSuchCommand": 1, "$db": "d" }))?)?,
        59
    );
    assert_eq!(code(&raw.ask(&message(rawdoc! { "$db": "d" }))?)?, 59);
    let huge = RawDocumentBuf::from_bytes(huge_body())?;
    assert_eq!(code(&raw.ask(&message(huge))?)?, 10334);
    let twice = OpMsg {
        sequences: vec![
            Sequence::new("documents", [&*rawdoc! { "a": 1 }]),
            Sequence::new("documents", []),
        ],
        ..OpMsg::new(rawdoc! { "insert": "c", "$db": "d" })
    };
    assert_eq!(code(&raw.ask(&twice.encode(1, 0))?)?, 40413);
    let unknown = OpMsg {
        sequences: vec![Sequence::new("pad", [&*rawdoc! { "a": 1 }])],
        ..OpMsg::new(rawdoc! { "ping": 1, "$db": "d" })
    };
    assert_eq!(code(&raw.ask(&unknown.encode(1, 0))?)?, 40415);
    raw.ping()
}

/// Returns `{insert: "c", $db: "d", pad: <17 MiB>}`.
fn huge_body() -> Vec<u8> {
    let pad = "x".repeat(17 << 20);
    rawdoc! { "insert": "c", "$db": "d", "pad": pad }.into_bytes()
}

#[test]
fn broken_frames_end_their_connection_alone() -> Result<()> {
    let server = Server::start(BINARY, &[])?;
    let mut neighbour = Raw::connect(&server)?;
    let ping = message(rawdoc! { "ping": 1, "$db": "admin" });
    let checked = OpMsg {
        flags: Flags::CHECKSUM_PRESENT,
        ..OpMsg::new(rawdoc! { "ping": 1, "$db": "admin" })
    };
    let mut wrong_checksum = checked.encode(1, 0);
    *wrong_checksum
        .last_mut()
        .context("a message is not empty")? ^= 1;
    let compressed = compress(&ping, Compressor::Zlib)?;
    let broken = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        patched(ping.clone(), 0, 15),
        patched(ping.clone(), 0, -1),
        patched(ping.clone(), 0, 48_000_001),
        patched(ping.clone(), 12, 2002),
        patched(ping.clone(), 16, 1 << 7),
        patched(ping.clone(), 21, 1_000_000),
        wrong_checksum,
        patched(compressed.clone(), 20, i32::MAX),
        patched(compressed, 16, 2012),
    ];
    for (case, bytes) in broken.iter().enumerate() {
        let mut raw = Raw::connect(&server)?;
        raw.send(bytes)?;
        ensure!(raw.receive()?.is_none(), "case {case} was answered");
        neighbour
            .ping()
            .with_context(|| format!("beside case {case}"))?;
    }
    Ok(())
}

#[test]
fn cut_messages_and_silent_clients_disturb_no_other_client() -> Result<()> {
    let server = Server::start(
        BINARY,
        &[
            "--message-timeout-ms",
            "200",
            "--handshake-timeout-ms",
            "200",
        ],
    )?;
    let ping = message(rawdoc! { "ping": 1, "$db": "admin" });
    let mut neighbour = Raw::connect(&server)?;
    neighbour.ping()?;
    for length in 0..ping.len() {
        let mut raw = Raw::connect(&server)?;
        raw.send(&ping[..length])?;
        raw.0.shutdown(Shutdown::Write)?;
        ensure!(
            raw.receive()?.is_none(),
            "a message cut to {length} bytes was answered"
        );
    }
    let mut stalled = Raw::connect(&server)?;
    stalled.send(&ping[..20])?;
    let mut silent = Raw::connect(&server)?;
    ensure!(
        stalled.receive()?.is_none() && silent.receive()?.is_none(),
        "slow clients are cut off"
    );
    neighbour.ping()
}

#[test]
fn connections_beyond_the_limit_are_refused() -> Result<()> {
    let server = Server::start(BINARY, &["--connections-max", "2"])?;
    let mut first = Raw::connect(&server)?;
    let mut second = Raw::connect(&server)?;
    first.ping()?;
    second.ping()?;
    let mut third = Raw::connect(&server)?;
    ensure!(third.receive()?.is_none(), "the third of two connections");
    first.ping()
}

#[test]
fn old_handshakes_are_answered() -> Result<()> {
    let server = Server::start(BINARY, &[])?;
    let mut raw = Raw::connect(&server)?;
    let query = |collection: &str, query| OpQuery {
        flags: 0,
        full_collection_name: collection.to_owned(),
        skip: 0,
        number_to_return: -1,
        query,
    };
    for name in ["isMaster", "ismaster", "hello"] {
        let reply = raw.ask(&query("admin.$cmd", one(name)?).encode(1))?;
        assert_eq!(reply.get_f64("ok")?, 1.0, "{name}");
        assert_eq!(reply.get_i32("maxWireVersion")?, 21, "{name}");
    }
    let refused = raw.ask(&query("admin.$cmd", rawdoc! { "ping": 1 }).encode(1))?;
    assert_eq!(code(&refused)?, 352);
    assert_eq!(
        code(&raw.ask(&query("db.things", rawdoc! {}).encode(1))?)?,
        352
    );
    raw.ping()
}

/// Returns `{name: 1}`.
fn one(name: &str) -> Result<RawDocumentBuf> {
    Ok(RawDocumentBuf::try_from(doc! { name: 1 })?)
}

#[test]
fn unanswered_writes_are_applied_in_order() -> Result<()> {
    let server = Server::start(BINARY, &[])?;
    let mut raw = Raw::connect(&server)?;
    for id in 0..100 {
        let insert = rawdoc! { "insert": "c", "documents": [{ "_id": id }], "writeConcern": { "w": 0 }, "$db": "d" };
        raw.send(
            &OpMsg {
                flags: Flags::MORE_TO_COME,
                ..OpMsg::new(insert)
            }
            .encode(1, 0),
        )?;
    }
    let reply = raw.ask(&message(rawdoc! { "count": "c", "$db": "d" }))?;
    assert_eq!(reply.get_i32("n")?, 100);
    Ok(())
}

#[test]
fn every_compressor_is_supported() -> Result<()> {
    let server = Server::start(BINARY, &[])?;
    let mut raw = Raw::connect(&server)?;
    let hello =
        rawdoc! { "hello": 1, "compression": ["zstd", "lz77", "snappy", "zlib"], "$db": "admin" };
    let offered = raw.ask(&message(hello))?;
    let offered: Document = offered.try_into()?;
    assert_eq!(
        offered.get_array("compression")?,
        &vec!["zstd".into(), "snappy".into(), "zlib".into()]
    );
    let ping = message(rawdoc! { "ping": 1, "$db": "admin" });
    for compressor in Compressor::OFFERED {
        raw.send(&compress(&ping, compressor)?)?;
        let reply = raw.receive()?.context("a reply")?;
        assert_eq!(
            (reply.compressor, reply.header.response_to),
            (Some(compressor), 1)
        );
    }
    Ok(())
}

#[test]
fn exhaust_cursors_send_every_batch_without_a_getmore() -> Result<()> {
    let server = Server::start(BINARY, &[])?;
    let mut raw = Raw::connect(&server)?;
    let documents: Vec<RawDocumentBuf> = (0..10).map(|id| rawdoc! { "_id": id }).collect();
    let sequence = Sequence::new("documents", documents.iter().map(|document| &**document));
    let insert = OpMsg {
        sequences: vec![sequence],
        ..OpMsg::new(rawdoc! { "insert": "c", "$db": "d" })
    };
    assert_eq!(raw.ask(&insert.encode(1, 0))?.get_i32("n")?, 10);
    let first = raw.ask(&message(
        rawdoc! { "find": "c", "batchSize": 1, "$db": "d" },
    ))?;
    let cursor = first.get_document("cursor")?.get_i64("id")?;
    let more = rawdoc! { "getMore": cursor, "collection": "c", "batchSize": 4, "$db": "d" };
    raw.send(
        &OpMsg {
            flags: Flags::EXHAUST_ALLOWED,
            ..OpMsg::new(more)
        }
        .encode(77, 0),
    )?;
    let mut answers_to = 77;
    let mut count = 0;
    loop {
        let reply = raw.receive()?.context("a batch")?;
        assert_eq!(reply.header.response_to, answers_to);
        answers_to = reply.header.request_id;
        let Body::Msg(batch) = reply.body else {
            anyhow::bail!("not OP_MSG")
        };
        let cursor = batch.body.get_document("cursor")?;
        count += cursor.get_array("nextBatch")?.into_iter().count();
        let more = batch.flags.has(Flags::MORE_TO_COME);
        assert_eq!(more, cursor.get_i64("id")? != 0);
        if !more {
            break;
        }
    }
    assert_eq!(count, 9);
    raw.ping()
}

/// Sends random mutations of valid messages over several connections, while a driver inserts and counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_working_client_notices_nothing_of_garbage() -> Result<()> {
    let server = Server::start(BINARY, &["--message-timeout-ms", "500"])?;
    let things = server
        .client()
        .await?
        .database("d")
        .collection::<Document>("things");
    let address = server.process().address().to_owned();
    let seed = seed("garbage");
    let garbage = tokio::task::spawn_blocking(move || throw_garbage(&address, seed));
    let mut inserted = 0;
    while !garbage.is_finished() || inserted < 100 {
        things.insert_one(doc! { "_id": inserted }).await?;
        inserted += 1;
        assert_eq!(things.count_documents(doc! {}).await?, inserted as u64);
    }
    garbage.await??;
    Ok(())
}

fn throw_garbage(address: &str, seed: u64) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let insert = message(
        rawdoc! { "insert": "garbage", "documents": [{ "a": [1, { "b": "c" }] }], "$db": "g" },
    );
    let find = message(
        rawdoc! { "find": "garbage", "filter": { "a": { "$regex": "^c", "$options": "i" } }, "$db": "g" },
    );
    for _ in 0..300 {
        let mut stream = TcpStream::connect(address)?;
        let mut bytes = if random.bool() {
            insert.clone()
        } else {
            find.clone()
        };
        for _ in 0..random.usize(1..6) {
            let at = random.usize(16..bytes.len());
            bytes[at] = random.u8(..);
        }
        let length = if random.u8(..4) == 0 {
            random.usize(..bytes.len())
        } else {
            bytes.len()
        };
        let _ = stream.write_all(&bytes[..length]);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read(&mut [0; 1024]);
    }
    Ok(())
}

/// Returns an expression that takes years to evaluate.
fn endless() -> Bson {
    (0..5).fold(Bson::from("$$value"), |inner, _| {
        bson!({ "$reduce": { "input": { "$range": [0, 10_000] }, "initialValue": 0, "in": inner } })
    })
}

/// Returns whether a command with this comment is in progress.
fn is_running(watcher: &mut Raw, comment: &str) -> Result<bool> {
    let reply = watcher.ask(&message(rawdoc! { "currentOp": 1, "$db": "admin" }))?;
    let reply = Document::try_from(reply)?;
    Ok(reply.get_array("inprog")?.iter().any(|operation| {
        let command = operation
            .as_document()
            .and_then(|operation| operation.get_document("command").ok());
        command.is_some_and(|command| command.get_str("comment").ok() == Some(comment))
    }))
}

#[test]
fn a_command_ends_when_its_client_leaves() -> Result<()> {
    let server = Server::start(BINARY, &["--memory"])?;
    let mut watcher = Raw::connect(&server)?;
    let insert = doc! { "insert": "c", "documents": [{ "a": 1 }], "$db": "d" };
    watcher.ask(&message(RawDocumentBuf::try_from(&insert)?))?;
    let never = doc! { "$expr": { "$eq": [endless(), 1] } };
    let commands = [
        doc! { "find": "c", "filter": never.clone() },
        doc! { "count": "c", "query": never },
        doc! { "aggregate": "c", "pipeline": [{ "$project": { "a": endless() } }], "cursor": {} },
    ];
    for (index, mut command) in commands.into_iter().enumerate() {
        let comment = format!("endless {index}");
        command.extend(doc! { "comment": &comment, "$db": "d" });
        let mut leaver = Raw::connect(&server)?;
        leaver.send(&message(RawDocumentBuf::try_from(&command)?))?;
        let sent = Instant::now();
        while !is_running(&mut watcher, &comment)? {
            ensure!(sent.elapsed() < TIMEOUT, "{command} does not start");
        }
        drop(leaver);
        let left = Instant::now();
        while is_running(&mut watcher, &comment)? {
            ensure!(
                left.elapsed() < TIMEOUT,
                "{command} runs on without its client"
            );
        }
    }
    server.stop()
}
