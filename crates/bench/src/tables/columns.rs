//! Columns made from rows.

use std::sync::Arc;

use anyhow::Result;
use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};

/// Columns of a batch in the making; none has NULLs.
pub struct Columns<'a, R> {
    rows: &'a [R],
    fields: Vec<Field>,
    arrays: Vec<ArrayRef>,
}

impl<'a, R> Columns<'a, R> {
    /// Starts a batch of `rows`.
    pub fn of(rows: &'a [R]) -> Columns<'a, R> {
        Columns {
            rows,
            fields: Vec::new(),
            arrays: Vec::new(),
        }
    }

    /// Adds a column of 32-bit integers.
    pub fn int(self, name: &str, of: impl Fn(&R) -> i32) -> Self {
        let array = Int32Array::from_iter_values(self.rows.iter().map(of));
        self.add(name, DataType::Int32, Arc::new(array))
    }

    /// Adds a column of 64-bit integers.
    pub fn long(self, name: &str, of: impl Fn(&R) -> i64) -> Self {
        let array = Int64Array::from_iter_values(self.rows.iter().map(of));
        self.add(name, DataType::Int64, Arc::new(array))
    }

    /// Adds a column of text.
    pub fn text<T: AsRef<str>>(self, name: &str, of: impl Fn(&'a R) -> T) -> Self {
        let array = StringArray::from_iter_values(self.rows.iter().map(of));
        self.add(name, DataType::Utf8, Arc::new(array))
    }

    fn add(mut self, name: &str, of_type: DataType, array: ArrayRef) -> Self {
        self.fields.push(Field::new(name, of_type, false));
        self.arrays.push(array);
        self
    }

    /// Returns the batch.
    ///
    /// # Errors
    /// Never, because all columns have the same rows.
    pub fn batch(self) -> Result<RecordBatch> {
        let schema = Arc::new(Schema::new(self.fields));
        Ok(RecordBatch::try_new(schema, self.arrays)?)
    }
}
