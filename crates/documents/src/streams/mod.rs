//! Streams of documents: the pieces that a query's execution is made of.
//!
//! A stream is pulled. Between two pulls it holds no lock and no snapshot of the store: it remembers record numbers,
//! which are never used again, so that it goes on safely while others write.

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

/// Documents up to this many bytes are judged and reshaped on the threads that serve the network, by filters and
/// projections that are cheap.
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

    /// Takes the document out, copying a stored one.
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
    /// Whatever stops the query: the deadline, the store, an operator that fails on a document.
    fn next(&mut self, stop: &Stop) -> Result<Option<Row>, CommandError>;

    /// Tells that so many documents will be pulled now, one after the other, which may be read together; what was read
    /// for an earlier batch, and not pulled, is read again.
    fn begin_batch(&mut self, _size: u64) {}

    /// Is it known, without work, that nothing follows?
    fn is_done(&self) -> bool {
        false
    }

    /// The stream of changes that it is: one without an end, whose clients wait for more.
    fn changes(&self) -> Option<&ChangeStream> {
        None
    }

    /// Is the next batch a matter of microseconds, whatever the client's filter and projection say, so that it may be
    /// made on a thread that serves the network?
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

/// Judges or reshapes a document; a large one without holding up the thread's other tasks.
pub fn with_document<T>(document: &RawDocument, work: impl FnOnce() -> T) -> T {
    match document.as_bytes().len() <= SMALL_BYTES_MAX {
        true => work(),
        false => blocking(work),
    }
}
