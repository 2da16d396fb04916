//! Cursor over the characters of a pattern.

use super::Unknown;

/// A position in a pattern.
pub(super) struct Cursor<'a> {
    source: &'a str,
    offset: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(source: &'a str) -> Cursor<'a> {
        Cursor { source, offset: 0 }
    }

    pub(super) fn rest(&self) -> &'a str {
        &self.source[self.offset..]
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    pub(super) fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.offset += c.len_utf8();
        Some(c)
    }

    /// Consumes `text` and returns `true` if it is next.
    pub(super) fn eat(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        if found {
            self.offset += text.len();
        }
        found
    }

    /// Moves past the next `end` and returns the text before it.
    pub(super) fn until(&mut self, end: char) -> Option<&'a str> {
        let rest = self.rest();
        let length = rest.find(end)?;
        self.offset += length + end.len_utf8();
        Some(&rest[..length])
    }

    /// Consumes up to `count_max` digits of a radix and returns their value; 0 if there are none.
    pub(super) fn digits(&mut self, radix: u32, count_max: usize) -> u32 {
        let mut value = 0u32;
        for _ in 0..count_max {
            let Some(digit) = self.peek().and_then(|c| c.to_digit(radix)) else {
                break;
            };
            value = value.saturating_mul(radix).saturating_add(digit);
            self.offset += 1;
        }
        value
    }

    pub(super) fn unknown<T>(&self, what: &'static str) -> Result<T, Unknown> {
        Err(Unknown {
            what,
            offset: self.offset,
        })
    }
}
