//! A pattern as a list of conditions, all of which a row has to meet.
//!
//! Look-aheads right after the start of the value are conditions on the value: `^(?!x)(?=.*y)z` is "does not begin with
//! x, begins with any y, begins with z". A look-around elsewhere is a condition too: a value that matches contains what
//! the look-around requires. That condition is weaker than the pattern.

use regex_syntax::hir::Hir;

use super::hir::{Lowered, lower};
use super::simplify::simplify;
use crate::syntax::{Around, Look, Node};

/// Conditions that every matching row meets.
pub(crate) struct Parts {
    pub(crate) parts: Vec<Part>,
    /// Why rows that do not match may meet them; `None` if all rows that meet them match.
    pub(crate) inexact: Option<&'static str>,
}

/// One condition.
pub(crate) struct Part {
    pub(crate) hir: Hir,
    pub(crate) negated: bool,
}

impl Parts {
    /// The conditions of a simplified pattern.
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

    /// The only condition, if there is one and it is not negated.
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

    /// What follows the start of the value: look-aheads, then the rest.
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

    /// What the look-arounds of a sequence require, wherever it may be in the value.
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
                // The negation of an over-approximation would rule out rows that match.
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
