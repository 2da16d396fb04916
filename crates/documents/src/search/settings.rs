//! What the search of cached fields may take and use.

/// Limits of building and searching the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchSettings {
    /// The most documents that a build takes under one hold of the collection's write lock.
    pub build_batch_documents: usize,
    /// The most bytes of documents that a build takes under one hold of the collection's write lock.
    pub build_batch_bytes: usize,
    /// Fetching one document by number costs as much as scanning this many.
    ///
    /// A match wider than the collection's document count divided by this is read by a scan that skips what the cache
    /// ruled out.
    pub fetch_cost: u64,
    /// As few documents as this are always fetched by number.
    pub fetch_always: u64,
    /// The most documents that a `find` with a limit tries before it searches every value.
    pub probe_documents_max: u64,
    /// The most bytes of documents, give or take one document, that it tries.
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
