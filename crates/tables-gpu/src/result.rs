//! Rows of totals.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, Decimal128Array, Float64Array, Int64Array, RecordBatch, RecordBatchOptions,
    UInt32Array, UInt64Array,
};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::error::Result;

use crate::groups::Groups;
use crate::packed::array_of;
use crate::program::{Column, Compiled, Output};

/// The totals of a kernel.
struct Totals<'a> {
    totals: &'a [u32],
    slots: usize,
    /// The groups that have rows.
    groups: Vec<usize>,
}

impl Totals<'_> {
    fn pair(&self, group: usize, slot: usize) -> [u64; 2] {
        let words = &self.totals[(group * self.slots + slot) * 4..];
        [0, 2].map(|low| u64::from(words[low]) | u64::from(words[low + 1]) << 32)
    }

    fn sum(&self, group: usize, slot: usize) -> i128 {
        let [low, high] = self.pair(group, slot);
        (u128::from(high) << 64 | u128::from(low)).cast_signed()
    }

    fn count(&self, group: usize, slot: usize) -> u64 {
        self.pair(group, slot)[0]
    }

    /// Returns what a function gives for each group; `None` for those without rows in a slot.
    fn of_each<T>(&self, rows: usize, value: impl Fn(usize) -> T) -> Vec<Option<T>> {
        let groups = self.groups.iter();
        let values = groups.map(|group| (self.count(*group, rows) > 0).then(|| value(*group)));
        values.collect()
    }

    /// Returns a column of the result.
    fn column(&self, column: &Column) -> Result<ArrayRef> {
        let data_type = &column.data_type;
        // As `ordered` in `totals.cuh`.
        let plain = |number: u64| (number ^ 1 << 63).cast_signed();
        match column.output {
            Output::Count(slot) => {
                let counts = self.groups.iter().map(|group| self.count(*group, slot));
                let counts = counts.map(u64::cast_signed);
                Ok(Arc::new(Int64Array::from_iter_values(counts)))
            }
            Output::Some(slot) => {
                let counts = self.of_each(slot, |group| self.count(group, slot));
                Ok(Arc::new(UInt64Array::from(counts)))
            }
            Output::Sum(slot, rows) => {
                let sums = self.of_each(rows, |group| self.sum(group, slot));
                Ok(match data_type {
                    DataType::Decimal128(precision, scale) => {
                        let sums = Decimal128Array::from(sums);
                        Arc::new(sums.with_precision_and_scale(*precision, *scale)?)
                    }
                    _ => {
                        let sums = sums.into_iter().map(|it| it.map(|it| it as i64));
                        Arc::new(sums.collect::<Int64Array>())
                    }
                })
            }
            Output::FloatSum(slot, rows) => {
                let sums = self.of_each(rows, |group| self.sum(group, slot) as f64);
                Ok(Arc::new(Float64Array::from(sums)))
            }
            Output::Max(slot, rows) => {
                let values = self.of_each(rows, |group| plain(self.pair(group, slot)[0]));
                array_of(values, data_type)
            }
            Output::Min(slot, rows) => {
                let values = self.of_each(rows, |group| plain(!self.pair(group, slot)[0]));
                array_of(values, data_type)
            }
        }
    }
}

/// Returns the rows that the totals of a kernel are, in a schema: keys, then aggregates.
///
/// # Errors
/// If they are no rows of the schema.
pub(crate) fn batch(
    compiled: &Compiled,
    groups: &Groups,
    totals: &[u32],
    schema: &SchemaRef,
) -> Result<RecordBatch> {
    let mut totals = Totals {
        totals,
        slots: compiled.slots,
        groups: vec![0],
    };
    if !compiled.keys.is_empty() {
        let all = 0..groups.count;
        totals.groups = all.filter(|group| totals.count(*group, 0) > 0).collect();
    }
    let mut columns = Vec::with_capacity(schema.fields().len());
    let mut behind = groups.count;
    for values in &groups.keys {
        behind /= values.len().max(1);
        let indexes = totals.groups.iter();
        let indexes = indexes.map(|group| (group / behind % values.len().max(1)) as u32);
        let indexes = UInt32Array::from_iter_values(indexes);
        columns.push(values.take(&indexes)?);
    }
    for column in &compiled.outputs {
        columns.push(totals.column(column)?);
    }
    let typed = columns.iter().zip(schema.fields());
    let typed = typed.map(|(column, field)| cast(column, field.data_type()));
    let options = RecordBatchOptions::new().with_row_count(Some(totals.groups.len()));
    let columns = typed.collect::<std::result::Result<_, _>>()?;
    Ok(RecordBatch::try_new_with_options(
        Arc::clone(schema),
        columns,
        &options,
    )?)
}
