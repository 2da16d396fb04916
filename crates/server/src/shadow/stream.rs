//! Follows the change stream of a collection, so that writes which do not come through us reach its shadow, too.
//!
//! The stream is opened before the collection is read, and what has happened since is applied over what was read: an
//! event holds the document as it is when the event is read, or as it was, and then a later event follows; so the
//! shadow is that of the store once the stream has been read to its end. How far it has been followed is in the same
//! batch as the changes up to there: no run finds one without the other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{RawBson, RawDocument, RawDocumentBuf, rawdoc};
use forebay_documents::{Replicated, id_key};
use mongodb::raw_batch_cursor::RawBatchCursor;

use super::events::{Batch, Event, Telling, is_away, told_by};
use super::kept::Kept;
use super::place::{Followed, Place, Term, time_of};
use super::{Mirror, Shadow, ShadowError};

/// How often the place in the stream is kept while it has no changes.
const KEEP_INTERVAL: Duration = Duration::from_secs(1);
/// The pause before a stream that broke is opened again.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// Documents, and bytes of them, that are changed in one batch: one at a time costs most of a command each.
const CHANGED_MAX: usize = 1_000;
const CHANGED_BYTES_MAX: usize = 8 << 20;
/// Batches of the stream that are applied together, where it is behind.
const BATCHES_MAX: usize = 16;

/// A stream under way.
struct Follower<'a> {
    shadow: &'a Shadow,
    mirror: &'a Mirror,
    epoch: u64,
    /// What the stream tells, until an error.
    telling: Telling,
    /// What it is of.
    of: Followed,
    /// The term in which it was opened.
    term: Option<Term>,
    /// How far it has been followed; `None` before its first batch.
    place: Option<Place>,
    /// Does the shadow hold what the store had at that place? A load brings later documents, too.
    is_whole: bool,
    kept_at: Instant,
}

/// Events to be applied together: of each document the last.
#[derive(Default)]
struct Changes {
    /// By the key of their `_id`s: the `_id`, and the document unless it was deleted.
    documents: HashMap<Vec<u8>, (RawBson, Option<RawDocumentBuf>)>,
    bytes: usize,
    /// The place behind them.
    token: Option<RawDocumentBuf>,
    /// The token of the last of them.
    event: Option<RawDocumentBuf>,
    /// The cluster time up to which these are all.
    at: Option<u64>,
    lag: Option<Duration>,
}

impl Shadow {
    /// Fills a shadow, or goes on where an earlier run ended, and follows the store until the shadow has to be filled
    /// anew.
    ///
    /// # Errors
    /// Why the shadow is not what the store has any more.
    pub(super) async fn keep_up(&self, mirror: &Mirror) -> Result<(), ShadowError> {
        let epoch = mirror.epoch();
        self.check_suitable(mirror).await?;
        let place = match mirror.take_resumable() {
            true => self.kept_place(mirror).await?,
            false => None,
        };
        let mut follower = match place {
            Some(place) => self.resumed(mirror, epoch, place, true).await?,
            None => self.filled(mirror).await?,
        };
        while let Some(going) = &mut follower {
            match going.run().await {
                Ok(()) => return Ok(()),
                Err(ShadowError::Store(error)) if is_away(&error) => {
                    tracing::warn!(namespace = %mirror.namespace, %error, "the change stream broke");
                    let Some(place) = going.place.take() else {
                        return Err(error.into());
                    };
                    let (epoch, is_whole) = (going.epoch, going.is_whole);
                    follower = self.resumed(mirror, epoch, place, is_whole).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Opens a stream and reads the collection. None if nothing is declared any more.
    async fn filled<'a>(&'a self, mirror: &'a Mirror) -> Result<Option<Follower<'a>>, ShadowError> {
        let term = self.term().await?;
        let events = self.open_stream(mirror, None).await?;
        let Some((kept, epoch)) = self.copy(mirror).await? else {
            return Ok(None);
        };
        // What the load brought is as old as its beginning.
        mirror.owes(self.store_time().await?.unwrap_or(0));
        Ok(Some(self.follower(mirror, kept, epoch, (events, term))))
    }

    /// Goes on with what the shadow held when the stream ended, in an earlier run or in this one; fills it again if the
    /// store cannot go on from there.
    async fn resumed<'a>(
        &'a self,
        mirror: &'a Mirror,
        epoch: u64,
        place: Place,
        is_whole: bool,
    ) -> Result<Option<Follower<'a>>, ShadowError> {
        match self.reopened(mirror, epoch, place, is_whole).await {
            Err(error @ (ShadowError::Store(_) | ShadowError::Lost)) => {
                tracing::warn!(namespace = %mirror.namespace, %error, "the store cannot go on from what is cached");
                self.filled(mirror).await
            }
            reopened => reopened,
        }
    }

    /// Goes on behind a place with shadow number `epoch`; waits for the store. Returns `None` if that is no longer the
    /// latest.
    async fn reopened<'a>(
        &'a self,
        mirror: &'a Mirror,
        epoch: u64,
        place: Place,
        is_whole: bool,
    ) -> Result<Option<Follower<'a>>, ShadowError> {
        let why = "the cache catches up with the store";
        let Some((kept, epoch)) = mirror.fall_behind(epoch, why) else {
            return Ok(None);
        };
        loop {
            match self.open_behind(mirror, &place).await {
                Err(ShadowError::Store(error)) if is_away(&error) => {
                    tracing::warn!(namespace = %mirror.namespace, %error, "the change stream cannot be opened");
                    tokio::time::sleep(REOPEN_PAUSE).await;
                }
                opened => {
                    return Ok(Some(Follower {
                        place: Some(place),
                        is_whole,
                        ..self.follower(mirror, kept, epoch, opened?)
                    }));
                }
            }
            if !mirror.is_current(epoch) {
                return Ok(None);
            }
        }
    }

    /// Opens the stream behind a place, in the present term of the store.
    async fn open_behind(
        &self,
        mirror: &Mirror,
        place: &Place,
    ) -> Result<(RawBatchCursor, Option<Term>), ShadowError> {
        let term = self.term().await?;
        let token = place.token_in(term).ok_or(ShadowError::Lost)?;
        Ok((self.open_stream(mirror, Some(token)).await?, term))
    }

    async fn term(&self) -> Result<Option<Term>, ShadowError> {
        let hello = self.ask_store("admin", rawdoc! { "hello": 1 }).await?;
        Ok(Term::of_hello(&hello))
    }

    fn follower<'a>(
        &'a self,
        mirror: &'a Mirror,
        kept: Arc<Kept>,
        epoch: u64,
        (events, term): (RawBatchCursor, Option<Term>),
    ) -> Follower<'a> {
        mirror.set_followed(epoch);
        Follower {
            shadow: self,
            mirror,
            epoch,
            of: mirror.followed_with(&kept),
            telling: told_by(events, kept),
            term,
            place: None,
            is_whole: false,
            kept_at: Instant::now(),
        }
    }

    /// How far the shadow of an earlier run has followed the store. Returns `None` if the shadow holds other fields
    /// now, or if the store has another collection under the name, as from a backup.
    async fn kept_place(&self, mirror: &Mirror) -> Result<Option<Place>, ShadowError> {
        let namespace = &mirror.namespace;
        let definitions = self.cache_definitions(namespace).await;
        if definitions.ok() != Some(mirror.definitions()) {
            return Ok(None);
        }
        let note = self.documents.note(namespace).map_err(super::refused)?;
        match (note, mirror.kept()) {
            (Some(note), Some(kept)) => Place::of_note(&note, &mirror.followed_with(&kept)),
            _ => Ok(None),
        }
    }
}

impl Mirror {
    /// What a stream of the collection is of, for a shadow that holds this.
    fn followed_with(&self, kept: &Kept) -> Followed {
        Followed {
            collection: self.identity(),
            fields: kept.projection(),
        }
    }
}

impl Follower<'_> {
    /// Applies events for as long as the shadow is the one that they are for.
    async fn run(&mut self) -> Result<(), ShadowError> {
        let mut told = Vec::with_capacity(BATCHES_MAX);
        while self.mirror.is_current(self.epoch) {
            if self.telling.recv_many(&mut told, BATCHES_MAX).await == 0 {
                return Err(ShadowError::Changed("nobody reads its stream".to_owned()));
            }
            let mut changes = Changes::default();
            for batch in told.drain(..) {
                match batch {
                    Ok(batch) => changes = self.take(changes, batch).await?,
                    Err(error) => {
                        self.apply(changes)?;
                        return Err(error);
                    }
                }
            }
            self.apply(changes)?;
            if self.mirror.complete(self.epoch) {
                self.is_whole = true;
                let namespace = &self.mirror.namespace;
                tracing::info!(%namespace, "the caches of a collection follow the store");
            }
        }
        Ok(())
    }

    /// Adds what the stream told to changes that are not applied yet, or applies them.
    async fn take(&mut self, mut changes: Changes, batch: Batch) -> Result<Changes, ShadowError> {
        for event in batch.events {
            let waits = time_of(&event.token).filter(|at| !self.mirror.may_pass(*at));
            if waits.is_some() || changes.is_full() {
                self.apply(std::mem::take(&mut changes))?;
            }
            if let Some(at) = waits {
                self.mirror.passes(at).await;
            }
            changes.add(event);
        }
        changes.token = batch.token.or(changes.token);
        changes.at = batch.at.or(changes.at);
        Ok(changes)
    }

    /// Applies changes, with the place behind them, and tells how far the stream has been followed.
    fn apply(&mut self, changes: Changes) -> Result<(), ShadowError> {
        let place = changes.place(self.place.take(), self.term);
        let note = match &place {
            Some(place) if self.is_whole => Some(place.to_note(&self.of)?),
            _ => None,
        };
        if !changes.documents.is_empty() || note.is_some() && self.keeps_now() {
            self.mirror.changes(changes.documents.keys());
            let (documents, namespace) = (&self.shadow.documents, &self.mirror.namespace);
            let applied = documents.replicate(namespace, &changes.replicated(), note.as_deref());
            applied.map_err(super::refused)?;
        }
        self.place = place;
        if changes.lag.is_some() {
            let namespace = self.mirror.namespace.to_string();
            self.shadow.documents.set_store_lag(&namespace, changes.lag);
        }
        if let Some(at) = changes.at {
            self.mirror.saw(at);
        }
        Ok(())
    }

    /// Whether it is time to keep a place that differs from the last one by its time alone.
    fn keeps_now(&mut self) -> bool {
        let is_due = self.kept_at.elapsed() >= KEEP_INTERVAL;
        if is_due {
            self.kept_at = Instant::now();
        }
        is_due
    }
}

impl Changes {
    fn add(&mut self, event: Event) {
        let Event { token, id, .. } = event;
        let wrote = event.wrote.map(bson::DateTime::to_system_time);
        self.lag = wrote.and_then(|wrote| wrote.elapsed().ok());
        // Another of the same time may follow.
        self.at = time_of(&token).map(|at| at.saturating_sub(1));
        self.bytes += event.document.as_ref().map_or(0, |it| it.as_bytes().len());
        let key = id_key(id.as_raw_bson_ref());
        self.documents.insert(key, (id, event.document));
        self.event = Some(token.clone());
        self.token = Some(token);
    }

    fn is_full(&self) -> bool {
        self.documents.len() >= CHANGED_MAX || self.bytes >= CHANGED_BYTES_MAX
    }

    /// The place behind these changes, which follow those up to another place.
    fn place(&self, before: Option<Place>, term: Option<Term>) -> Option<Place> {
        let Some(token) = self.token.clone() else {
            return before;
        };
        let before = before.and_then(|before| before.event);
        Some(Place {
            token,
            event: self.event.clone().or(before),
            term,
        })
    }

    fn replicated(&self) -> Replicated<'_> {
        let mut replicated = Replicated::default();
        for (id, document) in self.documents.values() {
            match document {
                Some(document) => replicated.present.push(document.as_ref() as &RawDocument),
                None => replicated.deleted.push(id),
            }
        }
        replicated
    }
}
