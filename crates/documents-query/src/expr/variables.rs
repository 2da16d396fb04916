//! The variables of a command's `let`, computed before the first document is read.

use std::collections::HashMap;
use std::sync::Arc;

use bson::DateTime;
use bson::raw::{RawBson, RawDocument};

use super::iterate::check_name;
use super::{Expression, Scope, Value, Variable};
use crate::element::elements;
use crate::error::{Code, Error};
use crate::limits::{CommandLimits, Limits, memory_bytes};
use crate::sort::ALLOCATION_BYTES;

/// Bytes of a variable besides its name and its value, in a table that is half full.
const VARIABLE_BYTES: usize = 2 * size_of::<(Box<str>, Variable)>() + 2 * ALLOCATION_BYTES;

/// The values that a command's expressions refer to as `$$name`. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Variables {
    bound: Arc<HashMap<Box<str>, Variable>>,
    /// Holds the memory of the values.
    limits: Option<Arc<CommandLimits>>,
}

impl Variables {
    /// Evaluates the definitions of `let`. Each definition can refer to the definitions before it.
    ///
    /// # Errors
    /// Those of invalid names and expressions; 4890500 for an expression that reads a document.
    pub fn parse(
        definitions: &RawDocument,
        now: DateTime,
        limits: &Limits,
    ) -> Result<Variables, Error> {
        let mut limits = limits.clone();
        limits.variables.limits = Some(limits.command.clone());
        for element in elements(definitions) {
            check_name(element.key)?;
            let expression = Expression::parse(element.value(), &limits)?;
            let variable = constant(&expression, now)?;
            let value_bytes = match &variable {
                Variable::Constant(value) => memory_bytes(value.as_raw_bson_ref()),
                _ => 0,
            };
            limits.hold(VARIABLE_BYTES + element.key.len() + value_bytes)?;
            let bound = Arc::make_mut(&mut limits.variables.bound);
            bound.insert(element.key.into(), variable);
        }
        Ok(limits.variables)
    }

    /// Returns the variable called `name`: the last one if several have this name.
    pub(super) fn get(&self, name: &str) -> Option<&Variable> {
        self.bound.get(name)
    }
}

fn constant(expression: &Expression, now: DateTime) -> Result<Variable, Error> {
    if expression.fields().is_none_or(|fields| !fields.is_empty()) {
        let message = "Command let Expression tried to access a field, but this is not allowed because Command let \
                       expressions run before the query examines any documents.";
        return Err(Error::new(Code::Location4890500, message));
    }
    let nothing = RawDocument::from_bytes(b"\x05\0\0\0\0").expect("an empty document");
    Ok(match expression.evaluate(&Scope::new(nothing, now))? {
        Value::Missing => Variable::Remove,
        value => Variable::Constant(Arc::<RawBson>::new(value.into_owned())),
    })
}
