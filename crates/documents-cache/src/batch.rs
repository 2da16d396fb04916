//! Documents to be inserted, gathered by field before the cache is locked.

use crate::block::Block;
use crate::value::{FieldValue, Kept};

/// Documents to be inserted at the same time, their values copied and in order of field.
///
/// [`CollectionCache::batch`](crate::CollectionCache::batch) begins one; to gather it needs no lock.
#[derive(Debug)]
pub struct Batch {
    pub(crate) columns: Vec<Column>,
    documents: usize,
    value_bytes_max: usize,
}

/// What documents hold in one field. They are known by their place in the batch.
#[derive(Debug)]
pub(crate) struct Column {
    /// Strings and elements of arrays, in order of arrival.
    pub(crate) rows: Block,
    pub(crate) null: Vec<u32>,
    pub(crate) missing: Vec<u32>,
    pub(crate) residual: Vec<u32>,
    pub(crate) arrays: Vec<u32>,
}

impl Batch {
    /// For so many fields, and room for so many documents; a longer value makes its document residual.
    pub(crate) fn new(fields: usize, documents: usize, value_bytes_max: usize) -> Batch {
        Batch {
            columns: (0..fields)
                .map(|_| Column::with_capacity(documents))
                .collect(),
            documents: 0,
            value_bytes_max,
        }
    }

    /// Adds a document, given its values in field order.
    ///
    /// # Panics
    /// If there is not one value for each field.
    pub fn push(&mut self, values: &[FieldValue<'_>]) {
        assert_eq!(values.len(), self.columns.len(), "a value for each field");
        for (column, value) in self.columns.iter_mut().zip(values) {
            column.push(self.documents as u32, value, self.value_bytes_max);
        }
        self.documents += 1;
    }

    /// Number of documents.
    pub fn len(&self) -> usize {
        self.documents
    }

    /// Whether it has no document.
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
            residual: Vec::new(),
            arrays: Vec::new(),
        }
    }

    /// Adds what the document at a place of the batch holds.
    #[inline]
    pub(crate) fn push(&mut self, place: u32, value: &FieldValue<'_>, value_bytes_max: usize) {
        match value.kept(value_bytes_max) {
            Kept::Missing => self.missing.push(place),
            Kept::Null => self.null.push(place),
            Kept::Residual => self.residual.push(place),
            Kept::Other => {}
            Kept::Row(value) => self.rows.push(value, place),
            Kept::Rows(values) => {
                self.arrays.push(place);
                values.iter().for_each(|value| self.rows.push(value, place));
            }
        }
    }
}
