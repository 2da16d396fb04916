//! Sorting in memory.

use std::collections::BinaryHeap;

use forebay_cancel::Stop;
use forebay_documents_query::{Code, Sort};
use forebay_memory::Held;

use super::{List, ROW_BYTES, Row, Stream};
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

    fn detached(self) -> Keyed {
        Keyed {
            row: self.row.detached(),
            ..self
        }
    }

    /// Returns the bytes of the values, which count towards the limit of a sort.
    fn bytes(&self) -> usize {
        size_of::<Keyed>() + self.key.len() + self.row.as_bytes().len()
    }

    /// Returns the bytes that the row and its places take in memory: in a heap that grows by doubling, and in a list.
    fn row_bytes(&self) -> usize {
        2 * size_of::<Keyed>() + self.row.as_bytes().len() + ROW_BYTES
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
    mut held: Held,
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
        let key = sort.charged_key(&row, &mut held)?;
        let keyed = Keyed { key, place, row };
        place += 1;
        let key_bytes = keyed.key.capacity();
        if kept.len() >= keep && kept.peek().is_none_or(|largest| keyed > *largest) {
            held.give_back(key_bytes);
            continue;
        }
        bytes += keyed.bytes();
        held.take(keyed.row_bytes())?;
        kept.push(keyed.detached());
        if kept.len() > keep
            && let Some(largest) = kept.pop()
        {
            bytes -= largest.bytes();
            held.give_back(largest.key.capacity() + largest.row_bytes());
        }
        if bytes > bytes_max {
            return Err(too_large(bytes_max));
        }
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

#[cfg(test)]
mod tests {
    use bson::rawdoc;
    use forebay_memory::Account;

    use super::*;

    fn sort(count: i32, keep: Option<u64>, account: &Account) -> Result<List, CommandError> {
        let documents = List::built((0..count).map(|a| rawdoc! { "a": -a }));
        let sort = Sort::parse(&rawdoc! { "a": 1 }).expect("it parses");
        let stop = Stop::never();
        sorted(
            documents,
            &sort,
            keep,
            usize::MAX,
            Held::new(account, 0),
            &stop,
        )
    }

    #[test]
    fn the_overhead_of_small_documents_is_charged() {
        let account = Account::new(4 << 20);
        assert!(sort(2_000, None, &account).is_ok());
        assert!(sort(20_000, None, &account).is_err());
        assert!(sort(20_000, Some(100), &account).is_ok());
        assert_eq!(account.figures().used_bytes, 0);
    }

    #[test]
    fn documents_with_equal_keys_keep_their_order() {
        let documents = List::built((0..20).map(|a| rawdoc! { "a": a % 2, "b": a }));
        let sort = Sort::parse(&rawdoc! { "a": 1 }).expect("it parses");
        let stop = Stop::never();
        let share = Held::default();
        let list = sorted(documents, &sort, Some(12), usize::MAX, share, &stop);
        let mut list = list.unwrap_or_else(|_| panic!("it is sorted"));
        let mut found = Vec::new();
        while let Ok(Some(row)) = list.next(&stop) {
            found.push(row.get_i32("b").expect("a number"));
        }
        assert_eq!(found, [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 1, 3]);
    }
}
