//! Parsing a query document to a tree.
//!
//! Sources: `expression_parser.cpp` of the server for structure, codes and wording.

use std::sync::Arc;

use bson::DateTime;
use bson::raw::{RawBsonRef, RawDocument};

use super::operators::parse_operators;
use super::regex::Regex;
use super::{Node, Test};
use crate::display;
use crate::element::{Element, array_values, elements};
use crate::error::{Code, Error};
use crate::expr::Expression;
use crate::limits::{Limits, heap_bytes, path_bytes};
use crate::path::Path;
use crate::sort::ALLOCATION_BYTES;

/// Bytes of a node in a list. The list's capacity is on average 1.5 times its length.
const NODE_BYTES: usize = 3 * size_of::<Node>() / 2 + ALLOCATION_BYTES;

/// Parses queries and limits their nesting.
pub(super) struct Parser<'l> {
    pub limits: &'l Limits,
    depth: usize,
    /// Whether the parser is inside `$elemMatch`, where some operators are not allowed.
    inside_element: bool,
    /// Whether `$expr` is allowed.
    takes_expressions: bool,
}

/// Operators that may appear in place of a field name.
const TOP_LEVEL: [&str; 13] = [
    "$and",
    "$or",
    "$nor",
    "$expr",
    "$where",
    "$text",
    "$comment",
    "$jsonSchema",
    "$alwaysTrue",
    "$alwaysFalse",
    "$ref",
    "$id",
    "$db",
];

impl<'l> Parser<'l> {
    pub fn new(limits: &'l Limits) -> Parser<'l> {
        Parser {
            limits,
            depth: 0,
            inside_element: false,
            takes_expressions: true,
        }
    }

    /// Creates a parser for queries in which `$expr` is not allowed.
    pub fn without_expressions(limits: &'l Limits) -> Parser<'l> {
        Parser {
            takes_expressions: false,
            ..Parser::new(limits)
        }
    }

    /// Parses a query document. All of its fields and top-level operators must match.
    pub fn query(&mut self, query: &RawDocument) -> Result<Node, Error> {
        self.enter(query)?;
        let mut nodes = Vec::new();
        for element in elements(query) {
            match element.key.starts_with('$') {
                true => nodes.extend(self.top_level(&element)?),
                false => self.field(&element, &mut nodes)?,
            }
        }
        self.leave();
        Ok(and(nodes))
    }

    /// Parses a query on array elements that are documents.
    pub fn element_query(&mut self, query: &RawDocument) -> Result<Node, Error> {
        let outside = std::mem::replace(&mut self.inside_element, true);
        let node = self.query(query);
        self.inside_element = outside;
        node
    }

    /// Parses operators that test a value itself.
    pub fn element_test(&mut self, condition: &RawDocument) -> Result<Node, Error> {
        self.enter(condition)?;
        let node = parse_operators(self, &Path::empty(), condition);
        self.leave();
        node
    }

    /// Enters a level of nesting. Returns an error if the limit is exceeded.
    pub fn enter(&mut self, at: &RawDocument) -> Result<(), Error> {
        self.depth += 1;
        let max = self.limits.filter_depth_max;
        match self.depth > max + 1 {
            true => Err(Error::bad_value(format!(
                "exceeded maximum query tree depth of {max} at {}",
                display::document(at)
            ))),
            false => Ok(()),
        }
    }

    pub fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Reserves memory for a node without a path.
    pub fn hold_node(&self) -> Result<(), Error> {
        self.limits.hold(NODE_BYTES)
    }

    /// Reserves memory for a leaf that holds `operand`.
    pub fn hold_leaf(&self, path: &str, operand: RawBsonRef<'_>) -> Result<(), Error> {
        let bytes = NODE_BYTES + path_bytes(path) + heap_bytes(operand);
        self.limits.hold(bytes)
    }

    fn field(&mut self, element: &Element<'_>, nodes: &mut Vec<Node>) -> Result<(), Error> {
        let path = Path::new(element.key)?;
        match element.value() {
            RawBsonRef::Document(inner) if is_operator_document(inner) => {
                nodes.push(parse_operators(self, &path, inner)?);
            }
            RawBsonRef::RegularExpression(regex) => {
                self.hold_leaf(element.key, element.value())?;
                nodes.push(leaf(
                    &path,
                    Test::Regex(Regex::of_value(regex, self.limits)?),
                ));
            }
            value => {
                self.hold_leaf(element.key, value)?;
                nodes.push(equality(&path, value)?)
            }
        }
        Ok(())
    }

    fn top_level(&mut self, element: &Element<'_>) -> Result<Option<Node>, Error> {
        let name = element.key;
        match name {
            "$ref" | "$id" | "$db" => self.hold_leaf(name, element.value())?,
            _ => self.hold_node()?,
        }
        let node = match name {
            "$and" => and(self.branches(element)?),
            "$or" => Node::Or(self.branches(element)?),
            "$nor" => Node::Nor(self.branches(element)?),
            "$comment" => return Ok(None),
            "$alwaysTrue" => always(element, Node::AlwaysTrue)?,
            "$alwaysFalse" => always(element, Node::AlwaysFalse)?,
            "$ref" | "$id" | "$db" => equality(&Path::new(name)?, element.value())?,
            "$expr" => self.expr(element.value())?,
            "$where" | "$text" | "$jsonSchema" => return Err(unsupported(name)),
            _ => return Err(unknown_top_level(name)),
        };
        Ok(Some(node))
    }

    fn expr(&self, expression: RawBsonRef<'_>) -> Result<Node, Error> {
        if !self.takes_expressions {
            return Err(Error::new(
                Code::QueryFeatureNotAllowed,
                "$expr is not allowed in this context",
            ));
        }
        if self.inside_element {
            return Err(Error::bad_value(
                "$expr can only be applied to the top-level document",
            ));
        }
        let expression = Arc::new(Expression::parse(expression, self.limits)?);
        Ok(Node::Expr {
            expression,
            now: DateTime::now(),
        })
    }

    /// Parses the operands of `$and`, `$or`, `$nor`.
    fn branches(&mut self, element: &Element<'_>) -> Result<Vec<Node>, Error> {
        let RawBsonRef::Array(array) = element.value() else {
            return Err(Error::bad_value(format!(
                "{} must be an array",
                element.key
            )));
        };
        if array.is_empty() {
            return Err(Error::bad_value("$and/$or/$nor must be a nonempty array"));
        }
        array_values(array)
            .map(|value| match value {
                RawBsonRef::Document(query) => {
                    self.hold_node()?;
                    self.query(query)
                }
                _ => Err(Error::bad_value(
                    "$or/$and/$nor entries need to be full objects",
                )),
            })
            .collect()
    }
}

/// Builds a leaf for `path`.
pub(super) fn leaf(path: &Path, test: Test) -> Node {
    Node::Leaf {
        path: path.clone(),
        test,
    }
}

/// Builds the conjunction of `nodes`. A single node is returned unchanged.
pub(super) fn and(mut nodes: Vec<Node>) -> Node {
    match nodes.len() {
        0 => Node::AlwaysTrue,
        1 => nodes.swap_remove(0),
        _ => Node::And(nodes),
    }
}

/// Parses an equality with a value. Returns an error for types that cannot be compared.
pub(super) fn equality(path: &Path, value: RawBsonRef<'_>) -> Result<Node, Error> {
    if value == RawBsonRef::Undefined {
        return Err(Error::bad_value("cannot compare to undefined"));
    }
    Ok(leaf(path, Test::Eq(value.into())))
}

/// Returns whether a document consists of operators: its first name begins with `$`, and the document is not a DBRef.
pub(crate) fn is_operator_document(document: &RawDocument) -> bool {
    let Some(first) = elements(document).next() else {
        return false;
    };
    first.key.starts_with('$') && !is_dbref(document)
}

fn is_dbref(document: &RawDocument) -> bool {
    let has = |name: &str| elements(document).any(|element| element.key == name);
    has("$ref") && has("$id")
}

/// Returns whether a name is an operator that may appear in place of a field name.
pub(crate) fn is_top_level_operator(name: &str) -> bool {
    TOP_LEVEL.contains(&name)
}

fn always(element: &Element<'_>, node: Node) -> Result<Node, Error> {
    match crate::number::Number::of(element.value()).and_then(|number| number.to_i64_exact()) {
        Some(1) => Ok(node),
        Some(_) => Err(Error::parse(format!(
            "{} must be an integer value of 1",
            element.key
        ))),
        None => {
            let shown = display::field(element.key, element.value());
            Err(Error::parse(format!("Expected a number in: {shown}")))
        }
    }
}

fn unknown_top_level(name: &str) -> Error {
    Error::bad_value(format!(
        "unknown top level operator: {name}. If you have a field name that starts with a '$' symbol, consider using \
         $getField or $setField."
    ))
}

/// Builds the error for an operator that MongoDB has but this server does not support.
pub(super) fn unsupported(name: &str) -> Error {
    Error::new(
        Code::NotImplemented,
        format!("{name} is not supported by this server"),
    )
}
