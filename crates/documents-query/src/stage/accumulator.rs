//! The accumulators of `$group`.

use std::collections::HashMap;

use bson::raw::RawBson;

use super::memory::{Memory, block_bytes, buffer_bytes, compact, heap_bytes, table_bytes};
use crate::compare::compare;
use crate::element::{Element, Writer, elements, encoded_bytes, payload_bytes};
use crate::error::Error;
use crate::expr::{Sum, Value, evaluation, mergeable};
use crate::key;

/// Maximum bytes that a value takes in a document besides its contents: type, end of the name, and a number or length.
const FIELD_BYTES: usize = 24;
/// Maximum bytes of an array element besides its value: its type, and its index as the field name.
const INDEX_BYTES: usize = 12;

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
    AddToSet(Box<Distinct>),
    Count(i64),
    Merge(Box<Merged>),
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
            AccumulatorKind::AddToSet => Accumulator::AddToSet(Box::default()),
            AccumulatorKind::Count => Accumulator::Count(0),
            AccumulatorKind::MergeObjects => Accumulator::Merge(Box::default()),
        }
    }

    /// Adds the value of one document. Charges the bytes that it keeps before it allocates them.
    pub fn add(&mut self, value: Value<'_>, memory: &mut Memory) -> Result<(), Error> {
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
            Accumulator::Extreme { smallest, best } => match is_better(best, *smallest, &value) {
                true => keep(best, value, memory),
                false => Ok(()),
            },
            Accumulator::First(Some(_)) => Ok(()),
            Accumulator::First(first) => keep(first, value, memory),
            Accumulator::Last(last) => keep(last, value, memory),
            Accumulator::Push(_) | Accumulator::AddToSet(_) if value.get().is_none() => Ok(()),
            Accumulator::Push(values) => push(values, value, memory),
            Accumulator::AddToSet(distinct) => distinct.add(value, memory),
            Accumulator::Count(count) => {
                *count += 1;
                Ok(())
            }
            Accumulator::Merge(merged) => merged.add(&value, memory),
        }
    }

    /// Returns the bytes held besides the accumulator itself.
    pub fn held_bytes(&self) -> usize {
        match self {
            Accumulator::Sum(_) | Accumulator::Avg { .. } | Accumulator::Count(_) => 0,
            Accumulator::Extreme { best: value, .. }
            | Accumulator::First(value)
            | Accumulator::Last(value) => value
                .as_ref()
                .map_or(0, |value| heap_bytes(value.as_raw_bson_ref())),
            Accumulator::Push(values) => values_bytes(values),
            Accumulator::AddToSet(distinct) => distinct.held_bytes(),
            Accumulator::Merge(merged) => merged.held_bytes(),
        }
    }

    /// Returns the maximum bytes of the result as field `name` of a document.
    pub fn result_bytes(&self, name: &str) -> usize {
        let value_bytes = match self {
            Accumulator::Sum(_) | Accumulator::Avg { .. } | Accumulator::Count(_) => 0,
            Accumulator::Extreme { best: value, .. }
            | Accumulator::First(value)
            | Accumulator::Last(value) => value
                .as_ref()
                .map_or(0, |value| encoded_bytes(value.as_raw_bson_ref())),
            Accumulator::Push(values) => array_bytes(values),
            Accumulator::AddToSet(distinct) => array_bytes(&distinct.values),
            Accumulator::Merge(merged) => merged.result_bytes(),
        };
        name.len() + FIELD_BYTES + value_bytes
    }

    /// Writes the result as field `name`.
    pub fn write(self, name: &str, writer: &mut Writer) {
        let value = match self {
            Accumulator::Sum(sum) => sum.value().into_owned(),
            Accumulator::Avg { count: 0, .. } => RawBson::Null,
            Accumulator::Avg { sum, count } => RawBson::Double(sum.to_f64() / count as f64),
            Accumulator::Extreme { best, .. } => best.unwrap_or(RawBson::Null),
            Accumulator::First(value) | Accumulator::Last(value) => value.unwrap_or(RawBson::Null),
            Accumulator::Push(values) => return write_array(name, values, writer),
            Accumulator::AddToSet(distinct) => return write_array(name, distinct.values, writer),
            Accumulator::Count(count) => {
                i32::try_from(count).map_or(RawBson::Int64(count), RawBson::Int32)
            }
            Accumulator::Merge(merged) => return merged.write(name, writer),
        };
        writer.owned(name, &value);
    }
}

/// Returns whether a value is smaller than `best` or, without `smallest`, larger. Returns false for null and missing
/// values.
fn is_better(best: &Option<RawBson>, smallest: bool, value: &Value<'_>) -> bool {
    if value.is_nullish() {
        return false;
    }
    best.as_ref().is_none_or(|best| {
        let order = compare(value.or_null(), best.as_raw_bson_ref());
        if smallest {
            order.is_lt()
        } else {
            order.is_gt()
        }
    })
}

/// Replaces the value that an accumulator keeps, and charges the new value.
fn keep(kept: &mut Option<RawBson>, value: Value<'_>, memory: &mut Memory) -> Result<(), Error> {
    memory.count(payload_bytes(value.or_null()))?;
    memory.take(heap_bytes(value.or_null()))?;
    if let Some(old) = kept.replace(compact(value)) {
        memory.discount(payload_bytes(old.as_raw_bson_ref()));
        memory.give_back(heap_bytes(old.as_raw_bson_ref()));
    }
    Ok(())
}

fn push(values: &mut Vec<RawBson>, value: Value<'_>, memory: &mut Memory) -> Result<(), Error> {
    memory.count(size_of::<RawBson>() + payload_bytes(value.or_null()))?;
    memory.reserve(values)?;
    memory.take(heap_bytes(value.or_null()))?;
    values.push(compact(value));
    Ok(())
}

fn values_bytes(values: &Vec<RawBson>) -> usize {
    let heap = values
        .iter()
        .map(|value| heap_bytes(value.as_raw_bson_ref()));
    buffer_bytes(values) + heap.sum::<usize>()
}

fn array_bytes(values: &[RawBson]) -> usize {
    let values = values.iter().map(RawBson::as_raw_bson_ref);
    values.map(|value| INDEX_BYTES + encoded_bytes(value)).sum()
}

/// Writes an array. Each value is freed when it is written.
fn write_array(name: &str, values: Vec<RawBson>, writer: &mut Writer) {
    writer.begin_array(name);
    for (index, value) in values.into_iter().enumerate() {
        writer.owned(&index.to_string(), &value);
    }
    writer.end();
}

/// Distinct values in the order in which they first appeared.
#[derive(Debug, Default)]
pub(super) struct Distinct {
    seen: HashMap<Box<[u8]>, ()>,
    values: Vec<RawBson>,
    key_bytes: usize,
}

impl Distinct {
    fn add(&mut self, value: Value<'_>, memory: &mut Memory) -> Result<(), Error> {
        evaluation::reserve_beside(key::bytes_max(value.or_null()))?;
        let key = key::encode(value.or_null());
        if self.seen.contains_key(&key[..]) {
            return Ok(());
        }
        let key_bytes = block_bytes(key.len());
        memory.count(key.len())?;
        memory.take(key_bytes)?;
        memory.reserve_entry(&mut self.seen)?;
        push(&mut self.values, value, memory)?;
        self.seen.insert(key.into_boxed_slice(), ());
        self.key_bytes += key_bytes;
        Ok(())
    }

    fn held_bytes(&self) -> usize {
        size_of::<Distinct>()
            + table_bytes(&self.seen)
            + self.key_bytes
            + values_bytes(&self.values)
    }
}

/// Merges documents. Fields are in the order in which their names first appeared. If a name appears again, the later
/// value replaces the earlier one.
#[derive(Debug, Default)]
pub(super) struct Merged {
    fields: Vec<(Box<str>, RawBson)>,
    places: HashMap<Box<str>, usize>,
}

impl Merged {
    fn add(&mut self, value: &Value<'_>, memory: &mut Memory) -> Result<(), Error> {
        let Some(document) = mergeable(value)? else {
            return Ok(());
        };
        for (index, element) in elements(document).enumerate() {
            evaluation::check_element(index)?;
            self.set(&element, memory)?;
        }
        Ok(())
    }

    fn set(&mut self, element: &Element<'_>, memory: &mut Memory) -> Result<(), Error> {
        let (name, value) = (element.key, element.value());
        let counted_bytes = |value| name.len() + encoded_bytes(value);
        memory.count(counted_bytes(value))?;
        memory.take(heap_bytes(value))?;
        match self.places.get(name) {
            Some(place) => {
                let kept = &mut self.fields[*place].1;
                let old = std::mem::replace(kept, value.into());
                memory.discount(counted_bytes(old.as_raw_bson_ref()));
                memory.give_back(heap_bytes(old.as_raw_bson_ref()));
            }
            None => {
                memory.take(2 * block_bytes(name.len()))?;
                memory.reserve_entry(&mut self.places)?;
                memory.reserve(&mut self.fields)?;
                self.places.insert(name.into(), self.fields.len());
                self.fields.push((name.into(), value.into()));
            }
        }
        Ok(())
    }

    fn held_bytes(&self) -> usize {
        let field_bytes = |(name, value): &(Box<str>, RawBson)| {
            2 * block_bytes(name.len()) + heap_bytes(value.as_raw_bson_ref())
        };
        let fields: usize = self.fields.iter().map(field_bytes).sum();
        size_of::<Merged>() + table_bytes(&self.places) + buffer_bytes(&self.fields) + fields
    }

    fn result_bytes(&self) -> usize {
        let field_bytes = |(name, value): &(Box<str>, RawBson)| {
            name.len() + FIELD_BYTES + encoded_bytes(value.as_raw_bson_ref())
        };
        self.fields.iter().map(field_bytes).sum()
    }

    fn write(self, name: &str, writer: &mut Writer) {
        writer.begin_document(name);
        drop(self.places);
        for (name, value) in self.fields {
            writer.owned(&name, &value);
        }
        writer.end();
    }
}
