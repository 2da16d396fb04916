//! Parsing BSON to an expression tree.

use std::collections::HashMap;

use bson::raw::{RawBsonRef, RawDocument};

use super::boolean::Logic;
use super::conditional::{Cond, Switch};
use super::iterate::{Filter, Let, MapArray, Reduce};
use super::regex::RegexMatch;
use super::{Node, Variable};
use super::{field, function};
use crate::display;
use crate::element::{Element, array_values, elements, first_is_operator};
use crate::error::{Code, Error};
use crate::limits::{Limits, heap_bytes, path_bytes};
use crate::sort::ALLOCATION_BYTES;

/// Bytes of a node in a list. The list's capacity is on average 1.5 times its length.
const NODE_BYTES: usize = 3 * size_of::<Node>() / 2;

/// Parses expressions. Limits their nesting and tracks the variables in scope.
pub(crate) struct Parser<'l> {
    limits: &'l Limits,
    depth: usize,
    /// For each name, the indexes of the variables in scope that have this name, the innermost last. The index of a
    /// variable is the count of variables in scope that were bound before it.
    variables: HashMap<String, Vec<usize>>,
    variable_count: usize,
}

impl<'l> Parser<'l> {
    pub fn new(limits: &'l Limits) -> Parser<'l> {
        Parser {
            limits,
            depth: 0,
            variables: HashMap::new(),
            variable_count: 0,
        }
    }

    /// Returns the limits of parsing.
    pub fn limits(&self) -> &Limits {
        self.limits
    }

    /// Parses any expression: a field path, a variable, a literal, an array, an object or an operator.
    pub fn expression(&mut self, value: RawBsonRef<'_>) -> Result<Node, Error> {
        self.depth += 1;
        if self.depth > self.limits.expression_depth_max {
            let message = format!(
                "expression nests deeper than {}",
                self.limits.expression_depth_max
            );
            return Err(Error::bad_value(message));
        }
        self.hold(value)?;
        let node = match value {
            RawBsonRef::String(text) => self.text(text)?,
            RawBsonRef::Document(document) => self.document(document)?,
            RawBsonRef::Array(array) => Node::Array(
                array_values(array)
                    .map(|entry| self.expression(entry))
                    .collect::<Result<_, _>>()?,
            ),
            literal => Node::Literal(literal.into()),
        };
        self.depth -= 1;
        Ok(node)
    }

    /// Reserves memory for the node of an expression.
    fn hold(&self, value: RawBsonRef<'_>) -> Result<(), Error> {
        let bytes = match value {
            RawBsonRef::String(text) if text.starts_with('$') => path_bytes(text),
            RawBsonRef::Document(_) | RawBsonRef::Array(_) => ALLOCATION_BYTES,
            literal => heap_bytes(literal),
        };
        self.limits.hold(NODE_BYTES + bytes)
    }

    /// Parses an expression with further variables in scope. The evaluation must bind the variables in the order of
    /// `variables`.
    pub fn expression_with(
        &mut self,
        variables: &[&str],
        value: RawBsonRef<'_>,
    ) -> Result<Node, Error> {
        for name in variables {
            let bound = self.variables.entry((*name).to_owned()).or_default();
            bound.push(self.variable_count);
            self.variable_count += 1;
        }
        let node = self.expression(value);
        self.variable_count -= variables.len();
        for name in variables {
            self.variables.get_mut(*name).and_then(Vec::pop);
        }
        node
    }

    /// Returns the innermost variable with this name that an enclosing operator binds.
    fn bound_by_operator(&self, name: &str) -> Option<Variable> {
        let index = self.variables.get(name)?.last()?;
        Some(Variable::User(*index))
    }

    fn text(&self, text: &str) -> Result<Node, Error> {
        match text.strip_prefix('$') {
            None => Ok(Node::Literal(RawBsonRef::String(text).into())),
            Some(rest) => match rest.strip_prefix('$') {
                Some(variable) => self.variable(variable),
                None => Ok(Node::Field(components(rest)?)),
            },
        }
    }

    fn variable(&self, text: &str) -> Result<Node, Error> {
        let (name, path) = text
            .split_once('.')
            .map_or((text, None), |(name, path)| (name, Some(path)));
        let path = path.map_or_else(|| Ok(Box::default()), components)?;
        let variable = match name {
            "ROOT" | "CURRENT" => Variable::Root,
            "NOW" => Variable::Now,
            "REMOVE" => Variable::Remove,
            "" => return Err(Error::parse("empty variable names are not allowed")),
            name => match self.bound_by_operator(name) {
                Some(variable) => variable,
                None => self.bound(name)?,
            },
        };
        Ok(Node::Variable(variable, path))
    }

    /// Returns a variable of the command's `let`.
    fn bound(&self, name: &str) -> Result<Variable, Error> {
        let undefined = || format!("Use of undefined variable: {name}");
        let variable = self.limits.variables.get(name).cloned();
        variable.ok_or_else(|| Error::new(Code::Location17276, undefined()))
    }

    fn document(&mut self, document: &RawDocument) -> Result<Node, Error> {
        let mut fields = elements(document).peekable();
        match fields.peek() {
            Some(first) if first.key.starts_with('$') => self.single(document),
            _ => Ok(Node::Object(
                fields
                    .map(|element| self.object_field(&element))
                    .collect::<Result<_, _>>()?,
            )),
        }
    }

    fn object_field(&mut self, element: &Element<'_>) -> Result<(Box<str>, Node), Error> {
        let name = element.key;
        if name.starts_with('$') {
            let message = format!(
                "FieldPath field names may not start with '$'. Consider using $getField or $setField. Got: {name}"
            );
            return Err(Error::new(Code::Location16410, message));
        }
        if name.contains('.') {
            return Err(Error::new(
                Code::Location16412,
                "FieldPath field names may not contain '.'. Consider using $getField or $setField.",
            ));
        }
        self.limits
            .hold(2 * size_of::<Box<str>>() + ALLOCATION_BYTES + name.len())?;
        Ok((name.into(), self.expression(element.value())?))
    }

    fn single(&mut self, document: &RawDocument) -> Result<Node, Error> {
        let mut fields = elements(document);
        match (fields.next(), fields.next()) {
            (Some(element), None) => self.operator(element.key, element.value()),
            _ => {
                let shown = display::document(document);
                let message = format!(
                    "an object representing an expression must have exactly one field: {shown}"
                );
                Err(Error::new(Code::Location15983, message))
            }
        }
    }

    fn operator(&mut self, name: &str, operand: RawBsonRef<'_>) -> Result<Node, Error> {
        match name {
            "$literal" | "$const" => {
                self.limits.hold_value(operand)?;
                Ok(Node::Literal(operand.into()))
            }
            "$and" => Ok(Node::Logic(Logic::And, self.operands(operand)?)),
            "$or" => Ok(Node::Logic(Logic::Or, self.operands(operand)?)),
            "$ifNull" => Ok(Node::IfNull(self.if_null(operand)?)),
            "$cond" => Ok(Node::Cond(Box::new(Cond::parse(self, operand)?))),
            "$switch" => Ok(Node::Switch(Box::new(Switch::parse(self, operand)?))),
            "$let" => Ok(Node::Let(Box::new(Let::parse(self, operand)?))),
            "$map" => Ok(Node::Map(Box::new(MapArray::parse(self, operand)?))),
            "$filter" => Ok(Node::Filter(Box::new(Filter::parse(self, operand)?))),
            "$regexMatch" => Ok(Node::RegexMatch(Box::new(RegexMatch::parse(
                self, operand,
            )?))),
            "$getField" => field::parse_get(self, operand),
            "$setField" => field::parse_set(self, operand),
            "$unsetField" => field::parse_unset(self, operand),
            "$reduce" => Ok(Node::Reduce(Box::new(Reduce::parse(self, operand)?))),
            _ => self.call(name, operand),
        }
    }

    fn call(&mut self, name: &str, operand: RawBsonRef<'_>) -> Result<Node, Error> {
        let Some(function) = function::find(name) else {
            return Err(Error::new(
                Code::InvalidPipelineOperator,
                format!("Unrecognized expression '{name}'"),
            ));
        };
        let operands = match function.named {
            Some(names) => self.named_operands(name, names, operand)?,
            None => self.operands(operand)?,
        };
        function.check_count(operands.len())?;
        Ok(Node::Call(function, operands))
    }

    /// Parses the operands of an operator: the elements of an array, or a single operand.
    pub fn operands(&mut self, operand: RawBsonRef<'_>) -> Result<Vec<Node>, Error> {
        match operand {
            RawBsonRef::Array(array) => array_values(array)
                .map(|entry| self.expression(entry))
                .collect(),
            single => Ok(vec![self.expression(single)?]),
        }
    }

    fn if_null(&mut self, operand: RawBsonRef<'_>) -> Result<Vec<Node>, Error> {
        let nodes = self.operands(operand)?;
        match nodes.len() {
            0 | 1 => {
                let message = format!("$ifNull needs at least two arguments, had: {}", nodes.len());
                Err(Error::new(Code::Location1257300, message))
            }
            _ => Ok(nodes),
        }
    }

    /// Parses named operands. Returns the expressions in the order of `names`, with a missing value for each absent
    /// name. An `operand` that is not an object with names belongs to the first name.
    fn named_operands(
        &mut self,
        name: &str,
        names: &[&str],
        operand: RawBsonRef<'_>,
    ) -> Result<Vec<Node>, Error> {
        let missing = || Node::Variable(Variable::Remove, Box::default());
        let mut nodes: Vec<Node> = names.iter().map(|_| missing()).collect();
        match operand {
            RawBsonRef::Document(document) if !first_is_operator(document) => {
                for element in elements(document) {
                    let Some(index) = names.iter().position(|known| *known == element.key) else {
                        return Err(Error::parse(format!(
                            "{name} found an unknown argument: {}",
                            element.key
                        )));
                    };
                    nodes[index] = self.expression(element.value())?;
                }
            }
            RawBsonRef::Array(array) => {
                let values: Vec<_> = array_values(array).take(2).collect();
                let [single] = values.as_slice() else {
                    let message = format!(
                        "{name} accepts exactly one argument if given an array, but was given {}",
                        array_values(array).count()
                    );
                    return Err(Error::new(Code::Location40536, message));
                };
                nodes[0] = self.expression(*single)?;
            }
            single => nodes[0] = self.expression(single)?,
        }
        Ok(nodes)
    }
}

/// Splits a field path into its components.
fn components(path: &str) -> Result<Box<[Box<str>]>, Error> {
    if path.is_empty() {
        return Err(Error::new(
            Code::Location16872,
            "'$' by itself is not a valid FieldPath",
        ));
    }
    path.split('.').map(component).collect()
}

fn component(name: &str) -> Result<Box<str>, Error> {
    match name {
        "" => Err(Error::new(
            Code::Location15998,
            "FieldPath field names may not be empty strings.",
        )),
        name if name.starts_with('$') => {
            let message = format!(
                "FieldPath field names may not start with '$'. Consider using $getField or $setField. Got: {name}"
            );
            Err(Error::new(Code::Location16410, message))
        }
        name if name.contains('\0') => Err(Error::new(
            Code::Location16411,
            "FieldPath field names may not contain '\\0'.",
        )),
        name => Ok(name.into()),
    }
}

/// The fields of an operator whose operand is an object.
pub(super) struct Fields<'a> {
    found: Vec<Option<RawBsonRef<'a>>>,
    names: &'static [&'static str],
}

impl<'a> Fields<'a> {
    /// Reads `operand`. Returns the error `not_object` if `operand` is not an object, and `unknown` for a field that is
    /// not in `names`.
    pub fn read(
        operand: RawBsonRef<'a>,
        names: &'static [&'static str],
        not_object: Error,
        unknown: impl Fn(&str) -> Error,
    ) -> Result<Fields<'a>, Error> {
        let RawBsonRef::Document(document) = operand else {
            return Err(not_object);
        };
        let mut found = vec![None; names.len()];
        for element in elements(document) {
            match names.iter().position(|name| *name == element.key) {
                Some(index) => found[index] = Some(element.value()),
                None => return Err(unknown(element.key)),
            }
        }
        Ok(Fields { found, names })
    }

    /// Returns an optional field.
    pub fn get(&self, name: &str) -> Option<RawBsonRef<'a>> {
        let index = self.names.iter().position(|known| *known == name)?;
        self.found[index]
    }

    /// Returns a required field.
    pub fn need(&self, name: &str, code: Code, operator: &str) -> Result<RawBsonRef<'a>, Error> {
        self.get(name)
            .ok_or_else(|| Error::new(code, format!("Missing '{name}' parameter to {operator}")))
    }
}
