//! Secondary indexes: what they are, which keys a document has in them, and ranges of keys.

mod bounds;
mod keys;
mod spec;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use bounds::IndexBounds;
pub use keys::{DocumentKeys, key_values};
pub use spec::{IndexField, IndexKind, IndexSpec};

use crate::document::RecordNumber;
use crate::engine::{Bytes, Partition, PartitionId};
use crate::error::Result;

/// Name of the index that every collection has.
pub const ID_INDEX: &str = "_id_";

/// An index of an open collection.
#[derive(Debug)]
pub struct Index {
    /// Never used again, so that it names the partition.
    pub id: u32,
    /// What it was created as.
    pub spec: Arc<IndexSpec>,
    /// Where its entries are; `None` for an index that is only recorded.
    pub partition: Option<Partition>,
    /// Whether some document ever had more than one key.
    multikey: AtomicBool,
    /// Documents below this number are in the index. Changed under the collection's write lock only.
    built_below: AtomicU64,
    /// How far a build has come, for whoever asks.
    pub progress: Arc<BuildProgress>,
}

/// The cursor of an index that holds all documents.
const COMPLETE: u64 = u64::MAX;

impl Index {
    /// An index whose documents are all in it.
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

    /// An index that is about to be built.
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

    /// Where its entries are; `None` for an index that is only recorded.
    pub fn partition_id(&self) -> Option<PartitionId> {
        self.partition.as_ref().map(|partition| partition.id)
    }

    /// Whether every document is in the index.
    pub fn is_complete(&self) -> bool {
        self.built_below.load(Ordering::Acquire) == COMPLETE
    }

    /// Whether a write to this document must change the index.
    pub fn holds(&self, number: RecordNumber) -> bool {
        number < self.built_below.load(Ordering::Acquire)
    }

    /// Moves the cursor of a build. The caller holds the collection's write lock.
    pub fn set_built_below(&self, number: RecordNumber) {
        self.built_below.store(number, Ordering::Release);
    }

    /// Ends a build. The caller holds the collection's write lock.
    pub fn set_complete(&self) {
        self.built_below.store(COMPLETE, Ordering::Release);
    }

    /// Whether some document ever had more than one key, so that a scan may meet a document twice.
    pub fn is_multikey(&self) -> bool {
        self.multikey.load(Ordering::Acquire)
    }

    /// Remembers that some document has more than one key. The caller holds the collection's write lock.
    pub fn set_multikey(&self) {
        self.multikey.store(true, Ordering::Release);
    }

    /// The keys of a document in this index.
    ///
    /// # Errors
    /// [`crate::StoreError::ParallelArrays`], [`crate::StoreError::KeyTooLong`], or invalid BSON.
    pub fn keys(&self, document: &bson::RawDocument) -> Result<DocumentKeys> {
        keys::document_keys(&self.spec, document)
    }

    /// The entry for a key: a unique index maps keys to numbers, others append the number to the key.
    pub fn entry(&self, key: &[u8], number: RecordNumber) -> (Bytes, Bytes) {
        if self.spec.unique {
            return (key.into(), number.to_be_bytes().as_slice().into());
        }
        let mut entry = Vec::with_capacity(key.len() + size_of::<RecordNumber>());
        entry.extend_from_slice(key);
        entry.extend_from_slice(&number.to_be_bytes());
        (entry.into(), Bytes::empty())
    }

    /// The number in an entry, if it is well-formed.
    pub fn entry_number(&self, key: &[u8], value: &[u8]) -> Option<RecordNumber> {
        let bytes = if self.spec.unique {
            value
        } else {
            key.last_chunk::<8>()?.as_slice()
        };
        bytes.try_into().ok().map(u64::from_be_bytes)
    }
}

/// How far the build of an index has come. Shared between the builder and whoever watches or cancels it.
#[derive(Debug, Default)]
pub struct BuildProgress {
    done: AtomicU64,
    total: AtomicU64,
    cancelled: AtomicBool,
}

impl BuildProgress {
    /// Documents put into the index so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Documents in the collection when the build began.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Asks the builder to stop at its next step; the index is removed.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    pub(crate) fn start(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, documents: u64) {
        self.done.fetch_add(documents, Ordering::Relaxed);
    }
}
