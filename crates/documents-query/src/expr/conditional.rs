//! `$cond`, `$switch`, `$ifNull`.

use bson::raw::RawBsonRef;

use super::parse::{Fields, Parser};
use super::{Node, Scope, Value};
use crate::element::array_values;
use crate::error::{Code, Error};

/// A parsed `$cond`.
#[derive(Debug, Clone)]
pub(crate) struct Cond {
    condition: Node,
    then: Node,
    otherwise: Node,
}

impl Cond {
    pub fn parse(parser: &mut Parser<'_>, operand: RawBsonRef<'_>) -> Result<Cond, Error> {
        let [condition, then, otherwise] = match operand {
            RawBsonRef::Document(_) => Cond::named(operand)?,
            other => Cond::positional(other)?,
        };
        Ok(Cond {
            condition: parser.expression(condition)?,
            then: parser.expression(then)?,
            otherwise: parser.expression(otherwise)?,
        })
    }

    fn named(operand: RawBsonRef<'_>) -> Result<[RawBsonRef<'_>; 3], Error> {
        let unknown = |name: &str| {
            Error::new(
                Code::Location17083,
                format!("Unrecognized parameter to $cond: {name}"),
            )
        };
        let fields = Fields::read(operand, &["if", "then", "else"], wrong_count(1), unknown)?;
        Ok([
            fields.need("if", Code::Location17080, "$cond")?,
            fields.need("then", Code::Location17081, "$cond")?,
            fields.need("else", Code::Location17082, "$cond")?,
        ])
    }

    fn positional(operand: RawBsonRef<'_>) -> Result<[RawBsonRef<'_>; 3], Error> {
        let RawBsonRef::Array(array) = operand else {
            return Err(wrong_count(1));
        };
        let values: Vec<_> = array_values(array).take(4).collect();
        values
            .as_slice()
            .try_into()
            .map_err(|_| wrong_count(array_values(array).count()))
    }

    pub fn evaluate<'s>(&'s self, scope: &Scope<'s>) -> Result<Value<'s>, Error> {
        match self.condition.evaluate(scope)?.is_true() {
            true => self.then.evaluate(scope),
            false => self.otherwise.evaluate(scope),
        }
    }

    pub fn children(&self) -> Vec<&Node> {
        vec![&self.condition, &self.then, &self.otherwise]
    }
}

fn wrong_count(count: usize) -> Error {
    Error::new(
        Code::Location16020,
        format!("Expression $cond takes exactly 3 arguments. {count} were passed in."),
    )
}

/// A parsed `$switch`.
#[derive(Debug, Clone)]
pub(crate) struct Switch {
    branches: Vec<(Node, Node)>,
    default: Option<Node>,
}

impl Switch {
    pub fn parse(parser: &mut Parser<'_>, operand: RawBsonRef<'_>) -> Result<Switch, Error> {
        let kind = crate::element::type_name(operand.element_type());
        let not_object = Error::new(
            Code::Location40060,
            format!("$switch requires an object as an argument, found: {kind}"),
        );
        let unknown = |name: &str| {
            Error::new(
                Code::Location40067,
                format!("$switch found an unknown argument: {name}"),
            )
        };
        let fields = Fields::read(operand, &["branches", "default"], not_object, unknown)?;
        let branches = match fields.get("branches") {
            Some(RawBsonRef::Array(array)) => array_values(array)
                .map(|branch| Switch::branch(parser, branch))
                .collect::<Result<Vec<_>, _>>()?,
            Some(other) => {
                let kind = crate::element::type_name(other.element_type());
                return Err(Error::new(
                    Code::Location40061,
                    format!("$switch expected an array for 'branches', found: {kind}"),
                ));
            }
            None => Vec::new(),
        };
        if branches.is_empty() {
            return Err(Error::new(
                Code::Location40068,
                "$switch requires at least one branch.",
            ));
        }
        let default = fields
            .get("default")
            .map(|value| parser.expression(value))
            .transpose()?;
        Ok(Switch { branches, default })
    }

    fn branch(parser: &mut Parser<'_>, branch: RawBsonRef<'_>) -> Result<(Node, Node), Error> {
        let kind = crate::element::type_name(branch.element_type());
        let not_object = Error::new(
            Code::Location40062,
            format!("$switch expected each branch to be an object, found: {kind}"),
        );
        let unknown = |name: &str| {
            Error::new(
                Code::Location40063,
                format!("$switch found an unknown argument to a branch: {name}"),
            )
        };
        let fields = Fields::read(branch, &["case", "then"], not_object, unknown)?;
        let need = |name: &str, code| {
            fields.get(name).ok_or_else(|| {
                Error::new(
                    code,
                    format!("$switch requires each branch have a '{name}' expression"),
                )
            })
        };
        Ok((
            parser.expression(need("case", Code::Location40064)?)?,
            parser.expression(need("then", Code::Location40065)?)?,
        ))
    }

    pub fn evaluate<'s>(&'s self, scope: &Scope<'s>) -> Result<Value<'s>, Error> {
        for (case, then) in &self.branches {
            if case.evaluate(scope)?.is_true() {
                return then.evaluate(scope);
            }
        }
        match &self.default {
            Some(default) => default.evaluate(scope),
            None => Err(Error::new(
                Code::Location40066,
                "$switch could not find a matching branch for an input, and no default was specified.",
            )),
        }
    }

    pub fn children(&self) -> Vec<&Node> {
        self.branches
            .iter()
            .flat_map(|(case, then)| [case, then])
            .chain(&self.default)
            .collect()
    }
}

/// Returns the first operand that is neither null nor missing, or the last operand if there is no such operand.
pub(super) fn if_null<'s>(nodes: &'s [Node], scope: &Scope<'s>) -> Result<Value<'s>, Error> {
    let mut last = Value::NULL;
    for node in nodes {
        last = node.evaluate(scope)?;
        if !last.is_nullish() {
            break;
        }
    }
    Ok(last)
}
