//! `$let`, `$map`, `$filter`, `$reduce`: expressions that bind variables.

use std::sync::Arc;

use bson::raw::{RawArray, RawBsonRef};
use forebay_cancel::SharedStop;

use super::parse::{Fields, Parser};
use super::value::ArrayWriter;
use super::{Node, Scope, Value, evaluation};
use crate::element::{array_values, elements};
use crate::error::{Code, Error};

/// Parses an operator's parameters. `not_object` is the error code for an operand that is not an object, and `unknown`
/// the code for an unknown parameter.
fn parameters<'a>(
    operator: &str,
    names: &'static [&'static str],
    operand: RawBsonRef<'a>,
    (not_object, unknown): (Code, Code),
) -> Result<Fields<'a>, Error> {
    let message = format!("{operator} only supports an object as its argument");
    Fields::read(operand, names, Error::new(not_object, message), |name| {
        let message = format!("Unrecognized parameter to {operator}: {name}");
        Error::new(unknown, message)
    })
}

/// Returns the array that an operator iterates over, or `None` for null.
fn input_array<'v>(
    operator: &str,
    input: &'v Value<'_>,
    not_array: Code,
) -> Result<Option<&'v RawArray>, Error> {
    match input.as_array() {
        None if !input.is_nullish() => {
            let kind = input.type_name();
            let message = format!("input to {operator} must be an array not {kind}");
            Err(Error::new(not_array, message))
        }
        array => Ok(array),
    }
}

/// A parsed `$let`.
#[derive(Debug, Clone)]
pub(crate) struct Let {
    variables: Vec<Node>,
    body: Node,
}

impl Let {
    pub fn parse(parser: &mut Parser<'_>, operand: RawBsonRef<'_>) -> Result<Let, Error> {
        let codes = (Code::Location16874, Code::Location16875);
        let fields = parameters("$let", &["vars", "in"], operand, codes)?;
        let RawBsonRef::Document(vars) = fields.need("vars", Code::Location16876, "$let")? else {
            return Err(Error::new(
                Code::Location10065,
                "invalid parameter: expected an object (vars)",
            ));
        };
        let body = fields.need("in", Code::Location16877, "$let")?;
        let (mut names, mut variables) = (Vec::new(), Vec::new());
        for element in elements(vars) {
            check_name(element.key)?;
            names.push(element.key);
            variables.push(parser.expression(element.value())?);
        }
        let body = parser.expression_with(&names, body)?;
        Ok(Let { variables, body })
    }

    pub fn evaluate<'s>(&'s self, scope: &Scope<'s>) -> Result<Value<'s>, Error> {
        let mut inner = *scope;
        let mut values = Vec::with_capacity(self.variables.len());
        for node in &self.variables {
            let value = node.evaluate(&inner)?;
            inner = inner.holding(value.bytes())?;
            values.push(value);
        }
        evaluate_with(&inner, &values, &self.body, |value| {
            inner.into_static(value)
        })
    }

    pub fn children(&self) -> Vec<&Node> {
        self.variables.iter().chain([&self.body]).collect()
    }
}

/// Evaluates `body` with `variables` bound, and passes its value to `take`.
fn evaluate_with<T>(
    scope: &Scope<'_>,
    variables: &[Value<'_>],
    body: &Node,
    take: impl FnOnce(Value<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let frame = scope.frame(variables);
    take(body.evaluate(&scope.with(&frame))?)
}

pub(super) fn check_name(name: &str) -> Result<(), Error> {
    let valid = name.starts_with(|first: char| first.is_ascii_lowercase() || !first.is_ascii())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || !c.is_ascii());
    match (name, valid) {
        ("", _) => Err(Error::parse("empty variable names are not allowed")),
        ("CURRENT", _) | (_, true) => Ok(()),
        _ => Err(Error::parse(format!(
            "'{name}' starts with an invalid character for a user variable name"
        ))),
    }
}

fn variable_name(value: Option<RawBsonRef<'_>>, default: &str) -> Result<Box<str>, Error> {
    match value {
        None => Ok(default.into()),
        Some(RawBsonRef::String(name)) => check_name(name).map(|()| name.into()),
        Some(_) => Err(Error::parse("'as' must be a string")),
    }
}

/// A parsed `$map`.
#[derive(Debug, Clone)]
pub(crate) struct MapArray {
    input: Node,
    body: Node,
    stop: Arc<SharedStop>,
}

impl MapArray {
    pub fn parse(parser: &mut Parser<'_>, operand: RawBsonRef<'_>) -> Result<MapArray, Error> {
        let codes = (Code::Location16878, Code::Location16879);
        let fields = parameters("$map", &["input", "as", "in"], operand, codes)?;
        let input = parser.expression(fields.need("input", Code::Location16880, "$map")?)?;
        let name = variable_name(fields.get("as"), "this")?;
        let body = fields.need("in", Code::Location16882, "$map")?;
        let body = parser.expression_with(&[&name], body)?;
        Ok(MapArray {
            input,
            body,
            stop: parser.limits().stop().clone(),
        })
    }

    pub fn evaluate<'s>(&'s self, scope: &Scope<'s>) -> Result<Value<'s>, Error> {
        let input = self.input.evaluate(scope)?;
        let Some(array) = input_array("$map", &input, Code::Location16883)? else {
            return Ok(Value::NULL);
        };
        let scope = scope.holding(input.bytes())?;
        let mut made = ArrayWriter::new();
        for element in array_values(array) {
            self.stop.check()?;
            let scope = scope.holding(made.bytes())?;
            evaluate_with(&scope, &[Value::Ref(element)], &self.body, |value| {
                evaluation::set_held_bytes(scope.held_bytes() - made.bytes() + value.bytes());
                made.push(value.or_null())
            })?;
        }
        scope.accept(Value::Owned(made.finish()))
    }

    pub fn children(&self) -> Vec<&Node> {
        vec![&self.input, &self.body]
    }
}

/// A parsed `$filter`.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    input: Node,
    condition: Node,
    limit: Option<Node>,
    stop: Arc<SharedStop>,
}

impl Filter {
    pub fn parse(parser: &mut Parser<'_>, operand: RawBsonRef<'_>) -> Result<Filter, Error> {
        let names = &["input", "as", "cond", "limit"];
        let codes = (Code::Location28646, Code::Location28647);
        let fields = parameters("$filter", names, operand, codes)?;
        let input = parser.expression(fields.need("input", Code::Location28648, "$filter")?)?;
        let name = variable_name(fields.get("as"), "this")?;
        let condition = parser.expression_with(
            &[&name],
            fields.need("cond", Code::Location28650, "$filter")?,
        )?;
        let limit = fields
            .get("limit")
            .map(|limit| parser.expression(limit))
            .transpose()?;
        Ok(Filter {
            input,
            condition,
            limit,
            stop: parser.limits().stop().clone(),
        })
    }

    pub fn evaluate<'s>(&'s self, scope: &Scope<'s>) -> Result<Value<'s>, Error> {
        let input = self.input.evaluate(scope)?;
        let Some(array) = input_array("$filter", &input, Code::Location28651)? else {
            return Ok(Value::NULL);
        };
        let limit = self.limit(scope)?;
        let scope = scope.holding(input.bytes())?;
        let mut kept = ArrayWriter::new();
        for element in array_values(array) {
            if kept.count() >= limit {
                break;
            }
            self.stop.check()?;
            let scope = scope.holding(kept.bytes())?;
            let condition = |value: Value<'_>| Ok(value.is_true());
            if evaluate_with(&scope, &[Value::Ref(element)], &self.condition, condition)? {
                evaluation::set_held_bytes(scope.held_bytes() - kept.bytes());
                kept.push(element)?;
            }
        }
        Ok(Value::Owned(kept.finish()))
    }

    fn limit(&self, scope: &Scope<'_>) -> Result<usize, Error> {
        let Some(node) = &self.limit else {
            return Ok(usize::MAX);
        };
        let value = node.evaluate(scope)?;
        if value.is_nullish() {
            return Ok(usize::MAX);
        }
        let number = value
            .get()
            .and_then(crate::number::Number::of)
            .and_then(|number| number.to_i64_exact());
        match number.and_then(|number| i32::try_from(number).ok()) {
            Some(limit @ 1..) => Ok(limit as usize),
            Some(limit) => Err(Error::new(
                Code::Location327392,
                format!("$filter: limit must be greater than 0, but was {limit}"),
            )),
            None => Err(Error::new(
                Code::Location327391,
                "$filter: limit must be represented as a 32-bit integral value",
            )),
        }
    }

    pub fn children(&self) -> Vec<&Node> {
        [&self.input, &self.condition]
            .into_iter()
            .chain(&self.limit)
            .collect()
    }
}

/// A parsed `$reduce`.
#[derive(Debug, Clone)]
pub(crate) struct Reduce {
    input: Node,
    initial: Node,
    body: Node,
    stop: Arc<SharedStop>,
}

impl Reduce {
    pub fn parse(parser: &mut Parser<'_>, operand: RawBsonRef<'_>) -> Result<Reduce, Error> {
        let kind = crate::element::type_name(operand.element_type());
        let not_object = Error::new(
            Code::Location40075,
            format!("$reduce requires an object as an argument, found: {kind}"),
        );
        let unknown = |name: &str| {
            Error::new(
                Code::Location40076,
                format!("$reduce found an unknown argument: {name}"),
            )
        };
        let fields = Fields::read(
            operand,
            &["input", "initialValue", "in"],
            not_object,
            unknown,
        )?;
        let need = |name: &str, code| {
            fields.get(name).ok_or_else(|| {
                Error::new(code, format!("$reduce requires '{name}' to be specified"))
            })
        };
        Ok(Reduce {
            input: parser.expression(need("input", Code::Location40077)?)?,
            initial: parser.expression(need("initialValue", Code::Location40078)?)?,
            body: parser.expression_with(&["this", "value"], need("in", Code::Location40079)?)?,
            stop: parser.limits().stop().clone(),
        })
    }

    pub fn evaluate<'s>(&'s self, scope: &Scope<'s>) -> Result<Value<'s>, Error> {
        let input = self.input.evaluate(scope)?;
        if input.is_nullish() {
            return Ok(Value::NULL);
        }
        let Some(array) = input.as_array() else {
            let shown = crate::display::value(input.or_null());
            return Err(Error::new(
                Code::Location40080,
                format!("$reduce requires that 'input' be an array, found: {shown}"),
            ));
        };
        let scope = scope.holding(input.bytes())?;
        let mut total = scope.into_static(self.initial.evaluate(&scope)?)?;
        for element in array_values(array) {
            self.stop.check()?;
            let scope = scope.holding(total.bytes())?;
            let variables = [Value::Ref(element), total];
            total = evaluate_with(&scope, &variables, &self.body, |value| {
                scope.into_static(value)
            })?;
        }
        Ok(total)
    }

    pub fn children(&self) -> Vec<&Node> {
        vec![&self.input, &self.initial, &self.body]
    }
}
