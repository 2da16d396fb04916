//! Statistics of a collection's cache indexes, for `$indexStats`, `collStats`, `currentOp` and the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use bson::{RawArrayBuf, RawDocumentBuf, cstr, rawdoc};
use forebay_documents_cache::{BucketStats, BucketSummary, Cache, FieldStats};
use forebay_text::Tier;

use super::collection::{CacheIndex, CollectionSearch, State};

/// The state of a cache index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexState {
    /// The index answers searches.
    Ready,
    /// The build reads the collection.
    Building {
        /// Number of documents cached so far.
        done: u64,
        /// Number of documents that the collection had when the build began.
        total: u64,
    },
    /// The index is not built, and no build is in progress.
    Failed {
        /// The reason.
        reason: String,
    },
}

impl IndexState {
    /// Returns the name of the state.
    pub fn name(&self) -> &'static str {
        match self {
            IndexState::Ready => "ready",
            IndexState::Building { .. } => "building",
            IndexState::Failed { .. } => "failed",
        }
    }
}

/// Statistics of one cache index.
#[derive(Clone, Debug)]
pub struct IndexStatus {
    /// The name.
    pub name: String,
    /// The state.
    pub state: IndexState,
    /// Statistics of the fields; empty until the index is ready.
    pub fields: Vec<FieldStatus>,
}

/// Statistics of one cached field.
#[derive(Clone, Debug)]
pub struct FieldStatus {
    /// Row, byte and bucket counts of the cached data.
    pub stats: FieldStats,
    /// Names of the devices that hold the field's buckets.
    pub devices: BTreeSet<String>,
    /// Number of conditions that searches have evaluated since the cache was built, per tier. Tests for null and
    /// existence count as tier `none`.
    pub searches: BTreeMap<&'static str, u64>,
}

/// Statistics of one cached field without the details of its buckets.
#[derive(Clone, Debug)]
pub struct FieldOverview {
    /// Row, byte and bucket counts of the cached data.
    pub stats: FieldStats<BucketSummary>,
    /// Number of conditions that searches have evaluated since the cache was built, per tier. Tests for null and
    /// existence count as tier `none`.
    pub searches: BTreeMap<&'static str, u64>,
}

/// The progress of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheBuild {
    /// The collection's name.
    pub namespace: String,
    /// The names of the indexes being built.
    pub indexes: Vec<String>,
    /// Number of documents cached so far.
    pub done: u64,
    /// Number of documents that the collection had when the build began.
    pub total: u64,
}

impl IndexStatus {
    /// Returns the number of evaluated conditions on the index's fields.
    pub fn searches(&self) -> u64 {
        self.fields
            .iter()
            .flat_map(|field| field.searches.values())
            .sum()
    }

    /// Returns the statistics as a document.
    pub fn to_document(&self) -> RawDocumentBuf {
        let mut document = rawdoc! { "state": self.state.name() };
        match &self.state {
            IndexState::Ready => {}
            IndexState::Building { done, total } => {
                document.append(cstr!("done"), *done as i64);
                document.append(cstr!("total"), *total as i64);
            }
            IndexState::Failed { reason } => document.append(cstr!("reason"), reason.as_str()),
        }
        let fields = self.fields.iter().map(FieldStatus::to_document);
        document.append(cstr!("fields"), RawArrayBuf::from_iter(fields));
        document
    }
}

impl FieldStatus {
    fn to_document(&self) -> RawDocumentBuf {
        let stats = &self.stats;
        let mut searches = RawDocumentBuf::new();
        for (tier, count) in &self.searches {
            if let Ok(tier) = bson::raw::CString::try_from(*tier) {
                searches.append(&tier, *count as i64);
            }
        }
        rawdoc! {
            "field": stats.field.as_str(),
            "rows": stats.rows as i64,
            "valueBytes": stats.value_bytes as i64,
            "overheadBytes": stats.overhead_bytes as i64,
            "deltaRows": stats.delta_rows as i64,
            "recheckDocuments": stats.recheck as i64,
            "arrayDocuments": stats.arrays as i64,
            "buckets": stats.buckets.len() as i64,
            "bucketsOnHost": stats.buckets_on_host as i64,
            "devices": RawArrayBuf::from_iter(self.devices.iter().map(String::as_str)),
            "searches": searches,
        }
    }
}

/// Returns a bucket as a document. Its prefixes are text, in which invalid UTF-8 is replaced.
pub fn bucket_document(bucket: &BucketStats, cache: &Cache) -> RawDocumentBuf {
    let device = bucket.device.and_then(|id| cache.devices().get(id));
    rawdoc! {
        "id": bucket.id as i64,
        "firstPrefix": String::from_utf8_lossy(&bucket.first_prefix).as_ref(),
        "lastPrefix": String::from_utf8_lossy(&bucket.last_prefix).as_ref(),
        "prefixBytes": bucket.prefix_bytes as i64,
        "rows": bucket.rows as i64,
        "bytes": bucket.bytes as i64,
        "segments": bucket.segments as i64,
        "unsplittable": bucket.unsplittable,
        "device": device.as_ref().map_or("", |device| device.name()),
    }
}

impl State {
    fn index_state(&self, index: &CacheIndex) -> IndexState {
        if self.is_ready(index) {
            return IndexState::Ready;
        }
        if let Some(building) = self
            .building
            .as_ref()
            .filter(|building| building.has(index))
        {
            return IndexState::Building {
                done: building.done(),
                total: building.total,
            };
        }
        let reason = self
            .failure
            .as_ref()
            .map_or_else(|| "the index is not built".to_owned(), ToString::to_string);
        IndexState::Failed { reason }
    }

    fn field_status(&self, path: &str, cache: &Cache) -> Option<FieldStatus> {
        let generation = self.ready.as_ref()?;
        let column = generation.extractor.fields().index_of(path)?;
        let stats = generation.values.stats(column)?;
        let devices = stats
            .buckets
            .iter()
            .filter_map(|bucket| cache.devices().get(bucket.device?));
        let devices = devices.map(|device| device.name().to_owned()).collect();
        Some(FieldStatus {
            devices,
            searches: generation.searches(column),
            stats,
        })
    }
}

impl CollectionSearch {
    /// Returns the statistics of all declared indexes.
    pub fn status(&self) -> Vec<IndexStatus> {
        self.with_state(|state| {
            let declared = state.declared.iter();
            declared
                .map(|index| self.index_status(state, index))
                .collect()
        })
    }

    fn index_status(&self, state: &State, index: &CacheIndex) -> IndexStatus {
        let fields = index
            .fields
            .iter()
            .filter_map(|path| state.field_status(path, self.cache()));
        IndexStatus {
            name: index.name.clone(),
            state: state.index_state(index),
            fields: fields.collect(),
        }
    }

    /// Returns the names and states of all declared indexes.
    pub fn index_states(&self) -> Vec<(String, IndexState)> {
        self.with_state(|state| {
            let declared = state.declared.iter();
            declared
                .map(|index| (index.name.clone(), state.index_state(index)))
                .collect()
        })
    }

    /// Returns the statistics of all cached fields. Returns an empty vector until the caches are built.
    pub fn overview(&self) -> Vec<FieldOverview> {
        let Some(generation) = self.with_state(|state| state.ready.clone()) else {
            return Vec::new();
        };
        (0..generation.values.fields().len())
            .filter_map(|column| {
                Some(FieldOverview {
                    stats: generation.values.summary(column)?,
                    searches: generation.searches(column),
                })
            })
            .collect()
    }

    /// Returns the cached fields in which each document has a string or null, or which it lacks. Returns an empty
    /// vector until the caches are built.
    pub fn string_fields(&self) -> Vec<String> {
        let Some(generation) = self.with_state(|state| state.ready.clone()) else {
            return Vec::new();
        };
        let values = &generation.values;
        let fields = values.fields().iter().enumerate();
        fields
            .filter(|(column, _)| values.holds_only_strings(*column))
            .map(|(_, name)| name.clone())
            .collect()
    }

    /// Returns the statistics of one index, or `None` if it is not a declared cache index.
    pub fn status_of(&self, name: &str) -> Option<IndexStatus> {
        self.with_state(|state| {
            let index = state.declared.iter().find(|index| index.name == name)?;
            Some(self.index_status(state, index))
        })
    }

    /// Returns the build in progress, if any.
    pub fn build_progress(&self) -> Option<CacheBuild> {
        self.with_state(|state| {
            let building = state.building.as_ref()?;
            let unready = state
                .declared
                .iter()
                .filter(|index| building.has(index) && !state.is_ready(index));
            Some(CacheBuild {
                namespace: state.namespace.clone(),
                indexes: unready.map(|index| index.name.clone()).collect(),
                done: building.done(),
                total: building.total,
            })
        })
    }

    /// Returns the buckets of a cached field, or `None` if the field is not cached yet.
    pub fn bucket_documents(&self, path: &str) -> Option<Vec<RawDocumentBuf>> {
        let status = self.with_state(|state| state.field_status(path, self.cache()))?;
        Some(
            status
                .stats
                .buckets
                .iter()
                .map(|bucket| bucket_document(bucket, self.cache()))
                .collect(),
        )
    }
}

/// Counters of the conditions that searches have evaluated, per field and tier.
#[derive(Debug)]
pub struct SearchCounters {
    columns: Vec<[AtomicU64; Tier::ALL.len() + 1]>,
}

impl SearchCounters {
    /// Returns counters for this number of fields.
    pub fn new(fields: usize) -> SearchCounters {
        SearchCounters {
            columns: (0..fields).map(|_| Default::default()).collect(),
        }
    }

    /// Counts a condition on a field.
    pub fn count(&self, column: usize, tier: Option<Tier>) {
        let place = tier.and_then(|tier| Tier::ALL.iter().position(|known| *known == tier));
        let counter = &self.columns[column][place.unwrap_or(Tier::ALL.len())];
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the non-zero counts of one field, per tier.
    pub fn of(&self, column: usize) -> BTreeMap<&'static str, u64> {
        let names = Tier::ALL.iter().map(|tier| tier.name()).chain(["none"]);
        let counts = self.columns[column]
            .iter()
            .map(|count| count.load(Ordering::Relaxed));
        names.zip(counts).filter(|(_, count)| *count > 0).collect()
    }
}
