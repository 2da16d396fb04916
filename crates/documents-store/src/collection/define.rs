//! Dropping and renaming of collections: the catalogue changes first, then the space is freed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bson::{RawDocument, rawdoc};

use super::Collection;
use crate::catalogue;
use crate::engine::Batch;
use crate::error::Result;
use crate::history::{ChangeKind, Changes};
use crate::store::Namespace;

impl Collection {
    /// Removes collections from the catalogue in one batch. Writers that still wait for a collection's lock will
    /// fail. If `db` is set, `collections` must hold every collection of that database, and the batch records that the
    /// database was dropped.
    pub(crate) fn drop_all(collections: &[Arc<Self>], db: Option<&str>) -> Result<()> {
        let Some(first) = collections.first() else {
            return Ok(());
        };
        let _writers: Vec<_> = collections
            .iter()
            .map(|collection| collection.writer.lock())
            .collect();
        let (mut batch, mut changes) = (Batch::default(), Changes::default());
        for collection in collections {
            collection.forget(&mut batch);
            collection.record_change(&mut changes, ChangeKind::Drop, &rawdoc! {});
        }
        if let Some(db) = db {
            let all = Namespace::new(db, "");
            changes.push(ChangeKind::DropDatabase, &all, None, &rawdoc! {});
        }
        first.shared.record(batch, changes)?;
        collections
            .iter()
            .for_each(|collection| collection.dropped.store(true, Ordering::Release));
        Ok(())
    }

    fn forget(&self, batch: &mut Batch) {
        batch.remove(self.shared.catalogue, catalogue::collection_key(self.id));
        batch.remove(self.shared.catalogue, catalogue::statistics_key(self.id));
        batch.remove(self.shared.catalogue, catalogue::note_key(self.id));
    }

    /// Records a drop or rename of the collection in `changes`.
    fn record_change(&self, changes: &mut Changes, kind: ChangeKind, detail: &RawDocument) {
        let namespace = self.namespace();
        changes.push(kind, &namespace, Some(self.uuid), detail);
        changes.concern(namespace);
    }

    /// Frees the space of a dropped collection. Partitions that cannot be removed now are removed at the next start.
    pub(crate) fn free(&self) {
        let indexes = self.index_list();
        let partitions = indexes
            .iter()
            .filter_map(|index| index.partition_id())
            .chain([self.records.id]);
        for partition in partitions {
            if let Err(error) = self.shared.engine.drop_partition(partition) {
                tracing::warn!(namespace = %self.namespace(), %error, "cannot free the space of a dropped collection until the next start");
            }
        }
    }

    /// Renames the collection. In the same batch, drops `target`, the collection that had the new name before.
    pub(crate) fn rename(&self, to: &Namespace, target: Option<&Self>) -> Result<()> {
        let writer = self.writer.lock();
        let _target_writer = target.map(|target| target.writer.lock());
        let entry = self.entry(to, &self.index_list(), &[]);
        let mut batch = Batch::default();
        batch.put(
            self.shared.catalogue,
            catalogue::collection_key(self.id),
            entry.encode()?,
        );
        if let Some(target) = target {
            target.forget(&mut batch);
        }
        let mut changes = Changes::default();
        let name = rawdoc! { "to": { "db": to.db.as_str(), "coll": to.collection.as_str() } };
        self.record_change(&mut changes, ChangeKind::Rename, &name);
        changes.concern(to.clone());
        // A reader that names the collection may have read another one under its name.
        self.commit(batch, changes, writer.statistics)?;
        *self.namespace.write() = to.clone();
        if let Some(target) = target {
            target.dropped.store(true, Ordering::Release);
        }
        Ok(())
    }
}
