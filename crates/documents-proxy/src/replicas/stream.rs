//! Follows the change stream of a collection, so that its replica also receives writes that do not come through the
//! proxy.
//!
//! The stream is opened before the collection is read, and its events are applied over the copied documents. An event
//! contains the document as of its own write, or as of a later write, which has its own event. The replica therefore
//! equals the upstream once the stream has been read to its end. The stream's position is stored in one batch with the
//! changes before it, so that the position and the changes match after a restart.

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

/// Interval at which the position in a stream without changes is stored.
const NOTE_INTERVAL: Duration = Duration::from_secs(1);
/// Pause before a broken stream is reopened.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// Maximum documents, and maximum bytes, that are changed in one batch. A batch of one document costs nearly as much as
/// a large one.
const CHANGED_MAX: usize = 1_000;
const CHANGED_BYTES_MAX: usize = 8 << 20;
/// Maximum stream batches that are applied together when the stream lags.
const BATCHES_MAX: usize = 16;

/// A change stream that is being followed.
struct Follower<'a> {
    replicas: &'a Replicas,
    replica: &'a Replica,
    epoch: u64,
    /// Receiver of the stream's batches; an error is the last item.
    events: EventReceiver,
    /// The collection and fields for which the stream's positions are valid.
    of: Subject,
    /// The upstream's term in which the stream was opened.
    term: Option<Term>,
    /// The position up to which changes are applied; `None` before the first batch.
    position: Option<Position>,
    /// Does the replica equal the upstream as of `position`? After a load, the replica may have later versions of
    /// documents.
    is_whole: bool,
    noted_at: Instant,
}

/// Changes to apply together: for each document, only its last event.
#[derive(Default)]
struct Changes {
    /// Maps the key of an `_id` to the `_id` and the changed document; `None` if the document was deleted.
    documents: HashMap<Vec<u8>, (RawBson, Option<RawDocumentBuf>)>,
    bytes: usize,
    /// Resume token after the last change.
    token: Option<RawDocumentBuf>,
    /// Token of the last event among the changes; `None` if there is none.
    event: Option<RawDocumentBuf>,
    /// Cluster time up to which all events are included.
    at: Option<u64>,
    lag: Option<Duration>,
}

impl Replicas {
    /// Loads a replica, or resumes the copy of an earlier process, and follows the upstream until the replica has to be
    /// loaded again.
    ///
    /// # Errors
    /// The reason why the replica no longer equals the upstream.
    pub(super) async fn follow_stream(&self, replica: &Replica) -> Result<(), ReplicaError> {
        let epoch = replica.epoch();
        self.check_suitable(replica).await?;
        let position = if replica.may_resume() {
            self.noted_position(replica).await?
        } else {
            None
        };
        let mut follower = match position {
            Some(position) => {
                let resumed = replica.resume(epoch);
                self.reopen_or_load(replica, resumed, position, true)
                    .await?
            }
            None => self.load_and_follow(replica, epoch).await?,
        };
        while let Some(following) = &mut follower {
            match following.run().await {
                Ok(()) => return Ok(()),
                Err(ReplicaError::Upstream(error)) if is_away(&error) => {
                    tracing::warn!(namespace = %replica.namespace, %error, "the change stream broke");
                    let Some(position) = following.position.take() else {
                        return Err(error.into());
                    };
                    let (lost, is_whole) =
                        (replica.lose_stream(following.epoch), following.is_whole);
                    follower = self
                        .reopen_or_load(replica, lost, position, is_whole)
                        .await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Opens a stream and reads the collection. Returns `None` if the replica was invalidated since epoch `of`.
    async fn load_and_follow<'a>(
        &'a self,
        replica: &'a Replica,
        of: u64,
    ) -> Result<Option<Follower<'a>>, ReplicaError> {
        let term = self.term().await?;
        let events = self.open_stream(replica, None).await?;
        let Some((fields, epoch)) = self.copy(replica, of).await? else {
            return Ok(None);
        };
        // The load reads documents at different times: the copy is consistent only once all changes up to now are
        // applied.
        replica.require_applied(self.upstream_time().await?.unwrap_or(0));
        Ok(Some(self.follower(replica, fields, epoch, (events, term))))
    }

    /// Reopens the stream, which continues after `position`: this process or an earlier one has applied the changes up
    /// to there. Loads the replica again if the upstream cannot resume there.
    async fn reopen_or_load<'a>(
        &'a self,
        replica: &'a Replica,
        resumed: Option<(Arc<ReplicaFields>, u64)>,
        position: Position,
        is_whole: bool,
    ) -> Result<Option<Follower<'a>>, ReplicaError> {
        let Some(of) = resumed else {
            return Ok(None);
        };
        let epoch = of.1;
        match self.reopen(replica, of, position, is_whole).await {
            Err(error @ (ReplicaError::Upstream(_) | ReplicaError::Lost)) => {
                tracing::warn!(namespace = %replica.namespace, %error, "the upstream cannot resume the change stream");
                self.load_and_follow(replica, epoch).await
            }
            reopened => reopened,
        }
    }

    /// Opens the stream after `position`, in the new epoch. Retries while the upstream is away. Returns `None` if the
    /// replica is in a later epoch.
    async fn reopen<'a>(
        &'a self,
        replica: &'a Replica,
        (fields, epoch): (Arc<ReplicaFields>, u64),
        position: Position,
        is_whole: bool,
    ) -> Result<Option<Follower<'a>>, ReplicaError> {
        loop {
            match self.open_after(replica, &position).await {
                Err(ReplicaError::Upstream(error)) if is_away(&error) => {
                    tracing::warn!(namespace = %replica.namespace, %error, "the change stream cannot be opened");
                    tokio::time::sleep(REOPEN_PAUSE).await;
                }
                opened => {
                    return Ok(Some(Follower {
                        position: Some(position),
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

    /// Opens the stream after `position`, in the upstream's current term.
    async fn open_after(
        &self,
        replica: &Replica,
        position: &Position,
    ) -> Result<(RawBatchCursor, Option<Term>), ReplicaError> {
        let term = self.term().await?;
        let token = position.token_in(term).ok_or(ReplicaError::Lost)?;
        Ok((self.open_stream(replica, Some(token)).await?, term))
    }

    async fn term(&self) -> Result<Option<Term>, ReplicaError> {
        let hello = self.ask_upstream("admin", rawdoc! { "hello": 1 }).await?;
        Ok(Term::of_hello(&hello))
    }

    fn follower<'a>(
        &'a self,
        replica: &'a Replica,
        fields: Arc<ReplicaFields>,
        epoch: u64,
        (events, term): (RawBatchCursor, Option<Term>),
    ) -> Follower<'a> {
        replica.start_following(epoch);
        Follower {
            replicas: self,
            replica,
            epoch,
            of: replica.subject(&fields),
            events: read_events(events, fields),
            term,
            position: None,
            is_whole: false,
            noted_at: Instant::now(),
        }
    }

    /// Returns the position that an earlier process stored. Returns `None` if the replicated fields differ, or if the
    /// upstream has another collection under the same name, for example after a restore.
    async fn noted_position(&self, replica: &Replica) -> Result<Option<Position>, ReplicaError> {
        let namespace = &replica.namespace;
        let definitions = self.cache_definitions(namespace).await;
        if definitions.ok() != Some(replica.definitions()) {
            return Ok(None);
        }
        let note = self.documents.note(namespace).map_err(super::refused)?;
        match (note, replica.fields()) {
            (Some(note), Some(fields)) => Position::of_note(&note, &replica.subject(&fields)),
            _ => Ok(None),
        }
    }
}

impl Replica {
    /// Returns the collection and fields for which positions in the stream are valid.
    fn subject(&self, fields: &ReplicaFields) -> Subject {
        Subject {
            collection: self.identity(),
            fields: fields.projection(),
        }
    }
}

impl Follower<'_> {
    /// Applies events until the replica enters another epoch.
    async fn run(&mut self) -> Result<(), ReplicaError> {
        let mut batches = Vec::with_capacity(BATCHES_MAX);
        while self.replica.is_current(self.epoch) {
            if self.events.recv_many(&mut batches, BATCHES_MAX).await == 0 {
                return Err(ReplicaError::Changed(
                    "the reader of the change stream ended".to_owned(),
                ));
            }
            let mut changes = Changes::default();
            for batch in batches.drain(..) {
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

    /// Adds a batch to the pending changes. Applies the pending changes first if they have reached their maximum size,
    /// or if the stream has to pause before an event of the batch.
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

    /// Applies changes together with the position after them.
    fn apply(&mut self, changes: Changes) -> Result<(), ReplicaError> {
        let position = changes.position(self.position.take(), self.term);
        let note = match &position {
            Some(position) if self.is_whole => Some(position.to_note(&self.of)?),
            _ => None,
        };
        if !changes.documents.is_empty() || note.is_some() && self.is_note_due() {
            self.replica.pause_point.record(changes.documents.keys());
            let (documents, namespace) = (&self.replicas.documents, &self.replica.namespace);
            let applied = documents.replicate(namespace, &changes.replicated(), note.as_deref());
            applied.map_err(super::refused)?;
        }
        self.position = position;
        if let Some(lag) = changes.lag {
            self.replica.set_lag(lag);
        }
        if let Some(at) = changes.at {
            self.replica.advance_applied(self.epoch, at);
        }
        Ok(())
    }

    /// Returns whether the position has to be stored even without changes, because it was last stored at least
    /// `NOTE_INTERVAL` ago.
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
        // Another event with the same cluster time may follow, so only the changes of earlier times are complete.
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

    /// Returns the position after these changes. `before` is the position before them.
    fn position(&self, before: Option<Position>, term: Option<Term>) -> Option<Position> {
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
