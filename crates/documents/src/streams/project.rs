//! Projections.

use std::sync::Arc;

use bson::DateTime;
use forebay_query::{Filter, Projection, ProjectionContext};
use forebay_text::Stop;

use super::{Row, Stream};
use crate::commands::read::position;
use crate::error::CommandError;

/// A stream whose documents are reshaped.
pub struct Project<S> {
    inner: S,
    projection: Projection,
    filter: Arc<Filter>,
    now: DateTime,
}

impl<S: Stream> Project<S> {
    /// Reshapes every document; `filter` tells which array element `field.$` stands for.
    pub fn new(inner: S, projection: Projection, filter: Arc<Filter>) -> Project<S> {
        Project {
            inner,
            projection,
            filter,
            now: DateTime::now(),
        }
    }
}

impl<S: Stream> Stream for Project<S> {
    fn next(&mut self, stop: &Stop) -> Result<Option<Row>, CommandError> {
        let Some(row) = self.inner.next(stop)? else {
            return Ok(None);
        };
        let position = position(&self.projection, &self.filter, &row)?;
        let context = ProjectionContext {
            now: self.now,
            position,
        };
        Ok(Some(Row::Built(self.projection.apply(&row, &context)?)))
    }

    fn begin_batch(&mut self, size: u64) {
        self.inner.begin_batch(size);
    }

    fn is_done(&self) -> bool {
        self.inner.is_done()
    }

    fn is_short(&self) -> bool {
        self.inner.is_short()
    }
}
