//! Watches: a watcher is notified only of changes that match its interest.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::time::ClusterTime;
use crate::store::Namespace;

/// The changes that a watch is notified of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Interest {
    /// Every change.
    Everything,
    /// Changes of a database or its collections.
    Database(String),
    /// Changes of a collection.
    Collection(Namespace),
}

/// All watches of a store.
#[derive(Default)]
pub(super) struct Watches {
    by_interest: Mutex<HashMap<Interest, Vec<Arc<Slot>>>>,
}

/// Pending notification of one watch.
#[derive(Default)]
struct Slot {
    /// Time of the first matching change since the last [`Watch::take`]. Written only while the lock of all watches is
    /// held.
    pending: Mutex<Option<ClusterTime>>,
    notified: Notify,
}

impl Slot {
    fn notify(&self, at: ClusterTime) {
        self.pending.lock().get_or_insert(at);
        self.notified.notify_one();
    }
}

/// A watch. It ends when it is dropped.
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

    /// Notifies the watches of changes to the `concerned` collections. `first` is the time of the earliest change.
    /// Calls `publish` while it holds the lock of all watches.
    pub(super) fn notify(
        &self,
        concerned: &[Namespace],
        first: ClusterTime,
        publish: impl FnOnce(),
    ) {
        let all = self.by_interest.lock();
        publish();
        if all.is_empty() {
            return;
        }
        let notify = |interest| {
            let slots = all.get(&interest).into_iter().flatten();
            slots.for_each(|slot| slot.notify(first));
        };
        notify(Interest::Everything);
        for namespace in concerned {
            notify(Interest::Database(namespace.db.clone()));
            notify(Interest::Collection(namespace.clone()));
        }
    }
}

impl Watch {
    /// Waits until a change has matched the watch's interest since the last call of
    /// [`History::news`](super::History::news). May also return if no change has matched.
    pub async fn changed(&self) {
        self.slot.notified.notified().await;
    }

    /// Returns and clears the time of the first pending change. Also returns the result of `last`, called while this
    /// function holds the lock of all watches.
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
