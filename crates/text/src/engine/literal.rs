//! Comparing with one literal: exact, prefix, suffix and substring.

use memchr::memchr;
use memchr::memmem::Finder;

use super::{Engine, search_each};
use crate::form::{DeviceForm, LiteralForm};
use crate::rows::{Rows, SEPARATOR};
use crate::tier::Tier;
use forebay_cancel::{Stop, Stopped};

/// Matches found between two checks of [`Stop`].
const MATCHES_PER_CHECK: usize = 16_384;

/// Bytes searched between two checks of [`Stop`].
pub(crate) const BYTES_PER_CHECK: usize = 256 << 10;

/// Where in a value the literal has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Whole,
    Start,
    End,
    Anywhere,
}

/// The engine of one literal.
pub(crate) struct LiteralEngine {
    place: Place,
    finder: Finder<'static>,
}

impl LiteralEngine {
    pub(crate) fn new(place: Place, literal: &[u8]) -> LiteralEngine {
        LiteralEngine {
            place,
            finder: Finder::new(literal).into_owned(),
        }
    }

    pub(crate) fn literal(&self) -> &[u8] {
        self.finder.needle()
    }

    pub(crate) fn tier(&self) -> Tier {
        match self.place {
            Place::Whole => Tier::Exact,
            Place::Start => Tier::Prefix,
            Place::End => Tier::Suffix,
            Place::Anywhere => Tier::Substring,
        }
    }

    /// Calls `on_match` with the position of the first occurrence in each row that has one.
    fn find_rows(
        &self,
        rows: Rows<'_>,
        stop: &Stop,
        mut on_match: impl FnMut(usize),
    ) -> Result<(), Stopped> {
        let span = rows.span();
        let mut at = span.start;
        while at < span.end {
            stop.check()?;
            let piece_end = piece_end(rows.bytes, at, span.end);
            at = self.find_in(&rows.bytes[..piece_end], at, &mut on_match);
        }
        Ok(())
    }

    /// Searches up to the end of `bytes` or for a bounded number of matches; returns where to go on.
    fn find_in(&self, bytes: &[u8], mut at: usize, on_match: &mut impl FnMut(usize)) -> usize {
        for _ in 0..MATCHES_PER_CHECK {
            let Some(found) = self.finder.find(&bytes[at..]) else {
                return bytes.len();
            };
            on_match(at + found);
            at = row_end(bytes, at + found) + 1;
            if at >= bytes.len() {
                break;
            }
        }
        at
    }
}

/// The end of a piece of about [`BYTES_PER_CHECK`] bytes that ends with a separator.
pub(crate) fn piece_end(bytes: &[u8], at: usize, end: usize) -> usize {
    let near = at + BYTES_PER_CHECK;
    if near >= end {
        end
    } else {
        row_end(&bytes[..end], near) + 1
    }
}

/// The position of the separator that ends the row around `position`.
pub(crate) fn row_end(bytes: &[u8], position: usize) -> usize {
    memchr(SEPARATOR, &bytes[position..]).map_or(bytes.len(), |found| position + found)
}

impl Engine for LiteralEngine {
    #[inline]
    fn is_match(&self, value: &[u8]) -> bool {
        let literal = self.literal();
        match self.place {
            Place::Whole => value == literal,
            Place::Start => value.starts_with(literal),
            Place::End => value.ends_with(literal),
            Place::Anywhere => self.finder.find(value).is_some(),
        }
    }

    fn device_form(&self) -> Option<DeviceForm> {
        Some(DeviceForm::Literal(LiteralForm::new(
            self.place,
            self.literal(),
        )))
    }

    fn search_rows(
        &self,
        rows: Rows<'_>,
        stop: &Stop,
        on_match: &mut dyn FnMut(u32),
    ) -> Result<(), Stopped> {
        if self.place != Place::Anywhere {
            return search_each(rows, stop, |value| self.is_match(value), on_match);
        }
        let mut row = 0;
        self.find_rows(rows, stop, |position| {
            row = rows.row_at(position, row);
            on_match(row as u32);
        })
    }

    fn count_rows(&self, rows: Rows<'_>, stop: &Stop) -> Result<u64, Stopped> {
        let mut count = 0;
        if self.place == Place::Anywhere {
            self.find_rows(rows, stop, |_| count += 1)?;
        } else {
            search_each(rows, stop, |value| self.is_match(value), |_| count += 1)?;
        }
        Ok(count)
    }
}
