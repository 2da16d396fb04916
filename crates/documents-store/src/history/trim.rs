//! Deletes the oldest changes in a separate thread when the history exceeds its limit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::{Condvar, Mutex};

use super::{History, entry, time::ClusterTime};
use crate::background::Background;
use crate::engine::{Batch, Direction, KeyRange, PageLimit};
use crate::error::Result;

/// Limits of one batch of deletions.
const PAGE: PageLimit = PageLimit {
    entries: 1_024,
    bytes: 1 << 20,
};
/// A history that exceeds its limit is trimmed to `1 - 1/SLACK` of the limit, so that not every change causes a trim.
const SLACK: u64 = 16;

/// Signal to the trimming thread that the history exceeds its limit.
#[derive(Default)]
pub(super) struct Excess {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    signalled: bool,
    stopped: bool,
}

impl Excess {
    /// Signals that the history exceeds its limit.
    pub(super) fn signal(&self) {
        let mut state = self.state.lock();
        if !state.signalled {
            state.signalled = true;
            self.changed.notify_one();
        }
    }

    /// Waits for the signal. Returns false when the store closes.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while !state.signalled && !state.stopped {
            self.changed.wait(&mut state);
        }
        state.signalled = false;
        !state.stopped
    }

    fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_one();
    }
}

impl History {
    /// Deletes the oldest changes until the rest is below the target. Always keeps the last change.
    fn trim(&self) -> Result<()> {
        let target = self.bytes_max - self.bytes_max / SLACK;
        while self.kept_bytes() > target && !self.excess.is_stopped() {
            if !self.trim_page(target)? {
                break;
            }
        }
        Ok(())
    }

    /// Deletes a page of the oldest changes. Returns false if no more changes may be deleted.
    fn trim_page(&self, target: u64) -> Result<bool> {
        let range = KeyRange {
            start: self.first().key().to_vec(),
            end: Some(self.last().plus(1).key().to_vec()),
        };
        let page = self
            .engine
            .page(self.partition, &range, Direction::Forward, PAGE)?;
        let keep_from = self
            .recorded_bytes
            .load(Ordering::Acquire)
            .saturating_sub(target);
        let mut kept = page.len().saturating_sub(1);
        for (index, (_, value)) in page.iter().enumerate() {
            if entry::bytes_before(value)? >= keep_from {
                kept = kept.min(index);
                break;
            }
        }
        let Some((key, value)) = page.get(kept).filter(|_| kept > 0) else {
            return Ok(false);
        };
        // Publishes the new beginning to readers before anything is deleted.
        self.set_first(ClusterTime::from_key(key)?, entry::bytes_before(value)?);
        let mut batch = Batch::default();
        for (key, _) in page.iter().take(kept) {
            batch.remove(self.partition, key.clone());
        }
        self.engine.commit(batch)?;
        Ok(true)
    }
}

/// Starts the thread that deletes the oldest changes.
///
/// # Errors
/// [`StoreError::Io`](crate::StoreError::Io) if the operating system cannot create the thread.
pub(crate) fn start(history: Arc<History>) -> Result<Background> {
    let shared = Arc::clone(&history);
    Background::start(
        "store-history",
        move || run(&shared),
        move || history.excess.stop(),
    )
}

fn run(history: &History) {
    while history.excess.wait() {
        if let Err(error) = history.trim() {
            tracing::warn!(%error, "cannot trim the history of changes");
        }
    }
}
