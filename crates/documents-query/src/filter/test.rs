//! The tests that a leaf applies to a value.

use bson::raw::{RawBson, RawBsonRef};

use super::matching::Walk;
use super::{BitTest, InList, Node, Regex, TypeSet};
use crate::compare::{Class, class, compare, equal};
use crate::element::{array_elements, array_values};
use crate::number::Number;
use crate::path::Leaf;

/// A comparison other than equality.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeOp {
    /// `$lt`
    Lt,
    /// `$lte`
    Lte,
    /// `$gt`
    Gt,
    /// `$gte`
    Gte,
}

/// A test of one value.
#[derive(Debug, Clone)]
pub enum Test {
    /// `$eq`: equality across types. Null also equals a missing field.
    Eq(RawBson),
    /// `$lt`, `$lte`, `$gt`, `$gte`: the value has the operand's class, and the comparison with the operand holds.
    Range {
        /// The comparison.
        op: RangeOp,
        /// The operand.
        value: RawBson,
    },
    /// `$in`: the value equals a value in the list or matches a pattern in it.
    In(InList),
    /// `$regex`: the value matches the pattern.
    Regex(Regex),
    /// `{$exists: true}`: the field exists.
    Exists,
    /// `$type`: the value has one of the types.
    Type(TypeSet),
    /// `$mod`: the division of the value by the divisor leaves the remainder.
    Mod {
        /// The divisor, never zero.
        divisor: i64,
        /// The remainder.
        remainder: i64,
    },
    /// `$size`: the value is an array with this number of elements.
    Size(u64),
    /// `$elemMatch` with operators: the operators test the elements themselves, and at least one element passes all of
    /// them.
    ElemMatchValue(Box<Node>),
    /// `$elemMatch` with a query: at least one element that is a document or an array matches.
    ElemMatchObject(Box<Node>),
    /// `$bitsAllSet`, `$bitsAllClear`, `$bitsAnySet`, `$bitsAnyClear`.
    Bits(BitTest),
}

impl Test {
    /// Returns how this test treats an array at the end of its path.
    pub fn leaf(&self) -> Leaf {
        match self {
            Test::Size(_) | Test::ElemMatchValue(_) | Test::ElemMatchObject(_) => Leaf::Whole,
            _ => Leaf::Expand,
        }
    }

    /// Returns whether the value passes. `None` is a missing field.
    pub(super) fn passes(&self, value: Option<RawBsonRef<'_>>, walk: &mut Walk<'_>) -> bool {
        let Some(value) = value else {
            return self.passes_missing();
        };
        match self {
            Test::Eq(wanted) => equal(value, wanted.as_raw_bson_ref()),
            Test::Range { op, value: bound } => in_range(*op, value, bound.as_raw_bson_ref()),
            Test::In(list) => list.contains(value, walk),
            Test::Regex(regex) => regex.matches(value, walk),
            Test::Exists => true,
            Test::Type(types) => types.contains(value.element_type()),
            Test::Mod { divisor, remainder } => has_remainder(value, *divisor, *remainder),
            Test::Size(size) => {
                matches!(value, RawBsonRef::Array(array) if array_elements(array).count() as u64 == *size)
            }
            Test::ElemMatchValue(_) | Test::ElemMatchObject(_) => {
                self.element_index(value, walk).is_some()
            }
            Test::Bits(bits) => bits.passes(value),
        }
    }

    /// Returns the index of the first element that an `$elemMatch` matches.
    pub(super) fn element_index(
        &self,
        value: RawBsonRef<'_>,
        walk: &mut Walk<'_>,
    ) -> Option<usize> {
        let RawBsonRef::Array(array) = value else {
            return None;
        };
        match self {
            Test::ElemMatchValue(node) => {
                array_values(array).position(|element| node.matches_value(element, walk))
            }
            Test::ElemMatchObject(node) => {
                array_values(array).position(|element| node.matches_container(element, walk))
            }
            _ => None,
        }
    }

    fn passes_missing(&self) -> bool {
        match self {
            Test::Eq(wanted) => *wanted == RawBson::Null,
            Test::Range { op, value } => range_takes_missing(*op, value.as_raw_bson_ref()),
            Test::In(list) => list.has_null(),
            _ => false,
        }
    }
}

fn range_takes_missing(op: RangeOp, bound: RawBsonRef<'_>) -> bool {
    match bound {
        RawBsonRef::Null => matches!(op, RangeOp::Lte | RangeOp::Gte),
        RawBsonRef::MaxKey => matches!(op, RangeOp::Lt | RangeOp::Lte),
        RawBsonRef::MinKey => matches!(op, RangeOp::Gt | RangeOp::Gte),
        _ => false,
    }
}

/// Tests a range. Values of another class than the bound are outside the range, except that all values are between
/// MinKey and MaxKey.
fn in_range(op: RangeOp, value: RawBsonRef<'_>, bound: RawBsonRef<'_>) -> bool {
    if class(value) != class(bound) {
        return match bound {
            RawBsonRef::MaxKey => matches!(op, RangeOp::Lt | RangeOp::Lte),
            RawBsonRef::MinKey => matches!(op, RangeOp::Gt | RangeOp::Gte),
            _ => false,
        };
    }
    if class(value) == Class::Number && (is_nan(value) || is_nan(bound)) {
        return is_nan(value) && is_nan(bound) && matches!(op, RangeOp::Lte | RangeOp::Gte);
    }
    let order = compare(value, bound);
    match op {
        RangeOp::Lt => order.is_lt(),
        RangeOp::Lte => order.is_le(),
        RangeOp::Gt => order.is_gt(),
        RangeOp::Gte => order.is_ge(),
    }
}

fn is_nan(value: RawBsonRef<'_>) -> bool {
    Number::of(value).is_some_and(Number::is_nan)
}

/// Tests `$mod`. Fractions are truncated first. NaN, infinities and numbers beyond 64 bits never match.
fn has_remainder(value: RawBsonRef<'_>, divisor: i64, remainder: i64) -> bool {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    let Some(number) = Number::of(value) else {
        return false;
    };
    if !matches!(number, Number::Integer(_)) && !(-LIMIT..LIMIT).contains(&number.to_f64()) {
        return false;
    }
    number.to_i64_truncated().wrapping_rem(divisor) == remainder
}
