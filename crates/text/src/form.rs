//! Device forms: the tables that a GPU needs to run a program. They are built without a GPU; `forebay-text-gpu` runs
//! them.

use std::collections::HashMap;

use crate::automaton::{Glushkov, Minimal, Table};
use crate::engine::literal::Place;
use crate::rows::SEPARATOR;
use forebay_cancel::{Stop, Stopped};

/// Tables that a GPU needs to run a program. A form matches the same rows as the program, or more if the program
/// [confirms on the host](crate::Program::confirms_on_host).
pub enum DeviceForm {
    /// Compares rows with one literal.
    Literal(LiteralForm),
    /// Runs a deterministic automaton.
    Dfa(DfaForm),
    /// Runs a Glushkov automaton, whose state is a bit set of positions.
    Glushkov(GlushkovForm),
}

/// A literal. If the literal must end the row, its last byte is the separator.
#[derive(Clone)]
pub struct LiteralForm {
    /// Bytes to find.
    pub bytes: Vec<u8>,
    /// Whether the row must begin with the bytes.
    pub at_start: bool,
}

impl LiteralForm {
    pub(crate) fn new(place: Place, literal: &[u8]) -> LiteralForm {
        let mut bytes = literal.to_vec();
        if matches!(place, Place::Whole | Place::End) {
            bytes.push(SEPARATOR);
        }
        LiteralForm {
            bytes,
            at_start: matches!(place, Place::Whole | Place::Start),
        }
    }

    #[cfg(test)]
    fn is_match(&self, row: &[u8]) -> bool {
        let mut padded = row.to_vec();
        padded.push(SEPARATOR);
        if self.at_start {
            return padded.starts_with(&self.bytes);
        }
        self.bytes.is_empty() || padded.windows(self.bytes.len()).any(|w| w == self.bytes)
    }
}

/// A deterministic automaton over a single row. Whatever bytes follow, a row in state 0 does not match, and a row in
/// the last state matches. A row matches if the state after its last byte is at least `accepting`.
#[derive(Clone)]
pub struct DfaForm {
    /// Class of each byte value.
    pub classes: Box<[u8; 256]>,
    /// Number of classes.
    pub classes_count: usize,
    /// Transitions, by state and then by class.
    pub next: Vec<u16>,
    /// State before the first byte of a row.
    pub start: u16,
    /// First accepting state: a row matches if it ends in this or a higher state.
    pub accepting: u16,
}

/// Maximum states of a form, because state numbers have 16 bits.
const STATES_MAX: usize = 1 << 16;

/// Maximum entries of a form's table. An entry has two bytes, so such a table takes a quarter of the memory that one
/// pass of a GPU has for tables.
const ENTRIES_MAX: usize = 4 << 20;

impl DfaForm {
    pub(crate) fn of_table(table: &Table) -> DfaForm {
        let step = |state, byte| table.successor(state, byte);
        let form = DfaForm::new(table.states_count(), step, &Stop::never());
        let form = form.expect("`Stop::never` never stops the construction");
        form.expect("a table has at most 65,536 entries")
    }

    /// Builds the form of a minimal automaton; returns `None` if it has too many states.
    pub(crate) fn of_minimal(minimal: &Minimal, stop: &Stop) -> Result<Option<DfaForm>, Stopped> {
        let step = |state, byte| minimal.step(state as u32, byte) as usize;
        DfaForm::new(minimal.states_count(), step, stop)
    }

    /// Returns the number of states.
    pub fn states_count(&self) -> usize {
        self.next.len() / self.classes_count
    }

    /// Returns the state in which a row matches, whatever bytes follow.
    pub fn accept(&self) -> u16 {
        (self.states_count() - 1) as u16
    }

    /// Converts an automaton over blocks to one over single rows. The automaton over blocks starts in state 0, and its
    /// last states are `dead`, `matched` and `hit`.
    fn new(
        states: usize,
        step: impl Fn(usize, u8) -> usize,
        stop: &Stop,
    ) -> Result<Option<DfaForm>, Stopped> {
        if states > STATES_MAX {
            return Ok(None);
        }
        let order = Order::new(states, |state| step(state, SEPARATOR) == states - 1);
        let next_of = |state: usize, byte: u8| match order.role(state) {
            Role::Reject => 0,
            Role::Accept => order.accept,
            Role::Plain if byte == SEPARATOR && order.place[state] >= order.accepting => {
                order.accept
            }
            Role::Plain if byte == SEPARATOR => 0,
            Role::Plain => order.place[step(state, byte)],
        };
        let old: Vec<usize> = order.kept();
        let (classes, columns) = columns(&old, &next_of, stop)?;
        if old.len() * columns.len() > ENTRIES_MAX {
            return Ok(None);
        }
        let row = |&state: &usize| columns.iter().map(move |&byte| (state, byte));
        let next = old
            .iter()
            .flat_map(row)
            .map(|(state, byte)| next_of(state, byte));
        Ok(Some(DfaForm {
            classes: Box::new(classes),
            classes_count: columns.len(),
            next: next.collect(),
            start: order.place[0],
            accepting: order.accepting,
        }))
    }

    #[cfg(test)]
    fn is_match(&self, row: &[u8]) -> bool {
        let step = |state: u16, &byte: &u8| {
            let class = usize::from(self.classes[usize::from(byte)]);
            self.next[usize::from(state) * self.classes_count + class]
        };
        row.iter().fold(self.start, step) >= self.accepting
    }
}

/// Renumbering of the states of an automaton over blocks.
struct Order {
    /// New number of each old state.
    place: Vec<u16>,
    accepting: u16,
    accept: u16,
}

#[derive(PartialEq, Eq)]
enum Role {
    Reject,
    Plain,
    Accept,
}

impl Order {
    /// Assigns the new numbers; `hits` returns whether a matching row may end in a state.
    fn new(states: usize, hits: impl Fn(usize) -> bool) -> Order {
        let plain = states - 3;
        let (ending, going): (Vec<usize>, Vec<usize>) = (0..plain).partition(|&state| hits(state));
        let mut place = vec![0u16; states];
        for (index, &state) in going.iter().chain(&ending).enumerate() {
            place[state] = index as u16 + 1;
        }
        let accept = plain as u16 + 1;
        place[plain + 1] = accept;
        place[plain + 2] = accept;
        Order {
            place,
            accepting: going.len() as u16 + 1,
            accept,
        }
    }

    fn role(&self, state: usize) -> Role {
        match self.place[state] {
            0 => Role::Reject,
            place if place == self.accept => Role::Accept,
            _ => Role::Plain,
        }
    }

    /// Returns, for each new number, one of the old states that have it.
    fn kept(&self) -> Vec<usize> {
        let mut kept = vec![0; usize::from(self.accept) + 1];
        for (old, &new) in self.place.iter().enumerate() {
            kept[usize::from(new)] = old;
        }
        kept
    }
}

/// Groups bytes with equal columns into classes; returns the class of each byte and one byte of each class.
fn columns(
    states: &[usize],
    next: &impl Fn(usize, u8) -> u16,
    stop: &Stop,
) -> Result<([u8; 256], Vec<u8>), Stopped> {
    let mut classes = [0u8; 256];
    let mut representatives = Vec::new();
    let mut known: HashMap<Vec<u16>, u8> = HashMap::new();
    for byte in 0..=255u8 {
        stop.check()?;
        let column = states.iter().map(|&state| next(state, byte)).collect();
        classes[usize::from(byte)] = *known.entry(column).or_insert_with(|| {
            representatives.push(byte);
            (representatives.len() - 1) as u8
        });
    }
    Ok((classes, representatives))
}

/// A Glushkov automaton, whose state is the bit set of active positions of the pattern. A byte activates each position
/// that accepts the byte and either follows an active position or may be entered. All other positions become inactive.
#[derive(Clone)]
pub struct GlushkovForm {
    /// For each byte value, the positions that accept it.
    pub takes: Box<[u64; 256]>,
    /// One table of followers for each byte of the set of active positions. Entry `v` of a table has the positions that
    /// may follow if the byte has the value `v`.
    pub follow: Vec<[u64; 256]>,
    /// Positions that may be entered anywhere in a row.
    pub enter: u64,
    /// Further positions that may be entered only at the start of a row.
    pub enter_start: u64,
    /// Positions whose activity means that the row matches.
    pub accept: u64,
}

impl GlushkovForm {
    /// Returns the automaton's tables; `None` if it matches every row, for which no device is needed.
    pub(crate) fn new(automaton: &Glushkov) -> Option<GlushkovForm> {
        automaton.parts().map(|parts| GlushkovForm {
            takes: Box::new(*parts.takes),
            follow: parts.follow.to_vec(),
            enter: parts.enter,
            enter_start: parts.enter_row,
            accept: parts.accept,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Options, Pattern, Program, Tier};

    const ROWS: [&str; 14] = [
        "", "a", "b", "ab", "ba", "abc", "cab", "abcabc", "xyz", "aab", "ß", "aß", "ab\n",
        "12345678",
    ];

    fn is_match(program: &Program, row: &[u8]) -> bool {
        match program.device_form().expect("these patterns have a form") {
            DeviceForm::Literal(form) => form.is_match(row),
            DeviceForm::Dfa(form) => form.is_match(row),
            DeviceForm::Glushkov(_) => unreachable!("not of the tiers asked for"),
        }
    }

    #[test]
    fn forms_match_what_their_programs_match() {
        let limits = Limits::default();
        let sources = [
            "^$", "a", "^a", "a$", "^ab$", "", "ab|xyz", "^(a|b)*$", "a.c", "^[^a]", "b$|^x",
            "(?=a)ab", "^.{8}$", "a\\b",
        ];
        for source in sources {
            for tier in [Tier::Substring, Tier::Dfa, Tier::LargeDfa] {
                let pattern = Pattern::new(source, Options::default(), &limits).expect("valid");
                let Some(program) = Program::compile_at(pattern, tier, &limits) else {
                    continue;
                };
                for row in ROWS {
                    let row = row.as_bytes();
                    assert_eq!(
                        is_match(&program, row),
                        program.is_match(row),
                        "{program:?} on {row:?}"
                    );
                }
            }
        }
    }
}
