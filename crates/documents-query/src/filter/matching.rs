//! Walking a filter's tree over a document.

use bson::DateTime;
use bson::raw::{RawBsonRef, RawDocument};

use super::{Node, Test};
use crate::error::Error;
use crate::expr::{Expression, Scope};
use crate::path::Path;

/// What a walk finds besides its answer.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// The array element that the last leaf to match went through.
    pub index: Option<usize>,
    /// The first expression that failed.
    pub error: Option<Error>,
}

impl Node {
    /// Whether the document matches.
    pub(super) fn matches(&self, document: &RawDocument, findings: &mut Findings) -> bool {
        match self {
            Node::And(nodes) => nodes.iter().all(|node| node.matches(document, findings)),
            Node::Or(nodes) => nodes.iter().any(|node| node.matches(document, findings)),
            Node::Nor(nodes) => !nodes
                .iter()
                .any(|node| node.matches_aside(document, findings)),
            Node::Not(node) => !node.matches_aside(document, findings),
            Node::Leaf { path, test } => leaf_matches(path, test, document, findings),
            Node::Expr { expression, now } => {
                expression_holds(expression, *now, document, findings)
            }
            Node::AlwaysTrue => true,
            Node::AlwaysFalse => false,
        }
    }

    /// As [`Node::matches`], for nodes under a negation: `$` does not refer to the element that they match.
    fn matches_aside(&self, document: &RawDocument, findings: &mut Findings) -> bool {
        let index = findings.index;
        let answer = self.matches(document, findings);
        findings.index = index;
        answer
    }

    /// Whether a value itself passes. Leaves with an empty path test it, others look into it.
    pub(super) fn matches_value(&self, value: RawBsonRef<'_>) -> bool {
        match self {
            Node::And(nodes) => nodes.iter().all(|node| node.matches_value(value)),
            Node::Or(nodes) => nodes.iter().any(|node| node.matches_value(value)),
            Node::Nor(nodes) => !nodes.iter().any(|node| node.matches_value(value)),
            Node::Not(node) => !node.matches_value(value),
            Node::Leaf { path, test } if path.is_empty() => test.passes(Some(value)),
            Node::Leaf { .. } | Node::Expr { .. } => self.matches_container(value),
            Node::AlwaysTrue => true,
            Node::AlwaysFalse => false,
        }
    }

    /// Whether a document, or an array seen as one with its indexes for names, matches.
    pub(super) fn matches_container(&self, value: RawBsonRef<'_>) -> bool {
        let findings = &mut Findings::default();
        match value {
            RawBsonRef::Document(document) => self.matches(document, findings),
            RawBsonRef::Array(array) => RawDocument::from_bytes(array.as_bytes())
                .is_ok_and(|document| self.matches(document, findings)),
            _ => false,
        }
    }
}

fn leaf_matches(path: &Path, test: &Test, document: &RawDocument, findings: &mut Findings) -> bool {
    path.any(document, test.leaf(), &mut |visit| {
        if !test.passes(visit.value) {
            return false;
        }
        let element = || visit.value.and_then(|value| test.element_index(value));
        if let Some(position) = visit.index.or_else(element) {
            findings.index = Some(position);
        }
        true
    })
}

fn expression_holds(
    expression: &Expression,
    now: DateTime,
    document: &RawDocument,
    findings: &mut Findings,
) -> bool {
    match expression.evaluate(&Scope::new(document, now)) {
        Ok(value) => value.is_true(),
        Err(error) => {
            findings.error.get_or_insert(error);
            false
        }
    }
}
