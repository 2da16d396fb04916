//! Filters: parsed once, matched against raw documents.
//!
//! [`Filter::parse`] turns a query document into a tree of [`Node`]s with MongoDB's errors for what it does not
//! accept; [`Filter::matches`] walks the tree over a document in place. Negative operators are [`Node::Not`] over their
//! positive ones (`$ne`, `$nin`, `{$exists: false}`), and `$all` is [`Node::And`], so that a planner has few cases.

mod bits;
mod list;
mod matching;
mod operators;
mod parse;
mod regex;
mod test;
mod types;

use bson::raw::{RawBson, RawBsonRef, RawDocument};

use crate::error::Error;
use crate::limits::Limits;
use crate::path::Path;

pub use bits::{BitTest, BitWant};
pub use list::InList;
pub use regex::Regex;
pub use test::{RangeOp, Test};
pub use types::TypeSet;

pub(crate) use parse::is_operator_document;

/// A parsed query.
#[derive(Debug, Clone)]
pub struct Filter {
    root: Node,
}

/// One node of a filter's tree.
#[derive(Debug, Clone)]
pub enum Node {
    /// All hold; true for none.
    And(Vec<Node>),
    /// At least one holds.
    Or(Vec<Node>),
    /// None holds.
    Nor(Vec<Node>),
    /// The inner node does not hold.
    Not(Box<Node>),
    /// A value on the path passes the test.
    Leaf {
        /// The path; empty inside [`Test::ElemMatchValue`], where the element itself is tested.
        path: Path,
        /// The test.
        test: Test,
    },
    /// Every document matches.
    AlwaysTrue,
    /// No document matches.
    AlwaysFalse,
}

impl Filter {
    /// Parses a query document.
    ///
    /// # Errors
    /// MongoDB's code and wording for what is malformed, unknown or not supported; most are `BadValue`.
    pub fn parse(query: &RawDocument, limits: &Limits) -> Result<Filter, Error> {
        Ok(Filter {
            root: parse::Parser::new(limits).query(query)?,
        })
    }

    /// Parses the condition of `$pull`, which tests an array's elements themselves: `{$gt: 5}`.
    pub(crate) fn parse_element_test(
        condition: &RawDocument,
        limits: &Limits,
    ) -> Result<Filter, Error> {
        Ok(Filter {
            root: parse::Parser::new(limits).element_test(condition)?,
        })
    }

    /// The filter that every document matches.
    pub fn all() -> Filter {
        Filter {
            root: Node::AlwaysTrue,
        }
    }

    /// The filter with this tree.
    pub fn from_node(root: Node) -> Filter {
        Filter { root }
    }

    /// The tree, for planners.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// Whether the document matches.
    pub fn matches(&self, document: &RawDocument) -> bool {
        self.root.matches(document)
    }

    /// Whether a value matches a filter made for array elements.
    pub(crate) fn matches_value(&self, value: RawBsonRef<'_>) -> bool {
        self.root.matches_value(value)
    }

    /// Whether the document matches and, if it does, the index of the array element that made it match: what the
    /// positional operator `$` stands for.
    pub fn match_position(&self, document: &RawDocument) -> Match {
        let mut index = None;
        match self.root.matches_at(document, &mut index) {
            true => Match::Yes { index },
            false => Match::No,
        }
    }

    /// The fields that the filter holds equal to a value, in order: the first fields of a document that an upsert makes.
    pub fn equalities(&self) -> Vec<(&Path, &RawBson)> {
        let mut found = Vec::new();
        collect_equalities(&self.root, &mut found);
        found
    }
}

/// The answer of [`Filter::match_position`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// The document does not match.
    No,
    /// The document matches.
    Yes {
        /// The matching element of the outermost array, where one was gone through.
        index: Option<usize>,
    },
}

fn collect_equalities<'a>(node: &'a Node, found: &mut Vec<(&'a Path, &'a RawBson)>) {
    match node {
        Node::And(children) => children
            .iter()
            .for_each(|child| collect_equalities(child, found)),
        Node::Or(children) if children.len() == 1 => collect_equalities(&children[0], found),
        Node::Leaf {
            path,
            test: Test::Eq(value),
        } => found.push((path, value)),
        Node::Leaf {
            path,
            test: Test::In(list),
        } => found.extend(list.single().map(|value| (path, value))),
        _ => {}
    }
}
