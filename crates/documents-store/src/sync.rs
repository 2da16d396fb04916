//! Group commit: one sync serves all waiting callers. A background thread syncs regularly, which limits the writes that
//! a crash can lose.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::background::Background;
use crate::engine::Engine;
use crate::error::{Result, StoreError};

/// Merges concurrent sync requests into few syncs of the engine.
pub struct GroupSync {
    engine: Arc<dyn Engine>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of the latest sync that has begun. Syncs are numbered from 1.
    begun: u64,
    /// Number of the latest sync that has ended.
    ended: u64,
    /// Outcome of the latest sync.
    outcome: Option<Result<()>>,
    running: bool,
    /// Whether anything was written after the last sync began.
    dirty: bool,
    stopped: bool,
}

impl State {
    /// Returns why the latest sync failed, if it did.
    fn failure(&self) -> Option<&StoreError> {
        self.outcome.as_ref()?.as_ref().err()
    }
}

impl GroupSync {
    /// Creates the group commit of an engine that has no unsynced writes.
    pub fn new(engine: Arc<dyn Engine>) -> Arc<Self> {
        Arc::new(Self {
            engine,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Checks whether writes may be acknowledged. After a failed sync they may not, until a sync has succeeded.
    ///
    /// # Errors
    /// [`StoreError::NotSynced`], or [`StoreError::ReadOnly`] if no sync can succeed before a restart.
    pub fn check(&self) -> Result<()> {
        match self.state.lock().failure() {
            None => Ok(()),
            Some(last @ StoreError::ReadOnly { .. }) => Err(last.clone()),
            Some(failure) => Err(StoreError::NotSynced {
                why: failure.to_string(),
            }),
        }
    }

    /// Records that a write needs a sync.
    pub fn mark_dirty(&self) {
        let mut state = self.state.lock();
        if !state.dirty {
            state.dirty = true;
            self.changed.notify_all();
        }
    }

    /// Waits until everything committed before the call is on disk.
    ///
    /// A sync that was already running does not count. The caller waits for the next one, and runs it if no other
    /// caller does.
    pub fn sync(&self) -> Result<()> {
        let mut state = self.state.lock();
        let wanted = state.begun + 1;
        loop {
            if state.ended >= wanted {
                return state.outcome.clone().unwrap_or(Ok(()));
            }
            if state.running {
                self.changed.wait(&mut state);
            } else {
                state.begun += 1;
                state.running = true;
                state.dirty = false;
                let outcome = parking_lot::MutexGuard::unlocked(&mut state, || self.engine.sync());
                state.running = false;
                state.ended = state.begun;
                if outcome.is_err() {
                    state.dirty = true;
                }
                state.outcome = Some(outcome);
                self.changed.notify_all();
            }
        }
    }

    /// Waits until there is a write to sync. Returns false when the store closes.
    fn wait_dirty(&self) -> bool {
        let mut state = self.state.lock();
        while !state.dirty && !state.stopped {
            self.changed.wait(&mut state);
        }
        !state.stopped
    }

    /// Waits for the interval to pass. Returns false when the store closes.
    fn wait_interval(&self, interval: Duration) -> bool {
        let deadline = std::time::Instant::now() + interval;
        let mut state = self.state.lock();
        while !state.stopped && !self.changed.wait_until(&mut state, deadline).timed_out() {}
        !state.stopped
    }

    fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }
}

/// Starts the thread that syncs every write within `interval`.
///
/// # Errors
/// [`StoreError::Io`] if the operating system cannot create the thread.
pub(crate) fn start_background(group: Arc<GroupSync>, interval: Duration) -> Result<Background> {
    let shared = Arc::clone(&group);
    Background::start(
        "store-sync",
        move || run(&shared, interval),
        move || group.stop(),
    )
}

fn run(group: &GroupSync, interval: Duration) {
    let mut reported = None;
    while group.wait_dirty() {
        if !group.wait_interval(interval) {
            break;
        }
        let outcome = group.sync();
        if is_new(&mut reported, outcome) {
            match &reported {
                Some(error) => {
                    tracing::error!(%error, "a sync failed: writes are refused until a sync succeeds")
                }
                None => tracing::info!("a sync succeeded: writes are accepted again"),
            }
        }
    }
}

/// Stores the error message of a sync's outcome, or `None`, in `reported`. Returns whether `reported` changes.
fn is_new(reported: &mut Option<String>, outcome: Result<()>) -> bool {
    let failure = outcome.err().map(|error| error.to_string());
    let is_new = failure != *reported;
    *reported = failure;
    is_new
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::engine::{
        Batch, Bytes, Direction, KeyRange, Page, PageLimit, Partition, PartitionId, PartitionKind,
    };

    /// Engine for tests. Each sync reports its start to the test, and ends when the test says so.
    struct Gate {
        begun: Mutex<Sender<()>>,
        end: Mutex<Receiver<()>>,
    }

    fn gate() -> (Arc<Gate>, Receiver<()>, Sender<()>) {
        let (begun, on_begun) = channel();
        let (end, on_end) = channel();
        let gate = Gate {
            begun: Mutex::new(begun),
            end: Mutex::new(on_end),
        };
        (Arc::new(gate), on_begun, end)
    }

    impl Engine for Gate {
        fn sync(&self) -> Result<()> {
            self.begun.lock().send(()).expect("the test listens");
            self.end.lock().recv().expect("the test answers");
            Ok(())
        }

        fn create_partition(&self, _: PartitionKind) -> Result<Partition> {
            unreachable!("only synced")
        }

        fn open_partition(&self, _: &str, _: PartitionKind) -> Result<Partition> {
            unreachable!("only synced")
        }

        fn existing_partition(&self, _: &str) -> Result<Option<Partition>> {
            unreachable!("only synced")
        }

        fn drop_partition(&self, _: PartitionId) -> Result<()> {
            unreachable!("only synced")
        }

        fn has_other_partitions(&self, _: &str) -> bool {
            unreachable!("only synced")
        }

        fn retain_partitions(&self, _: &HashSet<String>) -> Result<()> {
            unreachable!("only synced")
        }

        fn get(&self, _: PartitionId, _: &[u8]) -> Result<Option<Bytes>> {
            unreachable!("only synced")
        }

        fn page(&self, _: PartitionId, _: &KeyRange, _: Direction, _: PageLimit) -> Result<Page> {
            unreachable!("only synced")
        }

        fn commit(&self, _: Batch) -> Result<()> {
            unreachable!("only synced")
        }

        fn free_memory(&self) -> Result<()> {
            unreachable!("only synced")
        }

        fn check_writable(&self) -> Result<()> {
            unreachable!("only synced")
        }

        fn bytes(&self, _: PartitionId) -> u64 {
            unreachable!("only synced")
        }
    }

    #[test]
    fn callers_that_wait_during_a_sync_share_the_next() {
        let (gate, on_begun, end) = gate();
        let group = GroupSync::new(gate);
        std::thread::scope(|threads| {
            threads.spawn(|| group.sync().expect("syncs"));
            on_begun.recv().expect("the first begins");
            for _ in 0..8 {
                threads.spawn(|| group.sync().expect("syncs"));
            }
            // `notify_all` returns the number of woken threads. They find the first sync still running and wait again.
            while group.changed.notify_all() < 8 {
                std::thread::yield_now();
            }
            // Lets more syncs end than are expected, so that extra syncs fail the test instead of hanging it.
            for _ in 0..9 {
                end.send(()).expect("syncs end");
            }
        });
        assert_eq!(on_begun.try_iter().count(), 1, "one sync serves all eight");
        assert_eq!(group.state.lock().ended, 2);
    }

    #[test]
    fn a_failure_is_reported_once() {
        let failed = |why: &str| {
            Err(StoreError::ReadOnly {
                why: why.to_owned(),
            })
        };
        let outcomes = [
            Ok(()),
            failed("a"),
            failed("a"),
            failed("b"),
            Ok(()),
            Ok(()),
        ];
        let mut reported = None;
        let news = outcomes.map(|outcome| is_new(&mut reported, outcome));
        assert_eq!(news, [false, true, false, true, true, false]);
    }

    #[test]
    fn the_background_syncs_a_write() {
        let (gate, on_begun, end) = gate();
        let group = GroupSync::new(gate);
        let background =
            start_background(Arc::clone(&group), Duration::from_millis(1)).expect("starts");
        for _ in 0..3 {
            group.mark_dirty();
            on_begun.recv().expect("a sync follows");
            end.send(()).expect("ends");
        }
        drop(background);
        assert!(
            on_begun.try_recv().is_err(),
            "nothing is synced that was not written"
        );
    }
}
