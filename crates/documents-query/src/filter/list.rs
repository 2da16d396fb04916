//! The list of `$in`.

use bson::raw::{RawBson, RawBsonRef};

use super::Regex;
use super::matching::Walk;
use crate::compare::compare;

/// The values and patterns of an `$in`.
#[derive(Debug, Clone, Default)]
pub struct InList {
    values: Vec<RawBson>,
    patterns: Vec<Regex>,
}

impl InList {
    /// A list of values, in any order and possibly with duplicates, and of patterns.
    pub fn new(mut values: Vec<RawBson>, patterns: Vec<Regex>) -> InList {
        values.sort_by(|a, b| compare(a.as_raw_bson_ref(), b.as_raw_bson_ref()));
        values.dedup_by(|a, b| compare(a.as_raw_bson_ref(), b.as_raw_bson_ref()).is_eq());
        InList { values, patterns }
    }

    /// The values, ascending, each once.
    pub fn values(&self) -> &[RawBson] {
        &self.values
    }

    /// The patterns.
    pub fn patterns(&self) -> &[Regex] {
        &self.patterns
    }

    /// Returns whether null, and so a missing field, is in the list.
    pub fn has_null(&self) -> bool {
        self.has_value(RawBsonRef::Null)
    }

    /// The only value of the list. Returns `None` if there are others, or patterns.
    pub(super) fn single(&self) -> Option<&RawBson> {
        match (self.values.as_slice(), self.patterns.is_empty()) {
            ([value], true) => Some(value),
            _ => None,
        }
    }

    pub(super) fn contains(&self, value: RawBsonRef<'_>, walk: &mut Walk<'_>) -> bool {
        let mut patterns = self.patterns.iter();
        self.has_value(value) || patterns.any(|pattern| pattern.matches(value, walk))
    }

    fn has_value(&self, value: RawBsonRef<'_>) -> bool {
        self.values
            .binary_search_by(|held| compare(held.as_raw_bson_ref(), value))
            .is_ok()
    }
}
