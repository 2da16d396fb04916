//! Reads the change stream of a collection, batch by batch.
//!
//! The driver's own change streams resume by themselves after an error. After an error, however, the upstream may have
//! lost writes that it had reported. A replica must therefore stop answering until the upstream has accepted the resume
//! token. To notice errors, this module reads the cursor of an `aggregate` instead.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bson::{RawBson, RawDocument, RawDocumentBuf, rawdoc};
use futures_util::StreamExt;
use mongodb::error::{Error, ErrorKind};
use mongodb::raw_batch_cursor::{RawBatch, RawBatchCursor};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::fields::ReplicaFields;
use super::position::time_of;
use super::{Replica, ReplicaError, Replicas, unreadable};

const SHARED_WRITES: &str = "the upstream has no change streams, so writes that do not come through Forebay cannot be followed: start \
    Forebay with --upstream-writes exclusive if there are no such writes";
/// Time for which the upstream waits for an event before it sends an empty batch. A write that changed nothing has no
/// event, so its client waits up to this long for its reply.
const AWAIT: Duration = Duration::from_millis(50);
/// Maximum time for which the stream waits for a reply. Until then, the replica answers reads, although an upstream
/// whose machine disappeared may come back without its last writes. If the upstream was only busy, the stream resumes
/// at its last position.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Maximum batches that wait to be applied.
const BATCHES_AHEAD: usize = 2;
/// A batch of at least this many bytes may be full. A full batch may end between two events with the same cluster time.
const FULL_BATCH_BYTES: usize = 12 << 20;
/// Error codes of an upstream without change streams: CommandNotFound, CommandNotSupported, NotImplemented, unknown
/// pipeline stage, and `$changeStream` outside a replica set.
const NONE: [i32; 5] = [59, 115, 238, 40324, 40573];
/// Error codes of an upstream that shuts down or is no longer the primary: HostUnreachable, HostNotFound,
/// ShutdownInProgress, PrimarySteppedDown, NotWritablePrimary, InterruptedAtShutdown, InterruptedDueToReplStateChange,
/// NotPrimaryNoSecondaryOk and NotPrimaryOrSecondary.
const LEAVES: [i32; 9] = [6, 7, 91, 189, 10107, 11600, 11602, 13435, 13436];

/// A change of one document.
#[derive(Debug)]
pub(super) struct Event {
    pub token: RawDocumentBuf,
    pub id: RawBson,
    /// The document's replicated fields; `None` if the document was deleted.
    pub document: Option<RawDocumentBuf>,
    /// Wall-clock time of the write at the upstream.
    pub wrote: Option<bson::DateTime>,
    /// Is the event part of a transaction? Other events may then follow with the same cluster time.
    is_part: bool,
}

/// A batch of a change stream.
#[derive(Debug)]
pub(super) struct Batch {
    pub events: Vec<Event>,
    /// Token with which the stream resumes after this batch.
    pub token: Option<RawDocumentBuf>,
    /// Cluster time up to which this batch and the earlier ones report all changes.
    pub at: Option<u64>,
}

/// Channel with the batches of a stream. After an error, nothing more is sent.
pub(super) type EventReceiver = mpsc::Receiver<Result<Batch, ReplicaError>>;

impl Replicas {
    /// Opens the change stream of a collection, after `token` if there is one.
    pub(super) async fn open_stream(
        &self,
        replica: &Replica,
        token: Option<&RawDocument>,
    ) -> Result<RawBatchCursor, ReplicaError> {
        let mut options = rawdoc! { "fullDocument": "updateLookup" };
        if let Some(token) = token {
            options.append(bson::cstr!("resumeAfter"), token.to_owned());
        }
        let command = rawdoc! {
            "aggregate": replica.namespace.collection.as_str(),
            "pipeline": [{ "$changeStream": options }],
            "cursor": {},
            "readConcern": { "level": "majority" },
        };
        let db = self.client.database(&replica.namespace.db);
        let opened = db.run_raw_cursor_command(command).max_time(AWAIT).batch();
        let opened =
            self.unless_hung(opened.into_future())
                .await?
                .map_err(|error| match &*error.kind {
                    ErrorKind::Command(refusal)
                        if token.is_none() && NONE.contains(&refusal.code) =>
                    {
                        ReplicaError::Unsuitable(format!("{SHARED_WRITES} ({})", refusal.message))
                    }
                    _ => error.into(),
                })?;
        // Earlier writes are reported by the stream or read by the load. The replica does not answer before it has
        // applied all writes up to now.
        replica.require_applied(self.upstream_time().await?.unwrap_or(0));
        Ok(opened)
    }
}

/// Reads a stream in the background until an error, at most `BATCHES_AHEAD` batches ahead of the consumer. Keeps only
/// the cached fields, because whole documents may be large.
pub(super) fn read_events(mut cursor: RawBatchCursor, fields: Arc<ReplicaFields>) -> EventReceiver {
    let (sender, receiver) = mpsc::channel(BATCHES_AHEAD);
    tokio::spawn(async move {
        let mut is_first = true;
        loop {
            let batch = next(&mut cursor).await;
            let batch = batch.and_then(|batch| read(batch.as_raw_document(), &fields, is_first));
            let is_last = batch.is_err();
            is_first = false;
            if sender.send(batch).await.is_err() || is_last {
                return;
            }
        }
    });
    receiver
}

async fn next(cursor: &mut RawBatchCursor) -> Result<RawBatch, ReplicaError> {
    let next = timeout(SILENCE_MAX, cursor.next()).await;
    let next = next.map_err(|_| Error::from(io::Error::from(io::ErrorKind::TimedOut)))?;
    let ended = || ReplicaError::Changed("the change stream ended".to_owned());
    Ok(next.ok_or_else(ended)??)
}

/// Parses a reply with a batch of events.
fn read(
    reply: &RawDocument,
    fields: &ReplicaFields,
    is_first: bool,
) -> Result<Batch, ReplicaError> {
    let cursor = reply.get_document("cursor").map_err(unreadable)?;
    let batch = if is_first { "firstBatch" } else { "nextBatch" };
    let mut events = Vec::new();
    for event in cursor.get_array(batch).map_err(unreadable)? {
        let event = event.map_err(unreadable)?;
        let event = event
            .as_document()
            .ok_or_else(|| unreadable("an event that is not a document"))?;
        events.extend(Event::read(event, fields)?);
    }
    let token = cursor.get_document("postBatchResumeToken");
    let last = events.last();
    let token = match token {
        Ok(token) => Some(token.to_owned()),
        Err(_) => last.map(|event: &Event| event.token.clone()),
    };
    // The upstream also limits the number of events in the first batch. The batch may therefore end between two events
    // with the same cluster time.
    let may_be_cut = is_first || reply.as_bytes().len() >= FULL_BATCH_BYTES;
    let is_part = last.is_some_and(|last| last.is_part || may_be_cut);
    let at = token.as_deref().and_then(time_of);
    Ok(Batch {
        events,
        token,
        at: at.map(|at| at - u64::from(is_part)),
    })
}

impl Event {
    /// Parses an event. Returns `None` for an update whose document was deleted before the upstream looked it up: a
    /// separate event reports the deletion.
    fn read(event: &RawDocument, fields: &ReplicaFields) -> Result<Option<Event>, ReplicaError> {
        let kind = event.get_str("operationType").map_err(unreadable)?;
        let new = event.get_document("fullDocument").ok();
        let document = match (kind, new) {
            ("insert" | "replace" | "update", Some(new)) => Some(fields.project(new)),
            ("update", None) => return Ok(None),
            ("delete", _) => None,
            (other, _) => return Err(ReplicaError::Changed(other.to_owned())),
        };
        let key = event.get_document("documentKey").map_err(unreadable)?;
        let id = key.get("_id").map_err(unreadable)?;
        Ok(Some(Event {
            token: event.get_document("_id").map_err(unreadable)?.to_owned(),
            id: id
                .ok_or_else(|| unreadable("an event without an _id"))?
                .into(),
            document,
            wrote: event.get_datetime("wallTime").ok(),
            is_part: !matches!(event.get("txnNumber"), Ok(None)),
        }))
    }
}

/// Returns whether the stream may resume after this error. After any other error, such as an unreadable event, resuming
/// would skip changes.
pub(super) fn is_away(error: &Error) -> bool {
    use ErrorKind::{Command, ConnectionPoolCleared, Io, ServerSelection};
    match &*error.kind {
        Io(_) | ServerSelection { .. } | ConnectionPoolCleared { .. } => true,
        Command(error) => LEAVES.contains(&error.code),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use bson::RawArrayBuf;

    use super::*;

    fn fields() -> ReplicaFields {
        ReplicaFields::new(vec!["name".to_owned()])
    }

    fn token(at: u64) -> RawDocumentBuf {
        rawdoc! { "_data": format!("82{at:016X}01") }
    }

    fn insert(at: u64, id: i32) -> RawDocumentBuf {
        rawdoc! {
            "_id": token(at), "operationType": "insert", "documentKey": { "_id": id },
            "fullDocument": { "_id": id, "name": "x", "other": 1 },
        }
    }

    fn reply(is_first: bool, events: &[RawDocumentBuf], after: Option<u64>) -> RawDocumentBuf {
        let mut cursor = RawDocumentBuf::new();
        let batch: RawArrayBuf = events.iter().cloned().collect();
        if is_first {
            cursor.append(bson::cstr!("firstBatch"), batch)
        } else {
            cursor.append(bson::cstr!("nextBatch"), batch)
        }
        if let Some(at) = after {
            cursor.append(bson::cstr!("postBatchResumeToken"), token(at));
        }
        rawdoc! { "cursor": cursor, "ok": 1.0 }
    }

    fn at(reply: &RawDocument, is_first: bool) -> Option<u64> {
        read(reply, &fields(), is_first)
            .expect("a reply with a batch")
            .at
    }

    #[test]
    fn a_batch_says_up_to_when_it_is_complete() {
        let two = [insert(7, 1), insert(7, 2)];
        assert_eq!(at(&reply(false, &two, Some(7)), false), Some(7));
        assert_eq!(at(&reply(false, &two, Some(9)), false), Some(9));
        assert_eq!(at(&reply(false, &two, None), false), Some(7));
        assert_eq!(at(&reply(false, &[], Some(9)), false), Some(9));
        assert_eq!(at(&reply(true, &[], Some(9)), true), Some(9));
        // The next batch may have more events of cluster time 7.
        assert_eq!(at(&reply(true, &two, Some(7)), true), Some(6));
        let mut part = insert(7, 3);
        part.append(bson::cstr!("txnNumber"), 1i64);
        assert_eq!(at(&reply(false, &[part], Some(7)), false), Some(6));
        let mut large = insert(7, 4);
        large.append(bson::cstr!("large"), "x".repeat(FULL_BATCH_BYTES));
        assert_eq!(at(&reply(false, &[large], Some(7)), false), Some(6));
    }

    #[test]
    fn events_have_the_document_or_its_deletion() {
        let gone =
            rawdoc! { "_id": token(2), "operationType": "delete", "documentKey": { "_id": 2 } };
        // The document was deleted before the upstream looked it up.
        let update = rawdoc! {
            "_id": token(3), "operationType": "update", "documentKey": { "_id": 2 }, "fullDocument": RawBson::Null,
        };
        let all = reply(false, &[insert(1, 1), gone, update], Some(3));
        let batch = read(&all, &fields(), false).expect("a reply with a batch");
        let documents: Vec<_> = batch
            .events
            .iter()
            .map(|event| event.document.clone())
            .collect();
        assert_eq!(documents, [Some(rawdoc! { "_id": 1, "name": "x" }), None]);
        assert_eq!(batch.token, Some(token(3)));
        let end = rawdoc! { "_id": token(4), "operationType": "invalidate" };
        let end = read(&reply(false, &[end], Some(4)), &fields(), false);
        assert!(matches!(end, Err(ReplicaError::Changed(_))));
    }
}
