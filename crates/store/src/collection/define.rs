//! Dropping and renaming: the catalogue first, the space after.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Collection;
use crate::catalogue;
use crate::engine::Batch;
use crate::error::Result;
use crate::store::Namespace;

impl Collection {
    /// Takes collections out of the catalogue in one batch. Writers that wait are refused.
    pub(crate) fn drop_all(collections: &[Arc<Self>]) -> Result<()> {
        let Some(first) = collections.first() else {
            return Ok(());
        };
        let _writers: Vec<_> = collections
            .iter()
            .map(|collection| collection.writer.lock())
            .collect();
        let mut batch = Batch::default();
        collections
            .iter()
            .for_each(|collection| collection.forget(&mut batch));
        first.shared.commit(batch)?;
        collections
            .iter()
            .for_each(|collection| collection.dropped.store(true, Ordering::Release));
        Ok(())
    }

    fn forget(&self, batch: &mut Batch) {
        batch.remove(self.shared.catalogue, catalogue::collection_key(self.id));
        batch.remove(self.shared.catalogue, catalogue::statistics_key(self.id));
    }

    /// Gives the space of a dropped collection back. What cannot be removed now is removed at the next start.
    pub(crate) fn free(&self) {
        let indexes = self.index_list();
        let partitions = indexes
            .iter()
            .filter_map(|index| index.partition_id())
            .chain([self.records.id]);
        for partition in partitions {
            if let Err(error) = self.shared.engine.drop_partition(partition) {
                tracing::warn!(namespace = %self.namespace(), %error, "cannot remove a dropped collection yet");
            }
        }
    }

    /// Changes the name, dropping the collection that has it in the same batch.
    pub(crate) fn rename(&self, to: &Namespace, target: Option<&Self>) -> Result<()> {
        let _writer = self.writer.lock();
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
        self.shared.commit(batch)?;
        *self.namespace.write() = to.clone();
        if let Some(target) = target {
            target.dropped.store(true, Ordering::Release);
        }
        Ok(())
    }
}
