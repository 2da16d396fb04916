//! The thread that flushes, and what wakes it.

use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::{Extent, maintain, maintain_if_idle};
use crate::cache::Shared;

/// What the background thread has to know.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    news: Mutex<News>,
    changed: Condvar,
}

#[derive(Debug, Default, Clone, Copy)]
struct News {
    /// Something was written since all tails were flushed.
    dirty: bool,
    /// A tail is full.
    full: bool,
    /// A device was found lost.
    lost: bool,
    /// The cache is gone.
    ended: bool,
}

impl News {
    fn is_urgent(self) -> bool {
        self.full || self.lost || self.ended
    }
}

impl Alarm {
    /// Something was written; `full` says that a tail is full.
    pub(crate) fn written(&self, full: bool) {
        self.tell(|news| {
            let known = news.dirty && (news.full || !full);
            news.dirty = true;
            news.full |= full;
            !known
        });
    }

    /// A search found a device lost.
    pub(crate) fn device_lost(&self) {
        self.tell(|news| !std::mem::replace(&mut news.lost, true));
    }

    /// The thread is to end.
    pub(crate) fn end(&self) {
        self.tell(|news| !std::mem::replace(&mut news.ended, true));
    }

    fn tell(&self, change: impl FnOnce(&mut News) -> bool) {
        if change(&mut self.news.lock()) {
            self.changed.notify_one();
        }
    }

    /// Waits for something urgent, or, if something was written, for the time to look for quiet collections.
    fn wait(&self, shared: &Shared) -> News {
        let mut news = self.news.lock();
        while !news.dirty && !news.is_urgent() {
            self.changed.wait(&mut news);
        }
        if !news.is_urgent() {
            self.changed.wait_while_for(
                &mut news,
                |news| !news.is_urgent(),
                shared.settings.flush_after,
            );
        }
        let taken = *news;
        (news.full, news.lost) = (false, false);
        taken
    }
}

/// Starts the thread. Where the system gives none, tails are flushed on request only, and stay right.
pub(crate) fn start_background(shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    let thread = thread::Builder::new().name("cache".to_owned());
    if let Err(error) = thread.spawn(move || run(&shared)) {
        tracing::error!(%error, "no thread to flush the cache in the background");
    }
}

fn run(shared: &Arc<Shared>) {
    loop {
        let news = shared.alarm.wait(shared);
        if news.ended {
            return;
        }
        if news.lost {
            leave_lost_devices(shared);
        }
        if news.full {
            shared
                .members()
                .iter()
                .for_each(|member| maintain(member, Extent::Full));
        } else if news.dirty {
            flush_quiet(shared);
        }
    }
}

/// Takes devices that failed out of the placement and moves their buckets.
fn leave_lost_devices(shared: &Arc<Shared>) {
    for device in shared
        .devices
        .list()
        .iter()
        .filter(|device| device.is_lost())
    {
        shared.owners.lock().leave(device.id());
    }
    shared
        .members()
        .iter()
        .for_each(|member| maintain(member, Extent::Placement));
}

/// Flushes collections that nobody wrote to since the last look.
fn flush_quiet(shared: &Arc<Shared>) {
    // Cleared first: a write after this is seen by the next look.
    shared.alarm.news.lock().dirty = false;
    let clean = shared
        .members()
        .iter()
        .map(|member| maintain_if_idle(member))
        .filter(|clean| !clean)
        .count()
        == 0;
    if !clean {
        shared.alarm.written(false);
    }
}
