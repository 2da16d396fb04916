//! A stream that fetches documents by record number and checks each against the filter again.

use std::sync::Arc;

use forebay_cancel::Stop;
use forebay_documents_query::Filter;
use forebay_documents_store::{Collection, RecordNumber};

use super::{Row, Stream, with_document};
use crate::error::CommandError;

/// Maximum documents that are fetched on a network thread.
const SHORT_MAX: usize = 64;

/// A stream over documents with known record numbers. It omits documents that have been deleted or no longer match.
pub struct Fetch {
    store: Arc<Collection>,
    filter: Arc<Filter>,
    numbers: std::vec::IntoIter<RecordNumber>,
}

impl Fetch {
    /// Returns a stream of the documents with these record numbers, in this order.
    pub fn new(store: Arc<Collection>, filter: Arc<Filter>, numbers: Vec<RecordNumber>) -> Fetch {
        Fetch {
            store,
            filter,
            numbers: numbers.into_iter(),
        }
    }
}

impl Stream for Fetch {
    fn next(&mut self, stop: &Stop) -> Result<Option<Row>, CommandError> {
        for number in self.numbers.by_ref() {
            stop.check()?;
            if let Some(document) = self.store.get(number)?
                && with_document(&document, || self.filter.try_matches(&document))?
            {
                return Ok(Some(Row::Stored(number, document)));
            }
        }
        Ok(None)
    }

    fn is_done(&self) -> bool {
        self.numbers.len() == 0
    }

    fn is_short(&self) -> bool {
        self.numbers.len() <= SHORT_MAX && self.filter.is_cheap()
    }
}
