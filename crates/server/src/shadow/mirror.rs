//! One collection of the store, and how far its shadow is.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bson::{RawBson, RawBsonRef, RawDocumentBuf};
use forebay_documents::{Namespace, id_key, namespace};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard, RwLock, watch};

use super::kept::{Kept, cached_fields};
use super::pace::Measurement;

/// A collection that is written through us, with a shadow or without.
#[derive(Debug)]
pub struct Mirror {
    /// Its name.
    pub namespace: Namespace,
    /// The collection that a load fills if the older copy is kept until the load is done.
    pub(super) beside: Namespace,
    /// Where there is a shadow, a writer holds this alone from the write to the store until the shadow has followed, and
    /// the load while it copies a batch shares it; where there is none, writers share it, so that a declaration of a cache
    /// can wait until they are done.
    pub gate: Arc<RwLock<()>>,
    /// How long the store takes to give documents of it.
    pub measurement: Measurement,
    inner: Mutex<Inner>,
    /// Told when the shadow has become cold, or is not declared any more.
    pub(super) cooled: Notify,
    /// The cluster time up to which the shadow has followed a change stream; told also when the shadow stops to answer.
    seen: watch::Sender<u64>,
    /// The cluster time of the last write that a client was told of: before it the shadow must not answer.
    owed: AtomicU64,
    /// The number of the shadow that follows a change stream, answering or not yet.
    followed: AtomicU64,
    /// When the store last let an unauthenticated client read it; `None` if it refused the last one.
    open: Mutex<Option<Instant>>,
    /// Held by the client that compares an answer with the store's: one at a time.
    comparing: Arc<AsyncMutex<()>>,
    /// The cluster time at which the shadow stands still to be compared.
    stop_at: watch::Sender<Option<u64>>,
    /// The keys of the `_id`s of documents that have changed since.
    changed: Mutex<HashSet<Vec<u8>>>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Counts up with every declaration and every load; never back, so that an old load takes nothing for its own.
    epoch: u64,
    has_loader: bool,
    /// Whether the shadow may be what an earlier run has left.
    is_resumable: bool,
    /// What the store calls the collection, whatever its name.
    identity: Option<RawBson>,
    declared: Option<Declared>,
}

#[derive(Debug)]
struct Declared {
    definitions: Vec<RawDocumentBuf>,
    kept: Arc<Kept>,
    state: State,
    /// Has the shadow all documents, as they were when the store was last there?
    has_copy: bool,
}

/// How far a shadow is.
#[derive(Debug)]
enum State {
    /// It answers nothing and will not, and why.
    Off { reason: String },
    /// It answers nothing until it is loaded, and why.
    Cold {
        reason: String,
        /// How long to wait before.
        pause: Duration,
    },
    /// It is copied from the store.
    Loading {
        /// Documents that were written since, by the keys of their `_id`s: what the load brings of them is old.
        written: HashSet<Vec<u8>>,
        /// Documents copied.
        done: u64,
        /// Documents that the store counted at the beginning.
        total: u64,
        /// Does it go beside the copy there is?
        is_beside: bool,
    },
    /// It follows every write.
    Ready,
    /// It holds what the store had some time ago, and will follow from there.
    Behind { reason: String },
}

/// A shadow that answers: what it holds, and which load filled it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    /// What it holds.
    pub kept: Arc<Kept>,
    epoch: u64,
}

/// A shadow that stands still at some cluster time, to be compared with the store.
#[derive(Debug)]
pub struct StandingStill {
    mirror: Arc<Mirror>,
    _alone: OwnedMutexGuard<()>,
}

impl StandingStill {
    /// Has it go on, to a cluster time that it has not passed; it is there when this ends, unless it answers no more.
    pub async fn move_to(&self, at: u64) {
        self.mirror.stop_at.send_replace(Some(at));
        self.mirror.follows(at).await;
    }

    /// The keys of the `_id`s of documents that have changed since it stood still first.
    pub fn changed(&self) -> HashSet<Vec<u8>> {
        self.mirror.changed.lock().clone()
    }
}

impl Drop for StandingStill {
    fn drop(&mut self) {
        self.mirror.stop_at.send_replace(None);
        self.mirror.changed.lock().clear();
    }
}

impl Mirror {
    /// A collection without a shadow.
    pub fn new(namespace: Namespace) -> Mirror {
        Mirror {
            beside: namespace::temporary(&namespace.db),
            namespace,
            gate: Arc::default(),
            measurement: Measurement::default(),
            inner: Mutex::default(),
            cooled: Notify::new(),
            seen: watch::Sender::new(0),
            owed: AtomicU64::new(0),
            followed: AtomicU64::new(0),
            open: Mutex::default(),
            comparing: Arc::default(),
            stop_at: watch::Sender::new(None),
            changed: Mutex::default(),
        }
    }

    /// Has it caches, ready or not?
    pub fn is_declared(&self) -> bool {
        self.inner.lock().declared.is_some()
    }

    /// The definitions of its cache indexes.
    pub fn definitions(&self) -> Vec<RawDocumentBuf> {
        self.with(|declared, _| declared.definitions.clone())
            .unwrap_or_default()
    }

    /// What its shadow holds of each document.
    pub fn kept(&self) -> Option<Arc<Kept>> {
        self.with(|declared, _| declared.kept.clone())
    }

    /// Its shadow, if that answers.
    pub fn ready(&self) -> Option<Ready> {
        self.filled(|declared| matches!(declared.state, State::Ready))
    }

    /// Its shadow, if that answers or did so until the store was away, and no load has emptied it since.
    pub fn stale(&self) -> Option<Ready> {
        self.filled(|declared| declared.has_copy)
    }

    fn filled(&self, is_so: impl Fn(&Declared) -> bool) -> Option<Ready> {
        self.with(|declared, &mut epoch| {
            let kept = declared.kept.clone();
            is_so(declared).then_some(Ready { kept, epoch })
        })?
    }

    /// The collection that follows writes: that of a load if one goes on beside the copy there is.
    pub(super) fn followed_in(&self) -> &Namespace {
        let is_beside = self.with(
            |declared, _| matches!(declared.state, State::Loading { is_beside, .. } if is_beside),
        );
        match is_beside {
            Some(true) => &self.beside,
            _ => &self.namespace,
        }
    }

    /// When the store last let an unauthenticated client read the collection; `None` if it refused the last one, or may have
    /// been started again since.
    pub fn open_at(&self) -> Option<Instant> {
        *self.open.lock()
    }

    /// Notes when the store let an unauthenticated client read the collection; `None` if it refused, or if that is unknown.
    pub fn set_open(&self, at: Option<Instant>) {
        *self.open.lock() = at;
    }

    /// Why its shadow does not answer; none if it does, or there is none.
    pub fn reason(&self) -> Option<String> {
        self.with(|declared, _| match &declared.state {
            State::Ready => None,
            State::Off { reason } | State::Cold { reason, .. } | State::Behind { reason } => {
                Some(reason.clone())
            }
            State::Loading { done, total, .. } => Some(format!(
                "the cache is being loaded ({done} of {total} documents)"
            )),
        })?
    }

    /// Documents copied by a load that goes on, and all that it will copy.
    pub fn progress(&self) -> Option<(u64, u64)> {
        self.with(|declared, _| match &declared.state {
            State::Loading { done, total, .. } => Some((*done, *total)),
            _ => None,
        })?
    }

    /// Declares other caches, none at all for no definition. The shadow answers nothing then.
    pub fn declare(&self, definitions: Vec<RawDocumentBuf>) {
        let fields = cached_fields(definitions.iter().map(|it| &**it));
        let mut inner = self.inner.lock();
        inner.epoch += 1;
        inner.declared = (!definitions.is_empty()).then(|| Declared {
            definitions,
            kept: Arc::new(Kept::new(fields)),
            state: State::Off {
                reason: "the cache has just been declared".to_owned(),
            },
            has_copy: false,
        });
        drop(inner);
        self.cooled.notify_one();
        self.seen.send_modify(|_| {});
    }

    /// The shadow answers nothing from now on, and is not loaded.
    pub fn off(&self, reason: &str) {
        let reason = reason.to_owned();
        self.with(|declared, _| declared.has_copy = false);
        self.turn_into(State::Off { reason });
    }

    /// The shadow answers nothing until it has been loaded, which begins after a pause; not even while the store is away.
    pub fn cool(&self, reason: &str, pause: Duration) {
        self.with(|declared, _| declared.has_copy = false);
        self.cool_kept(reason, pause);
    }

    /// The same, but while the store is away it goes on to answer with what the store had before.
    pub fn cool_kept(&self, reason: &str, pause: Duration) {
        let reason = reason.to_owned();
        self.turn_into(State::Cold { reason, pause });
        self.cooled.notify_one();
    }

    /// How long to wait before a load, if one is due.
    pub fn load_due(&self) -> Option<Duration> {
        self.with(|declared, _| match &declared.state {
            State::Cold { pause, .. } => Some(*pause),
            _ => None,
        })?
    }

    /// The shadow may be what an earlier run has left.
    pub fn set_resumable(&self) {
        self.inner.lock().is_resumable = true;
    }

    /// Whether the shadow may be what an earlier run has left; from now on it is not.
    pub fn take_resumable(&self) -> bool {
        std::mem::take(&mut self.inner.lock().is_resumable)
    }

    /// What the store calls the collection, whatever its name: another one after it was dropped and made again.
    pub fn identity(&self) -> Option<RawBson> {
        self.inner.lock().identity.clone()
    }

    /// The store has said what it calls the collection.
    pub fn set_identity(&self, identity: Option<RawBson>) {
        self.inner.lock().identity = identity;
    }

    /// Returns true if this shadow has no loader yet: the caller is its loader from now on.
    pub fn take_loader(&self) -> bool {
        !std::mem::replace(&mut self.inner.lock().has_loader, true)
    }

    /// True if nothing is declared any more; the caller has stopped to load it then.
    pub fn leave_loader(&self) -> bool {
        let mut inner = self.inner.lock();
        inner.has_loader = inner.declared.is_some();
        !inner.has_loader
    }

    /// A load begins, beside the copy there is if that is to be kept: what it has to copy, and its number.
    pub fn begin(&self, total: u64, keeps_copy: bool) -> Option<(Arc<Kept>, u64)> {
        self.with(|declared, epoch| {
            *epoch += 1;
            declared.has_copy &= keeps_copy;
            declared.state = State::Loading {
                written: HashSet::new(),
                done: 0,
                total,
                is_beside: declared.has_copy,
            };
            (declared.kept.clone(), *epoch)
        })
    }

    /// Notes that the load `of` has replaced the older copy. Returns the shadow's new number, or `None` if the load is no longer
    /// the latest.
    pub(super) fn take_over(&self, of: u64) -> Option<u64> {
        self.with(|declared, epoch| match &mut declared.state {
            State::Loading { is_beside, .. } if *epoch == of => {
                *is_beside = false;
                *epoch += 1;
                Some(*epoch)
            }
            _ => None,
        })?
    }

    /// Of what the load `of` brings, the documents that were not written since it began, counted as copied; none if
    /// the load is not the last one any more.
    pub fn admit(&self, of: u64, batch: Vec<RawDocumentBuf>) -> Option<Vec<RawDocumentBuf>> {
        self.with(|declared, epoch| match &mut declared.state {
            State::Loading { written, done, .. } if *epoch == of => {
                *done += batch.len() as u64;
                let fresh = |document: &RawDocumentBuf| !written.contains(&key_of(document));
                Some(batch.into_iter().filter(fresh).collect())
            }
            _ => None,
        })?
    }

    /// The load `of` has copied everything; whether the shadow begins to answer by that: it does not if it is not the last
    /// one any more, or has not followed all that clients know of.
    pub fn complete(&self, of: u64) -> bool {
        let seen = *self.seen.borrow();
        let completed = self.with(|declared, epoch| {
            let fills = matches!(declared.state, State::Loading { .. } | State::Behind { .. });
            // Who owes a time looks whether the shadow answers after that, and so comes before this or sees it.
            let owes_nothing = seen >= self.owed.load(Ordering::Acquire);
            let begins = *epoch == of && fills && owes_nothing;
            if begins {
                declared.state = State::Ready;
                declared.has_copy = true;
            }
            begins
        });
        completed.unwrap_or(false)
    }

    /// The shadow of this number holds what the store had some time ago; its new number, by which it is brought up to date.
    /// None if it is not the last one any more.
    pub fn fall_behind(&self, of: u64, reason: &str) -> Option<(Arc<Kept>, u64)> {
        let reason = reason.to_owned();
        let behind = self.with(|declared, epoch| {
            (*epoch == of).then(|| {
                *epoch += 1;
                declared.state = State::Behind { reason };
                declared.has_copy = true;
                (declared.kept.clone(), *epoch)
            })
        });
        self.seen.send_modify(|_| {});
        behind?
    }

    /// Counts the declarations and loads of the shadow.
    pub fn epoch(&self) -> u64 {
        self.inner.lock().epoch
    }

    /// Whether the load, or what was behind, of this number still counts.
    pub fn is_current(&self, of: u64) -> bool {
        self.with(|_, epoch| *epoch == of).unwrap_or(false)
    }

    /// The shadow has followed all changes up to a cluster time.
    pub fn saw(&self, at: u64) {
        self.seen.send_if_modified(|seen| {
            let later = at > *seen;
            *seen = at.max(*seen);
            later
        });
    }

    /// Has the shadow stand still where it is, until what is given back is dropped. One at a time can.
    pub async fn stand_still(self: &Arc<Self>) -> StandingStill {
        let alone = self.comparing.clone().lock_owned().await;
        self.stop_at.send_replace(Some(*self.seen.borrow()));
        StandingStill {
            mirror: self.clone(),
            _alone: alone,
        }
    }

    /// Whether the shadow may follow a change of this cluster time now.
    pub fn may_pass(&self, at: u64) -> bool {
        self.stop_at.borrow().is_none_or(|stop| at <= stop)
    }

    /// The shadow follows changes of documents with these keys.
    pub fn changes<'a>(&self, keys: impl Iterator<Item = &'a Vec<u8>>) {
        if self.stop_at.borrow().is_some() {
            self.changed.lock().extend(keys.cloned());
        }
    }

    /// Waits until it may.
    pub async fn passes(&self, at: u64) {
        let mut stop_at = self.stop_at.subscribe();
        // The sender is ours.
        let _ = stop_at
            .wait_for(|stop| stop.is_none_or(|stop| at <= stop))
            .await;
    }

    /// The shadow must not begin to answer before it has followed all changes up to a cluster time.
    pub fn owes(&self, at: u64) {
        self.owed.fetch_max(at, Ordering::AcqRel);
    }

    /// The shadow of this number follows a change stream from now on.
    pub fn set_followed(&self, of: u64) {
        self.followed.store(of, Ordering::Release);
    }

    /// Whether the shadow follows a change stream, answering or not yet.
    pub fn is_followed(&self) -> bool {
        self.is_current(self.followed.load(Ordering::Acquire))
    }

    /// Waits until the shadow has followed all changes up to a cluster time, or follows no more.
    pub async fn follows(&self, at: u64) {
        let mut seen = self.seen.subscribe();
        // The sender is ours.
        let _ = seen
            .wait_for(|seen| *seen >= at || !self.is_followed())
            .await;
    }

    /// Documents with these `_id`s were written: if the shadow has to follow, what it holds of documents.
    pub fn written<'a>(&self, ids: impl Iterator<Item = RawBsonRef<'a>>) -> Option<Arc<Kept>> {
        self.with(|declared, _| match &mut declared.state {
            State::Off { .. } | State::Cold { .. } | State::Behind { .. } => None,
            State::Ready => Some(declared.kept.clone()),
            State::Loading { written, .. } => {
                written.extend(ids.map(id_key));
                Some(declared.kept.clone())
            }
        })?
    }

    /// A load that goes on is the last one no more.
    fn turn_into(&self, state: State) {
        self.with(|declared, epoch| {
            *epoch += 1;
            declared.state = state;
        });
        self.seen.send_modify(|_| {});
    }

    fn with<R>(&self, change: impl FnOnce(&mut Declared, &mut u64) -> R) -> Option<R> {
        let mut inner = self.inner.lock();
        let Inner {
            epoch, declared, ..
        } = &mut *inner;
        declared.as_mut().map(|declared| change(declared, epoch))
    }
}

fn key_of(document: &RawDocumentBuf) -> Vec<u8> {
    let id = document.get("_id").ok().flatten();
    id_key(id.unwrap_or(RawBsonRef::Null))
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    fn mirror() -> Mirror {
        Mirror::new(namespace::checked("d", "c").expect("a name"))
    }

    fn declare(mirror: &Mirror) {
        mirror.declare(vec![rawdoc! { "key": { "name": "cache" } }]);
    }

    #[test]
    fn a_load_does_not_bring_back_what_was_written_since() {
        let mirror = mirror();
        assert!(mirror.begin(2, false).is_none(), "nothing is declared");
        declare(&mirror);
        let (_, first) = mirror.begin(2, false).expect("declared");
        mirror.written([RawBsonRef::Int32(1)].into_iter());
        let batch = vec![rawdoc! { "_id": 1i64 }, rawdoc! { "_id": 2 }];
        let admitted = mirror.admit(first, batch).expect("it goes on");
        assert_eq!(admitted, [rawdoc! { "_id": 2 }]);
        assert_eq!(mirror.progress(), Some((2, 2)));
        let (_, second) = mirror.begin(2, false).expect("declared");
        assert!(mirror.admit(first, Vec::new()).is_none() && !mirror.complete(first));
        assert!(mirror.complete(second) && mirror.ready().is_some());
        mirror.off("told so");
        assert_eq!(mirror.reason().as_deref(), Some("told so"));
    }

    #[test]
    fn a_copy_is_kept_until_another_takes_its_place() {
        let mirror = mirror();
        declare(&mirror);
        let (_, first) = mirror.begin(2, true).expect("declared");
        assert_eq!(
            mirror.followed_in(),
            &mirror.namespace,
            "there is none to keep"
        );
        assert!(mirror.stale().is_none() && mirror.complete(first));
        mirror.cool_kept("the store was away", Duration::ZERO);
        let (_, second) = mirror.begin(2, true).expect("declared");
        assert_eq!(mirror.followed_in(), &mirror.beside);
        assert!(mirror.ready().is_none() && mirror.stale().is_some());
        assert!(mirror.take_over(first).is_none());
        let third = mirror.take_over(second).expect("it is the last");
        assert_eq!(mirror.followed_in(), &mirror.namespace);
        assert!(!mirror.complete(second) && mirror.complete(third));
        mirror.cool("a write is not followed", Duration::ZERO);
        assert!(mirror.stale().is_none());
    }

    #[test]
    fn an_old_load_completes_nothing_that_was_declared_since() {
        let mirror = mirror();
        declare(&mirror);
        let (_, old) = mirror.begin(0, false).expect("declared");
        mirror.declare(Vec::new());
        declare(&mirror);
        let (_, new) = mirror.begin(0, false).expect("declared");
        assert!(old != new && !mirror.complete(old) && mirror.complete(new));
        mirror.cool("written", Duration::ZERO);
        assert!(mirror.ready().is_none() && mirror.load_due().is_some());
        assert!(!mirror.complete(new));
    }

    #[test]
    fn a_shadow_has_one_loader() {
        let mirror = mirror();
        declare(&mirror);
        assert!(mirror.take_loader() && !mirror.take_loader());
        assert!(!mirror.leave_loader(), "it is declared");
        mirror.declare(Vec::new());
        assert!(mirror.leave_loader() && mirror.take_loader());
    }
}
