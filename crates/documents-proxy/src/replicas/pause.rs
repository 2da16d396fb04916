//! Pauses a replica's change stream while an answer is compared with the upstream's.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch};

use super::Replica;

/// The pause of a replica's change stream, if any.
#[derive(Debug)]
pub(super) struct PausePoint {
    /// Held by the client that compares an answer, so that only one client compares at a time.
    turn: Arc<AsyncMutex<()>>,
    /// Cluster time after which no change is applied; `None` without a pause.
    at: watch::Sender<Option<u64>>,
    /// Keys of the `_id`s of documents that changed since the pause began.
    changed: Mutex<HashSet<Vec<u8>>>,
}

impl Default for PausePoint {
    fn default() -> Self {
        PausePoint {
            turn: Arc::default(),
            at: watch::Sender::new(None),
            changed: Mutex::default(),
        }
    }
}

/// Guard: while it exists, a replica's change stream is paused.
#[derive(Debug)]
pub struct Paused {
    replica: Arc<Replica>,
    _turn: OwnedMutexGuard<()>,
}

impl Paused {
    /// Lets the replica apply changes up to a later cluster time. Waits until they are applied or the stream is lost.
    pub async fn move_to(&self, at: u64) {
        self.replica.pause_point.at.send_replace(Some(at));
        self.replica.wait_applied(at).await;
    }

    /// Returns the keys of the `_id`s of documents that changed since the pause began.
    pub fn changed(&self) -> HashSet<Vec<u8>> {
        self.replica.pause_point.changed.lock().clone()
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.replica.pause_point.at.send_replace(None);
        self.replica.pause_point.changed.lock().clear();
    }
}

impl Replica {
    /// Pauses the replica's change stream at its current position. Waits if another client has paused it.
    pub async fn pause(self: &Arc<Self>) -> Paused {
        let turn = self.pause_point.turn.clone().lock_owned().await;
        self.pause_point.at.send_replace(Some(self.applied()));
        Paused {
            replica: self.clone(),
            _turn: turn,
        }
    }
}

impl PausePoint {
    /// Returns whether a change with this cluster time may be applied now.
    pub fn lets_pass(&self, at: u64) -> bool {
        self.at.borrow().is_none_or(|pause_at| at <= pause_at)
    }

    /// Waits until a change with this cluster time may be applied.
    pub async fn wait(&self, at: u64) {
        let mut pause_at = self.at.subscribe();
        // Never an error: `self` owns the sender.
        let _ = pause_at
            .wait_for(|pause_at| pause_at.is_none_or(|pause_at| at <= pause_at))
            .await;
    }

    /// Records the keys of documents that are about to change.
    pub fn record<'a>(&self, keys: impl Iterator<Item = &'a Vec<u8>>) {
        if self.at.borrow().is_some() {
            self.changed.lock().extend(keys.cloned());
        }
    }
}
