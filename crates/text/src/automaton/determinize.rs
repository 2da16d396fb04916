//! From a non-deterministic automaton to the smallest deterministic one.

use std::collections::HashMap;

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson::NFA;
use regex_automata::util::primitives::StateID;
use regex_automata::util::start;
use regex_automata::{Anchored, MatchKind};

use super::TooLarge;
use super::minimize::{HIT, MATCHED, Minimal, Raw, START};
use crate::budget::Budget;
use crate::limits::Limits;
use crate::rows::SEPARATOR;

/// Determinizes and minimises an automaton within the limits.
pub(crate) fn determinize(
    nfa: &NFA,
    limits: &Limits,
    budget: &Budget,
) -> Result<Minimal, TooLarge> {
    let bytes_max = budget.at_most(limits.determinize_bytes_max);
    let config = dense::Config::new()
        .start_kind(StartKind::Unanchored)
        .match_kind(MatchKind::LeftmostFirst)
        .accelerate(false)
        .dfa_size_limit(Some(bytes_max))
        .determinize_size_limit(Some(bytes_max));
    let built = dense::Builder::new().configure(config).build_from_nfa(nfa);
    budget.take(built.as_ref().map_or(bytes_max, dense::DFA::memory_usage))?;
    let dense = built.map_err(|error| format!("determinizing: {error}"))?;
    Reader::read(&dense)?.minimize(budget)
}

/// Reads the states of a dense automaton that a row can reach, making matches final.
struct Reader<'a> {
    dense: &'a dense::DFA<Vec<u32>>,
    ids: HashMap<StateID, u32>,
    order: Vec<StateID>,
}

impl Reader<'_> {
    fn read(dense: &dense::DFA<Vec<u32>>) -> Result<Raw, TooLarge> {
        let config = start::Config::new().anchored(Anchored::No);
        let start = dense
            .start_state(&config)
            .map_err(|error| format!("no start state: {error}"))?;
        let mut reader = Reader {
            dense,
            ids: HashMap::from([(start, START)]),
            order: vec![start],
        };
        let mut raw = Raw::new();
        while let Some(&from) = reader.order.get(raw.added()) {
            raw.push(std::array::from_fn(|byte| reader.step(from, byte as u8)));
        }
        Ok(raw)
    }

    /// The state after a byte. A dense automaton tells of a match one byte late.
    fn step(&mut self, from: StateID, byte: u8) -> u32 {
        let to = self.dense.next_state(from, byte);
        match (self.dense.is_match_state(to), byte == SEPARATOR) {
            (true, true) => HIT,
            (true, false) => MATCHED,
            (false, true) => START,
            (false, false) => *self.ids.entry(to).or_insert_with(|| {
                self.order.push(to);
                (self.order.len() - 1) as u32 + START
            }),
        }
    }
}
