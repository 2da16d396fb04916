//! Limits of searches over cached fields.

/// Limits of building and searching the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchSettings {
    /// Maximum documents that a build reads while it holds the collection's write lock once.
    pub build_batch_documents: usize,
    /// Maximum bytes of documents that a build reads while it holds the collection's write lock once.
    pub build_batch_bytes: usize,
    /// Number of documents that can be scanned in the time of fetching one by number.
    ///
    /// If more documents may match than the collection's document count divided by this, they are read by a scan that
    /// skips what the cache ruled out.
    pub fetch_cost: u64,
    /// Up to this many documents are always fetched by number.
    pub fetch_always: u64,
    /// Maximum documents that a `find` with a limit tries before it searches every value.
    pub probe_documents_max: u64,
    /// Maximum bytes of documents that it tries, exceeded by at most one document.
    pub probe_bytes_max: usize,
}

impl Default for SearchSettings {
    fn default() -> SearchSettings {
        SearchSettings {
            build_batch_documents: 1024,
            build_batch_bytes: 1024 * 1024,
            fetch_cost: 4,
            fetch_always: 64,
            probe_documents_max: 512,
            probe_bytes_max: 1024 * 1024,
        }
    }
}
