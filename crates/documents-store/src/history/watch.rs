//! Waiting for changes: who waits is told of those that concern him, and skips all others unread.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::time::ClusterTime;
use crate::store::Namespace;

/// What somebody wants to know about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Interest {
    /// Every change.
    Everything,
    /// Changes of a database and its collections.
    Database(String),
    /// Changes of a collection.
    Collection(Namespace),
}

/// All who watch.
#[derive(Default)]
pub(super) struct Watches {
    by_interest: Mutex<HashMap<Interest, Vec<Arc<Slot>>>>,
}

/// What one watch was told.
#[derive(Default)]
struct Slot {
    /// The first change that concerns it since it looked; changed only under the lock of all watches.
    pending: Mutex<Option<ClusterTime>>,
    told: Notify,
}

impl Slot {
    fn tell(&self, at: ClusterTime) {
        self.pending.lock().get_or_insert(at);
        self.told.notify_one();
    }
}

/// One who watches, until it is dropped.
pub struct Watch {
    watches: Arc<Watches>,
    interest: Interest,
    slot: Arc<Slot>,
}

impl Watches {
    pub(super) fn add(self: &Arc<Self>, interest: Interest) -> Watch {
        let slot = Arc::<Slot>::default();
        let mut all = self.by_interest.lock();
        all.entry(interest.clone()).or_default().push(slot.clone());
        Watch {
            watches: self.clone(),
            interest,
            slot,
        }
    }

    /// Tells all that changes from `first` on may concern, in one step with `publish`.
    pub(super) fn tell(&self, concerned: &[Namespace], first: ClusterTime, publish: impl FnOnce()) {
        let all = self.by_interest.lock();
        publish();
        if all.is_empty() {
            return;
        }
        let tell = |interest| {
            let slots = all.get(&interest).into_iter().flatten();
            slots.for_each(|slot| slot.tell(first));
        };
        tell(Interest::Everything);
        for namespace in concerned {
            tell(Interest::Database(namespace.db.clone()));
            tell(Interest::Collection(namespace.clone()));
        }
    }
}

impl Watch {
    /// Returns when there is something new since the last look, perhaps nothing that matters.
    pub async fn changed(&self) {
        self.slot.told.notified().await;
    }

    /// What it was told since the last look, and what `last` says in the same moment.
    pub(super) fn take(
        &self,
        last: impl FnOnce() -> ClusterTime,
    ) -> (Option<ClusterTime>, ClusterTime) {
        let _all = self.watches.by_interest.lock();
        (self.slot.pending.lock().take(), last())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut all = self.watches.by_interest.lock();
        if let Some(slots) = all.get_mut(&self.interest) {
            slots.retain(|slot| !Arc::ptr_eq(slot, &self.slot));
            if slots.is_empty() {
                all.remove(&self.interest);
            }
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Watch").field(&self.interest).finish()
    }
}
