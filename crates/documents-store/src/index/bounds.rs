//! Bounds of an index scan.

use std::ops::Bound;

use bson::{RawBson, RawBsonRef};
use forebay_documents_query::key;

use super::IndexKind;
use super::keys::encode;
use super::spec::{IndexField, IndexSpec};
use crate::engine::{KeyRange, successor};

/// The range of index entries to read: equal values for the first fields, then a range of the next field.
///
/// Values compare by BSON order across types. To get only numbers, the caller bounds both sides with numbers. Each
/// array element has a separate entry. An empty array has the entry `undefined`; a missing field has `null`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct IndexBounds {
    /// Values of the first fields.
    pub equal: Vec<RawBson>,
    /// Lower bound of the next field.
    pub lower: BoundValue,
    /// Upper bound of the next field.
    pub upper: BoundValue,
    /// If set, the two bounds are ignored. Instead, the next field must be a string with this prefix.
    pub string_prefix: Option<String>,
}

/// One end of a range; unbounded by default.
#[derive(Debug, Clone, PartialEq)]
pub struct BoundValue(pub Bound<RawBson>);

impl Default for BoundValue {
    fn default() -> Self {
        Self(Bound::Unbounded)
    }
}

impl IndexBounds {
    /// Returns bounds that include all entries.
    pub fn all() -> Self {
        Self::default()
    }

    /// Returns bounds for the entries that begin with these values.
    pub fn equal(values: Vec<RawBson>) -> Self {
        Self {
            equal: values,
            ..Self::default()
        }
    }

    /// Returns bounds for the entries that begin with the values `equal`, and whose next field is between two values.
    pub fn range(equal: Vec<RawBson>, lower: Bound<RawBson>, upper: Bound<RawBson>) -> Self {
        Self {
            equal,
            lower: BoundValue(lower),
            upper: BoundValue(upper),
            string_prefix: None,
        }
    }

    /// Returns bounds for the entries that begin with the values `equal`, and whose next field is a string that begins
    /// with `prefix`.
    pub fn string_prefix(equal: Vec<RawBson>, prefix: impl Into<String>) -> Self {
        Self {
            equal,
            string_prefix: Some(prefix.into()),
            ..Self::default()
        }
    }

    /// Returns the range of index keys within the bounds. Ignores values beyond the fields of the index.
    pub(crate) fn key_range(&self, spec: &IndexSpec) -> KeyRange {
        let mut prefix = Vec::new();
        for (value, field) in self.equal.iter().zip(&spec.fields) {
            put(&mut prefix, value, field);
        }
        match (spec.fields.get(self.equal.len()), &self.string_prefix) {
            (Some(field), Some(string)) => string_range(prefix, string, field),
            (Some(field), None) => self.last_range(prefix, field),
            (None, _) => KeyRange::prefix(&prefix),
        }
    }

    fn last_range(&self, prefix: Vec<u8>, field: &IndexField) -> KeyRange {
        let (first, last) = match field.kind {
            IndexKind::Descending => (&self.upper, &self.lower),
            IndexKind::Ascending | IndexKind::Cache => (&self.lower, &self.upper),
        };
        let with = |value: &RawBson| {
            let mut key = prefix.clone();
            put(&mut key, value, field);
            key
        };
        // A successor always exists: only a prefix that consists of 0xFF bytes has none, and no encoded key begins with
        // 0xFF.
        let behind = |value: &RawBson| successor(&with(value));
        let start = match &first.0 {
            Bound::Included(value) => Some(with(value)),
            Bound::Excluded(value) => behind(value),
            Bound::Unbounded => Some(prefix.clone()),
        };
        let end = match &last.0 {
            Bound::Included(value) => behind(value),
            Bound::Excluded(value) => Some(with(value)),
            Bound::Unbounded => successor(&prefix),
        };
        match start {
            Some(start) => KeyRange { start, end },
            None => KeyRange {
                start: Vec::new(),
                end: Some(Vec::new()),
            },
        }
    }
}

fn string_range(mut prefix: Vec<u8>, string: &str, field: &IndexField) -> KeyRange {
    let mut encoded = key::string_prefix(string);
    if field.kind == IndexKind::Descending {
        encoded.iter_mut().for_each(|byte| *byte = !*byte);
    }
    prefix.extend_from_slice(&encoded);
    KeyRange::prefix(&prefix)
}

fn put(key: &mut Vec<u8>, value: &RawBson, field: &IndexField) {
    let value: RawBsonRef<'_> = value.as_raw_bson_ref();
    encode(value, field.kind, key);
}
