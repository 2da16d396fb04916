//! Streams of documents, of which a query's execution is composed.
//!
//! A stream is pulled. Between two pulls it holds no lock and no snapshot of the store. It remembers record numbers,
//! which are never reused, so that it continues safely after concurrent writes.

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

/// Maximum bytes of a document that a cheap filter or projection processes on a network thread.
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
    /// As it is stored under a record number, its bytes shared with the store.
    Stored(RecordNumber, Document),
    /// Made for this query.
    Built(RawDocumentBuf),
}

impl Row {
    /// The record number of a stored document.
    pub fn number(&self) -> Option<RecordNumber> {
        match self {
            Row::Stored(number, _) => Some(*number),
            Row::Built(_) => None,
        }
    }

    /// Returns the document; a stored one is copied.
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

/// A source of documents that is pulled.
pub trait Stream: Send {
    /// The next document, or `None` at the end and ever after.
    ///
    /// # Errors
    /// The reason why the query fails: its deadline, the store, an operator that fails on a document.
    fn next(&mut self, stop: &Stop) -> Result<Option<Row>, CommandError>;

    /// Announces that the caller will pull this many documents now, so that they can be read together. Documents that
    /// were read for an earlier batch, but not pulled, are read again.
    fn begin_batch(&mut self, _size: u64) {}

    /// Returns true if the stream knows, without reading, that no document follows.
    fn is_done(&self) -> bool {
        false
    }

    /// The change stream, if this is one: it has no end, and its clients wait for more.
    fn changes(&self) -> Option<&ChangeStream> {
        None
    }

    /// Returns whether the next batch takes microseconds, for any filter and projection, so that it may be made on a
    /// network thread.
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

/// Checks or reshapes a document. For a large one, the runtime first moves the thread's other tasks to other threads.
pub fn with_document<T>(document: &RawDocument, work: impl FnOnce() -> T) -> T {
    if document.as_bytes().len() <= SMALL_BYTES_MAX {
        work()
    } else {
        blocking(work)
    }
}
