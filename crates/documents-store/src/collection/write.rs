//! Writing documents together with their index entries and the counters, in atomic batches.

use std::collections::HashMap;
use std::sync::Arc;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use forebay_documents_query::element::nests_deeper;
use forebay_documents_query::limits::DOCUMENT_DEPTH_MAX;

use super::{Collection, Writer};
use crate::catalogue::{self, Statistics};
use crate::document::{Document, NUMBER_MAX, NUMBER_WARNED, RecordNumber, record_key};
use crate::engine::{Batch, Bytes, Direction, KeyRange, PageLimit, PartitionId, Write};
use crate::error::{Result, StoreError};
use crate::history::{ChangeKind, Changes};
use crate::index::{Index, key_values};
use crate::retryable::Outcomes;

/// Maximum number of changes in one atomic batch.
const BATCH_CHANGES_MAX: usize = 1_000;
/// Total bytes of new documents at which a batch is full. The batch's last document may exceed this total.
pub const BATCH_BYTES: usize = 8 << 20;

/// A change of one document.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// Inserts a document.
    Insert(&'a RawDocument),
    /// Replaces the document with this number. The new document must have the same `_id`.
    Replace(RecordNumber, &'a RawDocument),
    /// Replaces like `Replace`, but the history records only the difference between the old and the new document.
    Update(RecordNumber, &'a RawDocument),
    /// Deletes the document with this number.
    Delete(RecordNumber),
}

impl Change<'_> {
    /// Returns the document that the change stores; `None` for a deletion.
    fn document(&self) -> Option<&RawDocument> {
        match self {
            Self::Insert(document) | Self::Replace(_, document) | Self::Update(_, document) => {
                Some(document)
            }
            Self::Delete(_) => None,
        }
    }

    fn bytes(&self) -> usize {
        self.document()
            .map_or(0, |document| document.as_bytes().len())
    }

    fn nests_too_deep(&self) -> bool {
        self.document().is_some_and(nests_too_deep)
    }
}

/// Returns whether a document nests deeper than [`DOCUMENT_DEPTH_MAX`], the limit for readers that recurse.
pub(super) fn nests_too_deep(document: &RawDocument) -> bool {
    nests_deeper(RawBsonRef::Document(document), DOCUMENT_DEPTH_MAX)
}

/// Effect of a change.
#[derive(Debug, Clone, PartialEq)]
pub enum Changed {
    /// The document was inserted with this number.
    Inserted(RecordNumber),
    /// The document was replaced. Holds the old document.
    Replaced(Document),
    /// The document was deleted. Holds the old document.
    Deleted(Document),
    /// The change names a number that no document has.
    Absent,
}

impl Collection {
    /// Applies changes in order, in atomic batches of at most 1,000 changes.
    ///
    /// Returns the results of the attempted changes, in order. Stops after the first error if `ordered`, and always
    /// after an error that the remaining changes would meet too. After an engine error, the whole batch is rolled back,
    /// and each of its changes gets an error as its result.
    pub fn write(&self, changes: &[Change<'_>], ordered: bool) -> Vec<Result<Changed>> {
        self.write_numbered(changes, ordered, None)
    }

    /// Writes like [`Collection::write`]. Each batch of a retryable write also commits the outcomes of its statements.
    pub fn write_numbered(
        &self,
        changes: &[Change<'_>],
        ordered: bool,
        note: Option<Outcomes<'_>>,
    ) -> Vec<Result<Changed>> {
        let mut answers = Vec::with_capacity(changes.len());
        let mut writer = self.writer.lock();
        let mut rest = changes;
        while !rest.is_empty() {
            let (chunk, behind) = rest.split_at(chunk_len(rest));
            rest = behind;
            if !self.write_chunk(&mut writer, chunk, (ordered, note), &mut answers) {
                break;
            }
        }
        answers
    }

    /// Makes all changes in one atomic batch, or none. The batch also replaces the collection's note if `note` is set.
    /// The caller limits the size of the batch.
    ///
    /// # Errors
    /// The first error. In that case, no change is made.
    pub fn write_noted(&self, changes: &[Change<'_>], note: Option<&[u8]>) -> Result<Vec<Changed>> {
        let mut writer = self.writer.lock();
        let mut transaction = Transaction::new(self, &mut writer, changes.len());
        let changed = changes.iter().map(|change| transaction.apply(change));
        let changed = changed.collect::<Result<Vec<_>>>()?;
        if let Some(note) = note {
            self.check_not_dropped()?;
            let key = catalogue::note_key(self.id).as_slice().into();
            transaction.stage(self.shared.catalogue, key, Some(note.into()));
        }
        transaction.commit()?;
        Ok(changed)
    }

    /// Returns the note: opaque bytes that the caller stores with the collection. Dropping the collection drops the
    /// note.
    ///
    /// # Errors
    /// Errors of the engine.
    pub fn note(&self) -> Result<Option<Bytes>> {
        let key = catalogue::note_key(self.id);
        self.shared.engine.get(self.shared.catalogue, &key)
    }

    /// Inserts like [`Collection::write`]. Each document must have an `_id`. Returns the record numbers.
    pub fn insert_many(
        &self,
        documents: &[&RawDocument],
        ordered: bool,
    ) -> Vec<Result<RecordNumber>> {
        self.insert_many_numbered(documents, ordered, None)
    }

    /// Inserts like [`Collection::write_numbered`]. Each document must have an `_id`. Returns the record numbers.
    pub fn insert_many_numbered(
        &self,
        documents: &[&RawDocument],
        ordered: bool,
        note: Option<Outcomes<'_>>,
    ) -> Vec<Result<RecordNumber>> {
        let changes: Vec<Change<'_>> = documents
            .iter()
            .map(|document| Change::Insert(document))
            .collect();
        let number = |changed| match changed {
            Changed::Inserted(number) => number,
            Changed::Replaced(_) | Changed::Deleted(_) | Changed::Absent => {
                unreachable!("the result of an insert is a record number or an error")
            }
        };
        self.write_numbered(&changes, ordered, note)
            .into_iter()
            .map(|answer| answer.map(number))
            .collect()
    }

    /// Inserts one document with an `_id`.
    pub fn insert(&self, document: &RawDocument) -> Result<RecordNumber> {
        self.insert_many(&[document], true)
            .pop()
            .expect("a write of one change has one result")
    }

    /// Replaces a document by one with the same `_id`. Returns the old document; `None` if the number is not in use.
    pub fn replace(
        &self,
        number: RecordNumber,
        document: &RawDocument,
    ) -> Result<Option<Document>> {
        self.write_one(Change::Replace(number, document))
    }

    /// Deletes a document. Returns the old document, or `None` if no document has this number.
    pub fn delete(&self, number: RecordNumber) -> Result<Option<Document>> {
        self.write_one(Change::Delete(number))
    }

    fn write_one(&self, change: Change<'_>) -> Result<Option<Document>> {
        match self
            .write(&[change], true)
            .pop()
            .expect("a write of one change has one result")?
        {
            Changed::Replaced(old) | Changed::Deleted(old) => Ok(Some(old)),
            Changed::Inserted(_) | Changed::Absent => Ok(None),
        }
    }

    /// Makes one batch of changes. Returns whether to continue with the next batch.
    fn write_chunk(
        &self,
        writer: &mut Writer,
        chunk: &[Change<'_>],
        (ordered, note): (bool, Option<Outcomes<'_>>),
        answers: &mut Vec<Result<Changed>>,
    ) -> bool {
        let first = answers.len();
        let mut transaction = Transaction::new(self, writer, chunk.len());
        let (mut go_on, mut failure) = (true, None);
        for change in chunk {
            let answer = transaction.apply(change);
            if let Err(error) = &answer {
                go_on = !ordered && !error.is_fatal();
                failure = Some(error.clone()).filter(StoreError::is_of_engine);
            }
            if answer.as_ref().is_ok_and(|it| *it != Changed::Absent) {
                transaction.made.push(answers.len());
            }
            answers.push(answer);
            if !go_on {
                break;
            }
        }
        let kept = match failure {
            Some(error) => Err(error),
            None => transaction.commit_noted(note),
        };
        match kept {
            Ok(()) => go_on,
            Err(error) => {
                answers[first..]
                    .iter_mut()
                    .filter(|answer| answer.is_ok())
                    .for_each(|answer| *answer = Err(error.clone()));
                false
            }
        }
    }
}

/// Returns the number of changes for the next batch, at least 1.
fn chunk_len(changes: &[Change<'_>]) -> usize {
    let mut bytes = 0;
    let fits = |change: &&Change<'_>| {
        let before = bytes;
        bytes += change.bytes();
        before < BATCH_BYTES
    };
    changes
        .iter()
        .take(BATCH_CHANGES_MAX)
        .take_while(fits)
        .count()
}

/// Staged changes that are not yet committed. Reads through the transaction see them.
pub(super) struct Transaction<'a> {
    collection: &'a Collection,
    writer: &'a mut Writer,
    indexes: Arc<Vec<Arc<Index>>>,
    statistics: Statistics,
    writes: Vec<Write>,
    /// Maps a partition and a key to the position of the key's write in `writes`.
    positions: HashMap<(PartitionId, Bytes), usize>,
    /// Ids of the indexes that this transaction makes multikey.
    multikey: Vec<u32>,
    /// Changes for the history; `None` if no history is recorded.
    changes: Option<Changes>,
    /// Positions, in the caller's list of changes, of those changes that took effect.
    made: Vec<usize>,
}

/// An index, its partition, the keys to remove and the keys to add.
type EntryChange<'a> = (&'a Arc<Index>, PartitionId, Vec<Vec<u8>>, Vec<Vec<u8>>);

impl<'a> Transaction<'a> {
    pub(super) fn new(collection: &'a Collection, writer: &'a mut Writer, changes: usize) -> Self {
        Self {
            indexes: collection.index_list(),
            statistics: writer.statistics,
            writes: Vec::with_capacity(changes * 2 + 1),
            positions: HashMap::with_capacity(changes * 2),
            multikey: Vec::new(),
            changes: collection
                .shared
                .history
                .as_ref()
                .map(|_| Changes::of(collection.namespace())),
            made: Vec::with_capacity(changes),
            collection,
            writer,
        }
    }

    fn apply(&mut self, change: &Change<'_>) -> Result<Changed> {
        self.collection.check_not_dropped()?;
        if change.nests_too_deep() {
            return Err(StoreError::TooDeep);
        }
        match *change {
            Change::Insert(document) => self.insert(document),
            Change::Replace(number, document) => {
                self.replace(number, document, ChangeKind::Replace)
            }
            Change::Update(number, document) => self.replace(number, document, ChangeKind::Update),
            Change::Delete(number) => self.delete(number),
        }
    }

    fn insert(&mut self, document: &RawDocument) -> Result<Changed> {
        let number = self.statistics.next_number;
        if number >= NUMBER_MAX {
            return Err(StoreError::NumbersExhausted {
                namespace: self.collection.namespace().to_string(),
            });
        }
        if number == NUMBER_WARNED {
            self.collection.warn_of_numbers(number);
        }
        if document.get("_id")?.is_none() {
            return Err(StoreError::MissingId);
        }
        self.change_entries(number, None, Some(document))?;
        self.put_record(number, document);
        self.record_change(ChangeKind::Insert, document);
        self.statistics.next_number += 1;
        self.statistics.documents += 1;
        Ok(Changed::Inserted(number))
    }

    fn replace(
        &mut self,
        number: RecordNumber,
        document: &RawDocument,
        kind: ChangeKind,
    ) -> Result<Changed> {
        let Some(old) = self.record(number)? else {
            return Ok(Changed::Absent);
        };
        if !same_id(old.raw(), document)? {
            return Err(StoreError::IdChanged);
        }
        self.change_entries(number, Some(old.raw()), Some(document))?;
        self.put_record(number, document);
        self.statistics.bytes -= old.len_bytes() as u64;
        match kind {
            ChangeKind::Update => self.record_update(&old, document),
            kind => self.record_change(kind, document),
        }
        Ok(Changed::Replaced(old))
    }

    fn delete(&mut self, number: RecordNumber) -> Result<Changed> {
        let Some(old) = self.record(number)? else {
            return Ok(Changed::Absent);
        };
        self.change_entries(number, Some(old.raw()), None)?;
        self.stage(
            self.collection.records.id,
            record_key(number).as_slice().into(),
            None,
        );
        if self.changes.is_some() {
            self.record_change(ChangeKind::Delete, &document_key(&old));
        }
        self.statistics.documents -= 1;
        self.statistics.bytes -= old.len_bytes() as u64;
        Ok(Changed::Deleted(old))
    }

    /// Records a change for the history, if a history is recorded.
    fn record_change(&mut self, kind: ChangeKind, detail: &RawDocument) {
        if let Some(changes) = &mut self.changes {
            changes.document(kind, self.collection.uuid, detail);
        }
    }

    fn record_update(&mut self, old: &RawDocument, new: &RawDocument) {
        if self.changes.is_some() {
            let detail = rawdoc! {
                "documentKey": document_key(new),
                "updateDescription": forebay_documents_query::update::describe(old, new),
            };
            self.record_change(ChangeKind::Update, &detail);
        }
    }

    fn put_record(&mut self, number: RecordNumber, document: &RawDocument) {
        let bytes = document.as_bytes();
        self.collection.largest.note(bytes.len());
        self.statistics.bytes += bytes.len() as u64;
        self.stage(
            self.collection.records.id,
            record_key(number).as_slice().into(),
            Some(bytes.into()),
        );
    }

    fn record(&self, number: RecordNumber) -> Result<Option<Document>> {
        let bytes = self.read(
            self.collection.records.id,
            &record_key(number).as_slice().into(),
        )?;
        bytes
            .map(|bytes| self.collection.document(bytes))
            .transpose()
    }

    /// Changes the index entries of a document. Checks all indexes before it stages any entry, so that a refused change
    /// stages nothing.
    fn change_entries(
        &mut self,
        number: RecordNumber,
        old: Option<&RawDocument>,
        new: Option<&RawDocument>,
    ) -> Result<()> {
        let indexes = Arc::clone(&self.indexes);
        let mut changes = Vec::with_capacity(indexes.len());
        for index in indexes.iter().filter(|index| index.holds(number)) {
            if let Some(partition) = index.partition_id() {
                changes.push(self.entry_change(index, partition, number, old, new)?);
            }
        }
        for (index, partition, removed, added) in changes {
            self.stage_entries(index, partition, number, &removed, &added);
        }
        Ok(())
    }

    fn entry_change<'i>(
        &mut self,
        index: &'i Arc<Index>,
        partition: PartitionId,
        number: RecordNumber,
        old: Option<&RawDocument>,
        new: Option<&RawDocument>,
    ) -> Result<EntryChange<'i>> {
        let keys = |document: Option<&RawDocument>| {
            document.map(|document| index.keys(document)).transpose()
        };
        let mut old = keys(old)?.unwrap_or_default().keys;
        let mut added = Vec::new();
        if let Some(document) = new {
            let new = index.keys(document)?;
            if new.multikey && !index.is_multikey() && !self.multikey.contains(&index.id) {
                self.multikey.push(index.id);
            }
            added = new.keys;
            if !old.is_empty() {
                let kept: Vec<Vec<u8>> = added
                    .extract_if(.., |key| old.binary_search(key).is_ok())
                    .collect();
                old.retain(|key| kept.binary_search(key).is_err());
            }
            self.check_unique(index, partition, number, &added, document)?;
        }
        Ok((index, partition, old, added))
    }

    /// Returns an error if the index is unique and another document has one of `keys` in the index.
    fn check_unique(
        &mut self,
        index: &Index,
        partition: PartitionId,
        number: RecordNumber,
        keys: &[Vec<u8>],
        document: &RawDocument,
    ) -> Result<()> {
        if !index.spec.unique {
            return Ok(());
        }
        for key in keys {
            if self.is_above_all(index, partition, key)? {
                continue;
            }
            let holder = self.read(partition, &key.as_slice().into())?;
            if holder.is_some_and(|value| index.entry_number(key, &value) != Some(number)) {
                return Err(StoreError::DuplicateKey {
                    namespace: self.collection.namespace().to_string(),
                    index: index.spec.name.clone(),
                    pattern: index.spec.pattern(),
                    values: key_values(&index.spec, document, key),
                });
            }
        }
        Ok(())
    }

    /// Returns whether a key is above all keys of a unique index. If it is, the key becomes the new upper bound. The
    /// bound stays valid if the change is refused later, because the bound need not be a key of the index. Ascending
    /// keys, such as object ids, thus need no look-up.
    ///
    /// PERF: `cargo run --release -p forebay-documents-store --example bulk -- 1000000 int` (and `random`), two cores
    /// of an AMD EPYC, November 2026: 2.2 us per document without look-ups, 11 us if each key needs one.
    fn is_above_all(&mut self, index: &Index, partition: PartitionId, key: &[u8]) -> Result<bool> {
        let highest = match self.writer.highest.get(&index.id) {
            Some(highest) => highest.clone(),
            None => self.highest_key(partition)?,
        };
        let above = *key > *highest;
        let highest = if above { key.into() } else { highest };
        self.writer.highest.insert(index.id, highest);
        Ok(above)
    }

    /// Returns the highest key of a partition, or an empty key if the partition is empty.
    fn highest_key(&self, partition: PartitionId) -> Result<Bytes> {
        let one = PageLimit {
            entries: 1,
            bytes: 1,
        };
        let page = self.collection.shared.engine.page(
            partition,
            &KeyRange::all(),
            Direction::Backward,
            one,
        )?;
        Ok(page
            .into_iter()
            .next()
            .map_or_else(Bytes::empty, |(key, _)| key))
    }

    fn stage_entries(
        &mut self,
        index: &Index,
        partition: PartitionId,
        number: RecordNumber,
        removed: &[Vec<u8>],
        added: &[Vec<u8>],
    ) {
        for key in removed {
            let (entry, _) = index.entry(key, number);
            self.stage(partition, entry, None);
        }
        for key in added {
            let (entry, value) = index.entry(key, number);
            self.stage(partition, entry, Some(value));
        }
    }

    /// Adds a document's entries to an index that is being built.
    pub(super) fn add_to_index(
        &mut self,
        index: &Arc<Index>,
        partition: PartitionId,
        number: RecordNumber,
        document: &RawDocument,
    ) -> Result<()> {
        let (_, _, _, added) = self.entry_change(index, partition, number, None, Some(document))?;
        self.stage_entries(index, partition, number, &[], &added);
        Ok(())
    }

    fn read(&self, partition: PartitionId, key: &Bytes) -> Result<Option<Bytes>> {
        match self.positions.get(&(partition, key.clone())) {
            Some(at) => Ok(self.writes[*at].value.clone()),
            None => self.collection.shared.engine.get(partition, key),
        }
    }

    fn stage(&mut self, partition: PartitionId, key: Bytes, value: Option<Bytes>) {
        let at = *self
            .positions
            .entry((partition, key.clone()))
            .or_insert(self.writes.len());
        match self.writes.get_mut(at) {
            Some(write) => write.value = value,
            None => self.writes.push(Write {
                partition,
                key,
                value,
            }),
        }
    }

    /// Commits all staged writes and the counters in one batch, then publishes the counters to readers.
    pub(super) fn commit(self) -> Result<()> {
        self.commit_noted(None)
    }

    /// Commits like [`commit`](Transaction::commit). Also stores the outcomes of the changes that took effect.
    fn commit_noted(self, note: Option<Outcomes<'_>>) -> Result<()> {
        if self.writes.is_empty() {
            return Ok(());
        }
        let collection = self.collection;
        let catalogue = collection.shared.catalogue;
        let mut batch = Batch {
            writes: self.writes,
        };
        if self.statistics != self.writer.statistics {
            let key = catalogue::statistics_key(collection.id);
            batch.put(catalogue, key, self.statistics.encode().as_slice());
        }
        if !self.multikey.is_empty() {
            let entry = collection.entry(&collection.namespace(), &self.indexes, &self.multikey);
            batch.put(
                catalogue,
                catalogue::collection_key(collection.id),
                entry.encode()?,
            );
        }
        let outcomes = note.map(|note| {
            let made = self.made.iter().map(|at| &note.statements[*at]);
            (note.write, note.write.put_part(&mut batch, made))
        });
        let changes = self.changes.unwrap_or_default();
        collection.commit(batch, changes, self.statistics)?;
        if let Some((write, part)) = outcomes {
            write.committed(&part);
        }
        let became_multikey = |index: &&Arc<Index>| self.multikey.contains(&index.id);
        self.indexes
            .iter()
            .filter(became_multikey)
            .for_each(|index| index.set_multikey());
        self.writer.statistics = self.statistics;
        Ok(())
    }
}

/// Returns `{_id: …}` of a document.
fn document_key(document: &RawDocument) -> RawDocumentBuf {
    let mut key = RawDocumentBuf::new();
    if let Ok(Some(id)) = document.get("_id") {
        key.append(cstr!("_id"), id);
    }
    key
}

/// Returns whether two documents have equal `_id`s.
fn same_id(old: &RawDocument, new: &RawDocument) -> Result<bool> {
    match (old.get("_id")?, new.get("_id")?) {
        (Some(old), Some(new)) => Ok(forebay_documents_query::compare(old, new).is_eq()),
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use forebay_cancel::Stop;

    use super::*;
    use crate::index::IndexSpec;
    use crate::{IndexBounds, Store, StoreOptions};

    /// Builds `{_id: id, x: …}` with `levels` levels of nested arrays or nested documents.
    fn deep(id: i32, levels: usize, arrays: bool) -> RawDocumentBuf {
        let mut writer = forebay_documents_query::element::Writer::new();
        writer.value("_id", RawBsonRef::Int32(id));
        for level in 1..levels {
            match (arrays, level) {
                (true, 2..) => writer.begin_array("0"),
                (true, _) => writer.begin_array("x"),
                (false, _) => writer.begin_document("x"),
            }
        }
        writer.finish()
    }

    #[test]
    fn what_nests_too_deep_is_not_stored() {
        let store = Store::open(StoreOptions::memory()).expect("a store in memory opens");
        let collection = store.collection_or_create("db", "c").expect("creates");
        let number = collection.insert(&deep(1, 200, true)).expect("200 levels");
        let (insert, replace) = (deep(2, 201, false), deep(1, 201, true));
        for change in [
            Change::Insert(&insert),
            Change::Replace(number, &replace),
            Change::Update(number, &replace),
        ] {
            let answers = collection.write(&[change], true);
            assert!(
                matches!(answers[..], [Err(StoreError::TooDeep)]),
                "{answers:?}"
            );
        }
        let report = collection.verify(&Stop::never()).expect("reads");
        assert!(report.is_clean() && report.documents == 1, "{report:?}");
    }

    /// Earlier releases did not check the depth, so their stores may hold documents that nest too deep.
    #[test]
    fn what_nests_too_deep_on_disk_is_indexed_reported_and_deleted() {
        let store = Store::open(StoreOptions::memory()).expect("a store in memory opens");
        let collection = store.collection_or_create("db", "c").expect("creates");
        for (id, levels, arrays) in [(1, 20_000, true), (2, 100_000, false), (3, 20_000, true)] {
            let mut writer = collection.writer.lock();
            let mut transaction = Transaction::new(&collection, &mut writer, 1);
            transaction
                .insert(&deep(id, levels, arrays))
                .expect("nothing checks");
            transaction.commit().expect("commits");
        }
        let create = |spec: IndexSpec| collection.create_index(spec, Default::default());
        create(IndexSpec::ascending("x.y")).expect("builds");
        assert!(matches!(
            create(IndexSpec::ascending("x")),
            Err(StoreError::KeyTooLong { .. })
        ));
        collection.delete(1).expect("deletes");
        let taken = create(IndexSpec::ascending("x").unique()).expect_err("two are equal");
        assert!(matches!(taken, StoreError::DuplicateKey { .. }), "{taken}");
        assert!(taken.to_string().len() < 1_000, "{taken}");
        let report = collection.verify(&Stop::never()).expect("reads");
        assert_eq!(report.problem_count, 2, "{:?}", report.problems);
        assert!(
            report.problems[0].contains("200 levels"),
            "{:?}",
            report.problems
        );
        for number in [0, 2] {
            collection.delete(number).expect("deletes");
        }
        let left = collection.index_scan("x.y_1", &IndexBounds::all(), crate::Direction::Forward);
        assert_eq!(left.expect("an index").count(), 0);
    }
}
