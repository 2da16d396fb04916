//! Power failures and failed syncs: the store reopens with everything that was synced.
//!
//! A test case is one store with several restarts, generated from a seed. `FOREBAY_TEST_FULL=1` runs more cases,
//! `FOREBAY_HISTORIES=<count>` sets their number, and `FOREBAY_SEED=<seed>` runs only one case.

mod common;
mod disk;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bson::rawdoc;
use common::operations::{Model, apply_to_model, apply_to_store, contents, replayed};
use common::{assert_clean, create_index};
use disk::Power;
use fastrand::Rng;
use forebay_documents_store::{Collection, IndexSpec, Result, Store, StoreError, StoreOptions};
use parking_lot::Mutex;

const HISTORIES: u64 = 300;
const HISTORIES_FULL: u64 = 10_000;
/// Maximum number of restarts of a store in one case.
const LIVES_MAX: u32 = 4;
/// Maximum number of operations between two restarts.
const OPERATIONS_MAX: u64 = 60;

/// Returns options with write buffers so small that tables are flushed all the time. Syncs happen only at the test's
/// request or before a flush.
fn options(directory: &Path) -> StoreOptions {
    StoreOptions {
        write_buffer_bytes: 8 << 10,
        // So small that writers also reach the limit on all buffers together, and wait for flushes.
        write_buffers_bytes_max: 64 << 10,
        sync_interval: Duration::from_secs(3600),
        history_bytes_max: 1 << 30,
        disk_reserve_bytes: 0,
        ..StoreOptions::directory(directory)
    }
}

/// Expected state of a store: `model` is the result of the operations numbered below `first`.
struct History {
    seed: u64,
    random: Rng,
    model: Model,
    first: u64,
    /// Number of operations that a sync has confirmed.
    synced: u64,
    /// Number of operations that were started.
    begun: u64,
    /// Whether a sync has failed since the store was opened.
    has_failed: bool,
}

impl History {
    fn new(seed: u64) -> Self {
        Self {
            seed,
            random: Rng::with_seed(seed),
            model: Model::new(),
            first: 0,
            synced: 0,
            begun: 0,
            has_failed: false,
        }
    }

    /// Opens the store and runs operations until power is cut, writes are refused, or the operations end.
    fn live(&mut self, directory: &Path, power: &Power) {
        self.has_failed = false;
        let store = match Store::open(options(directory)) {
            Ok(store) => store,
            Err(error) => return assert!(power.has_failed(), "the store does not open: {error}"),
        };
        self.check(&store);
        if let Err(error) = self.operate(&store, power) {
            self.excuse(&error, power);
        }
    }

    /// Accepts the failure of an operation only if a sync has failed before.
    fn excuse(&mut self, error: &StoreError, power: &Power) {
        self.has_failed |= power.has_failed();
        assert!(self.has_failed, "an operation failed: {error}");
    }

    /// Runs operations. Continues after a failed sync, and after a failed creation or drop of another collection.
    fn operate(&mut self, store: &Store, power: &Power) -> Result<()> {
        let collection = store.collection_or_create("db", "c")?;
        if collection.indexes().len() == 1 {
            define(&collection)?;
        }
        let end = self.first + self.random.u64(1..OPERATIONS_MAX);
        let others = [2, 12][self.random.usize(..2)];
        for at in self.first..end {
            self.begun = at + 1;
            apply_to_store(&collection, self.seed, at)?;
            if self.random.u8(..5) == 0 {
                match store.sync() {
                    Ok(()) => self.synced = at + 1,
                    Err(error) => self.excuse(&error, power),
                }
            }
            if self.random.u8(..others) == 0
                && let Err(error) = self.define_others(store, at)
            {
                self.excuse(&error, power);
            }
        }
        Ok(())
    }

    /// Creates a collection, and drops another collection.
    fn define_others(&mut self, store: &Store, at: u64) -> Result<()> {
        let other = store.collection_or_create("db", &format!("other{}", at % 3))?;
        if self.random.u8(..3) == 0 {
            fill(&other)?;
        }
        store.drop_collection("db", &format!("other{}", (at + 1) % 3))?;
        Ok(())
    }

    /// Checks that the documents are the result of the first n operations, for an n that includes all synced
    /// operations.
    fn check(&mut self, store: &Store) {
        let found = store.collection("db", "c").map(|c| contents(&c));
        let found = found.unwrap_or_default();
        while self.first < self.synced || found != self.model {
            assert!(
                self.first < self.begun,
                "{} operations were synced and {} begun, but no state between fits",
                self.synced,
                self.begun
            );
            apply_to_model(&mut self.model, self.seed, self.first);
            self.first += 1;
        }
        (self.synced, self.begun) = (self.first, self.first);
        assert_eq!(replayed(store), self.model, "history and documents agree");
        for collection in store.all_collections() {
            assert_clean(&collection);
        }
    }
}

/// Inserts more than a write buffer holds, so that the collection has tables when it is dropped.
fn fill(collection: &Collection) -> Result<()> {
    for _ in 0..20 {
        let document = rawdoc! { "_id": bson::oid::ObjectId::new(), "pad": "y".repeat(600) };
        collection.insert(&document)?;
    }
    Ok(())
}

fn define(collection: &Collection) -> Result<()> {
    create_index(collection, IndexSpec::ascending("tags"))?;
    create_index(collection, IndexSpec::ascending("u").unique())
}

/// Runs one store through several restarts, after power failures or failed syncs.
fn run(seed: u64) {
    let folder = temporary();
    let mut history = History::new(seed);
    let mut root = folder.path().join("0");
    std::fs::create_dir(&root).expect("creates");
    for life in 1..=history.random.u32(2..=LIVES_MAX) {
        root = lose_power(&mut history, root);
        let next = folder.path().join(life.to_string());
        std::fs::rename(&root, &next).expect("renames");
        root = next;
    }
    let power = Power::on(&root, seed);
    let store = Store::open(options(&root.join("data"))).expect("opens");
    history.check(&store);
    drop((store, power));
}

/// Creates a temporary folder, in memory if possible: creating files on disk would take most of the test's time.
fn temporary() -> tempfile::TempDir {
    let in_memory = tempfile::tempdir_in("/dev/shm");
    in_memory
        .or_else(|_| tempfile::tempdir())
        .expect("a temporary directory")
}

fn lose_power(history: &mut History, root: PathBuf) -> PathBuf {
    let power = Power::on(&root, history.random.u64(..));
    let data = root.join("data");
    if history.random.bool() {
        power.cut_at_sync(history.random.u32(..150));
    }
    match history.random.u8(..8) {
        0 => power.fail_journal(history.random.u32(..20)),
        1 | 2 => power.fail_any(history.random.u32(..150), history.random.u32(1..4)),
        3 | 4 => {
            power.fail_any(history.random.u32(..150), 1);
            power.cut_after_failure(history.random.u32(..40));
        }
        _ => {
            history.live(&data, &power);
            return power.cut();
        }
    }
    history.live(&data, &power);
    history.live(&data, &power);
    power.cut()
}

fn make(data: &Path) -> Result<()> {
    let store = Store::open(options(data))?;
    store.collection_or_create("db", "c")?;
    store.sync()
}

/// Creates a store while one sync fails (after `after` successful ones), opens it again on the same disk, then cuts
/// power. Returns false if the creation made too few syncs for one to fail.
fn make_again(after: u32, seed: u64) -> bool {
    let folder = temporary();
    let root = folder.path().join("0");
    std::fs::create_dir(&root).expect("creates");
    let power = Power::on(&root, seed);
    power.fail_any(after, 1);
    let data = root.join("data");
    drop(make(&data));
    if !power.has_failed() {
        return false;
    }
    // The simulated disk tracks descriptors by number, so a file that reuses a number may report the failure again.
    while let Err(error) = make(&data) {
        assert!(power.has_failed(), "sync {after}, seed {seed}: {error}");
    }
    let store = Store::open(options(&power.cut().join("data")));
    let store = store.unwrap_or_else(|error| panic!("sync {after}, seed {seed}: {error}"));
    let found = store.collection("db", "c");
    assert!(
        found.is_some(),
        "sync {after}, seed {seed}: the collection is gone"
    );
    true
}

#[test]
fn a_sync_that_failed_while_a_store_was_made_loses_nothing_later() {
    let made = (0..).take_while(|after| (0..6).all(|seed| make_again(*after, seed)));
    assert!(made.count() > 5, "files are synced while a store is made");
}

/// Creates collections while a sync fails, continues with the same open store, and cuts power soon after the failure.
fn create_after_failure(seed: u64) {
    let folder = temporary();
    let root = folder.path().join("0");
    std::fs::create_dir(&root).expect("creates");
    let mut random = Rng::with_seed(seed);
    let power = Power::on(&root, seed);
    let data = root.join("data");
    make(&data).expect("no sync fails yet");
    power.fail_any(random.u32(..150), 1);
    power.cut_after_failure(random.u32(..30));
    if let Ok(store) = Store::open(options(&data)) {
        for number in 0..6 {
            drop(store.collection_or_create("db", &format!("other{number}")));
        }
    }
    assert!(power.has_failed(), "a sync fails");
    let store = Store::open(options(&power.cut().join("data"))).expect("opens");
    assert!(
        store.collection("db", "c").is_some(),
        "the collection was synced"
    );
}

#[test]
fn partitions_are_created_after_a_failed_sync() {
    run_all(histories(), create_after_failure);
}

#[test]
fn nothing_synced_is_lost_when_power_is_cut() {
    run_all(histories(), run);
}

/// Runs a test with many seeds on all cores, or with the one in `FOREBAY_SEED`.
fn run_all(count: u64, test: fn(u64)) {
    let given = std::env::var("FOREBAY_SEED").ok();
    if let Some(seed) = given.and_then(|seed| seed.parse().ok()) {
        return test(seed);
    }
    let first = fastrand::u64(..u64::from(u32::MAX));
    let next = AtomicU64::new(0);
    let failed = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(seed) = take(&next, count).map(|number| first + number) {
                    if std::panic::catch_unwind(|| test(seed)).is_err() {
                        eprintln!("failed: FOREBAY_SEED={seed}");
                        failed.lock().push(seed);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    assert!(failed.is_empty(), "seeds that failed: {failed:?}");
}

/// Returns the number of cases to run.
fn histories() -> u64 {
    let given = std::env::var("FOREBAY_HISTORIES").ok();
    if let Some(count) = given.and_then(|count| count.parse().ok()) {
        return count;
    }
    if std::env::var_os("FOREBAY_TEST_FULL").is_some_and(|value| value != "0") {
        HISTORIES_FULL
    } else {
        HISTORIES
    }
}

/// Takes the next number below `count`. Returns `None` when all are taken.
fn take(next: &AtomicU64, count: u64) -> Option<u64> {
    let taken = next.fetch_add(1, Ordering::Relaxed);
    (taken < count).then_some(taken)
}
