//! Errors of writes and searches.

use forebay_cancel::{StopReason, Stopped};
use forebay_memory::Full;

/// A write that contradicts the cache's content. The cache has then diverged from the caller's documents, and the
/// caller must rebuild the collection's cache.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// A document came with more or fewer values than the collection has cached fields.
    #[error("a document has {given} values for {declared} cached fields")]
    FieldCount {
        /// Number of values passed.
        given: usize,
        /// Number of declared fields.
        declared: usize,
    },
    /// A document was added under a number that is in use.
    #[error("document {number} is already in the cache")]
    NumberInUse {
        /// The document number.
        number: u32,
    },
    /// The document to change or remove is not in the cache.
    #[error("document {number} is not in the cache")]
    UnknownNumber {
        /// The document number.
        number: u32,
    },
    /// The document does not hold the old value that the caller passed.
    #[error(
        "cached field {field} of document {number} does not hold the old value that the caller passed"
    )]
    UnknownValue {
        /// The document number.
        number: u32,
        /// Index of the field among the declared fields.
        field: usize,
    },
}

/// Why a search failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SearchError {
    /// The search was cancelled or its deadline passed.
    #[error("the search was stopped: {reason}")]
    Stopped {
        /// Cancellation or deadline.
        reason: StopReason,
    },
    /// The expression names a field that is not declared.
    #[error("cached field {field} does not exist; the collection has {declared} cached fields")]
    UnknownField {
        /// The field index in the request.
        field: usize,
        /// Number of declared fields.
        declared: usize,
    },
    /// The distinct values take more memory than the request allows.
    #[error("the distinct values take more than {bytes_max} bytes")]
    ValuesTooLarge {
        /// The limit.
        bytes_max: usize,
    },
    /// The memory account has no space left.
    #[error("{0}")]
    NoRoom(Full),
    /// A bug: a thread of the search panicked.
    #[error("a thread of the search panicked")]
    Panicked,
}

impl From<Full> for SearchError {
    fn from(full: Full) -> Self {
        SearchError::NoRoom(full)
    }
}

impl From<Stopped> for SearchError {
    fn from(stopped: Stopped) -> Self {
        match stopped.reason {
            StopReason::MemoryFull { limit_bytes } => SearchError::NoRoom(Full { limit_bytes }),
            reason => SearchError::Stopped { reason },
        }
    }
}
