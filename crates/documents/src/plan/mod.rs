//! Plans: how to find the documents that match a filter.
//!
//! The order of preference is: by `_id`; by equality on every field of a unique index; in the cache, if it evaluates
//! the whole filter; by equality on leading fields of an index; in the cache, if it evaluates a part of the filter; by
//! another index, or one index for each branch of an `$or`; by a scan. In each case, every document that is read is
//! checked against the whole filter.

mod bounds;
mod describe;
mod index;
mod open;

use std::sync::Arc;

use bson::{RawBson, RawBsonRef, RawDocument};
use forebay_documents_query::filter::{Node, Test};
use forebay_documents_query::{Code, Filter, Sort};
use forebay_documents_store::{Direction, IndexStatus};

use crate::collections::OpenCollection;
use crate::error::CommandError;
use crate::search::{NotUsed, PlanOptions, SearchPlan, Tally};
use crate::streams::{Part, Range};

pub use describe::{Run, execute_values};
pub use index::IndexAccess;

/// The requirements of a query on its plan, besides the filter.
#[derive(Debug, Clone, Default)]
pub struct PlanRequirements<'a> {
    /// The requested order.
    pub sort: Option<&'a Sort>,
    /// The client's hint.
    pub hint: Option<Hint>,
    /// Whether a fallback from a cached field to a scan is an error.
    pub strict: bool,
}

/// The access path that the client requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// The index of this name.
    Index(String),
    /// A scan in ascending or descending order of record numbers.
    Natural(Direction),
}

/// The access path to the matches.
pub enum Access {
    /// There are no matches.
    Nothing,
    /// By `_id`.
    Id(RawBson),
    /// In the cache of field values.
    Cache(Box<SearchPlan>),
    /// In ranges of an index.
    Index(IndexAccess),
    /// In ranges of several indexes, which together hold the matches of an `$or`.
    Union(Vec<IndexAccess>),
    /// By reading the whole collection.
    Scan {
        /// Ascending or descending order of record numbers.
        direction: Direction,
    },
}

/// A plan for one query on one collection.
pub struct Plan {
    /// The collection.
    pub collection: Arc<OpenCollection>,
    /// The whole filter.
    pub filter: Arc<Filter>,
    /// The access path to the matches.
    pub access: Access,
    /// Whether the plan yields the matches in the requested order.
    pub is_sorted: bool,
    /// The reason why the plan does not use the cache, or `None` if it does.
    pub cache_not_used: Option<NotUsed>,
    /// Counts of the keys and documents that executions of the plan have read. Unused if the plan searches the cache.
    tally: Arc<Tally>,
}

impl Plan {
    /// Plans a query.
    ///
    /// # Errors
    /// `BadValue` for a hint to an index that does not exist or, in strict mode, for a search that would scan.
    pub fn new(
        collection: Arc<OpenCollection>,
        filter: Arc<Filter>,
        requirements: &PlanRequirements<'_>,
    ) -> Result<Arc<Plan>, CommandError> {
        let mut plan = Plan {
            collection,
            filter,
            access: Access::Nothing,
            is_sorted: false,
            cache_not_used: None,
            tally: Arc::default(),
        };
        plan.choose(requirements)?;
        plan.refuse_fall_back(requirements)?;
        Ok(Arc::new(plan))
    }

    fn choose(&mut self, requirements: &PlanRequirements<'_>) -> Result<(), CommandError> {
        if let Some(hint) = &requirements.hint {
            return self.follow(hint, requirements);
        }
        if matches!(self.filter.root(), Node::AlwaysFalse) {
            return Ok(());
        }
        if let Some(id) = id_of(self.filter.root()) {
            self.access = Access::Id(id);
            self.is_sorted = true;
            return Ok(());
        }
        self.choose_by_rank(requirements);
        Ok(())
    }

    /// Chooses the access path, in this order of preference: a unique index if the filter gives its whole key; the
    /// cache if it evaluates the whole filter; an index if the filter gives the values of leading fields; the cache if
    /// it evaluates a part of the filter; another index; a scan.
    fn choose_by_rank(&mut self, requirements: &PlanRequirements<'_>) {
        let best = index::best(
            &self.collection.store.indexes(),
            self.filter.root(),
            requirements.sort,
        );
        if let Some(best) = best.as_ref().filter(|best| best.is_point) {
            return self.use_index(best.clone());
        }
        match self
            .collection
            .search
            .plan(&self.filter, &PlanOptions::default())
        {
            Ok(search) if search.is_exact() || best.as_ref().is_none_or(|best| best.equal == 0) => {
                self.use_cache(search)
            }
            Ok(_) => self.use_index_or_scan(best),
            Err(not_used) => {
                self.cache_not_used = Some(not_used);
                self.use_index_or_scan(best);
            }
        }
    }

    fn use_cache(&mut self, search: SearchPlan) {
        self.access = Access::Cache(Box::new(search));
    }

    fn use_index(&mut self, index: IndexAccess) {
        self.is_sorted = index.is_sorted;
        self.access = Access::Index(index);
    }

    /// Chooses the access path, in this order of preference: `index`, which skips documents or yields the requested
    /// order; one index for each branch of an `$or`; a scan.
    fn use_index_or_scan(&mut self, index: Option<IndexAccess>) {
        if let Some(index) = index {
            return self.use_index(index);
        }
        let union = index::union(&self.collection.store.indexes(), self.filter.root());
        self.access = union.map_or(
            Access::Scan {
                direction: Direction::Forward,
            },
            Access::Union,
        );
    }

    fn follow(
        &mut self,
        hint: &Hint,
        requirements: &PlanRequirements<'_>,
    ) -> Result<(), CommandError> {
        match hint {
            Hint::Natural(direction) => {
                self.access = Access::Scan {
                    direction: *direction,
                }
            }
            Hint::Index(name) => {
                let indexes = self.collection.store.indexes();
                let index = indexes
                    .iter()
                    .find(|index| index.spec.name == *name)
                    .ok_or_else(bad_hint)?;
                self.follow_index(index, requirements)?;
            }
        }
        Ok(())
    }

    fn follow_index(
        &mut self,
        index: &IndexStatus,
        requirements: &PlanRequirements<'_>,
    ) -> Result<(), CommandError> {
        if !index.spec.is_cache() {
            let access =
                index::access(index, self.filter.root(), requirements.sort).ok_or_else(bad_hint)?;
            self.use_index(access);
            return Ok(());
        }
        let options = PlanOptions {
            hint: Some(index.spec.name.clone()),
            ..PlanOptions::default()
        };
        match self.collection.search.plan(&self.filter, &options) {
            Ok(search) => self.use_cache(search),
            Err(not_used) => {
                self.cache_not_used = Some(not_used);
                self.access = Access::Scan {
                    direction: Direction::Forward,
                };
            }
        }
        Ok(())
    }

    fn refuse_fall_back(&self, requirements: &PlanRequirements<'_>) -> Result<(), CommandError> {
        match (&self.access, &self.cache_not_used) {
            (Access::Scan { .. }, Some(not_used))
                if requirements.strict && not_used.is_fallback() =>
            {
                Err(CommandError::from(not_used.strict_error()))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the `_id` of all matches, if the filter requires a specific `_id`.
fn id_of(node: &Node) -> Option<RawBson> {
    match node {
        Node::And(nodes) => nodes.iter().find_map(id_of),
        Node::Leaf {
            path,
            test: Test::Eq(value),
        } if path.as_str() == "_id" && is_stored_id(value) => Some(value.clone()),
        _ => None,
    }
}

/// Returns whether an `_id` value can be looked up. Arrays and patterns are never stored as an `_id`, and null also
/// matches a missing field.
fn is_stored_id(value: &RawBson) -> bool {
    !matches!(
        value,
        RawBson::Array(_) | RawBson::RegularExpression(_) | RawBson::Undefined
    )
}

fn bad_hint() -> CommandError {
    CommandError::bad_value(
        "error processing query: planner returned error :: caused by :: hint provided does not correspond to an existing index",
    )
}

/// Reads a hint: an index's name, its key pattern, or `{$natural: ±1}`.
///
/// # Errors
/// `BadValue` for a key pattern that no index has, `FailedToParse` for a value of another type.
pub fn hint(
    collection: &OpenCollection,
    value: Option<RawBsonRef<'_>>,
) -> Result<Option<Hint>, CommandError> {
    match value {
        None | Some(RawBsonRef::Null) => Ok(None),
        Some(RawBsonRef::String("$natural")) => Ok(Some(Hint::Natural(Direction::Forward))),
        Some(RawBsonRef::String(name)) => Ok(Some(Hint::Index(name.to_owned()))),
        Some(RawBsonRef::Document(pattern)) if pattern.is_empty() => Ok(None),
        Some(RawBsonRef::Document(pattern)) => hint_of_pattern(collection, pattern).map(Some),
        Some(_) => check_hint(value).map(|()| None),
    }
}

/// Rejects values that cannot be a hint for any collection.
///
/// # Errors
/// `FailedToParse`.
pub fn check_hint(value: Option<RawBsonRef<'_>>) -> Result<(), CommandError> {
    match value {
        None | Some(RawBsonRef::Null | RawBsonRef::String(_) | RawBsonRef::Document(_)) => Ok(()),
        Some(_) => Err(CommandError::refused(
            Code::FailedToParse,
            "Hint must be a string or an object",
        )),
    }
}

fn hint_of_pattern(
    collection: &OpenCollection,
    pattern: &RawDocument,
) -> Result<Hint, CommandError> {
    if let Some(direction) = natural(pattern) {
        return Ok(Hint::Natural(direction));
    }
    let indexes = collection.store.indexes();
    let found = indexes
        .iter()
        .find(|index| same_pattern(&index.spec.pattern(), pattern));
    found
        .map(|index| Hint::Index(index.spec.name.clone()))
        .ok_or_else(bad_hint)
}

/// Returns the direction of `{$natural: ±1}`.
pub fn natural(pattern: &RawDocument) -> Option<Direction> {
    let direction = pattern
        .get("$natural")
        .ok()
        .flatten()
        .and_then(crate::arguments::integer)?;
    Some(if direction < 0 {
        Direction::Backward
    } else {
        Direction::Forward
    })
}

/// Returns whether two key patterns are equal, regardless of the types of their numbers.
pub fn same_pattern(a: &RawDocument, b: &RawDocument) -> bool {
    let (a, b): (Vec<_>, Vec<_>) = (a.iter().flatten().collect(), b.iter().flatten().collect());
    let same =
        |a: RawBsonRef<'_>, b: RawBsonRef<'_>| forebay_documents_query::compare(a, b).is_eq();
    a.len() == b.len()
        && a.iter()
            .zip(&b)
            .all(|(a, b)| a.0.as_str() == b.0.as_str() && same(a.1, b.1))
}

impl From<&IndexAccess> for Range {
    fn from(access: &IndexAccess) -> Range {
        Range {
            parts: parts(access).collect(),
            direction: access.direction,
            repeats: access.ranges.len() > 1,
            is_short: access.is_point,
        }
    }
}

impl From<&[IndexAccess]> for Range {
    fn from(union: &[IndexAccess]) -> Range {
        Range {
            parts: union.iter().flat_map(parts).collect(),
            direction: Direction::Forward,
            repeats: true,
            is_short: union.iter().all(|access| access.is_point) && union.len() <= SHORT_MAX,
        }
    }
}

/// Maximum index paths of a union that is walked on a network thread. Each path yields at most one document.
const SHORT_MAX: usize = 64;

fn parts(access: &IndexAccess) -> impl Iterator<Item = Part> {
    access.ranges.iter().map(|bounds| Part {
        index: access.spec.clone(),
        bounds: bounds.clone(),
    })
}
