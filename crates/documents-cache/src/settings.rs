//! Settings of the cache.

use std::time::Duration;

use forebay_memory::Account;

/// Settings of a cache. The defaults suit millions of short values.
#[derive(Debug, Clone)]
pub struct CacheSettings {
    /// Maximum number of values in a bucket. A larger bucket is split. The paper's optimum is 131,072.
    pub bucket_values_max: usize,
    /// Maximum bytes of a bucket's values. A larger bucket is split.
    pub bucket_bytes_max: usize,
    /// Initial length of the prefixes that divide values among buckets. A bucket uses longer prefixes if it needs them.
    pub prefix_bytes: usize,
    /// Number of values in the delta at which the background flush starts.
    ///
    /// PERF: `cargo run --release -p forebay-documents-cache --example insert -- NAMES N DELTA CHUNK BYTES`, the 4.5
    /// million package names, two cores of an Intel Xeon, November 2026. Processor time per document of five fields,
    /// including the last flush, and median latency of exact finds during the inserts. Each line has both for a delta
    /// of 1,048,576 values in chunks of 16,384 values and 1 MiB, then for a delta of 262,144 values in chunks of 4,096
    /// values and 256 KiB:
    ///
    /// - one million documents: 1.7 to 1.9 us and 0.6 ms; 1.9 to 2.1 us and 0.9 to 1.6 ms
    /// - three million: 2.1 us and 1.3 ms; 1.9 to 2.0 us and 1.0 to 1.5 ms
    /// - four million: 2.4 us and 1.0 to 1.2 ms; 2.5 to 2.6 us and 1.9 to 3.0 ms
    ///
    /// With the larger delta, a load of up to a million documents needs no flush until its end. With more documents,
    /// the processor times are within a tenth of each other.
    pub delta_values_max: usize,
    /// Number of values at which the open chunk of the delta is sealed into a sorted run.
    pub chunk_values_max: usize,
    /// Bytes of values at which the open chunk is sealed.
    pub chunk_bytes_max: usize,
    /// Maximum bytes of a cached value. If a document has a longer value, the store must recheck the document.
    pub value_bytes_max: usize,
    /// Time without writes after which a delta of any size is flushed.
    pub flush_after: Duration,
    /// Whether a background thread flushes. If not, only [`CollectionCache::flush`](crate::CollectionCache::flush)
    /// does.
    pub background: bool,
    /// The cache's share of the memory of each device, in percent. The cache also uses what other tenants leave free,
    /// and gives it back when they claim their shares.
    pub device_share_percent: u8,
    /// Memory account that searches charge.
    pub memory: Account,
    /// Seed of the random placement of buckets.
    pub seed: u64,
}

impl Default for CacheSettings {
    fn default() -> Self {
        CacheSettings {
            bucket_values_max: 131_072,
            bucket_bytes_max: 64 << 20,
            prefix_bytes: 2,
            delta_values_max: 1_048_576,
            chunk_values_max: 16_384,
            chunk_bytes_max: 1 << 20,
            value_bytes_max: 64 << 10,
            flush_after: Duration::from_millis(200),
            background: true,
            device_share_percent: 100,
            memory: Account::default(),
            seed: 0x466f_7265_6261_7900,
        }
    }
}

impl CacheSettings {
    /// Returns the number of sorted runs at which the delta is full.
    pub(crate) fn runs_max(&self) -> usize {
        (self.delta_values_max / self.chunk_values_max.max(1)).max(1)
    }
}
