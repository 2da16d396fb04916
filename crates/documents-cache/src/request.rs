//! What a search asks.

use std::sync::Arc;

use forebay_cancel::Stop;
use forebay_text::Program;

/// A condition on one field. A document with an array of strings meets it if one element does.
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

/// A set of documents, by conditions on cached fields.
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
    /// The documents in all of the sets; of none, every document.
    And(Vec<Expr>),
    /// The documents in any of the sets; of none, no document.
    Or(Vec<Expr>),
    /// The documents that are not in the set.
    Not(Box<Expr>),
}

/// What to return of the documents found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// How many there are.
    Count,
    /// Their numbers.
    Numbers {
        /// Return no more than this many, whichever are found first.
        limit: Option<usize>,
    },
    /// The distinct strings of a field among them, with the number of documents that hold each.
    ValueCounts {
        /// Position of the field among the declared ones.
        field: usize,
        /// Whether the elements of arrays count as values. If not, documents with arrays are returned apart.
        elements: bool,
        /// The answer may take this many bytes.
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
    /// When to give up.
    pub stop: Stop,
}
