//! The accumulators of `$group`.

use std::collections::{HashMap, HashSet};

use bson::raw::{RawBson, RawBsonRef};

use crate::compare::compare;
use crate::element::{Writer, elements};
use crate::error::Error;
use crate::expr::{Sum, Value, array, mergeable};
use crate::key;

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

    /// Adds the value of one document. Returns the number of additional bytes held.
    pub fn add(&mut self, value: &Value<'_>) -> Result<usize, Error> {
        match self {
            Accumulator::Sum(sum) => value.get().map_or(Ok(()), |value| sum.add(value))?,
            Accumulator::Avg { sum, count } => {
                if let Some(number) = value
                    .get()
                    .filter(|value| crate::number::Number::of(*value).is_some())
                {
                    sum.add(number)?;
                    *count += 1;
                }
            }
            Accumulator::Extreme { smallest, best } => take_extreme(best, *smallest, value),
            Accumulator::First(first) => {
                first.get_or_insert_with(|| value.or_null().into());
            }
            Accumulator::Last(last) => *last = Some(value.or_null().into()),
            Accumulator::Push(values) => {
                return Ok(value.get().map_or(0, |value| push(values, value)));
            }
            Accumulator::AddToSet { seen, values } => {
                return Ok(value
                    .get()
                    .map_or(0, |value| add_to_set(seen, values, value)));
            }
            Accumulator::Count(count) => *count += 1,
            Accumulator::Merge(merged) => return merged.add(value),
        }
        Ok(0)
    }

    /// Returns the result.
    pub fn finish(self) -> RawBson {
        match self {
            Accumulator::Sum(sum) => sum.value().into_owned(),
            Accumulator::Avg { count: 0, .. } => RawBson::Null,
            Accumulator::Avg { sum, count } => RawBson::Double(sum.to_f64() / count as f64),
            Accumulator::Extreme { best, .. } => best.unwrap_or(RawBson::Null),
            Accumulator::First(value) | Accumulator::Last(value) => value.unwrap_or(RawBson::Null),
            Accumulator::Push(values) | Accumulator::AddToSet { values, .. } => {
                array(values.iter().map(RawBson::as_raw_bson_ref))
            }
            Accumulator::Count(count) => {
                i32::try_from(count).map_or(RawBson::Int64(count), RawBson::Int32)
            }
            Accumulator::Merge(merged) => merged.finish(),
        }
    }
}

/// Keeps the smaller or larger value. Ignores null and missing values.
fn take_extreme(best: &mut Option<RawBson>, smallest: bool, value: &Value<'_>) {
    if value.is_nullish() {
        return;
    }
    let value = value.or_null();
    let better = best.as_ref().is_none_or(|best| {
        let order = compare(value, best.as_raw_bson_ref());
        if smallest {
            order.is_lt()
        } else {
            order.is_gt()
        }
    });
    if better {
        *best = Some(value.into());
    }
}

fn push(values: &mut Vec<RawBson>, value: RawBsonRef<'_>) -> usize {
    values.push(value.into());
    size_of_val(&values[0]) + heap_bytes(value)
}

fn add_to_set(
    seen: &mut HashSet<Vec<u8>>,
    values: &mut Vec<RawBson>,
    value: RawBsonRef<'_>,
) -> usize {
    let key = key::encode(value);
    let key_bytes = key.len();
    if seen.insert(key) {
        push(values, value) + key_bytes
    } else {
        0
    }
}

/// Returns the heap bytes of an owned copy of the value.
pub(super) fn heap_bytes(value: RawBsonRef<'_>) -> usize {
    match value {
        RawBsonRef::String(text) | RawBsonRef::Symbol(text) => text.len(),
        RawBsonRef::Document(document) => document.as_bytes().len(),
        RawBsonRef::Array(array) => array.as_bytes().len(),
        RawBsonRef::Binary(binary) => binary.bytes.len(),
        _ => 0,
    }
}

/// Merges documents. Fields are in the order in which their names first appeared. If a name appears again, the later
/// value replaces the earlier one.
#[derive(Debug, Default)]
pub(super) struct Merged {
    fields: Vec<(String, RawBson)>,
    places: HashMap<String, usize>,
}

impl Merged {
    fn add(&mut self, value: &Value<'_>) -> Result<usize, Error> {
        let Some(document) = mergeable(value)? else {
            return Ok(0);
        };
        for element in elements(document) {
            self.set(element.key, element.value().into());
        }
        Ok(document.as_bytes().len())
    }

    fn set(&mut self, name: &str, value: RawBson) {
        match self.places.get(name) {
            Some(place) => self.fields[*place].1 = value,
            None => {
                self.places.insert(name.to_owned(), self.fields.len());
                self.fields.push((name.to_owned(), value));
            }
        }
    }

    fn finish(self) -> RawBson {
        let mut writer = Writer::new();
        for (name, value) in &self.fields {
            writer.owned(name, value);
        }
        RawBson::Document(writer.finish())
    }
}
