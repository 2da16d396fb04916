//! A process that writes is killed again and again: what it acknowledged is there, all of it fits together.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bson::{RawBson, RawDocument, RawDocumentBuf, rawdoc};
use common::{assert_clean, create_index, small_buffers};
use forebay_store::{Change, ChangeEvent, ChangeKind, Collection, IndexSpec, Store, StoreOptions};

const DIRECTORY: &str = "FOREBAY_STORE_KILL_DIRECTORY";
const FIRST: &str = "FOREBAY_STORE_KILL_FIRST";
const SEED: &str = "FOREBAY_STORE_KILL_SEED";

const ROUNDS: usize = 20;
const IDS: i64 = 400;
/// Operations between two syncs, and so the most that a kill may leave in doubt, with one that is under way.
const UNSYNCED_MAX: u64 = 8;

/// An operation on one or several documents, known from its number alone.
enum Operation {
    Put(Vec<i64>),
    Remove(Vec<i64>),
}

fn operation(seed: u64, at: u64) -> Operation {
    let mut random =
        fastrand::Rng::with_seed(seed.wrapping_add(at.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    let count = if random.u8(..) < 8 {
        300
    } else {
        random.usize(1..4)
    };
    let first = random.i64(0..IDS);
    let ids = (0..count).map(|step| (first + step as i64 * 7) % IDS);
    let mut ids: Vec<i64> = ids.collect();
    ids.sort_unstable();
    ids.dedup();
    if random.u8(..) < 80 {
        Operation::Remove(ids)
    } else {
        Operation::Put(ids)
    }
}

fn document(id: i64, at: u64) -> RawDocumentBuf {
    rawdoc! { "_id": id, "at": at as i64, "tags": [at as i64 % 5, id % 3], "u": format!("{id}-{at}"), "pad": "x".repeat((at % 200) as usize) }
}

type Model = BTreeMap<i64, u64>;

fn apply_to_model(model: &mut Model, seed: u64, at: u64) {
    match operation(seed, at) {
        Operation::Put(ids) => model.extend(ids.into_iter().map(|id| (id, at))),
        Operation::Remove(ids) => model.retain(|id, _| !ids.contains(id)),
    }
}

fn apply_to_store(collection: &Collection, seed: u64, at: u64) {
    let number = |id: i64| {
        collection
            .number_by_id(RawBson::Int64(id).as_raw_bson_ref())
            .expect("reads")
    };
    let (ids, put) = match operation(seed, at) {
        Operation::Put(ids) => (ids, true),
        Operation::Remove(ids) => (ids, false),
    };
    let documents: Vec<(Option<u64>, RawDocumentBuf)> = ids
        .iter()
        .map(|id| (number(*id), document(*id, at)))
        .collect();
    let change = |(number, document)| match (number, put) {
        (Some(number), true) if at.is_multiple_of(2) => Some(Change::Replace(number, document)),
        (Some(number), true) => Some(Change::Update(number, document)),
        (None, true) => Some(Change::Insert(document)),
        (Some(number), false) => Some(Change::Delete(number)),
        (None, false) => None,
    };
    let changes: Vec<Change<'_>> = documents
        .iter()
        .filter_map(|(number, document)| change((*number, document.as_ref())))
        .collect();
    for answer in collection.write(&changes, true) {
        answer.expect("nothing forbids the change");
    }
}

/// With a history that keeps everything.
fn options(directory: &Path) -> StoreOptions {
    StoreOptions {
        history_bytes_max: 1 << 30,
        ..small_buffers(directory)
    }
}

/// The process to kill. Does nothing when run as a test of its own.
#[test]
fn child() {
    let Ok(directory) = std::env::var(DIRECTORY) else {
        return;
    };
    let number = |name: &str| {
        std::env::var(name)
            .expect("the parent sets it")
            .parse::<u64>()
            .expect("a number")
    };
    let (first, seed) = (number(FIRST), number(SEED));
    let store = Store::open(options(Path::new(&directory))).expect("recovers");
    let collection = store.collection_or_create("db", "c").expect("creates");
    if collection.indexes().len() == 1 {
        create_index(&collection, IndexSpec::ascending("tags")).expect("builds");
        create_index(&collection, IndexSpec::ascending("u").unique()).expect("builds");
    }
    println!("\nready");
    for at in first.. {
        apply_to_store(&collection, seed, at);
        if fastrand::u64(..UNSYNCED_MAX) == 0 || (at + 1) % UNSYNCED_MAX == 0 {
            store.sync().expect("syncs");
            println!("\nacknowledged {at}");
        }
        if at % 97 == 0 {
            store
                .collection_or_create("db", &format!("other{}", at % 3))
                .expect("creates");
            store
                .drop_collection("db", &format!("other{}", (at + 1) % 3))
                .expect("drops");
        }
    }
}

/// Runs the child for a while and kills it; gives the number of operations it acknowledged.
fn run_and_kill(directory: &Path, first: u64, seed: u64, life: Duration) -> u64 {
    let program = std::env::current_exe().expect("this test has a file");
    let mut child = Command::new(program)
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .env(FIRST, first.to_string())
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("starts");
    let lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
    let mut acknowledged = first;
    let mut deadline = None;
    for line in lines.map_while(Result::ok) {
        if line == "ready" {
            deadline = Some(Instant::now() + life);
        }
        if let Some(at) = line.strip_prefix("acknowledged ") {
            acknowledged = at.parse::<u64>().expect("a number") + 1;
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            child.kill().expect("kills");
            deadline = None;
        }
    }
    let status = child.wait().expect("ends");
    assert!(!status.success(), "the child ends by the kill only");
    acknowledged
}

fn contents(collection: &Collection) -> Model {
    let read = |record: forebay_store::Result<(u64, forebay_store::Document)>| {
        let (_, document) = record.expect("reads");
        let (id, at) = (
            document.get_i64("_id").expect("has an id"),
            document.get_i64("at").expect("has a time"),
        );
        assert_eq!(
            *document.raw(),
            *self::document(id, at as u64),
            "the document is whole"
        );
        (id, at as u64)
    };
    collection.scan(0).map(read).collect()
}

/// What the changes since the beginning make of an empty collection.
fn replayed(store: &Store) -> Model {
    let history = store.history().expect("a history is kept");
    let (mut model, mut after) = (Model::new(), history.first());
    while after < history.last() {
        for change in history.read(after, history.last()).expect("reads") {
            after = change.at;
            if change.namespace.name == "c" {
                replay(&mut model, &change);
            }
        }
    }
    model
}

fn replay(model: &mut Model, change: &ChangeEvent) {
    let detail = &change.detail;
    let number = |document: &RawDocument, name| document.get_i64(name).expect("a number");
    match change.kind {
        ChangeKind::Insert | ChangeKind::Replace => {
            let before = model.insert(number(detail, "_id"), number(detail, "at") as u64);
            assert_eq!(before.is_some(), change.kind == ChangeKind::Replace);
        }
        ChangeKind::Update => {
            let key = detail.get_document("documentKey").expect("a key");
            let description = detail.get_document("updateDescription").expect("there");
            let fields = description.get_document("updatedFields").expect("there");
            let before = model.insert(number(key, "_id"), number(fields, "at") as u64);
            assert!(before.is_some());
        }
        ChangeKind::Delete => assert!(model.remove(&number(detail, "_id")).is_some()),
        other => panic!("nobody did {other:?}"),
    }
}

#[test]
fn nothing_acknowledged_is_lost_by_kills() {
    let seed = std::env::var("FOREBAY_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(0x5EED);
    println!("FOREBAY_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (mut model, mut first) = (Model::new(), 0);
    for round in 0..ROUNDS {
        let life = Duration::from_micros(random.u64(0..300_000));
        let acknowledged = run_and_kill(directory.path(), first, seed, life);
        let store = Store::open(options(directory.path())).expect("recovers");
        let Some(collection) = store.collection("db", "c") else {
            assert_eq!(acknowledged, 0);
            continue;
        };
        (first..acknowledged).for_each(|at| apply_to_model(&mut model, seed, at));
        first = acknowledged;
        let found = contents(&collection);
        while found != model {
            assert!(
                first <= acknowledged + UNSYNCED_MAX,
                "round {round}: no state after {acknowledged} operations fits"
            );
            apply_to_model(&mut model, seed, first);
            first += 1;
        }
        assert_eq!(
            replayed(&store),
            model,
            "round {round}: history and documents agree"
        );
        for collection in store.all_collections() {
            assert_clean(&collection);
        }
    }
    println!("{first} operations over {ROUNDS} kills");
}
