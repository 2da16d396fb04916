//! What a search returns, and how it was executed.

use std::sync::Arc;

use forebay_memory::Share;
use forebay_text::Tier;
use roaring::RoaringBitmap;

/// The answer to a [`SearchRequest`](crate::SearchRequest).
///
/// A document that the cache cannot judge in one of the request's fields is in `recheck` and nowhere else.
#[derive(Debug, Clone, Default)]
pub struct SearchAnswer {
    /// Number of documents found; at most the limit, if there is one.
    pub count: u64,
    /// Their numbers, if the request wants them.
    pub numbers: RoaringBitmap,
    /// Values of a field among them, if the request wants them.
    pub values: Option<ValueCounts>,
    /// Documents the cache cannot judge: the caller checks each with the whole filter.
    pub recheck: RoaringBitmap,
    /// How the search was done.
    pub report: SearchReport,
    /// Share of the memory account that the answer holds; `None` for a small answer.
    pub held: Option<Arc<Share>>,
}

/// The values of one field among the documents found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ValueCounts {
    /// Distinct strings in byte order.
    pub values: Vec<ValueCount>,
    /// Documents in which the field is null.
    pub null: u64,
    /// Documents without the field.
    pub missing: u64,
    /// Documents in which the field is neither string, null, nor array of strings: the caller asks the store for them.
    pub other: RoaringBitmap,
    /// Documents with an array of strings. Their elements are among `values` only if the request wants elements.
    pub arrays: RoaringBitmap,
}

/// A string and the number of documents that hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueCount {
    /// The string, UTF-8.
    pub value: Vec<u8>,
    /// Documents that hold it.
    pub count: u64,
}

/// Where the search ran, and what it scanned.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SearchReport {
    /// One entry for each condition, in the order of the expression.
    pub leaves: Vec<LeafReport>,
    /// One entry for each device that scanned.
    pub devices: Vec<DeviceReport>,
    /// What was scanned outside the devices.
    pub host: HostReport,
    /// Microseconds from the request to the answer.
    pub total_us: u64,
}

/// How one condition was searched.
#[derive(Debug, Clone, PartialEq)]
pub struct LeafReport {
    /// Position of the field among the declared ones.
    pub field: usize,
    /// How values were compared; `None` if no values were, as for null.
    pub tier: Option<Tier>,
    /// Buckets that were searched.
    pub buckets_searched: usize,
    /// Buckets the field has.
    pub buckets_total: usize,
    /// Rows that were scanned; a binary search scans none.
    pub rows: u64,
    /// Bytes that were scanned.
    pub bytes: u64,
}

/// What one device did.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceReport {
    /// Name of the device.
    pub name: String,
    /// Buckets it scanned.
    pub buckets: usize,
    /// Rows it scanned.
    pub rows: u64,
    /// Microseconds of its time.
    pub device_us: u64,
}

/// What was scanned on threads of the host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostReport {
    /// Buckets that no device holds, or whose device was lost or had a full queue.
    pub buckets: usize,
    /// Rows of those buckets.
    pub rows: u64,
    /// Rows of the delta.
    pub delta_rows: u64,
    /// Microseconds these scans took.
    pub host_us: u64,
}
