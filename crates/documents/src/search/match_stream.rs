//! The documents that a search found, read from the store on demand.

use std::collections::VecDeque;
use std::iter;
use std::sync::Arc;

use forebay_cancel::Stop;
use forebay_documents_query::Filter;
use forebay_documents_store::{Collection, Document, Scan};
use forebay_memory::Share;
use roaring::RoaringBitmap;
use roaring::bitmap::IntoIter;

use super::prefetch::{self, Prefetched, Source};
use super::report::{Access, ExecutionReport, Tally};
use crate::error::CommandError;
use crate::streams::{Row, Stream, with_document};

/// Number of documents read between two checks of the cancellation token.
const STOP_INTERVAL: u64 = 64;
/// Maximum documents that are fetched one by one on a network thread.
const SHORT_MAX: usize = 64;
/// Maximum documents that one step of a scan gathers.
const GATHERED_MAX: usize = 256;
/// Bytes after which a step of a scan ends.
const GATHERED_BYTES: usize = 1 << 20;
/// Maximum bytes of gathered documents that an idle stream keeps.
const RESTING_BYTES_MAX: usize = 64 << 10;

/// A document and its record number.
pub(super) type Numbered = (u64, Document);

/// The documents that a search found, in the order of their record numbers.
///
/// Each document is checked against the whole filter when it is read, so that a document that changed after the search
/// is returned only if its current version matches. The stream holds no snapshot of the store between two calls.
pub struct MatchStream {
    store: Arc<Collection>,
    filter: Arc<Filter>,
    /// Documents that were read and match the filter.
    gathered: VecDeque<Numbered>,
    /// Prefetched documents. They come before the documents in `strategy`.
    prefetched: VecDeque<Prefetched>,
    /// Number of documents of the announced batch that the caller has not read yet.
    batch_left: u64,
    strategy: ReadStrategy,
    report: Arc<ExecutionReport>,
    /// The memory account's share for the bitmap in `strategy`.
    _held: Option<Arc<Share>>,
}

/// How documents are read.
enum ReadStrategy {
    /// One by one, by record number.
    Fetch(IntoIter),
    /// By scanning the collection in steps and skipping the documents that the cache excluded.
    Scan(RoaringBitmap),
}

impl MatchStream {
    /// Returns a stream of the documents `gathered`, followed by the documents with the record numbers `wanted`.
    /// `report.access` determines how the stream reads the latter.
    pub(super) fn new(
        store: Arc<Collection>,
        filter: Arc<Filter>,
        gathered: VecDeque<Numbered>,
        wanted: RoaringBitmap,
        report: Arc<ExecutionReport>,
        held: Option<Arc<Share>>,
    ) -> MatchStream {
        let strategy = match report.access {
            Access::Scan { .. } => ReadStrategy::Scan(wanted),
            Access::None | Access::Fetch | Access::Probe { .. } => {
                ReadStrategy::Fetch(wanted.into_iter())
            }
        };
        MatchStream {
            store,
            filter,
            gathered,
            prefetched: VecDeque::new(),
            batch_left: 0,
            strategy,
            report,
            _held: held,
        }
    }

    /// Ends the stream and returns its execution report.
    pub fn into_report(self) -> Arc<ExecutionReport> {
        self.report
    }

    /// Counts the remaining documents.
    ///
    /// # Errors
    /// An error if the operation is stopped, or the store cannot be read.
    pub fn count_rest(&mut self, stop: &Stop) -> Result<u64, CommandError> {
        let mut count = 0;
        self.batch_left = u64::MAX;
        while self.next_match(stop)?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// Reads documents until `limit` of them match. From then on, the stream consists of these matches.
    ///
    /// Returns false if fewer documents match, or if the matches exceed `bytes_max`. The caller must then search again.
    ///
    /// # Errors
    /// An error if the operation is stopped, or the store cannot be read.
    pub(super) fn gather_first(
        &mut self,
        limit: usize,
        bytes_max: usize,
        stop: &Stop,
    ) -> Result<bool, CommandError> {
        let (mut gathered, mut bytes) = (VecDeque::new(), 0);
        while gathered.len() < limit {
            match self.next_match(stop)? {
                Some(row) if bytes <= bytes_max => {
                    bytes += row.1.len_bytes();
                    gathered.push_back(row);
                }
                _ => return Ok(false),
            }
        }
        self.gathered = gathered;
        self.prefetched.clear();
        self.strategy = ReadStrategy::Fetch(RoaringBitmap::new().into_iter());
        Ok(true)
    }

    pub(super) fn gathered_bytes(&self) -> usize {
        self.gathered.iter().map(|(_, row)| row.len_bytes()).sum()
    }

    fn forget_prefetched(&mut self) {
        for (_, document) in &mut self.prefetched {
            *document = None;
        }
    }

    /// Drops the gathered documents if they have many bytes, and keeps their record numbers, to read them again.
    fn forget_gathered(&mut self) {
        if self.gathered_bytes() <= RESTING_BYTES_MAX {
            return;
        }
        let numbers = std::mem::take(&mut self.gathered).into_iter();
        let numbers =
            numbers.map(|(number, _)| u32::try_from(number).expect("record numbers have 32 bits"));
        match &mut self.strategy {
            ReadStrategy::Scan(wanted) => wanted.extend(numbers),
            ReadStrategy::Fetch(_) => {
                let after = std::mem::take(&mut self.prefetched);
                self.prefetched = numbers.map(|number| (number, None)).chain(after).collect();
            }
        }
    }

    fn next_match(&mut self, stop: &Stop) -> Result<Option<Numbered>, CommandError> {
        if let Some(row) = self.gathered.pop_front() {
            return Ok(Some(row));
        }
        let reader = Reader {
            store: &self.store,
            filter: &self.filter,
            tally: &self.report.tally,
            stop,
        };
        let numbers = match &mut self.strategy {
            ReadStrategy::Fetch(numbers) => numbers,
            ReadStrategy::Scan(wanted) => {
                reader.gather(wanted, &mut self.gathered)?;
                return Ok(self.gathered.pop_front());
            }
        };
        loop {
            while let Some((number, document)) = self.prefetched.pop_front() {
                let row = match document {
                    Some(document) => Some((number.into(), document)),
                    None => reader.fetch(&mut iter::once(number))?,
                };
                if row.is_some() {
                    return Ok(row);
                }
            }
            let worth = prefetch::worth(numbers.len(), self.batch_left);
            if worth == 0 {
                return reader.fetch(numbers);
            }
            let source = Source {
                store: Arc::clone(&self.store),
                filter: Arc::clone(&self.filter),
                stop: stop.clone(),
            };
            let numbers: Vec<u32> = numbers.take(worth).collect();
            self.prefetched = prefetch::read(&source, &numbers, reader.tally);
        }
    }
}

impl Stream for MatchStream {
    fn next(&mut self, stop: &Stop) -> Result<Option<Row>, CommandError> {
        let row = self.next_match(stop)?;
        self.batch_left = self.batch_left.saturating_sub(1);
        Ok(row.map(|(number, document)| Row::Stored(number, document)))
    }

    fn begin_batch(&mut self, size: u64) {
        self.batch_left = size;
        self.forget_prefetched();
    }

    fn rest(&mut self) {
        self.forget_prefetched();
        self.forget_gathered();
    }

    fn is_done(&self) -> bool {
        let nothing_left = match &self.strategy {
            ReadStrategy::Fetch(numbers) => numbers.len() == 0,
            ReadStrategy::Scan(wanted) => wanted.is_empty(),
        };
        nothing_left && self.gathered.is_empty() && self.prefetched.is_empty()
    }

    fn is_short(&self) -> bool {
        match &self.strategy {
            ReadStrategy::Fetch(numbers) => {
                numbers.len() + self.prefetched.len() <= SHORT_MAX && self.filter.is_cheap()
            }
            ReadStrategy::Scan(_) => false,
        }
    }
}

/// Reads documents and checks them against the filter.
pub(super) struct Reader<'a> {
    pub store: &'a Collection,
    pub filter: &'a Filter,
    pub tally: &'a Tally,
    pub stop: &'a Stop,
}

impl Reader<'_> {
    /// Returns the next document that exists and matches.
    fn fetch(
        &self,
        numbers: &mut impl Iterator<Item = u32>,
    ) -> Result<Option<Numbered>, CommandError> {
        for number in numbers.map(u64::from) {
            if let Some(document) = self.read(number)? {
                return Ok(Some((number, document)));
            }
        }
        Ok(None)
    }

    /// Returns the document with this number, if it exists and matches.
    pub fn read(&self, number: u64) -> Result<Option<Document>, CommandError> {
        self.check_stop(self.tally.examined())?;
        let document = self.store.get(number).map_err(CommandError::Store)?;
        match document {
            Some(document) if self.matches(&document)? => Ok(Some(document)),
            _ => Ok(None),
        }
    }

    /// Performs the next step of a scan, and removes from `wanted` the record numbers that the scan has passed.
    fn gather(
        &self,
        wanted: &mut RoaringBitmap,
        gathered: &mut VecDeque<Numbered>,
    ) -> Result<(), CommandError> {
        let (Some(first), Some(last)) = (wanted.min(), wanted.max()) else {
            return Ok(());
        };
        let numbers = u64::from(first)..u64::from(last) + 1;
        let scan = self.scan(numbers);
        let mut bytes = 0;
        for (scanned, row) in (1..).zip(scan) {
            self.check_stop(scanned)?;
            let (number, document) = row.map_err(CommandError::Store)?;
            if is_in(wanted, number) && self.matches(&document)? {
                bytes += document.len_bytes();
                gathered.push_back((number, document));
            }
            if gathered.len() >= GATHERED_MAX || bytes >= GATHERED_BYTES {
                wanted.remove_range(..=u32::try_from(number).unwrap_or(u32::MAX));
                return Ok(());
            }
        }
        wanted.clear();
        Ok(())
    }

    /// Reads documents from the start of the collection until `limit` of them match. Stops early after `documents`
    /// documents, or after about `bytes` bytes. Returns the matches, and the first record number that was not read.
    pub fn probe(
        &self,
        limit: u64,
        documents: u64,
        bytes: usize,
    ) -> Result<(VecDeque<Numbered>, u64), CommandError> {
        let (mut gathered, mut next, mut bytes_left) = (VecDeque::new(), 0, bytes);
        for (scanned, row) in (1..=documents).zip(self.store.scan(0)) {
            self.check_stop(scanned)?;
            let (number, document) = row.map_err(CommandError::Store)?;
            next = number + 1;
            bytes_left = bytes_left.saturating_sub(document.len_bytes());
            if self.matches(&document)? {
                gathered.push_back((number, document));
            }
            if bytes_left == 0 || gathered.len() as u64 >= limit {
                break;
            }
        }
        Ok((gathered, next))
    }

    fn scan(&self, numbers: std::ops::Range<u64>) -> Scan {
        let forward = forebay_documents_store::Direction::Forward;
        self.store.scan_range(numbers, forward)
    }

    fn matches(&self, document: &Document) -> Result<bool, CommandError> {
        let document = document.raw();
        let matched = with_document(document, || self.filter.try_matches(document))?;
        self.tally.examine(matched);
        Ok(matched)
    }

    fn check_stop(&self, documents: u64) -> Result<(), CommandError> {
        if documents.is_multiple_of(STOP_INTERVAL) {
            self.stop.check()?;
        }
        Ok(())
    }
}

fn is_in(wanted: &RoaringBitmap, number: u64) -> bool {
    u32::try_from(number).is_ok_and(|number| wanted.contains(number))
}
