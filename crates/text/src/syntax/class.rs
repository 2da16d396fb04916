//! Parser of bracket classes.

use super::Unknown;
use super::cursor::Cursor;
use super::escape::{Escape, escape};
use super::fold::fold;
use super::set::{CharSet, Named};

/// Parses a class; the cursor is after its `[`.
pub(super) fn class(cursor: &mut Cursor<'_>, ignore_case: bool) -> Result<CharSet, Unknown> {
    if cursor.rest().starts_with("[:<:]]") || cursor.rest().starts_with("[:>:]]") {
        return cursor.unknown("a word boundary in brackets");
    }
    let negated = cursor.eat("^");
    let mut class = Class::default();
    let mut first = true;
    while first || !cursor.eat("]") {
        class.item(cursor, ignore_case)?;
        first = false;
    }
    let set = class.finish(ignore_case, negated);
    Ok(if negated { set.negated() } else { set })
}

/// A class being read.
///
/// PCRE2 keeps a bit for each character below U+0100 and a list for the others, and a class such as `\D` only sets bits
/// and a flag. What the flag means for the characters from U+0100 on depends on the other items of the class
/// (pcre2_compile.c, `should_flip_negation`), and a later POSIX class overwrites the flag. The fields of this struct
/// keep the bits, the list and the flag separate too.
#[derive(Default)]
struct Class {
    /// Characters and ranges that case folding applies to.
    chars: CharSet,
    /// Sets that case folding does not apply to.
    sets: CharSet,
    /// POSIX classes and negated sets without Unicode properties; only their characters below U+0100 count.
    bits: CharSet,
    /// Whether the set last added to `bits` was negated, and so contains the characters from U+0100 on.
    others_too: bool,
    has_property: bool,
    /// The character before the cursor, if a range may start with it.
    open: Option<char>,
}

impl Class {
    fn item(&mut self, cursor: &mut Cursor<'_>, ignore_case: bool) -> Result<(), Unknown> {
        match cursor.next() {
            None => cursor.unknown("an unclosed class"),
            Some('[') if cursor.rest().starts_with([':', '.', '=']) => {
                self.posix_or_bracket(cursor, ignore_case)
            }
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

    /// Marks the end of a set, which cannot start a range.
    fn close(&mut self, cursor: &Cursor<'_>) -> Result<(), Unknown> {
        self.open = None;
        if cursor.rest().starts_with('-') && !cursor.rest().starts_with("-]") {
            return cursor.unknown("a hyphen after a set");
        }
        Ok(())
    }

    fn escape(&mut self, cursor: &mut Cursor<'_>, ignore_case: bool) -> Result<(), Unknown> {
        let letter = cursor.peek();
        match read_escape(cursor, ignore_case)? {
            Escape::Char(c) => {
                self.char(c);
                return Ok(());
            }
            Escape::Set(set) if matches!(letter, Some('D' | 'W' | 'S')) => {
                self.bits.union(&set);
                self.others_too = true;
            }
            Escape::Set(set) => {
                self.sets.union(&set);
                self.has_property |= matches!(letter, Some('p' | 'P'));
            }
            _ => return cursor.unknown("an escape in a class"),
        }
        self.close(cursor)
    }

    /// Parses the rest of a range, after its hyphen.
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

    fn posix_or_bracket(
        &mut self,
        cursor: &mut Cursor<'_>,
        ignore_case: bool,
    ) -> Result<(), Unknown> {
        let Some((name, _)) = cursor
            .rest()
            .strip_prefix(':')
            .and_then(|rest| rest.split_once(":]"))
        else {
            return cursor.unknown("a bracket in a class");
        };
        let (negated, bare) = match name.strip_prefix('^') {
            Some(bare) => (true, bare),
            None => (false, name),
        };
        let Some(set) = posix(bare, ignore_case) else {
            return cursor.unknown("a POSIX class");
        };
        let eaten = cursor.eat(&format!(":{name}:]"));
        debug_assert!(
            eaten,
            "the cursor is before the `:name:]` that was just read ahead"
        );
        self.bits.union(&if negated { set.negated() } else { set });
        self.others_too = negated;
        self.close(cursor)
    }

    fn finish(self, ignore_case: bool, negated: bool) -> CharSet {
        let mut listed = if ignore_case {
            fold(&self.chars)
        } else {
            self.chars
        };
        listed.union(&self.sets);
        let mut below = listed.clone();
        below.union(&self.bits);
        below.intersect(&CharSet::of_ranges(&[BELOW]));
        let all_others = self.others_too && (!self.has_property || !negated);
        let mut others = CharSet::of_ranges(&[OTHERS]);
        if !all_others {
            others.intersect(&listed);
        }
        below.union(&others);
        below
    }
}

/// The characters for which PCRE2 keeps bits.
const BELOW: (char, char) = ('\0', '\u{ff}');
const OTHERS: (char, char) = ('\u{100}', char::MAX);

fn read_escape(cursor: &mut Cursor<'_>, ignore_case: bool) -> Result<Escape, Unknown> {
    if cursor.rest().starts_with(['Q', 'E']) {
        return cursor.unknown("quoting in a class");
    }
    escape(cursor, true, ignore_case)
}

/// Returns a POSIX class of the C locale. If case is ignored, `upper` and `lower` contain all letters.
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
