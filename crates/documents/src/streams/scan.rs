//! The store's own scan: every document in the order of record numbers, judged by the filter.

use std::sync::Arc;

use forebay_query::Filter;
use forebay_store::{Collection, Direction, RecordNumber};
use forebay_text::Stop;

use super::{Row, Stream};
use crate::error::CommandError;

/// Documents between two looks at the stop sign.
const STOP_INTERVAL: u64 = 256;

/// A scan of a whole collection.
pub struct Scan {
    entries: forebay_store::Scan,
    filter: Arc<Filter>,
    examined: u64,
}

impl Scan {
    /// A scan from one end.
    pub fn new(store: &Collection, filter: Arc<Filter>, direction: Direction) -> Scan {
        Scan {
            entries: store.scan_range(0..RecordNumber::MAX, direction),
            filter,
            examined: 0,
        }
    }

    /// Documents read so far.
    pub fn examined(&self) -> u64 {
        self.examined
    }
}

impl Stream for Scan {
    fn next(&mut self, stop: &Stop) -> Result<Option<Row>, CommandError> {
        for row in self.entries.by_ref() {
            let (number, document) = row?;
            if self.examined.is_multiple_of(STOP_INTERVAL) {
                stop.check()?;
            }
            self.examined += 1;
            if self.filter.try_matches(&document)? {
                return Ok(Some(Row::Stored(number, document)));
            }
        }
        Ok(None)
    }
}

/// Counts what a scan would find.
///
/// # Errors
/// The stop sign, or the store.
pub fn count(store: &Collection, filter: &Filter, stop: &Stop) -> Result<u64, CommandError> {
    let mut matches = 0;
    for (examined, row) in (1u64..).zip(store.scan(0)) {
        if examined.is_multiple_of(STOP_INTERVAL) {
            stop.check()?;
        }
        matches += u64::from(filter.try_matches(&row?.1)?);
    }
    Ok(matches)
}
