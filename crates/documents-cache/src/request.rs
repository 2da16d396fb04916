//! Search requests.

use std::sync::Arc;

use forebay_cancel::Stop;
use forebay_text::Program;

/// A condition on one field. A document with an array of strings meets it if at least one element does.
#[derive(Debug, Clone)]
pub enum Predicate {
    /// The value equals these bytes.
    Equals(Vec<u8>),
    /// The value equals one of these byte strings.
    In(Vec<Vec<u8>>),
    /// The program matches the value.
    Program(Arc<Program>),
    /// The field is missing or null.
    IsNull,
    /// The field is missing.
    IsMissing,
}

/// An expression of conditions on cached fields. Its value is a set of documents.
#[derive(Debug, Clone)]
pub enum Expr {
    /// All documents.
    All,
    /// The documents that meet one condition.
    Leaf {
        /// Index of the field among the declared fields.
        field: usize,
        /// The condition.
        predicate: Predicate,
    },
    /// The documents in all of the sets; all documents if the list is empty.
    And(Vec<Expr>),
    /// The documents in any of the sets; no document if the list is empty.
    Or(Vec<Expr>),
    /// The documents that are not in the set.
    Not(Box<Expr>),
}

/// What to return about the documents found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// The number of documents found.
    Count,
    /// The document numbers of the documents found.
    Numbers {
        /// Maximum count of numbers to return. If more documents meet the expression, the cache chooses which numbers
        /// it returns.
        limit: Option<usize>,
    },
    /// The distinct strings of a field in the documents found, with the number of documents for each.
    ValueCounts {
        /// Index of the field among the declared fields.
        field: usize,
        /// Whether array elements count as values. If not, documents with arrays are returned separately.
        elements: bool,
        /// Maximum bytes of the distinct values.
        bytes_max: usize,
    },
}

/// A search over one collection.
#[derive(Debug, Clone)]
pub struct SearchRequest {
    /// Which documents to find.
    pub expr: Expr,
    /// What to return about the documents found.
    pub want: Want,
    /// Cancellation token and deadline of the search.
    pub stop: Stop,
}
