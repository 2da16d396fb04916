//! Applies to replicas the writes that come through the proxy.

use std::collections::HashSet;
use std::sync::Arc;

use bson::{Bson, RawBson, RawBsonRef, RawDocumentBuf, doc};
use forebay_documents::{Namespace, Replicated, id_key};
use futures_util::TryStreamExt;

use super::fields::ReplicaFields;
use super::{Replica, ReplicaError, Replicas, refused, unreadable};

/// Up to this number of written documents are read back with one query each. An upstream that finds a single `_id` by
/// an index may scan the whole collection for a list of `_id`s.
const READ_ONE_BY_ONE_MAX: usize = 16;
/// Maximum `_id`s in one query to the upstream.
const IDS_MAX: usize = 1_000;
/// Maximum documents that are applied to a replica in one batch.
const DOCUMENTS_MAX: usize = 1_000;

/// The effect of a write.
#[derive(Debug)]
pub enum Effect {
    /// Only these documents were inserted.
    Inserted(Vec<RawDocumentBuf>),
    /// Only documents with these `_id`s may have been inserted, changed or deleted.
    Touched(Vec<RawBson>),
    /// No effect: the upstream refused the write.
    Nothing,
    /// The effect is unknown, but the write has ended.
    Unknown,
    /// The effect is unknown, and the upstream may still be running the write.
    Unfinished,
}

impl Replicas {
    /// Applies a write to a replica. The caller took the apply lock exclusively before it sent the write to the
    /// upstream, and still holds the lock.
    ///
    /// If the write cannot be applied, the replica stops answering until it has been reloaded.
    pub async fn apply(self: &Arc<Self>, replica: &Arc<Replica>, effect: Effect) {
        let followed = match effect {
            Effect::Inserted(documents) => self.apply_inserts(replica, &documents),
            Effect::Touched(ids) => self.apply_ids(replica, ids).await,
            Effect::Nothing => Ok(()),
            Effect::Unknown => {
                return self.reload(replica, "the effect of a write is unknown");
            }
            Effect::Unfinished => {
                return self.reload_after_pause(replica, "a write may still be running");
            }
        };
        if let Err(error) = followed {
            self.reload(replica, &error.to_string());
        }
    }

    fn apply_inserts(
        &self,
        replica: &Replica,
        documents: &[RawDocumentBuf],
    ) -> Result<(), ReplicaError> {
        let Some(fields) = replica.note_written(documents.iter().filter_map(id_of)) else {
            return Ok(());
        };
        for documents in documents.chunks(DOCUMENTS_MAX) {
            let documents = documents.iter().map(|document| fields.project(document));
            self.replicate(replica.applied_in(), &[], &documents.collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Reads documents back from the upstream, and updates or deletes them in the replica.
    async fn apply_ids(&self, replica: &Replica, ids: Vec<RawBson>) -> Result<(), ReplicaError> {
        let Some(fields) = replica.note_written(ids.iter().map(RawBson::as_raw_bson_ref)) else {
            return Ok(());
        };
        for ids in ids.chunks(IDS_MAX) {
            let found = self.read(&replica.namespace, &fields, ids);
            let found = self.unless_hung(found).await??;
            let there: HashSet<Vec<u8>> = found.iter().filter_map(id_of).map(id_key).collect();
            let gone = ids
                .iter()
                .filter(|id| !there.contains(&id_key(id.as_raw_bson_ref())));
            let gone: Vec<&RawBson> = gone.collect();
            let found = found.iter().map(|document| fields.project(document));
            self.replicate(replica.applied_in(), &gone, &found.collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Returns the upstream's documents with these `_id`s.
    async fn read(
        &self,
        namespace: &Namespace,
        fields: &ReplicaFields,
        ids: &[RawBson],
    ) -> Result<Vec<RawDocumentBuf>, ReplicaError> {
        let store = self
            .client
            .database(&namespace.db)
            .collection::<RawDocumentBuf>(&namespace.collection);
        let mut values = Vec::with_capacity(ids.len());
        for id in ids {
            values.push(Bson::try_from(id.clone()).map_err(unreadable)?);
        }
        if values.len() > READ_ONE_BY_ONE_MAX {
            let found = store.find(doc! { "_id": { "$in": values } });
            return Ok(found
                .projection(fields.projection())
                .await?
                .try_collect()
                .await?);
        }
        let mut found = Vec::new();
        for id in values {
            let one = store.find_one(doc! { "_id": id });
            found.extend(one.projection(fields.projection()).await?);
        }
        Ok(found)
    }

    /// Deletes the documents `gone` from a replica, and inserts or replaces the documents `new`.
    pub(super) fn replicate(
        &self,
        namespace: &Namespace,
        gone: &[&RawBson],
        new: &[RawDocumentBuf],
    ) -> Result<(), ReplicaError> {
        let replicated = Replicated {
            deleted: gone.to_vec(),
            present: new.iter().map(|document| document.as_ref()).collect(),
        };
        let done = self.documents.replicate(namespace, &replicated, None);
        done.map_err(refused)
    }
}

fn id_of(document: &RawDocumentBuf) -> Option<RawBsonRef<'_>> {
    document.get("_id").ok().flatten()
}
