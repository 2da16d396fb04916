//! Glushkov automaton of up to 64 positions, whose state is one 64-bit word.
//!
//! A position is an item of the expression that consumes a byte. The end of a row is a position too; it consumes the
//! separator. Positions at the start of a row are entered only after a separator. GPU kernels keep the state of this
//! automaton in registers.

use regex_syntax::hir::{Class, Hir, HirKind, Look};
use regex_syntax::utf8::Utf8Sequences;

use crate::engine::BYTES_PER_CHECK;
use crate::rows::SEPARATOR;
use forebay_cancel::{Stop, Stopped};

/// Maximum positions of an automaton: one per bit of a word.
pub(crate) const POSITIONS_MAX: usize = 64;

/// A Glushkov automaton. A row matches as soon as the active positions intersect `accept`.
pub(crate) struct Glushkov {
    /// For each byte value, the positions that accept it.
    takes: Box<[u64; 256]>,
    /// One table of followers for each byte of the word of active positions. Entry `v` of a table has the positions
    /// that may follow if the byte has the value `v`.
    follow: Vec<[u64; 256]>,
    /// Positions that may be entered anywhere.
    enter: u64,
    /// Positions that may be entered only at the start of a row.
    enter_row: u64,
    accept: u64,
    positions_count: usize,
    /// Whether the automaton matches every row.
    always: bool,
}

impl Glushkov {
    /// Builds the automaton of an expression.
    ///
    /// # Errors
    /// If the expression needs too many positions, or has assertions that positions cannot express.
    pub(crate) fn build(hir: &Hir) -> Result<Glushkov, String> {
        let mut builder = Builder::default();
        let part = builder.part(hir)?;
        if builder.beyond_end {
            return Err("a part of the pattern after the end of a row".to_owned());
        }
        if part.nullable_at_start && !part.nullable {
            // The expression matches the empty string at the start of a row, and every row has a start.
            return Ok(builder.finish(&Part {
                nullable: true,
                ..part
            }));
        }
        Ok(builder.finish(&part))
    }

    /// The active positions before the first byte of a row.
    pub(crate) const START: u64 = 0;

    /// Returns the active positions after a byte. `at_start` means that the byte is the first of a row.
    #[inline(always)]
    pub(crate) fn step(&self, positions: u64, byte: u8, at_start: bool) -> u64 {
        let mut entered = self.enter | if at_start { self.enter_row } else { 0 };
        for (index, follow) in self.follow.iter().enumerate() {
            entered |= follow[(positions >> (index * 8)) as u8 as usize];
        }
        entered & self.takes[byte as usize]
    }

    /// Returns whether a row, given without its separator, matches.
    pub(crate) fn row_is_match(&self, row: &[u8]) -> bool {
        self.row_is_match_until(row, &Stop::never())
            .expect("nothing stops it")
    }

    /// As [`row_is_match`](Glushkov::row_is_match), but checks `stop` after every [`BYTES_PER_CHECK`] bytes.
    pub(crate) fn row_is_match_until(&self, row: &[u8], stop: &Stop) -> Result<bool, Stopped> {
        let (first, rest) = row.split_at(row.len().min(BYTES_PER_CHECK));
        let mut positions = self.walk(Glushkov::START, first, true);
        for piece in rest.chunks(BYTES_PER_CHECK) {
            stop.check()?;
            positions = self.walk(positions, piece, false);
        }
        Ok(self.is_accepted(positions)
            || self.is_accepted(self.step(positions, SEPARATOR, row.is_empty())))
    }

    /// Returns the active positions after some bytes of a row, or at the first byte where the row is known to match.
    #[inline]
    fn walk(&self, mut positions: u64, bytes: &[u8], at_start: bool) -> u64 {
        for (index, &byte) in bytes.iter().enumerate() {
            if self.is_accepted(positions) {
                break;
            }
            positions = self.step(positions, byte, at_start && index == 0);
        }
        positions
    }

    #[inline]
    fn is_accepted(&self, positions: u64) -> bool {
        self.always || positions & self.accept != 0
    }

    /// Returns the automaton's tables; `None` if it matches every row.
    pub(crate) fn parts(&self) -> Option<Parts<'_>> {
        (!self.always).then_some(Parts {
            takes: &self.takes,
            follow: &self.follow,
            enter: self.enter,
            enter_row: self.enter_row,
            accept: self.accept,
        })
    }

    pub(crate) fn positions_count(&self) -> usize {
        self.positions_count
    }

    /// Returns the number of byte classes; bytes of one class are accepted by the same positions.
    pub(crate) fn classes_count(&self) -> usize {
        let mut sets: Vec<u64> = self.takes.to_vec();
        sets.sort_unstable();
        sets.dedup();
        sets.len()
    }

    /// Returns the number of bytes of the tables.
    pub(crate) fn table_bytes(&self) -> usize {
        size_of::<[u64; 256]>() * (1 + self.follow.len())
    }
}

/// Borrowed tables of an automaton; see [`Glushkov`].
pub(crate) struct Parts<'a> {
    pub(crate) takes: &'a [u64; 256],
    pub(crate) follow: &'a [[u64; 256]],
    pub(crate) enter: u64,
    pub(crate) enter_row: u64,
    pub(crate) accept: u64,
}

/// The positions at which a match of a subexpression may begin and end. Positions in `first_row` may be entered only at
/// the start of a row.
#[derive(Clone, Copy, Default)]
struct Part {
    first: u64,
    first_row: u64,
    last: u64,
    nullable: bool,
    /// Whether the subexpression matches the empty string, but only at the start of a row.
    nullable_at_start: bool,
}

#[derive(Default)]
struct Builder {
    takes: Vec<[bool; 256]>,
    follow: Vec<u64>,
    /// Positions that consume the separator.
    ends: u64,
    /// Whether a part of the expression follows a position that consumes the separator.
    beyond_end: bool,
}

impl Builder {
    fn part(&mut self, hir: &Hir) -> Result<Part, String> {
        match hir.kind() {
            HirKind::Empty => Ok(Part {
                nullable: true,
                ..Part::default()
            }),
            HirKind::Literal(literal) => self.bytes(&literal.0),
            HirKind::Class(class) => self.class(class),
            HirKind::Look(Look::StartLF) => Ok(Part {
                nullable_at_start: true,
                ..Part::default()
            }),
            HirKind::Look(Look::EndLF) => {
                let part = self.position(|byte| byte == SEPARATOR)?;
                self.ends |= part.first;
                Ok(part)
            }
            HirKind::Look(_) => Err("a word boundary".to_owned()),
            HirKind::Repetition(repetition) => {
                self.repeat(&repetition.sub, repetition.min, repetition.max)
            }
            HirKind::Capture(capture) => self.part(&capture.sub),
            HirKind::Concat(parts) => self.concat(parts),
            HirKind::Alternation(parts) => self.alternate(parts),
        }
    }

    fn position(&mut self, takes: impl Fn(u8) -> bool) -> Result<Part, String> {
        if self.takes.len() == POSITIONS_MAX {
            return Err(format!("more than {POSITIONS_MAX} positions"));
        }
        let bit = 1u64 << self.takes.len();
        self.takes
            .push(std::array::from_fn(|byte| takes(byte as u8)));
        self.follow.push(0);
        Ok(Part {
            first: bit,
            last: bit,
            ..Part::default()
        })
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<Part, String> {
        let mut whole = Part {
            nullable: true,
            ..Part::default()
        };
        for &byte in bytes {
            let part = self.position(|other| other == byte)?;
            whole = self.join(whole, part);
        }
        Ok(whole)
    }

    fn class(&mut self, class: &Class) -> Result<Part, String> {
        match class {
            Class::Bytes(class) => {
                let holds = |byte| {
                    class
                        .iter()
                        .any(|range| (range.start()..=range.end()).contains(&byte))
                };
                self.position(holds)
            }
            Class::Unicode(class) => {
                let mut whole = Part::default();
                let ascii = |c: char| u8::try_from(c).ok().filter(u8::is_ascii);
                let one_byte: Vec<(u8, u8)> = class
                    .iter()
                    .filter_map(|range| {
                        Some((ascii(range.start())?, ascii(range.end()).unwrap_or(0x7f)))
                    })
                    .collect();
                if !one_byte.is_empty() {
                    whole = self.position(|byte| {
                        one_byte
                            .iter()
                            .any(|&(start, end)| start <= byte && byte <= end)
                    })?;
                }
                for range in class.iter().filter(|range| !range.end().is_ascii()) {
                    for sequence in Utf8Sequences::new(range.start().max('\u{80}'), range.end()) {
                        let mut part = Part {
                            nullable: true,
                            ..Part::default()
                        };
                        for bytes in sequence.as_slice() {
                            let next = self.position(|byte| bytes.matches(byte))?;
                            part = self.join(part, next);
                        }
                        whole = either(whole, part);
                    }
                }
                Ok(whole)
            }
        }
    }

    fn concat(&mut self, parts: &[Hir]) -> Result<Part, String> {
        let mut whole = Part {
            nullable: true,
            ..Part::default()
        };
        for hir in parts {
            let part = self.part(hir)?;
            if part.nullable_at_start || part.first_row != 0 {
                let at_start_only = whole.first == 0 && whole.last == 0;
                if !at_start_only {
                    return Err("a row start inside the pattern".to_owned());
                }
            }
            whole = self.join(whole, part);
        }
        Ok(whole)
    }

    fn alternate(&mut self, parts: &[Hir]) -> Result<Part, String> {
        let mut whole = Part::default();
        for hir in parts {
            whole = either(whole, self.part(hir)?);
        }
        Ok(whole)
    }

    fn repeat(&mut self, sub: &Hir, min: u32, max: Option<u32>) -> Result<Part, String> {
        let mut whole = Part {
            nullable: true,
            ..Part::default()
        };
        let copies = max.unwrap_or(min.max(1)) as usize;
        if copies > POSITIONS_MAX {
            return Err(format!("more than {POSITIONS_MAX} positions"));
        }
        for copy in 0..copies {
            let part = self.part(sub)?;
            if part.nullable_at_start || part.first_row != 0 {
                return Err("a row start inside a repeat".to_owned());
            }
            if max.is_none() && copy + 1 == copies {
                self.link(part.last, part.first);
            }
            let optional = copy >= min as usize;
            whole = self.join(
                whole,
                Part {
                    nullable: part.nullable || optional,
                    ..part
                },
            );
        }
        Ok(whole)
    }

    /// Concatenates two parts.
    fn join(&mut self, a: Part, b: Part) -> Part {
        self.link(a.last, b.first);
        let when = |condition: bool, bits: u64| if condition { bits } else { 0 };
        Part {
            first: a.first | when(a.nullable, b.first),
            first_row: a.first_row
                | when(a.nullable, b.first_row)
                | when(a.nullable_at_start, b.first | b.first_row),
            last: b.last | when(b.nullable, a.last),
            nullable: a.nullable && b.nullable,
            nullable_at_start: (a.nullable_at_start && (b.nullable || b.nullable_at_start))
                || (a.nullable && b.nullable_at_start),
        }
    }

    fn link(&mut self, from: u64, to: u64) {
        self.beyond_end |= from & self.ends != 0 && to != 0;
        for (position, follow) in self.follow.iter_mut().enumerate() {
            if from & (1 << position) != 0 {
                *follow |= to;
            }
        }
    }

    fn finish(self, part: &Part) -> Glushkov {
        let positions_count = self.takes.len();
        let takes = std::array::from_fn(|byte| {
            let bits = self
                .takes
                .iter()
                .enumerate()
                .filter(|(_, takes)| takes[byte]);
            bits.fold(0, |set, (position, _)| set | 1 << position)
        });
        let follow = (0..positions_count.div_ceil(8))
            .map(|group| self.follow_of(group))
            .collect();
        Glushkov {
            takes: Box::new(takes),
            follow,
            enter: part.first,
            enter_row: part.first_row,
            accept: part.last,
            positions_count,
            always: part.nullable,
        }
    }

    /// Returns, for each subset of the eight positions of a group, the union of the positions that may follow them.
    fn follow_of(&self, group: usize) -> [u64; 256] {
        std::array::from_fn(|set| {
            let members = (0..8)
                .filter(|bit| set & (1 << bit) != 0)
                .map(|bit| group * 8 + bit);
            members
                .filter_map(|position| self.follow.get(position))
                .fold(0, |all, follow| all | follow)
        })
    }
}

fn either(a: Part, b: Part) -> Part {
    Part {
        first: a.first | b.first,
        first_row: a.first_row | b.first_row,
        last: a.last | b.last,
        nullable: a.nullable || b.nullable,
        nullable_at_start: a.nullable_at_start || b.nullable_at_start,
    }
}
