//! The buckets of a field in order of hash.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::bucket::Bucket;
use crate::gpu::{self, Holders};

/// An ordered map from ranges of hashes to buckets. There is always one bucket at least, and the first one's lower
/// bound is the empty value.
#[derive(Debug)]
pub(crate) struct Directory {
    buckets: Vec<Arc<Bucket>>,
    /// Who holds the buckets as they are now; made by the first search that wants it.
    holders: OnceLock<Arc<Holders>>,
}

impl Clone for Directory {
    /// A copy to be changed.
    fn clone(&self) -> Directory {
        Directory {
            buckets: self.buckets.clone(),
            holders: OnceLock::new(),
        }
    }
}

impl Directory {
    pub(crate) fn new(first: Bucket) -> Directory {
        Directory {
            buckets: vec![Arc::new(first)],
            holders: OnceLock::new(),
        }
    }

    pub(crate) fn buckets(&self) -> &[Arc<Bucket>] {
        &self.buckets
    }

    /// Position of the bucket that a value belongs to.
    pub(crate) fn position(&self, value: &[u8]) -> usize {
        self.buckets
            .partition_point(|bucket| *bucket.lower <= *value)
            - 1
    }

    /// Positions of the buckets that can hold values beginning with `prefix`.
    pub(crate) fn positions(&self, prefix: &[u8]) -> Range<usize> {
        let first = self.position(prefix);
        let behind =
            self.buckets[first + 1..].partition_point(|bucket| bucket.lower.starts_with(prefix));
        first..first + 1 + behind
    }

    /// Who holds the buckets at some positions; positions in the answer count from the first of them.
    pub(crate) fn holders(&self, positions: Range<usize>) -> Arc<Holders> {
        if positions.len() < self.buckets.len() {
            return Arc::new(gpu::holders(&self.buckets[positions]));
        }
        let all = || Arc::new(gpu::holders(&self.buckets));
        Arc::clone(self.holders.get_or_init(all))
    }

    /// The bucket at a position, to change it; copied first if a search still reads it.
    pub(crate) fn bucket_mut(&mut self, position: usize) -> &mut Bucket {
        self.holders.take();
        Arc::make_mut(&mut self.buckets[position])
    }

    /// Puts other buckets, in order of hash, in the place of some.
    pub(crate) fn replace(&mut self, positions: Range<usize>, buckets: Vec<Bucket>) {
        self.holders.take();
        self.buckets
            .splice(positions, buckets.into_iter().map(Arc::new));
    }
}
