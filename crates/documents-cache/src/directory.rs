//! The buckets of a field in order of value.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::bucket::Bucket;
use crate::gpu::{self, DevicePartitions};

/// An ordered map from ranges of values to buckets. There is always at least one bucket, and the first one's lower
/// bound is the empty value.
#[derive(Debug)]
pub(crate) struct Directory {
    buckets: Vec<Arc<Bucket>>,
    /// The partitions of the present buckets by device; made by the first search that needs them.
    device_partitions: OnceLock<Arc<DevicePartitions>>,
}

impl Clone for Directory {
    /// A copy that will be changed, so that it starts without partitions.
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

    /// The partitions by device of the buckets at `positions`; positions in the answer count from the first of them.
    pub(crate) fn device_partitions(&self, positions: Range<usize>) -> Arc<DevicePartitions> {
        if positions.len() < self.buckets.len() {
            return Arc::new(gpu::device_partitions(&self.buckets[positions]));
        }
        let all = || Arc::new(gpu::device_partitions(&self.buckets));
        Arc::clone(self.device_partitions.get_or_init(all))
    }

    /// The bucket at a position, mutably; copied first if a search still reads it.
    pub(crate) fn bucket_mut(&mut self, position: usize) -> &mut Bucket {
        self.device_partitions.take();
        Arc::make_mut(&mut self.buckets[position])
    }

    /// Replaces the buckets at `positions` by others, which are in order of value.
    pub(crate) fn replace(&mut self, positions: Range<usize>, buckets: Vec<Bucket>) {
        self.device_partitions.take();
        self.buckets
            .splice(positions, buckets.into_iter().map(Arc::new));
    }
}
