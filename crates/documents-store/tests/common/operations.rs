//! Random operations on a collection, and their expected results. The seed and an operation's number determine the
//! operation.

use std::collections::BTreeMap;

use bson::{RawBson, RawDocument, RawDocumentBuf, rawdoc};
use forebay_documents_store::{Change, ChangeEvent, ChangeKind, Collection, Result, Store};

const IDS: i64 = 400;

/// An operation on one or several documents.
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

/// For each document, by `_id`: the number of the operation that wrote it last.
pub type Model = BTreeMap<i64, u64>;

/// Applies an operation to the model.
pub fn apply_to_model(model: &mut Model, seed: u64, at: u64) {
    match operation(seed, at) {
        Operation::Put(ids) => model.extend(ids.into_iter().map(|id| (id, at))),
        Operation::Remove(ids) => model.retain(|id, _| !ids.contains(id)),
    }
}

/// Applies an operation to the collection.
///
/// # Errors
/// The first error among the results.
pub fn apply_to_store(collection: &Collection, seed: u64, at: u64) -> Result<()> {
    let number = |id: i64| collection.number_by_id(RawBson::Int64(id).as_raw_bson_ref());
    let (ids, put) = match operation(seed, at) {
        Operation::Put(ids) => (ids, true),
        Operation::Remove(ids) => (ids, false),
    };
    let documents: Vec<(Option<u64>, RawDocumentBuf)> = ids
        .iter()
        .map(|id| Ok((number(*id)?, document(*id, at))))
        .collect::<Result<_>>()?;
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
    let mut answers = collection.write(&changes, true).into_iter();
    answers.try_for_each(|answer| answer.map(drop))
}

/// Reads and checks all documents of a collection.
pub fn contents(collection: &Collection) -> Model {
    let read = |record: Result<(u64, forebay_documents_store::Document)>| {
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

/// Returns the content of collection `c` that results from replaying the whole history.
pub fn replayed(store: &Store) -> Model {
    let history = store.history().expect("a history is kept");
    let (mut model, mut after) = (Model::new(), history.first());
    while after < history.last() {
        for change in history.read(after, history.last()).expect("reads") {
            after = change.at;
            if change.namespace.collection == "c" {
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
        other => panic!("unexpected change: {other:?}"),
    }
}
