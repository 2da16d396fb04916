//! What a cached field holds and what it takes.

use forebay_device::DeviceId;

/// Figures of one cached field, each bucket told by a `B`.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldStats<B = BucketStats> {
    /// Name of the field.
    pub field: String,
    /// Values held; an array of strings counts once for each distinct element.
    pub rows: u64,
    /// Bytes of those values.
    pub value_bytes: u64,
    /// Bytes of memory above that: separators, offsets, numbers, dead rows, sets, directory. The set of live documents,
    /// which the fields of a collection share, is counted in each.
    pub overhead_bytes: u64,
    /// Rows not yet in a bucket.
    pub tail_rows: u64,
    /// Documents whose field the store must judge.
    pub residual: u64,
    /// Documents with an array of strings.
    pub arrays: u64,
    /// Buckets that no device holds.
    pub buckets_on_host: usize,
    /// The buckets in order of hash.
    pub buckets: Vec<B>,
}

/// What is told of a bucket where there may be hundreds of thousands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketHome {
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
    /// Hash of its least value.
    pub first_hash: Vec<u8>,
    /// Hash of its greatest value.
    pub last_hash: Vec<u8>,
    /// First bytes of a value that make the hash in this bucket.
    pub hash_bytes: usize,
    /// Values held.
    pub rows: u64,
    /// Bytes of memory its segments take.
    pub bytes: u64,
    /// Sorted segments it consists of.
    pub segments: usize,
    /// Overfull, but all its values are the same, so that no hash can split it.
    pub unsplittable: bool,
    /// The device that scans it; `None` is the host.
    pub device: Option<DeviceId>,
}
