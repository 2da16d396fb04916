//! Runs a mix of attacks on the server's memory while another client works undisturbed. With `FOREBAY_TEST_FULL`, the
//! test takes ten minutes and also checks the other client's latency.
//!
//! The requirement: the resident memory of the process, including code and caches, never exceeds 1.2 times
//! `--memory-bytes-max`.

mod raw;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};
use forebay_testkit::{Server, is_full, pace};
use forebay_wire_mongo::{Compressor, HEADER_BYTES, Header, OpMsg, compress};
use raw::Raw;

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");
const MEMORY_BYTES_MAX: u64 = 256 << 20;
/// Number of documents in the cached collection.
const NAMES: i32 = 50_000;
/// Number of documents in the collection of large documents, and bytes of each document.
const LARGE: i32 = 6;
const LARGE_BYTES: usize = 15_000_000;
/// Number of statements in an update.
const STATEMENTS: i32 = 100_000;
/// Number of conditions in a search.
const CONDITIONS: usize = 1000;
/// Number of elements of the arrays in an expression.
const EXPRESSION_ELEMENTS: i32 = 300_000;
/// Number of fields in a projection.
const PROJECTED_FIELDS: i32 = 500_000;
/// Time for which an attacker makes the server hold memory.
const HOLD: Duration = Duration::from_secs(2);
/// Timeout for a reply.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum p99 of a ping, on two cores.
const PING_MAX: Duration = Duration::from_millis(100);
const EXCEEDED_MEMORY_LIMIT: i32 = 146;
/// A substring of every name.
const ALPHABET: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

fn connect(address: &str) -> Result<Raw> {
    Raw::connect(address, TIMEOUT)
}

fn message(command: RawDocumentBuf) -> Vec<u8> {
    OpMsg::new(command).encode(1, 0)
}

fn succeeded(reply: &RawDocumentBuf) -> bool {
    reply.get_f64("ok").is_ok_and(|ok| ok == 1.0)
}

/// Runs a command that must succeed.
fn done(raw: &mut Raw, command: RawDocumentBuf) -> Result<RawDocumentBuf> {
    let reply = raw.ask(command)?;
    ensure!(succeeded(&reply), "{reply:?}");
    Ok(reply)
}

/// Retries a command until the server has memory for it. Memory becomes free while earlier writes are flushed to disk.
fn done_in_time(raw: &mut Raw, command: &RawDocumentBuf) -> Result<()> {
    let until = Instant::now() + TIMEOUT;
    loop {
        let reply = raw.ask(command.clone())?;
        if succeeded(&reply) {
            return Ok(());
        }
        let is_full = reply.get_i32("code")? == EXCEEDED_MEMORY_LIMIT;
        ensure!(is_full && Instant::now() < until, "{reply:?}");
        pace(Duration::from_millis(50));
    }
}

fn prepare(address: &str) -> Result<()> {
    let mut raw = connect(address)?;
    let create = rawdoc! {
        "createIndexes": "names", "$db": "d",
        "indexes": [{ "key": { "name": "cache" }, "name": "cached" }],
    };
    done(&mut raw, create)?;
    for first in (0..NAMES).step_by(10_000) {
        let documents = (first..first + 10_000).map(|id| {
            let name = format!("{id}{ALPHABET}");
            rawdoc! { "_id": id, "name": name }
        });
        let documents = RawArrayBuf::from_iter(documents);
        let insert = rawdoc! { "insert": "names", "$db": "d", "documents": documents };
        done(&mut raw, insert)?;
    }
    for id in 0..LARGE {
        let document = rawdoc! { "_id": id, "text": "x".repeat(LARGE_BYTES) };
        let insert = rawdoc! { "insert": "large", "$db": "d", "documents": [document] };
        done_in_time(&mut raw, &insert)?;
    }
    let value = rawdoc! { "_id": 0, "text": "ab".repeat(2000) };
    done(
        &mut raw,
        rawdoc! { "insert": "groups", "$db": "d", "documents": [value] },
    )?;
    // The first read, which loads caches, is not part of an attack.
    read_all(&mut raw)
}

fn read_all(raw: &mut Raw) -> Result<()> {
    for id in 0..LARGE {
        done_in_time(raw, &find_large(id))?;
    }
    Ok(())
}

fn find_large(id: i32) -> RawDocumentBuf {
    rawdoc! { "find": "large", "filter": { "_id": id }, "$db": "d" }
}

/// Returns a search with [`CONDITIONS`] different conditions. Every name meets all of them.
fn many_conditions() -> RawDocumentBuf {
    let begins = 0..ALPHABET.len();
    let parts = begins.flat_map(|begin| (begin + 2..=ALPHABET.len()).map(move |end| begin..end));
    let conditions = parts.take(CONDITIONS).map(|part| {
        let regex = &ALPHABET[part];
        rawdoc! { "name": { "$regex": regex } }
    });
    let conditions = RawArrayBuf::from_iter(conditions);
    rawdoc! { "count": "names", "query": { "$and": conditions }, "$db": "d" }
}

/// Attacks the server at an address once. Returns whether the server executed all commands.
type Attack = fn(&str) -> Result<bool>;

/// The attacks, each with the number of clients that carry it out concurrently.
const ATTACKS: [(&str, Attack, usize); 8] = [
    ("conditions", conditions, 2),
    ("inflated", inflated, 4),
    ("unfinished", unfinished, 12),
    ("groups", groups, 2),
    ("cursors", cursors, 2),
    ("unread", unread, 3),
    ("changed", changed, 16),
    ("updates", updates, 3),
];

fn conditions(address: &str) -> Result<bool> {
    let reply = connect(address)?.ask(many_conditions())?;
    Ok(succeeded(&reply))
}

/// Sends a few hundred bytes that inflate to 15 MB. The command waits for an event of a change stream, and the server
/// holds the inflated message meanwhile.
fn inflated(address: &str) -> Result<bool> {
    let mut raw = connect(address)?;
    let open = rawdoc! { "aggregate": "quiet", "pipeline": [{ "$changeStream": {} }], "cursor": {}, "$db": "d" };
    let opened = raw.ask(open)?;
    let Ok(cursor) = opened.get_document("cursor") else {
        return Ok(false);
    };
    let pad = "\0".repeat(LARGE_BYTES);
    let hold_ms = HOLD.as_millis() as i64;
    let more = rawdoc! { "getMore": cursor.get_i64("id")?, "collection": "quiet", "maxTimeMS": hold_ms, "comment": pad, "$db": "d" };
    raw.send(&compress(&message(more), Compressor::Zstd)?)?;
    Ok(succeeded(&raw.receive()?.body))
}

/// Sends a message that stops after its header, or after 10 MB.
fn unfinished(address: &str) -> Result<bool> {
    for sent in [0, 10_000_000] {
        let mut raw = connect(address)?;
        let mut bytes = Vec::new();
        Header {
            message_bytes: 48_000_000,
            request_id: 1,
            response_to: 0,
            op_code: 2013,
        }
        .write(&mut bytes);
        bytes.resize(HEADER_BYTES + sent, 0);
        raw.send(&bytes)?;
        pace(HOLD);
    }
    Ok(true)
}

/// Searches with a pattern of 8,000 groups, for which PCRE2 would need 500 MB to match 4 KB.
fn groups(address: &str) -> Result<bool> {
    let pattern = format!("(*ANYCRLF){}(?:(a)|(b))*\\1[yz]", "()".repeat(8000));
    let count =
        rawdoc! { "count": "groups", "query": { "text": { "$regex": pattern } }, "$db": "d" };
    Ok(succeeded(&connect(address)?.ask(count)?))
}

/// Opens several cursors, each over 90 MB of sorted documents, and fetches one document from each cursor.
fn cursors(address: &str) -> Result<bool> {
    let aggregate = rawdoc! {
        "aggregate": "large", "$db": "d", "cursor": { "batchSize": 0 },
        "pipeline": [{ "$set": { "z": { "$subtract": [0, "$_id"] } } }, { "$sort": { "z": -1 } }, { "$project": { "z": 1, "text": 1 } }],
    };
    let mut raw = connect(address)?;
    let mut fetched = Vec::new();
    for _ in 0..3 {
        let opened = raw.ask(aggregate.clone())?;
        let Ok(cursor) = opened.get_document("cursor") else {
            return Ok(false);
        };
        let more = rawdoc! { "getMore": cursor.get_i64("id")?, "collection": "large", "batchSize": 1, "$db": "d" };
        fetched.push(succeeded(&raw.ask(more)?));
    }
    pace(HOLD);
    Ok(fetched.into_iter().all(|fetched| fetched))
}

/// Requests a reply of 15 MB and does not read it.
fn unread(address: &str) -> Result<bool> {
    let mut raw = connect(address)?;
    raw.send(&message(find_large(1)))?;
    pace(HOLD);
    Ok(true)
}

/// Changes a document of 15 MB with a `findAndModify`, which replies with the document. The command has a transaction
/// number, so the server also keeps the reply, for retries.
fn changed(address: &str) -> Result<bool> {
    let reply = connect(address)?.ask(change_large()?)?;
    if succeeded(&reply) {
        let value = reply.get_document("value")?;
        ensure!(value.get_str("text")?.len() == LARGE_BYTES, "no document");
    }
    Ok(succeeded(&reply))
}

fn change_large() -> Result<RawDocumentBuf> {
    Ok(rawdoc! {
        "findAndModify": "large", "$db": "d", "query": { "_id": fastrand::i32(0..LARGE) },
        "update": { "$inc": { "n": 1 } }, "new": true, "lsid": session()?, "txnNumber": 1_i64,
    })
}

/// Sends a retryable update with the maximum number of statements.
fn updates(address: &str) -> Result<bool> {
    let update = rawdoc! { "q": { "_id": 1 }, "u": { "$inc": { "n": 1 } } };
    let updates = RawArrayBuf::from_iter((0..STATEMENTS).map(|_| update.clone()));
    let command = rawdoc! {
        "update": "names", "$db": "d", "updates": updates, "lsid": session()?, "txnNumber": 1_i64, "maxTimeMS": 10_000,
    };
    Ok(succeeded(&connect(address)?.ask(command)?))
}

/// Evaluates an expression whose intermediate values are arrays and documents of many elements.
fn expressions(address: &str) -> Result<bool> {
    let pair = rawdoc! { "k": { "$toString": "$$this" }, "v": "$$this" };
    let pairs = rawdoc! { "$map": { "input": { "$range": [0, EXPRESSION_ELEMENTS] }, "in": pair } };
    let object = rawdoc! { "$arrayToObject": pairs };
    let size = rawdoc! { "$size": { "$objectToArray": object } };
    find_one(address, rawdoc! { "size": size })
}

/// Groups documents, and keeps a string of 100 KB for each group.
fn accumulated(address: &str) -> Result<bool> {
    let text = "x".repeat(100_000);
    let aggregate = rawdoc! {
        "aggregate": "names", "$db": "d", "cursor": {}, "maxTimeMS": 10_000,
        "pipeline": [
            { "$group": { "_id": { "$mod": ["$_id", 5000] }, "last": { "$last": { "$literal": text } } } },
            { "$limit": 1 },
        ],
    };
    Ok(succeeded(&connect(address)?.ask(aggregate)?))
}

/// Finds a document with a projection of many fields, whose parsed form is larger than the command.
fn parsed(address: &str) -> Result<bool> {
    let mut projection = RawDocumentBuf::new();
    for field in 0..PROJECTED_FIELDS {
        projection.append(bson::raw::CString::try_from(format!("f{field}"))?, 1);
    }
    find_one(address, projection)
}

fn find_one(address: &str, projection: RawDocumentBuf) -> Result<bool> {
    let find = rawdoc! {
        "find": "names", "$db": "d", "projection": projection, "limit": 1, "maxTimeMS": 10_000,
    };
    Ok(succeeded(&connect(address)?.ask(find)?))
}

/// Creates an id for a new session.
fn session() -> Result<RawDocumentBuf> {
    let id = bson::Binary {
        subtype: bson::spec::BinarySubtype::Uuid,
        bytes: fastrand::u128(..).to_le_bytes().to_vec(),
    };
    Ok(rawdoc! { "id": id })
}

/// Attacks repeatedly. Counts attacks that were executed, and those that were refused or disconnected.
fn attack(address: &str, attack: Attack, running: &AtomicBool, counts: &[AtomicU64; 2]) {
    while running.load(Ordering::Relaxed) {
        let done = attack(address).unwrap_or(false);
        counts[usize::from(done)].fetch_add(1, Ordering::Relaxed);
        if !done {
            pace(Duration::from_millis(50));
        }
    }
}

/// The measurements of the well-behaved client.
#[derive(Default)]
struct Seen {
    pings: Vec<Duration>,
    resident_bytes: u64,
    /// The memory account shortly after the maximum of the resident memory.
    account: RawDocumentBuf,
}

/// Returns the memory account in `serverStatus`.
fn account(raw: &mut Raw) -> Result<RawDocumentBuf> {
    let status = done(raw, rawdoc! { "serverStatus": 1, "$db": "admin" })?;
    Ok(status
        .get_document("mem")?
        .get_document("requests")?
        .to_owned())
}

fn was_full(raw: &mut Raw) -> Result<bool> {
    Ok(account(raw)?.get_i64("refused")? > 0)
}

/// Runs small commands, all of which must succeed.
fn work(server: &Server, time: Duration) -> Result<Seen> {
    let mut raw = connect(server.process().address())?;
    let mut seen = Seen::default();
    let until = Instant::now() + time;
    let mut id = 0;
    // Continue until the memory account has been full, which takes longer on a slow machine.
    while Instant::now() < until || (!was_full(&mut raw)? && Instant::now() < until + TIMEOUT) {
        let began = Instant::now();
        done(&mut raw, rawdoc! { "ping": 1, "$db": "admin" })?;
        seen.pings.push(began.elapsed());
        id = (id + 1) % NAMES;
        let found = done(
            &mut raw,
            rawdoc! { "find": "names", "filter": { "_id": id }, "$db": "d" },
        )?;
        let batch = found.get_document("cursor")?.get_array("firstBatch")?;
        ensure!(batch.into_iter().count() == 1, "{found:?}");
        let resident = server.process().resident_bytes();
        let resident = resident.context("resident memory")?;
        if resident > seen.resident_bytes {
            seen.resident_bytes = resident;
            seen.account = account(&mut raw)?;
        }
        pace(Duration::from_millis(20));
    }
    seen.pings.sort_unstable();
    Ok(seen)
}

/// Runs a mix of attacks, and checks the measurements of the well-behaved client.
fn withstand(attacks: &[(&str, Attack, usize)]) -> Result<()> {
    let server = start()?;
    let address = server.process().address().to_owned();
    prepare(&address)?;
    let time = Duration::from_secs(if is_full() { 600 } else { 12 });
    let running = AtomicBool::new(true);
    let counts: Vec<_> = attacks
        .iter()
        .map(|_| [AtomicU64::new(0), AtomicU64::new(0)])
        .collect();
    let seen = std::thread::scope(|scope| {
        for ((_, run, clients), counts) in attacks.iter().zip(&counts) {
            for _ in 0..*clients {
                scope.spawn(|| attack(&address, *run, &running, counts));
            }
        }
        let seen = work(&server, time);
        running.store(false, Ordering::Relaxed);
        seen
    })?;
    for ((name, ..), [refused, done]) in attacks.iter().zip(&counts) {
        println!("attack {name}: {done:?} done, {refused:?} refused or cut");
    }
    check_limits(&seen)?;
    let account = account(&mut connect(&address)?)?;
    println!("attack: {account:?}");
    ensure!(account.get_i64("refused")? > 0, "{account:?}");
    // The server has released the memory that the attackers held.
    let mut raw = connect(&address)?;
    read_all(&mut raw)?;
    done_in_time(&mut raw, &change_large()?)?;
    server.stop()
}

/// Checks that latency and resident memory are within their limits.
fn check_limits(seen: &Seen) -> Result<()> {
    let rank = |part: usize| seen.pings[(seen.pings.len() - 1) * part / 100];
    let (p50, p99) = (rank(50), rank(99));
    let (resident, most) = (seen.resident_bytes >> 20, (MEMORY_BYTES_MAX * 6 / 5) >> 20);
    println!(
        "attack: {} pings, p50 {p50:?}, p99 {p99:?}",
        seen.pings.len()
    );
    let mib = |key: &str| seen.account.get_i64(key).map(|bytes| bytes >> 20);
    println!(
        "attack: resident {resident} MiB at most: {:?} MiB in shares, {:?} outside",
        mib("usedBytes")?,
        mib("outsideBytes")?
    );
    ensure!(resident <= most, "{resident} MiB are more than {most} MiB");
    ensure!(!is_full() || p99 <= PING_MAX, "p99 of a ping: {p99:?}");
    Ok(())
}

fn start() -> Result<Server> {
    let memory = MEMORY_BYTES_MAX.to_string();
    Server::start(
        BINARY,
        &[
            "--memory-bytes-max",
            &memory,
            "--mongodb-replica-set",
            "rs",
            "--documents-change-history-bytes-max",
            "16MiB",
            "--devices",
            "host:2",
        ],
    )
}

#[test]
fn attacks_on_memory_stay_within_the_account() -> Result<()> {
    withstand(&ATTACKS)
}

/// Runs only large writes, because small requests would take the memory that large ones wait for.
#[test]
fn large_writes_stay_within_the_account() -> Result<()> {
    withstand(&[("changed", changed, 16), ("updates", updates, 6)])
}

/// Runs commands that compute: expressions, groups and projections.
#[test]
fn computations_stay_within_the_account() -> Result<()> {
    withstand(&[
        ("expressions", expressions, 4),
        ("accumulated", accumulated, 2),
        ("parsed", parsed, 4),
    ])
}
