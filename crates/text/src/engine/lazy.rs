//! An automaton whose states are made as the search needs them, within a bound of memory.

use regex_automata::nfa::thompson::WhichCaptures;
use regex_automata::{Anchored, Input, meta};
use regex_syntax::hir::Hir;

use super::Engine;
use super::literal::row_end;
use crate::automaton;
use crate::budget::Budget;
use crate::form::{DeviceForm, DfaForm};
use crate::limits::Limits;
use crate::rows::{Rows, SEPARATOR};
use forebay_cancel::{Stop, Stopped};

/// Most steps of the slowest way to run the automaton between two checks of [`Stop`]: about 0.1 s.
const STEPS_PER_CHECK: usize = 32 << 20;

/// How many times larger than on the host a deterministic automaton may be that a device reads from its memory.
const DEVICE_LIMIT_FACTOR: usize = 8;

/// The engine of automata too large for a table.
pub(crate) struct LazyEngine {
    regex: meta::Regex,
    /// Bytes searched between two checks of [`Stop`]; rows are not cut.
    bytes_per_check: usize,
    /// What a device's automaton is made of.
    hir: Hir,
    limits: Limits,
}

impl LazyEngine {
    /// `states` is the number of states of the non-deterministic automaton.
    pub(crate) fn build(hir: &Hir, states: usize, limits: &Limits) -> Result<LazyEngine, String> {
        let config = meta::Config::new()
            .utf8_empty(false)
            .line_terminator(SEPARATOR)
            .which_captures(WhichCaptures::Implicit)
            .nfa_size_limit(Some(limits.nfa_bytes_max * 2))
            .dfa(false)
            .onepass(false)
            .backtrack(false)
            .hybrid_cache_capacity(limits.lazy_bytes_max);
        let built = meta::Builder::new().configure(config).build_from_hir(hir);
        let regex = built.map_err(|error| format!("the automaton is too large: {error}"))?;
        let bytes_per_check = (STEPS_PER_CHECK / states.max(1)).clamp(1 << 10, 256 << 10);
        Ok(LazyEngine {
            regex,
            bytes_per_check,
            hir: hir.clone(),
            limits: Limits {
                determinize_bytes_max: limits.determinize_bytes_max * DEVICE_LIMIT_FACTOR,
                ..limits.clone()
            },
        })
    }

    /// Reports the rows that match in `bytes[from..to]`, which holds whole rows.
    fn find_in(&self, bytes: &[u8], from: usize, to: usize, on_match: &mut impl FnMut(usize)) {
        let mut at = from;
        while at < to {
            let input = Input::new(&bytes[..to])
                .range(at..)
                .anchored(Anchored::No)
                .earliest(true);
            let Some(found) = self.regex.search_half(&input) else {
                return;
            };
            // An empty match behind the last separator belongs to no row.
            if found.offset() >= to {
                return;
            }
            on_match(found.offset());
            at = row_end(&bytes[..to], found.offset()) + 1;
        }
    }
}

impl Engine for LazyEngine {
    fn is_match(&self, value: &[u8]) -> bool {
        self.regex.is_match(value)
    }

    fn device_form(&self) -> Option<DeviceForm> {
        let budget = Budget::unlimited();
        let nfa = automaton::nfa(&self.hir, &self.limits, &budget).ok()?;
        let minimal = automaton::determinize(&nfa, &self.limits, &budget).ok()?;
        DfaForm::of_minimal(&minimal).map(DeviceForm::Dfa)
    }

    fn search_rows(
        &self,
        rows: Rows<'_>,
        stop: &Stop,
        on_match: &mut dyn FnMut(u32),
    ) -> Result<(), Stopped> {
        let span = rows.span();
        let (mut at, mut row) = (span.start, 0);
        while at < span.end {
            stop.check()?;
            let near = (at + self.bytes_per_check).min(span.end);
            let to = if near == span.end {
                near
            } else {
                row_end(&rows.bytes[..span.end], near) + 1
            };
            self.find_in(rows.bytes, at, to, &mut |position| {
                row = rows.row_at(position, row);
                on_match(row as u32);
            });
            at = to;
        }
        Ok(())
    }
}
