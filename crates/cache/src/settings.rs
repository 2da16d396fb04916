//! Sizes and times of the cache.

use std::time::Duration;

/// How the cache is built. The defaults suit millions of short values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSettings {
    /// Values a bucket may hold before it is split. 131,072 is the optimum of the paper.
    pub bucket_values_max: usize,
    /// Bytes of values a bucket may hold before it is split.
    pub bucket_bytes_max: usize,
    /// First bytes of a value that make its hash, where a bucket needs no finer one.
    pub hash_bytes: usize,
    /// Values in the tail at which the background flush begins.
    pub tail_values_max: usize,
    /// Values in one sorted chunk of the tail.
    pub chunk_values_max: usize,
    /// Bytes of values in one sorted chunk of the tail.
    pub chunk_bytes_max: usize,
    /// A value longer than this many bytes makes its document residual: the store judges it.
    pub value_bytes_max: usize,
    /// A tail that was left alone this long is flushed, however small it is.
    pub flush_after: Duration,
    /// Whether a thread flushes in the background. Without it, only [`CollectionCache::flush`](crate::CollectionCache::flush) does.
    pub background: bool,
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
            value_bytes_max: 16 << 20,
            flush_after: Duration::from_millis(200),
            background: true,
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
