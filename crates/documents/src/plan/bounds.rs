//! Derives from a filter the ranges of an index that contain all matches.
//!
//! The ranges may contain other documents, because each document is checked against the whole filter again. They must
//! never miss a match, so a test that this module does not understand sets no bound.

use std::ops::Bound;

use bson::{RawBson, RawDocumentBuf};
use forebay_documents_query::filter::{Node, RangeOp, Test};
use forebay_documents_store::{IndexBounds, IndexField, IndexKind};

/// Maximum number of ranges from `$in` lists or from the branches of an `$or`, in total.
pub const RANGES_MAX: usize = 1000;

/// The index ranges that a filter yields.
#[derive(Debug, Clone)]
pub struct Bounded {
    /// The ranges.
    pub ranges: Vec<IndexBounds>,
    /// Whether a walk over the ranges yields keys in index order. True if each of the `equal` fields has only one
    /// value.
    pub in_order: bool,
    /// Number of leading fields that are bound to one or several values.
    pub equal: usize,
    /// Whether the next field after the `equal` ones is bound to a range or a prefix.
    pub range: bool,
}

/// The bound of one field.
#[derive(Debug, Clone)]
enum Held {
    /// No bound that an index can use.
    Nothing,
    /// Values between a lower and an upper bound.
    Between(Ends),
    /// Strings with this prefix, and stored regular expressions that equal the pattern.
    Beginning { prefix: String, pattern: RawBson },
}

/// Returns ranges of an index that together contain every match of `filter`. `fields` are the fields of the index.
///
/// If the index is `multikey`, a document may have several keys, and different elements of an array may satisfy the two
/// ends of a range. Only one end is therefore used. For the same reason, if the paths of several fields begin with the
/// same name and therefore may lie below one array, only the first of these fields is bound.
pub fn bounds(filter: &Node, fields: &[IndexField], multikey: bool) -> Bounded {
    let mut tests = Vec::new();
    collect(filter, &mut tests);
    let mut prefixes: Vec<Vec<RawBson>> = vec![Vec::new()];
    for (equal, field) in fields.iter().enumerate() {
        if multikey
            && fields[..equal]
                .iter()
                .any(|held| may_share_array(held, field))
        {
            return held(prefixes, field, equal, Held::Nothing);
        }
        let mine = || {
            tests
                .iter()
                .filter(|(path, _)| *path == field.path)
                .map(|(_, test)| *test)
        };
        match mine()
            .find_map(equal_values)
            .filter(|values| values.len() * prefixes.len() <= RANGES_MAX)
        {
            Some(values) => prefixes = extend(&prefixes, &values),
            None => {
                let last = beginning(mine()).unwrap_or_else(|| range(mine(), multikey));
                return held(prefixes, field, equal, last);
            }
        }
    }
    Bounded {
        in_order: prefixes.len() == 1,
        ranges: prefixes.into_iter().map(IndexBounds::equal).collect(),
        equal: fields.len(),
        range: false,
    }
}

/// Returns whether different elements of one array may hold the values of both fields.
fn may_share_array(one: &IndexField, other: &IndexField) -> bool {
    one.path.split('.').next() == other.path.split('.').next()
}

/// Collects the tests that every match passes, with their paths.
fn collect<'a>(node: &'a Node, tests: &mut Vec<(&'a str, &'a Test)>) {
    match node {
        Node::And(nodes) => nodes.iter().for_each(|node| collect(node, tests)),
        Node::Or(nodes) if nodes.len() == 1 => collect(&nodes[0], tests),
        Node::Leaf { path, test } => tests.push((path.as_str(), test)),
        _ => {}
    }
}

/// Returns the only values that a test accepts. Returns `None` if the test accepts other values too, or if an index
/// cannot find all matches of these values.
fn equal_values(test: &Test) -> Option<Vec<RawBson>> {
    let values = match test {
        Test::Eq(value) => vec![value.clone()],
        Test::In(list) if list.patterns().is_empty() => list.values().to_vec(),
        _ => return None,
    };
    values.iter().all(is_findable).then_some(values)
}

/// Returns whether an index finds all matches of a value under one key. Returns false for an array, which is indexed by
/// its elements, for null, which also matches missing fields, and for a pattern.
fn is_findable(value: &RawBson) -> bool {
    !matches!(
        value,
        RawBson::Array(_) | RawBson::Null | RawBson::Undefined | RawBson::RegularExpression(_)
    )
}

fn extend(prefixes: &[Vec<RawBson>], values: &[RawBson]) -> Vec<Vec<RawBson>> {
    let with =
        |prefix: &Vec<RawBson>, value: &RawBson| prefix.iter().chain([value]).cloned().collect();
    prefixes
        .iter()
        .flat_map(|prefix| values.iter().map(move |value| with(prefix, value)))
        .collect()
}

type Ends = (Bound<RawBson>, Bound<RawBson>);

/// Returns one or two ranges for each of `prefixes`. In each range, the first `equal` fields have the values of the
/// prefix, and `field` has the bound `last`.
fn held(prefixes: Vec<Vec<RawBson>>, field: &IndexField, equal: usize, last: Held) -> Bounded {
    Bounded {
        in_order: prefixes.len() == 1,
        equal,
        range: !matches!(last, Held::Nothing),
        ranges: prefixes
            .into_iter()
            .flat_map(|prefix| ranges(prefix, field, &last))
            .collect(),
    }
}

/// Returns the ranges of one prefix, in the order of the index.
fn ranges(prefix: Vec<RawBson>, field: &IndexField, last: &Held) -> Vec<IndexBounds> {
    match last {
        Held::Nothing => vec![IndexBounds::equal(prefix)],
        Held::Between((lower, upper)) => {
            vec![IndexBounds::range(prefix, lower.clone(), upper.clone())]
        }
        Held::Beginning {
            prefix: string,
            pattern,
        } => {
            let only = || Bound::Included(pattern.clone());
            // Patterns come after strings in BSON's order of types.
            let mut ranges = vec![
                IndexBounds::string_prefix(prefix.clone(), string),
                IndexBounds::range(prefix, only(), only()),
            ];
            if field.kind == IndexKind::Descending {
                ranges.reverse();
            }
            ranges
        }
    }
}

/// Returns the common prefix of all strings that match a pattern. Uses the first pattern with such a prefix among a
/// field's tests.
fn beginning<'a>(mut tests: impl Iterator<Item = &'a Test>) -> Option<Held> {
    tests.find_map(|test| {
        let Test::Regex(regex) = test else {
            return None;
        };
        let prefix = std::str::from_utf8(regex.program().value_prefix()).ok()?;
        let pattern = bson::Regex {
            pattern: regex.source().try_into().ok()?,
            options: regex.options().try_into().ok()?,
        };
        (!prefix.is_empty()).then(|| Held::Beginning {
            prefix: prefix.to_owned(),
            pattern: RawBson::RegularExpression(pattern),
        })
    })
}

/// Returns the range of the values that pass all comparisons among a field's tests. For a multikey index, uses only the
/// first comparison.
fn range<'a>(tests: impl Iterator<Item = &'a Test>, multikey: bool) -> Held {
    let mut comparisons = tests.filter_map(comparison);
    let Some((op, value)) = comparisons.next() else {
        return Held::Nothing;
    };
    let mut ends = ends_of(op, value);
    if !multikey {
        comparisons.for_each(|(op, value)| narrow(&mut ends, op, value));
    }
    Held::Between(ends)
}

fn comparison(test: &Test) -> Option<(RangeOp, &RawBson)> {
    match test {
        Test::Range { op, value }
            if is_findable(value) && !matches!(value, RawBson::MinKey | RawBson::MaxKey) =>
        {
            Some((*op, value))
        }
        _ => None,
    }
}

/// Returns the range of the values that pass one comparison with `value`. A comparison bounds only one end. The other
/// end comes from [`class_ends`].
fn ends_of(op: RangeOp, value: &RawBson) -> Ends {
    let (first, behind) = class_ends(value);
    match op {
        RangeOp::Lt => (first, Bound::Excluded(value.clone())),
        RangeOp::Lte => (first, Bound::Included(value.clone())),
        RangeOp::Gt => (Bound::Excluded(value.clone()), behind),
        RangeOp::Gte => (Bound::Included(value.clone()), behind),
    }
}

/// Narrows one end of the range by a further comparison. Does nothing if an earlier comparison has bounded the same
/// end.
fn narrow(ends: &mut Ends, op: RangeOp, value: &RawBson) {
    let (lower, upper) = class_ends(value);
    if ends.0 == lower && matches!(op, RangeOp::Gt | RangeOp::Gte) {
        ends.0 = ends_of(op, value).0;
    }
    if ends.1 == upper && matches!(op, RangeOp::Lt | RangeOp::Lte) {
        ends.1 = ends_of(op, value).1;
    }
}

/// Returns the range, in BSON's order of types, of the values that are comparable with `value`. Returns an unbounded
/// range if `value` is neither a number nor a string.
fn class_ends(value: &RawBson) -> Ends {
    match value {
        RawBson::Int32(_) | RawBson::Int64(_) | RawBson::Double(_) | RawBson::Decimal128(_) => (
            Bound::Excluded(RawBson::Null),
            Bound::Excluded(RawBson::String(String::new())),
        ),
        RawBson::String(_) | RawBson::Symbol(_) => (
            Bound::Included(RawBson::String(String::new())),
            Bound::Excluded(RawBson::Document(RawDocumentBuf::new())),
        ),
        _ => (Bound::Unbounded, Bound::Unbounded),
    }
}

#[cfg(test)]
mod tests {
    use bson::{RawDocument, rawdoc};
    use forebay_documents_query::{Filter, Limits};

    use super::*;

    fn bounded(filter: &RawDocument, paths: &[&str], multikey: bool) -> Bounded {
        let filter = Filter::parse(filter, &Limits::default()).unwrap();
        let field = |path: &&str| IndexField {
            path: (*path).to_owned(),
            kind: IndexKind::Ascending,
        };
        bounds(
            filter.root(),
            &paths.iter().map(field).collect::<Vec<_>>(),
            multikey,
        )
    }

    #[test]
    fn equalities_then_a_range() {
        let found = bounded(
            &rawdoc! { "a": 1, "b": { "$gt": 2, "$lte": 9 }, "c": 3 },
            &["a", "b", "c"],
            false,
        );
        assert_eq!((found.equal, found.range), (1, true));
        let expected = IndexBounds::range(
            vec![RawBson::Int32(1)],
            Bound::Excluded(RawBson::Int32(2)),
            Bound::Included(RawBson::Int32(9)),
        );
        assert_eq!(found.ranges, [expected]);
    }

    #[test]
    fn lists_multiply() {
        let found = bounded(
            &rawdoc! { "a": { "$in": [1, 2] }, "b": { "$in": ["x", "y", "z"] } },
            &["a", "b"],
            false,
        );
        assert_eq!((found.ranges.len(), found.equal), (6, 2));
    }

    #[test]
    fn only_one_end_of_a_multikey_range_bounds() {
        let found = bounded(&rawdoc! { "a": { "$gt": 2, "$lt": 5 } }, &["a"], true);
        let expected = IndexBounds::range(
            vec![],
            Bound::Excluded(RawBson::Int32(2)),
            Bound::Excluded(RawBson::String(String::new())),
        );
        assert_eq!(found.ranges, [expected]);
    }

    #[test]
    fn only_the_first_of_multikey_fields_below_one_name_bounds() {
        let filter = rawdoc! { "a.x": 1, "b": 3, "a.y": { "$gt": 2 } };
        let equal = |paths: &[&str], multikey| {
            let found = bounded(&filter, paths, multikey);
            (found.equal, found.range)
        };
        assert_eq!(equal(&["a.x", "b", "a.y"], true), (2, false));
        assert_eq!(equal(&["a.x", "b", "a.y"], false), (2, true));
        assert_eq!(equal(&["b", "a.y", "a.x"], true), (1, true));
        assert_eq!(equal(&["a.x", "a.y", "b"], true), (1, false));
    }

    #[test]
    fn a_prefix_is_a_range_of_strings_and_the_pattern_itself() {
        let pattern = bson::Regex {
            pattern: "^ab.*c".try_into().unwrap(),
            options: "s".try_into().unwrap(),
        };
        let pattern = RawBson::RegularExpression(pattern);
        let filter = rawdoc! { "a": 1, "b": { "$regex": "^ab.*c", "$options": "s" } };
        let found = bounded(&filter, &["a", "b"], true);
        assert_eq!((found.equal, found.range, found.in_order), (1, true, true));
        let only = Bound::Included(pattern);
        let expected = [
            IndexBounds::string_prefix(vec![RawBson::Int32(1)], "ab"),
            IndexBounds::range(vec![RawBson::Int32(1)], only.clone(), only),
        ];
        assert_eq!(found.ranges, expected);
        for source in ["ab", "^", "(?i)^ab", "^ab|^c"] {
            let found = bounded(&rawdoc! { "a": { "$regex": source } }, &["a"], false);
            assert!(!found.range, "/{source}/");
        }
    }

    #[test]
    fn tests_that_one_key_cannot_decide_bound_nothing() {
        for filter in [
            rawdoc! { "a": null },
            rawdoc! { "a": [1] },
            rawdoc! { "a": { "$ne": 1 } },
            rawdoc! { "a": { "$in": [1, null] } },
            rawdoc! { "$or": [{ "a": 1 }, { "b": 1 }] },
            rawdoc! { "a": { "$gte": null } },
            rawdoc! { "b": 1 },
            rawdoc! {},
        ] {
            assert!(
                {
                    let found = bounded(&filter, &["a"], false);
                    found.equal == 0 && !found.range
                },
                "{filter:?}"
            );
        }
    }
}
