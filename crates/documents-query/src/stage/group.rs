//! The `$group` stage.

use std::collections::HashMap;

use bson::raw::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use forebay_memory::Share;

use super::accumulator::{Accumulator, AccumulatorKind, heap_bytes};
use super::{Run, Stream};
use crate::element::{Writer, check_depth, elements, type_name};
use crate::error::{Code, Error};
use crate::expr::{Expression, Scope};
use crate::key;
use crate::limits::Limits;

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
}

/// All groups, in order of their first document.
#[derive(Default)]
struct Groups {
    by_key: HashMap<Vec<u8>, usize>,
    states: Vec<State>,
    bytes: usize,
}

/// Memory of a group in bytes besides its key, its `_id` and its accumulators.
const GROUP_BYTES: usize = 128;

pub(super) fn run<E: From<Error>>(
    group: &Group,
    input: Stream<'_, E>,
    run: &Run,
    held: &Share,
) -> Result<Vec<RawDocumentBuf>, E> {
    let mut groups = Groups::default();
    for document in input {
        groups.add(group, &document?, run)?;
        held.try_cover(groups.bytes).map_err(Error::from)?;
    }
    let documents = groups.states.into_iter().map(|state| state.finish(group));
    Ok(documents.collect::<Result<_, _>>()?)
}

impl Groups {
    fn add(&mut self, group: &Group, document: &RawDocument, run: &Run) -> Result<(), Error> {
        let scope = Scope::new(document, run.now);
        let id = group.id.evaluate(&scope)?;
        let place = self.place(id.or_null(), group);
        for (accumulation, accumulator) in group
            .accumulations
            .iter()
            .zip(&mut self.states[place].accumulators)
        {
            self.bytes += accumulator.add(&accumulation.operand.evaluate(&scope)?)?;
        }
        self.check_memory(run.limits.stage_memory_bytes_max)
    }

    fn place(&mut self, id: RawBsonRef<'_>, group: &Group) -> usize {
        let key = key::encode(id);
        if let Some(place) = self.by_key.get(&key) {
            return *place;
        }
        self.bytes += key.len() + heap_bytes(id) + GROUP_BYTES;
        let accumulators = group
            .accumulations
            .iter()
            .map(|accumulation| Accumulator::new(accumulation.kind))
            .collect();
        self.states.push(State {
            id: id.into(),
            accumulators,
        });
        self.by_key.insert(key, self.states.len() - 1);
        self.states.len() - 1
    }

    fn check_memory(&self, bytes_max: usize) -> Result<(), Error> {
        match self.bytes > bytes_max {
            true => Err(Error::new(
                Code::QueryExceededMemoryLimitNoDiskUseAllowed,
                format!(
                    "Exceeded memory limit of {bytes_max} bytes for $group, but didn't allow external sort. Aborting operation: raise --documents-stage-memory-bytes-max."
                ),
            )),
            false => Ok(()),
        }
    }
}

impl State {
    fn finish(self, group: &Group) -> Result<RawDocumentBuf, Error> {
        let mut writer = Writer::new();
        writer.owned("_id", &self.id);
        for (accumulation, accumulator) in group.accumulations.iter().zip(self.accumulators) {
            writer.owned(&accumulation.name, &accumulator.finish());
        }
        let document = writer.finish();
        check_depth(RawBsonRef::Document(&document))?;
        Ok(document)
    }
}
