//! The `$group` stage.

use std::collections::HashMap;

use bson::raw::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use forebay_memory::Share;

use super::accumulator::{Accumulator, AccumulatorKind, Held, KEY_GROWTH, MAP_GROWTH};
use super::{Run, Stream};
use crate::element::{Writer, bytes_of, check_depth, elements, type_name};
use crate::error::{Code, Error};
use crate::expr::{CommandLimits, Expression, Scope, evaluation};
use crate::key;
use crate::limits::Limits;
use crate::sort::ALLOCATION_BYTES;

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
                name => accumulations.push(Accumulation::parse(name, element.value(), limits)?),
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
            let values: Vec<_> = crate::element::array_values(array).collect();
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

/// One group.
struct State {
    id: RawBson,
    accumulators: Vec<Accumulator>,
    /// Bytes of the group's values.
    bytes: usize,
}

/// All groups, in order of their first document.
struct Groups<'s> {
    by_key: HashMap<Vec<u8>, usize>,
    states: Vec<State>,
    held: Held<'s>,
}

/// Bytes of a group besides its key, its `_id` and its accumulators.
const GROUP_BYTES: usize = 128;

/// Memory of a group's key and of its accumulators, besides [`GROUP_BYTES`].
fn memory_bytes(group: &Group) -> usize {
    let accumulators = group.accumulations.len() * size_of::<Accumulator>();
    accumulators + MAP_GROWTH * size_of::<(Vec<u8>, usize)>() + 2 * ALLOCATION_BYTES
}

pub(super) fn run<E: From<Error>>(
    group: &Group,
    input: Stream<'_, E>,
    run: &Run,
    held: &Share,
) -> Result<Vec<RawDocumentBuf>, E> {
    let limits = CommandLimits::of(&run.limits);
    let mut groups = Groups {
        by_key: HashMap::new(),
        states: Vec::new(),
        held: Held {
            share: held,
            bytes_max: run.limits.stage_memory_bytes_max,
            bytes: 0,
            memory_bytes: 0,
        },
    };
    for document in input {
        let document = document?;
        evaluation::under(&limits, || groups.add(group, &document, run))?;
    }
    Ok(groups.finish(group)?)
}

impl Groups<'_> {
    fn add(&mut self, group: &Group, document: &RawDocument, run: &Run) -> Result<(), Error> {
        let scope = Scope::new(document, run.now);
        let id = group.id.evaluate(&scope)?;
        let before = self.held.bytes;
        let place = self.place(id.or_null(), group)?;
        let state = &mut self.states[place];
        for (accumulation, accumulator) in group.accumulations.iter().zip(&mut state.accumulators) {
            let value = accumulation.operand.evaluate(&scope)?;
            accumulator.add(&value, &mut self.held)?;
        }
        state.bytes = (state.bytes + self.held.bytes).saturating_sub(before);
        Ok(())
    }

    fn place(&mut self, id: RawBsonRef<'_>, group: &Group) -> Result<usize, Error> {
        evaluation::reserve_beside(bytes_of(id) * KEY_GROWTH)?;
        let key = key::encode(id);
        if let Some(place) = self.by_key.get(&key) {
            return Ok(*place);
        }
        let bytes = key.len() + bytes_of(id) + GROUP_BYTES;
        self.held.take(bytes, memory_bytes(group))?;
        let accumulators = group
            .accumulations
            .iter()
            .map(|accumulation| Accumulator::new(accumulation.kind))
            .collect();
        self.states.push(State {
            id: id.into(),
            accumulators,
            bytes: 0,
        });
        self.by_key.insert(key, self.states.len() - 1);
        Ok(self.states.len() - 1)
    }

    /// Returns the groups' documents. The memory of a group makes room for its document.
    fn finish(mut self, group: &Group) -> Result<Vec<RawDocumentBuf>, Error> {
        drop(self.by_key);
        let mut documents = Vec::with_capacity(self.states.len());
        for state in self.states {
            self.held.take(0, DOCUMENT_BYTES)?;
            let share = self.held.share;
            share.try_cover(self.held.memory_bytes + state.bytes)?;
            documents.push(state.finish(group)?);
        }
        Ok(documents)
    }
}

/// Memory of an output document besides the bytes of its values.
const DOCUMENT_BYTES: usize = size_of::<RawDocumentBuf>() + 2 * ALLOCATION_BYTES;

impl State {
    fn finish(self, group: &Group) -> Result<RawDocumentBuf, Error> {
        let mut writer = Writer::new();
        writer.owned("_id", &self.id);
        for (accumulation, accumulator) in group.accumulations.iter().zip(self.accumulators) {
            accumulator.write(&mut writer, &accumulation.name);
        }
        let document = writer.finish();
        check_depth(RawBsonRef::Document(&document))?;
        Ok(document)
    }
}
