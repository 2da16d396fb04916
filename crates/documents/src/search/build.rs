//! Builds the cache of a collection in the background.
//!
//! A build reads the collection in the order of record numbers, and advances a cursor. It takes the write lock for each
//! batch of documents, and releases it between batches. Writers apply a change to the cache only if the document's
//! record number is below the cursor. The build reads the documents above the cursor later, from the store, which then
//! contains their changes.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebay_documents_cache::CacheError;
use forebay_documents_store::Document;

use super::collection::CollectionSearch;
use super::generation::Generation;

/// The reason why a cache index cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The collection would have too many cached fields.
    #[error("the collection would have {fields} cached fields, but at most {limit} are allowed")]
    TooManyFields {
        /// Number of cached fields that the collection would have.
        fields: usize,
        /// Maximum number of cached fields.
        limit: usize,
    },
    /// A record number of the collection exceeds the cache's 32-bit range.
    #[error(
        "record number {number} exceeds the maximum that the cache supports ({})",
        u32::MAX
    )]
    TooManyDocuments {
        /// The first record number that exceeds the range.
        number: u64,
    },
    /// The cache contradicts the documents, which is a bug. The cache is rebuilt.
    #[error("the cache contradicts the collection: {0}")]
    Contradiction(#[from] CacheError),
    /// The store cannot be read.
    #[error("cannot read the collection: {message}")]
    Store {
        /// The store's message.
        message: String,
    },
    /// The index or its collection was dropped during the build.
    #[error("the index was dropped while it was being built")]
    Dropped,
    /// The build thread could not be started, or panicked.
    #[error("the build of the cache ended unexpectedly")]
    Broken,
}

/// A build of declared indexes.
///
/// Dropping this value does not stop the build.
#[must_use = "call `wait`, or drop this value explicitly: the build then continues in the background"]
pub struct Build {
    search: Arc<CollectionSearch>,
    names: Vec<String>,
}

impl Build {
    pub(super) fn new(search: Arc<CollectionSearch>, names: Vec<String>) -> Build {
        Build { search, names }
    }

    /// Blocks until every index is ready, or until one of them fails or is dropped. Returns `None` if this takes longer
    /// than `time`. The build then continues.
    pub fn wait(self, time: Duration) -> Option<Result<(), BuildError>> {
        self.search.wait(&self.names, time)
    }
}

/// Starts the thread that completes `generation`. Returns `None` if the operating system refuses a thread.
pub(super) fn start(
    search: Arc<CollectionSearch>,
    generation: Arc<Generation>,
) -> Option<thread::JoinHandle<()>> {
    let builder = thread::Builder::new().name("cache-build".to_owned());
    let task = Task {
        search: Arc::clone(&search),
        generation: Arc::clone(&generation),
        ended: false,
    };
    // If no thread can be started, the task is dropped, which records the failure of the build.
    builder.spawn(move || task.run()).ok()
}

/// A build. It reports its outcome to the collection, even if it panics.
struct Task {
    search: Arc<CollectionSearch>,
    generation: Arc<Generation>,
    ended: bool,
}

/// Documents that a build reads before it releases the write lock.
struct Batch {
    documents: Vec<(u64, Document)>,
    /// Whether this is the last batch.
    last: bool,
}

impl Task {
    fn run(mut self) {
        let search = Arc::clone(&self.search);
        loop {
            let exclusive = search.lock_exclusively();
            if self.generation.is_abandoned() {
                break;
            }
            if let Some(outcome) = self.step().transpose() {
                self.search.end_build(&self.generation, outcome);
                break;
            }
            exclusive.unlock_fairly();
        }
        self.ended = true;
    }

    /// Caches the next batch. Returns `Some` after the last batch.
    fn step(&self) -> Result<Option<()>, BuildError> {
        let batch = self.read()?;
        let rows: Vec<_> = batch
            .documents
            .iter()
            .map(|(number, document)| (*number, document.raw()))
            .collect();
        self.generation.add(&rows)?;
        if let Some((number, _)) = batch.documents.last() {
            self.generation.advance(number + 1, rows.len() as u64);
        }
        Ok(batch.last.then_some(()))
    }

    fn read(&self) -> Result<Batch, BuildError> {
        let settings = &self.search.settings;
        let from = self.generation.cursor();
        let (mut documents, mut bytes) = (Vec::new(), 0);
        for row in self.search.store.scan(from) {
            let (number, document) = row.map_err(|error| BuildError::Store {
                message: error.to_string(),
            })?;
            bytes += document.len_bytes();
            documents.push((number, document));
            if documents.len() >= settings.build_batch_documents
                || bytes >= settings.build_batch_bytes
            {
                return Ok(Batch {
                    documents,
                    last: false,
                });
            }
        }
        Ok(Batch {
            documents,
            last: true,
        })
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if !self.ended {
            self.search
                .end_build(&self.generation, Err(BuildError::Broken));
        }
    }
}
