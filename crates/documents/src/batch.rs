//! Batches: from a stream to the `cursor` document of a reply.

use std::time::{Duration, Instant};

use bson::{RawDocument, RawDocumentBuf};
use forebay_query::Code;
use forebay_text::Stop;

use crate::cursors::Cursor;
use crate::dispatch::Reply;
use crate::error::CommandError;
use crate::namespace::Namespace;
use crate::request::Request;
use crate::settings::DOCUMENT_BYTES_MAX;
use crate::streams::{Stream, blocking};
use crate::writer::Writer;

/// Documents in the first batch when the client names no size.
pub const FIRST_BATCH_DOCUMENTS: u64 = 101;
/// The most bytes of documents in one batch; a single document may be larger than what is left.
const BATCH_BYTES_MAX: usize = DOCUMENT_BYTES_MAX;
/// Room that a reply starts with, in bytes.
const REPLY_BYTES: usize = 1024;

/// How the client wants its documents.
#[derive(Debug, Clone, Copy, Default)]
pub struct BatchOptions {
    /// Documents in the first batch; [`FIRST_BATCH_DOCUMENTS`] if not said.
    pub size: Option<u64>,
    /// Is the first batch to be the only one?
    pub single: bool,
    /// Does the cursor live without a limit?
    pub no_timeout: bool,
}

/// Answers with the first batch of a stream, and keeps a cursor if there may be more.
///
/// # Errors
/// Whatever the stream says, or that too many cursors are open.
pub fn open(
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
        no_timeout: options.no_timeout,
        time_left: None,
        stop: request.shared_stop.clone(),
    });
    let size = options.size.unwrap_or(FIRST_BATCH_DOCUMENTS);
    let (writer, more) = make(&mut cursor, "firstBatch", size, request.stop())?;
    let id = if more && !options.single {
        keep(request, cursor)?
    } else {
        0
    };
    Ok(finish(writer, id, namespace))
}

fn keep(request: &Request<'_>, mut cursor: Box<Cursor>) -> Result<i64, CommandError> {
    cursor.time_left = time_left(request.stop());
    request.documents.cursors().keep(cursor)
}

fn time_left(stop: &Stop) -> Option<Duration> {
    stop.deadline
        .map(|deadline| deadline.saturating_duration_since(Instant::now()))
}

/// Answers with the next batch of an open cursor.
///
/// # Errors
/// Whatever the stream says; the cursor is closed then.
pub fn next(request: &Request<'_>, id: i64, namespace: &Namespace, size: Option<u64>) -> Reply {
    let mut lease = request
        .documents
        .cursors()
        .take(id, namespace, &request.owner())?;
    let cursor = lease.cursor();
    if let Some(search) = &cursor.search {
        request.continue_search(search.clone());
    }
    let stop = earlier(request.stop(), cursor.time_left);
    let (writer, more) = make(cursor, "nextBatch", size.unwrap_or(u64::MAX), &stop)?;
    if !more {
        return Ok(finish(writer, 0, namespace));
    }
    cursor.time_left = cursor.time_left.and_then(|_| time_left(&stop));
    lease.give_back()?;
    Ok(finish(writer, id, namespace))
}

/// The stop sign, with the deadline brought forward if the cursor's time ends sooner.
fn earlier(stop: &Stop, time_left: Option<Duration>) -> Stop {
    let cursor = time_left.map(|left| Instant::now() + left);
    let deadline = [stop.deadline, cursor].into_iter().flatten().min();
    Stop {
        deadline,
        cancelled: stop.cancelled.clone(),
    }
}

/// Writes one batch; true with it if there may be more.
fn make(
    cursor: &mut Cursor,
    name: &str,
    size: u64,
    stop: &Stop,
) -> Result<(Writer, bool), CommandError> {
    let mut writer = Writer::with_capacity(REPLY_BYTES);
    cursor.stop.follow(stop);
    writer.begin_document("cursor");
    writer.begin_array(name);
    let more = if size == 0 {
        true
    } else if cursor.stream.is_short() {
        fill(cursor, &mut writer, size, stop)?
    } else {
        blocking(|| fill(cursor, &mut writer, size, stop))?
    };
    writer.end();
    Ok((writer, more))
}

fn fill(
    cursor: &mut Cursor,
    writer: &mut Writer,
    size: u64,
    stop: &Stop,
) -> Result<bool, CommandError> {
    let mut count = 0;
    while count < size {
        let row = match cursor.held.take() {
            Some(row) => row,
            None => match cursor.stream.next(stop)? {
                Some(row) => row,
                None => return Ok(false),
            },
        };
        check_size(&row)?;
        if count > 0 && writer.len() + row.as_bytes().len() > BATCH_BYTES_MAX {
            cursor.held = Some(row);
            return Ok(true);
        }
        writer.element(count as usize, &row);
        count += 1;
    }
    Ok(!cursor.stream.is_done())
}

/// Refuses to send a document that is larger than clients take.
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

fn finish(mut writer: Writer, id: i64, namespace: &Namespace) -> RawDocumentBuf {
    writer.int64("id", id);
    writer.string("ns", &namespace.to_string());
    writer.end();
    writer.double("ok", 1.0);
    writer.finish()
}
