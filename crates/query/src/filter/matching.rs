//! Walking a filter's tree over a document.

use bson::raw::{RawBsonRef, RawDocument};

use super::{Node, Test};
use crate::path::Path;

impl Node {
    /// Whether the document matches.
    pub fn matches(&self, document: &RawDocument) -> bool {
        self.matches_at(document, &mut None)
    }

    /// As [`Node::matches`]; leaves in `index` the array element that the last leaf to match went through.
    pub(super) fn matches_at(&self, document: &RawDocument, index: &mut Option<usize>) -> bool {
        match self {
            Node::And(nodes) => nodes.iter().all(|node| node.matches_at(document, index)),
            Node::Or(nodes) => nodes.iter().any(|node| node.matches_at(document, index)),
            Node::Nor(nodes) => !nodes.iter().any(|node| node.matches(document)),
            Node::Not(node) => !node.matches(document),
            Node::Leaf { path, test } => leaf_matches(path, test, document, index),
            Node::AlwaysTrue => true,
            Node::AlwaysFalse => false,
        }
    }

    /// Whether a value itself passes: leaves with an empty path test it, others look into it.
    pub(crate) fn matches_value(&self, value: RawBsonRef<'_>) -> bool {
        match self {
            Node::And(nodes) => nodes.iter().all(|node| node.matches_value(value)),
            Node::Or(nodes) => nodes.iter().any(|node| node.matches_value(value)),
            Node::Nor(nodes) => !nodes.iter().any(|node| node.matches_value(value)),
            Node::Not(node) => !node.matches_value(value),
            Node::Leaf { path, test }
                if path.as_str().is_empty() && path.components().len() == 0 =>
            {
                test.passes(Some(value))
            }
            Node::Leaf { .. } => self.matches_container(value),
            Node::AlwaysTrue => true,
            Node::AlwaysFalse => false,
        }
    }

    /// Whether a document, or an array seen as one with its indexes for names, matches.
    pub(super) fn matches_container(&self, value: RawBsonRef<'_>) -> bool {
        match value {
            RawBsonRef::Document(document) => self.matches(document),
            RawBsonRef::Array(array) => RawDocument::from_bytes(array.as_bytes())
                .is_ok_and(|document| self.matches(document)),
            _ => false,
        }
    }
}

fn leaf_matches(
    path: &Path,
    test: &Test,
    document: &RawDocument,
    index: &mut Option<usize>,
) -> bool {
    path.any(document, test.leaf(), &mut |visit| {
        if !test.passes(visit.value) {
            return false;
        }
        let element = || visit.value.and_then(|value| test.element_index(value));
        if let Some(position) = visit.index.or_else(element) {
            *index = Some(position);
        }
        true
    })
}
