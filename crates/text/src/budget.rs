//! Budget of compile costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use forebay_cancel::SharedStop;

/// Limit of the total compile cost of all patterns of one command.
///
/// The cost is the number of bytes of automata and tables. Bytes are counted each time they are built or read, so the
/// budget also bounds the compile time: at most about 20 ms per MiB. Once the budget is spent or the command is
/// cancelled, patterns get the tier [`Pcre`](crate::Tier::Pcre), which builds nothing.
#[derive(Debug)]
pub struct Budget {
    bytes_left: AtomicUsize,
    is_short: AtomicBool,
    stop: Arc<SharedStop>,
}

impl Budget {
    /// Returns a budget of `bytes` for the command that `stop` belongs to.
    pub fn new(bytes: usize, stop: Arc<SharedStop>) -> Budget {
        Budget {
            bytes_left: AtomicUsize::new(bytes),
            is_short: AtomicBool::new(false),
            stop,
        }
    }

    /// Returns a budget that has neither a limit nor a deadline.
    pub fn unlimited() -> Budget {
        Budget::new(usize::MAX, Arc::default())
    }

    /// Returns the cancellation token of the command.
    pub fn stop(&self) -> &Arc<SharedStop> {
        &self.stop
    }

    /// Returns whether the budget ran low. The program compiled last may then have a slower tier than with a larger
    /// budget.
    pub fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Returns the smaller of `bytes` and the remaining budget. Marks the budget as low if less than `bytes` remains.
    pub(crate) fn at_most(&self, bytes: usize) -> usize {
        let left = self.bytes_left.load(Ordering::Relaxed);
        if left < bytes {
            self.is_short.store(true, Ordering::Relaxed);
        }
        left.min(bytes)
    }

    /// Takes bytes from the budget.
    ///
    /// # Errors
    /// If the remaining budget is too small, or the command is cancelled or past its deadline.
    pub(crate) fn take(&self, bytes: usize) -> Result<(), String> {
        let taken = |left: usize| left.checked_sub(bytes);
        let order = Ordering::Relaxed;
        let stopped = self.stop.check().is_err();
        if stopped || self.bytes_left.fetch_update(order, order, taken).is_err() {
            self.is_short.store(true, order);
            return Err("the command's patterns together exceed the compile budget".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::{Limits, Options, Pattern, Program, Tier};
    use forebay_cancel::Stop;

    /// Returns the tier of a pattern whose table takes long to build.
    fn tier(number: usize, budget: &Budget) -> Tier {
        let limits = Limits::default();
        let source = format!("(a|b)*{number}c.{{0,60}}(d|e)x");
        let pattern = Pattern::new(&source, Options::default(), &limits).expect("a valid pattern");
        Program::compile_within(pattern, &limits, budget).tier()
    }

    #[test]
    fn patterns_share_a_budget_and_go_to_pcre2_when_it_is_spent() {
        let budget = Budget::new(8 << 20, Arc::default());
        let tiers: Vec<Tier> = (0..20).map(|number| tier(number, &budget)).collect();
        assert_eq!(tiers[0], Tier::LargeDfa);
        assert_eq!(tiers[19], Tier::Pcre);
        assert!(budget.is_short());
    }

    #[test]
    fn nothing_is_built_for_a_command_that_has_to_end() {
        let budget = Budget::new(usize::MAX, SharedStop::new(Stop::at(Instant::now())));
        assert_eq!(tier(0, &budget), Tier::Pcre);
        let budget = Budget::unlimited();
        assert_eq!(tier(0, &budget), Tier::LargeDfa);
        assert!(!budget.is_short());
    }
}
