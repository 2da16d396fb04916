//! The background thread that flushes deltas, and the signal that wakes it.

use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::{Extent, follow_devices, maintain, maintain_if_idle};
use crate::cache::Shared;

/// Signals pending work to the background thread.
#[derive(Debug, Default)]
pub(crate) struct FlushSignal {
    pending: Mutex<Pending>,
    changed: Condvar,
}

#[derive(Debug, Default, Clone, Copy)]
struct Pending {
    /// A delta has writes that are not flushed.
    dirty: bool,
    /// A delta is full.
    full: bool,
    /// A device joined, left or was lost.
    devices_changed: bool,
    /// The cache has been dropped.
    ended: bool,
}

impl Pending {
    fn is_urgent(self) -> bool {
        self.full || self.devices_changed || self.ended
    }
}

impl FlushSignal {
    /// Reports a write. `full` says whether a delta is full.
    pub(crate) fn report_write(&self, full: bool) {
        self.update(|pending| {
            let known = pending.dirty && (pending.full || !full);
            pending.dirty = true;
            pending.full |= full;
            !known
        });
    }

    /// Reports that a device joined, left or was lost.
    pub(crate) fn report_device_change(&self) {
        self.update(|pending| !std::mem::replace(&mut pending.devices_changed, true));
    }

    /// Makes the thread end.
    pub(crate) fn end(&self) {
        self.update(|pending| !std::mem::replace(&mut pending.ended, true));
    }

    /// Changes the pending work, and wakes the thread if `change` returns true.
    fn update(&self, change: impl FnOnce(&mut Pending) -> bool) {
        if change(&mut self.pending.lock()) {
            self.changed.notify_one();
        }
    }

    /// Waits for urgent work. After writes that are not urgent, waits at most `flush_after`, so that idle collections
    /// are flushed.
    fn wait(&self, shared: &Shared) -> Pending {
        let mut pending = self.pending.lock();
        while !pending.dirty && !pending.is_urgent() {
            self.changed.wait(&mut pending);
        }
        if !pending.is_urgent() {
            self.changed.wait_while_for(
                &mut pending,
                |pending| !pending.is_urgent(),
                shared.settings.flush_after,
            );
        }
        let taken = *pending;
        (pending.full, pending.devices_changed) = (false, false);
        taken
    }
}

/// Starts the thread. If the thread cannot be created, deltas are flushed only on request; answers stay correct.
pub(crate) fn start_background(shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    let thread = thread::Builder::new().name("cache".to_owned());
    if let Err(error) = thread.spawn(move || run(&shared)) {
        tracing::error!(%error, "cannot start the thread that flushes the cache");
    }
}

fn run(shared: &Arc<Shared>) {
    loop {
        let pending = shared.flush_signal.wait(shared);
        if pending.ended {
            return;
        }
        if pending.devices_changed {
            follow_devices(shared);
        }
        if pending.full {
            shared
                .members()
                .iter()
                .for_each(|member| maintain(member, Extent::Full));
        } else if pending.dirty {
            flush_idle(shared);
        }
    }
}

/// Flushes the collections that had no writes since the last call.
fn flush_idle(shared: &Arc<Shared>) {
    // Cleared first, so that a concurrent write sets it again for the next call.
    shared.flush_signal.pending.lock().dirty = false;
    let clean = shared
        .members()
        .iter()
        .map(|member| maintain_if_idle(member))
        .filter(|clean| !clean)
        .count()
        == 0;
    if !clean {
        shared.flush_signal.report_write(false);
    }
}
