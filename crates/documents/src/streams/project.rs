//! A stream of projected documents.

use std::sync::Arc;

use bson::{DateTime, RawDocument, RawDocumentBuf};
use forebay_cancel::Stop;
use forebay_documents_query::{Filter, Projection, ProjectionContext};

use super::{Row, Stream, with_document};
use crate::commands::read::position;
use crate::error::CommandError;

/// A stream of projected documents.
pub struct Project<S> {
    inner: S,
    projection: Projection,
    filter: Arc<Filter>,
    now: DateTime,
}

impl<S: Stream> Project<S> {
    /// Returns a stream that projects each document. `filter` selects the array element for the positional `field.$`.
    pub fn new(inner: S, projection: Projection, filter: Arc<Filter>) -> Project<S> {
        Project {
            inner,
            projection,
            filter,
            now: DateTime::now(),
        }
    }

    fn reshape(&self, document: &RawDocument) -> Result<RawDocumentBuf, CommandError> {
        let context = ProjectionContext {
            now: self.now,
            position: position(&self.projection, &self.filter, document)?,
        };
        Ok(self.projection.apply(document, &context)?)
    }
}

impl<S: Stream> Stream for Project<S> {
    fn next(&mut self, stop: &Stop) -> Result<Option<Row>, CommandError> {
        let Some(row) = self.inner.next(stop)? else {
            return Ok(None);
        };
        with_document(&row, || self.reshape(&row)).map(|shaped| Some(Row::Built(shaped)))
    }

    fn begin_batch(&mut self, size: u64) {
        self.inner.begin_batch(size);
    }

    fn is_done(&self) -> bool {
        self.inner.is_done()
    }

    fn is_short(&self) -> bool {
        self.inner.is_short() && self.projection.is_cheap() && self.filter.is_cheap()
    }
}
