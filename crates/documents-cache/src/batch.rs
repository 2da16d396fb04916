//! Documents to insert, grouped by field before the cache is locked.

use crate::block::Block;
use crate::value::{FieldValue, Kept};

/// Documents to insert together, with copies of their values by field.
///
/// [`CollectionCache::batch`](crate::CollectionCache::batch) creates an empty batch. Filling a batch takes no lock.
#[derive(Debug)]
pub struct Batch {
    pub(crate) columns: Vec<Column>,
    documents: usize,
    value_bytes_max: usize,
}

/// The values of one field in a batch's documents. A document is identified by its position in the batch.
#[derive(Debug)]
pub(crate) struct Column {
    /// Strings and array elements, in order of arrival.
    pub(crate) rows: Block,
    pub(crate) null: Vec<u32>,
    pub(crate) missing: Vec<u32>,
    pub(crate) recheck: Vec<u32>,
    pub(crate) arrays: Vec<u32>,
}

impl Batch {
    /// Creates a batch of `fields` fields with capacity for `documents` documents. Documents with a value longer than
    /// `value_bytes_max` are marked for recheck.
    pub(crate) fn new(fields: usize, documents: usize, value_bytes_max: usize) -> Batch {
        Batch {
            columns: (0..fields)
                .map(|_| Column::with_capacity(documents))
                .collect(),
            documents: 0,
            value_bytes_max,
        }
    }

    /// Adds a document with its values in field order.
    ///
    /// # Panics
    /// If the number of values is not the number of fields.
    pub fn push(&mut self, values: &[FieldValue<'_>]) {
        assert_eq!(values.len(), self.columns.len(), "a value for each field");
        for (column, value) in self.columns.iter_mut().zip(values) {
            column.push(self.documents as u32, value, self.value_bytes_max);
        }
        self.documents += 1;
    }

    /// Returns the number of documents.
    pub fn len(&self) -> usize {
        self.documents
    }

    /// Returns whether the batch contains no document.
    pub fn is_empty(&self) -> bool {
        self.documents == 0
    }
}

impl Column {
    pub(crate) fn with_capacity(rows: usize) -> Column {
        Column {
            rows: Block::with_capacity(rows, 0),
            null: Vec::new(),
            missing: Vec::new(),
            recheck: Vec::new(),
            arrays: Vec::new(),
        }
    }

    /// Adds the field's value of the document at position `place` in the batch.
    #[inline]
    pub(crate) fn push(&mut self, place: u32, value: &FieldValue<'_>, value_bytes_max: usize) {
        match value.kept(value_bytes_max) {
            Kept::Missing => self.missing.push(place),
            Kept::Null => self.null.push(place),
            Kept::Recheck => self.recheck.push(place),
            Kept::Other => {}
            Kept::Row(value) => self.rows.push(value, place),
            Kept::Rows(values) => {
                self.arrays.push(place);
                values.iter().for_each(|value| self.rows.push(value, place));
            }
        }
    }
}
