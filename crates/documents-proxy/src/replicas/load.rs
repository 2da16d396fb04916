//! Copies a collection of the upstream into its replica.
//!
//! A load begins while no write is in flight, and then opens its cursors. Documents written since it began are
//! recorded. The load skips the versions of these documents that its cursors read, because the replica may have newer
//! versions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Bson, Document, RawArrayBuf, RawDocumentBuf, doc, rawdoc};
use forebay_documents::Namespace;
use futures_util::{StreamExt, TryStreamExt};
use mongodb::{Collection, Cursor};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::fields::ReplicaFields;
use super::reply::timestamp;
use super::{Replica, ReplicaError, Replicas, is_code};

/// Number of documents per copied batch.
const BATCH_DOCUMENTS: usize = 1_000;
/// Maximum batches that wait to be copied.
const BATCHES_AHEAD: usize = 4;
/// A collection with at least this many documents is loaded with parallel cursors. Parallel cursors need an ordered
/// index on `_id`, which all upstreams with change streams have. FerretDB 1 would scan the collection once for each
/// cursor.
const PARTED_DOCUMENTS_MIN: u64 = 100_000;
/// Number of parallel cursors, not counting the cursor for `_id`s whose type differs from that of the sampled `_id`s.
const PARTS: usize = 4;
/// Number of sampled `_id`s that determine the ranges of the parallel cursors.
const SAMPLE: i32 = 400;
/// Pause before a failed load is retried.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Error codes of an upstream that cannot read with majority read concern at a cluster time: BadValue, FailedToParse,
/// IllegalOperation, InvalidOptions, ReadConcernMajorityNotEnabled, NotImplemented, and NotAReplicaSet.
const NO_MAJORITY: [i32; 7] = [2, 9, 20, 72, 148, 238, 123];

/// Reason why a replica whose load is due does not answer.
const WAITS: &str = "the cache is waiting to be loaded";

type Batch = Result<Vec<RawDocumentBuf>, ReplicaError>;

impl Replicas {
    /// Invalidates a replica and loads it in the background. The replica does not answer until it is loaded.
    pub fn reload(self: &Arc<Self>, replica: &Arc<Replica>, why: &str) {
        self.log_load(replica, why);
        replica.invalidate(WAITS, Duration::ZERO);
        self.have_loaded(replica);
    }

    /// Resumes the copy that an earlier process left, or loads the replica, in the background.
    pub(super) fn resume_or_load(self: &Arc<Self>, replica: &Arc<Replica>, why: &str) {
        self.log_load(replica, why);
        replica.expect_resume(WAITS);
        self.have_loaded(replica);
    }

    /// Like [`reload`](Replicas::reload), for a replica that was correct until the upstream went away: its copy may
    /// answer if the upstream is away again.
    pub(super) fn reload_keeping_copy(self: &Arc<Self>, replica: &Arc<Replica>, why: &str) {
        self.log_load(replica, why);
        replica.invalidate_keeping_copy(WAITS, Duration::ZERO);
        self.have_loaded(replica);
    }

    /// Like [`reload`](Replicas::reload), but starts after a pause. Called after a write with an unknown outcome, which
    /// the upstream may still be running.
    pub fn reload_after_pause(self: &Arc<Self>, replica: &Arc<Replica>, why: &str) {
        self.log_load(replica, why);
        replica.invalidate(WAITS, RETRY_PAUSE);
        self.have_loaded(replica);
    }

    fn log_load(&self, replica: &Replica, why: &str) {
        let namespace = &replica.namespace;
        if self.exclusive {
            tracing::info!(%namespace, why, "loading the caches of a collection; all writes must pass through this server (--upstream-writes exclusive)")
        } else {
            tracing::info!(%namespace, why, "loading the caches of a collection")
        }
    }

    fn have_loaded(self: &Arc<Self>, replica: &Arc<Replica>) {
        if replica.take_loader() {
            tokio::spawn(self.clone().keep_loaded(replica.clone()));
        }
    }

    /// Loads a replica whenever a load is due, until its caches are dropped.
    async fn keep_loaded(self: Arc<Self>, replica: Arc<Replica>) {
        while replica.is_declared() || !replica.leave_loader() {
            let epoch = replica.epoch();
            let Some(pause) = replica.load_due() else {
                replica.load_due.notified().await;
                continue;
            };
            let outcome = match self.pause_once_answered(pause).await {
                // The replica was invalidated again meanwhile, so the pause begins again.
                _ if replica.epoch() != epoch => continue,
                Ok(()) if self.exclusive => self.load(&replica).await,
                Ok(()) => self.follow_stream(&replica).await,
                unanswered => unanswered,
            };
            match outcome {
                Ok(()) => {}
                Err(error @ ReplicaError::Unsuitable(_)) => {
                    tracing::warn!(namespace = %replica.namespace, %error, "the caches of a collection are off");
                    replica.turn_off(&error.to_string());
                }
                Err(ReplicaError::Changed(what)) => {
                    replica.invalidate(
                        &format!("the collection was changed ({what})"),
                        Duration::ZERO,
                    );
                }
                Err(error) => {
                    tracing::error!(namespace = %replica.namespace, %error, "the caches of a collection cannot be loaded");
                    let reason = format!("the cache cannot be loaded: {error}");
                    match error {
                        ReplicaError::Upstream(_) => {
                            replica.invalidate_keeping_copy(&reason, RETRY_PAUSE)
                        }
                        _ => replica.invalidate(&reason, RETRY_PAUSE),
                    }
                }
            }
        }
    }

    /// Waits until the upstream answers, because an upstream that hung may begin an earlier write only then. Then waits
    /// for `pause`. Does nothing if `pause` is zero.
    async fn pause_once_answered(&self, pause: Duration) -> Result<(), ReplicaError> {
        if pause.is_zero() {
            return Ok(());
        }
        let answered = self.upstream_time().await;
        tokio::time::sleep(pause).await;
        answered.map(drop)
    }

    /// Loads a replica once. Returns early if the replica is invalidated meanwhile.
    async fn load(&self, replica: &Replica) -> Result<(), ReplicaError> {
        let epoch = replica.epoch();
        self.check_suitable(replica).await?;
        self.note_incarnation().await;
        self.copy(replica, epoch).await.map(drop)
    }

    /// Copies the upstream's documents into the replica. Returns the replicated fields and the new epoch; `None` if the
    /// replica was invalidated since epoch `of`.
    pub(super) async fn copy(
        &self,
        replica: &Replica,
        of: u64,
    ) -> Result<Option<(Arc<ReplicaFields>, u64)>, ReplicaError> {
        let begun = Instant::now();
        let Some((fields, epoch, cursors)) = self.begin(replica, of).await? else {
            return Ok(None);
        };
        let (sender, mut batches) = mpsc::channel(BATCHES_AHEAD);
        let readers = cursors.into_iter();
        // Dropping the set aborts the readers.
        let readers: JoinSet<()> = readers
            .map(|cursor| read_ahead(cursor, sender.clone()))
            .collect();
        drop(sender);
        let mut copied = 0;
        while let Some(batch) = self.unless_hung(batches.recv()).await? {
            let batch = batch?;
            copied += batch.len() as u64;
            let held = replica.apply_lock.read().await;
            let Some(fresh) = replica.admit(epoch, batch) else {
                return Ok(None);
            };
            self.insert(replica.applied_in(), fresh).await?;
            drop(held);
            self.keep_rate(begun, copied).await;
        }
        // Propagates a reader's panic, which the channel does not report.
        readers.join_all().await;
        let seconds = (begun.elapsed().as_secs_f64() * 100.0).round() / 100.0;
        tracing::info!(namespace = %replica.namespace, documents = copied, seconds, "the documents of a collection have been loaded");
        let epoch = self.finish_load(replica, epoch).await?;
        Ok(epoch.map(|epoch| (fields, epoch)))
    }

    /// Ends a load. If the load kept the older copy, replaces the older copy with the loaded one. Returns the new
    /// epoch; `None` if the load of `epoch` is no longer the latest.
    async fn finish_load(
        &self,
        replica: &Replica,
        epoch: u64,
    ) -> Result<Option<u64>, ReplicaError> {
        let _exclusive = replica.apply_lock.write().await;
        let (from, to) = (replica.applied_in(), &replica.namespace);
        if from != to && replica.is_current(epoch) {
            let (from, to) = (from.to_string(), to.to_string());
            let rename = rawdoc! { "renameCollection": from, "to": to, "dropTarget": true };
            self.demand("admin", rename).await?;
        }
        Ok(replica.finish_load(epoch, !self.exclusive))
    }

    /// Empties the collection that the load fills, under the exclusive apply lock. Opens the cursors without the lock:
    /// writes that are made meanwhile are applied and recorded. Returns `None` if the replica was invalidated since
    /// epoch `of`.
    async fn begin(
        &self,
        replica: &Replica,
        of: u64,
    ) -> Result<Option<(Arc<ReplicaFields>, u64, Vec<Cursor<RawDocumentBuf>>)>, ReplicaError> {
        let Namespace { db, collection } = &replica.namespace;
        let store = self
            .client
            .database(db)
            .collection::<RawDocumentBuf>(collection);
        let total = store.estimated_document_count().into_future();
        let total = self.unless_hung(total).await??;
        let lock = replica.apply_lock.write().await;
        let Some((fields, epoch)) = replica.begin_load(of, total, self.serve_stale) else {
            return Ok(None);
        };
        self.empty(replica).await?;
        drop(lock);
        let batch_size = u32::try_from(BATCH_DOCUMENTS).unwrap_or(u32::MAX);
        let parts = if !self.exclusive && total >= PARTED_DOCUMENTS_MIN {
            self.unless_hung(parts(&store)).await??
        } else {
            vec![Document::new()]
        };
        let concern = self.load_concern().await?;
        let mut cursors = Vec::with_capacity(parts.len());
        for part in parts {
            let mut find = doc! {
                "find": collection, "filter": part, "projection": fields.projection(), "batchSize": batch_size,
            };
            if let Some(concern) = &concern {
                find.insert("readConcern", concern.clone());
            }
            let cursor = self.open_cursor(db, find, batch_size);
            cursors.push(self.unless_hung(cursor).await??);
        }
        Ok(Some((fields, epoch, cursors)))
    }

    /// Returns the read concern for a load with an open change stream; `None` for other loads. With `majority`,
    /// documents that are read are never rolled back without an event. The load sees all writes up to the current
    /// cluster time; the stream reports the later ones.
    async fn load_concern(&self) -> Result<Option<Document>, ReplicaError> {
        let now = if self.exclusive {
            None
        } else {
            self.upstream_time().await?
        };
        Ok(now.map(|at| doc! { "level": "majority", "afterClusterTime": timestamp(at) }))
    }

    /// Opens the cursor of a `find`. Omits the read concern if the upstream does not support `majority`.
    async fn open_cursor(
        &self,
        db: &str,
        mut find: Document,
        batch_size: u32,
    ) -> Result<Cursor<RawDocumentBuf>, ReplicaError> {
        let db = self.client.database(db);
        let open = |find: Document| db.run_cursor_command(find).batch_size(batch_size);
        let opened = match open(find.clone()).await {
            Err(error) if NO_MAJORITY.iter().any(|&code| is_code(&error, code)) => {
                tracing::warn!(%error, "a collection is loaded without majority read concern, which the upstream does not support");
                find.remove("readConcern");
                open(find).await
            }
            opened => opened,
        };
        Ok(opened?.with_type())
    }

    /// Creates the collection that a load fills: empty, with the declared caches.
    async fn empty(&self, replica: &Replica) -> Result<(), ReplicaError> {
        let Namespace { db, collection } = replica.applied_in();
        let collection = collection.as_str();
        self.demand(db, rawdoc! { "drop": collection }).await?;
        let indexes = RawArrayBuf::from_iter(replica.definitions());
        let create = rawdoc! { "createIndexes": collection, "indexes": indexes };
        self.demand(db, create).await.map(drop)
    }

    async fn insert(
        &self,
        namespace: &Namespace,
        documents: Vec<RawDocumentBuf>,
    ) -> Result<(), ReplicaError> {
        if documents.is_empty() {
            return Ok(());
        }
        let all = RawArrayBuf::from_iter(documents.iter().cloned());
        let command = rawdoc! { "insert": namespace.collection.as_str(), "documents": all };
        let reply = self.demand(&namespace.db, command).await?;
        match reply.get("writeErrors") {
            Ok(None) => Ok(()),
            // Some documents are already in the replica, so insert or replace each document. A document that is deleted
            // and inserted again during the load is read twice.
            _ => self.replicate(namespace, &[], &documents),
        }
    }

    async fn keep_rate(&self, begun: Instant, copied: u64) {
        if self.load_rate > 0 {
            let due = Duration::from_secs_f64(copied as f64 / self.load_rate as f64);
            tokio::time::sleep(due.saturating_sub(begun.elapsed())).await;
        }
    }
}

/// Returns filters that together select every document once: one for each range of `_id`s between sampled `_id`s, and
/// one for `_id`s of types other than the sample's.
async fn parts(store: &Collection<RawDocumentBuf>) -> Result<Vec<Document>, ReplicaError> {
    let sample = [
        doc! { "$sample": { "size": SAMPLE } },
        doc! { "$project": { "_id": 1 } },
        doc! { "$sort": { "_id": 1 } },
    ];
    let sample: Vec<Document> = store
        .aggregate(sample)
        .with_type::<Document>()
        .await?
        .try_collect()
        .await?;
    let ids = sample.into_iter().filter_map(|mut it| it.remove("_id"));
    Ok(ranges(&ids.collect::<Vec<_>>()))
}

/// Returns filters for ranges of `_id`s, with equally many of the sorted `ids` in each range, and a filter for `_id`s
/// of other types.
fn ranges(ids: &[Bson]) -> Vec<Document> {
    let kind = ids.first().map(Bson::element_type);
    let mut ends: Vec<&Bson> = (1..PARTS)
        .filter_map(|part| ids.get(ids.len() * part / PARTS))
        .collect();
    ends.dedup();
    let ([first, .., last], true) = (
        ends.as_slice(),
        ids.iter().all(|id| Some(id.element_type()) == kind),
    ) else {
        return vec![Document::new()];
    };
    let below = |end: &Bson| doc! { "_id": { "$lt": end } };
    let above = |start: &Bson| doc! { "_id": { "$gte": start } };
    let inner = ends.windows(2);
    let mut ranges = vec![below(first), above(last)];
    ranges.extend(inner.map(|ends| doc! { "_id": { "$gte": ends[0], "$lt": ends[1] } }));
    ranges.push(doc! { "$nor": [below(first), above(first)] });
    ranges
}

/// Reads a cursor to its end or to an error, at most `BATCHES_AHEAD` batches ahead of the consumer.
async fn read_ahead(mut cursor: Cursor<RawDocumentBuf>, batches: mpsc::Sender<Batch>) {
    loop {
        let batch = next_batch(&mut cursor).await;
        let is_last = batch.as_ref().map_or(true, Vec::is_empty);
        if batches.send(batch).await.is_err() || is_last {
            return;
        }
    }
}

async fn next_batch(cursor: &mut Cursor<RawDocumentBuf>) -> Batch {
    let mut batch = Vec::with_capacity(BATCH_DOCUMENTS);
    while batch.len() < BATCH_DOCUMENTS {
        match cursor.next().await {
            Some(document) => batch.push(document?),
            None => break,
        }
    }
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_meet_and_the_last_part_is_the_rest() {
        let ids: Vec<Bson> = (0..8).map(Bson::Int32).collect();
        let expected = [
            doc! { "_id": { "$lt": 2 } },
            doc! { "_id": { "$gte": 6 } },
            doc! { "_id": { "$gte": 2, "$lt": 4 } },
            doc! { "_id": { "$gte": 4, "$lt": 6 } },
            doc! { "$nor": [{ "_id": { "$lt": 2 } }, { "_id": { "$gte": 2 } }] },
        ];
        assert_eq!(ranges(&ids), expected);
        let whole = [Document::new()];
        assert_eq!(ranges(&[]), whole);
        assert_eq!(ranges(&vec![Bson::Int32(1); 9]), whole);
        assert_eq!(
            ranges(&[Bson::Int32(1), "a".into(), Bson::Int32(2), Bson::Null]),
            whole
        );
    }
}
