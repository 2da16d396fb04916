//! Parser of groups and other constructs that start with a parenthesis.

use super::parser::Parser;
use super::{Around, Node, Unknown};
use crate::options::Options;

/// Kind of a group. The characters after its `(` determine it.
#[derive(Clone, Copy)]
enum Kind {
    Plain,
    Atomic,
    Around { behind: bool, negative: bool },
}

/// Openings with a fixed spelling. `(?|`, which restarts group numbers in each branch, is parsed as a plain group
/// because no tree depends on group numbers.
const OPENINGS: [(&str, Kind); 8] = [
    ("?:", Kind::Plain),
    ("?|", Kind::Plain),
    ("?>", Kind::Atomic),
    (
        "?=",
        Kind::Around {
            behind: false,
            negative: false,
        },
    ),
    (
        "?!",
        Kind::Around {
            behind: false,
            negative: true,
        },
    ),
    (
        "?<=",
        Kind::Around {
            behind: true,
            negative: false,
        },
    ),
    (
        "?<!",
        Kind::Around {
            behind: true,
            negative: true,
        },
    ),
    ("?P<", Kind::Plain),
];

impl Parser<'_> {
    /// Parses a group; the cursor is after its `(`. The caller has handled comments.
    pub(super) fn group(&mut self) -> Result<Node, Unknown> {
        if self.cursor.rest().starts_with('*') {
            return self.cursor.unknown("a verb");
        }
        if !self.cursor.rest().starts_with('?') {
            return self.contents(Kind::Plain, self.flags);
        }
        for (opening, kind) in OPENINGS {
            if self.cursor.eat(opening) {
                if opening == "?P<" {
                    self.name('>')?;
                }
                return self.contents(kind, self.flags);
            }
        }
        self.named_or_options()
    }

    fn named_or_options(&mut self) -> Result<Node, Unknown> {
        if self.cursor.eat("?<") {
            self.name('>')?;
            return self.contents(Kind::Plain, self.flags);
        }
        if self.cursor.eat("?'") {
            self.name('\'')?;
            return self.contents(Kind::Plain, self.flags);
        }
        match self.call() {
            Some(node) => Ok(node),
            None => self.inline_options(),
        }
    }

    fn name(&mut self, end: char) -> Result<(), Unknown> {
        match self.cursor.until(end) {
            Some(_) => Ok(()),
            None => self.cursor.unknown("an unclosed name"),
        }
    }

    /// Parses `(?R)`, `(?1)`, `(?-1)`, `(?+1)`, `(?&name)`, `(?P>name)` and the back-reference `(?P=name)`.
    fn call(&mut self) -> Option<Node> {
        let rest = self.cursor.rest().strip_prefix('?')?;
        let body = rest.split_once(')')?.0;
        let number = body.strip_prefix(['+', '-']).unwrap_or(body);
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let is_call = is_number || body == "R" || body.starts_with('&') || body.starts_with("P>");
        if !is_call && !body.starts_with("P=") {
            return None;
        }
        self.cursor.until(')')?;
        Some(self.reference())
    }

    /// Parses options such as `(?i)`, which apply up to the end of the enclosing group, and groups such as `(?i:...)`.
    fn inline_options(&mut self) -> Result<Node, Unknown> {
        self.cursor.eat("?");
        let mut flags = self.flags;
        if self.cursor.eat("^") {
            flags = Options::default();
        }
        let mut on = true;
        loop {
            match self.cursor.next() {
                Some('-') => on = false,
                Some(':') => return self.contents(Kind::Plain, flags),
                Some(')') => {
                    self.flags = flags;
                    return Ok(Node::Empty);
                }
                Some('x') if self.cursor.rest().starts_with('x') => {
                    return self.cursor.unknown("the option xx");
                }
                Some(letter) if set_flag(&mut flags, letter, on) => {}
                _ => return self.cursor.unknown("an unknown kind of group"),
            }
        }
    }

    /// Parses the contents of a group and its closing parenthesis.
    fn contents(&mut self, kind: Kind, flags: Options) -> Result<Node, Unknown> {
        if self.nesting_left == 0 {
            return self.cursor.unknown("groups nested too deeply");
        }
        let outer = std::mem::replace(&mut self.flags, flags);
        self.nesting_left -= 1;
        let node = self.alternatives()?;
        self.nesting_left += 1;
        self.flags = outer;
        if !self.cursor.eat(")") {
            return self.cursor.unknown("an unclosed group");
        }
        Ok(match kind {
            Kind::Plain => node,
            Kind::Atomic => Node::Atomic(Box::new(node)),
            Kind::Around { behind, negative } => Node::Around(Box::new(Around {
                node,
                behind,
                negative,
            })),
        })
    }
}

/// Sets or clears an option; `n` and `J` concern capturing groups and have no effect here.
fn set_flag(flags: &mut Options, letter: char, on: bool) -> bool {
    match letter {
        'i' => flags.ignore_case = on,
        'm' => flags.multi_line = on,
        's' => flags.dot_all = on,
        'x' => flags.extended = on,
        'n' | 'J' => {}
        _ => return false,
    }
    true
}
