//! Collections that replicate those of another store: changes are applied in one batch with a note of how far they go.

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

/// Most bytes of documents that [`Documents::scanned_until`] reads.
const SCANNED_BYTES_MAX: usize = 256 * 1024;

/// What has become of some documents, each named once.
#[derive(Debug, Default)]
pub struct Replicated<'a> {
    /// The `_id`s of documents that are gone.
    pub deleted: Vec<&'a RawBson>,
    /// Documents that are new, or have taken the place of those with their `_id`s.
    pub present: Vec<&'a RawDocument>,
}

impl Documents {
    /// Makes documents of a collection what another store has made of them, all in one batch or none; with it goes the
    /// note of the collection, if one is given. A collection that does not exist stays so. Blocks on the disk.
    ///
    /// # Errors
    /// Whatever is wrong with a document, and whatever the store says.
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

    /// The note of a collection, as of the last change that was applied with one.
    ///
    /// # Errors
    /// Whatever the store says.
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
    /// How many documents a scan of a collection reads until it has found `count` that match, if those are at most
    /// `documents_max`. Returns `None` if they are more, or if that cannot be told in a moment: the filter is not
    /// one, or takes time to judge.
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
        let limits = Limits {
            pattern: settings.pattern.clone(),
            compilation: Compilation {
                budget: Arc::new(budget),
                programs: self.programs().clone(),
                aside: places::compile,
            },
            ..Limits::default()
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
    let held = collection.hold(&Stop::never())?;
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
            // The lock was held, so that no other write came between.
            _ => {}
        }
    }
    collection.search.on_insert_many(held, &inserted, None);
    Ok(())
}

/// The changes to a collection whose write lock is held.
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
