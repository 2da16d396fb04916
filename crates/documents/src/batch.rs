//! Batches: the documents of a stream, written to the `cursor` document of a reply.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use forebay_cancel::{Stop, StopReason};
use forebay_documents_query::Code;
use forebay_documents_query::element::Writer;
use forebay_documents_store::Watch;
use forebay_memory::Share;

use crate::change_stream::ResumeToken;
use crate::cursors::{Cursor, Lease};
use crate::dispatch::Reply;
use crate::error::CommandError;
use crate::namespace::Namespace;
use crate::places::aside;
use crate::request::Request;
use crate::scope::ClientKey;
use crate::settings::DOCUMENT_BYTES_MAX;
use crate::streams::Stream;

/// Default number of documents in the first batch.
pub const FIRST_BATCH_DOCUMENTS: u64 = 101;
/// Maximum bytes of a batch of several documents. A batch of one document is bounded only by the maximum size of a
/// document.
const BATCH_BYTES_MAX: usize = DOCUMENT_BYTES_MAX;
/// Maximum bytes of a batch that is not charged to the memory account.
const FREE_BYTES_MAX: usize = 16 * 1024;
/// Copies of a reply in memory: the reply itself, and the message that is sent.
const COPIES: usize = 2;
/// Initial capacity of a reply in bytes.
const REPLY_BYTES: usize = 1024;
/// Default time that a `getMore` of a change stream waits for an event, as in MongoDB.
const AWAIT_TIME: Duration = Duration::from_secs(1);

/// The client's options for batches.
#[derive(Debug, Clone, Copy, Default)]
pub struct BatchOptions {
    /// Maximum number of documents in the first batch. The default is [`FIRST_BATCH_DOCUMENTS`].
    pub size: Option<u64>,
    /// Whether the cursor is closed after the first batch (`singleBatch`).
    pub single: bool,
    /// Whether the cursor never times out.
    pub no_timeout: bool,
}

/// Replies with the first batch of a stream, and keeps a cursor open if there may be more documents.
///
/// # Errors
/// The stream's error, or `ExceededMemoryLimit` if too many cursors are open.
pub async fn open(
    request: &Request<'_>,
    namespace: &Namespace,
    stream: Box<dyn Stream>,
    options: BatchOptions,
) -> Reply {
    let mut cursor = Box::new(Cursor {
        namespace: namespace.clone(),
        stream,
        search: request.current_search(),
        held: None,
        owner: request.owner(),
        client: ClientKey::of(request.client),
        no_timeout: options.no_timeout,
        time_left: None,
        stop: request.shared_stop.clone(),
        link: request.client.link.clone(),
    });
    let size = options.size.unwrap_or(FIRST_BATCH_DOCUMENTS);
    let batch = make(
        &mut cursor,
        "firstBatch",
        size,
        request.stop(),
        &request.client.reply,
    )
    .await?;
    let id = if batch.more && !options.single {
        keep(request, cursor)?
    } else {
        0
    };
    Ok(batch.finish(id, namespace))
}

fn keep(request: &Request<'_>, mut cursor: Box<Cursor>) -> Result<i64, CommandError> {
    if cursor.stream.changes().is_none() {
        cursor.time_left = time_left(request.stop());
    }
    request.documents.cursors().keep(cursor)
}

fn time_left(stop: &Stop) -> Option<Duration> {
    stop.deadline
        .map(|deadline| deadline.saturating_duration_since(Instant::now()))
}

/// Replies with the next batch of an open cursor. For a change stream, first waits for an event if there is none yet.
///
/// # Errors
/// The stream's error, which closes the cursor.
pub async fn next(
    request: &Request<'_>,
    id: i64,
    namespace: &Namespace,
    size: Option<u64>,
) -> Reply {
    let mut lease = request
        .documents
        .cursors()
        .take(id, namespace, &request.owner())?;
    if let Some(search) = lease.cursor().search.clone() {
        request.continue_search(search);
    }
    lease.cursor().link = request.client.link.clone();
    let size = size.unwrap_or(u64::MAX);
    let batch = match lease.cursor().stream.changes() {
        Some(_) => await_changes(request, &mut lease, size).await?,
        None => next_of_query(request, lease.cursor(), size).await?,
    };
    if !batch.more {
        return Ok(batch.finish(0, namespace));
    }
    lease.give_back()?;
    Ok(batch.finish(id, namespace))
}

async fn next_of_query(
    request: &Request<'_>,
    cursor: &mut Cursor,
    size: u64,
) -> Result<Batch, CommandError> {
    let stop = earlier(request.stop(), cursor.time_left);
    let batch = make(cursor, "nextBatch", size, &stop, &request.client.reply).await?;
    cursor.time_left = cursor.time_left.and_then(|_| time_left(&stop));
    Ok(batch)
}

/// Returns the next batch of a change stream. If the batch would be empty, waits until a change concerns the stream,
/// `maxTimeMS` has passed, the cursor is closed, or the server stops.
async fn await_changes(
    request: &Request<'_>,
    lease: &mut Lease,
    size: u64,
) -> Result<Batch, CommandError> {
    let time = request.generic.time_limit.unwrap_or(AWAIT_TIME);
    let until = Instant::now() + time;
    let stop = Stop {
        deadline: Some(until),
        cancelled: request.stop().cancelled.clone(),
    };
    let killed = lease.killed();
    loop {
        let batch = make(
            lease.cursor(),
            "nextBatch",
            size,
            &stop,
            &request.client.reply,
        )
        .await?;
        let Some(watch) = batch.watch.clone().filter(|_| batch.count == 0) else {
            return Ok(batch);
        };
        tokio::select! {
            () = watch.changed() => {}
            () = killed.notified() => return Ok(batch),
            () = request.operation.killed() => return Err(CommandError::Stopped(StopReason::Cancelled)),
            () = request.documents.stopping() => return Ok(batch),
            () = tokio::time::sleep_until(until.into()) => return Ok(batch),
        }
    }
}

/// Returns `stop`, with an earlier deadline if the cursor's time limit ends sooner.
fn earlier(stop: &Stop, time_left: Option<Duration>) -> Stop {
    let cursor = time_left.map(|left| Instant::now() + left);
    let deadline = [stop.deadline, cursor].into_iter().flatten().min();
    Stop {
        deadline,
        cancelled: stop.cancelled.clone(),
    }
}

/// A batch that is being written to a reply.
struct Batch {
    /// The reply's share of the memory account.
    held: Arc<Share>,
    writer: Writer,
    count: u64,
    /// Whether more documents may follow.
    more: bool,
    /// The resume token of the position after the batch, if this is a change stream.
    token: Option<ResumeToken>,
    /// Signals new changes. `None` if the stream is not a change stream, or has ended.
    watch: Option<Arc<Watch>>,
}

/// Makes the next batch of a cursor, encoded as a reply's `cursor` document with the array `name`.
async fn make(
    cursor: &mut Cursor,
    name: &str,
    size: u64,
    stop: &Stop,
    held: &Arc<Share>,
) -> Result<Batch, CommandError> {
    let mut batch = Batch {
        held: held.clone(),
        writer: Writer::with_capacity(REPLY_BYTES),
        count: 0,
        more: true,
        token: token(cursor),
        watch: None,
    };
    cursor.stop.follow(stop);
    batch.writer.begin_document("cursor");
    batch.writer.begin_array(name);
    if cursor.stream.is_short() || size == 0 {
        batch.fill(cursor, size, stop)?;
    } else {
        // No deadline for a change stream: when its time limit has passed, `fill` ends the batch without an error.
        let deadline = stop.deadline.filter(|_| cursor.stream.changes().is_none());
        let waits = Stop {
            deadline,
            cancelled: stop.cancelled.clone(),
        };
        aside(&waits, || batch.fill(cursor, size, stop)).await??;
    }
    batch.writer.end();
    let changes = cursor.stream.changes().filter(|_| batch.more);
    batch.watch = changes.map(|changes| changes.watch());
    Ok(batch)
}

fn token(cursor: &Cursor) -> Option<ResumeToken> {
    cursor.stream.changes().map(|changes| changes.token())
}

impl Batch {
    fn fill(&mut self, cursor: &mut Cursor, size: u64, stop: &Stop) -> Result<(), CommandError> {
        cursor.stream.begin_batch(size);
        while self.count < size {
            let row = match cursor.held.take() {
                Some((row, _)) => Some(row),
                None => cursor.stream.next(stop)?,
            };
            let Some(row) = row else {
                self.more = cursor.stream.changes().is_some() && !cursor.stream.is_done();
                self.token = token(cursor);
                return Ok(());
            };
            check_size(&row)?;
            if self.count > 0 && self.writer.len() + row.as_bytes().len() > BATCH_BYTES_MAX {
                let row = row.detached();
                let share = self.held.another();
                share.try_grow(row.as_bytes().len())?;
                cursor.held = Some((row, share));
                return Ok(());
            }
            self.cover(row.as_bytes().len())?;
            self.writer.document_at(self.count as usize, &row);
            self.count += 1;
            self.token = token(cursor);
        }
        self.more = size == 0 || !cursor.stream.is_done();
        Ok(())
    }

    /// Charges the reply, with one more document, to the memory account. Small replies are not charged, so that they
    /// always succeed.
    fn cover(&self, document_bytes: usize) -> Result<(), CommandError> {
        let bytes = self.writer.len() + document_bytes;
        if bytes <= FREE_BYTES_MAX {
            Ok(())
        } else {
            Ok(self.held.try_cover(bytes * COPIES)?)
        }
    }

    fn finish(self, id: i64, namespace: &Namespace) -> RawDocumentBuf {
        let mut writer = self.writer;
        writer.value("id", RawBsonRef::Int64(id));
        writer.value("ns", RawBsonRef::String(&namespace.to_string()));
        if let Some(token) = self.token {
            writer.begin_document("postBatchResumeToken");
            writer.value("_data", RawBsonRef::String(&token.data()));
            writer.end();
        }
        writer.end();
        writer.value("ok", RawBsonRef::Double(1.0));
        writer.finish()
    }
}

/// Rejects a document that is larger than clients accept.
///
/// # Errors
/// `BSONObjectTooLarge`.
pub fn check_size(document: &RawDocument) -> Result<(), CommandError> {
    let bytes = document.as_bytes().len();
    if bytes <= DOCUMENT_BYTES_MAX {
        return Ok(());
    }
    let message = format!(
        "BSONObj size: {bytes} is invalid. Size must be between 0 and {DOCUMENT_BYTES_MAX}"
    );
    Err(CommandError::refused(Code::BSONObjectTooLarge, message))
}
