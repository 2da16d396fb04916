//! State machine of a replica.
//!
//! ```text
//!                declare            expect_resume
//!   Undeclared ──────────▶ Off ──────────────────────▶ Invalid ◀─────────────────────────┐
//!        ▲                  ▲      or invalidate        │   │                            │
//!        │ undeclare        │ turn_off                  │   │ resume the copy of         │
//!    (any state)        (any declared)       begin_load │   │ an earlier process         │
//!                                                       ▼   │                            │
//!                                     ┌───────────── Loading│                            │
//!                                     │   finish_load   ▲ │ │                            │
//!                                     │ (all writes come│ │ │ finish_load                │ invalidate
//!                                     │ through us)     │ │ │ (writes are followed by a  │ (any declared)
//!                                     │      begin_load,│ ▼ ▼  change stream)            │
//!                                     │  as the upstream CatchingUp ─────────────────────┤
//!                                     │ cannot resume     │   ▲                          │
//!                                     │          complete │   │ lose_stream              │
//!                                     │                   ▼   │                          │
//!                                     └────────────────▶ Ready ──────────────────────────┘
//! ```
//!
//! While the upstream can be reached, only a `Ready` replica answers. Every transition except `start_following` and
//! `complete` begins a new *epoch*. A background task (a load, a change stream) passes the epoch that it works for to
//! each transition. Its transitions are refused in a later epoch, as are transitions without an arrow in the diagram.
//!
//! - `Loading`: the copy is not valid before the load ends. Documents written during the load are recorded, so that the
//!   load does not replace them with older versions.
//! - A `CatchingUp` replica follows a change stream, and becomes `Ready` once all changes up to a *required* cluster
//!   time are applied. The required time is the latest of three times: the upstream's time when the stream was opened,
//!   its time when the load ended, and the time of the last acknowledged write. A replica that loses its stream enters
//!   `CatchingUp` again, or `Loading`; never `Ready` directly.
//! - A copy that was once correct is *whole*. With `--upstream-serve-stale`, whole copies answer clients that are cut
//!   off from the upstream while it is away; [`Life::answering`] has the rule. A load may keep a whole copy by filling
//!   another collection.
//!
//! Three conditions are kept outside these states, because they change independently: whether the upstream is away (for
//! all replicas at once, [`Replicas::is_away`](super::Replicas::is_away)), whether the upstream's pace is being
//! measured ([`super::pace`]), and whether a change stream is paused for a comparison ([`super::pause`]).

use std::collections::HashSet;
use std::time::Duration;

/// A replica's state and the number of its epoch.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// Never reused, so that transitions of an outdated task are refused.
    epoch: u64,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    /// The collection has no caches.
    #[default]
    Undeclared,
    /// The replica does not answer, and no load is due.
    Off { reason: String },
    /// The replica does not answer until it is loaded.
    Invalid {
        reason: String,
        /// Time for which the loader waits before the load.
        pause: Duration,
        held: Held,
    },
    /// The collection is being copied from the upstream.
    Loading(Load),
    /// The replica has every document, and applies its change stream. It answers once it has applied all changes up to
    /// the required time.
    CatchingUp(CatchUp),
    /// The replica has applied every acknowledged write.
    Ready {
        /// Cluster time up to which the change stream is applied; `None` if writes are applied one by one.
        applied: Option<u64>,
    },
}

/// What a replica in state `Invalid` holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    /// Nothing usable.
    Nothing,
    /// A copy that an earlier process left, with its position in the change stream.
    Left,
    /// A complete copy that was correct when the upstream was last reached.
    Whole,
}

/// A load in progress.
#[derive(Debug)]
pub(super) struct Load {
    /// Keys of the `_id`s of documents written since the load began: the load may read older versions of them.
    pub written: HashSet<Vec<u8>>,
    /// Number of documents copied.
    pub done: u64,
    /// Number of documents that the upstream reported when the load began.
    pub total: u64,
    /// Does the load fill a separate collection, so that the existing complete copy is kept meanwhile?
    is_beside: bool,
    /// Cluster time of the last write acknowledged since the load began.
    required: u64,
}

#[derive(Debug)]
struct CatchUp {
    /// Was the copy complete and correct at an earlier time?
    is_whole: bool,
    /// Has the upstream accepted the resume token?
    is_following: bool,
    /// Cluster time up to which changes are applied.
    applied: u64,
    /// Cluster time up to which changes must be applied.
    required: u64,
}

/// The conditions that determine which copy may answer a client's read.
#[derive(Debug, Clone, Copy)]
pub struct View {
    /// Is the upstream known to be unreachable?
    pub is_away: bool,
    /// Is the client without a connection to the upstream?
    pub is_cut_off: bool,
    /// Whether whole copies may answer while the upstream is away.
    pub serve_stale: bool,
    /// Do all writes come through the proxy?
    pub exclusive: bool,
}

impl Life {
    /// Declares caches, or replaces their declaration. The replica does not answer until it is loaded.
    pub fn declare(&mut self) {
        let reason = "the cache has just been declared".to_owned();
        self.enter(State::Off { reason });
    }

    /// Drops the caches.
    pub fn undeclare(&mut self) {
        self.enter(State::Undeclared);
    }

    /// Turns the replica off until its caches are declared again: it answers no reads and does not load the collection.
    pub fn turn_off(&mut self, reason: &str) -> Option<u64> {
        let reason = reason.to_owned();
        self.is_declared()
            .then(|| self.enter(State::Off { reason }))
    }

    /// Schedules a load that may resume the copy left by an earlier process. Returns the new epoch; `None` unless the
    /// caches have just been declared or are turned off.
    pub fn expect_resume(&mut self, reason: &str) -> Option<u64> {
        let is_new = matches!(self.state, State::Off { .. });
        is_new.then(|| self.enter_invalid(reason, Duration::ZERO, Held::Left))
    }

    /// Makes the replica stop answering until it is loaded. The load starts after `pause`. If a load with a longer
    /// pause is already due, the load starts after that pause instead. With `keeps_copy`, a whole copy may still answer
    /// while the upstream is away.
    pub fn invalidate(&mut self, reason: &str, pause: Duration, keeps_copy: bool) -> Option<u64> {
        let pause = self.load_due().unwrap_or_default().max(pause);
        let held = if keeps_copy {
            self.held()
        } else {
            Held::Nothing
        };
        self.is_declared()
            .then(|| self.enter_invalid(reason, pause, held))
    }

    /// Begins the load that has been due since epoch `of`. `total` is the number of documents to copy. With
    /// `keeps_copy`, the load keeps a whole copy. Returns the load's epoch.
    pub fn begin_load(&mut self, of: u64, total: u64, keeps_copy: bool) -> Option<u64> {
        let is_beside = keeps_copy && self.held() == Held::Whole;
        let is_due = matches!(self.state, State::Invalid { .. } | State::CatchingUp(_));
        let may_begin = self.epoch == of && is_due;
        may_begin.then(|| {
            self.enter(State::Loading(Load {
                written: HashSet::new(),
                done: 0,
                total,
                is_beside,
                required: 0,
            }))
        })
    }

    /// Ends the load of epoch `of`; the loaded copy replaces the older one. With `follows_stream`, the replica answers
    /// once it has caught up with its change stream. Otherwise it answers at once, because writes were applied one by
    /// one during the load. Returns the new epoch.
    pub fn finish_load(&mut self, of: u64, follows_stream: bool) -> Option<u64> {
        let required = self.load(of)?.required;
        Some(self.enter(if follows_stream {
            State::CatchingUp(CatchUp {
                is_whole: false,
                is_following: false,
                applied: 0,
                required,
            })
        } else {
            State::Ready { applied: None }
        }))
    }

    /// Takes over the copy that an earlier process left; the replica then waits for its change stream. Returns the new
    /// epoch.
    pub fn resume(&mut self, of: u64) -> Option<u64> {
        let is_left = matches!(
            self.state,
            State::Invalid {
                held: Held::Left,
                ..
            }
        );
        (self.epoch == of && is_left).then(|| self.enter_catch_up(true, 0))
    }

    /// Makes the replica stop answering because the change stream of epoch `of` has ended. Returns the new epoch, in
    /// which another stream may resume at the same position.
    pub fn lose_stream(&mut self, of: u64) -> Option<u64> {
        let (is_whole, required) = match &self.state {
            State::CatchingUp(catch_up) => (catch_up.is_whole, catch_up.required),
            State::Ready { applied: Some(_) } => (true, 0),
            _ => return None,
        };
        (self.epoch == of).then(|| self.enter_catch_up(is_whole, required))
    }

    /// Records that the change stream of epoch `of` is open: the upstream has accepted the resume token.
    pub fn start_following(&mut self, of: u64) -> bool {
        match &mut self.state {
            State::CatchingUp(catch_up) if self.epoch == of => {
                catch_up.is_following = true;
                true
            }
            _ => false,
        }
    }

    /// Records that all changes up to cluster time `at` are applied. Returns whether `at` is later than the time
    /// recorded before.
    pub fn advance_applied(&mut self, of: u64, at: u64) -> bool {
        let applied = match &mut self.state {
            State::CatchingUp(catch_up) if catch_up.is_following => &mut catch_up.applied,
            State::Ready {
                applied: Some(applied),
            } => applied,
            _ => return false,
        };
        let advances = self.epoch == of && at > *applied;
        if advances {
            *applied = at;
        }
        advances
    }

    /// Requires that all changes up to cluster time `at` are applied before the replica begins to answer. Has no effect
    /// if the replica already answers, or before a load, which will read these changes.
    pub fn require_applied(&mut self, at: u64) {
        match &mut self.state {
            State::Loading(Load { required, .. }) | State::CatchingUp(CatchUp { required, .. }) => {
                *required = at.max(*required)
            }
            _ => {}
        }
    }

    /// Makes the replica answer if the change stream of epoch `of` is applied up to the required time. Returns whether
    /// the replica begins to answer now.
    pub fn complete(&mut self, of: u64) -> bool {
        match &self.state {
            State::CatchingUp(catch_up) if self.epoch == of && catch_up.is_complete() => {
                let applied = Some(catch_up.applied);
                self.state = State::Ready { applied };
                true
            }
            _ => false,
        }
    }

    /// Returns the load of epoch `of`, if it is in progress.
    pub fn load(&mut self, of: u64) -> Option<&mut Load> {
        match &mut self.state {
            State::Loading(load) if self.epoch == of => Some(load),
            _ => None,
        }
    }

    /// Records that documents with these keys are being written. Returns whether the write has to be applied to the
    /// replica; if not, a later load reads it.
    pub fn note_written(&mut self, keys: impl Iterator<Item = Vec<u8>>) -> bool {
        match &mut self.state {
            State::Loading(load) => {
                load.written.extend(keys);
                true
            }
            State::Ready { .. } => true,
            _ => false,
        }
    }

    /// Returns the epoch of the copy that answers a client under the conditions in `view`; `None` if no copy may
    /// answer.
    pub fn answering(&self, view: View) -> Option<u64> {
        let answers = match (view.is_away, view.is_cut_off) {
            (true, true) => view.serve_stale && self.held() == Held::Whole,
            // The client's connection may by now lead to another server. That server may have received writes directly,
            // which the copy does not have.
            (true, false) if view.exclusive => false,
            _ => self.is_ready(),
        };
        answers.then_some(self.epoch)
    }

    /// Returns whether the collection has caches.
    pub fn is_declared(&self) -> bool {
        !matches!(self.state, State::Undeclared)
    }

    /// Returns whether the replica answers while the upstream can be reached.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready { .. })
    }

    /// Returns whether the collection has caches that are turned off: not loaded, and no load is due.
    pub fn is_off(&self) -> bool {
        matches!(self.state, State::Off { .. })
    }

    /// Returns whether the replica holds a copy that an earlier process left and that may be resumed.
    pub fn may_resume(&self) -> bool {
        self.held() == Held::Left
    }

    /// Returns whether a change stream is open. True also for a replica that has not caught up with its stream yet.
    pub fn is_following(&self) -> bool {
        match &self.state {
            State::CatchingUp(catch_up) => catch_up.is_following,
            State::Ready { applied } => applied.is_some(),
            _ => false,
        }
    }

    /// Returns whether all changes up to cluster time `at` are applied.
    pub fn has_applied(&self, at: u64) -> bool {
        match &self.state {
            State::CatchingUp(catch_up) => catch_up.applied >= at,
            State::Ready { applied } => applied.is_some_and(|applied| applied >= at),
            _ => false,
        }
    }

    /// Returns the cluster time up to which changes are applied; 0 if none are applied.
    pub fn applied(&self) -> u64 {
        match &self.state {
            State::CatchingUp(catch_up) => catch_up.applied,
            State::Ready { applied } => applied.unwrap_or(0),
            _ => 0,
        }
    }

    /// Returns whether a load is in progress that keeps a whole copy and fills another collection.
    pub fn loads_beside(&self) -> bool {
        matches!(&self.state, State::Loading(load) if load.is_beside)
    }

    /// Returns how long the loader has to wait before the load; `None` if no load is due.
    pub fn load_due(&self) -> Option<Duration> {
        match &self.state {
            State::Invalid { pause, .. } => Some(*pause),
            _ => None,
        }
    }

    /// Returns how many documents a load in progress has copied, and how many it will copy in all.
    pub fn progress(&self) -> Option<(u64, u64)> {
        match &self.state {
            State::Loading(load) => Some((load.done, load.total)),
            _ => None,
        }
    }

    /// Returns why the replica does not answer; `None` if it answers or the collection has no caches.
    pub fn reason(&self) -> Option<String> {
        match &self.state {
            State::Undeclared | State::Ready { .. } => None,
            State::Off { reason } | State::Invalid { reason, .. } => Some(reason.clone()),
            State::Loading(Load { done, total, .. }) => Some(format!(
                "the cache is being loaded ({done} of {total} documents)"
            )),
            State::CatchingUp(_) => Some("the cache is catching up with the upstream".to_owned()),
        }
    }

    /// Returns the current epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    fn held(&self) -> Held {
        match &self.state {
            State::Invalid { held, .. } => *held,
            State::Loading(Load {
                is_beside: true, ..
            })
            | State::CatchingUp(CatchUp { is_whole: true, .. })
            | State::Ready { .. } => Held::Whole,
            _ => Held::Nothing,
        }
    }

    fn enter_invalid(&mut self, reason: &str, pause: Duration, held: Held) -> u64 {
        let reason = reason.to_owned();
        self.enter(State::Invalid {
            reason,
            pause,
            held,
        })
    }

    fn enter_catch_up(&mut self, is_whole: bool, required: u64) -> u64 {
        self.enter(State::CatchingUp(CatchUp {
            is_whole,
            is_following: false,
            applied: 0,
            required,
        }))
    }

    fn enter(&mut self, state: State) -> u64 {
        self.state = state;
        self.epoch += 1;
        self.epoch
    }
}

impl CatchUp {
    fn is_complete(&self) -> bool {
        self.is_following && self.applied >= self.required
    }
}

#[cfg(test)]
mod model;
