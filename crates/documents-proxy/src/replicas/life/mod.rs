//! The life of a replica: its states, and the transitions between them.
//!
//! ```text
//!                declare            expect_resume
//!   Undeclared ──────────▶ Off ──────────────────────▶ Invalid ◀─────────────────────────┐
//!        ▲                  ▲      or invalidate        │   │                            │
//!        │ undeclare        │ turn_off                  │   │ resume, of a copy          │
//!    (any state)        (any declared)       begin_load │   │ that an earlier run left   │
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
//! Only a replica that is `Ready` answers while the upstream is there. Every transition but `start_following` and
//! `complete` begins a new *epoch*. A background task (a load, a change stream) names the epoch that it is for. Its
//! transitions are refused when the replica is in a later epoch, and so are transitions that no arrow shows.
//!
//! - `Loading` counts as the replica's copy only at its end. What is written meanwhile is noted, so that the load does
//!   not bring back an older version.
//! - `CatchingUp` follows a change stream and answers when it has applied all up to a *required* time: that of the
//!   upstream when the stream was opened, when the load ended, and of every write whose client was answered since.
//!   A stream that is lost leads back here, or to a load; never straight to `Ready`.
//! - A copy that was once right is *whole*. While the upstream is away, whole copies answer clients that are cut off
//!   from it, with `--upstream-serve-stale`: [`Life::answering`] has the rule. A load beside a whole copy leaves that
//!   in place.
//!
//! Three conditions are beside these states, as they change on their own: whether the upstream is away (it is so for
//! all replicas at once, [`Replicas::is_away`](super::Replicas::is_away)), whether the upstream's pace is being
//! measured ([`super::pace`]), and whether a change stream pauses for a comparison ([`super::pause`]).

use std::collections::HashSet;
use std::time::Duration;

/// A replica's state and the number of its epoch.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// Never used twice, so that old work takes nothing for its own.
    epoch: u64,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    /// There are no caches.
    #[default]
    Undeclared,
    /// It answers nothing and is not loaded, and why.
    Off { reason: String },
    /// It answers nothing until it has been loaded.
    Invalid {
        reason: String,
        /// How long the loader waits before.
        pause: Duration,
        held: Held,
    },
    /// It is copied from the upstream.
    Loading(Load),
    /// It has every document, and follows a change stream up to the required time.
    CatchingUp(CatchUp),
    /// It has applied every write whose client was answered.
    Ready {
        /// The cluster time up to which it has applied a change stream; `None` where writes are applied one by one.
        applied: Option<u64>,
    },
}

/// What a replica that does not answer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    /// Nothing of use.
    Nothing,
    /// A copy that an earlier run left, with its place in the change stream.
    Left,
    /// A copy that was right when the upstream was last there.
    Whole,
}

/// A load in progress.
#[derive(Debug)]
pub(super) struct Load {
    /// The keys of the `_id`s of documents that were written since it began: what the load brings of them is old.
    pub written: HashSet<Vec<u8>>,
    /// Documents copied.
    pub done: u64,
    /// Documents that the upstream counted at the beginning.
    pub total: u64,
    /// Does it fill another collection than the whole copy that there is?
    is_beside: bool,
    /// The cluster time of the last write whose client was answered since.
    required: u64,
}

#[derive(Debug)]
struct CatchUp {
    /// Is the copy whole, as of an earlier time?
    is_whole: bool,
    /// Has the upstream accepted the place in the change stream?
    is_following: bool,
    /// The cluster time up to which changes are applied.
    applied: u64,
    /// The cluster time up to which they have to be.
    required: u64,
}

/// How a client that reads stands to the upstream.
#[derive(Debug, Clone, Copy)]
pub struct View {
    /// Is it known that the upstream cannot be reached?
    pub is_away: bool,
    /// Has the client no connection to the upstream?
    pub is_cut_off: bool,
    /// May whole copies answer while the upstream is away?
    pub serve_stale: bool,
    /// Do all writes come through the proxy?
    pub exclusive: bool,
}

impl Life {
    /// Declares caches, or others than before. The replica answers nothing until it is loaded.
    pub fn declare(&mut self) {
        let reason = "the cache has just been declared".to_owned();
        self.enter(State::Off { reason });
    }

    /// Forgets the caches.
    pub fn undeclare(&mut self) {
        self.enter(State::Undeclared);
    }

    /// Stops answers and loads.
    pub fn turn_off(&mut self, reason: &str) -> Option<u64> {
        let reason = reason.to_owned();
        self.is_declared()
            .then(|| self.enter(State::Off { reason }))
    }

    /// Has the replica loaded after a `pause`, unless it has been declared only now and can be resumed from the copy
    /// that an earlier run left.
    pub fn expect_resume(&mut self, reason: &str) -> Option<u64> {
        let is_new = matches!(self.state, State::Off { .. });
        is_new.then(|| self.enter_invalid(reason, Duration::ZERO, Held::Left))
    }

    /// Stops answers until the replica has been loaded, which begins after a `pause`. With `keeps_copy`, a whole copy
    /// may still answer while the upstream is away.
    pub fn invalidate(&mut self, reason: &str, pause: Duration, keeps_copy: bool) -> Option<u64> {
        let held = if keeps_copy {
            self.held()
        } else {
            Held::Nothing
        };
        self.is_declared()
            .then(|| self.enter_invalid(reason, pause, held))
    }

    /// Begins a load of `total` documents, beside a whole copy if that is to be kept. Returns the load's epoch.
    pub fn begin_load(&mut self, total: u64, keeps_copy: bool) -> Option<u64> {
        let is_beside = keeps_copy && self.held() == Held::Whole;
        let may_begin = matches!(self.state, State::Invalid { .. } | State::CatchingUp(_));
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

    /// Ends the load of epoch `of`: its copy takes the place of the one that there was. The replica answers at once
    /// where writes were applied one by one since the load began, and else when it has caught up with a change stream.
    /// Returns the new epoch.
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

    /// Takes the copy that an earlier run left, and waits for its change stream. Returns the new epoch.
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

    /// Stops answers as the change stream of epoch `of` has ended. Returns the new epoch, in which another stream may
    /// go on from the same place.
    pub fn lose_stream(&mut self, of: u64) -> Option<u64> {
        let (is_whole, required) = match &self.state {
            State::CatchingUp(catch_up) => (catch_up.is_whole, catch_up.required),
            State::Ready { applied: Some(_) } => (true, 0),
            _ => return None,
        };
        (self.epoch == of).then(|| self.enter_catch_up(is_whole, required))
    }

    /// Notes that the change stream of epoch `of` is open: the upstream has accepted the place in it.
    pub fn start_following(&mut self, of: u64) -> bool {
        match &mut self.state {
            State::CatchingUp(catch_up) if self.epoch == of => {
                catch_up.is_following = true;
                true
            }
            _ => false,
        }
    }

    /// Notes that all changes up to a cluster time are applied.
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

    /// Puts answers off until all changes up to a cluster time are applied. A load that begins later reads them.
    pub fn require_applied(&mut self, at: u64) {
        match &mut self.state {
            State::Loading(Load { required, .. }) | State::CatchingUp(CatchUp { required, .. }) => {
                *required = at.max(*required)
            }
            _ => {}
        }
    }

    /// Begins to answer, if the change stream of epoch `of` has been applied up to the required time. Returns whether
    /// it has just begun.
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

    /// The load of epoch `of`, while it is in progress.
    pub fn load(&mut self, of: u64) -> Option<&mut Load> {
        match &mut self.state {
            State::Loading(load) if self.epoch == of => Some(load),
            _ => None,
        }
    }

    /// Notes that documents with these keys are being written. Returns whether the write has to be applied to the
    /// replica: otherwise a load will read it.
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

    /// Returns the epoch of the copy that answers a client, if one does.
    pub fn answering(&self, view: View) -> Option<u64> {
        let answers = match (view.is_away, view.is_cut_off) {
            (true, true) => view.serve_stale && self.held() == Held::Whole,
            // The client may be connected to another server by now, which has been written to directly.
            (true, false) if view.exclusive => false,
            _ => self.is_ready(),
        };
        answers.then_some(self.epoch)
    }

    /// Returns whether there are caches.
    pub fn is_declared(&self) -> bool {
        !matches!(self.state, State::Undeclared)
    }

    /// Returns whether the replica answers while the upstream is there.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready { .. })
    }

    /// Returns whether the replica can be resumed from what an earlier run left.
    pub fn may_resume(&self) -> bool {
        self.held() == Held::Left
    }

    /// Returns whether a change stream is open, whether it has caught up or not.
    pub fn is_following(&self) -> bool {
        match &self.state {
            State::CatchingUp(catch_up) => catch_up.is_following,
            State::Ready { applied } => applied.is_some(),
            _ => false,
        }
    }

    /// Returns whether all changes up to a cluster time are applied.
    pub fn has_applied(&self, at: u64) -> bool {
        match &self.state {
            State::CatchingUp(catch_up) => catch_up.applied >= at,
            State::Ready { applied } => applied.is_some_and(|applied| applied >= at),
            _ => false,
        }
    }

    /// Returns the cluster time up to which changes are applied; 0 before the first.
    pub fn applied(&self) -> u64 {
        match &self.state {
            State::CatchingUp(catch_up) => catch_up.applied,
            State::Ready { applied } => applied.unwrap_or(0),
            _ => 0,
        }
    }

    /// Returns whether a load goes beside a whole copy.
    pub fn loads_beside(&self) -> bool {
        matches!(&self.state, State::Loading(load) if load.is_beside)
    }

    /// Returns how long the loader has to wait before it begins, if it has to load.
    pub fn load_due(&self) -> Option<Duration> {
        match &self.state {
            State::Invalid { pause, .. } => Some(*pause),
            _ => None,
        }
    }

    /// Returns the documents that a load has copied, and all that it will copy.
    pub fn progress(&self) -> Option<(u64, u64)> {
        match &self.state {
            State::Loading(load) => Some((load.done, load.total)),
            _ => None,
        }
    }

    /// Returns why it does not answer; `None` if it does, or if there are no caches.
    pub fn reason(&self) -> Option<String> {
        match &self.state {
            State::Undeclared | State::Ready { .. } => None,
            State::Off { reason } | State::Invalid { reason, .. } => Some(reason.clone()),
            State::Loading(Load { done, total, .. }) => Some(format!(
                "the cache is being loaded ({done} of {total} documents)"
            )),
            State::CatchingUp(_) => Some("the cache catches up with the upstream".to_owned()),
        }
    }

    /// Returns the number of the epoch.
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
