//! What a cached field holds, and the memory that it takes.

use forebay_device::DeviceId;

/// Figures of one cached field; `B` describes a bucket.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldStats<B = BucketStats> {
    /// Name of the field.
    pub field: String,
    /// Values held; an array of strings counts as many as it has distinct elements.
    pub rows: u64,
    /// Bytes of those values.
    pub value_bytes: u64,
    /// Bytes of memory besides: separators, offsets, numbers, deleted rows, sets, directory. The set of live documents,
    /// which the fields of a collection share, is counted in each.
    pub overhead_bytes: u64,
    /// Rows not yet in a bucket.
    pub delta_rows: u64,
    /// Documents whose field the store must judge.
    pub recheck: u64,
    /// Documents with an array of strings.
    pub arrays: u64,
    /// Buckets that no device holds.
    pub buckets_on_host: usize,
    /// The buckets in order of value.
    pub buckets: Vec<B>,
}

/// The figures of a bucket that are reported even if there are hundreds of thousands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketSummary {
    /// Values held.
    pub rows: u64,
    /// The device that scans it; `None` is the host.
    pub device: Option<DeviceId>,
}

/// Figures of one bucket.
#[derive(Debug, Clone, PartialEq)]
pub struct BucketStats {
    /// Id, unique in the process.
    pub id: u64,
    /// Prefix of its least value.
    pub first_prefix: Vec<u8>,
    /// Prefix of its greatest value.
    pub last_prefix: Vec<u8>,
    /// Length of these prefixes, which tell its values from those of its neighbours.
    pub prefix_bytes: usize,
    /// Values held.
    pub rows: u64,
    /// Bytes of memory of its segments.
    pub bytes: u64,
    /// Number of its sorted segments.
    pub segments: usize,
    /// Whether it is overfull but cannot be split, because all its values are equal.
    pub unsplittable: bool,
    /// The device that scans it; `None` is the host.
    pub device: Option<DeviceId>,
}
