//! Updates and deletes the documents that a search has found, in chunks. The write lock is released between chunks.
//!
//! Under the lock, each document is read and checked against the filter again, so that a document that no longer
//! matches is never changed.

use bson::{DateTime, RawDocument, RawDocumentBuf};
use forebay_cancel::Stop;
use forebay_documents_query::filter::Match;
use forebay_documents_query::{Filter, Update, UpdateContext};
use forebay_documents_store::{Change, Changed, Document, Outcomes, RecordNumber, StoreError};

use crate::collections::OpenCollection;
use crate::error::CommandError;
use crate::retry::{Keep, note};

/// Maximum documents of a chunk.
const CHUNK_DOCUMENTS: usize = 256;
/// Bytes of old and new documents at which a chunk ends. Its last document may exceed this.
const CHUNK_BYTES: usize = 8 << 20;

/// The documents still to be changed, divided into chunks.
struct ChunkCursor<'a> {
    numbers: &'a [RecordNumber],
    documents_max: usize,
    documents: usize,
    bytes: usize,
}

impl<'a> ChunkCursor<'a> {
    fn new(numbers: &'a [RecordNumber], first_only: bool) -> ChunkCursor<'a> {
        ChunkCursor {
            numbers,
            documents_max: if first_only { 1 } else { CHUNK_DOCUMENTS },
            documents: 0,
            bytes: 0,
        }
    }

    /// Begins the next chunk. Returns false if no document remains.
    fn begin(&mut self) -> bool {
        (self.documents, self.bytes) = (0, 0);
        !self.numbers.is_empty()
    }

    /// Returns the next document's record number, or `None` at the end of the chunk.
    fn next(&mut self) -> Option<RecordNumber> {
        if self.documents >= self.documents_max || self.bytes >= CHUNK_BYTES {
            return None;
        }
        let (number, rest) = self.numbers.split_first()?;
        self.numbers = rest;
        self.documents += 1;
        Some(*number)
    }

    /// Adds a document that is held in memory to the bytes of the chunk.
    fn count_bytes(&mut self, document: &RawDocument) {
        self.bytes += document.as_bytes().len();
    }
}

/// The matching documents to change.
#[derive(Clone, Copy)]
pub enum Reach<'a> {
    /// All of them.
    All,
    /// Only the first one. For a retryable write, the outcome of the change is stored with it.
    First(Option<&'a Keep<'a>>),
}

impl<'a> Reach<'a> {
    fn is_first(self) -> bool {
        matches!(self, Reach::First(_))
    }

    fn keep(self) -> Option<&'a Keep<'a>> {
        match self {
            Reach::All => None,
            Reach::First(keep) => keep,
        }
    }
}

/// The result of an update.
#[derive(Debug, Default)]
pub struct Updated {
    /// Number of documents that matched.
    pub matched: usize,
    /// Number of documents that were changed.
    pub modified: usize,
    /// The last document that matched, before and after the update.
    pub last: Option<(RawDocumentBuf, RawDocumentBuf)>,
}

/// Updates the documents with these record numbers that still match: all, or only the first (`reach`).
///
/// # Errors
/// The first failure. Changes made before the failure persist and are counted in `done`.
pub fn update(
    collection: &OpenCollection,
    filter: &Filter,
    update: &Update,
    numbers: &[RecordNumber],
    reach: Reach<'_>,
    stop: &Stop,
    done: &mut Updated,
) -> Result<(), CommandError> {
    let now = DateTime::now();
    let mut left = ChunkCursor::new(numbers, reach.is_first());
    while left.begin() {
        stop.check()?;
        let _held = collection.lock_writes(stop)?;
        let mut changes = Vec::new();
        let prepared = prepare(
            collection,
            filter,
            update,
            now,
            &mut left,
            done,
            &mut changes,
        );
        replace(collection, update, changes, reach, done)?;
        prepared?;
        if reach.is_first() && done.matched > 0 {
            break;
        }
    }
    Ok(())
}

/// A replacement: the document's record number, its current version and its new version.
type Replacement = (RecordNumber, Document, RawDocumentBuf);

/// Computes the new versions of the documents that match, up to the first one for which the update fails.
fn prepare(
    collection: &OpenCollection,
    filter: &Filter,
    update: &Update,
    now: DateTime,
    left: &mut ChunkCursor<'_>,
    done: &mut Updated,
    changes: &mut Vec<Replacement>,
) -> Result<(), CommandError> {
    while let Some(number) = left.next() {
        match changed(collection, filter, update, now, number)? {
            Some((old, Some(new))) => {
                left.count_bytes(&old);
                left.count_bytes(&new);
                changes.push((number, old, new));
            }
            Some((old, None)) => {
                done.matched += 1;
                done.last = Some((old.to_buf(), old.to_buf()));
            }
            None => {}
        }
    }
    Ok(())
}

/// Returns the document with this number and its new version, or `None` if the document does not match. The new version
/// is `None` if the update changes nothing.
fn changed(
    collection: &OpenCollection,
    filter: &Filter,
    update: &Update,
    now: DateTime,
    number: RecordNumber,
) -> Result<Option<(Document, Option<RawDocumentBuf>)>, CommandError> {
    let Some(old) = collection.store.get(number)? else {
        return Ok(None);
    };
    let Match::Yes { index } = filter.match_position(&old)? else {
        return Ok(None);
    };
    let new = update.apply(&old, &UpdateContext::new(now, index))?;
    Ok(Some((old, new)))
}

/// Writes replacements. The caller holds the write lock.
fn replace(
    collection: &OpenCollection,
    update: &Update,
    changes: Vec<Replacement>,
    reach: Reach<'_>,
    done: &mut Updated,
) -> Result<(), CommandError> {
    let change = if update.is_replacement() {
        Change::Replace
    } else {
        Change::Update
    };
    let writes: Vec<Change<'_>> = changes
        .iter()
        .map(|(number, _, new)| change(*number, new))
        .collect();
    let statements = changes
        .iter()
        .filter_map(|(_, old, new)| Some(reach.keep()?.statement(Some(old), Some(new))))
        .collect::<Result<Vec<_>, _>>()?;
    let note = note(reach.keep(), &statements);
    let answers = collection.store.write_numbered(&writes, true, note);
    let mut failure = None;
    for (answer, (number, old, new)) in answers.into_iter().zip(changes) {
        match answer {
            Ok(_) => {
                collection.search.on_replace(number, &old, &new);
                done.matched += 1;
                done.modified += 1;
                if reach.is_first() {
                    done.last = Some((old.to_buf(), new));
                }
            }
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(()), |error| Err(CommandError::from(error)))
}

/// The result of a deletion.
#[derive(Debug, Default)]
pub struct Deleted {
    /// Number of documents deleted.
    pub count: usize,
    /// The last deleted document.
    pub last: Option<Document>,
}

/// Deletes the documents with these record numbers that still match: all, or only the first (`reach`).
///
/// # Errors
/// The first failure. Deletions made before the failure persist and are counted in `done`.
pub fn delete(
    collection: &OpenCollection,
    filter: &Filter,
    numbers: &[RecordNumber],
    reach: Reach<'_>,
    stop: &Stop,
    done: &mut Deleted,
) -> Result<(), CommandError> {
    let mut left = ChunkCursor::new(numbers, reach.is_first());
    while left.begin() {
        stop.check()?;
        let _held = collection.lock_writes(stop)?;
        let (mut changes, mut statements) = (Vec::new(), Vec::new());
        while let Some(number) = left.next() {
            if let Some(document) = collection.store.get(number)?
                && filter.try_matches(&document)?
            {
                left.count_bytes(&document);
                if let Some(keep) = reach.keep() {
                    statements.push(keep.statement(Some(&document), None)?);
                }
                changes.push(Change::Delete(number));
            }
        }
        remove(collection, &changes, note(reach.keep(), &statements), done)?;
        if reach.is_first() && done.count > 0 {
            break;
        }
    }
    Ok(())
}

/// Writes deletions. The caller holds the write lock.
fn remove(
    collection: &OpenCollection,
    changes: &[Change<'_>],
    note: Option<Outcomes<'_>>,
    done: &mut Deleted,
) -> Result<(), CommandError> {
    let answers = collection.store.write_numbered(changes, true, note);
    let mut failure: Option<StoreError> = None;
    for (answer, change) in answers.into_iter().zip(changes) {
        match (answer, change) {
            (Ok(Changed::Deleted(old)), Change::Delete(number)) => {
                collection.search.on_delete(*number, &old);
                done.count += 1;
                done.last = Some(old);
            }
            (Ok(_), _) => {}
            (Err(error), _) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(()), |error| Err(CommandError::from(error)))
}

/// Inserts one document for an upsert.
///
/// # Errors
/// An error for an invalid `_id`, for a command that is stopped before it has the lock, or from the store.
pub fn insert(
    collection: &OpenCollection,
    document: &RawDocument,
    keep: Option<&Keep<'_>>,
    stop: &Stop,
) -> Result<(), CommandError> {
    let document = crate::commands::insert::with_id(document)?;
    let statement = keep.map(|keep| keep.statement(None, Some(&document)));
    let statements = Vec::from_iter(statement.transpose()?);
    let held = collection.lock_writes(stop)?;
    let note = note(keep, &statements);
    let answers = collection
        .store
        .insert_many_numbered(&[&document], true, note);
    let number = answers
        .into_iter()
        .next()
        .expect("one change has one answer")?;
    collection
        .search
        .on_insert_many(held, &[(number, &document)], None);
    Ok(())
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    /// Returns the number of documents of each chunk, if each document has `bytes` bytes.
    fn chunks(numbers: &[RecordNumber], first_only: bool, bytes: usize) -> Vec<usize> {
        let document = rawdoc! { "s": "x".repeat(bytes) };
        let mut left = ChunkCursor::new(numbers, first_only);
        let mut chunks = Vec::new();
        while left.begin() {
            let mut count = 0;
            while left.next().is_some() {
                left.count_bytes(&document);
                count += 1;
            }
            chunks.push(count);
        }
        chunks
    }

    #[test]
    fn a_chunk_is_bounded_by_documents_and_by_bytes() {
        let numbers: Vec<RecordNumber> = (1..=300).collect();
        assert_eq!(chunks(&numbers, false, 10), [256, 44]);
        assert_eq!(chunks(&numbers[..5], false, 4 << 20), [2, 2, 1]);
        assert_eq!(chunks(&numbers[..2], false, 16 << 20), [1, 1]);
        assert_eq!(chunks(&numbers[..2], true, 10), [1, 1]);
        assert!(chunks(&[], false, 10).is_empty());
    }
}
