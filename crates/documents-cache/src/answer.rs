//! The answer to a search, and a report of its execution.

use std::sync::Arc;

use forebay_memory::Share;
use forebay_text::Tier;
use roaring::RoaringBitmap;

/// The answer to a [`SearchRequest`](crate::SearchRequest).
///
/// A document that the cache cannot judge in one of the request's fields is in `recheck` and in no other result.
#[derive(Debug, Clone, Default)]
pub struct SearchAnswer {
    /// Number of documents found; at most the request's limit, if it has one.
    pub count: u64,
    /// Document numbers of the documents found, if the request wants them.
    pub numbers: RoaringBitmap,
    /// Values of a field in the documents found, if the request wants value counts.
    pub values: Option<ValueCounts>,
    /// Documents that the cache cannot judge. The caller checks each of them with the whole filter.
    pub recheck: RoaringBitmap,
    /// How the search was executed.
    pub report: SearchReport,
    /// Reservation in the memory account for the answer; `None` for a small answer.
    pub held: Option<Arc<Share>>,
}

/// The values of one field in the documents found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ValueCounts {
    /// Distinct strings, in byte order.
    pub values: Vec<ValueCount>,
    /// Number of documents whose field is null.
    pub null: u64,
    /// Number of documents without the field.
    pub missing: u64,
    /// Documents whose field is not a string, null or an array of strings. The caller reads their values from the
    /// store.
    pub other: RoaringBitmap,
    /// Documents with an array of strings. The elements are counted in `values` only if the request wants elements.
    pub arrays: RoaringBitmap,
}

/// A string and the number of documents with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueCount {
    /// The string, in UTF-8.
    pub value: Vec<u8>,
    /// Number of documents with the string.
    pub count: u64,
}

/// Where the search ran, and how much was scanned.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SearchReport {
    /// One report for each condition, in the order of the expression.
    pub leaves: Vec<LeafReport>,
    /// One report for each device that scanned.
    pub devices: Vec<DeviceReport>,
    /// Scans by host threads, outside the devices.
    pub host: HostReport,
    /// Microseconds from the request to the answer.
    pub total_us: u64,
}

/// How one condition was searched.
#[derive(Debug, Clone, PartialEq)]
pub struct LeafReport {
    /// Index of the field among the declared fields.
    pub field: usize,
    /// How values were compared; `None` if no values were compared, for example for a condition on null.
    pub tier: Option<Tier>,
    /// Number of buckets that were searched.
    pub buckets_searched: usize,
    /// Number of buckets of the field.
    pub buckets_total: usize,
    /// Number of rows that were scanned. A binary search scans none.
    pub rows: u64,
    /// Bytes of values that were scanned.
    pub bytes: u64,
}

/// What one device scanned.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceReport {
    /// Name of the device.
    pub name: String,
    /// Number of buckets that the device scanned.
    pub buckets: usize,
    /// Number of rows that the device scanned.
    pub rows: u64,
    /// Microseconds that the device was busy.
    pub device_us: u64,
}

/// What host threads scanned.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostReport {
    /// Number of buckets that host threads scanned, because no device holds them, or because their device was lost or
    /// had a full queue.
    pub buckets: usize,
    /// Number of rows that host threads scanned in those buckets.
    pub rows: u64,
    /// Number of rows in the delta.
    pub delta_rows: u64,
    /// Microseconds that the scans on host threads took.
    pub host_us: u64,
}
