//! Parser of alternatives, sequences, items and quantifiers.

use super::class::class;
use super::cursor::Cursor;
use super::escape::{Escape, escape};
use super::fold::fold;
use super::set::{CharSet, Named};
use super::{Look, Node, Unknown};
use crate::limits::Limits;
use crate::options::Options;

/// The tree of a pattern, and whether PCRE2 may match fewer values than the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    pub(crate) node: Node,
    /// Why PCRE2 may match fewer values than the tree; `None` if the parser found no reason.
    pub(crate) less: Option<&'static str>,
}

/// Parses a pattern that PCRE2 has accepted.
pub(crate) fn parse(source: &str, options: Options, limits: &Limits) -> Result<Parsed, Unknown> {
    let mut parser = Parser {
        cursor: Cursor::new(source),
        flags: options,
        nesting_left: limits.nesting_max,
        refers: false,
        types: String::new(),
    };
    if source.starts_with("(*") {
        return parser.cursor.unknown("a setting or a verb");
    }
    let node = parser.alternatives()?;
    match parser.cursor.peek() {
        None => Ok(Parsed {
            node,
            less: parser.less(),
        }),
        Some(_) => parser.cursor.unknown("an unmatched parenthesis"),
    }
}

/// State of the parser. Inline options change `flags` until the end of their group.
pub(super) struct Parser<'a> {
    pub(super) cursor: Cursor<'a>,
    pub(super) flags: Options,
    pub(super) nesting_left: usize,
    /// Whether a back-reference or a subroutine call was read.
    pub(super) refers: bool,
    /// Character types read outside classes, as the letters of their escapes; the dot is recorded as `N`.
    types: String,
}

/// Pairs of character types that PCRE2 10.42 wrongly takes to be disjoint. PCRE2 makes a repeat of one type of a pair
/// possessive if the other type follows the repeat. In UTF mode without Unicode properties the types overlap; for
/// example, U+00A0 is both `\S` and `\h` (pcre2_auto_possess.c, `autoposstab`).
const NOT_DISJOINT: [&str; 5] = ["NR", "SR", "Sh", "Sv", "sR"];

impl Parser<'_> {
    /// Returns why PCRE2 may match fewer values than the tree; `None` if the parser found no reason.
    fn less(&self) -> Option<&'static str> {
        let both = |pair: &str| pair.chars().all(|letter| self.types.contains(letter));
        if self.refers {
            return Some("a back-reference or a subroutine call");
        }
        NOT_DISJOINT
            .iter()
            .find(|pair| both(pair))
            .map(|_| "character types that PCRE2 wrongly treats as disjoint")
    }

    /// Parses alternatives up to a closing parenthesis or the end.
    pub(super) fn alternatives(&mut self) -> Result<Node, Unknown> {
        let mut branches = vec![self.sequence()?];
        while self.cursor.eat("|") {
            branches.push(self.sequence()?);
        }
        Ok(Node::alternate(branches))
    }

    fn sequence(&mut self) -> Result<Node, Unknown> {
        let mut nodes = Vec::new();
        loop {
            self.skip_ignored();
            if matches!(self.cursor.peek(), None | Some('|' | ')')) {
                return Ok(Node::concat(nodes));
            }
            if self.cursor.eat("\\Q") {
                self.quoted(&mut nodes)?;
            } else {
                let item = self.item()?;
                nodes.push(self.quantified(item)?);
            }
        }
    }

    /// Parses literal text up to `\E`; a quantifier after it applies to the last character.
    fn quoted(&mut self, nodes: &mut Vec<Node>) -> Result<(), Unknown> {
        while !self.cursor.eat("\\E") {
            match self.cursor.next() {
                Some(c) => nodes.push(self.char(c)),
                None => return Ok(()),
            }
        }
        let Some(last) = nodes.pop() else {
            return self.cursor.unknown("empty quoting");
        };
        nodes.push(self.quantified(last)?);
        Ok(())
    }

    /// Skips comments, white space in extended mode, and empty quotes (`\Q\E`).
    fn skip_ignored(&mut self) {
        loop {
            let skipped = self.cursor.eat("\\E")
                || self.cursor.eat("\\Q\\E")
                || (self.cursor.rest().starts_with("(?#") && self.cursor.until(')').is_some())
                || (self.flags.extended && self.skip_extended());
            if !skipped {
                return;
            }
        }
    }

    fn skip_extended(&mut self) -> bool {
        match self.cursor.peek() {
            Some('#') => {
                if self.cursor.until('\n').is_none() {
                    while self.cursor.next().is_some() {}
                }
                true
            }
            Some(c) if is_pattern_space(c) => self.cursor.next().is_some(),
            _ => false,
        }
    }

    fn item(&mut self) -> Result<Node, Unknown> {
        let Some(c) = self.cursor.next() else {
            return self.cursor.unknown("an item is missing");
        };
        match c {
            '\\' => self.escaped(),
            '[' => Ok(Node::Set(class(&mut self.cursor, self.flags.ignore_case)?)),
            '(' => self.group(),
            '.' if self.flags.dot_all => Ok(Node::Set(CharSet::all())),
            '.' => {
                self.types.push('N');
                Ok(Node::Set(CharSet::named(Named::Newline).negated()))
            }
            '^' if self.flags.multi_line => Ok(Node::Look(Look::LineStart)),
            '^' => Ok(Node::Look(Look::TextStart)),
            '$' if self.flags.multi_line => Ok(Node::Look(Look::LineEnd)),
            '$' => Ok(Node::Look(Look::TextEndNewline)),
            '*' | '+' | '?' => self.cursor.unknown("a quantifier without an item"),
            '{' if counts(self.cursor.rest()).is_some() => {
                self.cursor.unknown("a quantifier without an item")
            }
            c => Ok(self.char(c)),
        }
    }

    fn char(&self, c: char) -> Node {
        let set = CharSet::of_char(c);
        Node::Set(if self.flags.ignore_case {
            fold(&set)
        } else {
            set
        })
    }

    fn escaped(&mut self) -> Result<Node, Unknown> {
        self.types.extend(self.cursor.peek());
        Ok(
            match escape(&mut self.cursor, false, self.flags.ignore_case)? {
                Escape::Char(c) => self.char(c),
                Escape::Set(set) => Node::Set(set),
                Escape::Look(look) => Node::Look(look),
                Escape::LineBreak => line_break(),
                Escape::Grapheme => Node::concat(vec![
                    Node::Set(CharSet::all()),
                    Node::Opaque("a grapheme cluster"),
                ]),
                Escape::KeepOut => Node::Empty,
                Escape::Reference => self.reference(),
            },
        )
    }

    pub(super) fn reference(&mut self) -> Node {
        self.refers = true;
        Node::Opaque("a back-reference or a subroutine call")
    }

    /// Applies the next quantifier, if there is one.
    fn quantified(&mut self, node: Node) -> Result<Node, Unknown> {
        self.skip_ignored();
        let Some((min, max)) = self.counts() else {
            return Ok(node);
        };
        self.skip_ignored();
        let possessive = self.cursor.eat("+");
        let _lazy = !possessive && self.cursor.eat("?");
        if max.is_some_and(|max| max < min) {
            return self.cursor.unknown("counts out of order");
        }
        Ok(Node::repeat(node, min, max, possessive))
    }

    fn counts(&mut self) -> Option<(u32, Option<u32>)> {
        let simple = [("*", (0, None)), ("+", (1, None)), ("?", (0, Some(1)))];
        for (sign, range) in simple {
            if self.cursor.eat(sign) {
                return Some(range);
            }
        }
        let (range, bytes) = counts(self.cursor.rest().strip_prefix('{')?)?;
        let text = &self.cursor.rest()[..bytes + 1];
        self.cursor.eat(text).then_some(range)
    }
}

/// Parses `n}`, `n,}` or `n,m}`; returns the counts and the number of bytes read.
fn counts(text: &str) -> Option<((u32, Option<u32>), usize)> {
    let (body, _) = text.split_once('}')?;
    let (low, high) = match body.split_once(',') {
        Some((low, high)) => (low, Some(high)),
        None => (body, None),
    };
    let min = count(low)?;
    let max = match high {
        None => Some(min),
        Some("") => None,
        Some(high) => Some(count(high)?),
    };
    Some(((min, max), body.len() + 1))
}

fn count(digits: &str) -> Option<u32> {
    let all = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if all { digits.parse().ok() } else { None }
}

/// Returns whether the option `x` ignores `c`, that is, whether `c` is Unicode pattern white space (pcre2_compile.c,
/// `parse_regex`).
fn is_pattern_space(c: char) -> bool {
    matches!(
        c,
        '\t'..='\r' | ' ' | '\u{85}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}'
    )
}

/// Returns the node of `\R`: CR LF as a unit, or one vertical space.
fn line_break() -> Node {
    let pair = Node::concat(vec![
        Node::Set(CharSet::of_char('\r')),
        Node::Set(CharSet::of_char('\n')),
    ]);
    let one = Node::Set(CharSet::named(Named::Vertical));
    Node::Atomic(Box::new(Node::alternate(vec![pair, one])))
}
