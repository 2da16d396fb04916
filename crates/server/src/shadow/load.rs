//! Copies a collection of the store into its shadow.
//!
//! A load begins while no write is under way, and opens its cursor then. Documents that are written from its beginning on are
//! noted by whoever follows the writes, and what the cursor brings of them is skipped: it may be older than what the shadow has.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Document, RawArrayBuf, RawDocumentBuf, rawdoc};
use forebay_documents::Namespace;
use futures_util::StreamExt;
use mongodb::Cursor;
use tokio::sync::mpsc;

use super::kept::Kept;
use super::{Mirror, Shadow, ShadowError, unreadable};

/// Documents copied at a time.
const BATCH_DOCUMENTS: usize = 1_000;
/// Batches that are read ahead of what is copied.
const BATCHES_AHEAD: usize = 4;
/// The pause before a load that failed is begun anew.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

type Batch = Result<Vec<RawDocumentBuf>, ShadowError>;

impl Shadow {
    /// Has a shadow filled anew in the background, if its writes can be followed; it answers nothing until that is done.
    pub fn reload(self: &Arc<Self>, mirror: &Arc<Mirror>, why: &str) {
        self.reload_after(mirror, why, Duration::ZERO);
    }

    /// As [`reload`](Shadow::reload), after a pause: for when the store may still be at work on a write whose end nobody
    /// will tell.
    pub fn reload_settled(self: &Arc<Self>, mirror: &Arc<Mirror>, why: &str) {
        self.reload_after(mirror, why, RETRY_PAUSE);
    }

    fn reload_after(self: &Arc<Self>, mirror: &Arc<Mirror>, why: &str, pause: Duration) {
        let namespace = &mirror.namespace;
        match self.exclusive {
            true => {
                tracing::info!(%namespace, why, "the caches of a collection are loaded; all writes must come through here (--writes exclusive)")
            }
            false => tracing::info!(%namespace, why, "the caches of a collection are loaded"),
        }
        mirror.cool("the cache waits to be loaded", pause);
        if mirror.take_loader() {
            tokio::spawn(self.clone().keep_loaded(mirror.clone()));
        }
    }

    /// Loads a shadow whenever it is cold, for as long as it is declared.
    async fn keep_loaded(self: Arc<Self>, mirror: Arc<Mirror>) {
        while mirror.is_declared() || !mirror.leave_loader() {
            let Some(pause) = mirror.load_due() else {
                mirror.cooled.notified().await;
                continue;
            };
            tokio::time::sleep(pause).await;
            let outcome = match self.exclusive {
                true => self.load(&mirror).await,
                false => self.keep_up(&mirror).await,
            };
            match outcome {
                Ok(()) => {}
                Err(error @ ShadowError::Unsuitable(_)) => {
                    tracing::warn!(namespace = %mirror.namespace, %error, "the caches of a collection are off");
                    mirror.off(&error.to_string());
                }
                Err(ShadowError::Changed(what)) => {
                    mirror.cool(
                        &format!("the collection was changed ({what})"),
                        Duration::ZERO,
                    );
                }
                Err(error) => {
                    tracing::error!(namespace = %mirror.namespace, %error, "the caches of a collection cannot be loaded");
                    mirror.cool(&format!("the cache cannot be loaded: {error}"), RETRY_PAUSE);
                }
            }
        }
    }

    /// Loads once; ends early when the shadow has become cold meanwhile.
    async fn load(&self, mirror: &Mirror) -> Result<(), ShadowError> {
        self.check_suitable(&mirror.namespace).await?;
        if let Some((_, epoch)) = self.copy(mirror).await? {
            mirror.complete(epoch);
        }
        Ok(())
    }

    /// Copies what the store has; what the shadow holds of it, and the number of the load. None if the shadow has become
    /// cold meanwhile.
    pub(super) async fn copy(
        &self,
        mirror: &Mirror,
    ) -> Result<Option<(Arc<Kept>, u64)>, ShadowError> {
        let begun = Instant::now();
        let Some((kept, epoch, cursor)) = self.begin(mirror).await? else {
            return Ok(None);
        };
        let (sender, mut batches) = mpsc::channel(BATCHES_AHEAD);
        let reader = tokio::spawn(read_ahead(cursor, sender));
        let mut copied = 0;
        while let Some(batch) = batches.recv().await {
            let batch = batch?;
            copied += batch.len() as u64;
            let held = mirror.gate.read().await;
            let Some(fresh) = mirror.admit(epoch, batch) else {
                reader.abort();
                return Ok(None);
            };
            self.insert(&mirror.namespace, fresh).await?;
            drop(held);
            self.keep_rate(begun, copied).await;
        }
        // A reader that broke down has sent no error.
        reader.await.map_err(unreadable)?;
        let seconds = begun.elapsed().as_secs_f64();
        tracing::info!(namespace = %mirror.namespace, documents = copied, seconds, "a collection has been copied");
        Ok(Some((kept, epoch)))
    }

    /// Empties the shadow while nobody writes, and then opens the cursor: what is written before the cursor is there is
    /// followed, and noted. None if nothing is declared any more.
    async fn begin(
        &self,
        mirror: &Mirror,
    ) -> Result<Option<(Arc<Kept>, u64, Cursor<RawDocumentBuf>)>, ShadowError> {
        let Namespace { db, collection } = &mirror.namespace;
        let store = self
            .store
            .database(db)
            .collection::<RawDocumentBuf>(collection);
        let total = store.estimated_document_count().await?;
        let alone = mirror.gate.write().await;
        let Some((kept, epoch)) = mirror.begin(total) else {
            return Ok(None);
        };
        self.empty(mirror).await?;
        drop(alone);
        let batch_size = u32::try_from(BATCH_DOCUMENTS).unwrap_or(u32::MAX);
        let cursor = store
            .find(Document::new())
            .projection(kept.projection())
            .batch_size(batch_size);
        Ok(Some((kept, epoch, cursor.await?)))
    }

    /// Makes the shadow anew, with the declared caches and without documents.
    async fn empty(&self, mirror: &Mirror) -> Result<(), ShadowError> {
        let Namespace { db, collection } = &mirror.namespace;
        let collection = collection.as_str();
        self.demand(db, rawdoc! { "drop": collection }).await?;
        let indexes = RawArrayBuf::from_iter(mirror.definitions());
        let create = rawdoc! { "createIndexes": collection, "indexes": indexes };
        self.demand(db, create).await.map(drop)
    }

    async fn insert(
        &self,
        namespace: &Namespace,
        documents: Vec<RawDocumentBuf>,
    ) -> Result<(), ShadowError> {
        if documents.is_empty() {
            return Ok(());
        }
        let all = RawArrayBuf::from_iter(documents.iter().cloned());
        let command = rawdoc! { "insert": namespace.collection.as_str(), "documents": all };
        let reply = self.demand(&namespace.db, command).await?;
        match reply.get("writeErrors") {
            Ok(None) => Ok(()),
            // One that was deleted and inserted again meanwhile comes twice.
            _ => self.replace(namespace, documents).await,
        }
    }

    async fn keep_rate(&self, begun: Instant, copied: u64) {
        if self.load_rate > 0 {
            let due = Duration::from_secs_f64(copied as f64 / self.load_rate as f64);
            tokio::time::sleep(due.saturating_sub(begun.elapsed())).await;
        }
    }
}

/// Reads a cursor to its end, some batches ahead of who takes them; after an error nothing follows.
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
