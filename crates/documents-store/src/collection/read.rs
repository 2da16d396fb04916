//! Reading documents by number, by `_id`, in number order, and through an index.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use bson::RawBsonRef;

use super::Collection;
use crate::document::{Document, Largest, RecordNumber, record_key, record_number};
use crate::engine::{Bytes, Direction, Entries, KeyRange, PartitionId};
use crate::error::{Result, StoreError};
use crate::index::{ID_INDEX, Index, IndexBounds, IndexSpec};

impl Collection {
    /// Returns the document with this number.
    pub fn get(&self, number: RecordNumber) -> Result<Option<Document>> {
        let bytes = self
            .shared
            .engine
            .get(self.records.id, &record_key(number))?;
        bytes.map(|bytes| self.document(bytes)).transpose()
    }

    /// Decodes a record, and updates the size of the collection's largest document.
    pub(super) fn document(&self, bytes: Bytes) -> Result<Document> {
        self.largest.note(bytes.len());
        Document::new(bytes)
    }

    /// Returns the number of the document with this `_id`. BSON numbers of different types are equal if their values
    /// are equal.
    pub fn number_by_id(&self, id: RawBsonRef<'_>) -> Result<Option<RecordNumber>> {
        let index = self.index(ID_INDEX)?;
        let Some(partition) = index.partition_id() else {
            return Ok(None);
        };
        let key = forebay_documents_query::key::encode(id);
        let entry = self.shared.engine.get(partition, &key)?;
        Ok(entry.and_then(|value| index.entry_number(&key, &value)))
    }

    /// Scans documents in ascending order of their numbers, starting at `from`.
    ///
    /// While writers proceed, every document that exists during the whole scan is returned exactly once; documents that
    /// are inserted or deleted meanwhile may be returned.
    pub fn scan(&self, from: RecordNumber) -> Scan {
        self.scan_range(from..RecordNumber::MAX, Direction::Forward)
    }

    /// Scans the documents in a range of numbers, in ascending or descending order.
    pub fn scan_range(&self, numbers: Range<RecordNumber>, direction: Direction) -> Scan {
        let range = KeyRange {
            start: record_key(numbers.start).to_vec(),
            end: Some(record_key(numbers.end).to_vec()),
        };
        Scan {
            entries: self.entries(self.records.id, range, direction),
            largest: Arc::clone(&self.largest),
        }
    }

    /// Scans the index entries within `bounds`. Returns the record numbers of their documents in index order, each
    /// number once.
    ///
    /// While writers proceed, a document may be deleted or changed after the scan has read its index entry: callers
    /// recheck each document against their filter.
    ///
    /// # Errors
    /// [`StoreError::IndexNotFound`] and [`StoreError::IndexNotReady`].
    pub fn index_scan(
        &self,
        name: &str,
        bounds: &IndexBounds,
        direction: Direction,
    ) -> Result<IndexScan> {
        let index = self.index(name)?;
        let partition = index
            .partition_id()
            .ok_or_else(|| StoreError::IndexNotFound {
                index: name.to_owned(),
            })?;
        if !index.is_complete() {
            return Err(StoreError::IndexNotReady {
                index: name.to_owned(),
            });
        }
        let entries = self.entries(partition, bounds.key_range(&index.spec), direction);
        Ok(IndexScan {
            entries,
            seen: HashSet::new(),
            index,
        })
    }

    pub(super) fn entries(
        &self,
        partition: PartitionId,
        range: KeyRange,
        direction: Direction,
    ) -> Entries {
        Entries::new(Arc::clone(&self.shared.engine), partition, range, direction)
    }
}

/// Iterator over documents with their numbers, in number order.
pub struct Scan {
    entries: Entries,
    largest: Arc<Largest>,
}

impl Scan {
    /// Drops documents that were read in advance if they have many bytes. They are read again later.
    pub fn rest(&mut self) {
        self.entries.rest();
    }
}

impl Iterator for Scan {
    type Item = Result<(RecordNumber, Document)>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.entries.next()?.and_then(decode_record);
        Some(row.inspect(|(_, document)| self.largest.note(document.len_bytes())))
    }
}

/// Decodes the number and the document of an engine entry.
pub(super) fn decode_record((key, value): (Bytes, Bytes)) -> Result<(RecordNumber, Document)> {
    let number = record_number(&key).ok_or_else(|| StoreError::InvalidDocument {
        why: format!("a record key has {} bytes instead of 8", key.len()),
    })?;
    Ok((number, Document::new(value)?))
}

/// Iterator over document numbers, in the order of an index.
pub struct IndexScan {
    entries: Entries,
    index: Arc<Index>,
    /// Numbers returned so far, tracked only if a document may have several entries.
    seen: HashSet<RecordNumber>,
}

impl IndexScan {
    /// Returns the definition of the scanned index.
    pub fn spec(&self) -> &IndexSpec {
        &self.index.spec
    }

    /// Drops entries that were read in advance if they have many bytes. They are read again later.
    pub fn rest(&mut self) {
        self.entries.rest();
    }

    fn decode(&self, (key, value): (Bytes, Bytes)) -> Result<RecordNumber> {
        self.index
            .entry_number(&key, &value)
            .ok_or_else(|| StoreError::InvalidDocument {
                why: format!("index {} has a malformed entry", self.index.spec.name),
            })
    }
}

impl Iterator for IndexScan {
    type Item = Result<RecordNumber>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let number = match self.entries.next()?.and_then(|entry| self.decode(entry)) {
                Ok(number) => number,
                Err(error) => return Some(Err(error)),
            };
            if !self.index.is_multikey() || self.seen.insert(number) {
                return Some(Ok(number));
            }
        }
    }
}
