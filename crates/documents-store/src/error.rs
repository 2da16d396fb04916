//! What can go wrong, by who can act on it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bson::RawDocumentBuf;

/// The result of a store operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Why the store did not do what it was asked to.
///
/// Errors are cheap to clone, because one failed batch is the answer to every document in it.
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
        /// The values that are taken, by path.
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
    #[error(
        "a key of index {index} takes {bytes} bytes, more than the {bytes_max} an index key may have"
    )]
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
    /// The bytes of a document are not BSON.
    #[error("invalid BSON document: {why}")]
    InvalidDocument {
        /// What the BSON reader said.
        why: String,
    },
    /// Documents and arrays of a document nest too deep.
    #[error(
        "cannot store a document that exceeds {} levels of nesting",
        forebay_documents_query::limits::DOCUMENT_DEPTH_MAX
    )]
    TooDeep,
    /// The collection has used up its record numbers.
    #[error(
        "collection {namespace} has used all {} record numbers, those of deleted documents among them; copy it to a new collection by $out, and rename that",
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
    /// What was being read was dropped, so that the rest of it cannot be read.
    #[error("query plan killed :: the collection or the index was dropped")]
    PartitionDropped,
    /// Changes that were asked for are older than the history that is kept.
    #[error("the changes asked for are not in the history any more")]
    HistoryLost,
    /// An index of this name exists.
    #[error("an index '{index}' already exists")]
    IndexExists {
        /// Name of the index.
        index: String,
    },
    /// No index of this name exists, or it cannot be scanned.
    #[error("index not found with name [{index}]")]
    IndexNotFound {
        /// Name of the index.
        index: String,
    },
    /// The index is still being built, so it cannot answer yet.
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
    /// Another process has the data directory open.
    #[error("{} is in use by another server{}; stop it, or choose another data directory", directory.display(), holder(*.process))]
    Locked {
        /// The data directory.
        directory: PathBuf,
        /// Process that wrote itself into the lock file, if it could be read.
        process: Option<u32>,
    },
    /// The data directory cannot be created or written.
    #[error("cannot write to data directory {}: {source}; give this user write permission, or choose another", directory.display())]
    NotWritable {
        /// The data directory.
        directory: PathBuf,
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// The directory holds something that this release cannot read.
    #[error("{} is not a store this release can open: {why}", file.display())]
    UnknownFormat {
        /// The file that says so.
        file: PathBuf,
        /// What was found.
        why: String,
    },
    /// Stored bytes are damaged.
    #[error("{} is damaged: {why}; {remedy}", file.display())]
    Corrupt {
        /// The damaged file, or the directory it is in.
        file: PathBuf,
        /// What does not fit.
        why: String,
        /// What the operator can do.
        remedy: &'static str,
    },
    /// The disk is full. Nothing acknowledged is lost and reads go on.
    #[error("no space left on the disk of the data directory: {source}; free some and try again")]
    DiskFull {
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// The last sync failed, so that no writes are taken until one succeeds, which is tried again and again. Reads go on.
    #[error("the store takes no writes until they can be synced: {why}")]
    NotSynced {
        /// Why the last sync failed.
        why: String,
    },
    /// An earlier write failed, so that no more are taken until a restart. Reads go on.
    #[error(
        "the store takes no writes since an earlier failure ({why}); repair the cause and restart"
    )]
    ReadOnly {
        /// The first failure.
        why: String,
    },
    /// The operating system refused something else.
    #[error("cannot {action}: {source}")]
    Io {
        /// What the store tried.
        action: &'static str,
        /// What the operating system said.
        source: Arc<io::Error>,
    },
}

impl StoreError {
    /// Wraps an error of the operating system, telling a full disk apart.
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

    /// Whether the cause is the machine and not the request, so that going on with other documents is pointless.
    pub fn is_fatal(&self) -> bool {
        matches!(
            self,
            Self::Corrupt { .. }
                | Self::DiskFull { .. }
                | Self::NotSynced { .. }
                | Self::ReadOnly { .. }
                | Self::Io { .. }
                | Self::CollectionDropped { .. }
                | Self::NumbersExhausted { .. }
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

fn holder(process: Option<u32>) -> String {
    process.map_or(String::new(), |id| format!(" (process {id})"))
}
