//! Removes items that cannot change whether a value matches.
//!
//! Only the existence of a match matters, not its start and end. So items at either end of the pattern that may match
//! the empty string are removed, and a repeat there keeps only its minimum count: `a+b.*` becomes `ab`.

use crate::syntax::{Look, Node, Repeat};

/// Returns the pattern without the items that cannot change whether a value matches.
pub(crate) fn simplify(node: Node) -> Node {
    strip_start(strip_end(node))
}

/// Returns whether a node may match the empty string in any context.
fn is_nullable(node: &Node) -> bool {
    match node {
        Node::Empty => true,
        Node::Set(_) | Node::Look(_) | Node::Around(_) | Node::Opaque(_) => false,
        Node::Concat(nodes) => nodes.iter().all(is_nullable),
        Node::Alternate(nodes) => nodes.iter().any(is_nullable),
        Node::Repeat(repeat) => repeat.min == 0 || is_nullable(&repeat.node),
        Node::Atomic(inner) => is_nullable(inner),
    }
}

/// Returns whether a node can backtrack over all characters that it consumed.
fn gives_back(node: &Node) -> bool {
    match node {
        Node::Empty | Node::Set(_) | Node::Look(_) | Node::Around(_) => true,
        Node::Atomic(_) | Node::Opaque(_) => false,
        Node::Concat(nodes) | Node::Alternate(nodes) => nodes.iter().all(gives_back),
        Node::Repeat(repeat) => !repeat.possessive && gives_back(&repeat.node),
    }
}

fn strip_end(node: Node) -> Node {
    match node {
        node if is_nullable(&node) => Node::Empty,
        Node::Concat(nodes) => strip_end_of_concat(nodes),
        Node::Alternate(nodes) => Node::alternate(nodes.into_iter().map(strip_end).collect()),
        Node::Repeat(repeat) => fewest(*repeat, strip_end),
        Node::Atomic(inner) => strip_end(*inner),
        other => other,
    }
}

fn strip_end_of_concat(mut nodes: Vec<Node>) -> Node {
    while nodes.last().is_some_and(is_nullable) {
        nodes.pop();
    }
    if let Some(last) = nodes.pop() {
        nodes.push(strip_end(last));
    }
    Node::concat(nodes)
}

fn strip_start(node: Node) -> Node {
    match node {
        node if is_nullable(&node) && gives_back(&node) => Node::Empty,
        Node::Concat(nodes) => strip_start_of_concat(nodes),
        Node::Alternate(nodes) => Node::alternate(nodes.into_iter().map(strip_start).collect()),
        Node::Repeat(repeat) if !repeat.possessive => fewest(*repeat, strip_start),
        other => other,
    }
}

fn strip_start_of_concat(mut nodes: Vec<Node>) -> Node {
    let droppable = |node: &Node| is_nullable(node) && gives_back(node);
    let from = nodes
        .iter()
        .position(|node| !droppable(node))
        .unwrap_or(nodes.len());
    nodes.drain(..from);
    if starts_with_anything(&nodes) {
        nodes.drain(..2);
        return strip_start_of_concat(nodes);
    }
    if let Some(first) = nodes.first_mut() {
        *first = strip_start(std::mem::replace(first, Node::Empty));
    }
    Node::concat(nodes)
}

/// Returns whether a sequence begins with `^.*` whose dot matches newlines too, which is equivalent to no anchor.
fn starts_with_anything(nodes: &[Node]) -> bool {
    match nodes {
        [Node::Look(Look::TextStart), Node::Repeat(repeat), ..] => {
            let anything = matches!(&repeat.node, Node::Set(set) if set.is_all());
            anything && repeat.min == 0 && repeat.max.is_none() && !repeat.possessive
        }
        _ => false,
    }
}

/// Reduces a repeat at an end of the pattern to its minimum count.
fn fewest(repeat: Repeat, strip: fn(Node) -> Node) -> Node {
    match repeat.min {
        0 => Node::Empty,
        1 => strip(repeat.node),
        min => Node::repeat(repeat.node, min, Some(min), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Options};

    fn simple(source: &str) -> Node {
        simplify(parsed(source))
    }

    fn parsed(source: &str) -> Node {
        crate::syntax::parse(source, Options::default(), &Limits::default())
            .expect("known syntax")
            .node
    }

    #[test]
    fn ends_are_stripped() {
        for (source, same_as) in [
            ("a+b.*", "ab"),
            ("(?:x?|y*)abc(?:d|)", "abc"),
            ("^abc.*", "^abc"),
            (".*(?:a|b+)", "(?:a|b)"),
            ("(?s)^.*abc", "abc"),
            ("a{2,5}b{3,}", "a{2}b{3}"),
            ("ab(?>c+)", "abc"),
            ("a++", "a"),
        ] {
            assert_eq!(simple(source), parsed(same_as), "{source}");
        }
    }

    #[test]
    fn what_could_matter_stays() {
        for source in [
            "a*+ab",
            "(?>a*)ab",
            "^.*abc",
            "^a",
            "a$",
            r"\bab",
            "(?=a)ab",
            "(?s)^.*+abc",
        ] {
            assert_eq!(simple(source), parsed(source), "{source}");
        }
    }
}
