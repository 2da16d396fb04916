//! One collection of the upstream: its caches, the life of its replica, and who waits for what of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{RawBson, RawBsonRef, RawDocumentBuf};
use forebay_documents::{Namespace, id_key, namespace};
use parking_lot::Mutex;
use tokio::sync::{Notify, RwLock, watch};

use super::fields::{ReplicaFields, cached_fields};
use super::life::{Life, View};
use super::pace::Measurement;
use super::pause::PausePoint;

/// A collection that is written through the proxy, with caches or without.
#[derive(Debug)]
pub struct Replica {
    /// Its name.
    pub namespace: Namespace,
    /// The collection that a load fills if the older copy is kept until the load is done.
    pub(super) beside: Namespace,
    /// The apply lock. Where there are caches, a writer holds it exclusively from the write to the upstream until the
    /// write is applied to the replica, and a load shares it while it copies a batch. Where there are none, writers
    /// share it, so that a declaration of a cache can wait until they are done.
    pub apply_lock: Arc<RwLock<()>>,
    /// How long the upstream takes to give documents of it.
    pub measurement: Measurement,
    inner: Mutex<Inner>,
    /// Wakes the loader: there is something to load, or caches are no longer declared.
    pub(super) load_due: Notify,
    /// Wakes those who wait until changes are applied: some were, or the replica's state changed.
    progressed: watch::Sender<()>,
    /// When the upstream last let an unauthenticated client read it; `None` if it refused the last one.
    public_at: Mutex<Option<Instant>>,
    pub(super) pause_point: PausePoint,
    /// Delay behind the upstream; `None` if it is unknown.
    lag: Mutex<Option<Duration>>,
}

#[derive(Debug, Default)]
struct Inner {
    life: Life,
    has_loader: bool,
    /// What the upstream calls the collection, whatever its name.
    identity: Option<RawBson>,
    definitions: Vec<RawDocumentBuf>,
    fields: Arc<ReplicaFields>,
}

/// A copy that answers: what it holds, and which epoch of the replica it is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answering {
    /// What it holds.
    pub fields: Arc<ReplicaFields>,
    epoch: u64,
}

impl Replica {
    /// A collection without caches.
    pub fn new(namespace: Namespace) -> Replica {
        Replica {
            beside: namespace::temporary(&namespace.db),
            namespace,
            apply_lock: Arc::default(),
            measurement: Measurement::default(),
            inner: Mutex::default(),
            load_due: Notify::new(),
            progressed: watch::Sender::new(()),
            public_at: Mutex::default(),
            pause_point: PausePoint::default(),
            lag: Mutex::default(),
        }
    }

    /// Returns whether the replica has caches, ready or not.
    pub fn is_declared(&self) -> bool {
        self.inner.lock().life.is_declared()
    }

    /// Returns the definitions of its cache indexes.
    pub fn definitions(&self) -> Vec<RawDocumentBuf> {
        self.inner.lock().definitions.clone()
    }

    /// Returns what the replica holds of each document; `None` without caches.
    pub fn fields(&self) -> Option<Arc<ReplicaFields>> {
        let inner = self.inner.lock();
        inner.life.is_declared().then(|| inner.fields.clone())
    }

    /// Returns whether the replica answers while the upstream is there.
    pub fn is_ready(&self) -> bool {
        self.inner.lock().life.is_ready()
    }

    /// Returns the copy that answers a client, if one does.
    pub fn answering(&self, view: View) -> Option<Answering> {
        let inner = self.inner.lock();
        let epoch = inner.life.answering(view)?;
        let fields = inner.fields.clone();
        Some(Answering { fields, epoch })
    }

    /// Returns the collection that writes are applied to: that of a load if one is in progress beside a whole copy.
    pub(super) fn applied_in(&self) -> &Namespace {
        if self.inner.lock().life.loads_beside() {
            &self.beside
        } else {
            &self.namespace
        }
    }

    /// Returns when the upstream last let an unauthenticated client read the collection; `None` if it refused the last
    /// one, or may have been started again since.
    pub fn public_at(&self) -> Option<Instant> {
        *self.public_at.lock()
    }

    /// Notes when the upstream let an unauthenticated client read the collection; `None` if it refused, or if that is
    /// unknown.
    pub fn set_public(&self, at: Option<Instant>) {
        *self.public_at.lock() = at;
    }

    /// Returns the delay behind the upstream at the last change that was applied; `None` if it is unknown.
    pub fn lag(&self) -> Option<Duration> {
        *self.lag.lock()
    }

    /// Records the delay behind the upstream.
    pub(super) fn set_lag(&self, lag: Duration) {
        *self.lag.lock() = Some(lag);
    }

    /// Returns why the replica does not answer; `None` if it does, or if there are no caches.
    pub fn reason(&self) -> Option<String> {
        self.inner.lock().life.reason()
    }

    /// Returns the documents that a load in progress has copied, and all that it will copy.
    pub fn progress(&self) -> Option<(u64, u64)> {
        self.inner.lock().life.progress()
    }

    /// Declares other caches; none at all if `definitions` is empty. The replica answers nothing then.
    pub fn declare(&self, definitions: Vec<RawDocumentBuf>) {
        let fields = cached_fields(definitions.iter().map(|it| &**it));
        *self.lag.lock() = None;
        let mut inner = self.inner.lock();
        if definitions.is_empty() {
            inner.life.undeclare()
        } else {
            inner.life.declare()
        }
        inner.fields = Arc::new(ReplicaFields::new(fields));
        inner.definitions = definitions;
        drop(inner);
        self.wake();
    }

    /// Has the replica resumed from what an earlier run left of it, or loaded.
    pub(super) fn expect_resume(&self, reason: &str) {
        self.inner.lock().life.expect_resume(reason);
        self.wake();
    }

    /// Stops answers and loads.
    pub(super) fn turn_off(&self, reason: &str) {
        self.inner.lock().life.turn_off(reason);
        self.wake();
    }

    /// Stops answers until the replica has been loaded, which begins after a `pause`, also while the upstream is away.
    pub fn invalidate(&self, reason: &str, pause: Duration) {
        self.inner.lock().life.invalidate(reason, pause, false);
        self.wake();
    }

    /// As [`invalidate`](Replica::invalidate), but a whole copy may go on to answer while the upstream is away.
    pub(super) fn invalidate_keeping_copy(&self, reason: &str, pause: Duration) {
        self.inner.lock().life.invalidate(reason, pause, true);
        self.wake();
    }

    /// Returns how long to wait before a load, if one is due.
    pub fn load_due(&self) -> Option<Duration> {
        self.inner.lock().life.load_due()
    }

    /// Returns whether the replica can be resumed from what an earlier run left of it.
    pub(super) fn may_resume(&self) -> bool {
        self.inner.lock().life.may_resume()
    }

    /// Returns what the upstream calls the collection, whatever its name: a different value after it was dropped and
    /// made again.
    pub fn identity(&self) -> Option<RawBson> {
        self.inner.lock().identity.clone()
    }

    /// Notes what the upstream calls the collection.
    pub fn set_identity(&self, identity: Option<RawBson>) {
        self.inner.lock().identity = identity;
    }

    /// Makes the caller the replica's loader, and returns true, unless it has one.
    pub fn take_loader(&self) -> bool {
        !std::mem::replace(&mut self.inner.lock().has_loader, true)
    }

    /// Returns true if there are no caches any more: the caller is not the replica's loader from now on.
    pub fn leave_loader(&self) -> bool {
        let mut inner = self.inner.lock();
        inner.has_loader = inner.life.is_declared();
        !inner.has_loader
    }

    /// Begins a load, beside a whole copy if that is to be kept. Returns what it has to copy, and its epoch.
    pub fn begin_load(&self, total: u64, keeps_copy: bool) -> Option<(Arc<ReplicaFields>, u64)> {
        let mut inner = self.inner.lock();
        let epoch = inner.life.begin_load(total, keeps_copy)?;
        Some((inner.fields.clone(), epoch))
    }

    /// Ends load `of`; see [`Life::finish_load`]. Returns the new epoch.
    pub(super) fn finish_load(&self, of: u64, follows_stream: bool) -> Option<u64> {
        self.inner.lock().life.finish_load(of, follows_stream)
    }

    /// Returns the documents of a batch that were not written since load `of` began, and counts the batch as copied;
    /// `None` if that load is no longer the latest.
    pub fn admit(&self, of: u64, batch: Vec<RawDocumentBuf>) -> Option<Vec<RawDocumentBuf>> {
        let mut inner = self.inner.lock();
        let load = inner.life.load(of)?;
        load.done += batch.len() as u64;
        let is_fresh = |document: &RawDocumentBuf| !load.written.contains(&key_of(document));
        Some(batch.into_iter().filter(is_fresh).collect())
    }

    /// Takes the copy that an earlier run left, in epoch `of`. Returns what it holds, and the new epoch, in which its
    /// change stream is to be opened; `None` if the replica has moved on.
    pub(super) fn resume(&self, of: u64) -> Option<(Arc<ReplicaFields>, u64)> {
        let mut inner = self.inner.lock();
        let epoch = inner.life.resume(of)?;
        Some((inner.fields.clone(), epoch))
    }

    /// Stops answers as the change stream of epoch `of` has ended. Returns what [`resume`](Replica::resume) does.
    pub(super) fn lose_stream(&self, of: u64) -> Option<(Arc<ReplicaFields>, u64)> {
        let mut inner = self.inner.lock();
        let epoch = inner.life.lose_stream(of)?;
        let fields = inner.fields.clone();
        drop(inner);
        self.progressed.send_replace(());
        Some((fields, epoch))
    }

    /// Notes that the change stream of epoch `of` is open. Returns false if the replica has moved on.
    pub(super) fn start_following(&self, of: u64) -> bool {
        self.inner.lock().life.start_following(of)
    }

    /// Begins to answer if changes are applied up to the required time. Returns whether it has just begun.
    pub(super) fn complete(&self, of: u64) -> bool {
        self.inner.lock().life.complete(of)
    }

    /// Returns the number of the epoch, which changes with each declaration, load and loss of a change stream.
    pub fn epoch(&self) -> u64 {
        self.inner.lock().life.epoch()
    }

    /// Returns whether work for this epoch still counts.
    pub(super) fn is_current(&self, of: u64) -> bool {
        let inner = self.inner.lock();
        inner.life.is_declared() && inner.life.epoch() == of
    }

    /// Notes that all changes up to a cluster time are applied.
    pub(super) fn advance_applied(&self, of: u64, at: u64) {
        if self.inner.lock().life.advance_applied(of, at) {
            self.progressed.send_replace(());
        }
    }

    /// Returns the cluster time up to which changes are applied.
    pub(super) fn applied(&self) -> u64 {
        self.inner.lock().life.applied()
    }

    /// Puts answers off until all changes up to a cluster time are applied.
    pub fn require_applied(&self, at: u64) {
        self.inner.lock().life.require_applied(at);
    }

    /// Returns whether the replica follows a change stream, answering or not yet.
    pub fn is_following(&self) -> bool {
        self.inner.lock().life.is_following()
    }

    /// Waits until all changes up to a cluster time are applied, or the change stream is lost.
    pub async fn wait_applied(&self, at: u64) {
        let mut progressed = self.progressed.subscribe();
        loop {
            {
                let inner = self.inner.lock();
                if inner.life.has_applied(at) || !inner.life.is_following() {
                    return;
                }
            }
            // The sender is ours.
            let _ = progressed.changed().await;
        }
    }

    /// Notes that documents with these `_id`s were written. Returns what the replica holds of documents if the write
    /// has to be applied to it.
    pub fn note_written<'a>(
        &self,
        ids: impl Iterator<Item = RawBsonRef<'a>>,
    ) -> Option<Arc<ReplicaFields>> {
        let mut inner = self.inner.lock();
        let applies = inner.life.note_written(ids.map(id_key));
        applies.then(|| inner.fields.clone())
    }

    /// Wakes the loader and those who wait for changes.
    fn wake(&self) {
        self.load_due.notify_one();
        self.progressed.send_replace(());
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

    /// A client whose connection to the upstream works.
    const DIRECT: View = View {
        is_away: false,
        is_cut_off: false,
        serve_stale: true,
        exclusive: true,
    };
    /// A client while the upstream is away.
    const CUT_OFF: View = View {
        is_away: true,
        is_cut_off: true,
        ..DIRECT
    };

    fn declared() -> Replica {
        let replica = Replica::new(namespace::checked("d", "c").expect("a name"));
        declare(&replica);
        replica
    }

    fn declare(replica: &Replica) {
        replica.declare(vec![rawdoc! { "key": { "name": "cache" } }]);
        replica.invalidate("declared", Duration::ZERO);
    }

    #[test]
    fn the_lag_is_unknown_after_a_declaration() {
        let replica = declared();
        assert_eq!(replica.lag(), None);
        replica.set_lag(Duration::from_millis(30));
        assert_eq!(replica.lag(), Some(Duration::from_millis(30)));
        declare(&replica);
        assert_eq!(replica.lag(), None);
    }

    #[test]
    fn a_load_does_not_bring_back_what_was_written_since() {
        let replica = Replica::new(namespace::checked("d", "c").expect("a name"));
        assert!(replica.begin_load(2, false).is_none(), "no caches");
        declare(&replica);
        let (_, first) = replica.begin_load(2, false).expect("it is due");
        replica.note_written([RawBsonRef::Int32(1)].into_iter());
        let batch = vec![rawdoc! { "_id": 1i64 }, rawdoc! { "_id": 2 }];
        let admitted = replica.admit(first, batch).expect("it is the latest");
        assert_eq!(admitted, [rawdoc! { "_id": 2 }]);
        assert_eq!(replica.progress(), Some((2, 2)));
        replica.invalidate("a write is not followed", Duration::ZERO);
        let (_, second) = replica.begin_load(2, false).expect("it is due");
        assert!(replica.admit(first, Vec::new()).is_none());
        assert!(replica.finish_load(first, false).is_none());
        assert!(replica.finish_load(second, false).is_some() && replica.is_ready());
        replica.turn_off("no more");
        assert_eq!(replica.reason().as_deref(), Some("no more"));
    }

    #[test]
    fn a_whole_copy_is_kept_until_another_takes_its_place() {
        let replica = declared();
        let (_, first) = replica.begin_load(2, true).expect("it is due");
        assert_eq!(
            replica.applied_in(),
            &replica.namespace,
            "there is no copy to keep"
        );
        assert!(replica.answering(CUT_OFF).is_none());
        assert!(replica.finish_load(first, false).is_some());
        replica.invalidate_keeping_copy("the upstream was away", Duration::ZERO);
        let (_, second) = replica.begin_load(2, true).expect("it is due");
        assert_eq!(replica.applied_in(), &replica.beside);
        assert!(replica.answering(DIRECT).is_none() && replica.answering(CUT_OFF).is_some());
        assert!(replica.finish_load(first, false).is_none());
        assert!(replica.finish_load(second, false).is_some());
        assert_eq!(replica.applied_in(), &replica.namespace);
        assert!(replica.answering(DIRECT).is_some());
        replica.invalidate("a write is not followed", Duration::ZERO);
        assert!(replica.answering(CUT_OFF).is_none());
    }

    #[test]
    fn an_old_load_completes_nothing_that_was_declared_since() {
        let replica = declared();
        let (_, old) = replica.begin_load(0, false).expect("it is due");
        replica.declare(Vec::new());
        declare(&replica);
        let (_, new) = replica.begin_load(0, false).expect("it is due");
        assert!(old != new && replica.finish_load(old, false).is_none());
        assert!(replica.finish_load(new, false).is_some());
        replica.invalidate("written", Duration::ZERO);
        assert!(!replica.is_ready() && replica.load_due().is_some());
        assert!(replica.finish_load(new, false).is_none());
    }

    #[test]
    fn a_replica_has_one_loader() {
        let replica = declared();
        assert!(replica.take_loader() && !replica.take_loader());
        assert!(!replica.leave_loader(), "it is declared");
        replica.declare(Vec::new());
        assert!(replica.leave_loader() && replica.take_loader());
    }
}
