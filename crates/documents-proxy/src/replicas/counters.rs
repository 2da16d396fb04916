//! What became of reads on collections with caches.

use std::sync::atomic::{AtomicU64, Ordering};

use bson::{RawDocumentBuf, rawdoc};

/// Counters of reads, which only go up.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads that a replica answered by itself.
    pub answered: AtomicU64,
    /// Of these, while the upstream was away.
    pub stale: AtomicU64,
    /// Reads whose documents a replica found and the upstream gave.
    pub narrowed: AtomicU64,
    /// Reads that were passed on unchanged.
    pub forwarded: AtomicU64,
    /// Of these, reads that the upstream answers faster by a search than by the `_id`s that a replica found.
    pub slower: AtomicU64,
    /// Answers that were compared with the upstream's.
    pub compared: AtomicU64,
    /// Of these, answers that differed.
    pub differed: AtomicU64,
    /// Comparisons without a result, as the documents were written meanwhile.
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
