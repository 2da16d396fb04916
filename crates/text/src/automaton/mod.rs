//! Automata over blocks of rows, built from a lowered pattern.
//!
//! All automata consume the row separator as an ordinary byte and then return to their start state.

mod determinize;
mod glushkov;
mod minimize;
mod product;
mod table;

pub(crate) use determinize::determinize;
pub(crate) use glushkov::Glushkov;
pub(crate) use minimize::Minimal;
pub(crate) use product::{Condition, product};
pub(crate) use table::Table;

use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_automata::util::look::LookMatcher;
use regex_syntax::hir::Hir;

use crate::budget::Budget;
use crate::limits::Limits;
use crate::rows::SEPARATOR;

/// Why an automaton could not be built.
pub(crate) type TooLarge = String;

/// Builds the NFA of an expression. The expression's assertions on line boundaries hold at row boundaries.
pub(crate) fn nfa(hir: &Hir, limits: &Limits, budget: &Budget) -> Result<NFA, TooLarge> {
    let bytes_max = budget.at_most(limits.nfa_bytes_max);
    let mut looks = LookMatcher::new();
    looks.set_line_terminator(SEPARATOR);
    let config = thompson::Config::new()
        .utf8(false)
        .which_captures(WhichCaptures::None)
        .look_matcher(looks)
        .nfa_size_limit(Some(bytes_max));
    let built = thompson::Compiler::new()
        .configure(config)
        .build_from_hir(hir);
    budget.take(built.as_ref().map_or(bytes_max, NFA::memory_usage))?;
    built.map_err(|error| format!("the automaton is too large: {error}"))
}
