//! Parser of the subset of PCRE2's pattern syntax that this crate knows.
//!
//! The parser works from an allow-list: it refuses any construct that it does not know for certain, and the pattern is
//! left to PCRE2. It only sees patterns that PCRE2 has accepted, so it reports no syntax errors, only [`Unknown`]
//! constructs.

mod class;
mod cursor;
mod escape;
mod fold;
mod group;
mod parser;
mod property;
mod set;

pub(crate) use parser::{Parsed, parse};
pub(crate) use set::CharSet;

/// A parsed pattern, after case folding and removal of options and comments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// The empty string.
    Empty,
    /// One character of a set.
    Set(CharSet),
    /// An assertion on a position in the value.
    Look(Look),
    /// A sequence.
    Concat(Vec<Node>),
    /// A choice between alternatives.
    Alternate(Vec<Node>),
    /// A quantified node.
    Repeat(Box<Repeat>),
    /// An atomic group, which does not backtrack once it has matched.
    Atomic(Box<Node>),
    /// A look-ahead or look-behind.
    Around(Box<Around>),
    /// A construct for which this crate cannot derive the strings that it matches, such as a back-reference. It is
    /// taken to match any string.
    Opaque(&'static str),
}

/// An assertion on a position in the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// `\A`, and `^` without the option `m`.
    TextStart,
    /// `\z`.
    TextEnd,
    /// `\Z`, and `$` without the option `m`: the end, or before a newline at the end.
    TextEndNewline,
    /// `^` with the option `m`: the start, or after a newline that is not at the end.
    LineStart,
    /// `$` with the option `m`: the end, or before a newline.
    LineEnd,
    /// `\b`, for ASCII word characters.
    WordBoundary,
    /// `\B`, for ASCII word characters.
    NotWordBoundary,
}

/// A quantified node. Greediness is ignored, because it does not affect whether a value matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repeat {
    pub(crate) node: Node,
    pub(crate) min: u32,
    pub(crate) max: Option<u32>,
    /// Whether the repeat does not backtrack once it has matched.
    pub(crate) possessive: bool,
}

/// A look-ahead or a look-behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Around {
    pub(crate) node: Node,
    pub(crate) behind: bool,
    pub(crate) negative: bool,
}

/// A construct that the parser does not know or does not handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unknown {
    /// Name of the construct.
    pub(crate) what: &'static str,
    /// Byte offset in the pattern.
    pub(crate) offset: usize,
}

impl Node {
    /// Returns the concatenation of nodes, without needless nesting.
    pub(crate) fn concat(nodes: Vec<Node>) -> Node {
        let mut flat = Vec::with_capacity(nodes.len());
        for node in nodes {
            match node {
                Node::Empty => {}
                Node::Concat(inner) => flat.extend(inner),
                other => flat.push(other),
            }
        }
        match flat.len() {
            0 => Node::Empty,
            1 => flat.remove(0),
            _ => Node::Concat(flat),
        }
    }

    /// Returns the choice between nodes, without needless nesting.
    pub(crate) fn alternate(mut nodes: Vec<Node>) -> Node {
        match nodes.len() {
            1 => nodes.remove(0),
            _ => Node::Alternate(nodes),
        }
    }

    /// Returns a repetition of a node.
    pub(crate) fn repeat(node: Node, min: u32, max: Option<u32>, possessive: bool) -> Node {
        Node::Repeat(Box::new(Repeat {
            node,
            min,
            max,
            possessive,
        }))
    }
}
