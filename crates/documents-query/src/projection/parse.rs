//! Parsing a projection's BSON to rules.

use std::sync::Arc;

use bson::raw::{RawArray, RawBsonRef, RawDocument};

use super::{Mode, Projection, Rule, Rules};
use crate::element::{Element, array_values, elements, is_truthy};
use crate::error::{Code, Error};
use crate::expr::Expression;
use crate::filter::{Filter, elem_match_test};
use crate::limits::Limits;
use crate::number::Number;
use crate::sort::ALLOCATION_BYTES;

/// The command or stage that the projection belongs to, which determines its syntax.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Find,
    Project,
    Add,
}

/// Collects the rules of a projection, and the mode that they imply.
struct Builder<'l> {
    dialect: Dialect,
    limits: &'l Limits,
    rules: Rules,
    mode: Option<Mode>,
    /// Whether `_id` is included; `None` if the projection does not mention `_id`.
    id: Option<bool>,
    positional: bool,
    elem_match: bool,
}

pub(super) fn find(spec: &RawDocument, limits: &Limits) -> Result<Projection, Error> {
    let mut builder = Builder::new(Dialect::Find, limits);
    builder.document(spec)?;
    builder.finish()
}

pub(super) fn project(spec: &RawDocument, limits: &Limits) -> Result<Projection, Error> {
    if spec.is_empty() {
        return Err(Error::new(
            Code::Location51272,
            "Invalid $project :: caused by :: projection specification must have at least one field",
        ));
    }
    let mut builder = Builder::new(Dialect::Project, limits);
    builder.document(spec)?;
    builder.finish()
}

pub(super) fn add(spec: &RawDocument, limits: &Limits) -> Result<Projection, Error> {
    let mut builder = Builder::new(Dialect::Add, limits);
    builder.mode = Some(Mode::Add);
    builder.document(spec)?;
    Ok(Projection {
        mode: Mode::Add,
        rules: Arc::new(builder.rules),
        positional: false,
        limits: limits.command.clone(),
    })
}

pub(super) fn excluding<'p>(
    paths: impl Iterator<Item = &'p str>,
    limits: &Limits,
) -> Result<Projection, Error> {
    let mut rules = Rules::default();
    for path in paths {
        limits.hold(rules_bytes(path))?;
        insert(&mut rules, path, Rule::Exclude)?;
    }
    Ok(Projection {
        mode: Mode::Exclude,
        rules: Arc::new(rules),
        positional: false,
        limits: limits.command.clone(),
    })
}

impl<'l> Builder<'l> {
    fn new(dialect: Dialect, limits: &'l Limits) -> Builder<'l> {
        let rules = Rules::default();
        Builder {
            dialect,
            limits,
            rules,
            mode: None,
            id: None,
            positional: false,
            elem_match: false,
        }
    }

    fn document(&mut self, spec: &RawDocument) -> Result<(), Error> {
        elements(spec).try_for_each(|element| self.field("", &element))
    }

    fn field(&mut self, prefix: &str, element: &Element<'_>) -> Result<(), Error> {
        self.limits.hold(rules_bytes(element.key))?;
        let path = match prefix {
            "" => element.key.to_owned(),
            prefix => format!("{prefix}.{}", element.key),
        };
        let value = element.value();
        if self.dialect == Dialect::Find && path.split('.').any(|name| name == "$") {
            return self.positional(&path, value);
        }
        check_path(&path)?;
        match value {
            RawBsonRef::Document(inner) if inner.is_empty() => Err(Error::new(
                Code::Location51270,
                "An empty sub-projection is not a valid value. Found empty object at path",
            )),
            RawBsonRef::Document(inner) => self.operator_or_nested(&path, inner),
            flag if self.dialect != Dialect::Add && is_flag(flag) => {
                self.flag(&path, is_truthy(flag))
            }
            other => self.computed(&path, other),
        }
    }

    fn operator_or_nested(&mut self, path: &str, inner: &RawDocument) -> Result<(), Error> {
        let first = elements(inner).next();
        match first.as_ref().map(|first| first.key) {
            Some("$slice") if self.dialect == Dialect::Find => {
                let operand = first.map_or(RawBsonRef::Null, |first| first.value());
                self.slice(path, operand, inner)
            }
            Some("$elemMatch") if self.dialect == Dialect::Find => {
                let operand = first.map_or(RawBsonRef::Null, |first| first.value());
                self.elem_match(path, operand)
            }
            Some("$meta") => Err(Error::new(
                Code::NotImplemented,
                "$meta is not supported by this server",
            )),
            Some(name) if name.starts_with('$') => self.computed(path, RawBsonRef::Document(inner)),
            _ => elements(inner).try_for_each(|element| self.field(path, &element)),
        }
    }

    fn flag(&mut self, path: &str, shown: bool) -> Result<(), Error> {
        if path == "_id" {
            self.id = Some(shown);
            return Ok(());
        }
        if shown {
            self.require(Mode::Include, || {
                let message =
                    format!("Cannot do inclusion on field {path} in exclusion projection");
                Error::new(Code::Location31253, message)
            })?;
            insert(&mut self.rules, path, Rule::Include)
        } else {
            self.require(Mode::Exclude, || {
                let message =
                    format!("Cannot do exclusion on field {path} in inclusion projection");
                Error::new(Code::Location31254, message)
            })?;
            insert(&mut self.rules, path, Rule::Exclude)
        }
    }

    fn computed(&mut self, path: &str, value: RawBsonRef<'_>) -> Result<(), Error> {
        if self.dialect != Dialect::Add {
            self.require(Mode::Include, || {
                Error::new(
                    Code::Location31252,
                    "Cannot use expression other than $meta in exclusion projection",
                )
            })?;
        }
        let expression = Expression::parse(value, self.limits)?;
        insert(&mut self.rules, path, Rule::Computed(expression))
    }

    fn require(&mut self, mode: Mode, error: impl FnOnce() -> Error) -> Result<(), Error> {
        match *self.mode.get_or_insert(mode) == mode {
            true => Ok(()),
            false => Err(error()),
        }
    }

    fn positional(&mut self, path: &str, value: RawBsonRef<'_>) -> Result<(), Error> {
        let inner = path.strip_suffix(".$").unwrap_or_default();
        if inner.is_empty() || inner.split('.').any(|name| name == "$") {
            let message = "As of 4.4, it's illegal to specify positional operator in the middle of a path.Positional \
                           projection may only be used at the end, for example: a.b.$. If the query previously used a \
                           form like a.b.$.d, remove the parts following the '$' and the results will be equivalent.";
            return Err(Error::new(Code::Location31394, message));
        }
        let path = inner;
        check_path(path)?;
        if self.positional {
            return Err(Error::new(
                Code::Location31276,
                "Cannot specify more than one positional projection per query.",
            ));
        }
        if self.elem_match {
            return Err(Error::new(
                Code::Location31256,
                "Cannot specify positional operator and $elemMatch.",
            ));
        }
        if !(is_flag(value) && is_truthy(value)) {
            return Err(Error::new(
                Code::Location31395,
                "positional projection cannot be used with exclusion",
            ));
        }
        self.positional = true;
        self.require(Mode::Include, || {
            Error::new(
                Code::Location31395,
                "positional projection cannot be used with exclusion",
            )
        })?;
        insert(&mut self.rules, path, Rule::Positional)
    }

    fn slice(
        &mut self,
        path: &str,
        operand: RawBsonRef<'_>,
        whole: &RawDocument,
    ) -> Result<(), Error> {
        let rule = match operand {
            RawBsonRef::Array(array) => slice_of_array(array),
            other => integer(other).map(|count| Rule::Slice {
                position: None,
                count,
            }),
        };
        let rule = rule.ok_or_else(|| {
            let shown = crate::display::document(whole);
            Error::new(Code::Location28667, format!("Invalid $slice syntax. The given syntax {shown} did not match the find() syntax"))
        })?;
        insert(&mut self.rules, path, rule)
    }

    fn elem_match(&mut self, path: &str, operand: RawBsonRef<'_>) -> Result<(), Error> {
        let RawBsonRef::Document(condition) = operand else {
            let kind = crate::element::type_name(operand.element_type());
            return Err(Error::new(
                Code::Location31274,
                format!("elemMatch: Invalid argument, object required, but got {kind}"),
            ));
        };
        if self.positional {
            return Err(Error::new(
                Code::Location31255,
                "Cannot specify positional operator and $elemMatch.",
            ));
        }
        if path.contains('.') {
            return Err(Error::new(
                Code::Location31275,
                "Cannot use $elemMatch projection on a nested field.",
            ));
        }
        self.elem_match = true;
        let test = elem_match_test(condition, self.limits)?;
        insert(
            &mut self.rules,
            path,
            Rule::ElemMatch(Filter::of_element_test(test, self.limits)),
        )
    }

    fn finish(mut self) -> Result<Projection, Error> {
        let mode = self.mode.unwrap_or(match self.id {
            Some(true) => Mode::Include,
            None if self.elem_match => Mode::Include,
            Some(false) | None => Mode::Exclude,
        });
        let id = self
            .rules
            .find("_id")
            .is_none()
            .then_some(match (mode, self.id) {
                (Mode::Include, None | Some(true)) => Some(Rule::Include),
                (Mode::Exclude, Some(false)) => Some(Rule::Exclude),
                _ => None,
            });
        if let Some(Some(rule)) = id {
            self.rules.push("_id", rule);
        }
        Ok(Projection {
            mode,
            rules: Arc::new(self.rules),
            positional: self.positional,
            limits: self.limits.command.clone(),
        })
    }
}

/// Returns whether a value in a projection includes or excludes its field. Other values are literals.
fn is_flag(value: RawBsonRef<'_>) -> bool {
    matches!(value, RawBsonRef::Boolean(_)) || Number::of(value).is_some()
}

fn integer(value: RawBsonRef<'_>) -> Option<i64> {
    Number::of(value).map(Number::to_i64_truncated)
}

fn slice_of_array(array: &RawArray) -> Option<Rule> {
    let values: Vec<_> = array_values(array).take(3).collect();
    let [position, count] = values.as_slice() else {
        return None;
    };
    let (position, count) = (integer(*position)?, integer(*count)?);
    (count > 0).then_some(Rule::Slice {
        position: Some(position),
        count,
    })
}

fn check_path(path: &str) -> Result<(), Error> {
    if path.is_empty() {
        return Err(Error::new(
            Code::Location40352,
            "FieldPath cannot be constructed with empty string",
        ));
    }
    if path.ends_with('.') {
        return Err(Error::new(
            Code::Location40353,
            "FieldPath must not end with a '.'.",
        ));
    }
    for name in path.split('.') {
        if name.is_empty() {
            return Err(Error::new(
                Code::Location15998,
                "FieldPath field names may not be empty strings.",
            ));
        }
        if name.starts_with('$') {
            let message = "FieldPath field names may not start with '$'. Consider using $getField or $setField.";
            return Err(Error::new(Code::Location16410, message));
        }
    }
    crate::path::Path::new(path).map(|_| ())
}

/// Returns the bytes of the rules for a path that has no component in common with another path. Each component takes an
/// entry in a list, an entry in a table, and two allocations. The capacity of the list and of the table is on average
/// 1.5 times the number of entries.
fn rules_bytes(path: &str) -> usize {
    const RULE_BYTES: usize = size_of::<(Arc<str>, Rule)>() + size_of::<(Arc<str>, usize)>();
    let count = path.bytes().filter(|byte| *byte == b'.').count() + 1;
    path.len() + count * (3 * RULE_BYTES / 2 + 2 * ALLOCATION_BYTES)
}

/// Adds a rule for a path.
fn insert(rules: &mut Rules, path: &str, rule: Rule) -> Result<(), Error> {
    let (name, rest) = path
        .split_once('.')
        .map_or((path, None), |(name, rest)| (name, Some(rest)));
    match (rules.place(name), rest) {
        (None, None) => rules.push(name, rule),
        (None, Some(rest)) => {
            let mut inner = Rules::default();
            insert(&mut inner, rest, rule)?;
            rules.push(name, Rule::Nested(inner));
        }
        (Some(place), Some(rest)) => match &mut rules.fields[place].1 {
            Rule::Nested(inner) => insert(inner, rest, rule)?,
            _ => {
                let message = format!("Path collision at {path} remaining portion {rest}");
                return Err(Error::new(Code::Location31249, message));
            }
        },
        (Some(_), None) => {
            return Err(Error::new(
                Code::Location31250,
                format!("Path collision at {path}"),
            ));
        }
    }
    Ok(())
}
