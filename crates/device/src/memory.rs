//! The memory budget of a device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a device may use and what it uses, in bytes.
#[derive(Debug)]
pub(crate) struct Budget {
    budget_bytes: u64,
    used_bytes: AtomicU64,
}

impl Budget {
    pub(crate) fn new(budget_bytes: u64) -> Arc<Budget> {
        Arc::new(Budget {
            budget_bytes,
            used_bytes: AtomicU64::new(0),
        })
    }

    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.budget_bytes.saturating_sub(self.used_bytes())
    }

    /// Takes `bytes` out of the budget, or nothing.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        let fits = |used: u64| {
            used.checked_add(bytes)
                .filter(|sum| *sum <= self.budget_bytes)
        };
        self.used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .ok()?;
        Some(Reservation {
            budget: Arc::clone(self),
            bytes,
        })
    }
}

/// Memory of a device that is spoken for; dropping it gives the bytes back.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Reservation {
    /// Bytes this reservation holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget
            .used_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_returns_its_bytes() {
        let budget = Budget::new(100);
        let first = budget.reserve(60).expect("60 of 100 are free");
        assert_eq!((first.bytes(), budget.used_bytes()), (60, 60));
        assert!(budget.reserve(41).is_none());
        let rest = budget.reserve(40).expect("exactly 40 are left");
        drop(first);
        assert_eq!(budget.used_bytes(), 40);
        drop(rest);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn a_sum_past_the_integer_is_refused() {
        let budget = Budget::new(u64::MAX);
        let _one = budget.reserve(1).expect("one byte of many is free");
        assert!(budget.reserve(u64::MAX).is_none());
    }
}
