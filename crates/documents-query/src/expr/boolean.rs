//! Boolean operators and comparisons.

use std::cmp::Ordering;

use super::function::{Function, exactly};
use super::{Node, Scope, Value};
use crate::compare::{class, compare};
use crate::error::Error;

/// `$and` and `$or`. Operands are evaluated in order until the result is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Logic {
    And,
    Or,
}

impl Logic {
    pub fn evaluate<'s>(self, nodes: &'s [Node], scope: &Scope<'s>) -> Result<Value<'s>, Error> {
        let decides = self == Logic::Or;
        for node in nodes {
            if node.evaluate(scope)?.is_true() == decides {
                return Ok(decides.into());
            }
        }
        Ok((!decides).into())
    }
}

pub(super) const FUNCTIONS: &[Function] = &[
    exactly("$not", 1, |operands| Ok((!operands[0].is_true()).into())),
    exactly("$cmp", 2, |operands| Ok((order(operands) as i32).into())),
    exactly("$eq", 2, |operands| Ok(order(operands).is_eq().into())),
    exactly("$ne", 2, |operands| Ok(order(operands).is_ne().into())),
    exactly("$lt", 2, |operands| Ok(order(operands).is_lt().into())),
    exactly("$lte", 2, |operands| Ok(order(operands).is_le().into())),
    exactly("$gt", 2, |operands| Ok(order(operands).is_gt().into())),
    exactly("$gte", 2, |operands| Ok(order(operands).is_ge().into())),
];

fn order(operands: &[Value<'_>]) -> Ordering {
    compare_values(&operands[0], &operands[1])
}

/// Compares values across types. A missing value sorts like undefined, before null.
pub(crate) fn compare_values(a: &Value<'_>, b: &Value<'_>) -> Ordering {
    match (a.get(), b.get()) {
        (None, None) => Ordering::Equal,
        (None, Some(b)) => missing_before(b),
        (Some(a), None) => missing_before(a).reverse(),
        (Some(a), Some(b)) => compare(a, b),
    }
}

fn missing_before(value: bson::raw::RawBsonRef<'_>) -> Ordering {
    crate::compare::Class::Undefined
        .cmp(&class(value))
        .then(Ordering::Less)
}
