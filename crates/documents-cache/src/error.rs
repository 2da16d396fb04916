//! What can go wrong with a write or a search.

use forebay_cancel::{StopReason, Stopped};
use forebay_memory::Full;

/// A write that contradicts what the cache holds. The caller's master copy and the cache then differ, and the caller
/// must rebuild the collection's cache.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// A document came with more or fewer values than the collection has cached fields.
    #[error("a document has {given} values for {declared} cached fields")]
    FieldCount {
        /// Values that were given.
        given: usize,
        /// Fields that are declared.
        declared: usize,
    },
    /// A document was added under a number that is in use.
    #[error("document {number} is already in the cache")]
    NumberInUse {
        /// The number.
        number: u32,
    },
    /// The document to change or remove is not in the cache.
    #[error("document {number} is not in the cache")]
    UnknownNumber {
        /// The number.
        number: u32,
    },
    /// The document does not hold the old value that the caller gave.
    #[error("cached field {field} of document {number} does not hold the given old value")]
    UnknownValue {
        /// The document.
        number: u32,
        /// Position of the field among the declared ones.
        field: usize,
    },
}

/// Why a search gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SearchError {
    /// The search was cancelled or its deadline passed.
    #[error("the search was stopped: {reason}")]
    Stopped {
        /// Which of the two.
        reason: StopReason,
    },
    /// The expression names a field that is not declared.
    #[error("cached field {field} does not exist; the collection has {declared}")]
    UnknownField {
        /// The position in the request.
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
    /// The account of memory is full.
    #[error("{0}")]
    NoRoom(Full),
    /// A bug: a thread that worked on the search panicked.
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
        SearchError::Stopped {
            reason: stopped.reason,
        }
    }
}
