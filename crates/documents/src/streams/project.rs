//! Projections.

use crate::pending::Projection;
use forebay_text::Stop;

use super::{Row, Stream};
use crate::error::CommandError;

/// A stream whose documents are reshaped.
pub struct Project<S> {
    inner: S,
    projection: Projection,
}

impl<S: Stream> Project<S> {
    /// Reshapes every document.
    pub fn new(inner: S, projection: Projection) -> Project<S> {
        Project { inner, projection }
    }
}

impl<S: Stream> Stream for Project<S> {
    fn next(&mut self, stop: &Stop) -> Result<Option<Row>, CommandError> {
        match self.inner.next(stop)? {
            Some(row) => Ok(Some(Row::Built(self.projection.apply(&row)?))),
            None => Ok(None),
        }
    }

    fn is_done(&self) -> bool {
        self.inner.is_done()
    }

    fn is_short(&self) -> bool {
        self.inner.is_short()
    }
}
