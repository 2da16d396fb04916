//! Filters: parsed once, matched against raw documents.
//!
//! [`Filter::parse`] converts a query document to a tree of [`Node`]s, with MongoDB's errors for queries that it
//! refuses. [`Filter::matches`] evaluates the tree on a document in place. So that a planner has few cases, a negative
//! operator (`$ne`, `$nin`, `{$exists: false}`) becomes a [`Node::Not`] over its positive counterpart, and `$all`
//! becomes a [`Node::And`].

mod bits;
mod list;
mod matching;
mod operators;
mod parse;
mod programs;
mod regex;
mod shape;
mod test;
mod types;

use std::sync::Arc;

use bson::DateTime;
use bson::raw::{RawBson, RawBsonRef, RawDocument};

use crate::element::check_depth;
use crate::error::Error;
use crate::expr::Expression;
use crate::limits::{CommandLimits, Limits};
use crate::path::Path;
pub use regex::pattern_error;

pub use bits::{BitTest, BitWant};
pub use list::InList;
pub use programs::{Compilation, Programs};
pub use regex::Regex;
pub use test::{RangeOp, Test};
pub use types::TypeSet;

use matching::Walk;

pub(crate) use parse::{is_operator_document, is_top_level_operator};

/// Maximum number of tests in a cheap filter.
const CHEAP_TESTS_MAX: usize = 16;

/// A parsed query.
#[derive(Debug, Clone)]
pub struct Filter {
    root: Node,
    /// The cancellation token that may stop the evaluation, and the memory of the tree.
    limits: Arc<CommandLimits>,
}

/// One node of a filter's tree.
#[derive(Debug, Clone)]
pub enum Node {
    /// All nodes match; true for an empty list.
    And(Vec<Node>),
    /// At least one node matches.
    Or(Vec<Node>),
    /// No node matches.
    Nor(Vec<Node>),
    /// The inner node does not match.
    Not(Box<Node>),
    /// A value at the path passes the test.
    Leaf {
        /// The path; empty inside [`Test::ElemMatchValue`], where the element itself is tested.
        path: Path,
        /// The test.
        test: Test,
    },
    /// `$expr`: the expression evaluates to true.
    Expr {
        /// The expression.
        expression: Arc<Expression>,
        /// Value of `$$NOW`, the same for all documents.
        now: DateTime,
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
    /// MongoDB's code and wording for queries that are malformed, or use an operator that is unknown or not supported.
    /// Most codes are `BadValue`.
    pub fn parse(query: &RawDocument, limits: &Limits) -> Result<Filter, Error> {
        check_depth(RawBsonRef::Document(query))?;
        let root = parse::Parser::new(limits).query(query)?;
        Ok(Filter::from_node(root, limits))
    }

    /// Parses a query on array elements that are documents, as in `$pull` and `arrayFilters`, where `$expr` is not
    /// allowed.
    ///
    /// # Errors
    /// Those of [`Filter::parse`]; `QueryFeatureNotAllowed` for `$expr`.
    pub(crate) fn parse_element_query(
        query: &RawDocument,
        limits: &Limits,
    ) -> Result<Filter, Error> {
        let root = parse::Parser::without_expressions(limits).query(query)?;
        Ok(Filter::from_node(root, limits))
    }

    /// Parses a condition of `$pull` on array elements themselves, such as `{$gt: 5}`.
    pub(crate) fn parse_element_test(
        condition: &RawDocument,
        limits: &Limits,
    ) -> Result<Filter, Error> {
        let root = parse::Parser::new(limits).element_test(condition)?;
        Ok(Filter::from_node(root, limits))
    }

    /// Builds a filter that applies one test to a value itself, not to its fields.
    pub(crate) fn of_element_test(test: Test, limits: &Limits) -> Filter {
        let path = Path::empty();
        Filter::from_node(Node::Leaf { path, test }, limits)
    }

    /// Returns the filter that every document matches.
    pub fn all() -> Filter {
        Filter {
            root: Node::AlwaysTrue,
            limits: Arc::default(),
        }
    }

    /// Builds a filter from its tree. The cancellation token in `limits` may stop its evaluation.
    pub fn from_node(root: Node, limits: &Limits) -> Filter {
        let limits = limits.command.clone();
        Filter { root, limits }
    }

    /// Returns the tree, for planners.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// Returns the tree. [`Filter::from_node`] builds a filter from trees.
    pub fn into_root(self) -> Node {
        self.root
    }

    /// Returns whether the document matches. Also returns false if an expression of `$expr` fails on the document, or
    /// if the evaluation is stopped; [`Filter::try_matches`] returns errors in these cases.
    pub fn matches(&self, document: &RawDocument) -> bool {
        self.try_matches(document).unwrap_or(false)
    }

    /// Returns whether the document matches.
    ///
    /// # Errors
    /// The error of a `$expr` expression that fails on the document; [`Stopped`](forebay_cancel::Stopped) if the
    /// command is stopped during the evaluation.
    pub fn try_matches(&self, document: &RawDocument) -> Result<bool, Error> {
        let mut walk = Walk::new(&self.limits.stop);
        let answer = self.root.matches(document, &mut walk);
        walk.finish(answer).map(|(answer, _)| answer)
    }

    /// Returns the index of the first array element that matches. The filter must be an `$elemMatch` built by
    /// [`Filter::of_element_test`].
    ///
    /// # Errors
    /// [`Stopped`](forebay_cancel::Stopped) if the command is stopped during the evaluation.
    pub(crate) fn element_index(&self, value: RawBsonRef<'_>) -> Result<Option<usize>, Error> {
        let mut walk = Walk::new(&self.limits.stop);
        let index = match &self.root {
            Node::Leaf { test, .. } => test.element_index(value, &mut walk),
            _ => None,
        };
        walk.finish(index).map(|(index, _)| index)
    }

    /// Returns whether the filter takes only microseconds for any document of a few kilobytes, because it has few
    /// tests, no expression, and no pattern that may read a byte more than once.
    pub fn is_cheap(&self) -> bool {
        self.root
            .test_count()
            .is_some_and(|tests| tests <= CHEAP_TESTS_MAX)
    }

    /// Returns whether a value matches a filter for array elements.
    ///
    /// # Errors
    /// [`Stopped`](forebay_cancel::Stopped) if the command is stopped during the evaluation.
    pub(crate) fn try_matches_value(&self, value: RawBsonRef<'_>) -> Result<bool, Error> {
        let mut walk = Walk::new(&self.limits.stop);
        let answer = self.root.matches_value(value, &mut walk);
        walk.finish(answer).map(|(answer, _)| answer)
    }

    /// Returns whether the document matches. If it does, also returns the index of the array element that matched; the
    /// positional operator `$` refers to this element.
    ///
    /// # Errors
    /// Those of [`Filter::try_matches`].
    pub fn match_position(&self, document: &RawDocument) -> Result<Match, Error> {
        let mut walk = Walk::new(&self.limits.stop);
        let answer = self.root.matches(document, &mut walk);
        Ok(match walk.finish(answer)? {
            (true, index) => Match::Yes { index },
            (false, _) => Match::No,
        })
    }

    /// Returns the fields that the filter requires to equal a value, each with the value, in the order of the query. An
    /// upserted document starts with these fields.
    pub fn equalities(&self) -> Vec<(&Path, &RawBson)> {
        let mut found = Vec::new();
        collect_equalities(&self.root, &mut found);
        found
    }
}

/// Parses the condition of an `$elemMatch` to a test.
pub(crate) fn elem_match_test(condition: &RawDocument, limits: &Limits) -> Result<Test, Error> {
    operators::elem_match_test(&mut parse::Parser::new(limits), condition)
}

/// The result of [`Filter::match_position`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// The document does not match.
    No,
    /// The document matches.
    Yes {
        /// The index of the matching element in the outermost array, if the path passed through an array.
        index: Option<usize>,
    },
}

impl Node {
    /// Returns the number of tests, or `None` if one of them may take long.
    fn test_count(&self) -> Option<usize> {
        match self {
            Node::And(nodes) | Node::Or(nodes) | Node::Nor(nodes) => {
                nodes.iter().map(Node::test_count).sum()
            }
            Node::Not(node) => node.test_count(),
            Node::Leaf { test, .. } => match test {
                Test::Regex(regex) => regex.is_linear().then_some(1),
                Test::In(list) if list.patterns().iter().all(Regex::is_linear) => {
                    Some(1 + list.patterns().len())
                }
                Test::In(_) => None,
                Test::ElemMatchValue(node) | Test::ElemMatchObject(node) => {
                    Some(1 + node.test_count()?)
                }
                _ => Some(1),
            },
            Node::Expr { .. } => None,
            Node::AlwaysTrue | Node::AlwaysFalse => Some(0),
        }
    }
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
