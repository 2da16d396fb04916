//! Collections that replicate those of another store. Each call applies some changes of the other store in one batch.
//! The same batch stores a note, which records the last applied change's position in the other store.

use std::borrow::Cow;
use std::sync::Arc;

use bson::{RawBson, RawDocument, RawDocumentBuf};
use forebay_cancel::Stop;
use forebay_documents_query::filter::Compilation;
use forebay_documents_query::{Filter, Limits};
use forebay_documents_store::{Change, Changed, RecordNumber};
use forebay_text::Budget;

use crate::collections::OpenCollection;
use crate::commands::insert::with_id;
use crate::documents::Documents;
use crate::error::CommandError;
use crate::namespace::Namespace;
use crate::places::{self, blocking};

/// Maximum bytes of documents that [`Documents::scanned_until`] reads.
const SCANNED_BYTES_MAX: usize = 256 * 1024;

/// Changes to documents in another store. Each document occurs at most once.
#[derive(Debug, Default)]
pub struct Replicated<'a> {
    /// The `_id`s of deleted documents.
    pub deleted: Vec<&'a RawBson>,
    /// Documents that were inserted, or that replaced the documents with their `_id`s.
    pub present: Vec<&'a RawDocument>,
}

impl Documents {
    /// Applies another store's changes to a collection and stores `note`, if there is one, in the same atomic batch.
    /// Does nothing if the collection does not exist. Blocks on the disk.
    ///
    /// # Errors
    /// An error for an invalid document, or the store's error.
    pub fn replicate(
        &self,
        namespace: &Namespace,
        replicated: &Replicated<'_>,
        note: Option<&RawDocument>,
    ) -> Result<(), CommandError> {
        match self.collections().get(namespace) {
            Some(collection) => blocking(|| apply(&collection, replicated, note)),
            None => Ok(()),
        }
    }

    /// Returns the last note that [`replicate`](Documents::replicate) stored for a collection, or `None` if there is
    /// none.
    ///
    /// # Errors
    /// The store's error.
    pub fn note(&self, namespace: &Namespace) -> Result<Option<RawDocumentBuf>, CommandError> {
        let Some(collection) = self.collections().get(namespace) else {
            return Ok(None);
        };
        let note = collection.store.note()?;
        let note = note.map(|note| RawDocumentBuf::from_bytes(note.to_vec()));
        Ok(note
            .transpose()
            .map_err(forebay_documents_store::StoreError::from)?)
    }
}

impl Documents {
    /// Returns the number of documents that a scan of a collection reads until it has found `count` matches. Returns
    /// `None` in these cases:
    /// - The scan would exceed `documents_max` documents or `SCANNED_BYTES_MAX` bytes.
    /// - The collection has fewer matches.
    /// - The filter is invalid or expensive.
    pub fn scanned_until(
        &self,
        namespace: &Namespace,
        filter: &RawDocument,
        count: usize,
        documents_max: u64,
    ) -> Option<u64> {
        let collection = self.collections().get(namespace)?;
        let settings = self.settings();
        let budget = Budget::new(settings.command_patterns_bytes_max, Arc::default());
        let compilation = Compilation {
            budget: Arc::new(budget),
            programs: self.programs().clone(),
            aside: places::compile,
        };
        let limits = Limits {
            pattern: settings.pattern.clone(),
            ..Limits::new(settings.memory.clone(), compilation)
        };
        let filter = Filter::parse(filter, &limits).ok()?;
        if !filter.is_cheap() {
            return None;
        }
        let (mut found, mut bytes) = (0, 0);
        for (scanned, row) in (1..=documents_max).zip(collection.store.scan(0)) {
            let (_, document) = row.ok()?;
            bytes += document.len_bytes();
            found += usize::from(filter.try_matches(document.raw()).ok()?);
            if found >= count {
                return Some(scanned);
            }
            if bytes > SCANNED_BYTES_MAX {
                return None;
            }
        }
        None
    }
}

fn apply(
    collection: &Arc<OpenCollection>,
    replicated: &Replicated<'_>,
    note: Option<&RawDocument>,
) -> Result<(), CommandError> {
    let present = replicated.present.iter().map(|document| with_id(document));
    let present: Vec<Cow<'_, RawDocument>> = present.collect::<Result<_, _>>()?;
    let held = collection.lock_writes(&Stop::never())?;
    let changes = changes(collection, &replicated.deleted, &present)?;
    let note = note.map(RawDocument::as_bytes);
    let changed = collection.store.write_noted(&changes, note)?;
    let mut inserted: Vec<(RecordNumber, &RawDocument)> = Vec::new();
    for (change, changed) in changes.iter().zip(changed) {
        let search = &collection.search;
        match (change, changed) {
            (Change::Insert(new), Changed::Inserted(number)) => inserted.push((number, new)),
            (Change::Replace(number, new), Changed::Replaced(old)) => {
                search.on_replace(*number, &old, new);
            }
            (Change::Delete(number), Changed::Deleted(old)) => search.on_delete(*number, &old),
            // Does not occur: the write lock is held, so the documents have not changed since `changes` read them.
            _ => {}
        }
    }
    collection.search.on_insert_many(held, &inserted, None);
    Ok(())
}

/// Returns the changes to write to the store. The caller holds the collection's write lock.
fn changes<'a>(
    collection: &OpenCollection,
    deleted: &[&RawBson],
    present: &'a [Cow<'_, RawDocument>],
) -> Result<Vec<Change<'a>>, CommandError> {
    let mut changes = Vec::with_capacity(deleted.len() + present.len());
    for id in deleted {
        let number = collection.store.number_by_id(id.as_raw_bson_ref())?;
        changes.extend(number.map(Change::Delete));
    }
    for document in present {
        let id = document.get("_id").ok().flatten();
        let number = id.map(|id| collection.store.number_by_id(id)).transpose()?;
        changes.push(match number.flatten() {
            Some(number) => Change::Replace(number, document),
            None => Change::Insert(document),
        });
    }
    Ok(changes)
}
