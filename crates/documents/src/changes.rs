//! Updates and deletes the documents that a search has found, in chunks. The write lock is released between chunks.
//!
//! Under the lock, each document is read and checked against the filter again, so that a document that no longer
//! matches is never changed. A change that takes long to compute is computed without the lock, and is written if the
//! document has not changed meanwhile. Otherwise, the change takes a turn at the lock: it is computed again under the
//! lock, for at most twice the time that it took before ([`crate::slow_turns`]). An expression that never ends gets no
//! turn, so it does not block other writers.

use std::time::{Duration, Instant};

use bson::{DateTime, RawDocument, RawDocumentBuf};
use forebay_cancel::{SharedStop, Stop};
use forebay_documents_query::filter::Match;
use forebay_documents_query::{Filter, Update, UpdateContext};
use forebay_documents_store::{Change, Changed, Document, RecordNumber, StoreError};
use forebay_memory::{Account, FREE_BYTES, Held, Share};

use crate::collections::OpenCollection;
use crate::error::CommandError;
use crate::places::room_for_growth;
use crate::request::Request;
use crate::retry::{Keep, note};

/// Maximum number of documents in a chunk.
const CHUNK_DOCUMENTS: usize = 256;
/// Bytes of old and new documents at which a chunk ends. The last document of a chunk may exceed this limit.
const CHUNK_BYTES: usize = 8 << 20;
/// Copies of a document: itself, and one in the store's batch.
const COPIES: usize = 2;
/// Maximum time for computing changes before the write lock is released.
const LOCKED_TIME: Duration = Duration::from_millis(20);

/// The remaining documents to change, divided into chunks.
struct ChunkCursor<'a> {
    numbers: &'a [RecordNumber],
    documents_max: usize,
    documents: usize,
    bytes: usize,
    /// Memory for the copies of the documents after the first. The command has memory for one document.
    held: Held,
    is_full: bool,
}

impl<'a> ChunkCursor<'a> {
    fn new(numbers: &'a [RecordNumber], first_only: bool, memory: &Account) -> ChunkCursor<'a> {
        ChunkCursor {
            numbers,
            documents_max: if first_only { 1 } else { CHUNK_DOCUMENTS },
            documents: 0,
            bytes: 0,
            held: Held::new(memory, FREE_BYTES),
            is_full: false,
        }
    }

    /// Begins the next chunk. Returns false if no document remains.
    fn begin(&mut self) -> bool {
        (self.documents, self.bytes, self.is_full) = (0, 0, false);
        self.held.give_back(self.held.bytes());
        !self.numbers.is_empty()
    }

    /// Returns the next document's record number, or `None` at the end of the chunk.
    fn next(&mut self) -> Option<RecordNumber> {
        let is_full = self.is_full || self.bytes >= CHUNK_BYTES;
        if is_full || self.documents >= self.documents_max {
            return None;
        }
        let (number, rest) = self.numbers.split_first()?;
        self.documents += 1;
        self.numbers = rest;
        Some(*number)
    }

    /// Charges the copies of a document. Ends the chunk if there is no room, so that the chunk is written and released.
    fn charge(&mut self, document: &RawDocument) {
        let bytes = document.as_bytes().len();
        self.bytes += bytes;
        if self.documents > 1 {
            self.is_full |= self.held.take(COPIES * bytes).is_err();
        }
    }
}

/// The matching documents to change.
#[derive(Clone, Copy)]
pub enum Reach<'a> {
    /// All matches.
    All,
    /// Only the first match. For a retryable write, [`Keep`] computes the statement's outcome, which is stored in the
    /// same batch as the change.
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

    /// Returns the id and the outcome of the statement that changes `old` to `new`. Returns `None` if outcomes are not
    /// recorded.
    fn statement(
        self,
        old: &RawDocument,
        new: Option<&RawDocument>,
    ) -> Result<Option<(i32, Vec<u8>)>, CommandError> {
        let keep = self.keep();
        keep.map(|keep| keep.statement(Some(old), new)).transpose()
    }
}

/// A computed change of a matching document.
struct Pending {
    number: RecordNumber,
    old: Document,
    /// The new version. `None` for a deletion, and for an update that changes nothing.
    new: Option<RawDocumentBuf>,
    /// The id and the outcome of the statement; `None` if outcomes are not recorded.
    statement: Option<(i32, Vec<u8>)>,
    /// The memory for the copies of a new version that is larger than the command's documents were.
    room: Option<Share>,
}

/// Changes documents of a collection for a command.
struct Writer<'a> {
    collection: &'a OpenCollection,
    stop: &'a Stop,
    /// Both the filter and the update check this cancellation token. It has the deadline and the cancellation of
    /// `stop`; under the write lock, its deadline may be earlier.
    shared_stop: &'a SharedStop,
    memory: &'a Account,
}

impl<'a> Writer<'a> {
    fn new(collection: &'a OpenCollection, request: &'a Request<'_>) -> Writer<'a> {
        Writer {
            collection,
            stop: request.stop(),
            shared_stop: &request.shared_stop,
            memory: &request.documents.settings().memory,
        }
    }

    /// Rereads the documents with the record numbers `numbers`, and changes all that match, or only the first. `judge`
    /// reads a document and, if the document matches, computes its change. `write` is called under the write lock. It
    /// writes the computed changes, and returns the number of documents that have matched so far.
    ///
    /// # Errors
    /// The first failure. Changes computed before the failure are written.
    fn change(
        &self,
        numbers: &[RecordNumber],
        first_only: bool,
        judge: impl Fn(RecordNumber) -> Result<Option<Pending>, CommandError>,
        mut write: impl FnMut(Vec<Pending>) -> Result<usize, CommandError>,
    ) -> Result<(), CommandError> {
        let mut left = ChunkCursor::new(numbers, first_only, self.memory);
        while left.begin() {
            self.stop.check()?;
            let (mut matched, slow) = {
                let _held = self.collection.lock_writes(self.stop)?;
                let mut chunk = Vec::new();
                let until = Instant::now() + LOCKED_TIME;
                let slow = self.shared_stop.until(until, || {
                    self.compute_chunk(until, &mut left, &judge, &mut chunk)
                });
                (write(chunk)?, slow?)
            };
            if let Some(number) = slow
                && let Some(count) = self.change_slowly(number, &judge, &mut write)?
            {
                matched = count;
            }
            if first_only && matched > 0 {
                break;
            }
        }
        Ok(())
    }

    /// Computes the changes of a chunk. Stops at the time `until`, or at the first failure. If `until` passes while the
    /// change of a document is being computed, returns that document's record number.
    fn compute_chunk(
        &self,
        until: Instant,
        left: &mut ChunkCursor<'_>,
        judge: impl Fn(RecordNumber) -> Result<Option<Pending>, CommandError>,
        chunk: &mut Vec<Pending>,
    ) -> Result<Option<RecordNumber>, CommandError> {
        while let Some(number) = left.next() {
            match judge(number) {
                Ok(Some(pending)) => {
                    left.charge(&pending.old);
                    if let Some(new) = &pending.new {
                        left.charge(new);
                    }
                    chunk.push(pending);
                }
                Ok(None) => {}
                Err(CommandError::Stopped(_)) if self.stop.check().is_ok() => {
                    return Ok(Some(number));
                }
                Err(error) => return Err(error),
            }
            if Instant::now() >= until {
                break;
            }
        }
        Ok(None)
    }

    /// Changes a document whose change takes long. Returns what `write` returned, or `None` if the document does not
    /// match.
    fn change_slowly(
        &self,
        number: RecordNumber,
        judge: impl Fn(RecordNumber) -> Result<Option<Pending>, CommandError>,
        mut write: impl FnMut(Vec<Pending>) -> Result<usize, CommandError>,
    ) -> Result<Option<usize>, CommandError> {
        loop {
            self.stop.check()?;
            let begun = Instant::now();
            let Some(pending) = judge(number)? else {
                return Ok(None);
            };
            let took = begun.elapsed();
            let _held = self.collection.lock_writes(self.stop)?;
            if self.is_current(&pending)? {
                return write(vec![pending]).map(Some);
            }
            drop(pending);
            let Some(turn) = self.collection.slow_turns.begin(took) else {
                continue;
            };
            match self.shared_stop.until(turn.until, || judge(number)) {
                Ok(Some(pending)) => return write(vec![pending]).map(Some),
                Err(CommandError::Stopped(_)) if self.stop.check().is_ok() => {}
                other => return other.map(|_| None),
            }
        }
    }

    /// Returns whether the stored document is the version from which the change was computed. The caller holds the
    /// write lock.
    fn is_current(&self, pending: &Pending) -> Result<bool, CommandError> {
        let now = self.collection.store.get(pending.number)?;
        Ok(now.as_ref() == Some(&pending.old))
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

/// Rereads the documents with the record numbers `numbers`, and updates all that match, or only the first (`reach`).
///
/// # Errors
/// The first failure. Changes made before the failure persist and are counted in `done`.
pub fn update(
    collection: &OpenCollection,
    filter: &Filter,
    update: &Update,
    numbers: &[RecordNumber],
    reach: Reach<'_>,
    request: &Request<'_>,
    done: &mut Updated,
) -> Result<(), CommandError> {
    let now = DateTime::now();
    let memory = &request.documents.settings().memory;
    let judge = |number| {
        let Some(old) = collection.store.get(number)? else {
            return Ok(None);
        };
        let Match::Yes { index } = filter.match_position(&old)? else {
            return Ok(None);
        };
        let new = update.apply(&old, &UpdateContext::new(now, index))?;
        let (mut statement, mut room) = (None, None);
        if let Some(new) = &new {
            room = room_for_growth(new, reach.keep().is_some(), memory)?;
            statement = reach.statement(&old, Some(new))?;
        }
        Ok(Some(Pending {
            number,
            old,
            new,
            statement,
            room,
        }))
    };
    let write = |chunk| {
        replace(collection, update, chunk, reach, done)?;
        Ok(done.matched)
    };
    Writer::new(collection, request).change(numbers, reach.is_first(), judge, write)
}

/// Writes replacements. The caller holds the write lock.
fn replace(
    collection: &OpenCollection,
    update: &Update,
    chunk: Vec<Pending>,
    reach: Reach<'_>,
    done: &mut Updated,
) -> Result<(), CommandError> {
    let change = if update.is_replacement() {
        Change::Replace
    } else {
        Change::Update
    };
    let (mut replacements, mut statements) = (Vec::with_capacity(chunk.len()), Vec::new());
    // Held until the replacements are written.
    let mut rooms = Vec::new();
    for pending in chunk {
        statements.extend(pending.statement);
        rooms.extend(pending.room);
        match pending.new {
            Some(new) => replacements.push((pending.number, pending.old, new)),
            None => {
                done.matched += 1;
                done.last = Some((pending.old.to_buf(), pending.old.to_buf()));
            }
        }
    }
    let writes = replacements.iter();
    let writes: Vec<Change<'_>> = writes
        .map(|(number, _, new)| change(*number, new))
        .collect();
    let note = note(reach.keep(), &statements);
    let answers = collection.store.write_numbered(&writes, true, note);
    let mut failure = None;
    for (answer, (number, old, new)) in answers.into_iter().zip(replacements) {
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

/// Rereads the documents with the record numbers `numbers`, and deletes all that match, or only the first (`reach`).
///
/// # Errors
/// The first failure. Deletions made before the failure persist and are counted in `done`.
pub fn delete(
    collection: &OpenCollection,
    filter: &Filter,
    numbers: &[RecordNumber],
    reach: Reach<'_>,
    request: &Request<'_>,
    done: &mut Deleted,
) -> Result<(), CommandError> {
    let before = done.count;
    let judge = |number| {
        let Some(old) = collection.store.get(number)? else {
            return Ok(None);
        };
        if !filter.try_matches(&old)? {
            return Ok(None);
        }
        let statement = reach.statement(&old, None)?;
        Ok(Some(Pending {
            number,
            old,
            new: None,
            statement,
            room: None,
        }))
    };
    let write = |chunk| {
        remove(collection, chunk, reach, done)?;
        Ok(done.count - before)
    };
    Writer::new(collection, request).change(numbers, reach.is_first(), judge, write)
}

/// Writes deletions. The caller holds the write lock.
fn remove(
    collection: &OpenCollection,
    chunk: Vec<Pending>,
    reach: Reach<'_>,
    done: &mut Deleted,
) -> Result<(), CommandError> {
    let changes = chunk.iter().map(|pending| Change::Delete(pending.number));
    let changes: Vec<Change<'_>> = changes.collect();
    let statements = chunk.into_iter().filter_map(|pending| pending.statement);
    let statements: Vec<_> = statements.collect();
    let note = note(reach.keep(), &statements);
    let answers = collection.store.write_numbered(&changes, true, note);
    let mut failure: Option<StoreError> = None;
    for (answer, change) in answers.into_iter().zip(&changes) {
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
/// - An error for an invalid `_id`.
/// - [`CommandError::Stopped`] if the command is stopped before it has the write lock.
/// - The store's error.
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
        .expect("an insertion of one document has one outcome")?;
    collection
        .search
        .on_insert_many(held, &[(number, &document)], None);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use bson::rawdoc;
    use forebay_cancel::StopReason;
    use forebay_device::{DeviceOptions, DeviceSpec, Devices};

    use super::*;
    use crate::documents::Documents;
    use crate::namespace::Namespace;
    use crate::settings::Settings;

    fn collection() -> (Arc<Documents>, Arc<OpenCollection>) {
        let spec: DeviceSpec = "host:1".parse().expect("right");
        let devices = Devices::new(&spec, DeviceOptions::default()).expect("a device");
        let documents = Documents::open(Settings::default(), Arc::new(devices)).expect("in memory");
        let name = Namespace {
            db: "d".to_owned(),
            collection: "c".to_owned(),
        };
        let made = documents.collections().get_or_create(&name).expect("made");
        (documents, made)
    }

    #[test]
    fn a_slow_change_is_computed_without_the_lock_and_again_if_its_document_has_changed() {
        let (_documents, collection) = collection();
        for id in 0..3 {
            let document = rawdoc! { "_id": id };
            insert(&collection, &document, None, &Stop::never()).expect("inserted");
        }
        let (stop, shared_stop) = (Stop::never(), SharedStop::new(Stop::never()));
        let writer = Writer {
            collection: &collection,
            stop: &stop,
            shared_stop: &shared_stop,
            memory: &Account::default(),
        };
        // Computing the change of document 1 always takes long. Another client changes the document during the first
        // computation.
        let computed = Cell::new(0);
        let judge = |number| {
            let is_locked = collection.lock.is_locked();
            assert_eq!(is_locked, shared_stop.current().deadline.is_some());
            if number == 1 && is_locked {
                return Err(CommandError::Stopped(StopReason::Deadline));
            }
            let old = collection.store.get(number)?.expect("the document exists");
            if number == 1 && computed.replace(computed.get() + 1) == 0 {
                let other = rawdoc! { "_id": 1, "by": "another" };
                let written = collection.store.write(&[Change::Replace(1, &other)], true);
                assert!(written[0].is_ok());
            }
            Ok(Some(Pending {
                number,
                old,
                new: None,
                statement: None,
                room: None,
            }))
        };
        let mut written = Vec::new();
        let write = |chunk: Vec<Pending>| {
            assert!(collection.lock.is_locked());
            written.extend(chunk.into_iter().map(|pending| pending.old.to_buf()));
            Ok(written.len())
        };
        let changed = writer.change(&[0, 1, 2], false, judge, write);
        changed.expect("the changes are written");
        let other = rawdoc! { "_id": 1, "by": "another" };
        assert_eq!(written, [rawdoc! { "_id": 0 }, other, rawdoc! { "_id": 2 }]);
        assert_eq!(computed.get(), 2);
    }

    #[test]
    fn a_slow_change_of_a_document_that_changes_all_the_time_is_written() {
        const TIME: Duration = Duration::from_millis(30);
        const COMPUTED_MAX: i32 = 100;
        let (_documents, collection) = collection();
        insert(&collection, &rawdoc! { "_id": 0 }, None, &Stop::never()).expect("inserted");
        let (stop, shared_stop) = (Stop::never(), SharedStop::new(Stop::never()));
        let writer = Writer {
            collection: &collection,
            stop: &stop,
            shared_stop: &shared_stop,
            memory: &Account::default(),
        };
        // Whenever the change is computed without the lock, another client changes the document meanwhile.
        let computed = Cell::new(0);
        let judge = |number| {
            let count = computed.replace(computed.get() + 1);
            assert!(count < COMPUTED_MAX, "the change is never written");
            let old = collection.store.get(number)?.expect("the document exists");
            let begun = Instant::now();
            while begun.elapsed() < TIME {
                shared_stop.check()?;
            }
            if !collection.lock.is_locked() {
                let other = rawdoc! { "_id": 0, "count": count };
                let written = collection.store.write(&[Change::Replace(0, &other)], true);
                assert!(written[0].is_ok());
            }
            Ok(Some(Pending {
                number,
                old,
                new: None,
                statement: None,
                room: None,
            }))
        };
        let write = |chunk: Vec<Pending>| Ok(chunk.len());
        let changed = writer.change(&[0], true, judge, write);
        changed.expect("the change is written");
    }

    #[test]
    fn a_command_that_has_to_end_is_not_continued_without_the_lock() {
        let (_documents, collection) = collection();
        let stop = Stop::never();
        let writer = Writer {
            collection: &collection,
            stop: &stop,
            shared_stop: &SharedStop::new(stop.clone()),
            memory: &Account::default(),
        };
        let judged = Cell::new(0);
        let judge = |_| {
            judged.set(judged.get() + 1);
            stop.cancelled.store(true, Ordering::Relaxed);
            Err(CommandError::Stopped(StopReason::Cancelled))
        };
        let changed = writer.change(&[0], true, judge, |_| Ok(0));
        let ended = changed.expect_err("the command was killed");
        assert!(matches!(
            ended,
            CommandError::Stopped(StopReason::Cancelled)
        ));
        assert_eq!(judged.get(), 1);
    }

    /// Divides `numbers` into chunks, as if each document had `bytes` bytes. Returns the number of documents in each
    /// chunk.
    fn chunks(
        numbers: &[RecordNumber],
        first_only: bool,
        bytes: usize,
        memory: &Account,
    ) -> Vec<usize> {
        let document = rawdoc! { "s": "x".repeat(bytes) };
        let mut left = ChunkCursor::new(numbers, first_only, memory);
        let mut chunks = Vec::new();
        while left.begin() {
            let mut count = 0;
            while left.next().is_some() {
                left.charge(&document);
                count += 1;
            }
            chunks.push(count);
        }
        chunks
    }

    #[test]
    fn a_chunk_is_bounded_by_documents_and_by_bytes() {
        let numbers: Vec<RecordNumber> = (1..=300).collect();
        let chunks = |count: usize, first_only, bytes| {
            chunks(&numbers[..count], first_only, bytes, &Account::default())
        };
        assert_eq!(chunks(300, false, 10), [256, 44]);
        assert_eq!(chunks(5, false, 4 << 20), [2, 2, 1]);
        assert_eq!(chunks(2, false, 16 << 20), [1, 1]);
        assert_eq!(chunks(2, true, 10), [1, 1]);
        assert!(chunks(0, false, 10).is_empty());
    }

    #[test]
    fn a_chunk_ends_where_the_memory_does() {
        let account = Account::new(8 << 20);
        let numbers: Vec<RecordNumber> = (1..=10).collect();
        assert_eq!(chunks(&numbers, false, 1 << 20, &account), [5, 5]);
        assert_eq!(account.figures().used_bytes, 0);
    }
}
