//! Reports of searches, as `explain` and the slow-query log show them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bson::{RawArrayBuf, RawDocumentBuf, cstr, rawdoc};
use forebay_documents_cache::{DeviceReport, HostReport, LeafReport, SearchReport};
use forebay_text::Tier;

/// Counts of the index entries and documents that a search has read. One thread updates the counts at a time; any
/// thread may read them.
#[derive(Debug, Default)]
pub struct Tally {
    keys: AtomicU64,
    examined: AtomicU64,
    matched: AtomicU64,
}

/// Adds to a counter without the cost of an atomic addition. No other thread may change the counter at the same time.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

impl Tally {
    /// Counts an index entry that was read.
    pub fn read_key(&self) {
        add(&self.keys, 1);
    }

    /// Counts a document that was read, and whether it matched the filter.
    pub fn examine(&self, matched: bool) {
        self.examine_many(1, u64::from(matched));
    }

    /// Counts documents that were read, of which `matched` matched the filter.
    pub fn examine_many(&self, documents: u64, matched: u64) {
        add(&self.examined, documents);
        add(&self.matched, matched);
    }

    /// Returns the number of index entries read.
    pub fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// Returns the number of documents read.
    pub fn examined(&self) -> u64 {
        self.examined.load(Ordering::Relaxed)
    }

    /// Returns the number of documents that were read and matched.
    pub fn matched(&self) -> u64 {
        self.matched.load(Ordering::Relaxed)
    }
}

/// The plan's conditions on cached fields, for `explain`.
#[derive(Debug, Default)]
pub struct PlanSummary {
    /// The cache indexes whose fields are searched.
    pub indexes: Vec<Arc<str>>,
    /// The conditions, in the order of the cache's expression.
    pub leaves: Vec<LeafSummary>,
    /// Whether the cache evaluates the whole filter.
    pub exact: bool,
}

/// One condition on one cached field.
#[derive(Debug, Clone)]
pub struct LeafSummary {
    /// Index of the field among the cached fields of the collection.
    pub field: usize,
    /// The dotted path.
    pub path: Arc<str>,
    /// The kind of condition: `equals`, `in`, `regex`, `null`, `missing`.
    pub predicate: &'static str,
    /// The pattern as `/source/options`, if the condition is a pattern.
    pub pattern: Option<String>,
    /// The matching tier with which the cache compares values.
    pub tier: Option<Tier>,
}

impl LeafSummary {
    fn to_document(&self) -> RawDocumentBuf {
        let mut document = rawdoc! { "field": &*self.path, "predicate": self.predicate };
        if let Some(pattern) = &self.pattern {
            document.append(cstr!("pattern"), pattern.as_str());
        }
        if let Some(tier) = self.tier {
            document.append(cstr!("tier"), tier.name());
        }
        document
    }

    fn with_figures(&self, figures: &LeafReport) -> RawDocumentBuf {
        let known = LeafSummary {
            tier: figures.tier.or(self.tier),
            ..self.clone()
        };
        let mut document = known.to_document();
        document.append(cstr!("bucketsSearched"), figures.buckets_searched as i64);
        document.append(cstr!("bucketsTotal"), figures.buckets_total as i64);
        document.append(cstr!("rows"), figures.rows as i64);
        document.append(cstr!("bytes"), figures.bytes as i64);
        document
    }
}

impl PlanSummary {
    /// Returns the slowest tier among the conditions, or `None` if no value is compared.
    pub fn tier(&self) -> Option<Tier> {
        let place = |tier: &Tier| Tier::ALL.iter().position(|known| known == tier);
        self.leaves
            .iter()
            .filter_map(|leaf| leaf.tier)
            .max_by_key(place)
    }

    /// Returns the plan's stage in the format of `queryPlanner`.
    pub fn to_document(&self, stage: &str) -> RawDocumentBuf {
        let leaves = RawArrayBuf::from_iter(self.leaves.iter().map(LeafSummary::to_document));
        let mut document = self.head(stage);
        document.append(cstr!("leaves"), leaves);
        document
    }

    fn head(&self, stage: &str) -> RawDocumentBuf {
        let indexes = RawArrayBuf::from_iter(self.indexes.iter().map(|name| &**name));
        rawdoc! { "stage": stage, "indexNames": indexes, "exact": self.exact }
    }
}

/// How a search reads documents after the cache has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads only the documents that the cache cannot evaluate.
    None,
    /// Reads documents one by one, by record number.
    Fetch,
    /// Reads none: the first documents of the collection contained enough matches, so the cache was not searched.
    Probe {
        /// Number of documents probed.
        documents: u64,
    },
    /// Scans the collection and skips the documents that the cache excluded.
    Scan {
        /// Number of documents that may match.
        candidates: u64,
        /// Number of documents of the collection.
        documents: u64,
    },
}

impl Access {
    fn name(self) -> &'static str {
        match self {
            Access::None => "none",
            Access::Fetch => "fetch",
            Access::Probe { .. } => "probe",
            Access::Scan { .. } => "scan",
        }
    }

    fn reason(self) -> Option<String> {
        match self {
            Access::Scan {
                candidates,
                documents,
            } => Some(format!(
                "{candidates} of {documents} documents may match: one scan is cheaper than fetching each"
            )),
            Access::Probe { documents } => Some(format!(
                "the first {documents} documents of the collection had enough matches"
            )),
            Access::None | Access::Fetch => None,
        }
    }
}

/// The report of one search.
#[derive(Clone, Debug)]
pub struct ExecutionReport {
    /// The stage's name: `CACHE_SEARCH`, `CACHE_COUNT`, `CACHE_DISTINCT`.
    pub stage: &'static str,
    /// The plan's conditions on cached fields.
    pub plan: Arc<PlanSummary>,
    /// The cache's own report.
    pub search: SearchReport,
    /// Number of documents that the cache found.
    pub found: u64,
    /// Number of documents that the cache could not evaluate.
    pub recheck: u64,
    /// How documents were read after the cache's search.
    pub access: Access,
    /// Counts of the documents read.
    pub tally: Arc<Tally>,
}

impl ExecutionReport {
    /// Returns the stage in the format of `executionStats`.
    pub fn to_document(&self) -> RawDocumentBuf {
        let mut document = self.plan.head(self.stage);
        document.append(cstr!("leaves"), self.leaves());
        let devices = RawArrayBuf::from_iter(self.search.devices.iter().map(device));
        document.append(cstr!("devices"), devices);
        document.append(cstr!("host"), host(&self.search.host));
        document.append(cstr!("searchMicros"), self.search.total_us as i64);
        document.append(cstr!("found"), self.found as i64);
        document.append(cstr!("recheckDocuments"), self.recheck as i64);
        self.append_access(&mut document);
        document
    }

    /// Returns the number of rows scanned.
    pub fn rows(&self) -> u64 {
        self.search.leaves.iter().map(|leaf| leaf.rows).sum()
    }

    /// Returns the names of the devices that scanned, separated by commas.
    pub fn device_names(&self) -> String {
        let names = self
            .search
            .devices
            .iter()
            .map(|device| device.name.as_str());
        names.collect::<Vec<_>>().join(",")
    }

    /// Returns the number of bytes scanned.
    pub fn bytes(&self) -> u64 {
        self.search.leaves.iter().map(|leaf| leaf.bytes).sum()
    }

    fn append_access(&self, document: &mut RawDocumentBuf) {
        document.append(cstr!("documentAccess"), self.access.name());
        if let Some(reason) = self.access.reason() {
            document.append(cstr!("documentAccessReason"), reason);
        }
        document.append(cstr!("docsExamined"), self.tally.examined() as i64);
        document.append(cstr!("docsMatched"), self.tally.matched() as i64);
    }

    fn leaves(&self) -> RawArrayBuf {
        let figures = &self.search.leaves;
        let leaves = self.plan.leaves.iter().enumerate();
        leaves
            .map(|(place, leaf)| match figures.get(place) {
                Some(figures) => leaf.with_figures(figures),
                None => leaf.to_document(),
            })
            .collect()
    }
}

fn device(report: &DeviceReport) -> RawDocumentBuf {
    rawdoc! {
        "name": report.name.as_str(),
        "buckets": report.buckets as i64,
        "rows": report.rows as i64,
        "micros": report.device_us as i64,
    }
}

fn host(report: &HostReport) -> RawDocumentBuf {
    rawdoc! {
        "buckets": report.buckets as i64,
        "rows": report.rows as i64,
        "deltaRows": report.delta_rows as i64,
        "micros": report.host_us as i64,
    }
}
