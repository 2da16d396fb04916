//! Classes in square brackets.

use super::Unknown;
use super::cursor::Cursor;
use super::escape::{Escape, escape};
use super::fold::fold;
use super::set::{CharSet, Named};

/// Reads a class; the cursor stands after its `[`.
pub(super) fn class(cursor: &mut Cursor<'_>, ignore_case: bool) -> Result<CharSet, Unknown> {
    if cursor.rest().starts_with("[:<:]]") || cursor.rest().starts_with("[:>:]]") {
        return cursor.unknown("a word boundary in brackets");
    }
    let negated = cursor.eat("^");
    let mut class = Class { set: CharSet::empty(), chars: CharSet::empty(), open: None };
    let mut first = true;
    while first || !cursor.eat("]") {
        class.item(cursor, ignore_case)?;
        first = false;
    }
    let set = class.finish(ignore_case);
    Ok(if negated { set.negated() } else { set })
}

/// A class being read: whole sets, single characters and ranges still to be folded, and the character a range may
/// start with.
struct Class {
    set: CharSet,
    chars: CharSet,
    open: Option<char>,
}

impl Class {
    fn item(&mut self, cursor: &mut Cursor<'_>, ignore_case: bool) -> Result<(), Unknown> {
        match cursor.next() {
            None => cursor.unknown("an open class"),
            Some('[') if cursor.rest().starts_with([':', '.', '=']) => self.posix_or_bracket(cursor, ignore_case),
            Some('-') if self.open.is_some() && cursor.peek() != Some(']') => self.range(cursor),
            Some('\\') => self.escape(cursor, ignore_case),
            Some(c) => {
                self.char(c);
                Ok(())
            }
        }
    }

    fn char(&mut self, c: char) {
        self.chars.push(c, c);
        self.open = Some(c);
    }

    fn whole(&mut self, cursor: &Cursor<'_>, set: &CharSet) -> Result<(), Unknown> {
        self.set.union(set);
        self.open = None;
        if cursor.rest().starts_with('-') && !cursor.rest().starts_with("-]") {
            return cursor.unknown("a hyphen after a set");
        }
        Ok(())
    }

    fn escape(&mut self, cursor: &mut Cursor<'_>, ignore_case: bool) -> Result<(), Unknown> {
        match read_escape(cursor, ignore_case)? {
            Escape::Char(c) => {
                self.char(c);
                Ok(())
            }
            Escape::Set(set) => self.whole(cursor, &set),
            _ => cursor.unknown("an escape in a class"),
        }
    }

    /// The rest of a range, after its hyphen.
    fn range(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Unknown> {
        let end = match cursor.next() {
            Some('[') if cursor.rest().starts_with([':', '.', '=']) => None,
            Some('\\') => match read_escape(cursor, false)? {
                Escape::Char(c) => Some(c),
                _ => None,
            },
            other => other,
        };
        match (self.open.take(), end) {
            (Some(start), Some(end)) if start <= end => {
                self.chars.push(start, end);
                Ok(())
            }
            _ => cursor.unknown("a range"),
        }
    }

    fn posix_or_bracket(&mut self, cursor: &mut Cursor<'_>, ignore_case: bool) -> Result<(), Unknown> {
        let Some((name, _)) = cursor.rest().strip_prefix(':').and_then(|rest| rest.split_once(":]")) else {
            return cursor.unknown("a bracket in a class");
        };
        let (negated, bare) = match name.strip_prefix('^') {
            Some(bare) => (true, bare),
            None => (false, name),
        };
        let Some(set) = posix(bare, ignore_case) else { return cursor.unknown("a POSIX class") };
        let eaten = cursor.eat(&format!(":{name}:]"));
        debug_assert!(eaten, "the name was read from here");
        self.whole(cursor, &if negated { set.negated() } else { set })
    }

    fn finish(self, ignore_case: bool) -> CharSet {
        let mut set = if ignore_case { fold(&self.chars) } else { self.chars };
        set.union(&self.set);
        set
    }
}

fn read_escape(cursor: &mut Cursor<'_>, ignore_case: bool) -> Result<Escape, Unknown> {
    if cursor.rest().starts_with(['Q', 'E']) {
        return cursor.unknown("quoting in a class");
    }
    escape(cursor, true, ignore_case)
}

/// The POSIX classes of the C locale. Caseless, upper and lower case are all letters.
fn posix(name: &str, ignore_case: bool) -> Option<CharSet> {
    let ranges: &[(char, char)] = match name {
        "upper" | "lower" if ignore_case => &[('A', 'Z'), ('a', 'z')],
        "alpha" => &[('A', 'Z'), ('a', 'z')],
        "lower" => &[('a', 'z')],
        "upper" => &[('A', 'Z')],
        "alnum" => &[('0', '9'), ('A', 'Z'), ('a', 'z')],
        "ascii" => &[('\0', '\x7f')],
        "blank" => &[('\t', '\t'), (' ', ' ')],
        "cntrl" => &[('\0', '\x1f'), ('\x7f', '\x7f')],
        "digit" => &[('0', '9')],
        "graph" => &[('!', '~')],
        "print" => &[(' ', '~')],
        "punct" => &[('!', '/'), (':', '@'), ('[', '`'), ('{', '~')],
        "space" => return Some(CharSet::named(Named::Space)),
        "word" => return Some(CharSet::named(Named::Word)),
        "xdigit" => &[('0', '9'), ('A', 'F'), ('a', 'f')],
        _ => return None,
    };
    Some(CharSet::of_ranges(ranges))
}
