//! Timestamps that the server fills in.
//!
//! MongoDB replaces each empty timestamp in a top-level field of a new document by the current time.

use std::sync::atomic::{AtomicU64, Ordering};

use bson::DateTime;
use bson::raw::{RawDocument, RawDocumentBuf};
use bson::spec::ElementType;

use crate::element::{Element, elements};

const TIMESTAMP_BYTES: usize = 8;

/// Returns the document with each empty timestamp replaced by a new timestamp, or `None` if the document has no empty
/// timestamp. `_id` and embedded documents stay unchanged.
pub fn filled(document: &RawDocument) -> Option<RawDocumentBuf> {
    if !elements(document).any(|element| is_empty(&element)) {
        return None;
    }
    let mut bytes = document.as_bytes().to_vec();
    let mut end = size_of::<i32>();
    for element in elements(document) {
        end += element.bytes.len();
        if is_empty(&element) {
            bytes[end - TIMESTAMP_BYTES..end].copy_from_slice(&next().to_le_bytes());
        }
    }
    RawDocumentBuf::from_bytes(bytes).ok()
}

fn is_empty(element: &Element<'_>) -> bool {
    element.kind() == ElementType::Timestamp
        && element.key != "_id"
        && element.value_bytes() == [0; TIMESTAMP_BYTES]
}

/// Returns a new timestamp in BSON's layout: the seconds in the upper half, a counter in the lower. Within one process,
/// timestamps are unique and increase.
fn next() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let seconds = u64::try_from(DateTime::now().timestamp_millis() / 1000).unwrap_or(0);
    let after = |last: u64| (last + 1).max((seconds << 32) + 1);
    let (Ok(last) | Err(last)) = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
        Some(after(last))
    });
    after(last)
}
