//! `$push`, `$addToSet`, `$pull`, `$pullAll`, `$pop`.

use std::collections::HashSet;

use bson::raw::{RawArray, RawBson, RawBsonRef, RawDocument};

use super::operator::Scene;
use super::tree::{Outcome, Tree};
use crate::compare::equal;
use crate::display;
use crate::element::{Element, array_values, elements, get};
use crate::error::{Code, Error};
use crate::expr::evaluation;
use crate::filter::{Filter, Regex, Test, is_operator_document, is_top_level_operator};
use crate::key;
use crate::limits::{Limits, heap_bytes};
use crate::number::Number;
use crate::sort::{ALLOCATION_BYTES, Sort};

/// Maximum bytes of memory that a key takes in a hash table while the table grows, besides the key's bytes.
const KEY_BYTES: usize = 4 * size_of::<Vec<u8>>() + 2 * ALLOCATION_BYTES;
/// Memory of an element that is being sorted, besides the bytes of its key.
const KEYED_BYTES: usize = size_of::<(Vec<u8>, Tree<'_>)>() + 2 * ALLOCATION_BYTES;

/// A parsed `$push` with its modifiers.
#[derive(Debug, Clone)]
pub(super) struct Push {
    values: Vec<RawBson>,
    position: Option<i64>,
    slice: Option<i64>,
    order: Option<Order>,
}

/// `$sort` of `$push`: by whole elements, or by fields of elements that are documents.
#[derive(Debug, Clone)]
enum Order {
    Values { descending: bool },
    Fields(Sort),
}

impl Push {
    pub fn parse(path: &str, operand: RawBsonRef<'_>, limits: &Limits) -> Result<Push, Error> {
        let modifiers = operand
            .as_document()
            .filter(|document| get(document, "$each").is_some());
        let Some(modifiers) = modifiers else {
            return Ok(Push {
                values: vec![operand.into()],
                position: None,
                slice: None,
                order: None,
            });
        };
        let mut push = Push {
            values: Vec::new(),
            position: None,
            slice: None,
            order: None,
        };
        for element in elements(modifiers) {
            push.take(path, &element, limits)?;
        }
        Ok(push)
    }

    fn take(&mut self, path: &str, element: &Element<'_>, limits: &Limits) -> Result<(), Error> {
        let operand = element.value();
        match element.key {
            "$each" => self.values = each("$push", path, operand, limits)?,
            "$position" => self.position = Some(whole("$position", operand)?),
            "$slice" => self.slice = Some(whole("$slice", operand)?),
            "$sort" => self.order = Some(Order::parse(operand)?),
            name => {
                return Err(Error::bad_value(format!(
                    "Unrecognized clause in $push: {name}"
                )));
            }
        }
        Ok(())
    }

    pub fn apply<'a>(
        &self,
        place: Option<&mut Tree<'a>>,
        scene: &Scene<'_>,
    ) -> Result<Outcome<'a>, Error> {
        match place {
            None => {
                let mut made = Tree::empty_array();
                self.change(&mut made, scene)?;
                Ok(Outcome::Put(made))
            }
            Some(place) => self.change(place, scene).map(|()| Outcome::Keep),
        }
    }

    fn change(&self, place: &mut Tree<'_>, scene: &Scene<'_>) -> Result<(), Error> {
        let kind = place.type_name();
        let Some(items) = place.items()? else {
            let message = format!(
                "The field '{}' must be an array but is of type {kind} in document {{{}}}",
                scene.path, scene.id
            );
            return Err(Error::bad_value(message));
        };
        evaluation::keep(copies_bytes(&self.values))?;
        let at = insert_position(items.len(), self.position);
        items.splice(at..at, self.values.iter().map(|value| value.clone().into()));
        if let Some(order) = &self.order {
            evaluation::keep(items.len() * KEYED_BYTES + keys_bytes(items))?;
            order.sort(items);
        }
        if let Some(slice) = self.slice {
            let (start, length) = crate::expr::slice_bounds(items.len(), None, slice);
            items.truncate(start.saturating_add(length));
            items.drain(..start);
        }
        Ok(())
    }
}

fn insert_position(length: usize, position: Option<i64>) -> usize {
    match position {
        None => length,
        Some(position @ 0..) => length.min(position as usize),
        Some(position) => length.saturating_sub(position.unsigned_abs() as usize),
    }
}

fn whole(name: &str, operand: RawBsonRef<'_>) -> Result<i64, Error> {
    Number::of(operand)
        .and_then(Number::to_i64_exact)
        .ok_or_else(|| {
            let kind = crate::element::type_name(operand.element_type());
            Error::bad_value(format!(
                "The value for {name} must be an integer value but was given type: {kind}"
            ))
        })
}

/// Copies the values of an operator's list.
fn values(array: &RawArray, limits: &Limits) -> Result<Vec<RawBson>, Error> {
    let own = |value: RawBsonRef<'_>| {
        limits.hold_value(value)?;
        Ok(value.into())
    };
    array_values(array).map(own).collect()
}

fn each(
    operator: &str,
    path: &str,
    operand: RawBsonRef<'_>,
    limits: &Limits,
) -> Result<Vec<RawBson>, Error> {
    match operand {
        RawBsonRef::Array(array) => values(array, limits),
        other => {
            let kind = crate::element::type_name(other.element_type());
            Err(Error::bad_value(format!(
                "The argument to $each in {operator} must be an array but it was of type: {kind} ({path})"
            )))
        }
    }
}

impl Order {
    fn parse(operand: RawBsonRef<'_>) -> Result<Order, Error> {
        if let RawBsonRef::Document(spec) = operand {
            let sort = Sort::parse(spec).map_err(|error| Error::bad_value(error.message))?;
            return match sort.is_empty() {
                true => Err(Error::bad_value(
                    "The $sort pattern is empty when it should be a set of fields.",
                )),
                false => Ok(Order::Fields(sort)),
            };
        }
        match Number::of(operand).and_then(Number::to_i64_exact) {
            Some(1) => Ok(Order::Values { descending: false }),
            Some(-1) => Ok(Order::Values { descending: true }),
            Some(_) => Err(Error::bad_value(
                "The $sort element value must be either 1 or -1",
            )),
            None => Err(Error::bad_value(
                "The $sort is invalid: use 1/-1 to sort the whole element, or {field:1/-1} to sort embedded fields",
            )),
        }
    }

    fn sort(&self, items: &mut Vec<Tree<'_>>) {
        let mut keyed: Vec<(Vec<u8>, Tree<'_>)> = items
            .drain(..)
            .map(|item| (self.key(&item), item))
            .collect();
        keyed.sort_by(|(a, _), (b, _)| a.cmp(b));
        items.extend(keyed.into_iter().map(|(_, item)| item));
    }

    fn key(&self, item: &Tree<'_>) -> Vec<u8> {
        let value = item.to_bson();
        match self {
            Order::Values { descending } => {
                let mut key = Vec::new();
                let direction = if *descending {
                    key::Direction::Descending
                } else {
                    key::Direction::Ascending
                };
                key::append_directed(&mut key, value.as_raw_bson_ref(), direction);
                key
            }
            // An element that is not a document sorts like a document without fields.
            Order::Fields(sort) => match value.as_document() {
                Some(document) => sort.key(document),
                None => sort.key(&bson::raw::RawDocumentBuf::new()),
            },
        }
    }
}

/// A parsed `$addToSet`.
#[derive(Debug, Clone)]
pub(super) struct AddToSet {
    values: Vec<RawBson>,
}

impl AddToSet {
    pub fn parse(operand: RawBsonRef<'_>, limits: &Limits) -> Result<AddToSet, Error> {
        let first = operand
            .as_document()
            .and_then(|document| elements(document).next());
        let Some(first) = first.filter(|first| first.key == "$each") else {
            return Ok(AddToSet {
                values: vec![operand.into()],
            });
        };
        let extra = operand
            .as_document()
            .and_then(|document| elements(document).nth(1));
        if let Some(extra) = extra {
            return Err(Error::bad_value(format!(
                "Found unexpected fields after $each in $addToSet: {}",
                extra.key
            )));
        }
        match first.value() {
            RawBsonRef::Array(array) => Ok(AddToSet {
                values: values(array, limits)?,
            }),
            other => {
                let kind = crate::element::type_name(other.element_type());
                Err(Error::type_mismatch(format!(
                    "The argument to $each in $addToSet must be an array but it was of type {kind}"
                )))
            }
        }
    }

    pub fn apply<'a>(
        &self,
        place: Option<&mut Tree<'a>>,
        scene: &Scene<'_>,
    ) -> Result<Outcome<'a>, Error> {
        let Some(place) = place else {
            let mut made = Vec::new();
            self.add(&mut made)?;
            return Ok(Outcome::Put(Tree::Array(made)));
        };
        let kind = place.type_name();
        match place.items()? {
            Some(items) => self.add(items)?,
            None => {
                let name = scene.name;
                let message = format!(
                    "Cannot apply $addToSet to non-array field. Field named '{name}' has non-array type {kind}"
                );
                return Err(Error::bad_value(message));
            }
        }
        Ok(Outcome::Keep)
    }

    fn add(&self, items: &mut Vec<Tree<'_>>) -> Result<(), Error> {
        let count = items.len() + self.values.len();
        evaluation::keep(count * KEY_BYTES + keys_bytes(items) + copies_bytes(&self.values))?;
        let mut present: HashSet<Vec<u8>> = items
            .iter()
            .map(|item| key::encode(item.to_bson().as_raw_bson_ref()))
            .collect();
        for value in &self.values {
            if present.insert(key::encode(value.as_raw_bson_ref())) {
                items.push(value.clone().into());
            }
        }
        Ok(())
    }
}

/// Returns the bytes of the keys of elements.
fn keys_bytes(items: &[Tree<'_>]) -> usize {
    2 * items.iter().map(Tree::encoded_bytes).sum::<usize>()
}

/// Returns the bytes of copies of operands in the changed document.
fn copies_bytes(values: &[RawBson]) -> usize {
    let copy = |value: &RawBson| size_of::<Tree<'_>>() + heap_bytes(value.as_raw_bson_ref());
    values.iter().map(copy).sum()
}

/// The elements that `$pull` removes.
#[derive(Debug, Clone)]
pub(super) enum Pull {
    /// Elements that equal the value.
    Equal(RawBson),
    /// Elements that pass the operators.
    Test(Filter),
    /// Elements that are documents and match a query.
    Query(Filter),
}

impl Pull {
    pub fn parse(operand: RawBsonRef<'_>, limits: &Limits) -> Result<Pull, Error> {
        match operand {
            RawBsonRef::Document(document) if is_test(document) => {
                Ok(Pull::Test(Filter::parse_element_test(document, limits)?))
            }
            RawBsonRef::Document(document) => {
                Ok(Pull::Query(Filter::parse_element_query(document, limits)?))
            }
            RawBsonRef::RegularExpression(regex) => {
                let test = Test::Regex(Regex::of_value(regex, limits)?);
                Ok(Pull::Test(Filter::of_element_test(test, limits)))
            }
            value => Ok(Pull::Equal(value.into())),
        }
    }

    fn takes(&self, value: RawBsonRef<'_>) -> Result<bool, Error> {
        match (self, value) {
            (Pull::Equal(wanted), _) => Ok(equal(value, wanted.as_raw_bson_ref())),
            (Pull::Test(filter), _) => filter.try_matches_value(value),
            (Pull::Query(filter), RawBsonRef::Document(document)) => filter.try_matches(document),
            (Pull::Query(_), _) => Ok(false),
        }
    }

    pub fn apply<'a>(&self, place: Option<&mut Tree<'a>>) -> Result<Outcome<'a>, Error> {
        retain(place, "$pull", &|value| Ok(!self.takes(value)?))
    }
}

/// Returns whether a condition of `$pull` tests the array elements themselves, with operators such as `$gt`. A
/// condition that begins with `$or` or a similar operator is instead a query on the elements' fields.
fn is_test(condition: &RawDocument) -> bool {
    let first = elements(condition).next();
    is_operator_document(condition) && !first.is_some_and(|first| is_top_level_operator(first.key))
}

pub(super) fn parse_pull_all(
    operand: RawBsonRef<'_>,
    limits: &Limits,
) -> Result<Vec<RawBson>, Error> {
    match operand {
        RawBsonRef::Array(array) => values(array, limits),
        other => {
            let kind = crate::element::type_name(other.element_type());
            Err(Error::bad_value(format!(
                "$pullAll requires an array argument but was given a {kind}"
            )))
        }
    }
}

pub(super) fn pull_all<'a>(
    place: Option<&mut Tree<'a>>,
    values: &[RawBson],
) -> Result<Outcome<'a>, Error> {
    evaluation::keep(values.len() * KEY_BYTES)?;
    let unwanted: HashSet<Vec<u8>> = values
        .iter()
        .map(|value| key::encode(value.as_raw_bson_ref()))
        .collect();
    retain(place, "$pull", &|value| {
        Ok(!unwanted.contains(&key::encode(value)))
    })
}

fn retain<'a>(
    place: Option<&mut Tree<'a>>,
    name: &str,
    keep: &dyn Fn(RawBsonRef<'_>) -> Result<bool, Error>,
) -> Result<Outcome<'a>, Error> {
    let Some(place) = place else {
        return Ok(Outcome::Keep);
    };
    let Some(items) = place.items()? else {
        return Err(Error::bad_value(format!(
            "Cannot apply {name} to a non-array value"
        )));
    };
    let mut failure = None;
    items.retain(|item| {
        if failure.is_some() {
            return true;
        }
        let kept = keep(item.to_bson().as_raw_bson_ref());
        kept.unwrap_or_else(|error| {
            failure = Some(error);
            true
        })
    });
    failure.map_or(Ok(Outcome::Keep), Err)
}

/// Parses the operand of `$pop`. Returns true if `$pop` removes the first element, and false if it removes the last.
pub(super) fn parse_pop(path: &str, operand: RawBsonRef<'_>) -> Result<bool, Error> {
    let shown = || display::field(path, operand);
    let Some(number) = Number::of(operand) else {
        return Err(Error::parse(format!("Expected a number in: {}", shown())));
    };
    match number.to_i64_exact() {
        Some(1) => Ok(false),
        Some(-1) => Ok(true),
        Some(other) => Err(Error::parse(format!(
            "$pop expects 1 or -1, found: {other}"
        ))),
        None => Err(Error::parse(format!("Expected an integer: {}", shown()))),
    }
}

pub(super) fn pop<'a>(
    place: Option<&mut Tree<'a>>,
    first: bool,
    scene: &Scene<'_>,
) -> Result<Outcome<'a>, Error> {
    let Some(place) = place else {
        return Ok(Outcome::Keep);
    };
    let kind = place.type_name();
    let Some(items) = place.items()? else {
        let message = format!(
            "Path '{}' contains an element of non-array type '{kind}'",
            scene.path
        );
        return Err(Error::new(Code::TypeMismatch, message));
    };
    match first {
        _ if items.is_empty() => {}
        true => drop(items.remove(0)),
        false => drop(items.pop()),
    }
    Ok(Outcome::Keep)
}
