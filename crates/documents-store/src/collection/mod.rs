//! A collection: its documents by record number, its indexes and its counters.

mod build;
mod define;
mod read;
mod verify;
mod write;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bson::RawDocumentBuf;
use parking_lot::{Mutex, RwLock};

pub use read::{IndexScan, Scan};
pub use verify::VerifyReport;
pub use write::{BATCH_BYTES, Change, Changed};

use crate::catalogue::{CollectionEntry, IndexEntry, Statistics};
use crate::document::{Largest, NUMBER_MAX, NUMBER_WARNED, RecordNumber};
use crate::engine::{Batch, Bytes, Engine, Partition};
use crate::error::{Result, StoreError};
use crate::history::Changes;
use crate::index::{BuildProgress, Index, IndexSpec};
use crate::store::{Namespace, Shared};

/// A collection of documents.
///
/// Reads take no lock that a writer holds. Writes to one collection are serial. Each batch of writes changes documents,
/// index entries and counters together, or nothing.
pub struct Collection {
    shared: Arc<Shared>,
    id: u32,
    uuid: bson::Uuid,
    created: bson::DateTime,
    options: RawDocumentBuf,
    records: Partition,
    namespace: RwLock<Namespace>,
    indexes: RwLock<Arc<Vec<Arc<Index>>>>,
    writer: Mutex<Writer>,
    counts: Counts,
    largest: Arc<Largest>,
    dropped: AtomicBool,
}

/// State that only the holder of the write lock may change.
struct Writer {
    statistics: Statistics,
    /// Maps the id of a unique index to an upper bound of the keys in that index.
    highest: std::collections::HashMap<u32, Bytes>,
}

/// The counters as last published to readers.
#[derive(Default)]
struct Counts {
    documents: AtomicU64,
    bytes: AtomicU64,
    next_number: AtomicU64,
    /// Number of commits that have begun since the collection was opened.
    commits_begun: AtomicU64,
    /// Number of those that have ended.
    commits_ended: AtomicU64,
}

impl Counts {
    fn publish(&self, statistics: Statistics) {
        self.documents
            .store(statistics.documents, Ordering::Release);
        self.bytes.store(statistics.bytes, Ordering::Release);
        self.next_number
            .store(statistics.next_number, Ordering::Release);
    }
}

/// An index and its state.
#[derive(Debug, Clone)]
pub struct IndexStatus {
    /// Definition of the index.
    pub spec: Arc<IndexSpec>,
    /// Whether the index build has finished. Always true for a declaration of cached fields, although it has no entries
    /// to scan.
    pub complete: bool,
    /// Whether some document has or had several entries in the index.
    pub multikey: bool,
    /// Progress of the index build.
    pub progress: Arc<BuildProgress>,
}

impl From<&Index> for IndexStatus {
    fn from(index: &Index) -> Self {
        Self {
            spec: Arc::clone(&index.spec),
            complete: index.is_complete(),
            multikey: index.is_multikey(),
            progress: Arc::clone(&index.progress),
        }
    }
}

impl Collection {
    /// Opens the partitions that the collection's catalogue entry names.
    pub(crate) fn open(
        shared: Arc<Shared>,
        entry: CollectionEntry,
        statistics: Statistics,
    ) -> Result<Self> {
        let open = |name: &str| existing_partition(shared.engine.as_ref(), &entry, name);
        let records = open(&entry.records)?;
        let mut indexes = Vec::new();
        for index in entry.indexes.iter().filter(|index| index.complete) {
            let partition = index.partition.as_deref().map(open).transpose()?;
            let index = Index::complete(index.id, index.spec.clone(), partition, index.multikey);
            indexes.push(Arc::new(index));
        }
        let counts = Counts::default();
        counts.publish(statistics);
        let collection = Self {
            shared,
            id: entry.id,
            uuid: entry.uuid,
            created: entry.created,
            options: entry.options,
            records,
            namespace: RwLock::new(Namespace::new(entry.db, entry.name)),
            indexes: RwLock::new(Arc::new(indexes)),
            writer: Mutex::new(Writer {
                statistics,
                highest: Default::default(),
            }),
            counts,
            largest: Arc::default(),
            dropped: AtomicBool::new(false),
        };
        if statistics.next_number > NUMBER_WARNED {
            collection.warn_of_numbers(statistics.next_number);
        }
        Ok(collection)
    }

    /// Commits changes of documents or of the name, and publishes the counters to readers. The caller holds the write
    /// lock.
    fn commit(&self, batch: Batch, changes: Changes, statistics: Statistics) -> Result<()> {
        self.counts.commits_begun.fetch_add(1, Ordering::SeqCst);
        let recorded = self.shared.record(batch, changes);
        if recorded.is_ok() {
            self.counts.publish(statistics);
        }
        self.counts.commits_ended.fetch_add(1, Ordering::SeqCst);
        recorded
    }

    /// Returns a number that grows with each change of documents or of the name: before a reader can see the change,
    /// and again before it is acknowledged. It counts while the collection is open.
    pub fn version(&self) -> u64 {
        let (begun, ended) = self.commits();
        begun + ended
    }

    /// Returns whether the collection has this version, is not dropped, and no change is being committed. Scans
    /// between two calls that return true for the same version return the documents of the version.
    pub fn has_version(&self, version: u64) -> bool {
        let (begun, ended) = self.commits();
        begun == ended && begun + ended == version && !self.is_dropped()
    }

    /// Returns the numbers of commits that have begun and that have ended.
    fn commits(&self) -> (u64, u64) {
        let ended = self.counts.commits_ended.load(Ordering::SeqCst);
        (self.counts.commits_begun.load(Ordering::SeqCst), ended)
    }

    /// Returns the number of inserts that the collection can still take. Record numbers of deleted documents are not
    /// reused.
    pub fn inserts_left(&self) -> u64 {
        NUMBER_MAX.saturating_sub(self.next_number())
    }

    /// Warns the operator that few record numbers are left.
    fn warn_of_numbers(&self, next: RecordNumber) {
        tracing::warn!(
            namespace = ?self.namespace().to_string(),
            inserts_left = NUMBER_MAX.saturating_sub(next),
            "a collection has used most of its record numbers: copy it to a new collection with $out, then rename the copy"
        );
    }

    /// Returns the collection's database and name.
    pub fn namespace(&self) -> Namespace {
        self.namespace.read().clone()
    }

    /// Returns the UUID, which is set at creation and kept by renames.
    pub fn uuid(&self) -> bson::Uuid {
        self.uuid
    }

    /// Returns the time of creation.
    pub fn created(&self) -> bson::DateTime {
        self.created
    }

    /// Returns the options that the collection was created with.
    pub fn options(&self) -> &RawDocumentBuf {
        &self.options
    }

    /// Returns the exact number of documents.
    pub fn document_count(&self) -> u64 {
        self.counts.documents.load(Ordering::Acquire)
    }

    /// Returns the size in bytes of the largest document that was read or written since the collection was opened.
    pub fn largest_document_bytes(&self) -> usize {
        self.largest.bytes()
    }

    /// Returns the exact total size of all documents in bytes.
    pub fn document_bytes(&self) -> u64 {
        self.counts.bytes.load(Ordering::Acquire)
    }

    /// Returns the record number of the next insert. All numbers in use are lower.
    pub fn next_number(&self) -> RecordNumber {
        self.counts.next_number.load(Ordering::Acquire)
    }

    /// Returns the approximate bytes that the documents take in the engine.
    pub fn storage_bytes(&self) -> u64 {
        self.shared.engine.bytes(self.records.id)
    }

    /// Returns whether the collection was dropped after this handle was obtained.
    pub fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    /// Returns the state of all indexes, in order of creation.
    pub fn indexes(&self) -> Vec<IndexStatus> {
        self.index_list()
            .iter()
            .map(|index| IndexStatus::from(index.as_ref()))
            .collect()
    }

    /// Returns the approximate bytes that an index's entries take; 0 if the index does not exist.
    pub fn index_bytes(&self, name: &str) -> u64 {
        let index = self.index(name).ok();
        let partition = index.and_then(|index| index.partition_id());
        partition.map_or(0, |partition| self.shared.engine.bytes(partition))
    }

    fn index_list(&self) -> Arc<Vec<Arc<Index>>> {
        Arc::clone(&self.indexes.read())
    }

    fn index(&self, name: &str) -> Result<Arc<Index>> {
        let indexes = self.index_list();
        let found = indexes.iter().find(|index| index.spec.name == name);
        found.cloned().ok_or_else(|| StoreError::IndexNotFound {
            index: name.to_owned(),
        })
    }

    fn check_not_dropped(&self) -> Result<()> {
        if self.is_dropped() {
            return Err(StoreError::CollectionDropped {
                namespace: self.namespace().to_string(),
            });
        }
        Ok(())
    }

    /// Builds the collection's catalogue entry with the name `namespace` and the indexes `indexes`. The entry marks an
    /// index as multikey if the index is multikey already or its id is in `multikey`.
    fn entry(
        &self,
        namespace: &Namespace,
        indexes: &[Arc<Index>],
        multikey: &[u32],
    ) -> CollectionEntry {
        let index = |index: &Arc<Index>| IndexEntry {
            id: index.id,
            spec: index.spec.as_ref().clone(),
            partition: index
                .partition
                .as_ref()
                .map(|partition| partition.name.clone()),
            multikey: index.is_multikey() || multikey.contains(&index.id),
            complete: index.is_complete(),
        };
        CollectionEntry {
            id: self.id,
            db: namespace.db.clone(),
            name: namespace.collection.clone(),
            uuid: self.uuid,
            created: self.created,
            options: self.options.clone(),
            records: self.records.name.clone(),
            indexes: indexes.iter().map(index).collect(),
        }
    }
}

/// Opens a partition that a catalogue entry names.
fn existing_partition(
    engine: &dyn Engine,
    entry: &CollectionEntry,
    name: &str,
) -> Result<Partition> {
    let found = engine.existing_partition(name)?;
    found.ok_or_else(|| StoreError::InvalidDocument {
        why: format!(
            "partition {name} of collection {}.{} is missing",
            entry.db, entry.name
        ),
    })
}

impl std::fmt::Debug for Collection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collection")
            .field("namespace", &self.namespace())
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
