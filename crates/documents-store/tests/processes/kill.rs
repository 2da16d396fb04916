//! Kills a writing process again and again. Every acknowledged write must survive, and documents, indexes and history
//! must stay consistent.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use forebay_documents_store::{IndexSpec, Store, StoreOptions};

use crate::common::operations::{Model, apply_to_model, apply_to_store, contents, replayed};
use crate::common::{assert_clean, create_index, small_buffers};

const ROUNDS: usize = 20;
/// Maximum number of operations between two syncs. A kill may lose these operations and the one in progress.
const UNSYNCED_MAX: u64 = 8;

/// Returns options with a history that is never trimmed.
pub fn options(directory: &Path) -> StoreOptions {
    StoreOptions {
        history_bytes_max: 1 << 30,
        ..small_buffers(directory)
    }
}

/// Body of the process to kill: writes and acknowledges operations.
pub fn child(directory: &Path, first: u64, seed: u64) {
    let store = Store::open(options(directory)).expect("recovers");
    let collection = store.collection_or_create("db", "c").expect("creates");
    if collection.indexes().len() == 1 {
        create_index(&collection, IndexSpec::ascending("tags")).expect("builds");
        create_index(&collection, IndexSpec::ascending("u").unique()).expect("builds");
    }
    println!("\nready");
    for at in first.. {
        apply_to_store(&collection, seed, at).expect("nothing forbids the change");
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

/// Runs the child and kills it after `life`. Returns the number of the first operation that was not acknowledged.
fn run_and_kill(directory: &Path, first: u64, seed: u64, life: Duration) -> u64 {
    let mut child = crate::child("kill", directory, &[first, seed])
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

pub fn nothing_acknowledged_is_lost_by_kills() {
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
