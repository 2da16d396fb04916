//! Projections: which fields of a document are shown, and which are computed.
//!
//! One tree of rules serves the projection of `find`, and the stages `$project`, `$set` (`$addFields`) and `$unset`.

mod apply;
mod parse;

use std::collections::HashMap;
use std::sync::Arc;

use bson::DateTime;
use bson::raw::{RawBsonRef, RawDocument, RawDocumentBuf};
use forebay_cancel::SharedStop;

use crate::element::check_depth;
use crate::error::Error;
use crate::expr::Expression;
use crate::filter::Filter;
use crate::limits::Limits;

/// Maximum rules of a cheap projection.
const CHEAP_RULES_MAX: usize = 32;

/// A parsed projection.
#[derive(Debug, Clone)]
pub struct Projection {
    mode: Mode,
    rules: Rules,
    positional: bool,
    /// The cancellation token of the command, checked before each computed field.
    stop: Arc<SharedStop>,
}

/// What happens to fields that no rule names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// They are left out.
    Include,
    /// They are kept.
    Exclude,
    /// They are kept, and computed fields replace existing fields.
    Add,
}

/// The rules for the fields of one document.
#[derive(Debug, Clone, Default)]
struct Rules {
    fields: Vec<(Box<str>, Rule)>,
    /// The index of each name in `fields`.
    places: HashMap<Box<str>, usize>,
}

/// What happens to one field.
#[derive(Debug, Clone)]
enum Rule {
    Include,
    Exclude,
    Computed(Expression),
    /// `$slice` of `find`: `count` elements, from a position or from an end.
    Slice {
        position: Option<i64>,
        count: i64,
    },
    /// `$elemMatch` of `find`: the first element that passes.
    ElemMatch(Filter),
    /// `field.$`: the element that the query matched.
    Positional,
    Nested(Rules),
}

/// What a projection depends on besides the document.
#[derive(Debug, Clone, Copy)]
pub struct ProjectionContext {
    /// `$$NOW`.
    pub now: DateTime,
    /// The array element that the query matched (see [`Filter::match_position`](crate::Filter::match_position)); only
    /// projections that are [`Projection::is_positional`] need it.
    pub position: Option<usize>,
}

impl Projection {
    /// Parses the projection of `find` and `findAndModify`.
    ///
    /// # Errors
    /// 31253 and 31254 for a mix of inclusion and exclusion, 31249 and 31250 for paths that collide, 31275, 31276 and
    /// others for the operators' own rules.
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

    /// The projection that leaves out the fields at `paths`.
    pub(crate) fn excluding<'p>(paths: impl Iterator<Item = &'p str>) -> Result<Projection, Error> {
        parse::excluding(paths)
    }

    /// Returns whether the projection uses `field.$`, which needs the position of the match.
    pub fn is_positional(&self) -> bool {
        self.positional
    }

    /// Returns whether reshaping a document of a few kilobytes takes microseconds, whatever the client wrote: a few
    /// rules, and no expressions.
    pub fn is_cheap(&self) -> bool {
        self.rules
            .cheap_count()
            .is_some_and(|rules| rules <= CHEAP_RULES_MAX)
    }

    /// The projected document.
    ///
    /// # Errors
    /// Those of computed fields; 51246 if `field.$` has no element.
    pub fn apply(
        &self,
        document: &RawDocument,
        context: &ProjectionContext,
    ) -> Result<RawDocumentBuf, Error> {
        apply::apply(self, document, context)
    }
}

impl Rules {
    fn find(&self, name: &str) -> Option<&Rule> {
        self.place(name).map(|place| &self.fields[place].1)
    }

    /// A few names are compared one by one, which avoids hashing each name of a document.
    fn place(&self, name: &str) -> Option<usize> {
        const FEW: usize = 8;
        match self.fields.len() <= FEW {
            true => self.fields.iter().position(|(known, _)| &**known == name),
            false => self.places.get(name).copied(),
        }
    }

    /// Adds a rule for a name that has none yet.
    fn push(&mut self, name: &str, rule: Rule) {
        self.places.insert(name.into(), self.fields.len());
        self.fields.push((name.into(), rule));
    }

    /// The number of rules. Returns `None` if one of them may take long.
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
