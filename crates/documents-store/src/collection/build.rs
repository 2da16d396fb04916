//! Creating and dropping indexes. Indexes are built while writers proceed.

use std::sync::Arc;

use parking_lot::MutexGuard;

use super::read::decode_record;
use super::write::Transaction;
use super::{Collection, Writer};
use crate::catalogue;
use crate::document::record_key;
use crate::engine::{Batch, Direction, KeyRange, PageLimit, PartitionId, PartitionKind};
use crate::error::{Result, StoreError};
use crate::index::{BuildProgress, ID_INDEX, Index, IndexSpec};

/// Maximum documents and bytes of one build step. A writer waits for at most one step.
const STEP: PageLimit = PageLimit {
    entries: 1_000,
    bytes: 1 << 20,
};

impl Collection {
    /// Creates an index and builds it over the existing documents while writers proceed. Returns when the index is
    /// complete.
    ///
    /// An index that is incomplete when the process ends is removed at the next start.
    ///
    /// # Errors
    /// [`StoreError::IndexExists`], [`StoreError::BuildCancelled`], and errors of single documents, such as
    /// [`StoreError::DuplicateKey`]. After an error of the build, the index is removed.
    pub fn create_index(&self, spec: IndexSpec, progress: Arc<BuildProgress>) -> Result<()> {
        let Some((index, partition)) = self.add_index(spec, progress)? else {
            return Ok(());
        };
        let built = self.build(&index, partition);
        if built.is_err()
            && let Err(error) = self.remove_index(&index)
        {
            tracing::warn!(index = index.spec.name, %error, "cannot remove an index that failed to build");
        }
        built
    }

    /// Removes an index and frees its space. A build in progress ends with [`StoreError::BuildCancelled`].
    ///
    /// # Errors
    /// [`StoreError::IndexNotFound`], also for the index on `_id`.
    pub fn drop_index(&self, name: &str) -> Result<IndexSpec> {
        let index = self.index(name)?;
        if name == ID_INDEX {
            return Err(StoreError::IndexNotFound {
                index: name.to_owned(),
            });
        }
        self.remove_index(&index)?;
        Ok(index.spec.as_ref().clone())
    }

    /// Adds the index to the catalogue. Returns the index and its partition if the index must be built.
    fn add_index(
        &self,
        spec: IndexSpec,
        progress: Arc<BuildProgress>,
    ) -> Result<Option<(Arc<Index>, PartitionId)>> {
        let mut writer = self.writer.lock();
        self.check_not_dropped()?;
        if self.index(&spec.name).is_ok() {
            return Err(StoreError::IndexExists { index: spec.name });
        }
        let id = self.shared.next_id();
        if spec.is_cache() {
            self.list_index(
                &mut writer,
                Arc::new(Index::complete(id, spec, None, false)),
            )?;
            return Ok(None);
        }
        let created = self.shared.engine.create_partition(PartitionKind::Index)?;
        let partition = created.id;
        progress.start(writer.statistics.documents);
        let index = Arc::new(Index::building(id, spec, created, progress));
        self.list_index(&mut writer, Arc::clone(&index))?;
        Ok(Some((index, partition)))
    }

    fn list_index(&self, writer: &mut MutexGuard<'_, Writer>, index: Arc<Index>) -> Result<()> {
        let mut indexes = self.index_list().to_vec();
        indexes.push(index);
        self.set_indexes(writer, indexes)
    }

    /// Stores the list of indexes in the catalogue, then publishes it as the collection's list. The first argument
    /// proves that the caller holds the write lock.
    fn set_indexes(
        &self,
        _writer: &mut MutexGuard<'_, Writer>,
        indexes: Vec<Arc<Index>>,
    ) -> Result<()> {
        let entry = self.entry(&self.namespace(), &indexes, &[]);
        let mut batch = Batch::default();
        batch.put(
            self.shared.catalogue,
            catalogue::collection_key(self.id),
            entry.encode()?,
        );
        self.shared.commit(batch)?;
        *self.indexes.write() = Arc::new(indexes);
        Ok(())
    }

    fn remove_index(&self, index: &Arc<Index>) -> Result<()> {
        let mut writer = self.writer.lock();
        if self.is_dropped() || !self.is_listed(index) {
            return Ok(());
        }
        let mut indexes = self.index_list().to_vec();
        indexes.retain(|other| other.id != index.id);
        self.set_indexes(&mut writer, indexes)?;
        index.progress.cancel();
        writer.highest.remove(&index.id);
        index.partition_id().map_or(Ok(()), |partition| {
            self.shared.engine.drop_partition(partition)
        })
    }

    fn is_listed(&self, index: &Index) -> bool {
        self.index_list().iter().any(|other| other.id == index.id)
    }

    fn build(&self, index: &Arc<Index>, partition: PartitionId) -> Result<()> {
        let mut from = 0;
        loop {
            let mut writer = self.writer.lock();
            self.check_not_dropped()?;
            if index.progress.is_cancelled() || !self.is_listed(index) {
                return Err(StoreError::BuildCancelled {
                    index: index.spec.name.clone(),
                });
            }
            match self.build_step(&mut writer, index, partition, from)? {
                Some(next) => from = next,
                None => return self.complete(&mut writer, index),
            }
            // Lets a waiting writer take the lock before the next step does.
            MutexGuard::unlock_fair(writer);
        }
    }

    /// Adds the next documents to an index. Returns the record number to continue from, or `None` after the last
    /// document.
    fn build_step(
        &self,
        writer: &mut Writer,
        index: &Arc<Index>,
        partition: PartitionId,
        from: u64,
    ) -> Result<Option<u64>> {
        let range = KeyRange {
            start: record_key(from).to_vec(),
            end: None,
        };
        let page = self
            .shared
            .engine
            .page(self.records.id, &range, Direction::Forward, STEP)?;
        let documents = page.len() as u64;
        let mut transaction = Transaction::new(self, writer, page.len());
        let mut next = None;
        for entry in page {
            let (number, document) = decode_record(entry)?;
            self.largest.note(document.len_bytes());
            transaction.add_to_index(index, partition, number, document.raw())?;
            next = Some(number + 1);
        }
        transaction.commit()?;
        if let Some(next) = next {
            index.set_built_below(next);
            index.progress.add(documents);
        }
        Ok(next)
    }

    fn complete(&self, writer: &mut MutexGuard<'_, Writer>, index: &Index) -> Result<()> {
        index.set_complete();
        let listed = self.set_indexes(writer, self.index_list().to_vec());
        if listed.is_err() {
            index.set_built_below(writer.statistics.next_number);
        }
        listed
    }
}
