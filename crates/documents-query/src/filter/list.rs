//! The operand list of `$in`.

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
    /// Builds the list from patterns and values. The values may be in any order and have duplicates.
    pub fn new(mut values: Vec<RawBson>, patterns: Vec<Regex>) -> InList {
        values.sort_by(|a, b| compare(a.as_raw_bson_ref(), b.as_raw_bson_ref()));
        values.dedup_by(|a, b| compare(a.as_raw_bson_ref(), b.as_raw_bson_ref()).is_eq());
        InList { values, patterns }
    }

    /// Returns the values in ascending order, without duplicates.
    pub fn values(&self) -> &[RawBson] {
        &self.values
    }

    /// Returns the patterns.
    pub fn patterns(&self) -> &[Regex] {
        &self.patterns
    }

    /// Returns whether the list contains null, which also matches a missing field.
    pub fn has_null(&self) -> bool {
        self.has_value(RawBsonRef::Null)
    }

    /// Returns the only value of the list, or `None` if it has several values or any pattern.
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
