//! The store under limits of the operating system: a limit on open files, and a limit on the size of files, which
//! simulates a full disk.

use std::fs::File;
use std::path::Path;
use std::process::Output;

use bson::{RawDocumentBuf, rawdoc};
use fastrand::Rng;
use forebay_documents_store::{Collection, IndexSpec, Result, Store, StoreError, StoreOptions};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::common::operations::{Model, apply_to_model, apply_to_store, contents, replayed};
use crate::common::{assert_clean, create_index};
use crate::kill;

/// Maximum bytes of a file: a little more than fjall preallocates for a journal.
const FILE_BYTES_MAX: u64 = 66 << 20;
/// Number of restarts of a store whose writes fail.
const LIVES: u64 = 60;
/// Number of stores tested with `FOREBAY_TEST_FULL=1`, each with `LIVES` restarts.
const STORES_FULL: u64 = 20;
/// Maximum number of operations between two restarts.
const OPERATIONS_MAX: u64 = 200;

/// Returns options with write buffers so large that only the journal grows.
fn options(directory: &Path) -> StoreOptions {
    StoreOptions {
        write_buffer_bytes: 1 << 30,
        journal_bytes_max: 1 << 30,
        ..StoreOptions::directory(directory)
    }
}

fn document(id: i64) -> RawDocumentBuf {
    rawdoc! { "_id": id, "pad": "x".repeat(500_000) }
}

/// Sets a limit of this process; `None` sets the highest possible limit.
fn limit(resource: Resource, most: Option<u64>) {
    let (_, hard) = getrlimit(resource).expect("has a limit");
    let soft = most.map_or(hard, |most| most.min(hard));
    setrlimit(resource, soft, hard).expect("a lower limit may be set");
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes))
        .concat()
}

/// Body of a child that syncs when no file descriptor is left.
pub fn child_without_descriptors(directory: &Path) {
    limit(Resource::RLIMIT_NOFILE, Some(200));
    let store = Store::open(options(directory)).expect("opens");
    let collection = store.collection_or_create("db", "c").expect("creates");
    let held: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(held.len() > 10, "{} were left", held.len());
    for id in 0..3 {
        collection.insert(&document(id)).expect("is taken");
        store.sync().expect("needs no new descriptor");
    }
    store.check_writable().expect("nothing failed");
}

pub fn a_sync_needs_no_file_descriptor() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let child = crate::child("descriptors", directory.path(), &[]).output();
    let output = child.expect("runs");
    assert!(output.status.success(), "{}", text(&output));
    let store = Store::open(options(directory.path())).expect("recovers");
    let collection = store.collection("db", "c").expect("is there");
    assert_eq!(collection.document_count(), 3);
}

/// Inserts documents until one is refused. Returns the number of documents that the collection then has, and the error.
fn fill(collection: &Collection) -> (i64, StoreError) {
    let refused = |id| {
        let error = collection.insert(&document(id)).err()?;
        Some((id, error))
    };
    (0..1_000).find_map(refused).expect("the limit is reached")
}

/// Body of a child that fills the disk.
pub fn child_on_full_disk(directory: &Path) {
    limit(Resource::RLIMIT_FSIZE, Some(FILE_BYTES_MAX));
    let store = Store::open(options(directory)).expect("opens");
    let collection = store.collection_or_create("db", "c").expect("creates");
    let (taken, error) = fill(&collection);
    assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
    let again = collection
        .insert(&document(taken))
        .expect_err("writes are refused");
    assert!(
        matches!(
            again,
            StoreError::DiskFull { .. } | StoreError::ReadOnly { .. }
        ),
        "{again}"
    );
    assert!(store.collection_or_create("db", "d").is_err());

    assert_eq!(collection.document_count(), taken as u64);
    assert_clean(&collection);
    println!("\ntaken {taken}");
}

pub fn a_full_disk_refuses_writes_and_keeps_the_rest() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let child = crate::child("full", directory.path(), &[]).output();
    let output = child.expect("runs");
    assert!(output.status.success(), "{}", text(&output));
    let taken = last_number(&output, "taken ").expect("the child prints a number");

    let store = Store::open(options(directory.path())).expect("recovers");
    let collection = store.collection("db", "c").expect("is there");
    assert_eq!(collection.document_count(), taken);
    assert_clean(&collection);
    collection
        .insert(&document(-1))
        .expect("there is room again");
}

/// Returns the last number that a child has printed after a word.
fn last_number(output: &Output, word: &str) -> Option<u64> {
    let printed = String::from_utf8_lossy(&output.stdout);
    let mut numbers = printed.lines().rev();
    numbers.find_map(|line| line.strip_prefix(word)?.parse().ok())
}

/// Body of a child that opens the store with at most `descriptors` file descriptors.
pub fn child_that_opens(directory: &Path, descriptors: u64) {
    limit(Resource::RLIMIT_NOFILE, Some(descriptors));
    let opened = Store::open(kill::options(directory));
    println!("\nopened {}", u8::from(opened.is_ok()));
    if let Err(error) = opened {
        assert!(!matches!(error, StoreError::Corrupt { .. }), "{error}");
    }
}

pub fn a_store_that_could_not_open_a_file_opens_later() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut model = Model::new();
    let store = Store::open(kill::options(directory.path())).expect("opens");
    let collection = define(&store).expect("creates");
    for at in 0..100 {
        apply_to_store(&collection, 1, at).expect("is taken");
        apply_to_model(&mut model, 1, at);
    }
    store.sync().expect("syncs");
    drop((collection, store));

    let mut refused = 0;
    for descriptors in 4.. {
        let child = crate::child("open", directory.path(), &[descriptors]).output();
        let output = child.expect("runs");
        assert!(output.status.success(), "{}", text(&output));
        let store = Store::open(kill::options(directory.path())).expect("opens later");
        check(&store, &model);
        if last_number(&output, "opened ") == Some(1) {
            break;
        }
        refused += 1;
    }
    assert!(refused > 5, "{refused} limits were too low");
}

fn define(store: &Store) -> Result<std::sync::Arc<Collection>> {
    let collection = store.collection_or_create("db", "c")?;
    for spec in [
        IndexSpec::ascending("tags"),
        IndexSpec::ascending("u").unique(),
    ] {
        if !collection
            .indexes()
            .iter()
            .any(|index| index.spec.name == spec.name)
        {
            create_index(&collection, spec)?;
        }
    }
    Ok(collection)
}

fn check(store: &Store, model: &Model) {
    let collection = store.collection("db", "c").expect("is there");
    assert_eq!(contents(&collection), *model);
    assert_eq!(replayed(store), *model, "history and documents agree");
    for collection in store.all_collections() {
        assert_clean(&collection);
    }
}

/// Body of a child that runs operations while some writes fail and some files cannot be opened. Stops at the first
/// failed operation or after a random number of operations. May end without closing the store.
pub fn child_with_failing_writes(directory: &Path, first: u64, seed: u64, life: u64) {
    let mut random = Rng::with_seed(seed + life);
    let store = match Store::open(kill::options(directory)) {
        Ok(store) => store,
        Err(error) => panic!("does not open: {error}"),
    };
    let faulty = operate(&store, &mut random, first, seed);
    if let Err(error) = &faulty {
        println!("\nfailed: {error}");
    }
    println!("\nended {}", u8::from(faulty.is_err()));
    if random.bool() {
        std::process::abort();
    }
}

fn operate(store: &Store, random: &mut Rng, first: u64, seed: u64) -> Result<()> {
    let collection = define(store)?;
    for at in first..first + random.u64(1..OPERATIONS_MAX) {
        println!("\nbegun {at}");
        match random.u8(..60) {
            0 => limit(Resource::RLIMIT_FSIZE, Some(random.u64(..400 << 10))),
            1 => limit(Resource::RLIMIT_NOFILE, Some(random.u64(4..60))),
            _ => {}
        }
        apply_to_store(&collection, seed, at)?;
        if random.u8(..5) == 0 && store.sync().is_ok() {
            println!("\nacknowledged {at}");
        }
        if random.u8(..6) == 0 {
            fail_tables(random);
        }
        if random.u8(..6) == 0 {
            define_others(store, random, at);
        }
        if random.u8(..4) == 0 {
            lift_limits();
        }
    }
    Ok(())
}

/// Limits the size of files for a moment. If the background thread is writing a table or a manifest, it fails.
fn fail_tables(random: &mut Rng) {
    limit(Resource::RLIMIT_FSIZE, Some(random.u64(..6_000)));
    (0..random.u32(..200)).for_each(|_| std::thread::yield_now());
    lift_limits();
}

fn lift_limits() {
    limit(Resource::RLIMIT_FSIZE, None);
    limit(Resource::RLIMIT_NOFILE, None);
}

/// Creates a collection and drops another one, sometimes under a limit that makes this fail. A failure is only printed,
/// because later calls try again.
fn define_others(store: &Store, random: &mut Rng, at: u64) {
    match random.u8(..8) {
        0 => limit(Resource::RLIMIT_FSIZE, Some(random.u64(..3_000))),
        1 => limit(Resource::RLIMIT_NOFILE, Some(random.u64(4..60))),
        _ => {}
    }
    let created = store.collection_or_create("db", &format!("other{}", at % 3));
    let dropped = store.drop_collection("db", &format!("other{}", (at + 1) % 3));
    if let Err(error) = created.map(drop).and(dropped.map(drop)) {
        println!("\nrefused: {error}");
    }
    lift_limits();
}

pub fn nothing_synced_is_lost_by_failed_writes() {
    let seed = std::env::var("FOREBAY_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok());
    let first = seed.unwrap_or_else(|| fastrand::u64(..u64::from(u32::MAX)));
    let is_full = std::env::var_os("FOREBAY_TEST_FULL").is_some_and(|value| value != "0");
    for seed in first..first + if is_full { STORES_FULL } else { 1 } {
        println!("FOREBAY_SEED={seed}");
        fail_writes(seed);
    }
}

/// Restarts a store many times with failing writes, and checks it after each restart.
fn fail_writes(seed: u64) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (mut model, mut first, mut failed) = (Model::new(), 0, 0);
    for life in 0..LIVES {
        let child = crate::child("writes", directory.path(), &[first, seed, life]).output();
        let output = child.expect("runs");
        let ended = last_number(&output, "ended ");
        failed += ended.unwrap_or_else(|| panic!("life {life}: {}", text(&output)));
        let acknowledged = last_number(&output, "acknowledged ").map_or(first, |at| at + 1);
        let begun = last_number(&output, "begun ").map_or(first, |at| at + 1);
        let store = Store::open(kill::options(directory.path())).expect("recovers");
        let collection = store.collection("db", "c");
        let found = collection.as_deref().map(contents).unwrap_or_default();
        while first < acknowledged || found != model {
            assert!(
                first < begun,
                "life {life}: no state after {acknowledged} operations fits"
            );
            apply_to_model(&mut model, seed, first);
            first += 1;
        }
        if collection.is_some() {
            check(&store, &model);
        }
    }
    assert!(
        failed > LIVES / 10,
        "operations failed in {failed} lives only"
    );
    println!("{first} operations in {LIVES} lives, {failed} of which met a failure");
}
