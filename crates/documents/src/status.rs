//! A snapshot of the documents server's status, for the status page and metrics.

use std::collections::BTreeMap;

use forebay_device::DeviceId;
use forebay_documents_cache::BucketSummary;
use forebay_documents_store::StoreSizes;

use crate::documents::Documents;
use crate::metrics::SearchFigures;
use crate::search::{FieldOverview, IndexState};

/// Maximum number of cells in the drawing of a field's buckets.
const CELLS_MAX: usize = 240;

/// The status of the documents server.
#[derive(Debug)]
pub struct Status {
    /// The collections with cache indexes, in order of name.
    pub caches: Vec<CollectionStatus>,
    /// Statistics of searches.
    pub searches: SearchFigures,
    /// Execution counts of commands, by name.
    pub commands: Vec<(&'static str, u64)>,
    /// Number of open cursors.
    pub cursors: usize,
    /// Sizes of the store.
    pub store: StoreSizes,
}

/// The status of a collection's caches.
#[derive(Debug)]
pub struct CollectionStatus {
    /// `database.collection`.
    pub namespace: String,
    /// Names and states of the collection's cache indexes.
    pub indexes: Vec<(String, IndexState)>,
    /// The cached fields.
    pub fields: Vec<FieldStatus>,
}

/// The status of a cached field.
#[derive(Debug)]
pub struct FieldStatus {
    /// The dotted path.
    pub path: String,
    /// Number of values held. An array of strings counts once per distinct element.
    pub rows: u64,
    /// Bytes of the values.
    pub value_bytes: u64,
    /// Bytes of memory in addition to the values.
    pub overhead_bytes: u64,
    /// Number of values that are not yet in a bucket.
    pub delta_rows: u64,
    /// Number of documents whose field the store must check, because the cache cannot evaluate it.
    pub recheck_documents: u64,
    /// Number of buckets that each device scans; `None` is the host.
    pub buckets: BTreeMap<Option<DeviceId>, u64>,
    /// All buckets in order of value. If there are too many to draw, each cell holds several neighbouring buckets.
    pub cells: Vec<Cell>,
    /// Number of conditions that searches have evaluated since the cache was built, per tier. Tests for null and
    /// existence count as tier `none`.
    pub searches: BTreeMap<&'static str, u64>,
}

/// Neighbouring buckets, drawn as one cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// Number of values held.
    pub rows: u64,
    /// Number of buckets that each device scans; `None` is the host.
    pub buckets: BTreeMap<Option<DeviceId>, u64>,
}

impl Documents {
    /// Returns the status of the documents server. Takes time in proportion to the number of buckets, which may be
    /// hundreds of thousands.
    pub fn status(&self) -> Status {
        let mut caches: Vec<CollectionStatus> = self
            .collections()
            .all()
            .iter()
            .map(|collection| CollectionStatus {
                namespace: collection.namespace.to_string(),
                indexes: collection.search.index_states(),
                fields: collection
                    .search
                    .overview()
                    .into_iter()
                    .map(field)
                    .collect(),
            })
            .filter(|collection| !collection.indexes.is_empty())
            .collect();
        caches.sort_by(|a, b| a.namespace.cmp(&b.namespace));
        Status {
            caches,
            searches: self.metrics().figures(),
            commands: self.counters().all(),
            cursors: self.cursors().counts().0,
            store: self.store().sizes(),
        }
    }

    /// Returns the current problems of the server as sentences. Reads from the disk.
    pub fn problems(&self) -> Vec<String> {
        let refused = self.store().check_writable().err();
        refused.iter().map(ToString::to_string).collect()
    }
}

impl Status {
    /// Returns the number of a device's buckets in all collections.
    pub fn buckets_on(&self, device: DeviceId) -> u64 {
        let fields = self.caches.iter().flat_map(|cache| &cache.fields);
        let on_device = fields.filter_map(|field| field.buckets.get(&Some(device)));
        on_device.sum()
    }
}

fn field(overview: FieldOverview) -> FieldStatus {
    let stats = overview.stats;
    FieldStatus {
        buckets: by_device(&stats.buckets),
        cells: cells(&stats.buckets),
        path: stats.field,
        rows: stats.rows,
        value_bytes: stats.value_bytes,
        overhead_bytes: stats.overhead_bytes,
        delta_rows: stats.delta_rows,
        recheck_documents: stats.recheck,
        searches: overview.searches,
    }
}

fn by_device(buckets: &[BucketSummary]) -> BTreeMap<Option<DeviceId>, u64> {
    let mut counts = BTreeMap::new();
    for bucket in buckets {
        *counts.entry(bucket.device).or_default() += 1;
    }
    counts
}

fn cells(buckets: &[BucketSummary]) -> Vec<Cell> {
    let cells = buckets.len().min(CELLS_MAX);
    let bound = |cell: usize| buckets.len() * cell / cells;
    (0..cells)
        .map(|cell| {
            let together = &buckets[bound(cell)..bound(cell + 1)];
            Cell {
                rows: together.iter().map(|bucket| bucket.rows).sum(),
                buckets: by_device(together),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(number: usize) -> BucketSummary {
        BucketSummary {
            rows: number as u64,
            device: (!number.is_multiple_of(3)).then_some(DeviceId(number as u32 % 3)),
        }
    }

    #[test]
    fn each_bucket_is_in_one_cell() {
        for count in [0, 1, CELLS_MAX - 1, CELLS_MAX, CELLS_MAX + 1, 100_003] {
            let buckets: Vec<_> = (0..count).map(bucket).collect();
            let cells = cells(&buckets);
            assert_eq!(cells.len(), count.min(CELLS_MAX));
            let rows: u64 = cells.iter().map(|cell| cell.rows).sum();
            assert_eq!(rows, buckets.iter().map(|bucket| bucket.rows).sum::<u64>());
            let mut counts: BTreeMap<_, u64> = BTreeMap::new();
            for (device, count) in cells.iter().flat_map(|cell| &cell.buckets) {
                *counts.entry(*device).or_default() += count;
            }
            assert_eq!(counts, by_device(&buckets));
            let sizes = cells.iter().map(|cell| cell.buckets.values().sum::<u64>());
            let (least, most) = (sizes.clone().min(), sizes.max());
            assert!(
                most <= least.map(|least| least + 1),
                "{least:?} to {most:?}"
            );
        }
    }
}
