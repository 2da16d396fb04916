//! Follows the change stream of a collection, so that writes which do not come through us reach its replica, too.
//!
//! The stream is opened before the collection is read, and what has happened since is applied over what was read: an
//! event holds the document as it is when the event is read, or as it was, and then a later event follows; so the
//! replica is that of the upstream once the stream has been read to its end. How far it has been followed is in the
//! same batch as the changes up to there: no run finds one without the other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{RawBson, RawDocument, RawDocumentBuf, rawdoc};
use forebay_documents::{Replicated, id_key};
use mongodb::raw_batch_cursor::RawBatchCursor;

use super::events::{Batch, Event, EventReceiver, is_away, read_events};
use super::fields::ReplicaFields;
use super::position::{Position, Subject, Term, time_of};
use super::{Replica, ReplicaError, Replicas};

/// How often the place in the stream is kept while it has no changes.
const NOTE_INTERVAL: Duration = Duration::from_secs(1);
/// The pause before a stream that broke is opened again.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// Documents, and bytes of them, that are changed in one batch: one at a time costs most of a command each.
const CHANGED_MAX: usize = 1_000;
const CHANGED_BYTES_MAX: usize = 8 << 20;
/// Batches of the stream that are applied together, where it is behind.
const BATCHES_MAX: usize = 16;

/// A stream under strategy.
struct Follower<'a> {
    replicas: &'a Replicas,
    replica: &'a Replica,
    epoch: u64,
    /// What the stream tells, until an error.
    events: EventReceiver,
    /// What it is of.
    of: Subject,
    /// The term in which it was opened.
    term: Option<Term>,
    /// How far it has been followed; `None` before its first batch.
    place: Option<Position>,
    /// Does the replica hold what the upstream had at that place? A load brings later documents, too.
    is_whole: bool,
    noted_at: Instant,
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

impl Replicas {
    /// Fills a replica, or goes on where an earlier run ended, and follows the upstream until the replica has to be
    /// filled anew.
    ///
    /// # Errors
    /// Why the replica is not what the upstream has any more.
    pub(super) async fn follow_stream(&self, replica: &Replica) -> Result<(), ReplicaError> {
        let epoch = replica.epoch();
        self.check_suitable(replica).await?;
        let place = match replica.may_resume() {
            true => self.noted_position(replica).await?,
            false => None,
        };
        let mut follower = match place {
            Some(place) => {
                let resumed = replica.resume(epoch);
                self.reopened_or_loaded(replica, resumed, place, true)
                    .await?
            }
            None => self.load_and_follow(replica).await?,
        };
        while let Some(going) = &mut follower {
            match going.run().await {
                Ok(()) => return Ok(()),
                Err(ReplicaError::Upstream(error)) if is_away(&error) => {
                    tracing::warn!(namespace = %replica.namespace, %error, "the change stream broke");
                    let Some(place) = going.place.take() else {
                        return Err(error.into());
                    };
                    let (lost, is_whole) = (replica.lose_stream(going.epoch), going.is_whole);
                    follower = self
                        .reopened_or_loaded(replica, lost, place, is_whole)
                        .await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Opens a stream and reads the collection. None if nothing is declared any more.
    async fn load_and_follow<'a>(
        &'a self,
        replica: &'a Replica,
    ) -> Result<Option<Follower<'a>>, ReplicaError> {
        let term = self.term().await?;
        let events = self.open_stream(replica, None).await?;
        let Some((kept, epoch)) = self.copy(replica).await? else {
            return Ok(None);
        };
        // What the load brought is as old as its beginning.
        replica.require_applied(self.upstream_time().await?.unwrap_or(0));
        Ok(Some(self.follower(replica, kept, epoch, (events, term))))
    }

    /// Goes on with what the replica held when the stream ended, in an earlier run or in this one; fills it again if
    /// the store cannot go on from there.
    async fn reopened_or_loaded<'a>(
        &'a self,
        replica: &'a Replica,
        resumed: Option<(Arc<ReplicaFields>, u64)>,
        place: Position,
        is_whole: bool,
    ) -> Result<Option<Follower<'a>>, ReplicaError> {
        let Some(of) = resumed else {
            return Ok(None);
        };
        match self.reopened(replica, of, place, is_whole).await {
            Err(error @ (ReplicaError::Upstream(_) | ReplicaError::Lost)) => {
                tracing::warn!(namespace = %replica.namespace, %error, "the upstream cannot go on from what is cached");
                self.load_and_follow(replica).await
            }
            reopened => reopened,
        }
    }

    /// Goes on behind a place with replica number `epoch`; waits for the upstream. Returns `None` if that is no longer
    /// the latest.
    async fn reopened<'a>(
        &'a self,
        replica: &'a Replica,
        (fields, epoch): (Arc<ReplicaFields>, u64),
        place: Position,
        is_whole: bool,
    ) -> Result<Option<Follower<'a>>, ReplicaError> {
        loop {
            match self.open_after(replica, &place).await {
                Err(ReplicaError::Upstream(error)) if is_away(&error) => {
                    tracing::warn!(namespace = %replica.namespace, %error, "the change stream cannot be opened");
                    tokio::time::sleep(REOPEN_PAUSE).await;
                }
                opened => {
                    return Ok(Some(Follower {
                        place: Some(place),
                        is_whole,
                        ..self.follower(replica, fields, epoch, opened?)
                    }));
                }
            }
            if !replica.is_current(epoch) {
                return Ok(None);
            }
        }
    }

    /// Opens the stream behind a place, in the present term of the upstream.
    async fn open_after(
        &self,
        replica: &Replica,
        place: &Position,
    ) -> Result<(RawBatchCursor, Option<Term>), ReplicaError> {
        let term = self.term().await?;
        let token = place.token_in(term).ok_or(ReplicaError::Lost)?;
        Ok((self.open_stream(replica, Some(token)).await?, term))
    }

    async fn term(&self) -> Result<Option<Term>, ReplicaError> {
        let hello = self.ask_upstream("admin", rawdoc! { "hello": 1 }).await?;
        Ok(Term::of_hello(&hello))
    }

    fn follower<'a>(
        &'a self,
        replica: &'a Replica,
        kept: Arc<ReplicaFields>,
        epoch: u64,
        (events, term): (RawBatchCursor, Option<Term>),
    ) -> Follower<'a> {
        replica.start_following(epoch);
        Follower {
            replicas: self,
            replica,
            epoch,
            of: replica.subject(&kept),
            events: read_events(events, kept),
            term,
            place: None,
            is_whole: false,
            noted_at: Instant::now(),
        }
    }

    /// How far the replica of an earlier run has followed the upstream. Returns `None` if the replica holds other
    /// fields now, or if the upstream has another collection under the name, as from a backup.
    async fn noted_position(&self, replica: &Replica) -> Result<Option<Position>, ReplicaError> {
        let namespace = &replica.namespace;
        let definitions = self.cache_definitions(namespace).await;
        if definitions.ok() != Some(replica.definitions()) {
            return Ok(None);
        }
        let note = self.documents.note(namespace).map_err(super::refused)?;
        match (note, replica.fields()) {
            (Some(note), Some(kept)) => Position::of_note(&note, &replica.subject(&kept)),
            _ => Ok(None),
        }
    }
}

impl Replica {
    /// What a stream of the collection is of, for a replica that holds this.
    fn subject(&self, kept: &ReplicaFields) -> Subject {
        Subject {
            collection: self.identity(),
            fields: kept.projection(),
        }
    }
}

impl Follower<'_> {
    /// Applies events for as long as the replica is the one that they are for.
    async fn run(&mut self) -> Result<(), ReplicaError> {
        let mut told = Vec::with_capacity(BATCHES_MAX);
        while self.replica.is_current(self.epoch) {
            if self.events.recv_many(&mut told, BATCHES_MAX).await == 0 {
                return Err(ReplicaError::Changed("nobody reads its stream".to_owned()));
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
            if self.replica.complete(self.epoch) {
                self.is_whole = true;
                let namespace = &self.replica.namespace;
                tracing::info!(%namespace, "the caches of a collection follow the upstream");
            }
        }
        Ok(())
    }

    /// Adds what the stream told to changes that are not applied yet, or applies them.
    async fn take(&mut self, mut changes: Changes, batch: Batch) -> Result<Changes, ReplicaError> {
        for event in batch.events {
            let waits = time_of(&event.token).filter(|at| !self.replica.pause_point.lets_pass(*at));
            if waits.is_some() || changes.is_full() {
                self.apply(std::mem::take(&mut changes))?;
            }
            if let Some(at) = waits {
                self.replica.pause_point.wait(at).await;
            }
            changes.add(event);
        }
        changes.token = batch.token.or(changes.token);
        changes.at = batch.at.or(changes.at);
        Ok(changes)
    }

    /// Applies changes, with the place behind them, and tells how far the stream has been followed.
    fn apply(&mut self, changes: Changes) -> Result<(), ReplicaError> {
        let place = changes.place(self.place.take(), self.term);
        let note = match &place {
            Some(place) if self.is_whole => Some(place.to_note(&self.of)?),
            _ => None,
        };
        if !changes.documents.is_empty() || note.is_some() && self.is_note_due() {
            self.replica.pause_point.record(changes.documents.keys());
            let (documents, namespace) = (&self.replicas.documents, &self.replica.namespace);
            let applied = documents.replicate(namespace, &changes.replicated(), note.as_deref());
            applied.map_err(super::refused)?;
        }
        self.place = place;
        if changes.lag.is_some() {
            let namespace = self.replica.namespace.to_string();
            self.replicas
                .documents
                .set_store_lag(&namespace, changes.lag);
        }
        if let Some(at) = changes.at {
            self.replica.advance_applied(self.epoch, at);
        }
        Ok(())
    }

    /// Whether it is time to keep a place that differs from the last one by its time alone.
    fn is_note_due(&mut self) -> bool {
        let is_due = self.noted_at.elapsed() >= NOTE_INTERVAL;
        if is_due {
            self.noted_at = Instant::now();
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
    fn place(&self, before: Option<Position>, term: Option<Term>) -> Option<Position> {
        let Some(token) = self.token.clone() else {
            return before;
        };
        let before = before.and_then(|before| before.event);
        Some(Position {
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
