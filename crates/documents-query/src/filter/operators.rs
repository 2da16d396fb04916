//! Parsing the operators on one field: `{field: {$gt: 1, $lt: 5}}`.

use bson::raw::{RawArray, RawBsonRef, RawDocument};

use super::parse::{
    Parser, and, equality, is_operator_document, is_top_level_operator, leaf, unsupported,
};
use super::{BitTest, BitWant, InList, Node, RangeOp, Regex, Test, TypeSet};
use crate::display;
use crate::element::{Element, array_values, elements, get, is_truthy};
use crate::error::Error;
use crate::number::Number;
use crate::path::Path;

/// Parses all operators in `operators` for `path`.
pub(super) fn parse_operators(
    parser: &mut Parser<'_>,
    path: &Path,
    operators: &RawDocument,
) -> Result<Node, Error> {
    let mut nodes = Vec::new();
    for element in elements(operators) {
        nodes.extend(parse_operator(parser, path, operators, &element)?);
    }
    Ok(and(nodes))
}

/// Parses one operator. Returns `None` for `$options`, which is parsed together with `$regex`.
fn parse_operator(
    parser: &mut Parser<'_>,
    path: &Path,
    siblings: &RawDocument,
    element: &Element<'_>,
) -> Result<Option<Node>, Error> {
    let operand = element.value();
    hold(parser, path, element.key, operand)?;
    let node = match element.key {
        "$eq" => equality(path, operand)?,
        "$ne" => not_equal(path, operand)?,
        "$lt" => range(path, RangeOp::Lt, operand)?,
        "$lte" => range(path, RangeOp::Lte, operand)?,
        "$gt" => range(path, RangeOp::Gt, operand)?,
        "$gte" => range(path, RangeOp::Gte, operand)?,
        "$in" => leaf(path, Test::In(list(parser, "$in", operand)?)),
        "$nin" => not(leaf(path, Test::In(list(parser, "$nin", operand)?))),
        "$not" => parse_not(parser, path, operand)?,
        "$exists" if is_truthy(operand) => leaf(path, Test::Exists),
        "$exists" => not(leaf(path, Test::Exists)),
        "$type" => leaf(path, Test::Type(TypeSet::parse(path.as_str(), operand)?)),
        "$regex" => leaf(
            path,
            Test::Regex(Regex::of_operators(siblings, parser.limits)?),
        ),
        "$options" => return options(siblings),
        "$mod" => leaf(path, modulo(operand)?),
        "$size" => leaf(path, size(operand)?),
        "$elemMatch" => elem_match(parser, path, operand)?,
        "$all" => all(parser, path, operand)?,
        name => bits(path, name, operand)?,
    };
    Ok(Some(node))
}

/// Reserves memory for an operator. If its operand is a list or a filter, the operand's parser reserves memory for the
/// operand.
fn hold(
    parser: &Parser<'_>,
    path: &Path,
    name: &str,
    operand: RawBsonRef<'_>,
) -> Result<(), Error> {
    let own = match (name, operand) {
        ("$in" | "$nin" | "$not" | "$elemMatch" | "$all", _) => RawBsonRef::Null,
        (_, operand) => operand,
    };
    if let RawBsonRef::Binary(binary) = operand {
        parser.limits.hold(BitTest::mask_bytes(binary.bytes))?;
    }
    parser.hold_node()?;
    parser.hold_leaf(path.as_str(), own)
}

fn not(node: Node) -> Node {
    Node::Not(Box::new(node))
}

fn not_equal(path: &Path, operand: RawBsonRef<'_>) -> Result<Node, Error> {
    match operand {
        RawBsonRef::RegularExpression(_) => {
            Err(Error::bad_value("Can't have regex as arg to $ne."))
        }
        value => Ok(not(equality(path, value)?)),
    }
}

fn range(path: &Path, op: RangeOp, operand: RawBsonRef<'_>) -> Result<Node, Error> {
    match operand {
        RawBsonRef::RegularExpression(_) => Err(Error::bad_value(format!(
            "Can't have RegEx as arg to predicate over field '{path}'."
        ))),
        RawBsonRef::Undefined => Err(Error::bad_value("cannot compare to undefined")),
        value => Ok(leaf(
            path,
            Test::Range {
                op,
                value: value.into(),
            },
        )),
    }
}

fn list(parser: &Parser<'_>, name: &str, operand: RawBsonRef<'_>) -> Result<InList, Error> {
    let RawBsonRef::Array(array) = operand else {
        return Err(Error::bad_value(format!("{name} needs an array")));
    };
    let (mut values, mut patterns) = (Vec::new(), Vec::new());
    for value in array_values(array) {
        match value {
            RawBsonRef::Document(inner) if is_operator_document(inner) => {
                return Err(Error::bad_value("cannot nest $ under $in"));
            }
            RawBsonRef::RegularExpression(regex) => {
                parser.limits.hold_value(value)?;
                patterns.push(Regex::of_value(regex, parser.limits)?)
            }
            RawBsonRef::Undefined => {
                return Err(Error::bad_value(
                    "InMatchExpression equality cannot be undefined",
                ));
            }
            value => {
                parser.limits.hold_value(value)?;
                values.push(value.into())
            }
        }
    }
    Ok(InList::new(values, patterns))
}

fn parse_not(parser: &mut Parser<'_>, path: &Path, operand: RawBsonRef<'_>) -> Result<Node, Error> {
    match operand {
        RawBsonRef::RegularExpression(regex) => Ok(not(leaf(
            path,
            Test::Regex(Regex::of_value(regex, parser.limits)?),
        ))),
        RawBsonRef::Document(inner) if inner.is_empty() => {
            Err(Error::bad_value("$not cannot be empty"))
        }
        RawBsonRef::Document(inner) => {
            parser.enter(inner)?;
            let node = parse_operators(parser, path, inner)?;
            parser.leave();
            Ok(not(node))
        }
        _ => Err(Error::bad_value("$not needs a regex or a document")),
    }
}

fn options(siblings: &RawDocument) -> Result<Option<Node>, Error> {
    match get(siblings, "$regex") {
        Some(_) => Ok(None),
        None => Err(Error::bad_value("$options needs a $regex")),
    }
}

fn modulo(operand: RawBsonRef<'_>) -> Result<Test, Error> {
    let RawBsonRef::Array(array) = operand else {
        return Err(Error::bad_value("malformed mod, needs to be an array"));
    };
    let values: Vec<_> = array_values(array).take(3).collect();
    let (divisor, remainder) = match values.as_slice() {
        [] | [_] => return Err(Error::bad_value("malformed mod, not enough elements")),
        [divisor, remainder] => (
            mod_operand(*divisor, "divisor")?,
            mod_operand(*remainder, "remainder")?,
        ),
        _ => return Err(Error::bad_value("malformed mod, too many elements")),
    };
    match divisor {
        0 => Err(Error::bad_value("divisor cannot be 0")),
        _ => Ok(Test::Mod { divisor, remainder }),
    }
}

fn mod_operand(value: RawBsonRef<'_>, role: &str) -> Result<i64, Error> {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    let Some(number) = Number::of(value) else {
        return Err(Error::bad_value(format!(
            "malformed mod, {role} not a number"
        )));
    };
    match number {
        Number::Integer(integer) => Ok(integer),
        other if other.to_f64().is_finite() && (-LIMIT..LIMIT).contains(&other.to_f64()) => {
            Ok(other.to_i64_truncated())
        }
        other if other.to_f64().is_finite() => {
            Err(mod_error(role, "Out of bounds coercing to integral value"))
        }
        _ => Err(mod_error(role, "Unable to coerce NaN/Inf to integral type")),
    }
}

fn mod_error(role: &str, why: &str) -> Error {
    Error::bad_value(format!(
        "malformed mod, {role} value is invalid :: caused by :: {why}"
    ))
}

fn size(operand: RawBsonRef<'_>) -> Result<Test, Error> {
    let fail = |why: &str| {
        Error::bad_value(format!(
            "Failed to parse $size. {why}: {}",
            display::field("$size", operand)
        ))
    };
    let number = Number::of(operand).ok_or_else(|| fail("Expected a number in"))?;
    let size = number
        .to_i64_exact()
        .ok_or_else(|| fail("Expected an integer"))?;
    match size {
        ..0 => Err(fail("Expected a non-negative number in")),
        _ => Ok(Test::Size(size.unsigned_abs())),
    }
}

fn elem_match(
    parser: &mut Parser<'_>,
    path: &Path,
    operand: RawBsonRef<'_>,
) -> Result<Node, Error> {
    let RawBsonRef::Document(inner) = operand else {
        return Err(Error::bad_value("$elemMatch needs an Object"));
    };
    Ok(leaf(path, elem_match_test(parser, inner)?))
}

/// Parses the condition of an `$elemMatch` to a test.
pub(super) fn elem_match_test(parser: &mut Parser<'_>, inner: &RawDocument) -> Result<Test, Error> {
    Ok(match tests_the_element(inner) {
        true => Test::ElemMatchValue(Box::new(parser.element_test(inner)?)),
        false => Test::ElemMatchObject(Box::new(parser.element_query(inner)?)),
    })
}

/// Returns whether `inner` holds operators on the element itself. If its first name is a field or a name such as `$and`
/// or `$ref`, `inner` is a query instead.
fn tests_the_element(inner: &RawDocument) -> bool {
    elements(inner)
        .next()
        .is_some_and(|first| first.key.starts_with('$') && !is_top_level_operator(first.key))
}

fn all(parser: &mut Parser<'_>, path: &Path, operand: RawBsonRef<'_>) -> Result<Node, Error> {
    let RawBsonRef::Array(array) = operand else {
        return Err(Error::bad_value("$all needs an array"));
    };
    let nodes = match array_values(array).next() {
        None => return Ok(Node::AlwaysFalse),
        Some(first) if elem_match_of(first).is_some() => all_elem_matches(parser, path, array)?,
        Some(_) => array_values(array)
            .map(|value| all_entry(parser, path, value))
            .collect::<Result<_, _>>()?,
    };
    Ok(and(nodes))
}

fn all_elem_matches(
    parser: &mut Parser<'_>,
    path: &Path,
    array: &RawArray,
) -> Result<Vec<Node>, Error> {
    array_values(array)
        .map(|value| match elem_match_of(value) {
            Some(inner) => {
                parser.hold_leaf(path.as_str(), RawBsonRef::Null)?;
                elem_match(parser, path, inner)
            }
            None => Err(Error::bad_value("$all/$elemMatch has to be consistent")),
        })
        .collect()
}

fn elem_match_of(value: RawBsonRef<'_>) -> Option<RawBsonRef<'_>> {
    let first = elements(value.as_document()?).next()?;
    (first.key == "$elemMatch").then(|| first.value())
}

fn all_entry(parser: &Parser<'_>, path: &Path, value: RawBsonRef<'_>) -> Result<Node, Error> {
    parser.hold_leaf(path.as_str(), value)?;
    match value {
        RawBsonRef::RegularExpression(regex) => Ok(leaf(
            path,
            Test::Regex(Regex::of_value(regex, parser.limits)?),
        )),
        RawBsonRef::Document(inner) if is_operator_document(inner) => {
            Err(Error::bad_value("no $ expressions in $all"))
        }
        value => equality(path, value),
    }
}

/// Parses a bit test. Returns an error for any other operator, which is unknown or not supported.
fn bits(path: &Path, name: &str, operand: RawBsonRef<'_>) -> Result<Node, Error> {
    let want = match name {
        "$bitsAllSet" => BitWant::AllSet,
        "$bitsAllClear" => BitWant::AllClear,
        "$bitsAnySet" => BitWant::AnySet,
        "$bitsAnyClear" => BitWant::AnyClear,
        "$geoWithin" | "$within" | "$geoIntersects" | "$near" | "$nearSphere" | "$geoNear" => {
            return Err(unsupported(name));
        }
        "$where" => return Err(Error::bad_value("$where cannot be applied to a field")),
        _ => return Err(Error::bad_value(format!("unknown operator: {name}"))),
    };
    Ok(leaf(path, Test::Bits(BitTest::parse(name, want, operand)?)))
}
