//! PCRE2's pattern syntax, as far as this crate knows it.
//!
//! The parser takes an allow-list: what it does not know for certain it refuses, and the pattern is left to PCRE2. It
//! only ever sees patterns that PCRE2 has accepted, so it does not report errors, only [`Unknown`] constructs.

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

/// A parsed pattern. Case folding, options and comments are already applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// The empty string.
    Empty,
    /// One character out of a set.
    Set(CharSet),
    /// A condition on a place in the value.
    Look(Look),
    /// One after the other.
    Concat(Vec<Node>),
    /// One of several.
    Alternate(Vec<Node>),
    /// Several times.
    Repeat(Box<Repeat>),
    /// A group that gives nothing back once it has matched.
    Atomic(Box<Node>),
    /// A look-around.
    Around(Box<Around>),
    /// Something whose text this crate does not follow, such as a back-reference: at most any string.
    Opaque(&'static str),
}

/// A condition on a place in the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// `\A`, and `^` without the option `m`.
    TextStart,
    /// `\z`.
    TextEnd,
    /// `\Z`, and `$` without the option `m`: the end, or before a newline that is the last character.
    TextEndNewline,
    /// `^` with the option `m`: the start, or after a newline that is not the last character.
    LineStart,
    /// `$` with the option `m`: the end, or before a newline.
    LineEnd,
    /// `\b`, ASCII.
    WordBoundary,
    /// `\B`, ASCII.
    NotWordBoundary,
}

/// A quantified node. Greedy or lazy makes no difference to whether a value matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repeat {
    pub(crate) node: Node,
    pub(crate) min: u32,
    pub(crate) max: Option<u32>,
    /// Gives nothing back once it has matched.
    pub(crate) possessive: bool,
}

/// A look-ahead or a look-behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Around {
    pub(crate) node: Node,
    pub(crate) behind: bool,
    pub(crate) negative: bool,
}

/// A construct the parser does not know, or does not trust itself with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unknown {
    /// What it is.
    pub(crate) what: &'static str,
    /// Where in the pattern, in bytes from its start.
    pub(crate) offset: usize,
}

impl Node {
    /// The concatenation of some nodes, without needless nesting.
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

    /// The choice between some nodes, without needless nesting.
    pub(crate) fn alternate(mut nodes: Vec<Node>) -> Node {
        match nodes.len() {
            1 => nodes.remove(0),
            _ => Node::Alternate(nodes),
        }
    }

    /// A node, repeated.
    pub(crate) fn repeat(node: Node, min: u32, max: Option<u32>, possessive: bool) -> Node {
        Node::Repeat(Box::new(Repeat {
            node,
            min,
            max,
            possessive,
        }))
    }
}
