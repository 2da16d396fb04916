//! Statistics of a cached field: its content and its memory.

use forebay_device::DeviceId;

/// Statistics of one cached field. `B` describes a bucket.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldStats<B = BucketStats> {
    /// Name of the field.
    pub field: String,
    /// Number of values. An array of strings counts once for each distinct element.
    pub rows: u64,
    /// Bytes of the values.
    pub value_bytes: u64,
    /// Bytes of memory besides the values: separators, offsets, document numbers, deleted rows, sets, directory. The
    /// fields of a collection share the set of live documents, which is counted for each field.
    pub overhead_bytes: u64,
    /// Number of rows in the delta.
    pub delta_rows: u64,
    /// Number of documents whose field the store must recheck.
    pub recheck: u64,
    /// Number of documents with an array of strings.
    pub arrays: u64,
    /// Number of buckets that no device holds.
    pub buckets_on_host: usize,
    /// The buckets in order of value.
    pub buckets: Vec<B>,
}

/// The statistics of a bucket that are cheap enough to report for hundreds of thousands of buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketSummary {
    /// Number of values.
    pub rows: u64,
    /// The device that scans the bucket; `None` is the host.
    pub device: Option<DeviceId>,
}

/// Statistics of one bucket.
#[derive(Debug, Clone, PartialEq)]
pub struct BucketStats {
    /// Id of the bucket, unique in the process.
    pub id: u64,
    /// Prefix of the bucket's lowest value.
    pub first_prefix: Vec<u8>,
    /// Prefix of the bucket's highest value.
    pub last_prefix: Vec<u8>,
    /// Length of `first_prefix` and `last_prefix`, which separate the bucket's values from those of its neighbours.
    pub prefix_bytes: usize,
    /// Number of values.
    pub rows: u64,
    /// Bytes of memory that the bucket's segments take.
    pub bytes: u64,
    /// Number of sorted segments.
    pub segments: usize,
    /// Whether the bucket is overfull but cannot be split, because all its values are equal.
    pub unsplittable: bool,
    /// The device that scans the bucket; `None` is the host.
    pub device: Option<DeviceId>,
}
