//! Literals of patterns: the literal that a pattern is equivalent to, and the literal prefix of all matching values.

use crate::engine::literal::Place;
use crate::syntax::{Look, Node};

/// Returns the literal that a simplified pattern is equivalent to, and where in the value it must be.
pub(crate) fn literal(node: &Node) -> Option<(Place, String)> {
    let nodes = sequence(node);
    let starts = nodes.first() == Some(&Node::Look(Look::TextStart));
    let ends = nodes.last() == Some(&Node::Look(Look::TextEnd));
    let inner = nodes.get(usize::from(starts)..nodes.len() - usize::from(ends))?;
    let text = inner
        .iter()
        .map(single)
        .collect::<Option<Vec<String>>>()?
        .concat();
    let place = match (starts, ends) {
        (true, true) => Place::Whole,
        (true, false) => Place::Start,
        (false, true) => Place::End,
        (false, false) if text.is_empty() => Place::Start,
        (false, false) => Place::Anywhere,
    };
    Some((place, text))
}

/// Returns a common prefix of all values that a simplified pattern matches; may be empty.
pub(crate) fn value_prefix(node: &Node) -> String {
    if let Node::Alternate(nodes) = node {
        return nodes
            .iter()
            .map(value_prefix)
            .reduce(common)
            .unwrap_or_default();
    }
    match sequence(node) {
        [Node::Look(Look::TextStart), rest @ ..] => {
            let texts = rest.iter().filter(|node| !matches!(node, Node::Around(_)));
            texts.map_while(single).collect()
        }
        _ => String::new(),
    }
}

fn common(a: String, b: String) -> String {
    a.chars()
        .zip(b.chars())
        .take_while(|(x, y)| x == y)
        .map(|(x, _)| x)
        .collect()
}

fn sequence(node: &Node) -> &[Node] {
    match node {
        Node::Empty => &[],
        Node::Concat(nodes) => nodes,
        other => std::slice::from_ref(other),
    }
}

/// Maximum bytes of a literal after expansion of a repeat.
const WRITTEN_OUT_MAX: usize = 1_024;

/// Returns the text of a node that matches only one text.
fn single(node: &Node) -> Option<String> {
    match node {
        Node::Empty => Some(String::new()),
        Node::Set(set) => set.single().map(String::from),
        Node::Concat(nodes) => nodes.iter().map(single).collect(),
        Node::Repeat(repeat) if repeat.max == Some(repeat.min) => {
            let text = single(&repeat.node)?;
            let count = repeat.min as usize;
            (text.len() * count <= WRITTEN_OUT_MAX).then(|| text.repeat(count))
        }
        Node::Atomic(inner) => single(inner),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Options};

    fn simple(source: &str) -> Node {
        let node = crate::syntax::parse(source, Options::default(), &Limits::default())
            .expect("known syntax")
            .node;
        super::super::simplify(node)
    }

    #[test]
    fn literals_are_seen() {
        for (source, place, text) in [
            ("abc", Place::Anywhere, "abc"),
            (".*abc.*", Place::Anywhere, "abc"),
            ("^abc.*", Place::Start, "abc"),
            (r"\Aa{3}b", Place::Start, "aaab"),
            (r"abc\z", Place::End, "abc"),
            (r"^a\.c\z", Place::Whole, "a.c"),
            ("", Place::Start, ""),
            ("x*", Place::Start, ""),
            ("(ab)c", Place::Anywhere, "abc"),
        ] {
            assert_eq!(
                literal(&simple(source)),
                Some((place, text.to_owned())),
                "{source}"
            );
        }
        for source in ["abc$", "^abc$", "a|b", "[ab]", "(?i)a", "a^b", r"a\b"] {
            assert_eq!(literal(&simple(source)), None, "{source}");
        }
    }

    #[test]
    fn prefixes_are_seen() {
        for (source, prefix) in [
            ("^abc$", "abc"),
            ("^abc[de]", "abc"),
            ("^ab|^ac", "a"),
            ("^(?:ab|ac)", ""),
            ("(?i)^ab", ""),
            ("(?m)^ab", ""),
            ("ab", ""),
            ("^ab+", "ab"),
            ("^ab*c", "a"),
        ] {
            assert_eq!(value_prefix(&simple(source)), prefix, "{source}");
        }
    }
}
