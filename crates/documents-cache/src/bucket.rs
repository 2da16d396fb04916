//! A bucket: the values in one range, and the device that scans them.

use std::sync::Arc;

use forebay_device::{Device, MemoryPool};
use forebay_placement::ShardId;
use forebay_text_gpu::LoadError;

use crate::owners::BucketIdGuard;
use crate::segment::{Copying, Replica, Segment};

/// One version of a bucket. Clones share all data.
#[derive(Debug, Clone)]
pub(crate) struct Bucket {
    guard: Arc<BucketIdGuard>,
    /// Inclusive lower bound of the bucket's values. The upper bound is the next bucket's `lower`.
    pub(crate) lower: Arc<[u8]>,
    /// Length of the prefixes that separate the values of this bucket from those of its neighbours.
    pub(crate) prefix_bytes: usize,
    /// Sorted segments, oldest first.
    pub(crate) segments: Vec<Segment>,
    device: Option<Arc<Device>>,
}

impl Bucket {
    /// Creates a bucket that no device holds.
    pub(crate) fn new(
        guard: Arc<BucketIdGuard>,
        lower: &[u8],
        prefix_bytes: usize,
        segments: Vec<Segment>,
    ) -> Bucket {
        Bucket {
            guard,
            lower: lower.into(),
            prefix_bytes,
            segments,
            device: None,
        }
    }

    pub(crate) fn id(&self) -> ShardId {
        self.guard.id()
    }

    /// Returns the device that holds the whole bucket.
    pub(crate) fn device(&self) -> Option<&Arc<Device>> {
        self.device.as_ref()
    }

    /// Returns the number of rows, including deleted rows.
    pub(crate) fn rows(&self) -> usize {
        self.segments
            .iter()
            .map(|segment| segment.block().len())
            .sum()
    }

    pub(crate) fn live_rows(&self) -> usize {
        self.segments.iter().map(Segment::live_rows).sum()
    }

    /// Returns the number of bytes of the values, including separators.
    pub(crate) fn bytes(&self) -> usize {
        self.segments
            .iter()
            .map(|segment| segment.block().bytes_len())
            .sum()
    }

    /// Returns the number of bytes of host memory that the bucket takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let segments: u64 = self.segments.iter().map(Segment::memory_bytes).sum();
        segments + (size_of::<Bucket>() + self.lower.len()) as u64
    }

    /// Removes the bucket from its device. The bucket's memory on the device is freed once no search uses that memory.
    pub(crate) fn release(&mut self) {
        self.device = None;
        for segment in &mut self.segments {
            segment.replica = None;
        }
    }

    /// Returns the number of bytes of device memory that the bucket takes.
    pub(crate) fn device_bytes(&self) -> u64 {
        let replicas = self
            .segments
            .iter()
            .filter_map(|segment| segment.replica.as_ref());
        replicas.map(|replica| replica.bytes()).sum()
    }

    /// Assigns the bucket to a device, with the finished copies that [`Bucket::begin_copies`] started.
    pub(crate) fn place(&mut self, device: &Arc<Device>, copies: Vec<Arc<Replica>>) {
        assert_eq!(
            copies.len(),
            self.segments.len(),
            "there is one copy for each segment"
        );
        self.device = Some(Arc::clone(device));
        for (segment, copy) in self.segments.iter_mut().zip(copies) {
            segment.replica = Some(copy);
        }
    }

    /// Starts copying all segments to a device. Segments that the device already has are not copied again.
    pub(crate) fn begin_copies(
        &self,
        device: &Arc<Device>,
        pool: &MemoryPool,
    ) -> Result<Vec<Copying>, LoadError> {
        let here = self
            .device
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, device));
        let copy = |segment: &Segment| match &segment.replica {
            Some(replica) if here => Ok(Copying::Done(Arc::clone(replica))),
            _ => Copying::begin(device, pool, segment.block()),
        };
        self.segments.iter().map(copy).collect()
    }

    /// Finds the live row with this value and document. Returns the segment and the row.
    pub(crate) fn find(&self, value: &[u8], number: u32) -> Option<(usize, usize)> {
        let newest_first = self.segments.iter().enumerate().rev();
        newest_first
            .filter_map(|(index, segment)| Some((index, segment.find_sorted(value, number)?)))
            .next()
    }
}
