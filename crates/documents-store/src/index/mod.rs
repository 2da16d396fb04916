//! Secondary indexes: their definitions, the keys of documents in them, and ranges of keys.

mod bounds;
mod keys;
mod spec;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_cancel::Stop;

pub use bounds::IndexBounds;
pub use keys::{DocumentKeys, key_values};
pub use spec::{IndexField, IndexKind, IndexSpec};

use crate::document::RecordNumber;
use crate::engine::{Bytes, Partition, PartitionId};
use crate::error::Result;

/// Name of the index on `_id`, which every collection has.
pub const ID_INDEX: &str = "_id_";

/// An index of an open collection.
#[derive(Debug)]
pub struct Index {
    /// Id of the index. Ids are not reused while the store is open.
    pub id: u32,
    /// Definition of the index.
    pub spec: Arc<IndexSpec>,
    /// Partition of the index's entries; `None` for a declaration of cached fields.
    pub partition: Option<Partition>,
    /// Whether any document has ever had more than one key in the index.
    multikey: AtomicBool,
    /// Documents with a number below this one are in the index. Written only under the collection's write lock.
    built_below: AtomicU64,
    /// Progress of the index build.
    pub progress: Arc<BuildProgress>,
}

/// Value of `built_below` that marks an index as complete.
const COMPLETE: u64 = u64::MAX;

impl Index {
    /// Opens a complete index.
    pub fn complete(
        id: u32,
        spec: IndexSpec,
        partition: Option<Partition>,
        multikey: bool,
    ) -> Self {
        Self {
            built_below: AtomicU64::new(COMPLETE),
            multikey: AtomicBool::new(multikey),
            progress: Arc::default(),
            id,
            spec: Arc::new(spec),
            partition,
        }
    }

    /// Creates an index that is still to be built.
    pub fn building(
        id: u32,
        spec: IndexSpec,
        partition: Partition,
        progress: Arc<BuildProgress>,
    ) -> Self {
        Self {
            built_below: AtomicU64::new(0),
            multikey: AtomicBool::new(false),
            partition: Some(partition),
            progress,
            id,
            spec: Arc::new(spec),
        }
    }

    /// Returns the partition of the index's entries; `None` for a declaration of cached fields.
    pub fn partition_id(&self) -> Option<PartitionId> {
        self.partition.as_ref().map(|partition| partition.id)
    }

    /// Returns whether every document is in the index.
    pub fn is_complete(&self) -> bool {
        self.built_below.load(Ordering::Acquire) == COMPLETE
    }

    /// Returns whether a write to the document with this number must change the index.
    pub fn holds(&self, number: RecordNumber) -> bool {
        number < self.built_below.load(Ordering::Acquire)
    }

    /// Sets the number below which documents are in the index. The caller holds the collection's write lock.
    pub fn set_built_below(&self, number: RecordNumber) {
        self.built_below.store(number, Ordering::Release);
    }

    /// Marks the index as complete. The caller holds the collection's write lock.
    pub fn set_complete(&self) {
        self.built_below.store(COMPLETE, Ordering::Release);
    }

    /// Returns whether any document has ever had more than one key, so that a scan may meet a document more than once.
    pub fn is_multikey(&self) -> bool {
        self.multikey.load(Ordering::Acquire)
    }

    /// Records that a document has more than one key. The caller holds the collection's write lock.
    pub fn set_multikey(&self) {
        self.multikey.store(true, Ordering::Release);
    }

    /// Computes the keys of a document in this index.
    ///
    /// # Errors
    /// [`crate::StoreError::ParallelArrays`], [`crate::StoreError::KeyTooLong`], or invalid BSON.
    pub fn keys(&self, document: &bson::RawDocument) -> Result<DocumentKeys> {
        keys::document_keys(&self.spec, document)
    }

    /// Returns the engine entry for a key. A unique index maps keys to record numbers. Other indexes append the number
    /// to the key.
    pub fn entry(&self, key: &[u8], number: RecordNumber) -> (Bytes, Bytes) {
        if self.spec.unique {
            return (key.into(), number.to_be_bytes().as_slice().into());
        }
        let mut entry = Vec::with_capacity(key.len() + size_of::<RecordNumber>());
        entry.extend_from_slice(key);
        entry.extend_from_slice(&number.to_be_bytes());
        (entry.into(), Bytes::empty())
    }

    /// Decodes the record number of an entry. Returns `None` if the entry is malformed.
    pub fn entry_number(&self, key: &[u8], value: &[u8]) -> Option<RecordNumber> {
        let bytes = if self.spec.unique {
            value
        } else {
            key.last_chunk::<8>()?.as_slice()
        };
        bytes.try_into().ok().map(u64::from_be_bytes)
    }
}

/// Progress of an index build, shared by the builder and the threads that watch or cancel it.
#[derive(Debug, Default)]
pub struct BuildProgress {
    done: AtomicU64,
    total: AtomicU64,
    cancelled: AtomicBool,
    /// Cancellation token of the command that builds the index.
    stop: Stop,
}

impl BuildProgress {
    /// Returns the progress of a build that `stop` cancels.
    pub fn of(stop: Stop) -> BuildProgress {
        BuildProgress {
            stop,
            ..BuildProgress::default()
        }
    }

    /// Returns the number of documents added to the index so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Returns the number of documents in the collection when the build began.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Makes the builder stop at its next step and remove the index.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed) || self.stop.check().is_err()
    }

    pub(crate) fn start(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, documents: u64) {
        self.done.fetch_add(documents, Ordering::Relaxed);
    }
}
