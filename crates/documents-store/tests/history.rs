//! The history of changes: it contains each change that was written exactly once. When it exceeds its limit, it loses
//! its oldest changes.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bson::{RawDocumentBuf, rawdoc};
use common::insert;
use forebay_documents_store::engine::fault::{Fault, FaultEngine};
use forebay_documents_store::engine::memory::MemoryEngine;
use forebay_documents_store::{
    Change, ChangeEvent, ChangeKind, ClusterTime, Collection, History, Interest, Namespace, Store,
    StoreError, StoreOptions,
};

const PLENTY: u64 = 1 << 30;
const PATIENCE: Duration = Duration::from_secs(60);

fn open(options: StoreOptions, history_bytes_max: u64) -> Store {
    let options = StoreOptions {
        history_bytes_max,
        ..options
    };
    Store::open(options).expect("opens")
}

fn history(store: &Store) -> &Arc<History> {
    store.history().expect("a history is kept")
}

fn on_both_engines(test: impl Fn(&Store)) {
    test(&open(StoreOptions::memory(), PLENTY));
    let directory = tempfile::tempdir().expect("a temporary directory");
    test(&open(StoreOptions::directory(directory.path()), PLENTY));
}

fn made(store: &Store, name: &str) -> Arc<Collection> {
    store.collection_or_create("db", name).expect("creates")
}

/// Returns all changes that are later than `after`.
fn changes_after(history: &History, after: ClusterTime) -> Vec<ChangeEvent> {
    read_after(history, after).expect("reads")
}

fn read_after(history: &History, mut after: ClusterTime) -> Result<Vec<ChangeEvent>, StoreError> {
    let mut all = Vec::new();
    loop {
        let page = history.read(after, history.last())?;
        let Some(last) = page.last() else {
            return Ok(all);
        };
        after = last.at;
        all.extend(page);
    }
}

fn summary(change: &ChangeEvent) -> (ChangeKind, String, RawDocumentBuf) {
    let detail = change.detail.to_buf();
    (change.kind, change.namespace.to_string(), detail)
}

#[test]
fn every_change_is_recorded() {
    on_both_engines(|store| {
        let history = history(store);
        let begun = history.last();
        let c = made(store, "c");
        let number = insert(&c, rawdoc! { "_id": 1, "a": 1, "b": 2 });
        let updated = rawdoc! { "_id": 1, "a": 5 };
        let replaced = rawdoc! { "_id": 1, "z": 0 };
        for change in [
            Change::Update(number, &updated),
            Change::Replace(number, &replaced),
            Change::Delete(number),
            Change::Delete(number),
        ] {
            c.write(&[change], true).pop().expect("one").expect("done");
        }
        let (from, to) = (Namespace::new("db", "c"), Namespace::new("db", "d"));
        made(store, "d");
        store.rename_collection(&from, &to, true).expect("renames");
        made(store, "e");
        store.drop_database("db").expect("drops");
        let description = rawdoc! {
            "updatedFields": { "a": 5 }, "removedFields": ["b"], "truncatedArrays": [],
        };
        let update = rawdoc! { "documentKey": { "_id": 1 }, "updateDescription": description };
        let new_name = rawdoc! { "to": { "db": "db", "coll": "d" } };
        let expected = [
            (
                ChangeKind::Insert,
                "db.c",
                rawdoc! { "_id": 1, "a": 1, "b": 2 },
            ),
            (ChangeKind::Update, "db.c", update),
            (ChangeKind::Replace, "db.c", replaced),
            (ChangeKind::Delete, "db.c", rawdoc! { "_id": 1 }),
            (ChangeKind::Rename, "db.c", new_name),
            (ChangeKind::Drop, "db.d", rawdoc! {}),
            (ChangeKind::Drop, "db.e", rawdoc! {}),
            (ChangeKind::DropDatabase, "db.", rawdoc! {}),
        ];
        let expected = expected.map(|(kind, name, detail)| (kind, name.to_owned(), detail));
        let found = changes_after(history, begun);
        assert_eq!(found.iter().map(summary).collect::<Vec<_>>(), expected);
        assert!(found.iter().take(5).all(|change| change.uuid == c.uuid()));
    });
}

#[test]
fn refused_changes_are_not_recorded() {
    on_both_engines(|store| {
        let c = made(store, "c");
        insert(&c, rawdoc! { "_id": 1 });
        let before = history(store).last();
        let (one, two) = (rawdoc! { "_id": 1 }, rawdoc! { "_id": 2 });
        let answers = c.insert_many(&[&one, &two, &one], false);
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
        let found = changes_after(history(store), before);
        assert_eq!(
            found.iter().map(summary).collect::<Vec<_>>(),
            [(ChangeKind::Insert, "db.c".to_owned(), two)]
        );
    });
}

#[test]
fn uncommitted_changes_are_not_recorded() {
    let engine = Arc::new(FaultEngine::new(Arc::new(MemoryEngine::default())));
    let options = StoreOptions {
        history_bytes_max: PLENTY,
        ..StoreOptions::memory()
    };
    let store = Store::on_engine(engine.clone(), &options).expect("opens");
    let c = made(&store, "c");
    let before = history(&store).last();
    engine.fail_commit(0, Fault::DiskFull);
    c.insert(&rawdoc! { "_id": 1 })
        .expect_err("the disk is full");
    assert_eq!(history(&store).last(), before);
    insert(&c, rawdoc! { "_id": 2 });
    assert_eq!(changes_after(history(&store), before).len(), 1);
}

/// The documents by collection and `_id`. The value is the number of the write that made the document.
type Model = BTreeMap<(String, i64), i64>;

fn replay(model: &mut Model, change: &ChangeEvent) {
    let detail = &change.detail;
    let key = |id: i64| (change.namespace.collection.clone(), id);
    match change.kind {
        ChangeKind::Insert => {
            let id = detail.get_i64("_id").expect("an id");
            let at = detail.get_i64("at").expect("a number");
            assert_eq!(model.insert(key(id), at), None, "inserted once");
        }
        ChangeKind::Update => {
            let id = detail
                .get_document("documentKey")
                .expect("a key")
                .get_i64("_id");
            let description = detail
                .get_document("updateDescription")
                .expect("a description");
            let fields = description.get_document("updatedFields").expect("fields");
            let at = fields.get_i64("at").expect("the number changes");
            model
                .insert(key(id.expect("an id")), at)
                .expect("the model has the document");
        }
        ChangeKind::Delete => {
            let id = detail.get_i64("_id").expect("an id");
            model.remove(&key(id)).expect("the model has the document");
        }
        other => panic!("unexpected change: {other:?}"),
    }
}

/// Writes random changes to documents that no other writer changes.
fn write_at_random(store: &Store, writer: i64, writes: i64) {
    let mut random = fastrand::Rng::with_seed(writer as u64);
    let mut numbers = BTreeMap::new();
    for at in 0..writes {
        let id = writer * 100 + random.i64(0..50);
        let c = made(store, ["a", "b", "c"][(id % 3) as usize]);
        let document = rawdoc! { "_id": id, "at": at };
        match numbers.get(&id).copied() {
            None => {
                numbers.insert(id, insert(&c, document));
            }
            Some(number) if random.bool() => {
                c.write(&[Change::Update(number, &document)], true);
            }
            Some(number) => {
                c.delete(number).expect("deletes");
                numbers.remove(&id);
            }
        }
    }
}

fn contents(store: &Store) -> Model {
    let mut model = Model::new();
    for collection in store.all_collections() {
        for record in collection.scan(0) {
            let (_, document) = record.expect("reads");
            let id = document.get_i64("_id").expect("an id");
            let at = document.get_i64("at").expect("a number");
            model.insert((collection.namespace().collection, id), at);
        }
    }
    model
}

/// Reads the changes that match an interest, until `end` returns true and all matching changes are read.
fn follow(history: &History, interest: Interest, end: impl Fn() -> bool) -> Vec<ChangeEvent> {
    let concerns = |change: &ChangeEvent| match &interest {
        Interest::Collection(namespace) => change.namespace == *namespace,
        _ => true,
    };
    let watch = history.watch(interest.clone());
    let (mut position, mut found) = (history.first(), Vec::new());
    let mut until = history.news(&watch).1;
    loop {
        while position < until {
            let page = history.read(position, until).expect("reads");
            position = page.last().map_or(until, |change| change.at);
            found.extend(page.into_iter().filter(concerns));
        }
        let ended = end();
        let (first, last) = history.news(&watch);
        until = last;
        match first {
            Some(first) => position = position.max(first.minus_one()),
            None if ended => return found,
            None => {
                position = last;
                thread::yield_now();
            }
        }
    }
}

#[test]
fn readers_beside_writers_miss_nothing_and_meet_nothing_twice() {
    on_both_engines(|store| {
        let history = history(store);
        let only_b = Interest::Collection(Namespace::new("db", "b"));
        let writing = AtomicUsize::new(4);
        let end = || writing.load(Ordering::SeqCst) == 0;
        let (all, of_b) = thread::scope(|scope| {
            let all = scope.spawn(|| follow(history, Interest::Everything, end));
            let of_b = scope.spawn(|| follow(history, only_b, end));
            for writer in 0..4 {
                let writing = &writing;
                scope.spawn(move || {
                    write_at_random(store, writer, 2_000);
                    writing.fetch_sub(1, Ordering::SeqCst);
                });
            }
            (all.join().expect("ends"), of_b.join().expect("ends"))
        });
        assert!(
            all.windows(2).all(|pair| pair[0].at < pair[1].at),
            "in order, each once"
        );
        let (mut model, mut model_of_b) = (Model::new(), Model::new());
        all.iter().for_each(|change| replay(&mut model, change));
        of_b.iter()
            .for_each(|change| replay(&mut model_of_b, change));
        let contents = contents(store);
        assert_eq!(model, contents);
        let contents_of_b = contents.into_iter().filter(|((name, _), _)| name == "b");
        assert_eq!(model_of_b, contents_of_b.collect());
    });
}

fn id_of(insert: &ChangeEvent) -> i64 {
    insert.detail.get_i64("_id").expect("an id")
}

fn until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "timeout");
        thread::yield_now();
    }
}

#[test]
fn a_history_that_is_too_long_forgets_its_beginning() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let bytes_max = 100_000;
    let (first, last, kept_bytes) = {
        let store = open(StoreOptions::directory(directory.path()), bytes_max);
        let history = history(&store);
        let begun = history.first();
        let c = made(&store, "c");
        for id in 0..5_000_i64 {
            insert(&c, rawdoc! { "_id": id, "pad": "x".repeat(100) });
        }
        until(|| history.kept_bytes() <= bytes_max);
        assert!(history.kept_bytes() > bytes_max / 2, "no more than needed");
        let lost = history.read(begun, history.last());
        assert!(matches!(lost, Err(StoreError::HistoryLost)), "{lost:?}");
        let kept = loop {
            match read_after(history, history.first()) {
                // The trimming thread may still be at work, and may have removed the next changes to read.
                Err(StoreError::HistoryLost) => {}
                kept => break kept.expect("reads"),
            }
        };
        assert_eq!(id_of(kept.last().expect("some")), 4_999);
        assert!(
            kept.windows(2)
                .all(|pair| id_of(&pair[0]) + 1 == id_of(&pair[1]))
        );
        let single = rawdoc! { "_id": "large", "pad": "x".repeat(1_000_000) };
        insert(&c, single);
        until(|| history.first() == history.last());
        (history.first(), history.last(), history.kept_bytes())
    };
    let store = open(StoreOptions::directory(directory.path()), bytes_max);
    let history = history(&store);
    assert_eq!((history.first(), history.last()), (first, last));
    assert_eq!(history.kept_bytes(), kept_bytes);
}

/// Opens the store with or without a history. Inserts a document if `id` is `Some`.
fn run(directory: &Path, history_bytes_max: u64, id: Option<i32>) -> Store {
    let store = open(StoreOptions::directory(directory), history_bytes_max);
    if let Some(id) = id {
        insert(&made(&store, "c"), rawdoc! { "_id": id });
    }
    store
}

#[test]
fn a_history_goes_on_unless_something_is_written_without_it() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let directory = directory.path();
    let (begun, last) = {
        let store = run(directory, PLENTY, Some(1));
        (history(&store).first(), history(&store).last())
    };
    assert!(run(directory, 0, None).history().is_none());
    {
        let store = run(directory, PLENTY, Some(2));
        assert_eq!(history(&store).first(), begun);
        let found = changes_after(history(&store), last);
        assert_eq!(
            found.iter().map(|change| change.kind).collect::<Vec<_>>(),
            [ChangeKind::Insert]
        );
    }
    drop(run(directory, 0, Some(3)));
    let store = run(directory, PLENTY, None);
    assert_eq!(history(&store).first(), history(&store).last());
    assert!(history(&store).get(last).expect("reads").is_none());
}
