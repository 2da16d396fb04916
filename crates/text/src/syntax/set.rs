//! Sets of characters.

use std::fmt;

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir};

/// A set of Unicode scalar values.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct CharSet {
    class: ClassUnicode,
}

impl CharSet {
    pub(crate) fn empty() -> CharSet {
        CharSet {
            class: ClassUnicode::empty(),
        }
    }

    pub(crate) fn all() -> CharSet {
        CharSet::of_ranges(&[('\0', char::MAX)])
    }

    pub(crate) fn of_ranges(ranges: &[(char, char)]) -> CharSet {
        let ranges = ranges
            .iter()
            .map(|&(start, end)| ClassUnicodeRange::new(start, end));
        let mut set = CharSet {
            class: ClassUnicode::new(ranges),
        };
        set.bridge_surrogates();
        set
    }

    pub(crate) fn of_char(c: char) -> CharSet {
        CharSet::of_ranges(&[(c, c)])
    }

    pub(crate) fn push(&mut self, start: char, end: char) {
        self.class.push(ClassUnicodeRange::new(start, end));
    }

    pub(crate) fn union(&mut self, other: &CharSet) {
        self.class.union(&other.class);
        self.bridge_surrogates();
    }

    pub(crate) fn intersect(&mut self, other: &CharSet) {
        self.class.intersect(&other.class);
    }

    pub(crate) fn negated(mut self) -> CharSet {
        self.bridge_surrogates();
        self.class.negate();
        self
    }

    /// Merges ranges that are separated only by the surrogates. Surrogates are not characters, and negation needs a
    /// character in each gap between ranges.
    fn bridge_surrogates(&mut self) {
        let ranges = self.class.ranges();
        if ranges
            .windows(2)
            .any(|pair| pair[0].end() == '\u{d7ff}' && pair[1].start() == '\u{e000}')
        {
            self.push('\u{d7ff}', '\u{e000}');
        }
    }

    pub(crate) fn ranges(&self) -> impl Iterator<Item = (char, char)> {
        self.class
            .ranges()
            .iter()
            .map(|range| (range.start(), range.end()))
    }

    pub(crate) fn contains(&self, c: char) -> bool {
        let ranges = self.class.ranges();
        let index = ranges.partition_point(|range| range.end() < c);
        ranges.get(index).is_some_and(|range| range.start() <= c)
    }

    pub(crate) fn is_all(&self) -> bool {
        *self == CharSet::all()
    }

    pub(crate) fn is_disjoint(&self, other: &CharSet) -> bool {
        let mut common = self.class.clone();
        common.intersect(&other.class);
        common.ranges().is_empty()
    }

    /// Returns the only character of the set; `None` if there is not exactly one.
    pub(crate) fn single(&self) -> Option<char> {
        match self.class.ranges() {
            [range] if range.start() == range.end() => Some(range.start()),
            _ => None,
        }
    }

    pub(crate) fn to_hir(&self) -> Hir {
        Hir::class(Class::Unicode(self.class.clone()))
    }

    /// Returns a set as PCRE2 defines it without Unicode properties: `\d`, `\w` and `\s` contain only ASCII characters.
    pub(crate) fn named(name: Named) -> CharSet {
        CharSet::of_ranges(match name {
            Named::Digit => &[('0', '9')],
            Named::Word => &[('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')],
            Named::Space => &[('\t', '\r'), (' ', ' ')],
            Named::Horizontal => &HORIZONTAL,
            Named::Vertical => &VERTICAL,
            Named::Newline => &[('\n', '\n')],
        })
    }
}

impl Default for CharSet {
    fn default() -> CharSet {
        CharSet::empty()
    }
}

impl fmt::Debug for CharSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<_> = self.ranges().take(8).collect();
        write!(f, "{ranges:?} of {}", self.class.ranges().len())
    }
}

/// The sets of characters that single-letter escapes such as `\d` match.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named {
    Digit,
    Word,
    Space,
    Horizontal,
    Vertical,
    Newline,
}

/// The characters of `\h`, from pcre2pattern(3), "Generic character types".
const HORIZONTAL: [(char, char); 9] = [
    ('\t', '\t'),
    (' ', ' '),
    ('\u{a0}', '\u{a0}'),
    ('\u{1680}', '\u{1680}'),
    ('\u{180e}', '\u{180e}'),
    ('\u{2000}', '\u{200a}'),
    ('\u{202f}', '\u{202f}'),
    ('\u{205f}', '\u{205f}'),
    ('\u{3000}', '\u{3000}'),
];

/// The characters of `\v`, from pcre2pattern(3), "Generic character types".
const VERTICAL: [(char, char); 3] = [('\n', '\r'), ('\u{85}', '\u{85}'), ('\u{2028}', '\u{2029}')];
