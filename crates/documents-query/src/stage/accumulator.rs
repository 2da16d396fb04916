//! The accumulators of `$group`.

use std::collections::{HashMap, HashSet};

use bson::raw::{RawBson, RawBsonRef};
use forebay_memory::Share;

use crate::compare::compare;
use crate::element::{Element, Writer, bytes_of, elements};
use crate::error::{Code, Error};
use crate::expr::{Sum, Value, evaluation, mergeable};
use crate::key;
use crate::sort::ALLOCATION_BYTES;

/// Kind of accumulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is named after its operator")]
pub enum AccumulatorKind {
    Sum,
    Avg,
    Min,
    Max,
    First,
    Last,
    Push,
    AddToSet,
    Count,
    MergeObjects,
}

impl AccumulatorKind {
    /// Returns the accumulator with this name, which includes the dollar sign.
    pub fn from_name(name: &str) -> Option<AccumulatorKind> {
        Some(match name {
            "$sum" => AccumulatorKind::Sum,
            "$avg" => AccumulatorKind::Avg,
            "$min" => AccumulatorKind::Min,
            "$max" => AccumulatorKind::Max,
            "$first" => AccumulatorKind::First,
            "$last" => AccumulatorKind::Last,
            "$push" => AccumulatorKind::Push,
            "$addToSet" => AccumulatorKind::AddToSet,
            "$count" => AccumulatorKind::Count,
            "$mergeObjects" => AccumulatorKind::MergeObjects,
            _ => return None,
        })
    }
}

/// Factor between the entries of a hash table and its memory while it grows.
pub(super) const MAP_GROWTH: usize = 4;

/// Factor between the bytes of a value and the bytes of its key. Zeros are escaped in keys.
pub(super) const KEY_GROWTH: usize = 2;

/// Number of bytes that a field of `$mergeObjects` takes besides its names and its value: an entry of the list, one of
/// the map, and three allocations.
const MERGED_FIELD_BYTES: usize = size_of::<(String, RawBson)>()
    + MAP_GROWTH * size_of::<(String, usize)>()
    + 3 * ALLOCATION_BYTES;

/// The memory that a `$group` holds.
pub(super) struct Held<'s> {
    pub share: &'s Share,
    /// Maximum bytes of values.
    pub bytes_max: usize,
    /// Bytes of the values held.
    pub bytes: usize,
    /// Bytes of memory that these values take.
    pub memory_bytes: usize,
}

impl Held<'_> {
    /// Reserves memory for a value of `bytes`, which takes `extra_bytes` of memory besides.
    ///
    /// # Errors
    /// `QueryExceededMemoryLimitNoDiskUseAllowed` if the values exceed the limit of a stage; `ExceededMemoryLimit` if
    /// the server has no memory for them.
    pub fn take(&mut self, bytes: usize, extra_bytes: usize) -> Result<(), Error> {
        self.bytes += bytes;
        self.memory_bytes += bytes + extra_bytes;
        let bytes_max = self.bytes_max;
        if self.bytes > bytes_max {
            return Err(Error::new(
                Code::QueryExceededMemoryLimitNoDiskUseAllowed,
                format!(
                    "Exceeded memory limit of {bytes_max} bytes for $group, but didn't allow external sort. Aborting operation: raise --documents-stage-memory-bytes-max."
                ),
            ));
        }
        Ok(self.share.try_cover(self.memory_bytes)?)
    }

    /// Returns the memory of a value of `bytes` that is no longer held, for the next value.
    pub fn give_back(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.memory_bytes = self.memory_bytes.saturating_sub(bytes);
    }
}

/// The state of one accumulator in one group.
#[derive(Debug)]
pub(super) enum Accumulator {
    Sum(Sum),
    Avg {
        sum: Sum,
        count: u64,
    },
    Extreme {
        smallest: bool,
        best: Option<RawBson>,
    },
    First(Option<RawBson>),
    Last(Option<RawBson>),
    Push(Vec<RawBson>),
    AddToSet {
        seen: HashSet<Vec<u8>>,
        values: Vec<RawBson>,
    },
    Count(i64),
    Merge(Merged),
}

impl Accumulator {
    pub fn new(kind: AccumulatorKind) -> Accumulator {
        match kind {
            AccumulatorKind::Sum => Accumulator::Sum(Sum::default()),
            AccumulatorKind::Avg => Accumulator::Avg {
                sum: Sum::default(),
                count: 0,
            },
            AccumulatorKind::Min => Accumulator::Extreme {
                smallest: true,
                best: None,
            },
            AccumulatorKind::Max => Accumulator::Extreme {
                smallest: false,
                best: None,
            },
            AccumulatorKind::First => Accumulator::First(None),
            AccumulatorKind::Last => Accumulator::Last(None),
            AccumulatorKind::Push => Accumulator::Push(Vec::new()),
            AccumulatorKind::AddToSet => Accumulator::AddToSet {
                seen: HashSet::new(),
                values: Vec::new(),
            },
            AccumulatorKind::Count => Accumulator::Count(0),
            AccumulatorKind::MergeObjects => Accumulator::Merge(Merged::default()),
        }
    }

    /// Adds the value of one document.
    ///
    /// # Errors
    /// Those of [`Held::take`], and of values that the accumulator does not accept.
    pub fn add(&mut self, value: &Value<'_>, held: &mut Held<'_>) -> Result<(), Error> {
        match self {
            Accumulator::Sum(sum) => value.get().map_or(Ok(()), |value| sum.add(value)),
            Accumulator::Avg { sum, count } => {
                if let Some(number) = value
                    .get()
                    .filter(|value| crate::number::Number::of(*value).is_some())
                {
                    sum.add(number)?;
                    *count += 1;
                }
                Ok(())
            }
            Accumulator::Extreme { smallest, best } => take_extreme(best, *smallest, value, held),
            Accumulator::First(Some(_)) => Ok(()),
            Accumulator::First(kept) | Accumulator::Last(kept) => replace(kept, value, held),
            Accumulator::Push(values) => value
                .get()
                .map_or(Ok(()), |value| push(values, value, held)),
            Accumulator::AddToSet { seen, values } => value
                .get()
                .map_or(Ok(()), |value| add_to_set(seen, values, value, held)),
            Accumulator::Count(count) => {
                *count += 1;
                Ok(())
            }
            Accumulator::Merge(merged) => merged.add(value, held),
        }
    }

    /// Writes the result as a field.
    pub fn write(&self, writer: &mut Writer, name: &str) {
        match self {
            Accumulator::Sum(sum) => writer.value(name, sum.value().or_null()),
            Accumulator::Avg { count: 0, .. } => writer.value(name, RawBsonRef::Null),
            Accumulator::Avg { sum, count } => {
                writer.value(name, RawBsonRef::Double(sum.to_f64() / *count as f64));
            }
            Accumulator::Extreme { best: value, .. }
            | Accumulator::First(value)
            | Accumulator::Last(value) => {
                writer.owned(name, value.as_ref().unwrap_or(&RawBson::Null));
            }
            Accumulator::Push(values) | Accumulator::AddToSet { values, .. } => {
                writer.begin_array(name);
                for (index, value) in values.iter().enumerate() {
                    writer.owned(&index.to_string(), value);
                }
                writer.end();
            }
            Accumulator::Count(count) => {
                let count = i32::try_from(*count).map_or(RawBson::Int64(*count), RawBson::Int32);
                writer.owned(name, &count);
            }
            Accumulator::Merge(merged) => merged.write(writer, name),
        }
    }
}

/// Keeps the smaller or larger value. Ignores null and missing values.
fn take_extreme(
    best: &mut Option<RawBson>,
    smallest: bool,
    value: &Value<'_>,
    held: &mut Held<'_>,
) -> Result<(), Error> {
    if value.is_nullish() {
        return Ok(());
    }
    let better = best.as_ref().is_none_or(|best| {
        let order = compare(value.or_null(), best.as_raw_bson_ref());
        if smallest {
            order.is_lt()
        } else {
            order.is_gt()
        }
    });
    match better {
        true => replace(best, value, held),
        false => Ok(()),
    }
}

/// Replaces the value that is kept.
fn replace(
    kept: &mut Option<RawBson>,
    value: &Value<'_>,
    held: &mut Held<'_>,
) -> Result<(), Error> {
    if let Some(before) = kept.take() {
        held.give_back(bytes_of(before.as_raw_bson_ref()));
    }
    held.take(bytes_of(value.or_null()), 0)?;
    *kept = Some(value.or_null().into());
    Ok(())
}

fn push(
    values: &mut Vec<RawBson>,
    value: RawBsonRef<'_>,
    held: &mut Held<'_>,
) -> Result<(), Error> {
    held.take(size_of::<RawBson>() + bytes_of(value), ALLOCATION_BYTES)?;
    values.push(value.into());
    Ok(())
}

fn add_to_set(
    seen: &mut HashSet<Vec<u8>>,
    values: &mut Vec<RawBson>,
    value: RawBsonRef<'_>,
    held: &mut Held<'_>,
) -> Result<(), Error> {
    evaluation::reserve_beside(bytes_of(value) * KEY_GROWTH)?;
    let key = key::encode(value);
    if seen.contains(&key) {
        return Ok(());
    }
    held.take(
        key.len(),
        MAP_GROWTH * size_of::<Vec<u8>>() + ALLOCATION_BYTES,
    )?;
    push(values, value, held)?;
    seen.insert(key);
    Ok(())
}

/// Merges documents. Fields are in the order in which their names first appeared. If a name appears again, the later
/// value replaces the earlier one.
#[derive(Debug, Default)]
pub(super) struct Merged {
    fields: Vec<(String, RawBson)>,
    places: HashMap<String, usize>,
}

impl Merged {
    fn add(&mut self, value: &Value<'_>, held: &mut Held<'_>) -> Result<(), Error> {
        let Some(document) = mergeable(value)? else {
            return Ok(());
        };
        for (index, element) in elements(document).enumerate() {
            evaluation::check_element(index)?;
            self.set(&element, held)?;
        }
        Ok(())
    }

    fn set(&mut self, element: &Element<'_>, held: &mut Held<'_>) -> Result<(), Error> {
        let name = element.key;
        held.take(element.bytes.len(), 0)?;
        match self.places.get(name) {
            Some(place) => {
                let before = &mut self.fields[*place].1;
                held.give_back(name.len() + bytes_of(before.as_raw_bson_ref()));
                *before = element.value().into();
            }
            None => {
                held.take(0, MERGED_FIELD_BYTES + name.len())?;
                self.places.insert(name.to_owned(), self.fields.len());
                self.fields.push((name.to_owned(), element.value().into()));
            }
        }
        Ok(())
    }

    fn write(&self, writer: &mut Writer, name: &str) {
        writer.begin_document(name);
        for (name, value) in &self.fields {
            writer.owned(name, value);
        }
        writer.end();
    }
}
