//! What can go wrong with a write or a search.

use forebay_cancel::{StopReason, Stopped};
use forebay_memory::Full;

/// A write that contradicts what the cache holds. The caller's master copy and the cache differ then, and the caller
/// rebuilds the collection's cache.
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
    #[error("document number {number} is in the cache already")]
    NumberInUse {
        /// The number.
        number: u32,
    },
    /// A document was changed or removed that the cache does not know.
    #[error("document number {number} is not in the cache")]
    UnknownNumber {
        /// The number.
        number: u32,
    },
    /// The value that a document was said to have is not in the cache.
    #[error(
        "document number {number} has not the value it was said to have in cached field {field}"
    )]
    UnknownValue {
        /// The document.
        number: u32,
        /// Position of the field among the declared ones.
        field: usize,
    },
}

/// A search without an answer.
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
    #[error("there is no cached field {field}, there are {declared}")]
    UnknownField {
        /// Position that was asked for.
        field: usize,
        /// Number of declared fields.
        declared: usize,
    },
    /// The distinct values take more memory than allowed.
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
