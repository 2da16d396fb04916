//! Drives a [`Life`] with random events, and compares it with a model of the upstream and of the copies.
//!
//! The model writes real documents, loads them batch by batch, and applies a change stream with a delay; the stream
//! breaks and resumes. If [`Life::answering`] allows a copy to answer after an event, the model compares this copy with
//! the upstream's documents.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;

use super::{Life, State, View};

/// Number of simulated replicas (about half of them with a change stream), and number of events for each replica.
const LIVES: usize = 200;
const EVENTS: usize = 1_000;
/// Number of distinct `_id`s.
const IDS: u8 = 6;

/// Versions of documents, by `_id`.
type Documents = BTreeMap<u8, u64>;

/// The load in progress.
struct Loader {
    epoch: u64,
    unread: Vec<u8>,
    /// Documents that are read but not copied yet.
    ahead: Vec<(u8, u64)>,
    /// Cluster time at which the stream was opened.
    opened_at: u64,
}

/// The change stream.
#[derive(Clone, Copy)]
struct Follower {
    epoch: u64,
    /// Cluster time up to which the model has applied the stream.
    place: u64,
    is_open: bool,
}

struct Model {
    rng: Rng,
    life: Life,
    exclusive: bool,
    serve_stale: bool,
    is_away: bool,
    /// The upstream's documents after each write, indexed by cluster time.
    history: Vec<Documents>,
    /// Cluster time of the last acknowledged write.
    answered: u64,
    /// Cluster time of the last write whose client waits for the change stream.
    waiting: u64,
    /// The copy that answers reads. `copy_at` is the cluster time at which the upstream had the same documents; `None`
    /// if the copy is not consistent.
    copy: Documents,
    copy_at: Option<u64>,
    /// Cluster time up to which changes must be applied before the copy is consistent, because a load reads documents
    /// at different times.
    copy_from: u64,
    beside: Documents,
    loader: Option<Loader>,
    follower: Option<Follower>,
    /// Has a load finished or a stream resumed since the replica was last invalidated?
    was_renewed: bool,
    old: Vec<u64>,
}

impl Model {
    fn new(mut rng: Rng) -> Model {
        let (exclusive, serve_stale) = (rng.bool(), rng.bool());
        Model {
            rng,
            life: Life::default(),
            exclusive,
            serve_stale,
            is_away: false,
            history: vec![Documents::new()],
            answered: 0,
            waiting: 0,
            copy: Documents::new(),
            copy_at: None,
            copy_from: 0,
            beside: Documents::new(),
            loader: None,
            follower: None,
            was_renewed: false,
            old: Vec::new(),
        }
    }

    fn now(&self) -> u64 {
        self.history.len() as u64 - 1
    }

    fn upstream(&self) -> &Documents {
        self.history
            .last()
            .expect("the history begins with one state")
    }

    fn event(&mut self) {
        self.old.push(self.life.epoch());
        match self.rng.u16(0..1_000) {
            0..300 if !self.is_away => self.write(),
            300..310 => self.toggle_away(),
            310..350 if self.is_away => self.toggle_away(),
            350..354 => self.declare_or_not(),
            354..355 => self.turn_off(),
            355..362 => self.invalidate(),
            362..700 => (0..self.rng.u8(1..4)).for_each(|_| self.load()),
            700..930 => self.follow(),
            930..950 => self.lose_stream(),
            _ => self.old_work(),
        }
    }

    fn declare_or_not(&mut self) {
        self.old.push(self.life.epoch());
        match self.rng.u8(0..4) {
            0 => self.life.undeclare(),
            1 => self.life.declare(),
            _ => {
                self.life.declare();
                self.life.invalidate("declared", Duration::ZERO, false);
            }
        }
        self.abandon(false);
    }

    fn turn_off(&mut self) {
        let turned = self.life.turn_off("unsuitable");
        assert_eq!(turned.is_some(), self.life.is_declared());
        self.abandon(false);
    }

    fn invalidate(&mut self) {
        let keeps_copy = self.rng.bool();
        self.life.invalidate("", Duration::ZERO, keeps_copy);
        self.abandon(keeps_copy);
    }

    /// Drops the load and the stream, whose epoch has ended.
    fn abandon(&mut self, keeps_copy: bool) {
        (self.loader, self.follower, self.was_renewed) = (None, None, false);
        if !keeps_copy {
            self.copy_at = None;
        }
    }

    fn toggle_away(&mut self) {
        self.is_away = !self.is_away;
        match (self.is_away, self.exclusive) {
            (true, false) => self.lose_stream(),
            // The upstream may have lost writes, so invalidate as `Replicas::mark_away` does.
            (false, true) => {
                self.life
                    .invalidate("the upstream was away", Duration::ZERO, true);
                self.abandon(true);
            }
            _ => {}
        }
        if self.is_away && self.loader.is_some() {
            self.life
                .invalidate("the load failed", Duration::ZERO, true);
            self.abandon(true);
        }
    }

    fn write(&mut self) {
        let (id, version) = (self.rng.u8(0..IDS), self.now() + 1);
        let mut documents = self.upstream().clone();
        match self.rng.u8(0..4) {
            0 => drop(documents.remove(&id)),
            _ => drop(documents.insert(id, version)),
        }
        let written = documents.get(&id).copied();
        self.history.push(documents);
        if self.exclusive {
            self.apply_write(id, written)
        } else {
            self.answer_write()
        }
    }

    /// Applies a write, as the proxy does under the apply lock. One write in 20 has an unknown effect and invalidates
    /// the replica.
    fn apply_write(&mut self, id: u8, written: Option<u64>) {
        if self.rng.u8(0..20) == 0 {
            self.life
                .invalidate("its effect is unknown", Duration::ZERO, false);
            self.abandon(false);
        } else if self.life.note_written([vec![id]].into_iter()) {
            let is_beside = self.life.loads_beside();
            let copy = if is_beside {
                &mut self.beside
            } else {
                &mut self.copy
            };
            put(copy, id, written);
            if !is_beside {
                self.copy_at = self.copy_at.map(|_| self.history.len() as u64 - 1);
            }
        }
        self.answered = self.now();
    }

    /// Acknowledges a write. If the replica answers reads, the acknowledgement waits until the change stream has
    /// reached the write.
    fn answer_write(&mut self) {
        let at = self.now();
        if self.life.is_ready() {
            self.waiting = at
        } else {
            self.life.require_applied(at);
            self.answered = at;
        }
    }

    /// Runs one step of a load.
    fn load(&mut self) {
        if self.is_away {
            return;
        }
        let Some(mut loader) = self.loader.take() else {
            return self.begin_load();
        };
        let may_read = self.rng.bool();
        if let Some(id) = loader.unread.pop_if(|_| may_read) {
            let read = self.upstream().get(&id).map(|version| (id, *version));
            loader.ahead.extend(read);
        } else if let Some((id, version)) = loader.ahead.pop() {
            let load = self
                .life
                .load(loader.epoch)
                .expect("the load is the latest");
            load.done += 1;
            if !load.written.contains(&vec![id]) {
                let is_beside = self.life.loads_beside();
                let copy = if is_beside {
                    &mut self.beside
                } else {
                    &mut self.copy
                };
                copy.insert(id, version);
            }
        } else if loader.unread.is_empty() {
            return self.finish_load(loader);
        }
        self.loader = Some(loader);
    }

    fn begin_load(&mut self) {
        let before = self.life.epoch();
        let is_due = self.life.load_due().is_some()
            || self.follower.is_some_and(|follower| !follower.is_open);
        // A replica that has just begun to follow a stream has nothing to load.
        if !is_due && !self.rng.bool() || self.follower.is_some_and(|it| it.is_open) {
            return;
        }
        let Some(epoch) = self
            .life
            .begin_load(before, u64::from(IDS), self.serve_stale)
        else {
            assert_eq!(self.life.epoch(), before, "a refusal changes nothing");
            return;
        };
        if self.life.loads_beside() {
            self.beside.clear()
        } else {
            self.copy.clear();
            self.copy_at = None;
        }
        self.follower = None;
        self.loader = Some(Loader {
            epoch,
            unread: (0..IDS).collect(),
            ahead: Vec::new(),
            opened_at: self.now(),
        });
    }

    fn finish_load(&mut self, loader: Loader) {
        let is_beside = self.life.loads_beside();
        let epoch = self.life.finish_load(loader.epoch, !self.exclusive);
        let epoch = epoch.expect("the load is the latest");
        if is_beside {
            self.copy = std::mem::take(&mut self.beside);
        }
        self.was_renewed = true;
        if self.exclusive {
            self.copy_at = Some(self.now());
            return;
        }
        (self.copy_at, self.copy_from) = (None, self.now());
        self.life.require_applied(self.now());
        assert!(self.life.start_following(epoch));
        self.follower = Some(Follower {
            epoch,
            place: loader.opened_at,
            is_open: true,
        });
    }

    /// Continues the change stream: reopens it if necessary, and applies some changes.
    fn follow(&mut self) {
        let Some(mut follower) = self.follower.filter(|_| !self.is_away) else {
            return;
        };
        if !follower.is_open {
            self.life.require_applied(self.now());
            assert!(self.life.start_following(follower.epoch));
            follower.is_open = true;
        }
        let until = self.rng.u64(follower.place..=self.now());
        for at in follower.place + 1..=until {
            let (before, after) = (at as usize - 1, at as usize);
            for id in 0..IDS {
                let written = self.history[after].get(&id).copied();
                if self.history[before].get(&id).copied() != written {
                    put(&mut self.copy, id, written);
                }
            }
        }
        follower.place = until;
        if until >= self.copy_from {
            self.copy_at = Some(until);
        }
        self.life.advance_applied(follower.epoch, until);
        if self.life.has_applied(self.waiting) {
            self.answered = self.answered.max(self.waiting);
        }
        self.life.complete(follower.epoch);
        self.follower = Some(follower);
    }

    fn lose_stream(&mut self) {
        if let Some(follower) = &mut self.follower {
            follower.epoch = self
                .life
                .lose_stream(follower.epoch)
                .expect("the replica follows the stream");
            follower.is_open = false;
            // Writers that waited for this stream get their replies now. The next stream must reach the upstream's
            // current cluster time before the replica answers.
            self.answered = self.answered.max(self.waiting);
            assert!(!self.life.is_ready() && !self.life.is_following());
            assert!(
                !self.life.complete(follower.epoch),
                "no stream is accepted yet"
            );
        }
    }

    /// Checks that transitions for an earlier epoch change nothing.
    fn old_work(&mut self) {
        let old = self.old[self.rng.usize(0..self.old.len())];
        if old == self.life.epoch() {
            return;
        }
        let before = format!("{:?}", self.life);
        assert!(self.life.load(old).is_none());
        assert!(self.life.finish_load(old, self.rng.bool()).is_none());
        assert!(self.life.resume(old).is_none() && self.life.lose_stream(old).is_none());
        assert!(!self.life.start_following(old) && !self.life.advance_applied(old, u64::MAX));
        assert!(!self.life.complete(old));
        assert_eq!(format!("{:?}", self.life), before);
    }

    fn view(&self, is_cut_off: bool) -> View {
        View {
            is_away: self.is_away,
            is_cut_off,
            serve_stale: self.serve_stale,
            exclusive: self.exclusive,
        }
    }

    fn check(&self) {
        for is_cut_off in [false, true] {
            let Some(epoch) = self.life.answering(self.view(is_cut_off)) else {
                continue;
            };
            assert_eq!(epoch, self.life.epoch());
            let at = self.copy_at.expect("a copy that answers is consistent");
            assert_eq!(self.copy, self.history[at as usize], "as of {at}");
            if self.life.is_ready() {
                assert!(at >= self.answered, "the copy lacks an acknowledged write");
            } else {
                assert!(self.serve_stale && self.is_away && is_cut_off);
            }
        }
        if self.life.is_ready() {
            assert!(
                self.was_renewed,
                "only a load or a stream makes the replica answer again"
            );
            assert_eq!(self.life.is_following(), !self.exclusive);
        }
        let (done, total) = self.life.progress().unwrap_or_default();
        assert!(done <= total, "{done} of {total} documents");
        assert_eq!(
            self.loader.is_some(),
            matches!(self.life.state, State::Loading(_))
        );
    }
}

fn put(copy: &mut Documents, id: u8, written: Option<u64>) {
    match written {
        Some(version) => drop(copy.insert(id, version)),
        None => drop(copy.remove(&id)),
    }
}

#[test]
fn no_copy_answers_that_lacks_what_clients_know() {
    let mut rng = Rng::with_seed(forebay_testkit::seed("lives of replicas"));
    let (mut ready, mut stale, mut streams) = (0, 0, 0);
    for _ in 0..LIVES {
        let mut model = Model::new(rng.fork());
        model.life.declare();
        model.life.invalidate("declared", Duration::ZERO, false);
        for _ in 0..EVENTS {
            let before = model.life.epoch();
            model.event();
            assert!(model.life.epoch() >= before);
            model.check();
            let is_ready = model.life.is_ready();
            let answers_cut_off = model.life.answering(model.view(true)).is_some();
            ready += usize::from(is_ready);
            stale += usize::from(answers_cut_off && !is_ready);
            streams += usize::from(model.life.is_following());
        }
    }
    // The test proves something only if the replicas spent enough steps in each of these states.
    let least = LIVES * EVENTS / 200;
    assert!(
        ready > least && stale > least && streams > least,
        "ready after {ready} steps, a stale copy after {stale}, a stream after {streams}"
    );
}

#[test]
fn what_an_earlier_run_left_is_resumed_once_or_loaded() {
    let mut life = Life::default();
    assert!(life.expect_resume("at the start").is_none(), "no caches");
    life.declare();
    let left = life
        .expect_resume("at the start")
        .expect("the caches are newly declared");
    assert!(life.may_resume() && life.resume(left - 1).is_none());
    let epoch = life.resume(left).expect("an earlier process left a copy");
    assert!(!life.is_ready() && life.resume(epoch).is_none());
    life.require_applied(7);
    assert!(life.start_following(epoch) && !life.complete(epoch));
    assert!(life.advance_applied(epoch, 7) && life.complete(epoch));
    life.invalidate("", Duration::ZERO, true);
    assert!(!life.may_resume() && life.resume(life.epoch()).is_none());
    let load = life
        .begin_load(life.epoch(), 1, false)
        .expect("a load is due");
    assert!(life.resume(load).is_none() && life.begin_load(load, 1, false).is_none());
}

#[test]
fn times_required_during_a_load_are_required_after_it() {
    let mut life = Life::default();
    life.declare();
    life.invalidate("declared", Duration::ZERO, false);
    let load = life
        .begin_load(life.epoch(), 1, false)
        .expect("a load is due");
    life.require_applied(7);
    let epoch = life
        .finish_load(load, true)
        .expect("the load is the latest");
    assert!(life.start_following(epoch) && life.advance_applied(epoch, 6));
    assert!(!life.complete(epoch) && life.advance_applied(epoch, 7));
    assert!(life.complete(epoch) && life.is_ready());
    assert!(life.begin_load(epoch, 1, true).is_none(), "nothing is due");
    assert!(life.is_ready() && life.epoch() == epoch);
}
