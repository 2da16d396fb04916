//! Projections: which fields of a document are returned, and which are computed.
//!
//! The same tree of rules implements the projection of `find` and the stages `$project`, `$set` (`$addFields`) and
//! `$unset`.

mod apply;
mod parse;

use std::collections::HashMap;
use std::sync::Arc;

use bson::DateTime;
use bson::raw::{RawBsonRef, RawDocument, RawDocumentBuf};
use forebay_memory::Account;

use crate::element::check_depth;
use crate::error::Error;
use crate::expr::{Expression, evaluation};
use crate::filter::Filter;
use crate::limits::{CommandLimits, Limits};

/// Maximum number of rules in a cheap projection.
const CHEAP_RULES_MAX: usize = 32;
/// Maximum number of rules whose names are compared one by one.
const FEW_RULES_MAX: usize = 8;

/// A parsed projection. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Projection {
    mode: Mode,
    rules: Arc<Rules>,
    positional: bool,
    /// The cancellation token of the command, checked before each computed field, and the memory of the rules.
    limits: Arc<CommandLimits>,
}

/// Treatment of fields without a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Fields without a rule are omitted.
    Include,
    /// Fields without a rule are kept.
    Exclude,
    /// Fields without a rule are kept, and computed fields replace existing fields.
    Add,
}

/// The rules for the fields of one document.
#[derive(Debug, Clone, Default)]
struct Rules {
    fields: Vec<(Arc<str>, Rule)>,
    /// Maps each name to its index in `fields`. Empty if there are few rules.
    places: HashMap<Arc<str>, usize>,
}

/// Treatment of one field.
#[derive(Debug, Clone)]
enum Rule {
    Include,
    Exclude,
    Computed(Expression),
    /// `$slice` of `find`: `count` elements from `position`, or from one end of the array if `position` is not set.
    Slice {
        position: Option<i64>,
        count: i64,
    },
    /// `$elemMatch` of `find`: only the first element that matches.
    ElemMatch(Filter),
    /// `field.$`: only the element that the query matched.
    Positional,
    Nested(Rules),
}

/// Input of a projection besides the document.
#[derive(Debug, Clone, Copy)]
pub struct ProjectionContext {
    /// Value of `$$NOW`.
    pub now: DateTime,
    /// The index of the array element that the query matched (see
    /// [`Filter::match_position`](crate::Filter::match_position)). Only projections that use `field.$` need it; see
    /// [`Projection::is_positional`].
    pub position: Option<usize>,
}

impl Projection {
    /// Parses the projection of `find` and `findAndModify`.
    ///
    /// # Errors
    /// 31253 and 31254 for a mix of inclusion and exclusion. 31249 and 31250 for paths that collide. 31275, 31276 and
    /// others for the operands of single operators.
    pub fn parse(spec: &RawDocument, limits: &Limits) -> Result<Projection, Error> {
        check_depth(RawBsonRef::Document(spec))?;
        parse::find(spec, limits)
    }

    /// Parses `$project`.
    pub(crate) fn parse_project(spec: &RawDocument, limits: &Limits) -> Result<Projection, Error> {
        parse::project(spec, limits)
    }

    /// Parses `$set` and `$addFields`.
    pub(crate) fn parse_add(spec: &RawDocument, limits: &Limits) -> Result<Projection, Error> {
        parse::add(spec, limits)
    }

    /// Builds the projection that omits the fields at `paths`.
    pub(crate) fn excluding<'p>(
        paths: impl Iterator<Item = &'p str>,
        limits: &Limits,
    ) -> Result<Projection, Error> {
        parse::excluding(paths, limits)
    }

    /// Returns whether the projection uses `field.$`, which needs the index of the matched array element.
    pub fn is_positional(&self) -> bool {
        self.positional
    }

    /// Returns whether the projection takes only microseconds for any document of a few kilobytes, because it has few
    /// rules and no expressions.
    pub fn is_cheap(&self) -> bool {
        self.rules
            .cheap_count()
            .is_some_and(|rules| rules <= CHEAP_RULES_MAX)
    }

    /// Returns the memory account of the command.
    pub fn memory(&self) -> &Account {
        &self.limits.memory
    }

    /// Returns the projected document.
    ///
    /// # Errors
    /// Those of computed fields; 51246 if the matched element of `field.$` does not exist.
    pub fn apply(
        &self,
        document: &RawDocument,
        context: &ProjectionContext,
    ) -> Result<RawDocumentBuf, Error> {
        evaluation::under(&self.limits, || apply::apply(self, document, context))
    }
}

impl Rules {
    fn find(&self, name: &str) -> Option<&Rule> {
        self.place(name).map(|place| &self.fields[place].1)
    }

    /// Returns the index of a name's rule. If there are few rules, compares their names one by one, so that no name of
    /// a document is hashed.
    fn place(&self, name: &str) -> Option<usize> {
        match self.fields.len() <= FEW_RULES_MAX {
            true => self.fields.iter().position(|(known, _)| &**known == name),
            false => self.places.get(name).copied(),
        }
    }

    /// Adds a rule for a name that has no rule yet.
    fn push(&mut self, name: &str, rule: Rule) {
        self.fields.push((name.into(), rule));
        let (places, count) = (&mut self.places, self.fields.len());
        match count.checked_sub(FEW_RULES_MAX) {
            None | Some(0) => {}
            Some(1) => {
                let names = self.fields.iter().map(|(name, _)| name.clone());
                places.extend(names.zip(0..));
            }
            Some(_) => {
                places.insert(self.fields[count - 1].0.clone(), count - 1);
            }
        }
    }

    /// Returns the number of rules, or `None` if one of them may take long.
    fn cheap_count(&self) -> Option<usize> {
        let count = |rule: &Rule| match rule {
            Rule::Computed(_) => None,
            Rule::ElemMatch(filter) => filter.is_cheap().then_some(1),
            Rule::Nested(inner) => inner.cheap_count(),
            Rule::Include | Rule::Exclude | Rule::Slice { .. } | Rule::Positional => Some(1),
        };
        self.fields.iter().map(|(_, rule)| count(rule)).sum()
    }

    fn has_computed(&self) -> bool {
        self.fields.iter().any(|(_, rule)| match rule {
            Rule::Computed(_) => true,
            Rule::Nested(inner) => inner.has_computed(),
            _ => false,
        })
    }
}
