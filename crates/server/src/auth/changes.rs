//! Counts changes of users.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Serialises and counts changes of users. Connections reload the rights of their user when the count has changed.
#[derive(Debug, Default)]
pub struct Changes {
    count: AtomicU64,
    changing: Mutex<()>,
}

impl Changes {
    /// Returns the number of changes so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Runs `change` while no other change runs, and counts it. Counts failed changes too: they may have reached the
    /// store.
    pub fn apply<T>(&self, change: impl FnOnce() -> T) -> T {
        let _alone = self.changing.lock();
        let made = change();
        self.count.fetch_add(1, Ordering::Release);
        made
    }
}
