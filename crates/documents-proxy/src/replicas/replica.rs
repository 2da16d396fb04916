//! One collection of the upstream: its caches, its replica's state, and the tasks that wait for the replica.

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

/// A collection that clients write to through the proxy, with or without caches.
#[derive(Debug)]
pub struct Replica {
    /// Name of the collection.
    pub namespace: Namespace,
    /// Collection that a load fills while the older copy is kept.
    pub(super) beside: Namespace,
    /// The apply lock. A load shares it while it copies a batch. Writers take it only if all writes come through the
    /// proxy. If the collection has caches, a writer holds the lock exclusively from the write to the upstream until
    /// the write is applied to the replica. Otherwise writers share the lock, so that the declaration of a cache can
    /// wait for in-flight writes.
    pub apply_lock: Arc<RwLock<()>>,
    /// How long the upstream takes to return documents of this collection by `_id`.
    pub measurement: Measurement,
    inner: Mutex<Inner>,
    /// Wakes the loader when a load is due or the caches are dropped.
    pub(super) load_due: Notify,
    /// Notifies tasks that wait for changes to be applied. Sent when changes were applied, and when the state changed.
    progressed: watch::Sender<()>,
    /// When the upstream last let an unauthenticated client read the collection; `None` if it refused the last such
    /// client.
    public_at: Mutex<Option<Instant>>,
    pub(super) pause_point: PausePoint,
    /// How far the replica lags behind the upstream; `None` if unknown.
    lag: Mutex<Option<Duration>>,
}

#[derive(Debug, Default)]
struct Inner {
    life: Life,
    has_loader: bool,
    /// The upstream's UUID of the collection, which does not depend on the name.
    identity: Option<RawBson>,
    definitions: Vec<RawDocumentBuf>,
    fields: Arc<ReplicaFields>,
}

/// A copy that answers reads, identified by its fields and epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answering {
    /// Fields that the copy holds.
    pub fields: Arc<ReplicaFields>,
    epoch: u64,
}

impl Replica {
    /// Creates the state of a collection without caches.
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

    /// Returns whether the collection has caches, loaded or not.
    pub fn is_declared(&self) -> bool {
        self.inner.lock().life.is_declared()
    }

    /// Returns the definitions of the collection's cache indexes.
    pub fn definitions(&self) -> Vec<RawDocumentBuf> {
        self.inner.lock().definitions.clone()
    }

    /// Returns the fields that the replica holds; `None` if the collection has no caches.
    pub fn fields(&self) -> Option<Arc<ReplicaFields>> {
        let inner = self.inner.lock();
        inner.life.is_declared().then(|| inner.fields.clone())
    }

    /// Returns whether a field has a cache. `field` has the form `db.collection.field`.
    pub fn has_cache(&self, field: &str) -> bool {
        let own = field.strip_prefix(&self.namespace.to_string());
        let Some(field) = own.and_then(|field| field.strip_prefix('.')) else {
            return false;
        };
        let is_of = |definition: &RawDocumentBuf| {
            let key = definition.get_document("key");
            key.is_ok_and(|key| matches!(key.get(field), Ok(Some(_))))
        };
        self.inner.lock().definitions.iter().any(is_of)
    }

    /// Returns whether the replica is ready to answer reads, assuming that the upstream can be reached.
    pub fn is_ready(&self) -> bool {
        self.inner.lock().life.is_ready()
    }

    /// Returns the copy that answers a client under the conditions in `view`; `None` if no copy may answer.
    pub fn answering(&self, view: View) -> Option<Answering> {
        let inner = self.inner.lock();
        let epoch = inner.life.answering(view)?;
        let fields = inner.fields.clone();
        Some(Answering { fields, epoch })
    }

    /// Returns the collection that writes are applied to: the temporary collection of a load that keeps the older copy,
    /// otherwise the replica's own.
    pub(super) fn applied_in(&self) -> &Namespace {
        if self.inner.lock().life.loads_beside() {
            &self.beside
        } else {
            &self.namespace
        }
    }

    /// Returns when the upstream last let an unauthenticated client read the collection; `None` if it refused the last
    /// such client, or may have been restarted after that.
    pub fn public_at(&self) -> Option<Instant> {
        *self.public_at.lock()
    }

    /// Records when the upstream let an unauthenticated client read the collection; `None` if it refused, or if the
    /// outcome is unknown.
    pub fn set_public(&self, at: Option<Instant>) {
        *self.public_at.lock() = at;
    }

    /// Returns how far the replica lagged behind the upstream at the last applied change; `None` if unknown.
    pub fn lag(&self) -> Option<Duration> {
        *self.lag.lock()
    }

    /// Records the delay behind the upstream.
    pub(super) fn set_lag(&self, lag: Duration) {
        *self.lag.lock() = Some(lag);
    }

    /// Returns why the replica does not answer; `None` if it answers or the collection has no caches.
    pub fn reason(&self) -> Option<String> {
        self.inner.lock().life.reason()
    }

    /// Returns how many documents a load in progress has copied, and how many it will copy in all.
    pub fn progress(&self) -> Option<(u64, u64)> {
        self.inner.lock().life.progress()
    }

    /// Replaces the declared caches; an empty list drops all caches. The replica then stops answering until it is
    /// loaded.
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

    /// Makes the loader resume the copy that an earlier process left, or load the collection if the copy cannot be
    /// resumed.
    pub(super) fn expect_resume(&self, reason: &str) {
        self.inner.lock().life.expect_resume(reason);
        self.wake();
    }

    /// Turns the replica off until its caches are declared again: it answers no reads and does not load the collection.
    pub(super) fn turn_off(&self, reason: &str) {
        self.inner.lock().life.turn_off(reason);
        self.wake();
    }

    /// Makes the replica stop answering, even while the upstream is away, until it is loaded again. The load starts
    /// after `pause`.
    pub fn invalidate(&self, reason: &str, pause: Duration) {
        self.inner.lock().life.invalidate(reason, pause, false);
        self.wake();
    }

    /// Like [`invalidate`](Replica::invalidate), but a complete copy may still answer while the upstream is away.
    pub(super) fn invalidate_keeping_copy(&self, reason: &str, pause: Duration) {
        self.inner.lock().life.invalidate(reason, pause, true);
        self.wake();
    }

    /// Returns whether the collection has caches that are turned off: not loaded, and no load is due.
    pub(super) fn is_off(&self) -> bool {
        self.inner.lock().life.is_off()
    }

    /// Returns how long to wait before the next load; `None` if no load is due.
    pub fn load_due(&self) -> Option<Duration> {
        self.inner.lock().life.load_due()
    }

    /// Returns whether the replica holds a copy that an earlier process left and that may be resumed.
    pub(super) fn may_resume(&self) -> bool {
        self.inner.lock().life.may_resume()
    }

    /// Returns the upstream's UUID of the collection, which changes when the collection is dropped and created again.
    pub fn identity(&self) -> Option<RawBson> {
        self.inner.lock().identity.clone()
    }

    /// Records the upstream's UUID of the collection.
    pub fn set_identity(&self, identity: Option<RawBson>) {
        self.inner.lock().identity = identity;
    }

    /// Makes the caller the replica's loader. Returns false if there is a loader already.
    pub fn take_loader(&self) -> bool {
        !std::mem::replace(&mut self.inner.lock().has_loader, true)
    }

    /// Called by the loader. If the collection has no caches any more, ends the caller's role as loader and returns
    /// true.
    pub fn leave_loader(&self) -> bool {
        let mut inner = self.inner.lock();
        inner.has_loader = inner.life.is_declared();
        !inner.has_loader
    }

    /// Begins a load. With `keeps_copy`, the load keeps a complete older copy. Returns the fields to copy and the
    /// load's epoch.
    pub fn begin_load(
        &self,
        of: u64,
        total: u64,
        keeps_copy: bool,
    ) -> Option<(Arc<ReplicaFields>, u64)> {
        let mut inner = self.inner.lock();
        let epoch = inner.life.begin_load(of, total, keeps_copy)?;
        Some((inner.fields.clone(), epoch))
    }

    /// Ends the load of epoch `of`; see [`Life::finish_load`]. Returns the new epoch.
    pub(super) fn finish_load(&self, of: u64, follows_stream: bool) -> Option<u64> {
        self.inner.lock().life.finish_load(of, follows_stream)
    }

    /// Returns those documents of a loaded batch that were not written since the load of epoch `of` began. Counts the
    /// batch as copied. Returns `None` if that load is no longer the latest.
    pub fn admit(&self, of: u64, batch: Vec<RawDocumentBuf>) -> Option<Vec<RawDocumentBuf>> {
        let mut inner = self.inner.lock();
        let load = inner.life.load(of)?;
        load.done += batch.len() as u64;
        let is_fresh = |document: &RawDocumentBuf| !load.written.contains(&key_of(document));
        Some(batch.into_iter().filter(is_fresh).collect())
    }

    /// Takes over the copy that an earlier process left. Returns the copy's fields, and the new epoch for its change
    /// stream; `None` if the replica is no longer in epoch `of`.
    pub(super) fn resume(&self, of: u64) -> Option<(Arc<ReplicaFields>, u64)> {
        let mut inner = self.inner.lock();
        let epoch = inner.life.resume(of)?;
        Some((inner.fields.clone(), epoch))
    }

    /// Makes the replica stop answering because the change stream of epoch `of` has ended. Returns the same as
    /// [`resume`](Replica::resume).
    pub(super) fn lose_stream(&self, of: u64) -> Option<(Arc<ReplicaFields>, u64)> {
        let mut inner = self.inner.lock();
        let epoch = inner.life.lose_stream(of)?;
        let fields = inner.fields.clone();
        drop(inner);
        self.progressed.send_replace(());
        Some((fields, epoch))
    }

    /// Records that the change stream of epoch `of` is open. Returns false if the replica is in a later epoch.
    pub(super) fn start_following(&self, of: u64) -> bool {
        self.inner.lock().life.start_following(of)
    }

    /// Makes the replica answer if all changes up to the required cluster time are applied. Returns whether the replica
    /// begins to answer now.
    pub(super) fn complete(&self, of: u64) -> bool {
        self.inner.lock().life.complete(of)
    }

    /// Returns the replica's epoch, which changes with each declaration, load and loss of a change stream.
    pub fn epoch(&self) -> u64 {
        self.inner.lock().life.epoch()
    }

    /// Returns whether the collection has caches and the replica is still in epoch `of`.
    pub(super) fn is_current(&self, of: u64) -> bool {
        let inner = self.inner.lock();
        inner.life.is_declared() && inner.life.epoch() == of
    }

    /// Records that all changes up to cluster time `at` are applied.
    pub(super) fn advance_applied(&self, of: u64, at: u64) {
        if self.inner.lock().life.advance_applied(of, at) {
            self.progressed.send_replace(());
        }
    }

    /// Returns the cluster time up to which changes are applied.
    pub(super) fn applied(&self) -> u64 {
        self.inner.lock().life.applied()
    }

    /// Requires that all changes up to cluster time `at` are applied before the replica begins to answer.
    pub fn require_applied(&self, at: u64) {
        self.inner.lock().life.require_applied(at);
    }

    /// Returns whether the replica follows a change stream. A replica that does not answer reads yet may follow one.
    pub fn is_following(&self) -> bool {
        self.inner.lock().life.is_following()
    }

    /// Waits until all changes up to cluster time `at` are applied, or the change stream is lost.
    pub async fn wait_applied(&self, at: u64) {
        let mut progressed = self.progressed.subscribe();
        loop {
            {
                let inner = self.inner.lock();
                if inner.life.has_applied(at) || !inner.life.is_following() {
                    return;
                }
            }
            // Never an error: `self` owns the sender.
            let _ = progressed.changed().await;
        }
    }

    /// Records that documents with these `_id`s were written. Returns the replica's fields if the caller has to apply
    /// the write to the replica.
    pub fn note_written<'a>(
        &self,
        ids: impl Iterator<Item = RawBsonRef<'a>>,
    ) -> Option<Arc<ReplicaFields>> {
        let mut inner = self.inner.lock();
        let applies = inner.life.note_written(ids.map(id_key));
        applies.then(|| inner.fields.clone())
    }

    /// Wakes the loader and the tasks that wait for changes.
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
        assert!(
            replica.begin_load(replica.epoch(), 2, false).is_none(),
            "no caches"
        );
        declare(&replica);
        let (_, first) = replica
            .begin_load(replica.epoch(), 2, false)
            .expect("a load is due");
        replica.note_written([RawBsonRef::Int32(1)].into_iter());
        let batch = vec![rawdoc! { "_id": 1i64 }, rawdoc! { "_id": 2 }];
        let admitted = replica.admit(first, batch).expect("the load is the latest");
        assert_eq!(admitted, [rawdoc! { "_id": 2 }]);
        assert_eq!(replica.progress(), Some((2, 2)));
        replica.invalidate("a write is not followed", Duration::ZERO);
        let (_, second) = replica
            .begin_load(replica.epoch(), 2, false)
            .expect("a load is due");
        assert!(replica.admit(first, Vec::new()).is_none());
        assert!(replica.finish_load(first, false).is_none());
        assert!(replica.finish_load(second, false).is_some() && replica.is_ready());
        replica.turn_off("no more");
        assert_eq!(replica.reason().as_deref(), Some("no more"));
    }

    #[test]
    fn a_whole_copy_is_kept_until_another_takes_its_place() {
        let replica = declared();
        let (_, first) = replica
            .begin_load(replica.epoch(), 2, true)
            .expect("a load is due");
        assert_eq!(
            replica.applied_in(),
            &replica.namespace,
            "there is no copy to keep"
        );
        assert!(replica.answering(CUT_OFF).is_none());
        assert!(replica.finish_load(first, false).is_some());
        replica.invalidate_keeping_copy("the upstream was away", Duration::ZERO);
        let (_, second) = replica
            .begin_load(replica.epoch(), 2, true)
            .expect("a load is due");
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
        let (_, old) = replica
            .begin_load(replica.epoch(), 0, false)
            .expect("a load is due");
        replica.declare(Vec::new());
        declare(&replica);
        let (_, new) = replica
            .begin_load(replica.epoch(), 0, false)
            .expect("a load is due");
        assert!(old != new && replica.finish_load(old, false).is_none());
        assert!(replica.finish_load(new, false).is_some());
        replica.invalidate("written", Duration::ZERO);
        assert!(!replica.is_ready() && replica.load_due().is_some());
        assert!(replica.finish_load(new, false).is_none());
    }

    #[test]
    fn a_load_waits_for_the_longest_pause() {
        let replica = declared();
        let early = replica.epoch();
        let pause = Duration::from_secs(5);
        replica.invalidate("the end of a write is not known", pause);
        replica.invalidate("a write is not followed", Duration::ZERO);
        assert_eq!(replica.load_due(), Some(pause));
        assert!(replica.begin_load(early, 0, false).is_none());
        assert!(replica.begin_load(replica.epoch(), 0, false).is_some());
    }

    #[test]
    fn a_replica_has_one_loader() {
        let replica = declared();
        assert!(replica.take_loader() && !replica.take_loader());
        assert!(!replica.leave_loader(), "the collection has caches");
        replica.declare(Vec::new());
        assert!(replica.leave_loader() && replica.take_loader());
    }
}
