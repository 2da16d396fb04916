//! The buckets of a field in order of hash.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::bucket::Bucket;
use crate::gpu::{self, OnGpu};

/// An ordered map from ranges of hashes to buckets. There is always one bucket at least, and the first one's lower
/// bound is the empty value.
#[derive(Debug)]
pub(crate) struct Directory {
    buckets: Vec<Arc<Bucket>>,
    /// What GPUs hold of the buckets as they are now; made by the first search that wants it.
    on_gpus: OnceLock<Vec<Arc<OnGpu>>>,
}

impl Clone for Directory {
    /// A copy to be changed.
    fn clone(&self) -> Directory {
        Directory {
            buckets: self.buckets.clone(),
            on_gpus: OnceLock::new(),
        }
    }
}

impl Directory {
    pub(crate) fn new(first: Bucket) -> Directory {
        Directory {
            buckets: vec![Arc::new(first)],
            on_gpus: OnceLock::new(),
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

    /// What GPUs hold of the buckets at some positions.
    pub(crate) fn on_gpus(&self, positions: Range<usize>) -> Vec<Arc<OnGpu>> {
        if positions.len() < self.buckets.len() {
            return gpu::on_gpus(&self.buckets[positions]);
        }
        self.on_gpus
            .get_or_init(|| gpu::on_gpus(&self.buckets))
            .clone()
    }

    /// The bucket at a position, to change it; copied first if a search still reads it.
    pub(crate) fn bucket_mut(&mut self, position: usize) -> &mut Bucket {
        self.on_gpus.take();
        Arc::make_mut(&mut self.buckets[position])
    }

    /// Puts other buckets, in order of hash, in the place of some.
    pub(crate) fn replace(&mut self, positions: Range<usize>, buckets: Vec<Bucket>) {
        self.on_gpus.take();
        self.buckets
            .splice(positions, buckets.into_iter().map(Arc::new));
    }
}
