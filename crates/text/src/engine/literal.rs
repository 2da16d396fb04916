//! Engine of one literal: exact, prefix, suffix and substring.

use memchr::memchr;
use memchr::memmem::Finder;

use super::{BYTES_PER_CHECK, Engine, search_each};
use crate::form::{DeviceForm, LiteralForm};
use crate::rows::{Rows, SEPARATOR};
use crate::tier::Tier;
use forebay_cancel::{Stop, Stopped};

/// Number of matches between two checks of [`Stop`].
const MATCHES_PER_CHECK: usize = 16_384;

/// Where in a value the literal must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Whole,
    Start,
    End,
    Anywhere,
}

/// Engine of one literal.
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

    /// Calls `on_match` with the position of the literal's first occurrence in each row that contains it.
    fn find_rows(
        &self,
        rows: Rows<'_>,
        stop: &Stop,
        mut on_match: impl FnMut(usize),
    ) -> Result<(), Stopped> {
        let span = rows.span();
        let bytes = &rows.bytes[..span.end];
        let mut at = span.start;
        while at < span.end {
            stop.check()?;
            at = self.find_in(bytes, at, &mut on_match);
        }
        Ok(())
    }

    /// Searches a window of `bytes` that starts at `at`, for at most [`MATCHES_PER_CHECK`] matches; returns the
    /// position to continue from.
    fn find_in(&self, bytes: &[u8], mut at: usize, on_match: &mut impl FnMut(usize)) -> usize {
        let window = window(bytes, at, self.literal().len());
        for _ in 0..MATCHES_PER_CHECK {
            let Some(found) = self.finder.find(&bytes[at..window.end]) else {
                return at.max(window.next);
            };
            on_match(at + found);
            at = row_end(bytes, at + found) + 1;
            if at >= window.end {
                break;
            }
        }
        at
    }

    /// Returns whether a value contains the literal; checks `stop` before each window.
    fn contains_until(&self, value: &[u8], stop: &Stop) -> Result<bool, Stopped> {
        let mut at = 0;
        loop {
            stop.check()?;
            let window = window(value, at, self.literal().len());
            if self.finder.find(&value[at..window.end]).is_some() {
                return Ok(true);
            }
            if window.end == value.len() {
                return Ok(false);
            }
            at = window.next;
        }
    }
}

/// A part of a block that is searched between two checks of [`Stop`]. It may end within a row.
pub(crate) struct Window {
    /// End of the window.
    pub(crate) end: usize,
    /// Start of the next window. Windows overlap, so that a literal across this window's end lies within the next
    /// window.
    pub(crate) next: usize,
}

/// Returns the window that starts at `at`, for literals of at most `literal_bytes`.
pub(crate) fn window(bytes: &[u8], at: usize, literal_bytes: usize) -> Window {
    let overlap = literal_bytes.saturating_sub(1);
    let end = at + BYTES_PER_CHECK + overlap;
    if end >= bytes.len() {
        let end = bytes.len();
        return Window { end, next: end };
    }
    Window {
        end,
        next: end - overlap,
    }
}

/// Returns the position of the separator that ends the row around `position`.
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

    fn is_match_until(&self, value: &[u8], stop: &Stop) -> Result<bool, Stopped> {
        if self.place == Place::Anywhere {
            return self.contains_until(value, stop);
        }
        // The comparison is short: it reads at most as many bytes as the literal has, and the length limit of patterns
        // also limits literals.
        stop.check()?;
        Ok(self.is_match(value))
    }

    fn device_form(&self, _stop: &Stop) -> Result<Option<DeviceForm>, Stopped> {
        let form = LiteralForm::new(self.place, self.literal());
        Ok(Some(DeviceForm::Literal(form)))
    }

    fn search_rows(
        &self,
        rows: Rows<'_>,
        stop: &Stop,
        on_match: &mut dyn FnMut(u32),
    ) -> Result<(), Stopped> {
        if self.place != Place::Anywhere {
            return search_each(self, rows, stop, on_match);
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
            search_each(self, rows, stop, |_| count += 1)?;
        }
        Ok(count)
    }
}
