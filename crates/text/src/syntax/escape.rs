//! Parser of escape sequences.

use std::sync::Arc;

use super::cursor::Cursor;
use super::property::property;
use super::set::{CharSet, Named};
use super::{Look, Unknown};

/// An escape sequence.
pub(super) enum Escape {
    /// One character, which case folding applies to.
    Char(char),
    /// A set of characters, which case folding does not apply to.
    Set(CharSet),
    /// An assertion. In a class, only `\b`, which means a backspace there.
    Look(Look),
    /// `\R`.
    LineBreak,
    /// `\X`.
    Grapheme,
    /// `\K`, which moves the start of the match but does not change whether there is a match.
    KeepOut,
    /// A back-reference or a subroutine call.
    Reference,
}

/// Parses the escape after a backslash. The caller has handled `\Q` and `\E`.
pub(super) fn escape(
    cursor: &mut Cursor<'_>,
    in_class: bool,
    ignore_case: bool,
) -> Result<Escape, Unknown> {
    let rest = cursor.rest();
    let Some(c) = cursor.next() else {
        return cursor.unknown("a backslash at the end");
    };
    if !c.is_ascii_alphanumeric() {
        return Ok(Escape::Char(c));
    }
    if let Some(set) = named(c) {
        return Ok(Escape::Set(set));
    }
    match c {
        'p' | 'P' => unicode_property(cursor, rest, ignore_case),
        '0'..='9' => number(cursor, rest, in_class),
        'x' | 'o' | 'c' => coded(cursor, c),
        _ => match control(c) {
            Some(char) => Ok(Escape::Char(char)),
            None if in_class => in_class_only(cursor, c),
            None => outside_class(cursor, c),
        },
    }
}

fn named(c: char) -> Option<CharSet> {
    let name = match c.to_ascii_lowercase() {
        'd' => Named::Digit,
        'w' => Named::Word,
        's' => Named::Space,
        'h' => Named::Horizontal,
        'v' => Named::Vertical,
        _ => return None,
    };
    let set = CharSet::named(name);
    Some(if c.is_ascii_uppercase() {
        set.negated()
    } else {
        set
    })
}

fn control(c: char) -> Option<char> {
    Some(match c {
        'a' => '\x07',
        'e' => '\x1b',
        'f' => '\x0c',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        _ => return None,
    })
}

fn in_class_only(cursor: &Cursor<'_>, c: char) -> Result<Escape, Unknown> {
    match c {
        'b' => Ok(Escape::Char('\x08')),
        _ => cursor.unknown("an escape in a class"),
    }
}

fn outside_class(cursor: &mut Cursor<'_>, c: char) -> Result<Escape, Unknown> {
    Ok(match c {
        'A' | 'G' => Escape::Look(Look::TextStart),
        'Z' => Escape::Look(Look::TextEndNewline),
        'z' => Escape::Look(Look::TextEnd),
        'b' => Escape::Look(Look::WordBoundary),
        'B' => Escape::Look(Look::NotWordBoundary),
        'K' => Escape::KeepOut,
        'R' => Escape::LineBreak,
        'X' => Escape::Grapheme,
        'N' if cursor.rest().starts_with('{') => return cursor.unknown("\\N{"),
        'N' => Escape::Set(CharSet::named(Named::Newline).negated()),
        'g' | 'k' => return reference(cursor),
        _ => return cursor.unknown("an escape"),
    })
}

/// Parses `\g` and `\k` with a number or a name, in any brackets.
fn reference(cursor: &mut Cursor<'_>) -> Result<Escape, Unknown> {
    let end = match cursor.peek() {
        Some('{') => Some('}'),
        Some('<') => Some('>'),
        Some('\'') => Some('\''),
        _ => None,
    };
    match end {
        Some(end) => {
            cursor.next();
            if cursor.until(end).is_none() {
                return cursor.unknown("an unclosed reference");
            }
        }
        None => {
            let _ = cursor.eat("-") || cursor.eat("+");
            cursor.digits(10, 9);
        }
    }
    Ok(Escape::Reference)
}

/// Parses `\p{..}`, `\P{..}` and `\pL`; `rest` starts at the letter after the backslash.
fn unicode_property(
    cursor: &mut Cursor<'_>,
    rest: &str,
    ignore_case: bool,
) -> Result<Escape, Unknown> {
    let length = if cursor.eat("{") {
        match cursor.until('}') {
            Some(name) => name.len() + "p{}".len(),
            None => return cursor.unknown("an unclosed property"),
        }
    } else {
        match cursor.next() {
            Some(letter) if letter.is_ascii_alphabetic() => 2,
            _ => return cursor.unknown("a property without a name"),
        }
    };
    match property(&format!("\\{}", &rest[..length]), ignore_case) {
        Some(set) => Ok(Escape::Set(Arc::unwrap_or_clone(set))),
        None => cursor.unknown("a property"),
    }
}

/// Parses a backslash and digits: octal after 0 and in classes, otherwise a back-reference if that is certain.
fn number(cursor: &mut Cursor<'_>, rest: &str, in_class: bool) -> Result<Escape, Unknown> {
    let first = rest.chars().next().and_then(|c| c.to_digit(8));
    match first {
        Some(first) if first == 0 || in_class => {
            let before = cursor.rest();
            let more = cursor.digits(8, 2);
            let count = before.len() - cursor.rest().len();
            code_point(cursor, first * 8u32.pow(count as u32) + more)
        }
        Some(_) | None if !in_class => {
            if cursor.peek().is_some_and(|c| c.is_ascii_digit()) {
                return cursor.unknown("a backslash with several digits");
            }
            Ok(Escape::Reference)
        }
        _ => cursor.unknown("an escaped 8 or 9 in a class"),
    }
}

fn coded(cursor: &mut Cursor<'_>, c: char) -> Result<Escape, Unknown> {
    match c {
        'c' => control_letter(cursor),
        'x' if !cursor.eat("{") => {
            let value = cursor.digits(16, 2);
            code_point(cursor, value)
        }
        'o' if !cursor.eat("{") => cursor.unknown("\\o"),
        _ => {
            let value = cursor.digits(if c == 'x' { 16 } else { 8 }, usize::MAX);
            if !cursor.eat("}") {
                return cursor.unknown("an unclosed code point");
            }
            code_point(cursor, value)
        }
    }
}

fn control_letter(cursor: &mut Cursor<'_>) -> Result<Escape, Unknown> {
    match cursor.next() {
        Some(c @ ' '..='~') => Ok(Escape::Char((c.to_ascii_uppercase() as u8 ^ 0x40) as char)),
        _ => cursor.unknown("\\c"),
    }
}

fn code_point(cursor: &Cursor<'_>, value: u32) -> Result<Escape, Unknown> {
    match char::from_u32(value) {
        Some(c) => Ok(Escape::Char(c)),
        None => cursor.unknown("an invalid code point"),
    }
}
