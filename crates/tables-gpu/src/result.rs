//! Rows of totals.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal256Array, Float64Array, Int64Array, RecordBatch,
    RecordBatchOptions, UInt64Array, new_null_array,
};
use datafusion::arrow::compute::{cast, nullif, take_record_batch};
use datafusion::arrow::datatypes::{DataType, SchemaRef, i256};
use datafusion::common::{exec_err, internal_datafusion_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::EmitTo;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_plan::Partitioning;
use datafusion::physical_plan::metrics::Time;
use datafusion::physical_plan::repartition::BatchPartitioner;

use crate::determined::Determined;
use crate::engine::Ran;
use crate::fragment::{Fragment, is_its_state};
use crate::groups::{Groups, Values};
use crate::halves::{decimals, number_of};
use crate::limit::Limit;
use crate::packed::{array_of, is_text};
use crate::program::{Column, Compiled, Float, Output, Total, WIDE_PART_BITS, group_words};
use crate::reason::Reason;
use crate::rule::is_by_columns;
use crate::variance::Sums;

/// Rows of a batch. Several threads make the batches of a larger result.
const BATCH_ROWS: usize = 1 << 16;
/// The same of a list, whose batches are dealt out to the partitions.
const LIST_BATCH_ROWS: usize = 1 << 13;
/// Bytes of the texts of a batch, if all are as long as the longest.
const BATCH_TEXT_BYTES: usize = 64 << 20;

/// A group: its place among those whose totals are here, and its number among all.
type Group = (usize, u64);

/// The totals of groups.
struct Totals<'a> {
    layout: &'a [Total],
    /// The words of groups, one group behind the other.
    words: &'a [u8],
    /// The groups that are rows of the result.
    groups: Vec<Group>,
}

/// What kernels have left.
pub(crate) struct Found {
    pub(crate) ran: Ran,
    /// The number of groups that a kernel has selected; `None` if the totals of all groups are here.
    pub(crate) selected: Option<usize>,
}

impl Found {
    /// Checks that as many groups are here as a kernel had counted.
    ///
    /// # Errors
    /// If there are more or fewer.
    pub(crate) fn check(self) -> std::result::Result<Found, Reason> {
        let written = u64_at(self.ran.results(), 0);
        match self.selected {
            Some(count) if written != count as u64 => {
                Err(Reason::new("groups changed while they were selected"))
            }
            _ => Ok(self),
        }
    }

    fn is_small(&self) -> bool {
        self.ran.results().len() <= 8 * BATCH_ROWS
    }

    /// Returns the totals of the groups that are selected, or of all that have rows; of a fragment without keys, those
    /// of its only group.
    fn totals<'a>(&'a self, layout: &'a [Total], groups: &Groups) -> Totals<'a> {
        let results = self.ran.results();
        let mut totals = Totals {
            layout,
            words: results,
            groups: Vec::new(),
        };
        if let Some(count) = self.selected {
            // First their number, then the number of each.
            let numbers = (0..count).map(|group| (group, u64_at(results, 1 + group)));
            totals.groups = numbers.collect();
            totals.words = &results[8 * (1 + count)..];
            return totals;
        }
        let all = 0..groups.count;
        let kept = all.filter(|group| groups.keys.is_empty() || totals.count(*group, 0) > 0);
        totals.groups = kept.map(|group| (group, group as u64)).collect();
        totals
    }
}

/// Returns a word of 64 bits by its index; 0 behind the last.
fn u64_at(bytes: &[u8], index: usize) -> u64 {
    let word = bytes.get(8 * index..).and_then(<[u8]>::first_chunk);
    word.map_or(0, |it| u64::from_le_bytes(*it))
}

impl Totals<'_> {
    fn word(&self, group: usize, word: usize) -> u64 {
        u64_at(self.words, group * group_words(self.layout) + word)
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

    /// Returns both words of a maximum of 128 bits.
    fn words(&self, group: usize, slot: usize) -> [u64; 2] {
        let first = self.layout[slot].word;
        [first, first + 1].map(|word| self.word(group, word))
    }

    /// Returns what a function gives for each group; `None` for those without rows in a slot.
    fn of_each<T>(
        &self,
        groups: &[Group],
        rows: usize,
        value: impl Fn(usize) -> T,
    ) -> Vec<Option<T>> {
        let value = |group| (self.count(group, rows) > 0).then(|| value(group));
        groups.iter().map(|(group, _)| value(*group)).collect()
    }

    /// Returns a float of a group; `None` for NULL.
    fn float(&self, group: usize, float: &Float) -> Option<f64> {
        let sums = |slots: [usize; 3]| slots.map(|slot| self.sum(group, slot));
        let is_some = |rows| self.count(group, rows) > 0;
        match *float {
            Float::Sum { slots, rows, parts } => is_some(rows).then(|| parts.sum(sums(slots))),
            Float::Decimals {
                sum,
                rows,
                exponent,
            } => is_some(rows).then(|| self.sum(group, sum) as f64 / 10_f64.powi(exponent as i32)),
            Float::Moment { rows, .. } if !is_some(rows) => Some(0.0),
            Float::Moment {
                is_mean,
                slots,
                rows,
                distances,
            } => {
                let [of_distances, high, low] = sums(slots);
                let sums = Sums {
                    rows: self.count(group, rows),
                    distances: of_distances,
                    squares: [high, low],
                };
                Some(match is_mean {
                    true => distances.mean(sums),
                    false => distances.sum_of_squares(sums),
                })
            }
        }
    }

    /// Returns a key that other keys determine, for these groups.
    fn determined(&self, of: &Determined, groups: &[Group]) -> Result<ArrayRef> {
        let numbers = groups.iter();
        let values = match (&of.values, of.upper) {
            (Values::Wide(data_type), Some(upper)) => {
                let numbers = numbers.map(|(group, _)| {
                    let halves = [upper, of.slot].map(|slot| self.count(*group, slot));
                    Some(number_of(halves[0], halves[1]))
                });
                decimals(numbers.collect(), data_type)?
            }
            (values, _) => {
                let numbers = numbers.map(|(group, _)| self.count(*group, of.slot));
                values.take(numbers.collect())?
            }
        };
        let Some(valid) = of.valid else {
            return Ok(values);
        };
        let are_null = groups.iter();
        let are_null = are_null.map(|(group, _)| Some(self.count(*group, valid) == 0));
        Ok(nullif(&values, &are_null.collect::<BooleanArray>())?)
    }

    /// Returns a column of the result, for these groups.
    fn column(&self, column: &Column, groups: &[Group]) -> Result<ArrayRef> {
        let data_type = &column.data_type;
        // As in `numbers.cuh`.
        let plain = |number: u64| (number ^ 1 << 63).cast_signed();
        match column.output {
            Output::Count(slot) => {
                let counts = groups.iter().map(|(group, _)| self.count(*group, slot));
                let counts = counts.map(u64::cast_signed);
                Ok(Arc::new(Int64Array::from_iter_values(counts)))
            }
            Output::Unsigned(slot) => {
                let counts = groups.iter().map(|(group, _)| self.count(*group, slot));
                Ok(Arc::new(UInt64Array::from_iter_values(counts)))
            }
            Output::Some(slot) => {
                let counts = self.of_each(groups, slot, |group| self.count(group, slot));
                Ok(Arc::new(UInt64Array::from(counts)))
            }
            Output::Sum(slot, rows) => {
                let sum = |group| i256::from_i128(self.sum(group, slot));
                of_sums(self.of_each(groups, rows, sum), data_type)
            }
            Output::Parts { ref slots, rows } => {
                let sum = |group| {
                    let parts = slots.iter().rev();
                    parts.fold(i256::ZERO, |sum, slot| {
                        let part = i256::from_i128(self.sum(group, *slot));
                        (sum << WIDE_PART_BITS).wrapping_add(part)
                    })
                };
                of_sums(self.of_each(groups, rows, sum), data_type)
            }
            Output::Float(float) => {
                let floats = groups.iter().map(|(group, _)| self.float(*group, &float));
                Ok(Arc::new(floats.collect::<Float64Array>()))
            }
            Output::Max(slot, rows) | Output::Min(slot, rows) if self.layout[slot].is_wide => {
                let is_min = matches!(column.output, Output::Min(..));
                let numbers = self.of_each(groups, rows, |group| {
                    let words = self.words(group, slot);
                    let [upper, lower] = words.map(|word| if is_min { !word } else { word });
                    number_of(plain(upper).cast_unsigned(), lower)
                });
                decimals(numbers, data_type)
            }
            Output::Max(slot, rows) => {
                let numbers = self.of_each(groups, rows, |group| plain(self.count(group, slot)));
                of_numbers(numbers, column)
            }
            Output::Min(slot, rows) => {
                let numbers = self.of_each(groups, rows, |group| plain(!self.count(group, slot)));
                of_numbers(numbers, column)
            }
        }
    }
}

/// Returns sums as an array of a type.
///
/// # Errors
/// If a sum has too many digits, for which the CPU raises the error.
fn of_sums(sums: Vec<Option<i256>>, data_type: &DataType) -> Result<ArrayRef> {
    if let DataType::Decimal256(precision, scale) = data_type {
        let sums = Decimal256Array::from(sums);
        return Ok(Arc::new(sums.with_precision_and_scale(*precision, *scale)?));
    }
    let has_room = |sum: &i256| {
        let sum = sum.to_i128();
        sum.is_some_and(|it| it.unsigned_abs() < 10_u128.pow(38))
    };
    if !sums.iter().flatten().all(has_room) {
        return exec_err!("a sum has more than 38 digits");
    }
    let sums = sums.into_iter().map(|it| it.map(i256::as_i128));
    match data_type {
        DataType::Decimal128(..) => decimals(sums.collect(), data_type),
        _ => {
            let sums = sums.map(|it| it.map(|it| it as i64));
            Ok(Arc::new(sums.collect::<Int64Array>()))
        }
    }
}

/// Returns a column of the result from its numbers.
fn of_numbers(numbers: Vec<Option<i64>>, column: &Column) -> Result<ArrayRef> {
    let Some(values) = &column.values else {
        return array_of(numbers, &column.data_type);
    };
    let are_null: BooleanArray = numbers.iter().map(|it| Some(it.is_none())).collect();
    let numbers = numbers.into_iter();
    let numbers = numbers.map(|it| it.map_or(0, i64::cast_unsigned));
    let values = match are_null.true_count() == are_null.len() {
        // There may be no value.
        true => new_null_array(&column.data_type, are_null.len()),
        false => values.take(numbers.collect())?,
    };
    Ok(cast(&nullif(&values, &are_null)?, &column.data_type)?)
}

/// Returns the values of an aggregate for each group, from the states of all groups.
fn finished(
    function: &AggregateFunctionExpr,
    states: &[ArrayRef],
    groups: Option<&[usize]>,
) -> Result<ArrayRef> {
    if let [state] = states
        && is_its_state(function)
    {
        return Ok(Arc::clone(state));
    }
    let Some(groups) = groups else {
        let mut all = function.create_accumulator()?;
        all.merge_batch(states)?;
        return all.evaluate()?.to_array();
    };
    let mut of_groups = function.create_groups_accumulator()?;
    of_groups.merge_batch(states, groups, groups.len())?;
    of_groups.evaluate(EmitTo::All)
}

/// What the rows of a result are made of.
pub(crate) struct Made {
    pub(crate) fragment: Arc<Fragment>,
    pub(crate) compiled: Arc<Compiled>,
    pub(crate) groups: Arc<Groups>,
    /// Keys, then aggregates.
    pub(crate) schema: SchemaRef,
    pub(crate) partitioning: Partitioning,
    /// Set when the statement ends.
    pub(crate) stop: Arc<AtomicBool>,
    /// The memory of the rows.
    pub(crate) held: Arc<MemoryReservation>,
}

impl Made {
    /// Returns the rows of each partition. Several threads make a large result, while one for work that blocks waits
    /// for them.
    ///
    /// # Errors
    /// If they are no rows of the schema, or an aggregate has no value.
    pub(crate) async fn partitions(self: Arc<Made>, found: Found) -> Result<Vec<Vec<RecordBatch>>> {
        if found.is_small() {
            return self.of_all(&found);
        }
        let made = tokio::task::spawn_blocking(move || self.of_all(&found)).await;
        made.map_err(|error| DataFusionError::External(error.into()))?
    }

    fn of_all(&self, found: &Found) -> Result<Vec<Vec<RecordBatch>>> {
        let mut totals = found.totals(&self.compiled.totals, &self.groups);
        self.order(&mut totals);
        let batches: Vec<&[Group]> = totals
            .groups
            .chunks(self.batch_rows(&totals.groups)?)
            .collect();
        let of_thread = batches.len().div_ceil(forebay_device::cores()).max(1);
        let made = |batches: &[&[Group]]| {
            let made = batches.iter().map(|groups| {
                if self.stop.load(Ordering::Relaxed) {
                    return exec_err!("the statement was cancelled");
                }
                let batch = self.batch(&totals, groups)?;
                self.held.try_grow(bytes_of(&batch))?;
                partitioned(batch, &self.partitioning)
            });
            made.collect::<Result<Vec<_>>>()
        };
        let all = match batches.len() {
            0 | 1 => made(&batches)?,
            _ => thread::scope(|scope| {
                let shares = batches.chunks(of_thread);
                let threads: Vec<_> = shares.map(|share| scope.spawn(|| made(share))).collect();
                let made = threads.into_iter().map(|thread| {
                    let made = thread.join();
                    made.unwrap_or_else(|panic| resume_unwind(panic))
                });
                let made = made.collect::<Result<Vec<_>>>();
                made.map(|made| made.into_iter().flatten().collect())
            })?,
        };
        let mut partitions = vec![Vec::new(); self.partitioning.partition_count()];
        for (index, batches) in all.into_iter().enumerate() {
            // Without a hash, any partition may have them. Those that are sorted stay together.
            let first = match batches.len() {
                1 if self.fragment.window.is_none() => index % partitions.len(),
                _ => 0,
            };
            for (rows, partition) in batches.into_iter().zip(&mut partitions[first..]) {
                partition.extend((rows.num_rows() > 0).then_some(rows));
            }
        }
        Ok(partitions)
    }

    /// Puts the rows of a list in the order of their table or of their window, and leaves out those that are more
    /// than its limit.
    fn order(&self, totals: &mut Totals<'_>) {
        let is_sorted = self.fragment.window.is_some();
        if is_sorted && !totals.groups.is_sorted_by_key(|(_, number)| *number) {
            totals.groups.sort_unstable_by_key(|(_, number)| *number);
        }
        if let Some(slot) = self.compiled.place {
            let mut groups = std::mem::take(&mut totals.groups);
            groups.sort_unstable_by_key(|(group, _)| totals.count(*group, slot));
            totals.groups = groups;
        }
        if let Limit::Any(count) = self.fragment.limit {
            totals.groups.truncate(count as usize);
        }
    }

    /// Returns the number of rows of a batch, whose texts are not too long for it.
    fn batch_rows(&self, groups: &[Group]) -> Result<usize> {
        let determined = self.compiled.determined.values().map(|it| &it.values);
        let outputs = self.compiled.outputs.iter().flatten();
        let outputs = outputs.filter_map(|it| it.values.as_ref());
        let mut text_bytes: usize = determined.chain(outputs).map(Values::text_bytes_max).sum();
        for (key, values) in self.groups.keys.iter().enumerate() {
            text_bytes += match values {
                // Only some of the texts are in groups.
                Values::Array(all) if is_text(all.data_type()) && groups.len() < all.len() => {
                    let numbers = self.numbers(key, groups).collect();
                    Values::Array(values.take(numbers)?).text_bytes_max()
                }
                values => values.text_bytes_max(),
            };
        }
        let most = match self.fragment.is_listed {
            true => LIST_BATCH_ROWS,
            false => BATCH_ROWS,
        };
        Ok((BATCH_TEXT_BYTES / text_bytes.max(1)).clamp(1, most))
    }

    /// Returns the numbers of the values of a key in groups, by the index of the key among those with values.
    fn numbers(&self, key: usize, groups: &[Group]) -> impl Iterator<Item = u64> {
        let count = |values: &Values| values.len().max(1) as u64;
        let behind: u64 = self.groups.keys[key + 1..].iter().map(count).product();
        let count = count(&self.groups.keys[key]);
        groups.iter().map(move |(_, group)| group / behind % count)
    }

    /// Returns the rows of groups.
    fn batch(&self, totals: &Totals<'_>, rows: &[Group]) -> Result<RecordBatch> {
        let Made {
            fragment,
            compiled,
            groups,
            schema,
            ..
        } = self;
        let mut columns = Vec::with_capacity(schema.fields().len());
        let mut numbered = groups.keys.iter().enumerate();
        for key in 0..fragment.keys.len() {
            if let Some(determined) = compiled.determined.get(&key) {
                columns.push(totals.determined(determined, rows)?);
                continue;
            }
            let values = numbered.next();
            let (index, values) =
                values.ok_or_else(|| internal_datafusion_err!("the key {key} has no values"))?;
            columns.push(values.take(self.numbers(index, rows).collect())?);
        }
        // Each group is in one row, so that its states are all that there are.
        let numbers: Vec<usize> = (0..rows.len()).collect();
        let has_groups = !compiled.keys.is_empty() || fragment.is_listed;
        let numbers = has_groups.then_some(&*numbers);
        for (index, states) in compiled.outputs.iter().enumerate() {
            let states = states.iter().map(|column| totals.column(column, rows));
            let states = states.collect::<Result<Vec<_>>>()?;
            match fragment.aggregate_at(index) {
                Some(aggregate) if !fragment.returns_states => {
                    columns.push(finished(&aggregate.function, &states, numbers)?);
                }
                _ => columns.extend(states),
            }
        }
        let typed = columns.iter().zip(schema.fields());
        let typed = typed.map(|(column, field)| cast(column, field.data_type()));
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let columns = typed.collect::<std::result::Result<_, _>>()?;
        Ok(RecordBatch::try_new_with_options(
            Arc::clone(schema),
            columns,
            &options,
        )?)
    }
}

/// Returns the bytes of rows. The buffers of texts are those of a whole dictionary, which several batches share.
fn bytes_of(batch: &RecordBatch) -> usize {
    let bytes = batch
        .columns()
        .iter()
        .map(|column| match column.data_type() {
            DataType::Utf8View => {
                let views = column.as_string_view();
                let texts: usize = views.lengths().map(|it| it as usize).sum();
                texts + size_of_val(&**views.views())
            }
            _ => column.get_array_memory_size(),
        });
    bytes.sum()
}

/// Returns the rows of each partition, or all rows if any partition may have them.
fn partitioned(batch: RecordBatch, partitioning: &Partitioning) -> Result<Vec<RecordBatch>> {
    let Partitioning::Hash(keys, count @ 2..) = partitioning else {
        return Ok(vec![batch]);
    };
    if !is_by_columns(partitioning) {
        return Ok(vec![batch]);
    }
    let mut partitions = vec![RecordBatch::new_empty(batch.schema()); *count];
    BatchPartitioner::new_hash_partitioner(keys.clone(), *count, Time::default())?.partition(
        batch,
        |partition, rows| {
            // The rows are a part of arrays with those of all partitions. Operators above would count all of them.
            let all = UInt64Array::from_iter_values(0..rows.num_rows() as u64);
            partitions[partition] = take_record_batch(&rows, &all)?;
            Ok(())
        },
    )?;
    Ok(partitions)
}
