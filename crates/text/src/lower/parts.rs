//! A pattern as a list of conditions that a row must all meet.
//!
//! Look-aheads right after the start of the value are conditions on the value: `^(?!x)(?=.*y)z` means "does not begin
//! with x, contains y, begins with z". A positive look-around elsewhere gives a condition too: a matching value
//! contains the text that the look-around requires. That condition is weaker than the pattern.

use regex_syntax::hir::Hir;

use super::hir::{Lowered, lower};
use super::simplify::simplify;
use crate::syntax::{Around, Look, Node};

/// Conditions that every matching row meets.
pub(crate) struct Parts {
    pub(crate) parts: Vec<Part>,
    /// Why a row that meets all conditions might not match; `None` if every such row matches.
    pub(crate) inexact: Option<&'static str>,
}

/// A condition.
pub(crate) struct Part {
    pub(crate) hir: Hir,
    pub(crate) negated: bool,
}

impl Parts {
    /// Returns the conditions of a simplified pattern.
    pub(crate) fn of(tree: &Node) -> Parts {
        let mut parts = Parts {
            parts: Vec::new(),
            inexact: None,
        };
        let nodes = match tree {
            Node::Concat(nodes) => nodes.as_slice(),
            other => std::slice::from_ref(other),
        };
        match nodes {
            [Node::Look(Look::TextStart), rest @ ..] => parts.at_start(rest),
            [Node::Around(around)] if !around.negative && !around.behind => {
                parts.add(around.node.clone(), false)
            }
            nodes => {
                parts.contained(nodes);
                parts.add(Node::concat(nodes.to_vec()), false);
            }
        }
        parts
    }

    /// Returns the condition if there is exactly one and it is not negated.
    pub(crate) fn single(&self) -> Option<&Hir> {
        match self.parts.as_slice() {
            [
                Part {
                    hir,
                    negated: false,
                },
            ] => Some(hir),
            _ => None,
        }
    }

    /// Adds the conditions of nodes that follow an anchor at the start of the value: first those of the leading
    /// look-aheads, then those of the other nodes.
    fn at_start(&mut self, nodes: &[Node]) {
        let count = nodes
            .iter()
            .take_while(|node| ahead(node).is_some())
            .count();
        let (aheads, rest) = nodes.split_at(count);
        for around in aheads.iter().filter_map(ahead) {
            self.add(anchored(vec![around.node.clone()]), around.negative);
        }
        self.contained(rest);
        if !rest.is_empty() || aheads.is_empty() {
            self.add(anchored(rest.to_vec()), false);
        }
    }

    /// Adds a condition for each positive look-around of a sequence: the value contains, at any position, the text that
    /// the look-around requires.
    fn contained(&mut self, nodes: &[Node]) {
        for node in nodes {
            if let Node::Around(around) = node {
                self.loosen("a look-around");
                if !around.negative {
                    self.add(around.node.clone(), false);
                }
            }
        }
    }

    fn add(&mut self, node: Node, negated: bool) {
        let Lowered { hir, inexact } = lower(&simplify(node));
        if let Some(why) = inexact {
            self.loosen(why);
            if negated {
                // The negation of an over-approximation would exclude rows that match.
                return;
            }
        }
        self.parts.push(Part { hir, negated });
    }

    fn loosen(&mut self, why: &'static str) {
        self.inexact.get_or_insert(why);
    }
}

fn ahead(node: &Node) -> Option<&Around> {
    match node {
        Node::Around(around) if !around.behind => Some(around),
        _ => None,
    }
}

fn anchored(mut nodes: Vec<Node>) -> Node {
    nodes.insert(0, Node::Look(Look::TextStart));
    Node::concat(nodes)
}
