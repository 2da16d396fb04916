//! Collections that replicate those of another store: changes are applied in one batch with a note of how far they go.

use std::borrow::Cow;
use std::sync::Arc;

use bson::{RawBson, RawDocument, RawDocumentBuf};
use forebay_documents_store::{Change, Changed, RecordNumber};

use crate::collections::OpenCollection;
use crate::commands::insert::with_id;
use crate::documents::Documents;
use crate::error::CommandError;
use crate::namespace::Namespace;
use crate::places::blocking;

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

fn apply(
    collection: &Arc<OpenCollection>,
    replicated: &Replicated<'_>,
    note: Option<&RawDocument>,
) -> Result<(), CommandError> {
    let present = replicated.present.iter().map(|document| with_id(document));
    let present: Vec<Cow<'_, RawDocument>> = present.collect::<Result<_, _>>()?;
    let held = collection.hold();
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
