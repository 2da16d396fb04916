//! Plans that kernels have given up because of what the rows are, so that they are not tried again at once.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::reason::Reason;

/// Number of plans above which all are forgotten.
const PLANS_MAX: usize = 1 << 10;
/// Number of times that a plan is left to the CPU before it is tried again: its tables may have changed.
const TIMES: u32 = 100;

/// The plans, by the numbers of their texts, with the reason and the number of times that are left.
#[derive(Debug, Default)]
pub(crate) struct Hopeless(Mutex<HashMap<u64, (Reason, u32)>>);

impl Hopeless {
    /// Remembers that a plan was given up.
    pub(crate) fn add(&self, number: u64, reason: &Reason) {
        let mut plans = self.0.lock();
        if plans.len() >= PLANS_MAX {
            plans.clear();
        }
        plans.insert(number, (reason.clone(), TIMES));
    }

    /// Checks that a plan was not given up lately.
    ///
    /// # Errors
    /// The reason if it was.
    pub(crate) fn check(&self, number: u64) -> Result<(), Reason> {
        let mut plans = self.0.lock();
        let Some((reason, times)) = plans.get_mut(&number) else {
            return Ok(());
        };
        let reason = reason.clone();
        *times -= 1;
        if *times == 0 {
            plans.remove(&number);
        }
        Err(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_tried_again_after_a_hundred_times() {
        let plans = Hopeless::default();
        let reason = Reason::new("too long");
        plans.add(7, &reason);
        assert_eq!(plans.check(8), Ok(()));
        for _ in 0..TIMES {
            assert_eq!(plans.check(7), Err(reason.clone()));
        }
        assert_eq!(plans.check(7), Ok(()));
    }
}
