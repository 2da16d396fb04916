//! Search requests.

use std::sync::Arc;

use forebay_cancel::Stop;
use forebay_text::Program;

/// A condition on one field. A document with an array of strings meets it if at least one element does.
#[derive(Debug, Clone)]
pub enum Predicate {
    /// The value equals these bytes.
    Equals(Vec<u8>),
    /// The value equals one of these.
    In(Vec<Vec<u8>>),
    /// The program matches the value.
    Program(Arc<Program>),
    /// The field is missing or null.
    IsNull,
    /// The field is missing.
    IsMissing,
}

/// A set of documents, given by conditions on cached fields.
#[derive(Debug, Clone)]
pub enum Expr {
    /// Every document.
    All,
    /// The documents that meet one condition.
    Leaf {
        /// Position of the field among the declared ones.
        field: usize,
        /// The condition.
        predicate: Predicate,
    },
    /// The documents in all of the sets; every document if there are no sets.
    And(Vec<Expr>),
    /// The documents in any of the sets; no document if there are no sets.
    Or(Vec<Expr>),
    /// The documents that are not in the set.
    Not(Box<Expr>),
}

/// What to return of the documents found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Their number.
    Count,
    /// Their numbers.
    Numbers {
        /// Maximum number to return; which ones is up to the cache.
        limit: Option<usize>,
    },
    /// The distinct strings of a field among them, with the number of documents that hold each.
    ValueCounts {
        /// Position of the field among the declared ones.
        field: usize,
        /// Whether the elements of arrays count as values. If not, documents with arrays are returned separately.
        elements: bool,
        /// Maximum bytes of the answer.
        bytes_max: usize,
    },
}

/// A search over one collection.
#[derive(Debug, Clone)]
pub struct SearchRequest {
    /// Which documents.
    pub expr: Expr,
    /// What to return of them.
    pub want: Want,
    /// Cancellation token and deadline.
    pub stop: Stop,
}
