//! Changing documents that a search has found: update and delete, a chunk under each hold of the write lock.
//!
//! A document is read and judged again under the lock, so that a change never applies to what it was not meant for.

use bson::{DateTime, RawDocument, RawDocumentBuf};
use forebay_cancel::Stop;
use forebay_documents_query::filter::Match;
use forebay_documents_query::{Filter, Update, UpdateContext};
use forebay_documents_store::{Change, Changed, Document, Outcomes, RecordNumber, StoreError};

use crate::collections::OpenCollection;
use crate::error::CommandError;
use crate::retry::{Keep, note};

/// Documents that are looked at under one hold of the lock.
const CHUNK_DOCUMENTS: usize = 256;
/// Bytes of documents, old and new, that are held under one hold of the lock, but for the last of them.
const CHUNK_BYTES: usize = 8 << 20;

/// The documents that are still to be changed, and the room under the present hold of the lock.
struct Left<'a> {
    numbers: &'a [RecordNumber],
    documents_max: usize,
    documents: usize,
    bytes: usize,
}

impl<'a> Left<'a> {
    fn new(numbers: &'a [RecordNumber], first_only: bool) -> Left<'a> {
        Left {
            numbers,
            documents_max: if first_only { 1 } else { CHUNK_DOCUMENTS },
            documents: 0,
            bytes: 0,
        }
    }

    /// Makes room for the next hold of the lock; false if no document is left.
    fn begin(&mut self) -> bool {
        (self.documents, self.bytes) = (0, 0);
        !self.numbers.is_empty()
    }

    /// The next document, if there is room.
    fn next(&mut self) -> Option<RecordNumber> {
        if self.documents >= self.documents_max || self.bytes >= CHUNK_BYTES {
            return None;
        }
        let (number, rest) = self.numbers.split_first()?;
        self.numbers = rest;
        self.documents += 1;
        Some(*number)
    }

    /// Notes that a document is held.
    fn hold(&mut self, document: &RawDocument) {
        self.bytes += document.as_bytes().len();
    }
}

/// How many of the documents that match are to be changed.
#[derive(Clone, Copy)]
pub enum Reach<'a> {
    /// All.
    All,
    /// The first of them. The outcome of its change is kept if the write is numbered.
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

/// What an update did.
#[derive(Debug, Default)]
pub struct Updated {
    /// Documents that matched.
    pub matched: usize,
    /// Documents that are different now.
    pub modified: usize,
    /// The last document that matched, before and after.
    pub last: Option<(RawDocumentBuf, RawDocumentBuf)>,
}

/// Updates the documents of these numbers that still match, as far as `reach` says.
///
/// # Errors
/// The first failure; what was changed before it stays changed and is counted in `done`.
pub fn update(
    collection: &OpenCollection,
    (filter, update): (&Filter, &Update),
    (numbers, reach): (&[RecordNumber], Reach<'_>),
    stop: &Stop,
    done: &mut Updated,
) -> Result<(), CommandError> {
    let now = DateTime::now();
    let mut left = Left::new(numbers, reach.is_first());
    while left.begin() {
        stop.check()?;
        let _held = collection.hold(stop)?;
        let mut changes = Vec::new();
        let what = (filter, update, now);
        let prepared = prepare(collection, what, &mut left, done, &mut changes);
        replace(collection, update, changes, reach, done)?;
        prepared?;
        if reach.is_first() && done.matched > 0 {
            break;
        }
    }
    Ok(())
}

/// A document to be replaced: its number, what it is, what it becomes.
type Replacement = (RecordNumber, Document, RawDocumentBuf);

/// Finds out what the update makes of the documents that match, up to the first that it cannot be applied to.
fn prepare(
    collection: &OpenCollection,
    (filter, update, now): (&Filter, &Update, DateTime),
    left: &mut Left<'_>,
    done: &mut Updated,
    changes: &mut Vec<Replacement>,
) -> Result<(), CommandError> {
    while let Some(number) = left.next() {
        match changed(collection, filter, update, now, number)? {
            Some((old, Some(new))) => {
                left.hold(&old);
                left.hold(&new);
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

/// The document of a number, if it matches, and what the update makes of it, if that is something else.
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
    let change = match update.is_replacement() {
        true => Change::Replace,
        false => Change::Update,
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

/// What a deletion did.
#[derive(Debug, Default)]
pub struct Deleted {
    /// Documents that are gone.
    pub count: usize,
    /// The last of them.
    pub last: Option<Document>,
}

/// Deletes the documents of these numbers that still match, as far as `reach` says.
///
/// # Errors
/// The first failure; what was deleted before it stays deleted and is counted in `done`.
pub fn delete(
    collection: &OpenCollection,
    filter: &Filter,
    (numbers, reach): (&[RecordNumber], Reach<'_>),
    stop: &Stop,
    done: &mut Deleted,
) -> Result<(), CommandError> {
    let mut left = Left::new(numbers, reach.is_first());
    while left.begin() {
        stop.check()?;
        let _held = collection.hold(stop)?;
        let (mut changes, mut statements) = (Vec::new(), Vec::new());
        while let Some(number) = left.next() {
            if let Some(document) = collection.store.get(number)?
                && filter.try_matches(&document)?
            {
                left.hold(&document);
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

/// Inserts one document, as an upsert does.
///
/// # Errors
/// That its `_id` cannot be one, that the command has to end, and whatever the store says.
pub fn insert(
    collection: &OpenCollection,
    document: &RawDocument,
    keep: Option<&Keep<'_>>,
    stop: &Stop,
) -> Result<(), CommandError> {
    let document = crate::commands::insert::with_id(document)?;
    let statement = keep.map(|keep| keep.statement(None, Some(&document)));
    let statements = Vec::from_iter(statement.transpose()?);
    let held = collection.hold(stop)?;
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

    /// The documents of each hold of the lock, where each has so many bytes.
    fn chunks(numbers: &[RecordNumber], first_only: bool, bytes: usize) -> Vec<usize> {
        let document = rawdoc! { "s": "x".repeat(bytes) };
        let mut left = Left::new(numbers, first_only);
        let mut chunks = Vec::new();
        while left.begin() {
            let mut count = 0;
            while left.next().is_some() {
                left.hold(&document);
                count += 1;
            }
            chunks.push(count);
        }
        chunks
    }

    #[test]
    fn a_hold_of_the_lock_is_bounded_by_documents_and_by_bytes() {
        let numbers: Vec<RecordNumber> = (1..=300).collect();
        assert_eq!(chunks(&numbers, false, 10), [256, 44]);
        assert_eq!(chunks(&numbers[..5], false, 4 << 20), [2, 2, 1]);
        assert_eq!(chunks(&numbers[..2], false, 16 << 20), [1, 1]);
        assert_eq!(chunks(&numbers[..2], true, 10), [1, 1]);
        assert!(chunks(&[], false, 10).is_empty());
    }
}
