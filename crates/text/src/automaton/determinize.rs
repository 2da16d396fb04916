//! Converts an NFA to the minimal DFA.
//!
//! The DFA's states are enumerated step by step with a lazy DFA. `regex-automata` can build a dense DFA only in a
//! single call, which cannot be cancelled and takes minutes if each step follows many empty transitions.

use std::collections::HashMap;

use regex_automata::hybrid::LazyStateID;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson::NFA;
use regex_automata::util::start;
use regex_automata::{Anchored, MatchKind};

use super::TooLarge;
use super::minimize::{HIT, MATCHED, Minimal, Raw, START};
use crate::budget::Budget;
use crate::limits::Limits;
use crate::rows::SEPARATOR;

/// The lazy DFA may take this many times `determinize_bytes_max`, because it holds both the state sets and the table.
const CACHE_FACTOR: usize = 2;

/// Maximum visits of NFA states while one DFA is built. Each step counts as a visit of all NFA states.
const VISITS_MAX: usize = 1 << 31;

/// Maximum DFA states before minimisation. Each state takes 1 KiB. Tables on host and device have fewer states.
const STATES_MAX: usize = 1 << 16;

/// Visits of NFA states between two checks of the command's cancellation token.
const VISITS_PER_CHECK: usize = 1 << 20;

/// Determinizes and minimises an NFA within the limits.
pub(crate) fn determinize(
    nfa: &NFA,
    limits: &Limits,
    budget: &Budget,
) -> Result<Minimal, TooLarge> {
    let bytes_max = budget.at_most(limits.determinize_bytes_max);
    // With `minimum_cache_clear_count` 0, the lazy DFA returns an error when its cache is full, instead of clearing it.
    let config = DFA::config()
        .match_kind(MatchKind::LeftmostFirst)
        .cache_capacity(bytes_max.saturating_mul(CACHE_FACTOR))
        .skip_cache_capacity_check(true)
        .minimum_cache_clear_count(Some(0));
    let built = DFA::builder().configure(config).build_from_nfa(nfa.clone());
    let dfa = built.map_err(|error| format!("determinizing: {error}"))?;
    let mut reader = Reader::new(&dfa, nfa.states().len(), budget);
    let raw = reader.read();
    let bytes = reader.cache.memory_usage() / CACHE_FACTOR;
    budget.take(bytes.min(bytes_max))?;
    raw?.minimize(budget)
}

/// Enumerates the DFA states that are reachable within a row. A match leads to a state that is left only at the
/// separator.
struct Reader<'a> {
    dfa: &'a DFA,
    cache: Cache,
    /// Number of NFA states.
    nfa_states: usize,
    budget: &'a Budget,
    visits: usize,
    ids: HashMap<LazyStateID, u32>,
    order: Vec<LazyStateID>,
}

impl<'a> Reader<'a> {
    fn new(dfa: &'a DFA, nfa_states: usize, budget: &'a Budget) -> Reader<'a> {
        Reader {
            dfa,
            cache: dfa.create_cache(),
            nfa_states,
            budget,
            visits: 0,
            ids: HashMap::new(),
            order: Vec::new(),
        }
    }

    fn read(&mut self) -> Result<Raw, TooLarge> {
        let config = start::Config::new().anchored(Anchored::No);
        let start = self.dfa.start_state(&mut self.cache, &config);
        let start = start.map_err(|error| format!("no start state: {error}"))?;
        self.ids.insert(start, START);
        self.order.push(start);
        let mut raw = Raw::new();
        while let Some(&from) = self.order.get(raw.added()) {
            if raw.added() == STATES_MAX {
                return Err("determinizing: too many states".to_owned());
            }
            raw.push(self.row(from)?);
        }
        Ok(raw)
    }

    /// Returns the next state for each byte value. All bytes of a class lead to the same state, except the separator.
    fn row(&mut self, from: LazyStateID) -> Result<[u32; 256], TooLarge> {
        let classes = self.dfa.byte_classes();
        let mut after = [None; 257];
        let mut row = [0; 256];
        for byte in 0..=u8::MAX {
            let class = usize::from(classes.get(byte));
            // The separator may lead to another state than the other bytes of its class.
            row[usize::from(byte)] = match after[class] {
                Some(to) if byte != SEPARATOR => to,
                _ => self.step(from, byte)?,
            };
            after[class] = Some(row[usize::from(byte)]);
        }
        Ok(row)
    }

    /// Returns the state after a byte. The lazy DFA enters a match state one byte after the end of the match.
    fn step(&mut self, from: LazyStateID, byte: u8) -> Result<u32, TooLarge> {
        self.count_visits()?;
        let to = self.dfa.next_state(&mut self.cache, from, byte);
        let to = to.map_err(|_| "determinizing: too many states".to_owned())?;
        Ok(match (to.is_match(), byte == SEPARATOR) {
            (true, true) => HIT,
            (true, false) => MATCHED,
            (false, true) => START,
            (false, false) => *self.ids.entry(to).or_insert_with(|| {
                self.order.push(to);
                (self.order.len() - 1) as u32 + START
            }),
        })
    }

    fn count_visits(&mut self) -> Result<(), TooLarge> {
        let before = self.visits / VISITS_PER_CHECK;
        self.visits += self.nfa_states;
        if self.visits > VISITS_MAX {
            return Err("determinizing: too many steps".to_owned());
        }
        if self.visits / VISITS_PER_CHECK > before {
            self.budget.take(0)?;
        }
        Ok(())
    }
}
