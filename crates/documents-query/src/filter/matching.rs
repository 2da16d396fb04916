//! Walking a filter's tree over a document.

use bson::DateTime;
use bson::raw::{RawBsonRef, RawDocument};
use forebay_cancel::{SharedStop, Stopped};

use super::{Node, Test};
use crate::error::Error;
use crate::expr::{Expression, Scope};
use crate::path::Path;
use crate::work::is_check_due;

/// State of one walk of a filter over a document or a value: what the walk finds besides its answer.
///
/// The tests return no errors. Once the walk is stopped, each test answers true, which ends the search through the
/// elements of an array; [`finish`](Walk::finish) then replaces the answer by the error. The walk keeps its own
/// record of the stop, because the shared token may follow another command before the walk has ended.
#[derive(Debug)]
pub(super) struct Walk<'f> {
    stop: &'f SharedStop,
    /// The array element that the last leaf to match went through.
    index: Option<usize>,
    /// The first expression that failed.
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

    /// The answer, with the index of the array element that the last leaf to match went through.
    pub fn finish<T>(self, answer: T) -> Result<(T, Option<usize>), Error> {
        if let Some(stopped) = self.stopped {
            return Err(stopped.into());
        }
        self.error.map_or(Ok((answer, self.index)), Err)
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// The outcome of a test; true if it was stopped.
    pub fn true_if_stopped(&mut self, outcome: Result<bool, Stopped>) -> bool {
        outcome.unwrap_or_else(|stopped| {
            self.stopped = Some(stopped);
            true
        })
    }

    /// Checks the cancellation token if it is time for it. Returns whether the walk is stopped.
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

    /// As [`Node::matches`], for nodes under a negation and inside `$elemMatch`: `$` does not refer to the element that
    /// they match.
    fn matches_aside(&self, document: &RawDocument, walk: &mut Walk<'_>) -> bool {
        let index = walk.index;
        let answer = self.matches(document, walk);
        walk.index = index;
        answer
    }

    /// Returns whether a value itself passes. Leaves with an empty path test it, others look into it.
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

    /// Returns whether a document, or an array seen as one with its indexes for names, matches.
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
    // Finding the field may read the names of all.
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
