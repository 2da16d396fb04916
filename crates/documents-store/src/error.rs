//! Errors of the store.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bson::RawDocumentBuf;
use forebay_cancel::Stopped;

/// The result of a store operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Why the store refused or failed an operation.
///
/// Errors are cheap to clone: the error of a failed batch is returned for each document of the batch.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another document has this key in a unique index. The caller can choose another key.
    #[error(
        "E11000 duplicate key error collection: {namespace} index: {index} dup key: {}",
        forebay_documents_query::display::document(values)
    )]
    DuplicateKey {
        /// `db.collection`.
        namespace: String,
        /// Name of the unique index.
        index: String,
        /// The index's key pattern, such as `{a: 1}`.
        pattern: RawDocumentBuf,
        /// The values of the duplicate key, by path.
        values: RawDocumentBuf,
    },
    /// Two fields of one compound index are arrays in one document.
    #[error("cannot index parallel arrays [{first}] [{second}]")]
    ParallelArrays {
        /// Path of one array.
        first: String,
        /// Path of the other array.
        second: String,
    },
    /// An index key is longer than the store can hold.
    #[error("a key of index {index} has {bytes} bytes, more than the maximum of {bytes_max}")]
    KeyTooLong {
        /// Name of the index.
        index: String,
        /// Size of the encoded key.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// A document to insert has no `_id`.
    #[error("a document needs an _id to be stored")]
    MissingId,
    /// A replacement has another `_id` than the document it replaces.
    #[error("the _id of a document cannot be changed")]
    IdChanged,
    /// The bytes are not a BSON document.
    #[error("invalid BSON document: {why}")]
    InvalidDocument {
        /// The BSON reader's message.
        why: String,
    },
    /// Documents and arrays in a document nest too deep.
    #[error(
        "cannot store a document that exceeds {} levels of nesting",
        forebay_documents_query::limits::DOCUMENT_DEPTH_MAX
    )]
    TooDeep,
    /// The collection has used up its record numbers.
    #[error(
        "collection {namespace} has used all {} record numbers, and numbers of deleted documents are not reused; copy it to a new collection with $out, then rename the copy",
        crate::NUMBER_MAX
    )]
    NumbersExhausted {
        /// `db.collection`.
        namespace: String,
    },
    /// A collection of this name exists.
    #[error("a collection '{namespace}' already exists")]
    NamespaceExists {
        /// `db.collection`.
        namespace: String,
    },
    /// No collection of this name exists.
    #[error("ns not found: {namespace}")]
    NamespaceNotFound {
        /// `db.collection`.
        namespace: String,
    },
    /// The collection was dropped while the operation ran.
    #[error("collection {namespace} was dropped")]
    CollectionDropped {
        /// `db.collection`.
        namespace: String,
    },
    /// The collection or index was dropped during a read. The rest of it cannot be read.
    #[error("query plan killed :: the collection or the index was dropped")]
    PartitionDropped,
    /// The requested changes are older than the history that is kept.
    #[error("the requested changes are no longer in the history")]
    HistoryLost,
    /// An index of this name exists.
    #[error("an index '{index}' already exists")]
    IndexExists {
        /// Name of the index.
        index: String,
    },
    /// No index of this name exists, or the index cannot be scanned.
    #[error("index not found with name [{index}]")]
    IndexNotFound {
        /// Name of the index.
        index: String,
    },
    /// The index is still being built, so it cannot be scanned yet.
    #[error("index {index} is still being built")]
    IndexNotReady {
        /// Name of the index.
        index: String,
    },
    /// The build of an index was cancelled.
    #[error("the build of index {index} was cancelled")]
    BuildCancelled {
        /// Name of the index.
        index: String,
    },
    /// The work was stopped before it was complete.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// Another process has the data directory open.
    #[error("{} is in use by another server{}; stop it, or choose another data directory", directory.display(), holder(*.process))]
    Locked {
        /// The data directory.
        directory: PathBuf,
        /// Process id in the lock file, if the file could be read.
        process: Option<u32>,
    },
    /// The data directory cannot be created or written.
    #[error("cannot write to data directory {}: {source}; {}", directory.display(), remedy(source))]
    NotWritable {
        /// The data directory.
        directory: PathBuf,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// The directory holds files, but no store.
    #[error("{} holds files that are not Forebay's, such as {name:?}; choose an empty or new directory", directory.display())]
    ForeignFiles {
        /// The directory.
        directory: PathBuf,
        /// Name of one of the files.
        name: OsString,
    },
    /// This release cannot read the format of the directory.
    #[error("{} is not a store this release can open: {why}", file.display())]
    UnknownFormat {
        /// The `FORMAT` file.
        file: PathBuf,
        /// Why the format cannot be read.
        why: String,
    },
    /// Stored bytes are damaged.
    #[error("{} is damaged: {why}; {remedy}", file.display())]
    Corrupt {
        /// The damaged file, or its directory.
        file: PathBuf,
        /// Description of the damage.
        why: String,
        /// What the operator can do.
        remedy: &'static str,
    },
    /// The disk is full. No acknowledged write is lost, and reads continue.
    #[error(
        "no space left on the disk of the data directory: {source}; free some space and try again"
    )]
    DiskFull {
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// The last sync failed. Writes are refused until a sync succeeds; the background thread retries. Reads continue.
    #[error("the store refuses writes until a sync succeeds: {why}")]
    NotSynced {
        /// Why the last sync failed.
        why: String,
    },
    /// An earlier write or sync failed. Writes are refused until a restart. Reads continue.
    #[error(
        "the store refuses writes because of an earlier failure ({why}); repair the cause and restart"
    )]
    ReadOnly {
        /// The first failure.
        why: String,
    },
    /// Another error of the operating system.
    #[error("cannot {action}: {source}")]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
}

impl StoreError {
    /// Wraps an error of the operating system. A full disk becomes [`StoreError::DiskFull`].
    pub fn io(action: &'static str, source: io::Error) -> Self {
        let full = matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        );
        let source = Arc::new(source);
        if full {
            Self::DiskFull { source }
        } else {
            Self::Io { action, source }
        }
    }

    /// Returns whether the remaining documents of a command would fail too, because the cause is the machine or the
    /// whole collection.
    pub fn is_fatal(&self) -> bool {
        self.is_of_engine()
            || matches!(
                self,
                Self::CollectionDropped { .. } | Self::NumbersExhausted { .. }
            )
    }

    /// Returns whether file I/O failed, as opposed to a check of the data.
    pub(crate) fn is_of_engine(&self) -> bool {
        matches!(
            self,
            Self::Corrupt { .. }
                | Self::DiskFull { .. }
                | Self::NotSynced { .. }
                | Self::ReadOnly { .. }
                | Self::Io { .. }
        )
    }
}

impl From<bson::error::Error> for StoreError {
    fn from(error: bson::error::Error) -> Self {
        Self::InvalidDocument {
            why: error.to_string(),
        }
    }
}

/// Returns advice to the operator about a data directory that cannot be written.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotADirectory => {
            "the path is a file or lies below a file: choose another directory"
        }
        io::ErrorKind::PermissionDenied => {
            "give this user write permission, or choose another directory"
        }
        _ => "choose another directory",
    }
}

fn holder(process: Option<u32>) -> String {
    process.map_or(String::new(), |id| format!(" (process {id})"))
}
