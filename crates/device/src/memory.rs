//! The memory budget of a device, and the shares that tenants have in it.

use std::sync::Arc;

use parking_lot::Mutex;

/// The bytes of a device, and how many each tenant uses.
#[derive(Debug)]
pub(crate) struct Budget {
    budget_bytes: u64,
    shares: Mutex<Vec<Share>>,
}

/// The limits and use of one tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    /// Bytes reserved for the tenant.
    min_bytes: u64,
    /// Bytes that the tenant keeps when others claim theirs; at least the minimum.
    kept_bytes: u64,
    max_bytes: u64,
    used_bytes: u64,
    /// Whether the pool of the share was dropped.
    is_closed: bool,
}

impl Share {
    /// Returns the number of bytes that this share uses or reserves, and that other tenants therefore cannot take.
    fn held_bytes(&self) -> u64 {
        self.used_bytes.max(self.min_bytes)
    }
}

/// Index of a share in the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShareId(usize);

/// The share for requests without a tenant. Such requests can use only bytes that no tenant uses or reserves.
pub(crate) const COMMON: ShareId = ShareId(0);

impl Budget {
    pub(crate) fn new(budget_bytes: u64) -> Arc<Budget> {
        let common = Share {
            min_bytes: 0,
            kept_bytes: 0,
            max_bytes: u64::MAX,
            used_bytes: 0,
            is_closed: false,
        };
        Arc::new(Budget {
            budget_bytes,
            shares: Mutex::new(vec![common]),
        })
    }

    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        let shares = self.shares.lock();
        shares.iter().map(|share| share.used_bytes).sum()
    }

    /// Returns the number of bytes that a share can take now.
    pub(crate) fn available_bytes(&self, share: ShareId) -> u64 {
        self.available_in(&self.shares.lock(), share)
    }

    /// Returns the number of bytes that a share uses.
    pub(crate) fn used_bytes_of(&self, share: ShareId) -> u64 {
        self.shares.lock()[share.0].used_bytes
    }

    /// Returns the number of bytes that a share uses, and its maximum.
    pub(crate) fn use_of(&self, share: ShareId) -> (u64, u64) {
        let share = self.shares.lock()[share.0];
        (share.used_bytes, share.max_bytes.min(self.budget_bytes))
    }

    /// Returns the number of bytes that a share uses above those that it keeps.
    pub(crate) fn excess_bytes(&self, share: ShareId) -> u64 {
        let share = self.shares.lock()[share.0];
        share.used_bytes.saturating_sub(share.kept_bytes)
    }

    /// Opens a share with these limits: bytes reserved, bytes that it keeps, and maximum bytes. Returns `None` if its
    /// minimum is not free.
    pub(crate) fn open(&self, min_bytes: u64, kept_bytes: u64, max_bytes: u64) -> Option<ShareId> {
        let mut shares = self.shares.lock();
        let held = held_bytes(&shares).checked_add(min_bytes)?;
        if held > self.budget_bytes {
            return None;
        }
        let share = Share {
            min_bytes,
            kept_bytes: kept_bytes.max(min_bytes),
            max_bytes: max_bytes.max(min_bytes),
            used_bytes: 0,
            is_closed: false,
        };
        let is_gone = |share: &Share| share.is_closed && share.used_bytes == 0;
        let index = shares.iter().position(is_gone).unwrap_or(shares.len());
        match shares.get_mut(index) {
            Some(old) => *old = share,
            None => shares.push(share),
        }
        Some(ShareId(index))
    }

    /// Closes a share: ends its reservation and refuses later requests. The bytes that it uses stay charged until they
    /// are freed.
    pub(crate) fn close(&self, share: ShareId) {
        let share = &mut self.shares.lock()[share.0];
        (share.min_bytes, share.kept_bytes, share.max_bytes) = (0, 0, 0);
        share.is_closed = true;
    }

    /// Returns whether a share would use no more than it keeps with `bytes` more.
    pub(crate) fn would_keep(&self, share: ShareId, bytes: u64) -> bool {
        let share = self.shares.lock()[share.0];
        let used = share.used_bytes.checked_add(bytes);
        used.is_some_and(|used| used <= share.kept_bytes)
    }

    /// Returns whether the limits of a share allow `bytes` more, whatever the other tenants use.
    pub(crate) fn may_use(&self, share: ShareId, bytes: u64) -> bool {
        let share = self.shares.lock()[share.0];
        let used = share.used_bytes.checked_add(bytes);
        used.is_some_and(|used| used <= share.max_bytes.min(self.budget_bytes))
    }

    fn available_in(&self, shares: &[Share], share: ShareId) -> u64 {
        let own = shares[share.0];
        let others = held_bytes(shares) - own.held_bytes();
        let max = own.max_bytes.min(self.budget_bytes - others);
        max.saturating_sub(own.used_bytes)
    }

    /// Takes `bytes` for a share; returns `None` if fewer are available.
    pub(crate) fn reserve(self: &Arc<Self>, share: ShareId, bytes: u64) -> Option<Reservation> {
        let mut shares = self.shares.lock();
        if bytes > self.available_in(&shares, share) {
            return None;
        }
        shares[share.0].used_bytes += bytes;
        Some(Reservation {
            budget: Arc::clone(self),
            share,
            bytes,
        })
    }
}

/// Returns the number of bytes that all shares use or reserve; at most the budget.
fn held_bytes(shares: &[Share]) -> u64 {
    shares.iter().map(Share::held_bytes).sum()
}

/// Bytes taken from a device's budget; dropping the reservation returns them.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    share: ShareId,
    bytes: u64,
}

impl Reservation {
    /// Returns the number of bytes of this reservation.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.shares.lock()[self.share.0].used_bytes -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_reservation_returns_its_bytes() {
        let budget = Budget::new(100);
        let first = budget
            .reserve(COMMON, 60)
            .expect("60 of 100 bytes are free");
        assert_eq!((first.bytes(), budget.used_bytes()), (60, 60));
        assert!(budget.reserve(COMMON, 41).is_none());
        let rest = budget
            .reserve(COMMON, 40)
            .expect("exactly 40 bytes are left");
        drop(first);
        assert_eq!(budget.used_bytes(), 40);
        drop(rest);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn a_sum_past_the_integer_is_refused() {
        let budget = Budget::new(u64::MAX);
        let _one = budget.reserve(COMMON, 1).expect("one byte of many is free");
        assert!(budget.reserve(COMMON, u64::MAX).is_none());
        assert!(budget.open(u64::MAX, 0, u64::MAX).is_none());
    }

    #[test]
    fn a_minimum_is_kept_free_and_a_maximum_is_kept_to() {
        let budget = Budget::new(100);
        let tenant = budget.open(30, 0, 50).expect("all memory is free");
        assert!(
            budget.reserve(COMMON, 71).is_none(),
            "30 bytes are reserved for the tenant"
        );
        let common = budget
            .reserve(COMMON, 70)
            .expect("70 bytes are not reserved");
        let own = budget.reserve(tenant, 30).expect("the tenant's minimum");
        assert!(budget.reserve(tenant, 1).is_none(), "no more is free");
        drop(common);
        assert!(budget.reserve(tenant, 21).is_none(), "above its maximum");
        assert!(!budget.may_use(tenant, 21) && budget.may_use(tenant, 20));
        let more = budget.reserve(tenant, 20).expect("up to its maximum");
        assert_eq!(
            (budget.excess_bytes(tenant), budget.used_bytes_of(tenant)),
            (20, 50)
        );
        budget.close(tenant);
        drop((own, more));
        assert_eq!(
            budget.open(100, 0, 100),
            Some(tenant),
            "the closed share's slot is used again"
        );
    }

    #[test]
    fn what_a_share_keeps_is_lent_until_then() {
        let budget = Budget::new(100);
        let [one, other] = [60, 40].map(|kept| budget.open(0, kept, 100).expect("no minimum"));
        let all = budget.reserve(one, 100).expect("nothing is reserved");
        assert_eq!(
            (budget.excess_bytes(one), budget.excess_bytes(other)),
            (40, 0)
        );
        assert!(!budget.would_keep(one, 1), "it uses more than it keeps");
        assert!(budget.would_keep(other, 40) && !budget.would_keep(other, 41));
        assert!(budget.reserve(other, 1).is_none(), "nothing is free");
        drop(all);
        assert!(budget.would_keep(one, 60) && !budget.would_keep(one, u64::MAX));
        budget.close(one);
        assert!(!budget.would_keep(one, 1));
    }

    proptest! {
        #[test]
        fn minima_can_always_be_had(steps in vec((0..3_usize, 0..60_u64, any::<bool>()), 0..60)) {
            let budget = Budget::new(100);
            let minima = [0, 20, 30];
            let shares = [COMMON, budget.open(20, 0, 100).expect("free"), budget.open(30, 40, 60).expect("free")];
            let mut taken: Vec<(usize, Reservation)> = Vec::new();
            for (tenant, bytes, gives_back) in steps {
                if gives_back && !taken.is_empty() {
                    taken.swap_remove(bytes as usize % taken.len());
                } else {
                    let took = budget.reserve(shares[tenant], bytes);
                    taken.extend(took.map(|reservation| (tenant, reservation)));
                }
                prop_assert!(budget.used_bytes() <= 100);
                for (share, min) in shares.into_iter().zip(minima) {
                    let used = budget.used_bytes_of(share);
                    prop_assert!(used >= min || budget.available_bytes(share) >= min - used);
                }
            }
            drop(taken);
            prop_assert_eq!(budget.used_bytes(), 0);
        }
    }
}
