//! `$rename` and `$currentDate`.

use bson::raw::{RawBson, RawBsonRef};
use bson::spec::ElementType;
use bson::{DateTime, Timestamp};

use super::path::UpdatePath;
use super::tree::{Outcome, Padding, Tree};
use crate::display;
use crate::element::elements;
use crate::error::Error;

/// The BSON type in which `$currentDate` writes the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    Date,
    Timestamp,
}

impl Moment {
    pub fn value(self, now: DateTime) -> RawBson {
        match self {
            Moment::Date => RawBson::DateTime(now),
            Moment::Timestamp => {
                let time = (now.timestamp_millis() / 1000) as u32;
                RawBson::Timestamp(Timestamp { time, increment: 1 })
            }
        }
    }
}

pub(super) fn parse_current_date(operand: RawBsonRef<'_>) -> Result<Moment, Error> {
    match operand {
        RawBsonRef::Boolean(_) => Ok(Moment::Date),
        RawBsonRef::Document(document) => {
            let mut moment = None;
            for element in elements(document) {
                moment = match (element.key, element.value()) {
                    ("$type", RawBsonRef::String("date")) => Some(Moment::Date),
                    ("$type", RawBsonRef::String("timestamp")) => Some(Moment::Timestamp),
                    ("$type", _) => return Err(Error::bad_value(MOMENT_TYPE)),
                    (name, _) => {
                        return Err(Error::bad_value(format!(
                            "Unrecognized $currentDate option: {name}"
                        )));
                    }
                };
            }
            moment.ok_or_else(|| Error::bad_value(MOMENT_TYPE))
        }
        other => Err(Error::bad_value(format!(
            "{} is not valid type for $currentDate. Please use a boolean ('true') or a $type expression ({{$type: 'timestamp/date'}}).",
            crate::element::type_name(other.element_type())
        ))),
    }
}

const MOMENT_TYPE: &str = "The '$type' string field is required to be 'date' or 'timestamp': {$currentDate: {field : {$type: 'date'}}}";

/// Parses the target of `$rename`.
pub(super) fn parse_rename(from: &str, operand: RawBsonRef<'_>) -> Result<UpdatePath, Error> {
    let shown = || display::field(from, operand);
    let RawBsonRef::String(to) = operand else {
        return Err(Error::bad_value(format!(
            "The 'to' field for $rename must be a string: {}",
            shown()
        )));
    };
    if to.contains('\0') {
        return Err(Error::bad_value(
            "The 'to' field for $rename cannot contain an embedded null byte",
        ));
    }
    if to == from {
        return Err(Error::bad_value(format!(
            "The source and target field for $rename must differ: {}",
            shown()
        )));
    }
    let (source, target) = (UpdatePath::parse(from)?, UpdatePath::parse(to)?);
    for (path, role) in [(&source, "source"), (&target, "destination")] {
        if path.is_positional() {
            return Err(Error::bad_value(format!(
                "The {role} field for $rename may not be dynamic: {}",
                path.as_str()
            )));
        }
    }
    if source.check_conflict(&target).is_err() {
        let message = format!(
            "The source and target field for $rename must not be on the same path: {}",
            shown()
        );
        return Err(Error::bad_value(message));
    }
    Ok(target)
}

/// Moves the value at `from` to `to`. Does nothing if the path `from` is valid but has no value.
pub(super) fn rename(
    root: &mut Tree<'_>,
    from: &[String],
    to: &[String],
    id: &str,
) -> Result<(), Error> {
    let padding = &mut Padding::default();
    let mut is_there = false;
    root.change(from, padding, &mut |place| {
        is_there = place.is_some();
        Ok(Outcome::Keep)
    })?;
    if !is_there {
        return Ok(());
    }
    check_no_array(root, from, "source", id)?;
    check_no_array(root, to, "destination", id)?;
    let mut moved = None;
    root.change(from, padding, &mut |place| {
        moved = place.map(|value| std::mem::replace(value, Tree::Value(RawBsonRef::Null)));
        Ok(Outcome::Remove)
    })?;
    root.change(to, padding, &mut |_| {
        Ok(moved.take().map_or(Outcome::Keep, Outcome::Put))
    })
}

fn check_no_array(root: &mut Tree<'_>, path: &[String], role: &str, id: &str) -> Result<(), Error> {
    for length in 1..path.len() {
        if root
            .find(&path[..length])?
            .is_some_and(|tree| tree.kind() == ElementType::Array)
        {
            return Err(Error::bad_value(format!(
                "The {role} field cannot be an array element, '{}' in doc with {id} has an array field called '{}'",
                path.join("."),
                path[length - 1]
            )));
        }
    }
    Ok(())
}
