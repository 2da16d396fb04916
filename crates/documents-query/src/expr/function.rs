//! The table of operators that are functions of evaluated operands.

use super::Value;
use super::{array, boolean, convert, date, math, object, set, string};
use crate::error::{Code, Error};

/// The body of a function. Its argument is a slice with the values of all operands.
pub(crate) type Body = for<'a, 'b> fn(&'b [Value<'a>]) -> Result<Value<'a>, Error>;

/// An operator that is a function of evaluated operands.
pub(crate) struct Function {
    pub name: &'static str,
    pub min: usize,
    pub max: usize,
    /// The names of the operands, if the function takes its operands by name.
    pub named: Option<&'static [&'static str]>,
    pub body: Body,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Declares a function with a fixed number of operands.
pub(super) const fn exactly(name: &'static str, count: usize, body: Body) -> Function {
    Function {
        name,
        min: count,
        max: count,
        named: None,
        body,
    }
}

/// Declares a function with a bounded number of operands.
pub(super) const fn between(name: &'static str, min: usize, max: usize, body: Body) -> Function {
    Function {
        name,
        min,
        max,
        named: None,
        body,
    }
}

/// Declares a function with any number of operands.
pub(super) const fn any(name: &'static str, body: Body) -> Function {
    Function {
        name,
        min: 0,
        max: usize::MAX,
        named: None,
        body,
    }
}

/// Declares a function with named operands.
pub(super) const fn named(
    name: &'static str,
    names: &'static [&'static str],
    body: Body,
) -> Function {
    Function {
        name,
        min: names.len(),
        max: names.len(),
        named: Some(names),
        body,
    }
}

impl Function {
    pub fn call<'a>(&self, operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
        (self.body)(operands)
    }

    /// Checks the number of operands.
    ///
    /// # Errors
    /// 16020 and 28667 for a wrong number of operands.
    pub fn check_count(&self, count: usize) -> Result<(), Error> {
        if (self.min..=self.max).contains(&count) {
            return Ok(());
        }
        let Function { name, min, max, .. } = self;
        match min == max {
            true => {
                let message = format!(
                    "Expression {name} takes exactly {min} arguments. {count} were passed in."
                );
                Err(Error::new(Code::Location16020, message))
            }
            false => {
                let message = format!(
                    "Expression {name} takes at least {min} arguments, and at most {max}, but {count} were passed in."
                );
                Err(Error::new(Code::Location28667, message))
            }
        }
    }
}

/// Returns the function called `name`.
pub(crate) fn find(name: &str) -> Option<&'static Function> {
    const TABLES: [&[Function]; 8] = [
        math::FUNCTIONS,
        boolean::FUNCTIONS,
        string::FUNCTIONS,
        array::FUNCTIONS,
        set::FUNCTIONS,
        convert::FUNCTIONS,
        date::FUNCTIONS,
        object::FUNCTIONS,
    ];
    TABLES
        .iter()
        .flat_map(|table| table.iter())
        .find(|function| function.name == name)
}
