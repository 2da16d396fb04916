//! Checks plans and their answers against the result of the filter itself, on a store in memory.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use bson::{Document as Decoded, RawDocument, RawDocumentBuf, doc};
use fastrand::Rng;
use forebay_cancel::Stop;
use forebay_device::{DeviceOptions, DeviceSpec, Devices};
use forebay_documents_cache::{Cache, CacheSettings};
use forebay_documents_query::{Filter, Limits};
use forebay_documents_store::{Collection, CollectionOptions, Store, StoreOptions};

use super::build::Build;
use super::*;
use crate::streams::Stream;

#[path = "../../tests/search/generate.rs"]
#[expect(
    dead_code,
    reason = "shared with the tests of whole commands, which use more of it"
)]
mod generate;

/// A collection with its search. Like a command, each write changes the store and then the cache.
struct Fixture {
    _store: Store,
    collection: Arc<Collection>,
    lock: WriteLock,
    search: Arc<CollectionSearch>,
}

impl Fixture {
    fn new(settings: SearchSettings) -> Fixture {
        let spec = DeviceSpec::host(NonZeroUsize::MIN);
        let devices = Devices::new(&spec, DeviceOptions::default()).expect("a host device");
        let bucket_values_max = 32;
        let cache_settings = CacheSettings {
            bucket_values_max,
            background: false,
            ..CacheSettings::default()
        };
        let cache = Cache::new(Arc::new(devices), cache_settings);
        let store = Store::open(StoreOptions::memory()).expect("a store in memory");
        let collection = store
            .create_collection("d", "c", CollectionOptions::default())
            .expect("a collection");
        let lock = WriteLock::default();
        let search = CollectionSearch::new(
            cache,
            settings,
            "d.c",
            Arc::clone(&collection),
            Arc::clone(&lock),
        );
        Fixture {
            _store: store,
            collection,
            lock,
            search,
        }
    }

    fn insert(&self, documents: &[Decoded]) {
        let documents: Vec<_> = documents.iter().map(raw).collect();
        let references: Vec<&RawDocument> =
            documents.iter().map(|document| document.as_ref()).collect();
        let prepared = self.search.prepare(&references);
        let held = self.lock.lock();
        let numbers = self.collection.insert_many(&references, true).into_iter();
        let numbers = numbers.map(|number| number.expect("inserted"));
        let inserted: Vec<_> = numbers.zip(references).collect();
        self.search
            .on_insert_many(held, &inserted, prepared.as_ref());
    }

    fn replace(&self, number: u64, document: &Decoded) {
        let _held = self.lock.lock();
        let document = raw(document);
        if let Some(old) = self
            .collection
            .replace(number, &document)
            .expect("replaced")
        {
            self.search.on_replace(number, old.raw(), &document);
        }
    }

    fn delete(&self, number: u64) {
        let _held = self.lock.lock();
        if let Some(old) = self.collection.delete(number).expect("deleted") {
            self.search.on_delete(number, old.raw());
        }
    }

    fn declare(&self, fields: &[&str]) {
        built(self.begin(fields));
    }

    fn begin(&self, fields: &[&str]) -> Build {
        let fields: Vec<String> = fields.iter().map(|field| (*field).to_owned()).collect();
        let name = fields.join("_");
        self.search
            .declare(vec![CacheIndex { name, fields }])
            .expect("declared")
    }

    /// Returns the record numbers of the documents that match, by a scan.
    fn scanned(&self, filter: &Filter) -> Vec<u64> {
        let rows = self.collection.scan(0).map(|row| row.expect("readable"));
        rows.filter(|(_, document)| filter.matches(document))
            .map(|(number, _)| number)
            .collect()
    }

    fn plan(&self, filter: &Decoded) -> Result<SearchPlan, NotUsed> {
        self.search.plan(&parsed(filter), &PlanOptions::default())
    }
}

fn built(build: Build) {
    let outcome = build.wait(Duration::from_secs(60));
    outcome.expect("in time").expect("built");
}

fn raw(document: &Decoded) -> RawDocumentBuf {
    RawDocumentBuf::try_from(document).expect("encodable")
}

fn parsed(filter: &Decoded) -> Arc<Filter> {
    Arc::new(Filter::parse(&raw(filter), &Limits::default()).expect("a filter"))
}

async fn found(plan: &SearchPlan) -> Vec<u64> {
    let mut stream = plan.find(Wanted::All, &Stop::never()).await.expect("found");
    let mut numbers = Vec::new();
    while let Some(row) = stream.next(&Stop::never()).expect("readable") {
        numbers.extend(row.number());
    }
    numbers
}

async fn compare(fixture: &Fixture, filter: &Decoded, seed: u64) -> bool {
    let expected = fixture.scanned(&parsed(filter));
    let Ok(plan) = fixture.plan(filter) else {
        return false;
    };
    let counted = plan.count(&Stop::never()).await.expect("counted");
    assert_eq!(
        counted,
        expected.len() as u64,
        "seed {seed}: {filter}\n{:?}",
        plan.summary()
    );
    assert_eq!(
        found(&plan).await,
        expected,
        "seed {seed}: {filter}\n{:?}",
        plan.summary()
    );
    true
}

#[tokio::test]
async fn plans_find_what_a_scan_finds() {
    let seed = 0xD0C5;
    let mut rng = Rng::with_seed(seed);
    let fixture = Fixture::new(SearchSettings {
        fetch_always: 4,
        ..SearchSettings::default()
    });
    fixture.declare(&["a", "b.c"]);
    let mut answered = 0;
    for round in 0..60 {
        let documents: Vec<_> = (0..20)
            .map(|id| generate::document(&mut rng, round * 100 + id))
            .collect();
        fixture.insert(&documents);
        for _ in 0..4 {
            let number = rng.u64(..fixture.collection.next_number());
            fixture.delete(number);
            let number = rng.u64(..fixture.collection.next_number());
            if let Some(old) = fixture.collection.get(number).expect("readable") {
                let id = old.get_i32("_id").expect("an id");
                fixture.replace(number, &generate::document(&mut rng, id));
            }
        }
        for _ in 0..10 {
            answered += u32::from(compare(&fixture, &generate::filter(&mut rng, 2), seed).await);
        }
    }
    assert!(
        answered > 300,
        "only {answered} of 600 filters were answered from the cache"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cache_follows_writers_in_the_order_of_the_store() {
    let seed = 0x0D4;
    let fixture = Fixture::new(SearchSettings {
        build_batch_documents: 16,
        ..SearchSettings::default()
    });
    let write = |writer: i32| {
        let mut rng = Rng::with_seed(seed + writer as u64);
        for round in 0..150 {
            let ids = (0..8).map(|place| (writer * 150 + round) * 8 + place);
            let documents: Vec<_> = ids.map(|id| generate::document(&mut rng, id)).collect();
            fixture.insert(&documents);
            for _ in 0..4 {
                // Deletes and replaces recent documents, which other writers may have inserted.
                let next = fixture.collection.next_number();
                fixture.delete(rng.u64(next.saturating_sub(16)..next));
                let number = rng.u64(next.saturating_sub(16)..next);
                if let Some(old) = fixture.collection.get(number).expect("readable") {
                    let id = old.get_i32("_id").expect("an id");
                    fixture.replace(number, &generate::document(&mut rng, id));
                }
            }
        }
    };
    let ready = || {
        fixture
            .search
            .with_state(|state| state.ready.clone().expect("the cache is built"))
    };
    let first = std::thread::scope(|scope| {
        for writer in 0..4 {
            scope.spawn(move || write(writer));
        }
        fixture.declare(&["a", "b.c"]);
        ready()
    });
    assert!(
        Arc::ptr_eq(&first, &ready()),
        "the cache is rebuilt only if it contradicts the collection"
    );
    let mut rng = Rng::with_seed(seed);
    for _ in 0..100 {
        compare(&fixture, &generate::filter(&mut rng, 1), seed).await;
    }
}

#[test]
fn a_wait_for_earlier_writers_ends_after_the_writer_that_holds_the_apply_lock() {
    let fixture = Fixture::new(SearchSettings::default());
    let followed = AtomicBool::new(false);
    let (is_waiting, waiting) = mpsc::channel();
    std::thread::scope(|scope| {
        let exclusive = fixture.search.lock_exclusively();
        scope.spawn(|| {
            is_waiting.send(()).expect("the test still waits");
            fixture.search.wait_for_earlier_writers();
            assert!(followed.load(Ordering::Relaxed));
        });
        waiting.recv().expect("the thread runs");
        (0..1000).for_each(|_| std::thread::yield_now());
        followed.store(true, Ordering::Relaxed);
        drop(exclusive);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_build_with_concurrent_writes_loses_nothing() {
    let seed = 0xB1D;
    let mut rng = Rng::with_seed(seed);
    let fixture = Fixture::new(SearchSettings {
        build_batch_documents: 3,
        ..SearchSettings::default()
    });
    fixture.insert(
        &(0..2000)
            .map(|id| generate::document(&mut rng, id))
            .collect::<Vec<_>>(),
    );
    let build = fixture.begin(&["a"]);
    for id in 2000..2400 {
        fixture.insert(&[generate::document(&mut rng, id)]);
        fixture.delete(rng.u64(..fixture.collection.next_number()));
        let number = rng.u64(..2000);
        if fixture.collection.get(number).expect("readable").is_some() {
            fixture.replace(number, &generate::document(&mut rng, number as i32));
        }
    }
    built(build);
    for _ in 0..100 {
        compare(&fixture, &generate::filter(&mut rng, 1), seed).await;
    }
}

#[tokio::test]
async fn an_index_dropped_leaves_the_others() {
    let fixture = Fixture::new(SearchSettings::default());
    fixture.insert(&[doc! { "_id": 1, "a": "x", "b": "y" }]);
    fixture.declare(&["a"]);
    fixture.declare(&["b"]);
    assert!(
        fixture
            .plan(&doc! { "a": "x", "b": "y" })
            .expect("a plan")
            .is_exact()
    );
    assert!(fixture.search.drop_index("a"));
    assert!(!fixture.search.drop_index("a"));
    assert_eq!(
        fixture.plan(&doc! { "a": "x" }).err(),
        Some(NotUsed::NoCachedField)
    );
    assert!(
        !fixture
            .plan(&doc! { "a": "x", "b": "y" })
            .expect("a plan")
            .is_exact()
    );
    fixture.insert(&[doc! { "_id": 2, "a": "x", "b": "y" }]);
    assert!(compare(&fixture, &doc! { "a": "x", "b": "y" }, 0).await);
    assert!(fixture.search.drop_index("b"));
    assert_eq!(
        fixture.plan(&doc! { "b": "y" }).err(),
        Some(NotUsed::NoCacheIndex)
    );
}

#[tokio::test]
async fn a_filter_that_the_cache_does_not_answer_has_a_reason() {
    let fixture = Fixture::new(SearchSettings::default());
    fixture.insert(&[doc! { "_id": 1, "a": "x", "n": 1 }]);
    fixture.declare(&["a"]);
    let why = |filter: Decoded| fixture.plan(&filter).err();
    assert_eq!(why(doc! { "n": 1 }), Some(NotUsed::NoCachedField));
    assert_eq!(
        why(doc! { "a": { "$gt": "x" } }),
        Some(NotUsed::Predicate { path: "a".into() })
    );
    assert_eq!(
        why(doc! { "$or": [{ "a": "x" }, { "n": 1 }] }),
        Some(NotUsed::UncachedBranch)
    );
    assert_eq!(
        why(doc! { "$nor": [{ "a": "x", "n": 1 }] }),
        Some(NotUsed::UncachedUnderNegation)
    );
    let collation = PlanOptions {
        collation: true,
        ..PlanOptions::default()
    };
    let refused = fixture
        .search
        .plan(&parsed(&doc! { "a": "x" }), &collation)
        .err();
    assert_eq!(refused, Some(NotUsed::Collation));
    assert!(NotUsed::Collation.is_fallback() && !NotUsed::NoCachedField.is_fallback());
    let mixed = fixture.plan(&doc! { "a": "x", "n": 1 }).expect("a plan");
    assert!(!mixed.is_exact());
}

#[tokio::test]
async fn strings_are_counted_and_other_values_are_left_to_the_caller() {
    let fixture = Fixture::new(SearchSettings::default());
    fixture.declare(&["a"]);
    fixture.insert(&[
        doc! { "_id": 1, "a": "x" },
        doc! { "_id": 2, "a": "x" },
        doc! { "_id": 3, "a": ["x", "y"] },
        doc! { "_id": 4, "a": null },
        doc! { "_id": 5 },
        doc! { "_id": 6, "a": 7 },
        doc! { "_id": 7, "a": ["x", 1] },
    ]);
    let plan = fixture
        .search
        .plan_values(&parsed(&doc! {}), "a", &PlanOptions::default())
        .expect("a plan");
    for (arrays, expected, others) in [
        (Arrays::Unwind, vec![("x", 3), ("y", 1)], 2),
        (Arrays::Whole, vec![("x", 2)], 3),
    ] {
        let mut values = plan
            .values(arrays, 1 << 20, &Stop::never())
            .await
            .expect("values");
        let counts = values.strings.iter().map(|entry| {
            (
                std::str::from_utf8(&entry.value).expect("text"),
                entry.count,
            )
        });
        assert_eq!(counts.collect::<Vec<_>>(), expected);
        assert_eq!((values.null, values.missing), (1, 1));
        assert_eq!(
            values.others.count_rest(&Stop::never()).expect("readable"),
            others
        );
    }
}

#[tokio::test]
async fn a_stopped_search_is_an_error() {
    let fixture = Fixture::new(SearchSettings::default());
    fixture.declare(&["a"]);
    fixture.insert(&[
        doc! { "_id": 1, "a": "x" },
        doc! { "_id": 2, "a": ["x", 1] },
    ]);
    let plan = fixture
        .plan(&doc! { "a": { "$regex": "x" } })
        .expect("a plan");
    let stop = Stop::at(std::time::Instant::now());
    assert!(matches!(
        plan.count(&stop).await,
        Err(crate::error::CommandError::Stopped(_))
    ));
}

#[tokio::test]
async fn a_stream_that_rests_keeps_few_bytes_and_returns_each_document_once() {
    let fixture = Fixture::new(SearchSettings {
        // The collection is scanned for all matches.
        fetch_always: 20,
        ..SearchSettings::default()
    });
    fixture.declare(&["a"]);
    let pad = "p".repeat(60_000);
    let document = |id: i32| doc! { "_id": id, "a": "x", "pad": &pad };
    fixture.insert(&(0..40).map(document).collect::<Vec<_>>());
    let plan = fixture.plan(&doc! { "a": { "$regex": "x" } });
    let plan = plan.expect("a plan");
    for (wanted, count, gathers) in [(Wanted::All, 40, 17), (Wanted::Any(10), 10, 9)] {
        let mut stream = plan.find(wanted, &Stop::never()).await.expect("found");
        let (mut numbers, mut gathered_bytes) = (Vec::new(), 0);
        while let Some(row) = stream.next(&Stop::never()).expect("readable") {
            numbers.extend(row.number());
            gathered_bytes = gathered_bytes.max(stream.gathered_bytes());
            stream.rest();
            assert!(stream.gathered_bytes() <= 64 << 10);
        }
        // Each step of a scan gathers one megabyte, of which the caller has taken one document.
        assert_eq!(gathered_bytes / 60_000, gathers, "{wanted:?}");
        assert_eq!(numbers, (0..count).collect::<Vec<u64>>(), "{wanted:?}");
    }
}
