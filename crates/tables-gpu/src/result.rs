//! Rows of totals.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, Decimal128Array, Float64Array, Int64Array, RecordBatch, RecordBatchOptions,
    UInt64Array,
};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::error::Result;
use datafusion::logical_expr::EmitTo;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_plan::Partitioning;
use datafusion::physical_plan::metrics::Time;
use datafusion::physical_plan::repartition::BatchPartitioner;

use crate::fragment::Fragment;
use crate::groups::Groups;
use crate::packed::array_of;
use crate::program::{Column, Compiled, Output, Total, group_words};
use crate::reason::Reason;

/// The totals of groups.
pub(crate) struct Totals<'a> {
    layout: &'a [Total],
    /// The words of groups, one group behind the other.
    words: &'a [u8],
    /// For each row of the result, which of these groups it is, and its number among all.
    groups: Vec<(usize, u64)>,
}

impl<'a> Totals<'a> {
    /// Returns those of all groups that have rows; of a fragment without keys, those of its only group.
    pub(crate) fn all(layout: &'a [Total], words: &'a [u8], groups: &Groups) -> Totals<'a> {
        let mut totals = Totals {
            layout,
            words,
            groups: Vec::new(),
        };
        let all = 0..groups.count;
        let kept = all.filter(|group| groups.keys.is_empty() || totals.count(*group, 0) > 0);
        totals.groups = kept.map(|group| (group, group as u64)).collect();
        totals
    }

    /// Returns those of this many groups that a kernel has selected.
    ///
    /// # Errors
    /// If there are more or fewer.
    pub(crate) fn selected(
        layout: &'a [Total],
        results: &'a [u8],
        count: usize,
    ) -> std::result::Result<Totals<'a>, Reason> {
        let (head, rest) = results.split_at(8);
        let (numbers, words) = rest.split_at(8 * count);
        let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |it| u64::from_le_bytes(*it));
        if number(head) != count as u64 {
            return Err(Reason::new("groups changed while they were selected"));
        }
        let groups = numbers.chunks(8).map(number);
        Ok(Totals {
            layout,
            words,
            groups: groups.enumerate().collect(),
        })
    }

    fn word(&self, group: usize, word: usize) -> u64 {
        let bytes = &self.words[8 * (group * group_words(self.layout) + word)..];
        bytes.first_chunk().map_or(0, |it| u64::from_le_bytes(*it))
    }

    fn sum(&self, group: usize, slot: usize) -> i128 {
        let Total { word, is_wide, .. } = self.layout[slot];
        let low = self.word(group, word);
        match is_wide {
            true => (u128::from(self.word(group, word + 1)) << 64 | u128::from(low)).cast_signed(),
            false => low.cast_signed().into(),
        }
    }

    fn count(&self, group: usize, slot: usize) -> u64 {
        self.word(group, self.layout[slot].word)
    }

    /// Returns what a function gives for each group; `None` for those without rows in a slot.
    fn of_each<T>(&self, rows: usize, value: impl Fn(usize) -> T) -> Vec<Option<T>> {
        let groups = self.groups.iter();
        let values = groups.map(|(group, _)| (self.count(*group, rows) > 0).then(|| value(*group)));
        values.collect()
    }

    /// Returns a column of the result.
    fn column(&self, column: &Column) -> Result<ArrayRef> {
        let data_type = &column.data_type;
        // As `ordered` in `totals.cuh`.
        let plain = |number: u64| (number ^ 1 << 63).cast_signed();
        match column.output {
            Output::Count(slot) => {
                let counts = self
                    .groups
                    .iter()
                    .map(|(group, _)| self.count(*group, slot));
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
                let values = self.of_each(rows, |group| plain(self.count(group, slot)));
                array_of(values, data_type)
            }
            Output::Min(slot, rows) => {
                let values = self.of_each(rows, |group| plain(!self.count(group, slot)));
                array_of(values, data_type)
            }
        }
    }
}

/// Returns the values of an aggregate for each group, from the states of all groups.
fn finished(
    function: &AggregateFunctionExpr,
    states: &[ArrayRef],
    groups: Option<&[usize]>,
) -> Result<ArrayRef> {
    let Some(groups) = groups else {
        let mut all = function.create_accumulator()?;
        all.merge_batch(states)?;
        return all.evaluate()?.to_array();
    };
    let mut of_groups = function.create_groups_accumulator()?;
    of_groups.merge_batch(states, groups, groups.len())?;
    of_groups.evaluate(EmitTo::All)
}

/// Returns the rows of groups, in a schema: keys, then aggregates.
///
/// # Errors
/// If they are no rows of the schema, or an aggregate has no value.
pub(crate) fn batch(
    (fragment, compiled, groups): (&Fragment, &Compiled, &Groups),
    totals: &Totals<'_>,
    schema: &SchemaRef,
) -> Result<RecordBatch> {
    let mut columns = Vec::with_capacity(schema.fields().len());
    let mut behind = groups.combinations;
    for values in &groups.keys {
        let count = values.len().max(1) as u64;
        behind /= count;
        let numbers = totals.groups.iter();
        let numbers = numbers.map(|(_, group)| group / behind % count);
        columns.push(values.take(numbers.collect())?);
    }
    // Each group is in one row, so that its states are all that there are.
    let numbers: Vec<usize> = (0..totals.groups.len()).collect();
    let numbers = (!compiled.keys.is_empty()).then_some(&*numbers);
    for (aggregate, states) in fragment.aggregates.iter().zip(&compiled.outputs) {
        let states = states.iter().map(|column| totals.column(column));
        let states = states.collect::<Result<Vec<_>>>()?;
        columns.push(finished(&aggregate.function, &states, numbers)?);
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

/// Returns the rows of each partition.
///
/// # Errors
/// If they cannot be partitioned.
pub(crate) fn partitioned(
    batch: RecordBatch,
    partitioning: &Partitioning,
) -> Result<Vec<RecordBatch>> {
    let Partitioning::Hash(keys, count @ 2..) = partitioning else {
        return Ok(vec![batch]);
    };
    let mut partitions = vec![RecordBatch::new_empty(batch.schema()); *count];
    BatchPartitioner::new_hash_partitioner(keys.clone(), *count, Time::default())?.partition(
        batch,
        |partition, rows| {
            partitions[partition] = rows;
            Ok(())
        },
    )?;
    Ok(partitions)
}
