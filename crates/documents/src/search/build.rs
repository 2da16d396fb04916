//! Building the cache of a collection in the background.
//!
//! A build walks the collection by record number and moves a cursor, one batch each time it holds the write lock.
//! Writers apply a change to the cache only below the cursor. The build finds everything above it in the store when it
//! gets there.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebay_documents_cache::CacheError;
use forebay_documents_store::Document;

use super::collection::CollectionSearch;
use super::generation::Generation;

/// Why a cache index cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The collection would have too many cached fields.
    #[error("a collection can have at most {limit} cached fields, and would have {fields}")]
    TooManyFields {
        /// Number that it would have.
        fields: usize,
        /// Maximum number.
        limit: usize,
    },
    /// The collection has outgrown the cache's record numbers.
    #[error(
        "record number {number} is beyond what the cache can number ({})",
        u32::MAX
    )]
    TooManyDocuments {
        /// The first record number that does not fit.
        number: u64,
    },
    /// The cache contradicts the documents, which is a bug. The cache is built again.
    #[error("the cache contradicts the collection: {0}")]
    Contradiction(#[from] CacheError),
    /// The store could not be read.
    #[error("cannot read the collection: {message}")]
    Store {
        /// The store's message.
        message: String,
    },
    /// The index or its collection was dropped during the build.
    #[error("the index was dropped while it was being built")]
    Dropped,
    /// The builder itself failed.
    #[error("the build of the cache ended unexpectedly")]
    Broken,
}

/// A build of declared indexes.
///
/// Dropping it does not stop the build.
#[must_use = "wait for the build, or drop it on purpose to let it run in the background"]
pub struct Build {
    search: Arc<CollectionSearch>,
    names: Vec<String>,
}

impl Build {
    pub(super) fn new(search: Arc<CollectionSearch>, names: Vec<String>) -> Build {
        Build { search, names }
    }

    /// Blocks until every index is ready, or one of them fails or is dropped. Returns `None` after `time`; the build
    /// then continues.
    pub fn wait(self, time: Duration) -> Option<Result<(), BuildError>> {
        self.search.wait(&self.names, time)
    }
}

/// Starts the thread that completes `generation`. Returns `None` if the system refuses one.
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
    // If no thread can be started, dropping the task has marked the build as broken.
    builder.spawn(move || task.run()).ok()
}

/// One build. It reports its outcome to the collection however it ends, even by a panic.
struct Task {
    search: Arc<CollectionSearch>,
    generation: Arc<Generation>,
    ended: bool,
}

/// Documents read while the lock was held once.
struct Batch {
    documents: Vec<(u64, Document)>,
    /// Whether there are no documents after these.
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

    /// Caches the next batch. Returns `Some` once the last one is cached.
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
