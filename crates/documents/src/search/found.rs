//! The documents that a search found, read from the store as they are asked for.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_query::Filter;
use forebay_store::{Collection, Document};
use forebay_text::Stop;
use roaring::RoaringBitmap;
use roaring::bitmap::IntoIter;

use super::report::{Access, ExecutionReport, Tally};
use crate::error::CommandError;
use crate::streams::{Row, Stream};

/// How many documents are read between two looks at the stop sign.
const STOP_INTERVAL: u64 = 64;
/// The most documents that are fetched one by one on a thread that serves the network.
const SHORT_MAX: u64 = 64;
/// The most documents that one piece of a scan gathers.
const GATHERED_MAX: usize = 256;

/// The documents that a search found, in the order of their record numbers.
///
/// Each one is checked against the whole filter when it is read, so that a change since the search never shows as a
/// document that does not match. Between two pulls it holds no snapshot of the store.
pub struct Found {
    store: Arc<Collection>,
    filter: Arc<Filter>,
    way: Way,
    report: ExecutionReport,
}

/// How the documents are read.
enum Way {
    /// One by one, by record number.
    Fetch { numbers: IntoIter },
    /// By scanning the collection in pieces, and skipping what the cache ruled out.
    Scan {
        wanted: RoaringBitmap,
        gathered: VecDeque<(u64, Document)>,
    },
}

impl Found {
    /// Reads the documents with the numbers `wanted`, as the report says.
    pub(super) fn new(
        store: Arc<Collection>,
        filter: Arc<Filter>,
        wanted: RoaringBitmap,
        report: ExecutionReport,
    ) -> Found {
        let way = match report.access {
            Access::Scan { .. } => Way::Scan {
                wanted,
                gathered: VecDeque::new(),
            },
            Access::None | Access::Fetch => Way::Fetch {
                numbers: wanted.into_iter(),
            },
        };
        Found {
            store,
            filter,
            way,
            report,
        }
    }

    /// What was done so far. The counts of documents go on as they are read.
    pub fn report(&self) -> &ExecutionReport {
        &self.report
    }

    /// Takes the report out.
    pub fn into_report(self) -> ExecutionReport {
        self.report
    }

    /// Counts the documents that are left.
    ///
    /// # Errors
    /// When the operation is stopped, or the store cannot be read.
    pub fn count_rest(&mut self, stop: &Stop) -> Result<u64, CommandError> {
        let mut count = 0;
        while self.next_match(stop)?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    fn next_match(&mut self, stop: &Stop) -> Result<Option<(u64, Document)>, CommandError> {
        match &mut self.way {
            Way::Fetch { numbers } => {
                fetch(&self.store, &self.filter, numbers, &self.report.tally, stop)
            }
            Way::Scan { wanted, gathered } => {
                if gathered.is_empty() {
                    gather(
                        &self.store,
                        &self.filter,
                        wanted,
                        gathered,
                        &self.report.tally,
                        stop,
                    )?;
                }
                Ok(gathered.pop_front())
            }
        }
    }
}

impl Stream for Found {
    fn next(&mut self, stop: &Stop) -> Result<Option<Row>, CommandError> {
        Ok(self
            .next_match(stop)?
            .map(|(number, document)| Row::Stored(number, document)))
    }

    fn is_done(&self) -> bool {
        match &self.way {
            Way::Fetch { numbers } => numbers.len() == 0,
            Way::Scan { wanted, gathered } => wanted.is_empty() && gathered.is_empty(),
        }
    }

    fn is_short(&self) -> bool {
        match &self.way {
            Way::Fetch { numbers } => numbers.len() as u64 <= SHORT_MAX,
            Way::Scan { .. } => false,
        }
    }
}

/// The document of the next number that is still there and matches.
fn fetch(
    store: &Collection,
    filter: &Filter,
    numbers: &mut IntoIter,
    tally: &Tally,
    stop: &Stop,
) -> Result<Option<(u64, Document)>, CommandError> {
    for number in numbers {
        if tally.examined().is_multiple_of(STOP_INTERVAL) {
            stop.check()?;
        }
        let Some(document) = store.get(u64::from(number)).map_err(CommandError::Store)? else {
            continue;
        };
        let matched = filter.matches(document.raw());
        tally.examine(matched);
        if matched {
            return Ok(Some((u64::from(number), document)));
        }
    }
    Ok(None)
}

/// Reads the next piece of a scan; takes what it has passed out of `wanted`.
fn gather(
    store: &Collection,
    filter: &Filter,
    wanted: &mut RoaringBitmap,
    gathered: &mut VecDeque<(u64, Document)>,
    tally: &Tally,
    stop: &Stop,
) -> Result<(), CommandError> {
    let (Some(first), Some(last)) = (wanted.min(), wanted.max()) else {
        return Ok(());
    };
    for (scanned, row) in (1_u64..).zip(store.scan(u64::from(first))) {
        if scanned.is_multiple_of(STOP_INTERVAL) {
            stop.check()?;
        }
        let (number, document) = row.map_err(CommandError::Store)?;
        let Some(number) = u32::try_from(number).ok().filter(|number| *number <= last) else {
            break;
        };
        if wanted.contains(number) {
            let matched = filter.matches(document.raw());
            tally.examine(matched);
            gathered.extend(matched.then_some((u64::from(number), document)));
        }
        if gathered.len() >= GATHERED_MAX {
            wanted.remove_range(..=number);
            return Ok(());
        }
    }
    wanted.clear();
    Ok(())
}
