//! A mix of attacks on the server's memory, while another client goes on undisturbed: short here, ten minutes with
//! `FOREBAY_TEST_FULL`, where the other client's times are held to the limit too.
//!
//! The rule: the process never has more resident memory than before the attacks and 1.2 times `--memory-bytes-max`.

mod raw;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};
use forebay_testkit::{Server, is_full};
use forebay_wire_mongo::{Compressor, HEADER_BYTES, Header, OpMsg, compress};
use raw::Raw;

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");
const MEMORY_BYTES_MAX: u64 = 256 << 20;
/// Documents of the cached collection.
const NAMES: i32 = 50_000;
/// Documents of the other collection, and the bytes of each: all of them are one batch or less.
const LARGE: i32 = 6;
const LARGE_BYTES: usize = 15_000_000;
/// Conditions of one search.
const CONDITIONS: usize = 1000;
/// How long an attacker leaves the server with what it holds.
const HOLD: Duration = Duration::from_secs(2);
/// A server that does not answer within this time is stuck.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest time of a ping, but for one in a hundred, on two cores.
const PING_MAX: Duration = Duration::from_millis(100);
/// What every name holds.
const ALPHABET: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

fn connect(address: &str) -> Result<Raw> {
    Raw::connect(address, PATIENCE)
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
        done(&mut raw, insert)?;
    }
    let value = rawdoc! { "_id": 0, "text": "ab".repeat(2000) };
    done(
        &mut raw,
        rawdoc! { "insert": "groups", "$db": "d", "documents": [value] },
    )?;
    // What is read for the first time is no part of an attack.
    read_all(&mut raw)
}

fn read_all(raw: &mut Raw) -> Result<()> {
    for id in 0..LARGE {
        done(raw, find_large(id))?;
    }
    Ok(())
}

fn find_large(id: i32) -> RawDocumentBuf {
    rawdoc! { "find": "large", "filter": { "_id": id }, "$db": "d" }
}

/// [`CONDITIONS`] different conditions, which every name meets.
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

/// An attack on an address, once; whether the server did all that was asked for.
type Attack = fn(&str) -> Result<bool>;

/// The attacks, each with the number of clients that carry it out at the same time.
const ATTACKS: [(&str, Attack, usize); 6] = [
    ("conditions", conditions, 2),
    ("inflated", inflated, 4),
    ("unfinished", unfinished, 12),
    ("groups", groups, 2),
    ("cursors", cursors, 2),
    ("unread", unread, 3),
];

fn conditions(address: &str) -> Result<bool> {
    let reply = connect(address)?.ask(many_conditions())?;
    Ok(succeeded(&reply))
}

/// A few hundred bytes that inflate to fifteen megabytes, which the server holds while it waits for a change.
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

/// A message of which nothing or ten megabytes come.
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
        sleep(HOLD);
    }
    Ok(true)
}

/// A pattern of 8,000 groups, for which PCRE2 would take half a gigabyte to match four kilobytes.
fn groups(address: &str) -> Result<bool> {
    let pattern = format!("(*ANYCRLF){}(?:(a)|(b))*\\1[yz]", "()".repeat(8000));
    let count =
        rawdoc! { "count": "groups", "query": { "text": { "$regex": pattern } }, "$db": "d" };
    Ok(succeeded(&connect(address)?.ask(count)?))
}

/// Cursors over sorted documents of ninety megabytes, of which one is fetched.
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
    sleep(HOLD);
    Ok(fetched.into_iter().all(|fetched| fetched))
}

/// Replies of fifteen megabytes that the client does not read.
fn unread(address: &str) -> Result<bool> {
    let mut raw = connect(address)?;
    raw.send(&message(find_large(1)))?;
    sleep(HOLD);
    Ok(true)
}

/// Attacks again and again, and counts what was done and what was refused or cut.
fn attack(address: &str, attack: Attack, running: &AtomicBool, counts: &[AtomicU64; 2]) {
    while running.load(Ordering::Relaxed) {
        let done = attack(address).unwrap_or(false);
        counts[usize::from(done)].fetch_add(1, Ordering::Relaxed);
        if !done {
            sleep(Duration::from_millis(50));
        }
    }
}

/// What the well-behaved client has seen.
#[derive(Default)]
struct Seen {
    pings: Vec<Duration>,
    resident_bytes: u64,
}

/// The account of memory, as `serverStatus` shows it.
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

/// A client that does small things: each of them must succeed.
fn work(server: &Server, time: Duration) -> Result<Seen> {
    let mut raw = connect(server.process().address())?;
    let mut seen = Seen::default();
    let until = Instant::now() + time;
    let mut id = 0;
    // A slow machine takes longer until the account is full once.
    while Instant::now() < until || (!was_full(&mut raw)? && Instant::now() < until + PATIENCE) {
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
        seen.resident_bytes = seen
            .resident_bytes
            .max(resident.context("resident memory")?);
        sleep(Duration::from_millis(20));
    }
    seen.pings.sort_unstable();
    Ok(seen)
}

#[test]
fn attacks_on_memory_stay_within_the_account() -> Result<()> {
    let memory = MEMORY_BYTES_MAX.to_string();
    let server = Server::start(
        BINARY,
        &[
            "--memory-bytes-max",
            &memory,
            "--documents-store-cache-bytes",
            "16MiB",
            "--documents-change-history-bytes-max",
            "16MiB",
            "--devices",
            "host:2",
        ],
    )?;
    let address = server.process().address().to_owned();
    prepare(&address)?;
    let idle = server
        .process()
        .resident_bytes()
        .context("resident memory")?;
    let time = Duration::from_secs(if is_full() { 600 } else { 12 });
    let running = AtomicBool::new(true);
    let counts = [(); ATTACKS.len()].map(|()| [AtomicU64::new(0), AtomicU64::new(0)]);
    let seen = std::thread::scope(|scope| {
        for ((_, run, clients), counts) in ATTACKS.iter().zip(&counts) {
            for _ in 0..*clients {
                scope.spawn(|| attack(&address, *run, &running, counts));
            }
        }
        let seen = work(&server, time);
        running.store(false, Ordering::Relaxed);
        seen
    })?;
    for ((name, ..), [refused, done]) in ATTACKS.iter().zip(&counts) {
        println!("attack {name}: {done:?} done, {refused:?} refused or cut");
    }
    let rank = |part: usize| seen.pings[(seen.pings.len() - 1) * part / 100];
    let (p50, p99) = (rank(50), rank(99));
    let mib = |bytes: u64| bytes >> 20;
    println!(
        "attack: {} pings, p50 {p50:?}, p99 {p99:?}",
        seen.pings.len()
    );
    println!(
        "attack: resident {} MiB before, {} MiB at most",
        mib(idle),
        mib(seen.resident_bytes)
    );
    let mut raw = connect(&address)?;
    let account = account(&mut raw)?;
    println!("attack: {account:?}");
    let limit = account.get_i64("limitBytes")?;
    ensure!(account.get_i64("peakBytes")? > limit / 2, "{account:?}");
    ensure!(account.get_i64("refused")? > 0, "{account:?}");
    let most = idle + MEMORY_BYTES_MAX * 6 / 5;
    ensure!(
        seen.resident_bytes <= most,
        "{} MiB are more than {} MiB",
        mib(seen.resident_bytes),
        mib(most)
    );
    ensure!(!is_full() || p99 <= PING_MAX, "p99 of a ping: {p99:?}");
    // All is as it was: what the attackers held is given back.
    read_all(&mut raw)?;
    server.stop()
}
