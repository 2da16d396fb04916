//! Evaluation of a filter's tree on a document.

use bson::DateTime;
use bson::raw::{RawBsonRef, RawDocument};
use forebay_cancel::{SharedStop, Stopped};

use super::{Node, Test};
use crate::error::Error;
use crate::expr::{Expression, Scope};
use crate::path::Path;
use crate::work::is_check_due;

/// State, besides the result, of one evaluation of a filter on a document or a value.
///
/// The tests return no errors. Once the evaluation is stopped, each test returns true, which ends the iteration over
/// the elements of an array. [`finish`](Walk::finish) then returns an error instead of the result. The state records
/// the stop itself, because the shared token may already belong to another command before the evaluation ends.
#[derive(Debug)]
pub(super) struct Walk<'f> {
    stop: &'f SharedStop,
    /// The index of the array element in which the last matching leaf of the filter found its value.
    index: Option<usize>,
    /// The first error of a `$expr` expression.
    error: Option<Error>,
    stopped: Option<Stopped>,
}

impl<'f> Walk<'f> {
    pub fn new(stop: &'f SharedStop) -> Walk<'f> {
        Walk {
            stop,
            index: None,
            error: None,
            stopped: None,
        }
    }

    /// Returns the result, and the index of the array element in which the last matching leaf of the filter found its
    /// value.
    pub fn finish<T>(self, answer: T) -> Result<(T, Option<usize>), Error> {
        if let Some(stopped) = self.stopped {
            return Err(stopped.into());
        }
        self.error.map_or(Ok((answer, self.index)), Err)
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// Returns the result of a test, or true if the test was stopped.
    pub fn true_if_stopped(&mut self, outcome: Result<bool, Stopped>) -> bool {
        outcome.unwrap_or_else(|stopped| {
            self.stopped = Some(stopped);
            true
        })
    }

    /// Checks the cancellation token if a check is due. Returns whether the evaluation is stopped.
    fn check(&mut self, bytes: usize) -> bool {
        if !self.is_stopped() && is_check_due(bytes) {
            self.stopped = self.stop.check().err();
        }
        self.is_stopped()
    }
}

impl Node {
    /// Returns whether the document matches.
    pub(super) fn matches(&self, document: &RawDocument, walk: &mut Walk<'_>) -> bool {
        match self {
            Node::And(nodes) => nodes.iter().all(|node| node.matches(document, walk)),
            Node::Or(nodes) => nodes.iter().any(|node| node.matches(document, walk)),
            Node::Nor(nodes) => !nodes.iter().any(|node| node.matches_aside(document, walk)),
            Node::Not(node) => !node.matches_aside(document, walk),
            Node::Leaf { path, test } => leaf_matches(path, test, document, walk),
            Node::Expr { expression, now } => expression_holds(expression, *now, document, walk),
            Node::AlwaysTrue => true,
            Node::AlwaysFalse => false,
        }
    }

    /// Matches like [`Node::matches`], but does not change the index of the array element that `$` refers to. Used
    /// under a negation and inside `$elemMatch`.
    fn matches_aside(&self, document: &RawDocument, walk: &mut Walk<'_>) -> bool {
        let index = walk.index;
        let answer = self.matches(document, walk);
        walk.index = index;
        answer
    }

    /// Returns whether a value matches. A leaf with an empty path tests the value itself. Other leaves test fields
    /// inside the value.
    pub(super) fn matches_value(&self, value: RawBsonRef<'_>, walk: &mut Walk<'_>) -> bool {
        match self {
            Node::And(nodes) => nodes.iter().all(|node| node.matches_value(value, walk)),
            Node::Or(nodes) => nodes.iter().any(|node| node.matches_value(value, walk)),
            Node::Nor(nodes) => !nodes.iter().any(|node| node.matches_value(value, walk)),
            Node::Not(node) => !node.matches_value(value, walk),
            Node::Leaf { path, test } if path.is_empty() => {
                walk.check(0) || test.passes(Some(value), walk)
            }
            Node::Leaf { .. } | Node::Expr { .. } => self.matches_container(value, walk),
            Node::AlwaysTrue => true,
            Node::AlwaysFalse => false,
        }
    }

    /// Returns whether a document matches. An array is treated as a document whose field names are the indexes.
    pub(super) fn matches_container(&self, value: RawBsonRef<'_>, walk: &mut Walk<'_>) -> bool {
        match value {
            RawBsonRef::Document(document) => self.matches_aside(document, walk),
            RawBsonRef::Array(array) => RawDocument::from_bytes(array.as_bytes())
                .is_ok_and(|document| self.matches_aside(document, walk)),
            _ => false,
        }
    }
}

fn leaf_matches(path: &Path, test: &Test, document: &RawDocument, walk: &mut Walk<'_>) -> bool {
    // Finding the field may read all field names of the document, so the check counts the whole document.
    if walk.check(document.as_bytes().len()) {
        return true;
    }
    path.any(document, test.leaf(), &mut |visit| {
        if walk.check(0) {
            return true;
        }
        if !test.passes(visit.value, walk) {
            return false;
        }
        let mut element = || test.element_index(visit.value?, walk);
        if let Some(position) = visit.index.or_else(&mut element) {
            walk.index = Some(position);
        }
        true
    })
}

fn expression_holds(
    expression: &Expression,
    now: DateTime,
    document: &RawDocument,
    walk: &mut Walk<'_>,
) -> bool {
    match expression.evaluate(&Scope::new(document, now)) {
        Ok(value) => value.is_true(),
        Err(error) => {
            walk.error.get_or_insert(error);
            false
        }
    }
}
