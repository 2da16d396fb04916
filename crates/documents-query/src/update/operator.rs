//! The table of update operators.

use bson::raw::{RawBson, RawBsonRef};

use super::array::{AddToSet, Pull, Push};
use super::number::Bit;
use super::path::UpdatePath;
use super::tree::{Outcome, Tree};
use super::{Moment, array, field, number};
use crate::display;
use crate::error::{Code, Error};
use crate::expr::evaluation;
use crate::limits::{Limits, heap_bytes};

/// An update operator for one path, with its operand.
#[derive(Debug, Clone)]
pub(super) enum Operator {
    Set(RawBson),
    SetOnInsert(RawBson),
    Unset,
    Rename(UpdatePath),
    CurrentDate(Moment),
    Inc(RawBson),
    Mul(RawBson),
    Min(RawBson),
    Max(RawBson),
    Bit(Vec<Bit>),
    Push(Push),
    AddToSet(AddToSet),
    Pull(Pull),
    PullAll(Vec<RawBson>),
    Pop { first: bool },
}

/// Input of an operator besides the value that it changes.
pub(super) struct Scene<'s> {
    /// The last component of the path.
    pub name: &'s str,
    /// The whole path, as sent by the client.
    pub path: &'s str,
    /// The document's `_id` for messages, such as `_id: 1`.
    pub id: &'s str,
    pub now: bson::DateTime,
}

impl Operator {
    /// Parses an operator for one path.
    ///
    /// # Errors
    /// `FailedToParse` for an operator that does not exist; the errors of single operators.
    pub fn parse(
        name: &str,
        path: &str,
        operand: RawBsonRef<'_>,
        limits: &Limits,
    ) -> Result<Operator, Error> {
        limits.hold(heap_bytes(operand))?;
        Ok(match name {
            "$set" => Operator::Set(operand.into()),
            "$setOnInsert" => Operator::SetOnInsert(operand.into()),
            "$unset" => Operator::Unset,
            "$rename" => Operator::Rename(field::parse_rename(path, operand)?),
            "$currentDate" => Operator::CurrentDate(field::parse_current_date(operand)?),
            "$inc" => Operator::Inc(number::parse_operand("increment", path, operand)?),
            "$mul" => Operator::Mul(number::parse_operand("multiply", path, operand)?),
            "$min" => Operator::Min(operand.into()),
            "$max" => Operator::Max(operand.into()),
            "$bit" => Operator::Bit(Bit::parse(path, operand, limits)?),
            "$push" => Operator::Push(Push::parse(path, operand, limits)?),
            "$addToSet" => Operator::AddToSet(AddToSet::parse(operand, limits)?),
            "$pull" => Operator::Pull(Pull::parse(operand, limits)?),
            "$pullAll" => Operator::PullAll(array::parse_pull_all(operand, limits)?),
            "$pop" => Operator::Pop {
                first: array::parse_pop(path, operand)?,
            },
            _ => return Err(unknown(name)),
        })
    }

    /// Applies the operator to a value. `None` is a missing value.
    pub fn apply<'a>(
        &self,
        place: Option<&mut Tree<'a>>,
        scene: &Scene<'_>,
    ) -> Result<Outcome<'a>, Error> {
        match self {
            Operator::Set(value) | Operator::SetOnInsert(value) => put(value),
            Operator::Unset => Ok(Outcome::Remove),
            // A rename changes two paths, so the update applies it separately.
            Operator::Rename(_) => Ok(Outcome::Keep),
            Operator::CurrentDate(moment) => Ok(Outcome::Put(moment.value(scene.now).into())),
            Operator::Inc(operand) => number::add(place, operand, scene),
            Operator::Mul(operand) => number::multiply(place, operand, scene),
            Operator::Min(operand) => number::extreme(place, operand, true),
            Operator::Max(operand) => number::extreme(place, operand, false),
            Operator::Bit(bits) => number::bits(place, bits, scene),
            Operator::Push(push) => push.apply(place, scene),
            Operator::AddToSet(add) => add.apply(place, scene),
            Operator::Pull(pull) => pull.apply(place),
            Operator::PullAll(values) => array::pull_all(place, values),
            Operator::Pop { first } => array::pop(place, *first, scene),
        }
    }
}

/// Puts a copy of an operand into the document. An update with positional operators may put many copies.
///
/// # Errors
/// `ExceededMemoryLimit` if the memory account has no room.
pub(super) fn put<'a>(operand: &RawBson) -> Result<Outcome<'a>, Error> {
    evaluation::keep(heap_bytes(operand.as_raw_bson_ref()))?;
    Ok(Outcome::Put(operand.clone().into()))
}

const NAMES: [&str; 15] = [
    "$set",
    "$setOnInsert",
    "$unset",
    "$rename",
    "$currentDate",
    "$inc",
    "$mul",
    "$min",
    "$max",
    "$bit",
    "$push",
    "$addToSet",
    "$pull",
    "$pullAll",
    "$pop",
];

/// Checks that an operator exists.
///
/// # Errors
/// `FailedToParse` for an operator that does not exist.
pub(super) fn check_name(name: &str) -> Result<(), Error> {
    if NAMES.contains(&name) {
        Ok(())
    } else {
        Err(unknown(name))
    }
}

fn unknown(name: &str) -> Error {
    Error::new(
        Code::FailedToParse,
        format!(
            "Unknown modifier: {name}. Expected a valid update modifier or pipeline-style update specified as an array"
        ),
    )
}

/// Builds the error for an update operator whose operand is not a document, as in `{$set: 1}`.
pub(super) fn not_a_document(name: &str, operand: RawBsonRef<'_>) -> Error {
    let kind = crate::element::type_name(operand.element_type());
    let shown = display::value(operand);
    Error::parse(format!(
        "Modifiers operate on fields but we found type {kind} instead. For example: {{$mod: {{<field>: ...}}}} not {{{name}: {shown}}}"
    ))
}
