//! Counters of reads on collections with caches, by outcome.

use std::sync::atomic::{AtomicU64, Ordering};

use bson::{RawDocumentBuf, rawdoc};

/// Counters of reads, which never decrease.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads that a replica answered alone.
    pub answered: AtomicU64,
    /// Reads that a replica answered while the upstream was away, a subset of `answered`.
    pub stale: AtomicU64,
    /// Reads for which a replica found the `_id`s, and the upstream returned the documents.
    pub narrowed: AtomicU64,
    /// Reads that were passed on unchanged.
    pub forwarded: AtomicU64,
    /// Forwarded reads for which the upstream's own search is faster than queries by `_id`, a subset of `forwarded`.
    pub slower: AtomicU64,
    /// Answers that were compared with the upstream's.
    pub compared: AtomicU64,
    /// Compared answers that differed, a subset of `compared`.
    pub differed: AtomicU64,
    /// Comparisons without a result, because the documents were written at the same time.
    pub undecided: AtomicU64,
}

impl Counters {
    /// Returns all counters by name.
    pub fn document(&self) -> RawDocumentBuf {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as i64;
        rawdoc! {
            "answered": value(&self.answered), "stale": value(&self.stale), "narrowed": value(&self.narrowed),
            "forwarded": value(&self.forwarded), "slower": value(&self.slower), "compared": value(&self.compared),
            "differed": value(&self.differed), "undecided": value(&self.undecided),
        }
    }
}
