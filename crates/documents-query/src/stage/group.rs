//! The `$group` stage.

use std::collections::HashMap;

use bson::raw::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use super::accumulator::{Accumulator, AccumulatorKind};
use super::memory::{Memory, block_bytes, compact, heap_bytes, table_bytes};
use super::{Run, Stream};
use crate::element::{Writer, check_depth, elements, encoded_bytes, payload_bytes, type_name};
use crate::error::{Code, Error};
use crate::expr::{Expression, Scope, Value, evaluation};
use crate::key;
use crate::limits::Limits;
use crate::sort::ALLOCATION_BYTES;

/// Bytes of a field of a `$group` in a list, besides its name. The list's capacity is on average 1.5 times its length.
const ACCUMULATION_BYTES: usize = 3 * size_of::<Accumulation>() / 2 + ALLOCATION_BYTES;

/// A parsed `$group`.
#[derive(Debug, Clone)]
pub struct Group {
    /// Documents with the same value of this expression form a group.
    pub id: Expression,
    /// The fields that follow `_id` in each group's document.
    pub accumulations: Vec<Accumulation>,
}

/// One field of a group's document.
#[derive(Debug, Clone)]
pub struct Accumulation {
    /// Name of the field.
    pub name: String,
    /// The accumulator.
    pub kind: AccumulatorKind,
    /// The expression evaluated on each document.
    pub operand: Expression,
}

impl Group {
    pub(super) fn parse(spec: RawBsonRef<'_>, limits: &Limits) -> Result<Group, Error> {
        let RawBsonRef::Document(spec) = spec else {
            return Err(Error::new(
                Code::Location15947,
                "a group's fields must be specified in an object",
            ));
        };
        let (mut id, mut accumulations) = (None, Vec::new());
        for element in elements(spec) {
            match element.key {
                "_id" => id = Some(Expression::parse(element.value(), limits)?),
                name => {
                    limits.hold(ACCUMULATION_BYTES + name.len())?;
                    accumulations.push(Accumulation::parse(name, element.value(), limits)?)
                }
            }
        }
        let id = id.ok_or_else(|| {
            Error::new(
                Code::Location15955,
                "a group specification must include an _id",
            )
        })?;
        Ok(Group { id, accumulations })
    }
}

impl Accumulation {
    fn parse(name: &str, spec: RawBsonRef<'_>, limits: &Limits) -> Result<Accumulation, Error> {
        if name.contains('.') {
            return Err(Error::new(
                Code::Location40235,
                format!("The field name '{name}' cannot contain '.'"),
            ));
        }
        if name.starts_with('$') {
            return Err(Error::new(
                Code::Location40236,
                format!("The field name '{name}' cannot be an operator name"),
            ));
        }
        let RawBsonRef::Document(spec) = spec else {
            return Err(Error::new(
                Code::Location40234,
                format!("The field '{name}' must be an accumulator object"),
            ));
        };
        let mut fields = elements(spec);
        let (Some(first), None) = (fields.next(), fields.next()) else {
            return Err(Error::new(
                Code::Location40238,
                format!("The field '{name}' must specify one accumulator"),
            ));
        };
        let kind = AccumulatorKind::from_name(first.key).ok_or_else(|| {
            Error::new(
                Code::Location15952,
                format!("unknown group operator '{}'", first.key),
            )
        })?;
        let operand = operand(kind, first.key, first.value(), limits)?;
        Ok(Accumulation {
            name: name.to_owned(),
            kind,
            operand,
        })
    }
}

fn operand(
    kind: AccumulatorKind,
    name: &str,
    value: RawBsonRef<'_>,
    limits: &Limits,
) -> Result<Expression, Error> {
    match (kind, value) {
        (AccumulatorKind::Count, RawBsonRef::Document(document)) if document.is_empty() => {
            Ok(Expression::literal(RawBson::Null))
        }
        (AccumulatorKind::Count, other) => {
            let kind = type_name(other.element_type());
            Err(Error::type_mismatch(format!(
                "$count takes no arguments, i.e. $count:{{}}, but got {kind}"
            )))
        }
        (_, RawBsonRef::Array(array)) => {
            let values: Vec<_> = crate::element::array_values(array).take(2).collect();
            match values.as_slice() {
                [single] => Expression::parse(*single, limits),
                _ => Err(Error::new(
                    Code::Location40237,
                    format!("The {name} accumulator is a unary operator"),
                )),
            }
        }
        (_, other) => Expression::parse(other, limits),
    }
}

/// All groups, in order of their first document.
struct Groups {
    places: HashMap<Box<[u8]>, u32>,
    /// Bytes of the keys of `places`.
    key_bytes: usize,
    /// Buffer for the key that is being searched.
    key: Vec<u8>,
    ids: Vec<RawBson>,
    /// The accumulators of the first group, then those of the second, and so on.
    accumulators: Vec<Accumulator>,
    memory: Memory,
}

/// Maximum capacity of a key's buffer that is used again for the next key.
const KEY_BYTES_MAX: usize = 4 << 10;
/// Bytes that a group counts towards the stage's limit, besides its key, its `_id` and the values of its accumulators.
const GROUP_BYTES: usize = 128;

/// Reads the whole input. Returns a stream that builds the documents of the groups one by one.
pub(super) fn run<'a, E: From<Error> + Send + 'a>(
    group: Group,
    input: Stream<'_, E>,
    run: &Run,
) -> Result<Stream<'a, E>, E> {
    let mut groups = Groups::new(Memory::new(run, too_large));
    let limits = run.limits.command.clone();
    for document in input {
        let document = document?;
        evaluation::under(&limits, || groups.add(&group, &document, run))?;
    }
    let mut output = groups.into_output(group);
    Ok(Box::new(std::iter::from_fn(move || {
        output.next().map(|document| document.map_err(E::from))
    })))
}

fn too_large(bytes_max: usize) -> Error {
    Error::new(
        Code::QueryExceededMemoryLimitNoDiskUseAllowed,
        format!(
            "Exceeded memory limit of {bytes_max} bytes for $group, but didn't allow external sort. Aborting operation: raise --documents-stage-memory-bytes-max."
        ),
    )
}

impl Groups {
    fn new(memory: Memory) -> Groups {
        Groups {
            places: HashMap::new(),
            key_bytes: 0,
            key: Vec::new(),
            ids: Vec::new(),
            accumulators: Vec::new(),
            memory,
        }
    }

    fn add(&mut self, group: &Group, document: &RawDocument, run: &Run) -> Result<(), Error> {
        let scope = Scope::new(document, run.now);
        let id = group.id.evaluate(&scope)?;
        let first = self.place(id, group)? * group.accumulations.len();
        for (accumulation, accumulator) in group
            .accumulations
            .iter()
            .zip(&mut self.accumulators[first..])
        {
            accumulator.add(accumulation.operand.evaluate(&scope)?, &mut self.memory)?;
        }
        Ok(())
    }

    /// Returns the position of the group with this `_id`. Adds the group if it is new.
    fn place(&mut self, id: Value<'_>, group: &Group) -> Result<usize, Error> {
        evaluation::reserve_beside(key::bytes_max(id.or_null()))?;
        self.key.clear();
        key::append(&mut self.key, id.or_null());
        let place = match self.places.get(&self.key[..]) {
            Some(place) => *place as usize,
            None => self.insert(id, group)?,
        };
        if self.key.capacity() > KEY_BYTES_MAX {
            self.key = Vec::new();
        }
        Ok(place)
    }

    fn insert(&mut self, id: Value<'_>, group: &Group) -> Result<usize, Error> {
        let place = self.ids.len();
        let number = u32::try_from(place)
            .map_err(|_| Error::new(Code::ExceededMemoryLimit, "$group has too many groups"))?;
        let key_bytes = block_bytes(self.key.len());
        let memory = &mut self.memory;
        memory.count(self.key.len() + payload_bytes(id.or_null()) + GROUP_BYTES)?;
        memory.take(key_bytes + heap_bytes(id.or_null()))?;
        memory.reserve_entry(&mut self.places)?;
        memory.reserve(&mut self.ids)?;
        memory.reserve_all(&mut self.accumulators, group.accumulations.len())?;
        for accumulation in &group.accumulations {
            let accumulator = Accumulator::new(accumulation.kind);
            memory.take(accumulator.held_bytes())?;
            self.accumulators.push(accumulator);
        }
        self.places.insert(self.key.as_slice().into(), number);
        self.key_bytes += key_bytes;
        self.ids.push(compact(id));
        Ok(place)
    }

    fn into_output(mut self, group: Group) -> Output {
        self.memory.remove_limit();
        let places_bytes = table_bytes(&self.places) + self.key_bytes;
        drop(self.places);
        self.memory.give_back(places_bytes);
        Output {
            group,
            ids: self.ids.into_iter(),
            accumulators: self.accumulators.into_iter(),
            memory: Some(self.memory),
            document_bytes: 0,
        }
    }
}

/// The documents of the groups. Each group is freed when its document is made.
struct Output {
    group: Group,
    ids: std::vec::IntoIter<RawBson>,
    accumulators: std::vec::IntoIter<Accumulator>,
    /// `None` after the last document.
    memory: Option<Memory>,
    /// Bytes charged for the last document returned.
    document_bytes: usize,
}

impl Output {
    fn next(&mut self) -> Option<Result<RawDocumentBuf, Error>> {
        let memory = self.memory.as_mut()?;
        memory.give_back(std::mem::take(&mut self.document_bytes));
        let Some(id) = self.ids.next() else {
            self.accumulators = Vec::new().into_iter();
            self.memory = None;
            return None;
        };
        let document = self.document(&id);
        if document.is_err() {
            self.ids = Vec::new().into_iter();
        }
        Some(document)
    }

    fn document(&mut self, id: &RawBson) -> Result<RawDocumentBuf, Error> {
        let accumulations = &self.group.accumulations;
        let mut held_bytes = heap_bytes(id.as_raw_bson_ref());
        let mut bytes = DOCUMENT_BYTES + encoded_bytes(id.as_raw_bson_ref());
        for (accumulation, accumulator) in accumulations.iter().zip(self.accumulators.as_slice()) {
            held_bytes += accumulator.held_bytes();
            bytes += accumulator.result_bytes(&accumulation.name);
        }
        if let Some(memory) = &mut self.memory {
            memory.take(bytes)?;
            self.document_bytes = bytes;
        }
        let mut writer = Writer::with_capacity(bytes);
        writer.owned("_id", id);
        for (accumulation, accumulator) in accumulations.iter().zip(&mut self.accumulators) {
            accumulator.write(&accumulation.name, &mut writer);
        }
        if let Some(memory) = &mut self.memory {
            memory.give_back(held_bytes);
        }
        let document = writer.finish();
        check_depth(RawBsonRef::Document(&document))?;
        Ok(document)
    }
}

/// Bytes of a document with an `_id`, besides the contents of the `_id` and the other fields.
const DOCUMENT_BYTES: usize = 10;
