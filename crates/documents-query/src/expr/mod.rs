//! Aggregation expressions: parsed once, evaluated on raw documents.
//!
//! Operators that evaluate all their operands are plain functions in a table (`function`). Operators that evaluate
//! operands conditionally or repeatedly (`$and`, `$cond`, `$map`) are variants of the tree.

mod array;
mod boolean;
mod conditional;
mod convert;
mod date;
pub(crate) mod evaluation;
mod field;
pub(crate) mod function;
mod iterate;
mod math;
mod object;
mod parse;
mod regex;
mod set;
mod string;
pub mod value;
mod variables;

use std::collections::BTreeSet;
use std::sync::Arc;

use bson::DateTime;
use bson::raw::{RawArray, RawBson, RawBsonRef, RawDocument};

use crate::element::{Writer, array_values, check_depth, get, payload_bytes, too_deep};
use crate::error::{Code, Error};
use crate::limits::{CommandLimits, DOCUMENT_DEPTH_MAX, Limits};

pub use value::Value;
pub use variables::Variables;

pub(crate) use array::slice_bounds;
pub(crate) use math::{Sum, no_decimals};
pub(crate) use object::mergeable;

use boolean::Logic;
use conditional::{Cond, Switch};
use function::Function;
use iterate::{Filter, Let, MapArray, Reduce};
use regex::RegexMatch;
use value::ArrayWriter;

/// Maximum total bytes of the values held while an expression is evaluated. MongoDB has the same limit for `$map`.
const HELD_BYTES_MAX: usize = 100 * 1024 * 1024;

/// A parsed expression.
#[derive(Debug, Clone)]
pub struct Expression {
    pub(crate) root: Node,
    limits: Arc<CommandLimits>,
}

/// One node of an expression.
#[derive(Debug, Clone)]
pub(crate) enum Node {
    Literal(RawBson),
    /// A field path of the document, split into components.
    Field(Box<[Box<str>]>),
    /// A variable, and a path into its value.
    Variable(Variable, Box<[Box<str>]>),
    Object(Vec<(Box<str>, Node)>),
    Array(Vec<Node>),
    Call(&'static Function, Vec<Node>),
    Logic(Logic, Vec<Node>),
    IfNull(Vec<Node>),
    Cond(Box<Cond>),
    Switch(Box<Switch>),
    Let(Box<Let>),
    Map(Box<MapArray>),
    Filter(Box<Filter>),
    Reduce(Box<Reduce>),
    RegexMatch(Box<RegexMatch>),
}

/// A system variable or a user variable.
#[derive(Debug, Clone)]
pub(crate) enum Variable {
    Root,
    Now,
    Remove,
    /// Defined by the command's `let`.
    Constant(Arc<RawBson>),
    /// Bound by `$let`, `$map`, `$filter` or `$reduce`. Identified by the count of variables in scope that were bound
    /// before it.
    User(usize),
}

/// The input of an evaluation: document, time and variables.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    /// Value of `$$ROOT` and `$$CURRENT`.
    pub document: &'a RawDocument,
    /// Value of `$$NOW`.
    pub now: DateTime,
    frame: Option<&'a Frame<'a>>,
    room_bytes: usize,
}

/// The variables bound by one `$let`, `$map`, `$filter` or `$reduce`.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    values: &'a [Value<'a>],
    /// Number of variables bound by the enclosing operators.
    outside: usize,
    next: Option<&'a Frame<'a>>,
}

impl<'a> Scope<'a> {
    /// Creates a scope without user variables.
    pub fn new(document: &'a RawDocument, now: DateTime) -> Scope<'a> {
        Scope {
            document,
            now,
            frame: None,
            room_bytes: HELD_BYTES_MAX,
        }
    }

    /// Returns the scope for an evaluation during which additional values, of `bytes` in total, are held in memory.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` if the total bytes held exceed the limit, or the server has no memory for them.
    pub(crate) fn holding(&self, bytes: usize) -> Result<Scope<'a>, Error> {
        let room_bytes = self.room_bytes.checked_sub(bytes).ok_or_else(too_large)?;
        let held = Scope {
            room_bytes,
            ..*self
        };
        evaluation::reserve(held.held_bytes())?;
        Ok(held)
    }

    /// Returns the bytes of all values held.
    fn held_bytes(&self) -> usize {
        HELD_BYTES_MAX - self.room_bytes
    }

    /// Converts to a value that borrows nothing.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` if the server has no memory for a copy.
    fn into_static(self, value: Value<'_>) -> Result<Value<'static>, Error> {
        if let Value::Ref(value) = &value {
            self.holding(payload_bytes(*value))?;
        }
        Ok(value.into_static())
    }

    /// Checks the size and the nesting depth of a value that an operator has computed.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` and `Overflow`.
    fn accept<'v>(&self, made: Value<'v>) -> Result<Value<'v>, Error> {
        self.holding(made.bytes())?;
        check_depth(made.or_null())?;
        Ok(made)
    }

    pub(crate) fn frame(&self, values: &'a [Value<'a>]) -> Frame<'a> {
        let bound = |frame: &Frame<'_>| frame.outside + frame.values.len();
        Frame {
            values,
            outside: self.frame.map_or(0, bound),
            next: self.frame,
        }
    }

    pub(crate) fn with(&self, frame: &'a Frame<'a>) -> Scope<'a> {
        Scope {
            frame: Some(frame),
            ..*self
        }
    }

    /// Returns the value of the variable that was bound after `index` other variables.
    fn lookup(&self, index: usize) -> Option<RawBsonRef<'a>> {
        let mut frame = self.frame?;
        while index < frame.outside {
            frame = frame.next?;
        }
        frame.values.get(index - frame.outside)?.get()
    }
}

/// Reserves memory for a value that an operator is about to compute. Returns an error for more than [`HELD_BYTES_MAX`]
/// bytes.
fn check_bytes(bytes: usize) -> Result<(), Error> {
    check_size(bytes)?;
    evaluation::reserve_beside(bytes * evaluation::GROWTH)
}

/// Returns an error for a value of more than [`HELD_BYTES_MAX`] bytes.
fn check_size(bytes: usize) -> Result<(), Error> {
    match bytes <= HELD_BYTES_MAX {
        true => Ok(()),
        false => Err(too_large()),
    }
}

fn too_large() -> Error {
    let message = format!(
        "Expression would use too much memory and cannot spill to disk. Memory limit: {HELD_BYTES_MAX} bytes"
    );
    Error::new(Code::ExceededMemoryLimit, message)
}

impl Expression {
    /// Parses an expression.
    ///
    /// # Errors
    /// MongoDB's code and wording; 168 `InvalidPipelineOperator` for an unknown operator.
    pub fn parse(value: RawBsonRef<'_>, limits: &Limits) -> Result<Expression, Error> {
        Ok(Expression {
            root: parse::Parser::new(limits).expression(value)?,
            limits: limits.command.clone(),
        })
    }

    /// Builds a constant expression.
    pub fn literal(value: RawBson) -> Expression {
        Expression {
            root: Node::Literal(value),
            limits: Arc::default(),
        }
    }

    /// Evaluates the expression for a document.
    ///
    /// # Errors
    /// MongoDB's code and wording if an operator refuses its operands. `Interrupted` or `MaxTimeMSExpired` if the
    /// command is stopped, and `ExceededMemoryLimit` if the server has no memory for the values.
    pub fn evaluate<'s>(&'s self, scope: &Scope<'s>) -> Result<Value<'s>, Error> {
        evaluation::under(&self.limits, || self.root.evaluate(scope))
    }

    /// Returns the constant if the expression is a literal.
    pub fn as_literal(&self) -> Option<&RawBson> {
        match &self.root {
            Node::Literal(value) => Some(value),
            Node::Variable(Variable::Constant(value), path) if path.is_empty() => Some(value),
            _ => None,
        }
    }

    /// Returns the dotted path if the expression is only a field of the document.
    pub fn as_field(&self) -> Option<String> {
        match &self.root {
            Node::Field(path) => Some(path.join(".")),
            _ => None,
        }
    }

    /// Returns the top-level fields of the document that the expression reads, or `None` if it may read the whole
    /// document.
    pub fn fields(&self) -> Option<BTreeSet<String>> {
        let mut fields = BTreeSet::new();
        self.root.collect_fields(&mut fields).then_some(fields)
    }
}

impl Node {
    pub fn evaluate<'s>(&'s self, scope: &Scope<'s>) -> Result<Value<'s>, Error> {
        match self {
            Node::Literal(value) => Ok(Value::Ref(value.as_raw_bson_ref())),
            Node::Field(path) => field(scope.document, path),
            Node::Variable(variable, path) => variable_value(variable, path, scope),
            Node::Object(fields) => object(fields, scope),
            Node::Array(nodes) => list(nodes, scope),
            Node::Call(function, nodes) => call(function, nodes, scope),
            Node::Logic(logic, nodes) => logic.evaluate(nodes, scope),
            Node::IfNull(nodes) => conditional::if_null(nodes, scope),
            Node::Cond(cond) => cond.evaluate(scope),
            Node::Switch(switch) => switch.evaluate(scope),
            Node::Let(binding) => binding.evaluate(scope),
            Node::Map(map) => map.evaluate(scope),
            Node::Filter(filter) => filter.evaluate(scope),
            Node::Reduce(reduce) => reduce.evaluate(scope),
            Node::RegexMatch(regex) => regex.evaluate(scope),
        }
    }

    fn collect_fields(&self, fields: &mut BTreeSet<String>) -> bool {
        match self {
            Node::Literal(_)
            | Node::Variable(
                Variable::Now | Variable::Remove | Variable::Constant(_) | Variable::User(_),
                _,
            ) => true,
            Node::Field(path) => {
                fields.extend(path.first().map(|first| first.to_string()));
                true
            }
            Node::Variable(Variable::Root, path) => match path.first() {
                Some(first) => {
                    fields.insert(first.to_string());
                    true
                }
                None => false,
            },
            other => other
                .children()
                .into_iter()
                .all(|child| child.collect_fields(fields)),
        }
    }

    fn children(&self) -> Vec<&Node> {
        match self {
            Node::Object(fields) => fields.iter().map(|(_, node)| node).collect(),
            Node::Array(nodes)
            | Node::Call(_, nodes)
            | Node::Logic(_, nodes)
            | Node::IfNull(nodes) => nodes.iter().collect(),
            Node::Cond(cond) => cond.children(),
            Node::Switch(switch) => switch.children(),
            Node::Let(binding) => binding.children(),
            Node::Map(map) => map.children(),
            Node::Filter(filter) => filter.children(),
            Node::Reduce(reduce) => reduce.children(),
            Node::RegexMatch(regex) => regex.children(),
            Node::Literal(_) | Node::Field(_) | Node::Variable(..) => Vec::new(),
        }
    }
}

fn call<'s>(function: &Function, nodes: &'s [Node], scope: &Scope<'s>) -> Result<Value<'s>, Error> {
    let (operands, held) = evaluate_all(nodes, scope)?;
    evaluation::check_call(held.held_bytes() - scope.held_bytes())?;
    scope.accept(function.call(&operands)?)
}

/// Returns the values of all nodes, and the scope in which these values are held.
fn evaluate_all<'s>(
    nodes: &'s [Node],
    scope: &Scope<'s>,
) -> Result<(Vec<Value<'s>>, Scope<'s>), Error> {
    let mut scope = *scope;
    let mut values = Vec::with_capacity(nodes.len());
    for node in nodes {
        let value = node.evaluate(&scope)?;
        scope = scope.holding(value.bytes())?;
        values.push(value);
    }
    Ok((values, scope))
}

/// Returns the value at a path in a document. If the path passes through an array, returns an array with the value from
/// each document in the array.
fn field<'a>(document: &'a RawDocument, path: &[Box<str>]) -> Result<Value<'a>, Error> {
    inside(RawBsonRef::Document(document), path, DOCUMENT_DEPTH_MAX)
}

/// Returns the value at a path in a value. The result may nest at most `levels` deep.
fn inside<'a>(value: RawBsonRef<'a>, path: &[Box<str>], levels: usize) -> Result<Value<'a>, Error> {
    let Some((name, rest)) = path.split_first() else {
        return Ok(Value::Ref(value));
    };
    let inner = levels.checked_sub(1).ok_or_else(too_deep)?;
    match value {
        RawBsonRef::Document(document) => match get(document, name) {
            Some(value) => inside(value, rest, inner),
            None => Ok(Value::Missing),
        },
        RawBsonRef::Array(array) => inside_array(array, path, inner),
        _ => Ok(Value::Missing),
    }
}

fn inside_array<'a>(
    array: &'a RawArray,
    path: &[Box<str>],
    levels: usize,
) -> Result<Value<'a>, Error> {
    let mut found = ArrayWriter::new();
    for element in array_values(array) {
        if let Some(value) = inside(element, path, levels)?.get() {
            found.push(value)?;
        }
    }
    Ok(Value::Owned(found.finish()))
}

fn variable_value<'s>(
    variable: &'s Variable,
    path: &[Box<str>],
    scope: &Scope<'s>,
) -> Result<Value<'s>, Error> {
    let value = match variable {
        Variable::Root => Some(RawBsonRef::Document(scope.document)),
        Variable::Now => Some(RawBsonRef::DateTime(scope.now)),
        Variable::Remove => None,
        Variable::Constant(value) => Some(value.as_raw_bson_ref()),
        Variable::User(index) => scope.lookup(*index),
    };
    value.map_or(Ok(Value::Missing), |value| {
        inside(value, path, DOCUMENT_DEPTH_MAX)
    })
}

fn object<'s>(fields: &'s [(Box<str>, Node)], scope: &Scope<'s>) -> Result<Value<'s>, Error> {
    let mut writer = Writer::new();
    for (name, node) in fields {
        let scope = scope.holding(writer.len())?;
        let value = node.evaluate(&scope)?;
        scope.holding(value.bytes())?;
        if let Some(value) = value.get() {
            writer.value(name, value);
        }
    }
    scope.accept(Value::Owned(RawBson::Document(writer.finish())))
}

fn list<'s>(nodes: &'s [Node], scope: &Scope<'s>) -> Result<Value<'s>, Error> {
    let (values, _) = evaluate_all(nodes, scope)?;
    let made = value::array(values.iter().map(Value::or_null), 0)?;
    scope.accept(Value::Owned(made))
}
