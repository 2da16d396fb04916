//! A walk over ranges of an index, in its order.

use std::collections::HashSet;
use std::sync::Arc;

use forebay_query::Filter;
use forebay_store::{Collection, Direction, IndexBounds, IndexScan, RecordNumber};
use forebay_text::Stop;

use super::{Row, Stream};
use crate::error::CommandError;

/// Entries between two looks at the stop sign.
const STOP_INTERVAL: u64 = 256;

/// Which part of which index to walk.
#[derive(Debug, Clone)]
pub struct Range {
    /// The index's name.
    pub index: String,
    /// Its parts, one after another in the walk's direction.
    pub bounds: Vec<IndexBounds>,
    /// From small to large or back.
    pub direction: Direction,
    /// May a document be met in several parts?
    pub repeats: bool,
    /// Is it a part that holds a document or two?
    pub is_short: bool,
}

/// A stream over the documents of some ranges of an index.
pub struct Walk {
    store: Arc<Collection>,
    filter: Arc<Filter>,
    range: Range,
    next_bounds: usize,
    entries: Option<IndexScan>,
    seen: HashSet<RecordNumber>,
    examined: u64,
}

impl Walk {
    /// A walk from the beginning.
    pub fn new(store: Arc<Collection>, filter: Arc<Filter>, range: Range) -> Walk {
        Walk {
            store,
            filter,
            range,
            next_bounds: 0,
            entries: None,
            seen: HashSet::new(),
            examined: 0,
        }
    }

    /// Documents looked for so far.
    pub fn examined(&self) -> u64 {
        self.examined
    }

    /// The next number, each once.
    fn next_number(&mut self) -> Result<Option<RecordNumber>, CommandError> {
        while let Some(number) = self.next_entry()? {
            if !self.range.repeats || self.seen.insert(number) {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    fn next_entry(&mut self) -> Result<Option<RecordNumber>, CommandError> {
        loop {
            if let Some(number) = self.entries.as_mut().and_then(Iterator::next) {
                return Ok(Some(number?));
            }
            let Some(bounds) = self.range.bounds.get(self.next_bounds) else {
                return Ok(None);
            };
            self.next_bounds += 1;
            self.entries = Some(self.store.index_scan(
                &self.range.index,
                bounds,
                self.range.direction,
            )?);
        }
    }
}

impl Stream for Walk {
    fn next(&mut self, stop: &Stop) -> Result<Option<Row>, CommandError> {
        while let Some(number) = self.next_number()? {
            if self.examined.is_multiple_of(STOP_INTERVAL) {
                stop.check()?;
            }
            self.examined += 1;
            if let Some(document) = self.store.get(number)?
                && self.filter.try_matches(&document)?
            {
                return Ok(Some(Row::Stored(number, document)));
            }
        }
        Ok(None)
    }

    fn is_short(&self) -> bool {
        self.range.is_short
    }
}
