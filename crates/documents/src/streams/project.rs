//! A stream of projected documents.

use std::sync::Arc;

use bson::{DateTime, RawDocument, RawDocumentBuf};
use forebay_cancel::Stop;
use forebay_documents_query::stage::Grown;
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
    grown: Grown,
}

impl<S: Stream> Project<S> {
    /// Returns a stream that projects each document. `filter` selects the array element for the positional `field.$`.
    pub fn new(inner: S, projection: Projection, filter: Arc<Filter>) -> Project<S> {
        let grown = Grown::new(projection.memory());
        Project {
            inner,
            projection,
            filter,
            now: DateTime::now(),
            grown,
        }
    }

    fn reshape(&mut self, document: &RawDocument) -> Result<RawDocumentBuf, CommandError> {
        let context = ProjectionContext {
            now: self.now,
            position: position(&self.projection, &self.filter, document)?,
        };
        let apply = || Ok(self.projection.apply(document, &context)?);
        self.grown.make(document.as_bytes().len(), apply)
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

    fn rest(&mut self) {
        self.inner.rest();
    }

    fn is_done(&self) -> bool {
        self.inner.is_done()
    }

    fn is_short(&self) -> bool {
        self.inner.is_short() && self.projection.is_cheap() && self.filter.is_cheap()
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;
    use forebay_documents_query::Limits;
    use forebay_documents_query::filter::Compilation;
    use forebay_memory::Account;

    use super::*;
    use crate::streams::List;

    #[test]
    fn the_growth_of_a_document_is_charged_until_the_next_one() {
        let memory = Account::default();
        let limits = Limits::new(memory.clone(), Compilation::default());
        let text = rawdoc! { "$concat": ["x".repeat(100_000), "$t"] };
        let projection = Projection::parse(&rawdoc! { "text": text }, &limits);
        let projection = projection.expect("it parses");
        let documents = ["y".repeat(100_000), String::new(), String::new()];
        let documents = List::built(documents.map(|t| rawdoc! { "t": t }));
        let mut stream = Project::new(documents, projection, Arc::new(Filter::all()));
        let parsed_bytes = memory.figures().used_bytes;
        let mut grown_bytes = || {
            let row = stream.next(&Stop::never());
            assert!(matches!(row, Ok(Some(_))));
            memory.figures().used_bytes - parsed_bytes
        };
        assert!(grown_bytes() >= 100_000);
        assert!((100_000..200_000).contains(&grown_bytes()));
    }
}
