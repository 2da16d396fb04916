//! A scan of a collection: every document in the order of record numbers, checked against the filter.

use std::sync::Arc;

use forebay_cancel::Stop;
use forebay_documents_query::Filter;
use forebay_documents_store::{Collection, Direction, RecordNumber};

use super::{Row, Stream};
use crate::error::CommandError;
use crate::search::Tally;

/// Number of documents read between two checks of the cancellation token.
const STOP_INTERVAL: u64 = 256;

/// A scan of a whole collection.
pub struct Scan {
    entries: forebay_documents_store::Scan,
    filter: Arc<Filter>,
    tally: Arc<Tally>,
}

impl Scan {
    /// Returns a scan that starts at one end of the collection. `tally` counts the documents that the scan reads.
    pub fn new(
        store: &Collection,
        filter: Arc<Filter>,
        direction: Direction,
        tally: Arc<Tally>,
    ) -> Scan {
        Scan {
            entries: store.scan_range(0..RecordNumber::MAX, direction),
            filter,
            tally,
        }
    }
}

impl Stream for Scan {
    fn next(&mut self, stop: &Stop) -> Result<Option<Row>, CommandError> {
        for row in self.entries.by_ref() {
            let (number, document) = row?;
            if self.tally.examined().is_multiple_of(STOP_INTERVAL) {
                stop.check()?;
            }
            let matched = self.filter.try_matches(&document)?;
            self.tally.examine(matched);
            if matched {
                return Ok(Some(Row::Stored(number, document)));
            }
        }
        Ok(None)
    }

    fn rest(&mut self) {
        self.entries.rest();
    }
}

/// Counts the matches of a scan.
///
/// # Errors
/// [`CommandError::Stopped`], or the store's error.
pub fn count(
    store: &Collection,
    filter: &Filter,
    tally: &Tally,
    stop: &Stop,
) -> Result<u64, CommandError> {
    let mut matches = 0;
    for (examined, row) in (1u64..).zip(store.scan(0)) {
        if examined.is_multiple_of(STOP_INTERVAL) {
            stop.check()?;
        }
        let matched = filter.try_matches(&row?.1)?;
        tally.examine(matched);
        matches += u64::from(matched);
    }
    Ok(matches)
}
