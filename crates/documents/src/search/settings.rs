//! Limits of searches over cached fields.

/// Limits of building and searching the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchSettings {
    /// Maximum documents that a build reads before it releases the collection's write lock.
    pub build_batch_documents: usize,
    /// Maximum bytes of documents that a build reads before it releases the collection's write lock.
    pub build_batch_bytes: usize,
    /// Cost of fetching one document by record number: the number of documents that a scan reads in the same time.
    ///
    /// If more than 1 in `fetch_cost` documents of the collection may match, a scan reads them, and skips the documents
    /// that the cache excluded.
    pub fetch_cost: u64,
    /// Maximum number of documents that are fetched by record number regardless of `fetch_cost`.
    pub fetch_always: u64,
    /// Maximum documents that a `find` with a limit probes before it searches every value.
    pub probe_documents_max: u64,
    /// Maximum bytes of documents that a `find` with a limit probes before it searches every value. The last document
    /// may exceed this limit.
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
