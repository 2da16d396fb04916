//! Sorting in memory.

use std::collections::BinaryHeap;

use forebay_cancel::Stop;
use forebay_documents_query::{Code, Sort};
use forebay_memory::Share;

use super::{List, Row, Stream};
use crate::error::CommandError;

/// A document with its sort key and its position in the input, which breaks ties.
struct Keyed {
    key: Vec<u8>,
    place: u64,
    row: Row,
}

impl Keyed {
    fn order(&self) -> (&[u8], u64) {
        (&self.key, self.place)
    }

    fn bytes(&self) -> usize {
        size_of::<Keyed>() + self.key.len() + self.row.as_bytes().len()
    }
}

impl PartialEq for Keyed {
    fn eq(&self, other: &Keyed) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Keyed {}

impl PartialOrd for Keyed {
    fn partial_cmp(&self, other: &Keyed) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Keyed {
    fn cmp(&self, other: &Keyed) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

/// Reads a stream to its end, and sorts its documents. Returns the first `keep` documents, or all if `keep` is `None`.
/// Documents with equal keys keep their order.
///
/// Only the documents to return are held in memory.
///
/// # Errors
/// - Code 292 if the documents to return exceed `bytes_max`.
/// - The error of `held` if the memory account is full.
/// - The stream's error.
pub fn sorted(
    mut stream: impl Stream,
    sort: &Sort,
    keep: Option<u64>,
    bytes_max: usize,
    held: Share,
    stop: &Stop,
) -> Result<List, CommandError> {
    let keep = keep
        .and_then(|keep| usize::try_from(keep).ok())
        .unwrap_or(usize::MAX);
    let mut kept = BinaryHeap::new();
    let mut bytes = 0;
    let mut place = 0;
    stream.begin_batch(u64::MAX);
    while let Some(row) = stream.next(stop)? {
        let keyed = Keyed {
            key: sort.key(&row),
            place,
            row,
        };
        place += 1;
        bytes += keyed.bytes();
        kept.push(keyed);
        if kept.len() > keep {
            bytes -= kept.pop().map_or(0, |largest| largest.bytes());
        }
        if bytes > bytes_max {
            return Err(too_large(bytes_max));
        }
        held.try_cover(bytes)?;
    }
    let rows = kept.into_sorted_vec().into_iter().map(|keyed| keyed.row);
    Ok(List::holding(rows, held))
}

fn too_large(bytes_max: usize) -> CommandError {
    let message = format!(
        "Sort exceeded memory limit of {bytes_max} bytes, but did not opt in to external sorting. Aborting operation: raise --documents-stage-memory-bytes-max, sort by an index, or set a limit."
    );
    CommandError::refused(Code::QueryExceededMemoryLimitNoDiskUseAllowed, message)
}
