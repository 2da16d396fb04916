//! Streams of documents. A query runs as a chain of streams.
//!
//! The consumer calls `next` to get one document. Between two calls, a stream holds no lock and no snapshot of the
//! store. It keeps record numbers, which are never reused, so that it can continue safely after concurrent writes.

mod fetch;
mod list;
mod piped;
mod project;
mod scan;
mod sort;
mod walk;
mod window;

use std::ops::Deref;

use bson::{RawDocument, RawDocumentBuf};
use forebay_cancel::Stop;
use forebay_documents_store::{Document, RecordNumber};

use crate::change_stream::ChangeStream;
use crate::error::CommandError;
use crate::places::blocking;

/// Maximum bytes of a document that is filtered or projected on a network thread.
const SMALL_BYTES_MAX: usize = 64 << 10;

pub use fetch::Fetch;
pub use list::List;
pub use piped::Piped;
pub use project::Project;
pub use scan::{Scan, count as count_scan};
pub use sort::sorted;
pub use walk::{Part, Range, Walk};
pub use window::{Limited, Skip};

/// A document on its way to a client.
#[derive(Debug, Clone)]
pub enum Row {
    /// A stored document with its record number. Its bytes are shared with the store.
    Stored(RecordNumber, Document),
    /// A document generated for this query.
    Built(RawDocumentBuf),
}

/// Memory of a row that is held, besides the bytes of its document: its place in a list that grows, and an allocation.
pub const ROW_BYTES: usize = 3 * size_of::<Row>() + 32;

impl Row {
    /// Returns a row that holds nothing but its document. The bytes of a stored document may be part of a block, which
    /// stays in memory as long as one of its documents is held.
    pub fn detached(self) -> Row {
        match self {
            Row::Stored(number, document) => Row::Stored(number, document.detached()),
            built => built,
        }
    }

    /// Returns the record number of a stored document.
    pub fn number(&self) -> Option<RecordNumber> {
        match self {
            Row::Stored(number, _) => Some(*number),
            Row::Built(_) => None,
        }
    }

    /// Returns the document. A stored document is copied.
    pub fn into_buf(self) -> RawDocumentBuf {
        match self {
            Row::Stored(_, document) => document.to_buf(),
            Row::Built(document) => document,
        }
    }
}

impl Deref for Row {
    type Target = RawDocument;

    fn deref(&self) -> &RawDocument {
        match self {
            Row::Stored(_, document) => document.raw(),
            Row::Built(document) => document,
        }
    }
}

/// A source of documents, read one at a time.
pub trait Stream: Send {
    /// Returns the next document, or `None` at the end and on every later call.
    ///
    /// # Errors
    /// The reason why the query fails: its deadline, the store, or an operator that fails on a document.
    fn next(&mut self, stop: &Stop) -> Result<Option<Row>, CommandError>;

    /// Announces that the caller will read this many documents now, so that the stream can prefetch them. Documents
    /// that were prefetched for an earlier batch, but that the caller has not read, are fetched again.
    fn begin_batch(&mut self, _size: u64) {}

    /// Announces that the caller will not read for some time. The stream drops what it has read in advance, if that has
    /// many bytes and no share of the memory account, and reads it again later.
    fn rest(&mut self) {}

    /// Returns true if the stream knows, without reading, that no document follows.
    fn is_done(&self) -> bool {
        false
    }

    /// Returns the stream as a change stream, if it is one. A change stream has no end, and its clients wait for
    /// events.
    fn changes(&self) -> Option<&ChangeStream> {
        None
    }

    /// Returns whether the next batch takes only microseconds, for any filter and projection, so that it may be made on
    /// a network thread.
    fn is_short(&self) -> bool {
        false
    }
}

impl Stream for Box<dyn Stream> {
    fn next(&mut self, stop: &Stop) -> Result<Option<Row>, CommandError> {
        (**self).next(stop)
    }

    fn begin_batch(&mut self, size: u64) {
        (**self).begin_batch(size);
    }

    fn rest(&mut self) {
        (**self).rest();
    }

    fn is_done(&self) -> bool {
        (**self).is_done()
    }

    fn changes(&self) -> Option<&ChangeStream> {
        (**self).changes()
    }

    fn is_short(&self) -> bool {
        (**self).is_short()
    }
}

/// Filters or projects a document. If the document is large, the runtime first moves the thread's other tasks to other
/// threads.
pub fn with_document<T>(document: &RawDocument, work: impl FnOnce() -> T) -> T {
    if document.as_bytes().len() <= SMALL_BYTES_MAX {
        work()
    } else {
        blocking(work)
    }
}
