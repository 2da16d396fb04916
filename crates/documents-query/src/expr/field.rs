//! `$getField`, `$setField`, `$unsetField`: fields with names that no path can express, such as `a.b` and `$a`.

use bson::raw::{RawBson, RawBsonRef};

use super::function::{Function, exactly};
use super::parse::{Fields, Parser};
use super::{Node, Value, Variable};
use crate::element::first_is_operator;
use crate::element::{Writer, elements, get};
use crate::error::{Code, Error};

static GET: Function = exactly("$getField", 2, get_field);
static SET: Function = exactly("$setField", 3, set_field);

/// Parses `$getField`. An operand that is not an object is the name of a field of the current document.
pub(super) fn parse_get(parser: &mut Parser<'_>, operand: RawBsonRef<'_>) -> Result<Node, Error> {
    let nodes = match operand {
        RawBsonRef::Document(document) if !first_is_operator(document) => {
            let fields = arguments("$getField", &["field", "input"], operand)?;
            let field = need(&fields, "field", "$getField", Code::Location3041702)?;
            let input = need(&fields, "input", "$getField", Code::Location3041703)?;
            vec![parser.expression(field)?, parser.expression(input)?]
        }
        name => vec![parser.expression(name)?, variable(Variable::Root)],
    };
    Ok(Node::Call(&GET, nodes))
}

/// Parses `$setField`.
pub(super) fn parse_set(parser: &mut Parser<'_>, operand: RawBsonRef<'_>) -> Result<Node, Error> {
    let fields = arguments("$setField", &["field", "input", "value"], operand)?;
    let (field, input) = target(parser, &fields, "$setField")?;
    let value = need(&fields, "value", "$setField", Code::Location4161103)?;
    let value = parser.expression(value)?;
    Ok(Node::Call(&SET, vec![field, input, value]))
}

/// Parses `$unsetField` as `$setField` with a missing value.
pub(super) fn parse_unset(parser: &mut Parser<'_>, operand: RawBsonRef<'_>) -> Result<Node, Error> {
    let fields = arguments("$unsetField", &["field", "input"], operand)?;
    let (field, input) = target(parser, &fields, "$unsetField")?;
    Ok(Node::Call(
        &SET,
        vec![field, input, variable(Variable::Remove)],
    ))
}

fn variable(variable: Variable) -> Node {
    Node::Variable(variable, Box::default())
}

fn arguments<'a>(
    operator: &str,
    names: &'static [&'static str],
    operand: RawBsonRef<'a>,
) -> Result<Fields<'a>, Error> {
    let unknown = match operator {
        "$getField" => Code::Location3041701,
        _ => Code::Location4161101,
    };
    let message = format!("{operator} only supports an object as its argument");
    let not_object = Error::new(Code::Location4161100, message);
    Fields::read(operand, names, not_object, |name| {
        Error::new(
            unknown,
            format!("{operator} found an unknown argument: {name}"),
        )
    })
}

fn need<'a>(
    fields: &Fields<'a>,
    name: &str,
    operator: &str,
    code: Code,
) -> Result<RawBsonRef<'a>, Error> {
    let message = || format!("{operator} requires '{name}' to be specified");
    fields.get(name).ok_or_else(|| Error::new(code, message()))
}

/// Parses two operands: the name of the field to set, and the document that gets the field. The name must be a
/// constant.
fn target(
    parser: &mut Parser<'_>,
    fields: &Fields<'_>,
    operator: &str,
) -> Result<(Node, Node), Error> {
    let field = need(fields, "field", operator, Code::Location4161102)?;
    let input = need(fields, "input", operator, Code::Location4161109)?;
    let field = parser.expression(field)?;
    let (code, message) = match &field {
        Node::Literal(RawBson::String(name)) if name.contains('\0') => (
            Code::Location9534700,
            format!("{operator} requires 'field' to not contain an embedded null byte"),
        ),
        Node::Literal(RawBson::String(_)) => return Ok((field, parser.expression(input)?)),
        Node::Literal(other) => (
            Code::Location4161107,
            not_text(operator, other.as_raw_bson_ref()),
        ),
        Node::Field(path) => (
            Code::Location4161108,
            format!(
                "A field path reference which is not allowed in this context. Did you mean {{$literal: '${}'}}?",
                path.join(".")
            ),
        ),
        _ => (
            Code::Location4161106,
            format!(
                "{operator} requires 'field' to evaluate to a constant, but got a non-constant argument"
            ),
        ),
    };
    Err(Error::new(code, message))
}

fn not_text(operator: &str, found: RawBsonRef<'_>) -> String {
    let kind = Value::Ref(found).type_name();
    format!("{operator} requires 'field' to evaluate to type String, but got {kind}")
}

fn get_field<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let Some(name) = operands[0].as_text() else {
        let kind = operands[0].type_name();
        let message =
            format!("$getField requires 'field' to evaluate to type String, but got {kind}");
        return Err(Error::new(Code::Location3041704, message));
    };
    Ok(match operands[1].get() {
        Some(RawBsonRef::Document(document)) => {
            Value::from_option(get(document, name)).into_static()
        }
        Some(RawBsonRef::Null | RawBsonRef::Undefined) => Value::NULL,
        _ => Value::Missing,
    })
}

fn set_field<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let (name, input, value) = (&operands[0], &operands[1], &operands[2]);
    if input.is_nullish() {
        return Ok(Value::NULL);
    }
    let (Some(name), Some(document)) = (name.as_text(), input.as_document()) else {
        let message = "$setField requires 'input' to evaluate to type Object";
        return Err(Error::new(Code::Location4161105, message));
    };
    let mut writer = Writer::new();
    let mut set = value.get();
    for element in elements(document) {
        match element.key == name {
            false => writer.element_as(element.key, &element),
            true => set
                .take()
                .into_iter()
                .for_each(|value| writer.value(name, value)),
        }
    }
    set.into_iter().for_each(|value| writer.value(name, value));
    Ok(Value::Owned(RawBson::Document(writer.finish())))
}
