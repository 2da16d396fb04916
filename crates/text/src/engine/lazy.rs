//! Engine of a lazy DFA, whose states are built during the search within a memory limit.
//!
//! The engine uses two searchers. The meta searcher of `regex-automata` has literal prefilters but cannot be
//! interrupted; it searches pieces of a block, each made of whole short rows. For a row longer than a piece, this
//! module steps a DFA byte by byte and checks the cancellation token in between.

use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson::{NFA, WhichCaptures};
use regex_automata::util::pool::Pool;
use regex_automata::util::start;
use regex_automata::{Anchored, Input, MatchKind, meta};
use regex_syntax::hir::Hir;

use super::Engine;
use super::literal::row_end;
use super::{BYTES_PER_CHECK, next_piece};
use crate::automaton::{self, Minimal, TooLarge};
use crate::budget::Budget;
use crate::form::{DeviceForm, DfaForm};
use crate::limits::Limits;
use crate::rows::{Rows, SEPARATOR};
use forebay_cancel::{SharedStop, Stop, Stopped};

/// Maximum NFA steps between two checks of [`Stop`]. In the worst case no DFA state is reused, and each byte costs a
/// step of each NFA state.
const STEPS_PER_CHECK: usize = 4 << 20;

/// Size limit of a DFA in device memory, as a multiple of the host's limit.
const DEVICE_LIMIT_FACTOR: usize = 8;

/// Engine of DFAs that are too large for a table.
pub(crate) struct LazyEngine {
    regex: meta::Regex,
    stepper: Stepper,
    /// Bytes searched between two checks of [`Stop`].
    bytes_per_check: usize,
    /// Expression from which the DFA for devices is built.
    hir: Hir,
    limits: Limits,
}

/// A DFA over one row, stepped byte by byte.
struct Stepper {
    dfa: DFA,
    /// Cached states, one cache per thread.
    caches: Pool<Cache, Box<dyn Fn() -> Cache + Send + Sync>>,
}

impl Stepper {
    fn build(nfa: NFA, limits: &Limits) -> Result<Stepper, String> {
        let config = DFA::config()
            .match_kind(MatchKind::LeftmostFirst)
            .cache_capacity(limits.lazy_bytes_max)
            .skip_cache_capacity_check(true);
        let built = DFA::builder().configure(config).build_from_nfa(nfa);
        let dfa = built.map_err(|error| format!("the automaton is too large: {error}"))?;
        let made = dfa.clone();
        Ok(Stepper {
            dfa,
            caches: Pool::new(Box::new(move || made.create_cache())),
        })
    }

    /// Returns whether a row matches; checks `stop` before every `bytes_per_check` bytes.
    fn is_match(&self, row: &[u8], bytes_per_check: usize, stop: &Stop) -> Result<bool, Stopped> {
        // A lazy DFA may be configured to give up when its cache is full; this DFA clears its cache instead.
        const NEVER_GIVES_UP: &str =
            "a lazy DFA that clears its cache when it is full never gives up";
        let (dfa, mut cache) = (&self.dfa, self.caches.get());
        let config = start::Config::new().anchored(Anchored::No);
        let start = dfa.start_state(&mut cache, &config);
        let mut state = start.expect(NEVER_GIVES_UP);
        for piece in row.chunks(bytes_per_check) {
            stop.check()?;
            for &byte in piece {
                let next = dfa.next_state(&mut cache, state, byte);
                state = next.expect(NEVER_GIVES_UP);
                if state.is_tagged() && (state.is_match() || state.is_dead()) {
                    return Ok(state.is_match());
                }
            }
        }
        let end = dfa.next_eoi_state(&mut cache, state);
        Ok(end.expect(NEVER_GIVES_UP).is_match())
    }
}

impl LazyEngine {
    /// Builds the engine of an expression; `nfa` is the expression's NFA.
    pub(crate) fn build(hir: &Hir, nfa: NFA, limits: &Limits) -> Result<LazyEngine, String> {
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
        let states = nfa.states().len();
        Ok(LazyEngine {
            regex,
            stepper: Stepper::build(nfa, limits)?,
            bytes_per_check: (STEPS_PER_CHECK / states.max(1)).clamp(1, BYTES_PER_CHECK),
            hir: hir.clone(),
            limits: Limits {
                determinize_bytes_max: limits.determinize_bytes_max * DEVICE_LIMIT_FACTOR,
                ..limits.clone()
            },
        })
    }

    /// Returns the minimal DFA, within the limits of devices.
    fn minimal(&self, budget: &Budget) -> Result<Minimal, TooLarge> {
        let nfa = automaton::nfa(&self.hir, &self.limits, budget)?;
        automaton::determinize(&nfa, &self.limits, budget)
    }

    /// Reports a position in each matching row of `bytes[from..to]`, which holds whole rows.
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
            // An empty match after the last separator belongs to no row.
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

    fn is_match_until(&self, value: &[u8], stop: &Stop) -> Result<bool, Stopped> {
        if value.len() <= self.bytes_per_check {
            stop.check()?;
            return Ok(self.is_match(value));
        }
        self.stepper.is_match(value, self.bytes_per_check, stop)
    }

    fn device_form(&self, stop: &Stop) -> Result<Option<DeviceForm>, Stopped> {
        let budget = Budget::new(usize::MAX, SharedStop::new(stop.clone()));
        let Ok(minimal) = self.minimal(&budget) else {
            // The DFA was not built: either the search was stopped, or a limit was exceeded.
            return stop.check().map(|()| None);
        };
        let form = DfaForm::of_minimal(&minimal, stop)?;
        Ok(form.map(DeviceForm::Dfa))
    }

    fn search_rows(
        &self,
        rows: Rows<'_>,
        stop: &Stop,
        on_match: &mut dyn FnMut(u32),
    ) -> Result<(), Stopped> {
        let mut from = 0;
        while from < rows.len() {
            let to = next_piece(rows, from, self.bytes_per_check);
            let piece = rows.slice(from..to);
            let span = piece.span();
            if span.len() > self.bytes_per_check {
                if self.is_match_until(rows.row(from), stop)? {
                    on_match(from as u32);
                }
            } else {
                stop.check()?;
                let mut row = 0;
                self.find_in(rows.bytes, span.start, span.end, &mut |position| {
                    row = piece.row_at(position, row);
                    on_match((from + row) as u32);
                });
            }
            from = to;
        }
        Ok(())
    }
}
