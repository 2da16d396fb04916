//! A walk over index ranges, in index order.

use std::sync::Arc;

use forebay_cancel::Stop;
use forebay_documents_query::Filter;
use forebay_documents_store::{
    Collection, Direction, IndexBounds, IndexScan, IndexSpec, RecordNumber, StoreError,
};
use roaring::RoaringTreemap;

use super::{Row, Stream, with_document};
use crate::error::CommandError;
use crate::search::Tally;

/// Number of index entries read between two checks of the cancellation token.
const STOP_INTERVAL: u64 = 256;

/// A range of one index.
#[derive(Debug, Clone)]
pub struct Part {
    /// The index.
    pub index: Arc<IndexSpec>,
    /// The bounds of the range.
    pub bounds: IndexBounds,
}

/// The index ranges to walk.
#[derive(Debug, Clone)]
pub struct Range {
    /// Parts of one index or several, in the order of the walk.
    pub parts: Vec<Part>,
    /// The direction of the walk.
    pub direction: Direction,
    /// Whether a document may occur in several parts.
    pub repeats: bool,
    /// Whether the parts contain few documents, so that the walk takes only microseconds.
    pub is_short: bool,
}

/// A stream over the documents in index ranges.
pub struct Walk {
    store: Arc<Collection>,
    filter: Arc<Filter>,
    range: Range,
    next_part: usize,
    entries: Option<IndexScan>,
    seen: RoaringTreemap,
    tally: Arc<Tally>,
}

impl Walk {
    /// Returns a walk that starts at the first entry. `tally` counts the entries and documents that the walk reads.
    pub fn new(
        store: Arc<Collection>,
        filter: Arc<Filter>,
        range: Range,
        tally: Arc<Tally>,
    ) -> Walk {
        Walk {
            store,
            filter,
            range,
            next_part: 0,
            entries: None,
            seen: RoaringTreemap::new(),
            tally,
        }
    }

    /// Returns the next record number. Each record number is returned once.
    fn next_number(&mut self, stop: &Stop) -> Result<Option<RecordNumber>, CommandError> {
        while let Some(number) = self.next_entry(stop)? {
            if !self.range.repeats || self.seen.insert(number) {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    fn next_entry(&mut self, stop: &Stop) -> Result<Option<RecordNumber>, CommandError> {
        loop {
            if let Some(number) = self.entries.as_mut().and_then(Iterator::next) {
                if self.tally.keys().is_multiple_of(STOP_INTERVAL) {
                    stop.check()?;
                }
                self.tally.read_key();
                return Ok(Some(number?));
            }
            let Some(part) = self.range.parts.get(self.next_part) else {
                return Ok(None);
            };
            self.next_part += 1;
            stop.check()?;
            let scan = self
                .store
                .index_scan(&part.index.name, &part.bounds, self.range.direction);
            // The index may have been dropped and another index created under its name.
            let same = scan.ok().filter(|scan| *scan.spec() == *part.index);
            self.entries = Some(same.ok_or(StoreError::PartitionDropped)?);
        }
    }
}

impl Stream for Walk {
    fn next(&mut self, stop: &Stop) -> Result<Option<Row>, CommandError> {
        while let Some(number) = self.next_number(stop)? {
            let Some(document) = self.store.get(number)? else {
                continue;
            };
            let matched = with_document(&document, || self.filter.try_matches(&document))?;
            self.tally.examine(matched);
            if matched {
                return Ok(Some(Row::Stored(number, document)));
            }
        }
        Ok(None)
    }

    fn rest(&mut self) {
        if let Some(entries) = &mut self.entries {
            entries.rest();
        }
    }

    fn is_short(&self) -> bool {
        self.range.is_short && self.filter.is_cheap()
    }
}
