//! Sizes and times of the cache.

use std::time::Duration;

use forebay_memory::Account;

/// How the cache is built. The defaults suit millions of short values.
#[derive(Debug, Clone)]
pub struct CacheSettings {
    /// Values a bucket may hold before it is split. 131,072 is the optimum of the paper.
    pub bucket_values_max: usize,
    /// Bytes of values a bucket may hold before it is split.
    pub bucket_bytes_max: usize,
    /// First bytes of a value that make its hash, where a bucket needs no finer one.
    pub hash_bytes: usize,
    /// Values in the tail at which the background flush begins.
    ///
    /// PERF: `cargo run --release -p forebay-documents-cache --example insert -- NAMES N TAIL CHUNK BYTES`, the 4.5
    /// million package names, two cores of an Intel Xeon, November 2026; processor time a document of five fields, the
    /// last flush included, and the median of exact finds meanwhile, for a tail of 1,048,576 values in chunks of 16,384
    /// and 1 MiB beside one of 262,144 in chunks of 4,096 and 256 KiB. One million documents: 1.7 to 1.9 us and 0.6 ms
    /// beside 1.9 to 2.1 us and 0.9 to 1.6 ms; three million: 2.1 us and 1.3 ms beside 1.9 to 2.0 us and 1.0 to 1.5 ms;
    /// four million: 2.4 us and 1.0 to 1.2 ms beside 2.5 to 2.6 us and 1.9 to 3.0 ms. The larger one spares a load of
    /// up to a million documents every flush while it runs, and is within a tenth of the other in the long run.
    pub tail_values_max: usize,
    /// Values in one sorted chunk of the tail.
    pub chunk_values_max: usize,
    /// Bytes of values in one sorted chunk of the tail.
    pub chunk_bytes_max: usize,
    /// A value longer than this many bytes makes its document residual: the store judges it.
    pub value_bytes_max: usize,
    /// A tail that was left alone this long is flushed, however small it is.
    pub flush_after: Duration,
    /// Whether a thread flushes in the background. Without it, only
    /// [`CollectionCache::flush`](crate::CollectionCache::flush) does.
    pub background: bool,
    /// What searches take memory from.
    pub memory: Account,
    /// Decides the random placement of buckets.
    pub seed: u64,
}

impl Default for CacheSettings {
    fn default() -> Self {
        CacheSettings {
            bucket_values_max: 131_072,
            bucket_bytes_max: 64 << 20,
            hash_bytes: 2,
            tail_values_max: 1_048_576,
            chunk_values_max: 16_384,
            chunk_bytes_max: 1 << 20,
            value_bytes_max: 64 << 10,
            flush_after: Duration::from_millis(200),
            background: true,
            memory: Account::default(),
            seed: 0x466f_7265_6261_7900,
        }
    }
}

impl CacheSettings {
    /// Sorted chunks in the tail at which it is full.
    pub(crate) fn runs_max(&self) -> usize {
        (self.tail_values_max / self.chunk_values_max.max(1)).max(1)
    }
}
