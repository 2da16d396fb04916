//! Follows the change stream of a collection, so that writes which do not come through us reach its shadow, too.
//!
//! The stream is opened before the collection is read, and what has happened since is applied over what was read: an event holds
//! the document as it is when the event is read, or as it was, and then a later event follows; so the shadow is that of the
//! store once the stream has been read to its end. Where it has been read to is kept beside the documents of the shadow, in the journal
//! behind them: whoever finds it there finds them, too.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Document, RawBson, RawDocumentBuf, rawdoc};
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::{ChangeStreamEvent, OperationType, ResumeToken};
use mongodb::error::{Error, ErrorKind};
use mongodb::options::FullDocumentType;
use tokio::time::timeout;

use super::kept::Kept;
use super::{Mirror, SHARED_WRITES, Shadow, ShadowError, first_batch, unreadable};

/// How long the store waits for an event before it says that there is none: whoever waits for a write that changed nothing
/// waits as long.
const AWAIT: Duration = Duration::from_millis(50);
/// How often it is kept where the stream has been read to.
const KEEP_INTERVAL: Duration = Duration::from_secs(1);
/// The pause before a stream that broke is opened again.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// Where it is kept: a collection of the shadows' own.
const KEPT_DB: &str = "forebay";
const KEPT_COLLECTION: &str = "resume_tokens";
/// Codes by which a store says that it has no change streams: CommandNotFound, CommandNotSupported, NotImplemented, a stage
/// that is not known, and only supported on replica sets.
const NONE: [i32; 5] = [59, 115, 238, 40324, 40573];
/// The longest silence of a store that is there.
const SILENCE_MAX: Duration = Duration::from_secs(30);

type Events = ChangeStream<ChangeStreamEvent<RawDocumentBuf>>;

/// A stream under way.
struct Follower<'a> {
    shadow: &'a Shadow,
    mirror: &'a Mirror,
    kept: Arc<Kept>,
    epoch: u64,
    events: Events,
    kept_at: Instant,
}

impl Shadow {
    /// Fills a shadow, or goes on where an earlier run ended, and follows the store until the shadow has to be filled anew.
    ///
    /// # Errors
    /// Why the shadow is not what the store has any more.
    pub(super) async fn keep_up(&self, mirror: &Mirror) -> Result<(), ShadowError> {
        let epoch = mirror.epoch();
        self.check_suitable(&mirror.namespace).await?;
        let token = match mirror.take_resumable() {
            true => self.resume_token(mirror).await?,
            false => None,
        };
        let mut follower = match token {
            Some(token) => self.resumed(mirror, epoch, token).await?,
            None => self.filled(mirror).await?,
        };
        while let Some(going) = &mut follower {
            match going.run().await {
                Ok(()) => return Ok(()),
                Err(ShadowError::Store(error)) if is_away(&error) => {
                    tracing::warn!(namespace = %mirror.namespace, %error, "the change stream broke");
                    let Some(token) = going.events.resume_token() else {
                        return Err(error.into());
                    };
                    follower = self.reopened(mirror, going.epoch, token).await?;
                }
                Err(error) => {
                    self.keep_token(mirror, None).await?;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Opens a stream and reads the collection. None if nothing is declared any more.
    async fn filled<'a>(&'a self, mirror: &'a Mirror) -> Result<Option<Follower<'a>>, ShadowError> {
        self.keep_token(mirror, None).await?;
        let events = self.open_stream(mirror, None).await?;
        let Some((kept, epoch)) = self.copy(mirror).await? else {
            return Ok(None);
        };
        Ok(Some(self.follower(mirror, kept, epoch, events)))
    }

    /// Goes on with what the shadow held at the end of an earlier run.
    async fn resumed<'a>(
        &'a self,
        mirror: &'a Mirror,
        epoch: u64,
        token: ResumeToken,
    ) -> Result<Option<Follower<'a>>, ShadowError> {
        match self.reopened(mirror, epoch, token).await {
            Err(ShadowError::Store(error)) => {
                tracing::warn!(namespace = %mirror.namespace, %error, "what an earlier run has cached is too old");
                self.filled(mirror).await
            }
            reopened => reopened,
        }
    }

    /// Goes on behind `token` with the shadow of this number; waits for the store. None if it is not the last one any more.
    async fn reopened<'a>(
        &'a self,
        mirror: &'a Mirror,
        epoch: u64,
        token: ResumeToken,
    ) -> Result<Option<Follower<'a>>, ShadowError> {
        let why = "the cache catches up with the store";
        let Some((kept, epoch)) = mirror.fall_behind(epoch, why) else {
            return Ok(None);
        };
        loop {
            match self.open_stream(mirror, Some(token.clone())).await {
                Err(ShadowError::Store(error)) if is_away(&error) => {
                    tracing::warn!(namespace = %mirror.namespace, %error, "the change stream cannot be opened");
                    tokio::time::sleep(REOPEN_PAUSE).await;
                }
                opened => return Ok(Some(self.follower(mirror, kept, epoch, opened?))),
            }
            if !mirror.is_current(epoch) {
                return Ok(None);
            }
        }
    }

    fn follower<'a>(
        &'a self,
        mirror: &'a Mirror,
        kept: Arc<Kept>,
        epoch: u64,
        events: Events,
    ) -> Follower<'a> {
        Follower {
            shadow: self,
            mirror,
            kept,
            epoch,
            events,
            kept_at: Instant::now(),
        }
    }

    async fn open_stream(
        &self,
        mirror: &Mirror,
        token: Option<ResumeToken>,
    ) -> Result<Events, ShadowError> {
        let namespace = &mirror.namespace;
        let store = self.store.database(&namespace.db);
        let collection = store.collection::<RawDocumentBuf>(&namespace.collection);
        let is_first = token.is_none();
        let events = collection
            .watch()
            .full_document(FullDocumentType::UpdateLookup)
            .max_await_time(AWAIT)
            .resume_after(token);
        let opened = events.await.map_err(|error| match &*error.kind {
            ErrorKind::Command(refusal) if is_first && NONE.contains(&refusal.code) => {
                ShadowError::Unsuitable(format!("{SHARED_WRITES} ({})", refusal.message))
            }
            _ => error.into(),
        })?;
        // What was written until now is told by the stream or read with the collection; nothing is answered before.
        mirror.owes(self.store_time().await?.unwrap_or(0));
        Ok(opened)
    }

    /// Where the stream of a shadow was read to when that was kept last. None without one, or if the shadow holds other
    /// fields now.
    async fn resume_token(&self, mirror: &Mirror) -> Result<Option<ResumeToken>, ShadowError> {
        let find =
            rawdoc! { "find": KEPT_COLLECTION, "filter": { "_id": mirror.namespace.to_string() } };
        let reply = self.demand(KEPT_DB, find).await?;
        let Some(kept) = first_batch(&reply).next() else {
            return Ok(None);
        };
        let definitions = self.cache_definitions(&mirror.namespace).await;
        if definitions.ok() != Some(mirror.definitions()) {
            return Ok(None);
        }
        let token = kept.get_document("token").map_err(unreadable)?;
        let token = Document::try_from(token).map_err(unreadable)?;
        bson::deserialize_from_document(token)
            .map(Some)
            .map_err(unreadable)
    }

    /// Keeps where the stream has been read to, or that there is no such place.
    pub(super) async fn keep_token(
        &self,
        mirror: &Mirror,
        token: Option<&ResumeToken>,
    ) -> Result<(), ShadowError> {
        let id = mirror.namespace.to_string();
        let command = match token {
            None => {
                rawdoc! { "delete": KEPT_COLLECTION, "deletes": [{ "q": { "_id": id }, "limit": 1 }] }
            }
            Some(token) => {
                let token = bson::serialize_to_raw_document_buf(token).map_err(unreadable)?;
                let update = rawdoc! { "q": { "_id": id.clone() }, "u": { "_id": id, "token": token }, "upsert": true };
                rawdoc! { "update": KEPT_COLLECTION, "updates": [update] }
            }
        };
        self.demand(KEPT_DB, command).await.map(drop)
    }
}

impl Follower<'_> {
    /// Applies events for as long as the shadow is the one that they are for.
    async fn run(&mut self) -> Result<(), ShadowError> {
        while self.mirror.is_current(self.epoch) {
            let next = timeout(SILENCE_MAX, self.events.next_if_any()).await;
            let next = next.map_err(|_| Error::from(io::Error::from(io::ErrorKind::TimedOut)))?;
            match next? {
                Some(event) => {
                    // Of a transaction, others may follow with the same time.
                    let is_whole = event.txn_number.is_none();
                    self.apply(event).await?;
                    self.note(is_whole).await?;
                }
                None if self.events.is_alive() => {
                    self.note(true).await?;
                    self.catch_up();
                }
                None => return Err(ShadowError::Changed("its stream ended".to_owned())),
            }
        }
        Ok(())
    }

    /// There is no event now: the shadow answers from now on, if it has followed all that clients know of.
    fn catch_up(&self) {
        if self.mirror.owes_nothing() && self.mirror.complete(self.epoch) {
            let namespace = &self.mirror.namespace;
            tracing::info!(%namespace, "the caches of a collection follow the store");
        }
    }

    async fn apply(&mut self, event: ChangeStreamEvent<RawDocumentBuf>) -> Result<(), ShadowError> {
        let namespace = &self.mirror.namespace;
        let lag = event
            .wall_time
            .and_then(|wrote| wrote.to_system_time().elapsed().ok());
        self.shadow
            .documents
            .set_store_lag(&namespace.to_string(), lag);
        match (event.operation_type, event.full_document) {
            (OperationType::Insert | OperationType::Replace | OperationType::Update, Some(new)) => {
                let new = self.kept.project(&new);
                self.shadow.replace(namespace, vec![new]).await
            }
            // It was deleted before the store looked it up; that is an event of its own.
            (OperationType::Update, None) => Ok(()),
            (OperationType::Delete, _) => {
                let id = event.document_key.as_ref().and_then(|key| key.get("_id"));
                let id = id.ok_or_else(|| unreadable("a deletion without an _id"))?;
                let id = RawBson::try_from(id.clone()).map_err(unreadable)?;
                self.shadow.remove(namespace, [id].iter()).await
            }
            (other, _) => Err(ShadowError::Changed(format!("{other:?}"))),
        }
    }

    /// Tells, and once in a while keeps, where the stream has been read to.
    async fn note(&mut self, is_whole: bool) -> Result<(), ShadowError> {
        let Some(token) = self.events.resume_token() else {
            return Ok(());
        };
        if let Some(at) = time_of(&token) {
            self.mirror.saw(at - u64::from(!is_whole));
        }
        if self.mirror.ready().is_some() && self.kept_at.elapsed() >= KEEP_INTERVAL {
            self.kept_at = Instant::now();
            self.shadow.keep_token(self.mirror, Some(&token)).await?;
        }
        Ok(())
    }
}

/// The cluster time in a resume token: the first eight bytes behind the type, in MongoDB since 4.0 and in Forebay.
fn time_of(token: &ResumeToken) -> Option<u64> {
    let token = bson::serialize_to_document(token).ok()?;
    let time = token.get_str("_data").ok()?.strip_prefix("82")?.get(..16)?;
    u64::from_str_radix(time, 16).ok()
}

/// Could the same be had a little later? Everything else, as an event that cannot be read, would be skipped by going on.
fn is_away(error: &Error) -> bool {
    use ErrorKind::{ConnectionPoolCleared, Io, ServerSelection};
    matches!(
        &*error.kind,
        Io(_) | ServerSelection { .. } | ConnectionPoolCleared { .. }
    )
}
