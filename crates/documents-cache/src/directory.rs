//! The directory of a field's buckets, in order of value.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::bucket::Bucket;
use crate::gpu::{self, DevicePartitions};

/// An ordered map from ranges of values to buckets. Has at least one bucket; the first bucket's lower bound is the
/// empty value.
#[derive(Debug)]
pub(crate) struct Directory {
    buckets: Vec<Arc<Bucket>>,
    /// The current buckets grouped by device. Built by the first search that needs it.
    device_partitions: OnceLock<Arc<DevicePartitions>>,
}

impl Clone for Directory {
    /// Copies the directory without the grouping by device, because the copy is about to be changed.
    fn clone(&self) -> Directory {
        Directory {
            buckets: self.buckets.clone(),
            device_partitions: OnceLock::new(),
        }
    }
}

impl Directory {
    pub(crate) fn new(first: Bucket) -> Directory {
        Directory {
            buckets: vec![Arc::new(first)],
            device_partitions: OnceLock::new(),
        }
    }

    pub(crate) fn buckets(&self) -> &[Arc<Bucket>] {
        &self.buckets
    }

    /// Returns the position of the bucket that a value belongs to.
    pub(crate) fn position(&self, value: &[u8]) -> usize {
        self.buckets
            .partition_point(|bucket| *bucket.lower <= *value)
            - 1
    }

    /// Returns the positions of the buckets that may hold values beginning with `prefix`.
    pub(crate) fn positions(&self, prefix: &[u8]) -> Range<usize> {
        let first = self.position(prefix);
        let behind =
            self.buckets[first + 1..].partition_point(|bucket| bucket.lower.starts_with(prefix));
        first..first + 1 + behind
    }

    /// Groups the buckets at `positions` by device. Positions in the result are relative to the start of `positions`.
    pub(crate) fn device_partitions(&self, positions: Range<usize>) -> Arc<DevicePartitions> {
        if positions.len() < self.buckets.len() {
            return Arc::new(gpu::device_partitions(&self.buckets[positions]));
        }
        let all = || Arc::new(gpu::device_partitions(&self.buckets));
        Arc::clone(self.device_partitions.get_or_init(all))
    }

    /// Returns a bucket for writing. Copies the bucket first if a search still reads it.
    pub(crate) fn bucket_mut(&mut self, position: usize) -> &mut Bucket {
        self.device_partitions.take();
        Arc::make_mut(&mut self.buckets[position])
    }

    /// Replaces the buckets at `positions` by new buckets, which are in order of value.
    pub(crate) fn replace(&mut self, positions: Range<usize>, buckets: Vec<Bucket>) {
        self.device_partitions.take();
        self.buckets
            .splice(positions, buckets.into_iter().map(Arc::new));
    }
}
