//! Follows the change stream of a collection, so that writes which do not come through us reach its shadow, too.
//!
//! The stream is opened before the collection is read, and what has happened since is applied over what was read: an event holds
//! the document as it is when the event is read, or as it was, and then a later event follows; so the shadow is that of the
//! store once the stream has been read to its end. Where it has been read to is kept beside the documents of the shadow, in the journal
//! behind them: whoever finds it there finds them, too.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Document, RawBson, RawDocumentBuf, cstr, rawdoc};
use forebay_documents::id_key;
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::{ChangeStreamEvent, OperationType, ResumeToken};
use mongodb::error::{Error, ErrorKind};
use mongodb::options::FullDocumentType;
use tokio::sync::mpsc;
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
/// Codes by which a store says that it stops, or that another is what it was: HostUnreachable, HostNotFound,
/// ShutdownInProgress, PrimarySteppedDown, NotWritablePrimary, InterruptedAtShutdown, InterruptedDueToReplStateChange,
/// NotPrimaryNoSecondaryOk and NotPrimaryOrSecondary.
const LEAVES: [i32; 9] = [6, 7, 91, 189, 10107, 11600, 11602, 13435, 13436];
/// The longest silence of a store that is there.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Events that are read ahead, and applied together: one at a time costs most of a command each.
const EVENTS_MAX: usize = 1_000;

type Event = ChangeStreamEvent<RawDocumentBuf>;
type Events = ChangeStream<Event>;

/// What a stream has told: an event, or that there is none now; and where it has been read to.
struct Told {
    event: Option<Event>,
    token: Option<ResumeToken>,
}

/// A stream under way.
struct Follower<'a> {
    shadow: &'a Shadow,
    mirror: &'a Mirror,
    epoch: u64,
    /// What the stream tells, until an error.
    telling: mpsc::Receiver<Result<Told, ShadowError>>,
    /// Where it has been followed to.
    token: Option<ResumeToken>,
    kept_at: Instant,
}

/// Events to be applied together: of each document the last.
#[derive(Default)]
struct Changes {
    /// By the key of their `_id`s: the `_id`, and the document unless it was deleted.
    documents: HashMap<Vec<u8>, (RawBson, Option<RawDocumentBuf>)>,
    token: Option<ResumeToken>,
    /// Of a transaction, others may follow with the same time.
    is_part: bool,
    lag: Option<Duration>,
}

impl Shadow {
    /// Fills a shadow, or goes on where an earlier run ended, and follows the store until the shadow has to be filled anew.
    ///
    /// # Errors
    /// Why the shadow is not what the store has any more.
    pub(super) async fn keep_up(&self, mirror: &Mirror) -> Result<(), ShadowError> {
        let epoch = mirror.epoch();
        self.check_suitable(mirror).await?;
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
                    let Some(token) = going.token.take() else {
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
        // What the load brought is as old as its beginning.
        mirror.owes(self.store_time().await?.unwrap_or(0));
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
        mirror.set_followed(epoch);
        Follower {
            shadow: self,
            mirror,
            epoch,
            token: events.resume_token(),
            telling: told_by(events, kept),
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

    /// Where the stream of a shadow was read to when that was kept last. None without one, if the shadow holds other fields
    /// now, or if the store has another collection under the name, as from a backup.
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
        let identity = kept.get("collection").ok().flatten();
        if identity.map(RawBson::from) != mirror.identity() {
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
                let mut kept = rawdoc! { "_id": id.clone(), "token": token };
                if let Some(identity) = mirror.identity() {
                    kept.append(cstr!("collection"), identity);
                }
                let update = rawdoc! { "q": { "_id": id }, "u": kept, "upsert": true };
                rawdoc! { "update": KEPT_COLLECTION, "updates": [update] }
            }
        };
        self.demand(KEPT_DB, command).await.map(drop)
    }
}

impl Follower<'_> {
    /// Applies events for as long as the shadow is the one that they are for.
    async fn run(&mut self) -> Result<(), ShadowError> {
        let mut told = Vec::with_capacity(EVENTS_MAX);
        while self.mirror.is_current(self.epoch) {
            if self.telling.recv_many(&mut told, EVENTS_MAX).await == 0 {
                return Err(ShadowError::Changed("nobody reads its stream".to_owned()));
            }
            let mut changes = Changes::default();
            for told in told.drain(..) {
                match told {
                    Ok(told) => changes = self.take(changes, told).await?,
                    Err(error) => {
                        self.apply(changes).await?;
                        return Err(error);
                    }
                }
            }
            self.apply(changes).await?;
            if self.mirror.complete(self.epoch) {
                let namespace = &self.mirror.namespace;
                tracing::info!(%namespace, "the caches of a collection follow the store");
            }
        }
        Ok(())
    }

    /// Adds what the stream told to changes that are not applied yet, or applies them.
    async fn take(&mut self, mut changes: Changes, told: Told) -> Result<Changes, ShadowError> {
        let Some(event) = told.event else {
            changes.token = told.token;
            changes.is_part = false;
            return Ok(changes);
        };
        if let Some(at) = told.token.as_ref().and_then(time_of)
            && !self.mirror.may_pass(at)
        {
            self.apply(std::mem::take(&mut changes)).await?;
            self.mirror.passes(at).await;
        }
        changes.token = told.token;
        changes.add(event)?;
        Ok(changes)
    }

    /// Applies changes; tells, and once in a while keeps, where the stream has been followed to.
    async fn apply(&mut self, changes: Changes) -> Result<(), ShadowError> {
        let namespace = &self.mirror.namespace;
        let (mut gone, mut new) = (Vec::new(), Vec::new());
        self.mirror.changes(changes.documents.keys());
        for (id, document) in changes.documents.into_values() {
            match document {
                Some(document) => new.push(document),
                None => gone.push(id),
            }
        }
        self.shadow.remove(namespace, gone.iter()).await?;
        self.shadow.replace(namespace, new).await?;
        if changes.lag.is_some() {
            let namespace = namespace.to_string();
            self.shadow.documents.set_store_lag(&namespace, changes.lag);
        }
        let Some(token) = changes.token else {
            return Ok(());
        };
        if let Some(at) = time_of(&token) {
            self.mirror.saw(at - u64::from(changes.is_part));
        }
        if self.mirror.ready().is_some() && self.kept_at.elapsed() >= KEEP_INTERVAL {
            self.kept_at = Instant::now();
            self.shadow.keep_token(self.mirror, Some(&token)).await?;
        }
        self.token = Some(token);
        Ok(())
    }
}

impl Changes {
    fn add(&mut self, event: Event) -> Result<(), ShadowError> {
        self.is_part = event.txn_number.is_some();
        let wrote = event.wall_time;
        self.lag = wrote.and_then(|wrote| wrote.to_system_time().elapsed().ok());
        let new = match (event.operation_type, event.full_document) {
            (OperationType::Insert | OperationType::Replace | OperationType::Update, Some(new)) => {
                Some(new)
            }
            // It was deleted before the store looked it up; that is an event of its own.
            (OperationType::Update, None) => return Ok(()),
            (OperationType::Delete, _) => None,
            (other, _) => return Err(ShadowError::Changed(format!("{other:?}"))),
        };
        let id = event.document_key.as_ref().and_then(|key| key.get("_id"));
        let id = id.ok_or_else(|| unreadable("an event without an _id"))?;
        let id = RawBson::try_from(id.clone()).map_err(unreadable)?;
        let key = id_key(id.as_raw_bson_ref());
        self.documents.insert(key, (id, new));
        Ok(())
    }
}

/// Reads a stream, some events ahead of who takes them, until an error. Of documents it gives what is kept: they may be large.
fn told_by(mut events: Events, kept: Arc<Kept>) -> mpsc::Receiver<Result<Told, ShadowError>> {
    let (sender, receiver) = mpsc::channel(EVENTS_MAX);
    tokio::spawn(async move {
        loop {
            let told = next(&mut events, &kept).await;
            let is_last = told.is_err();
            if sender.send(told).await.is_err() || is_last {
                return;
            }
        }
    });
    receiver
}

async fn next(events: &mut Events, kept: &Kept) -> Result<Told, ShadowError> {
    let next = timeout(SILENCE_MAX, events.next_if_any()).await;
    let next = next.map_err(|_| Error::from(io::Error::from(io::ErrorKind::TimedOut)))?;
    match next? {
        None if !events.is_alive() => Err(ShadowError::Changed("its stream ended".to_owned())),
        mut event => {
            let document = event
                .as_mut()
                .and_then(|event| event.full_document.as_mut());
            if let Some(document) = document {
                *document = kept.project(document);
            }
            Ok(Told {
                event,
                token: events.resume_token(),
            })
        }
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
    use ErrorKind::{Command, ConnectionPoolCleared, Io, ServerSelection};
    match &*error.kind {
        Io(_) | ServerSelection { .. } | ConnectionPoolCleared { .. } => true,
        Command(error) => LEAVES.contains(&error.code),
        _ => false,
    }
}
