//! Applies random operations to a collection and to a simple model of it, and compares the two. Some writes fail, and
//! the store is reopened from time to time.

mod common;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, Document, RawBson, RawDocument, RawDocumentBuf, doc};
use common::{assert_clean, create_index, numbers, small_buffers};
use fastrand::Rng;
use forebay_documents_store::engine::Engine;
use forebay_documents_store::engine::fault::{Fault, FaultEngine};
use forebay_documents_store::engine::fjall::FjallEngine;
use forebay_documents_store::engine::memory::MemoryEngine;
use forebay_documents_store::{
    Change, Changed, Collection, Direction, IndexBounds, IndexField, IndexKind, IndexSpec, Store,
    StoreError,
};

const OPERATIONS: usize = 1_000;

fn compare(a: &Bson, b: &Bson) -> Ordering {
    let raw =
        |value: &Bson| RawBson::try_from(value.clone()).expect("the generator makes plain values");
    forebay_documents_query::compare(raw(a).as_raw_bson_ref(), raw(b).as_raw_bson_ref())
}

fn scalar(random: &mut Rng) -> Bson {
    match random.u8(..10) {
        0..3 => Bson::Int32(random.i32(0..6)),
        3 => Bson::Double(f64::from(random.i32(0..12)) / 2.0),
        4 => Bson::Int64(random.i64(0..6)),
        5..8 => Bson::String(["", "a", "ab", "b\0c", "é"][random.usize(..5)].to_owned()),
        8 => Bson::Null,
        _ => Bson::Document(doc! { "x": random.i32(0..2) }),
    }
}

fn value(random: &mut Rng) -> Option<Bson> {
    match random.u8(..10) {
        0 => None,
        1 => Some(Bson::Array(
            (0..random.usize(0..4)).map(|_| scalar(random)).collect(),
        )),
        _ => Some(scalar(random)),
    }
}

fn document(random: &mut Rng, id: i32) -> Document {
    let id = if random.bool() {
        Bson::Int32(id)
    } else {
        Bson::Double(id.into())
    };
    let mut document = doc! { "_id": id };
    for path in ["a", "b"] {
        document.extend(value(random).map(|value| (path.to_owned(), value)));
    }
    document
}

fn raw(document: &Document) -> RawDocumentBuf {
    RawDocumentBuf::try_from(document).expect("the generator makes plain documents")
}

fn specs() -> Vec<IndexSpec> {
    let field = |path: &str, kind| IndexField {
        path: path.to_owned(),
        kind,
    };
    let both = vec![
        field("a", IndexKind::Ascending),
        field("b", IndexKind::Descending),
    ];
    vec![
        IndexSpec::ascending("a"),
        IndexSpec::new("b_-1", vec![field("b", IndexKind::Descending)]),
        IndexSpec::new("a_1_b_-1", both.clone()),
        IndexSpec::new("unique", both).unique().sparse(),
    ]
}

type Tuple = Vec<Bson>;

/// Computes the keys that a document has in an index, without using the store's code. Returns `None` if two fields are
/// arrays.
fn tuples(spec: &IndexSpec, document: &Document) -> Option<Vec<Tuple>> {
    let values: Vec<Option<&Bson>> = spec
        .fields
        .iter()
        .map(|field| document.get(&field.path))
        .collect();
    if spec.sparse && values.iter().all(Option::is_none) {
        return Some(Vec::new());
    }
    let array = |value: &Option<&Bson>| value.is_some_and(|value| value.as_array().is_some());
    if values.iter().filter(|value| array(value)).count() > 1 {
        return None;
    }
    let mut tuples = vec![Tuple::new()];
    for value in values {
        let choices = match value {
            None => vec![Bson::Null],
            Some(Bson::Array(elements)) if elements.is_empty() => vec![Bson::Undefined],
            Some(Bson::Array(elements)) => elements.clone(),
            Some(value) => vec![value.clone()],
        };
        let extended = |tuple: Tuple| {
            choices
                .iter()
                .map(move |choice| [tuple.clone(), vec![choice.clone()]].concat())
                .collect::<Vec<_>>()
        };
        tuples = tuples.into_iter().flat_map(extended).collect();
    }
    Some(tuples)
}

fn compare_tuples(spec: &IndexSpec, a: &Tuple, b: &Tuple) -> Ordering {
    let directed = |((field, a), b): ((&IndexField, &Bson), &Bson)| match field.kind {
        IndexKind::Descending => compare(b, a),
        IndexKind::Ascending | IndexKind::Cache => compare(a, b),
    };
    let mut orders = spec.fields.iter().zip(a).zip(b).map(directed);
    orders
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal)
}

struct Bounds {
    equal: Vec<Bson>,
    lower: Bound<Bson>,
    upper: Bound<Bson>,
}

impl Bounds {
    fn random(random: &mut Rng, fields: usize) -> Self {
        let bound = |random: &mut Rng| match random.u8(..3) {
            0 => Bound::Unbounded,
            1 => Bound::Included(scalar(random)),
            _ => Bound::Excluded(scalar(random)),
        };
        Self {
            equal: (0..random.usize(..=fields))
                .map(|_| scalar(random))
                .collect(),
            lower: bound(random),
            upper: bound(random),
        }
    }

    fn contains(&self, tuple: &Tuple) -> bool {
        let equal = self
            .equal
            .iter()
            .zip(tuple)
            .all(|(wanted, found)| compare(wanted, found).is_eq());
        equal
            && tuple
                .get(self.equal.len())
                .is_none_or(|next| self.spans(next))
    }

    fn spans(&self, value: &Bson) -> bool {
        let above = match &self.lower {
            Bound::Included(lower) => compare(value, lower).is_ge(),
            Bound::Excluded(lower) => compare(value, lower).is_gt(),
            Bound::Unbounded => true,
        };
        above
            && match &self.upper {
                Bound::Included(upper) => compare(value, upper).is_le(),
                Bound::Excluded(upper) => compare(value, upper).is_lt(),
                Bound::Unbounded => true,
            }
    }

    fn to_store(&self) -> IndexBounds {
        let raw = |value: &Bson| RawBson::try_from(value.clone()).expect("plain");
        IndexBounds::range(
            self.equal.iter().map(raw).collect(),
            self.lower.as_ref().map(raw),
            self.upper.as_ref().map(raw),
        )
    }
}

/// The expected content of the collection.
#[derive(Default)]
struct Model {
    documents: BTreeMap<u64, Document>,
    next: u64,
    indexes: Vec<IndexSpec>,
}

impl Model {
    /// Returns whether the store must refuse a document because another document has one of its keys, or because two
    /// indexed fields are arrays.
    fn refuses(&self, number: Option<u64>, document: &Document) -> bool {
        let id = IndexSpec::ascending("_id").unique();
        self.indexes
            .iter()
            .chain([&id])
            .any(|spec| self.refused_by(spec, number, document))
    }

    fn refused_by(&self, spec: &IndexSpec, number: Option<u64>, document: &Document) -> bool {
        let Some(keys) = tuples(spec, document) else {
            return true;
        };
        let others = self
            .documents
            .iter()
            .filter(|(other, _)| Some(**other) != number);
        // Ignores documents that the index cannot hold: each makes the index build fail anyway.
        let taken = |other: &Document| {
            let theirs = tuples(spec, other).unwrap_or_default();
            theirs.iter().any(|theirs| {
                keys.iter()
                    .any(|key| compare_tuples(spec, key, theirs).is_eq())
            })
        };
        spec.unique && others.into_iter().any(|(_, other)| taken(other))
    }

    /// Returns whether an index can be built over all documents.
    fn allows(&self, spec: &IndexSpec) -> bool {
        !self
            .documents
            .iter()
            .any(|(number, document)| self.refused_by(spec, Some(*number), document))
    }

    fn insert(&mut self, document: &Document) -> bool {
        if self.refuses(None, document) {
            return false;
        }
        self.documents.insert(self.next, document.clone());
        self.next += 1;
        true
    }

    /// Returns the documents within bounds, in index order, each once.
    fn scan(&self, spec: &IndexSpec, bounds: &Bounds, direction: Direction) -> Vec<u64> {
        let mut entries = Vec::new();
        for (number, document) in &self.documents {
            let keys = tuples(spec, document).expect("the store accepted the document");
            entries.extend(
                keys.into_iter()
                    .filter(|key| bounds.contains(key))
                    .map(|key| (key, *number)),
            );
        }
        entries.sort_by(|(a, m), (b, n)| compare_tuples(spec, a, b).then(m.cmp(n)));
        if direction == Direction::Backward {
            entries.reverse();
        }
        let mut seen = std::collections::HashSet::new();
        entries
            .into_iter()
            .map(|(_, number)| number)
            .filter(|number| seen.insert(*number))
            .collect()
    }
}

struct Run {
    random: Rng,
    engine: Arc<FaultEngine>,
    reopen: Box<dyn Fn() -> Arc<dyn Engine>>,
    store: Option<Store>,
    model: Model,
    faults: usize,
}

fn open(engine: &Arc<FaultEngine>) -> Store {
    Store::with_engine(engine.clone(), Duration::from_secs(3_600)).expect("opens")
}

impl Run {
    fn new(seed: u64, reopen: Box<dyn Fn() -> Arc<dyn Engine>>) -> Self {
        let engine = Arc::new(FaultEngine::new(reopen()));
        let store = open(&engine);
        store.collection_or_create("db", "c").expect("creates");
        Self {
            random: Rng::with_seed(seed),
            engine,
            reopen,
            store: Some(store),
            model: Model::default(),
            faults: 0,
        }
    }

    fn collection(&self) -> Arc<Collection> {
        let store = self.store.as_ref().expect("open between operations");
        store.collection("db", "c").expect("is never dropped")
    }

    fn step(&mut self) {
        if self.random.u8(..20) == 0 {
            let fault = if self.random.bool() {
                Fault::DiskFull
            } else {
                Fault::Broken
            };
            self.engine.fail_commit(self.random.u32(..2), fault);
        }
        match self.random.u8(..100) {
            0..45 => self.insert(),
            45..70 => self.replace(),
            70..88 => self.delete(),
            88..93 => self.create_index(),
            93..96 => self.drop_index(),
            96..98 => self.reopen(),
            _ => self.check(),
        }
        assert_eq!(
            self.collection().document_count(),
            self.model.documents.len() as u64
        );
    }

    fn insert(&mut self) {
        let documents: Vec<Document> = (0..self.random.usize(1..6))
            .map(|_| {
                let id = self.random.i32(0..60);
                document(&mut self.random, id)
            })
            .collect();
        let ordered = self.random.bool();
        let raw: Vec<RawDocumentBuf> = documents.iter().map(raw).collect();
        let raw: Vec<&RawDocument> = raw.iter().map(|document| document.as_ref()).collect();
        let answers = self.collection().insert_many(&raw, ordered);
        if self.failed(answers.iter().filter_map(|answer| answer.as_ref().err())) {
            assert!(
                answers.iter().all(Result::is_err),
                "nothing of a failed batch is acknowledged"
            );
            return;
        }
        for (at, document) in documents.iter().enumerate() {
            let expected = self.model.next;
            let inserted = self.model.insert(document);
            assert_eq!(
                answers[at].as_ref().ok().copied(),
                inserted.then_some(expected),
                "{document}: {:?}",
                answers[at]
            );
            if !inserted && ordered {
                assert_eq!(answers.len(), at + 1);
                return;
            }
        }
        assert_eq!(answers.len(), documents.len());
    }

    /// Returns whether an injected fault, and not the request itself, caused one of the errors. Counts the calls that
    /// return true.
    fn failed<'e>(&mut self, mut errors: impl Iterator<Item = &'e StoreError>) -> bool {
        let failed = errors
            .any(|error| matches!(error, StoreError::DiskFull { .. } | StoreError::Io { .. }));
        self.faults += usize::from(failed);
        failed
    }

    fn any_number(&mut self) -> u64 {
        self.random.u64(..self.model.next + 1)
    }

    fn replace(&mut self) {
        let number = self.any_number();
        let old = self.model.documents.get(&number).cloned();
        let mut new = document(&mut self.random, 0);
        new.insert(
            "_id",
            old.as_ref()
                .and_then(|old| old.get("_id").cloned())
                .unwrap_or(Bson::Int32(1)),
        );
        let answer = self
            .collection()
            .write(&[Change::Replace(number, &raw(&new))], true)
            .remove(0);
        if self.failed(answer.as_ref().err().into_iter()) {
            return;
        }
        match (old, answer) {
            (None, answer) => assert!(matches!(answer, Ok(Changed::Absent)), "{answer:?}"),
            (Some(_), Err(error)) => {
                assert!(self.model.refuses(Some(number), &new), "{error} for {new}")
            }
            (Some(old), Ok(Changed::Replaced(found))) => {
                assert_eq!(*found.raw(), *raw(&old));
                assert!(!self.model.refuses(Some(number), &new), "{new}");
                self.model.documents.insert(number, new);
            }
            (_, other) => panic!("{other:?}"),
        }
    }

    fn delete(&mut self) {
        let number = self.any_number();
        let answer = self.collection().delete(number);
        if self.failed(answer.as_ref().err().into_iter()) {
            return;
        }
        let expected = self.model.documents.remove(&number);
        let found = answer.expect("nothing forbids a delete");
        assert_eq!(
            found.map(|found| found.to_buf()),
            expected.as_ref().map(raw)
        );
    }

    fn create_index(&mut self) {
        let specs = specs();
        let spec = specs[self.random.usize(..specs.len())].clone();
        if self.model.indexes.contains(&spec) {
            return;
        }
        let created = create_index(&self.collection(), spec.clone());
        if self.failed(created.as_ref().err().into_iter()) {
            assert!(
                !self
                    .collection()
                    .indexes()
                    .iter()
                    .any(|index| *index.spec == spec && index.complete)
            );
            self.collection().drop_index(&spec.name).ok();
            return;
        }
        assert_eq!(created.is_ok(), self.model.allows(&spec), "{created:?}");
        self.model.indexes.extend(created.is_ok().then_some(spec));
    }

    fn drop_index(&mut self) {
        let Some(at) =
            (!self.model.indexes.is_empty()).then(|| self.random.usize(..self.model.indexes.len()))
        else {
            return;
        };
        let dropped = self.collection().drop_index(&self.model.indexes[at].name);
        if !self.failed(dropped.as_ref().err().into_iter()) {
            assert_eq!(
                dropped.expect("the index exists"),
                self.model.indexes.remove(at)
            );
        }
    }

    fn reopen(&mut self) {
        self.store = None;
        let nothing = Arc::new(FaultEngine::new(Arc::new(MemoryEngine::default())));
        drop(std::mem::replace(&mut self.engine, nothing));
        self.engine = Arc::new(FaultEngine::new((self.reopen)()));
        self.store = Some(open(&self.engine));
    }

    fn check(&mut self) {
        let collection = self.collection();
        let found: BTreeMap<u64, Document> = collection
            .scan(0)
            .map(|record| record.expect("reads"))
            .map(|(number, document)| (number, Document::try_from(document.raw()).expect("BSON")))
            .collect();
        assert_eq!(found, self.model.documents);
        assert_clean(&collection);
        for spec in &self.model.indexes {
            for direction in [Direction::Forward, Direction::Backward] {
                let bounds = Bounds::random(&mut self.random, spec.fields.len());
                let expected = self.model.scan(spec, &bounds, direction);
                assert_eq!(
                    numbers(&collection, &spec.name, &bounds.to_store(), direction),
                    expected,
                    "{}",
                    spec.name
                );
            }
        }
    }
}

fn run(name: &str, rounds: usize, reopen: impl Fn(usize) -> Box<dyn Fn() -> Arc<dyn Engine>>) {
    let first = std::env::var("FOREBAY_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1);
    for (round, seed) in (first..).take(rounds).enumerate() {
        println!("{name}: FOREBAY_SEED={seed}");
        let mut run = Run::new(seed, reopen(round));
        (0..OPERATIONS).for_each(|_| run.step());
        run.reopen();
        run.check();
        assert!(run.faults > 10, "only {} writes failed", run.faults);
    }
}

#[test]
fn a_collection_in_memory_is_its_model() {
    run("memory", 4, |_| {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::default());
        Box::new(move || Arc::clone(&engine))
    });
}

#[test]
fn a_collection_on_disk_is_its_model() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    run("fjall", 2, |round| {
        let path = directory.path().join(round.to_string());
        Box::new(move || Arc::new(FjallEngine::open(&path, &small_buffers(&path)).expect("opens")))
    });
}
