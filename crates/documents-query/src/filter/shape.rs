//! The shape of a filter without its values, for logs, which must not contain user data.

use std::fmt::{self, Write};

use super::{Filter, Node, RangeOp, Test};

/// Maximum characters of a shape.
const CHARACTERS_MAX: usize = 512;

impl Filter {
    /// Returns the filter with `?` in place of each value, as in `{name: {$regex: ?}}`, truncated to 512 characters.
    pub fn shape(&self) -> String {
        let mut shape = Truncated::default();
        // Writing fails only when the shape is long enough.
        let _ = match &self.root {
            Node::AlwaysTrue => shape.write_str("{}"),
            root => write!(shape, "{}", Shape(root)),
        };
        shape.text
    }
}

/// Text of at most [`CHARACTERS_MAX`] characters, and `…` if there would be more.
#[derive(Default)]
struct Truncated {
    text: String,
    character_count: usize,
}

impl fmt::Write for Truncated {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        for character in part.chars() {
            if self.character_count == CHARACTERS_MAX {
                self.text.push('…');
                return Err(fmt::Error);
            }
            self.text.push(character);
            self.character_count += 1;
        }
        Ok(())
    }
}

struct Shape<'a>(&'a Node);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Node::And(nodes) => list(f, "$and", nodes),
            Node::Or(nodes) => list(f, "$or", nodes),
            Node::Nor(nodes) => list(f, "$nor", nodes),
            Node::Not(node) => write!(f, "{{$not: {}}}", Shape(node)),
            Node::Leaf { path, test } if path.as_str().is_empty() => operand(f, test),
            Node::Leaf { path, test } => {
                write!(f, "{{{}: ", path.as_str())?;
                operand(f, test)?;
                f.write_str("}")
            }
            Node::Expr { .. } => f.write_str("{$expr: ?}"),
            Node::AlwaysTrue => f.write_str("{$alwaysTrue: 1}"),
            Node::AlwaysFalse => f.write_str("{$alwaysFalse: 1}"),
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, operator: &str, nodes: &[Node]) -> fmt::Result {
    write!(f, "{{{operator}: [")?;
    for (index, node) in nodes.iter().enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        write!(f, "{comma}{}", Shape(node))?;
    }
    f.write_str("]}")
}

fn operand(f: &mut fmt::Formatter<'_>, test: &Test) -> fmt::Result {
    match test {
        Test::Eq(_) => f.write_str("?"),
        Test::ElemMatchValue(node) | Test::ElemMatchObject(node) => {
            write!(f, "{{$elemMatch: {}}}", Shape(node))
        }
        test => write!(f, "{{{}: ?}}", operator(test)),
    }
}

fn operator(test: &Test) -> &'static str {
    match test {
        Test::Eq(_) => "$eq",
        Test::Range { op, .. } => match op {
            RangeOp::Lt => "$lt",
            RangeOp::Lte => "$lte",
            RangeOp::Gt => "$gt",
            RangeOp::Gte => "$gte",
        },
        Test::In(_) => "$in",
        Test::Regex(_) => "$regex",
        Test::Exists => "$exists",
        Test::Type(_) => "$type",
        Test::Mod { .. } => "$mod",
        Test::Size(_) => "$size",
        Test::ElemMatchValue(_) | Test::ElemMatchObject(_) => "$elemMatch",
        Test::Bits(_) => "$bits",
    }
}

#[cfg(test)]
mod tests {
    use bson::{RawDocumentBuf, rawdoc};

    use super::*;
    use crate::Limits;

    fn shape(filter: &RawDocumentBuf) -> String {
        Filter::parse(filter, &Limits::default())
            .expect("a filter")
            .shape()
    }

    #[test]
    fn a_shape_has_names_and_operators_but_no_values() {
        assert_eq!(shape(&rawdoc! {}), "{}");
        assert_eq!(shape(&rawdoc! { "a.b": "secret" }), "{a.b: ?}");
        let filter = rawdoc! { "name": { "$regex": "secret" }, "n": { "$gt": 5, "$ne": 7 } };
        assert_eq!(
            shape(&filter),
            "{$and: [{name: {$regex: ?}}, {$and: [{n: {$gt: ?}}, {$not: {n: ?}}]}]}"
        );
        let filter = rawdoc! { "$or": [{ "a": { "$in": ["secret"] } }, { "b": { "$elemMatch": { "c": 1 } } }] };
        assert_eq!(
            shape(&filter),
            "{$or: [{a: {$in: ?}}, {b: {$elemMatch: {c: ?}}}]}"
        );
    }

    #[test]
    fn a_long_shape_is_cut_between_characters() {
        let name = "ä".repeat(2 * CHARACTERS_MAX);
        let filter =
            RawDocumentBuf::from_iter([(bson::raw::CString::try_from(name).expect("no NUL"), 1)]);
        let shape = shape(&filter);
        assert_eq!(shape.chars().count(), CHARACTERS_MAX + 1);
        assert!(shape.ends_with("ä…"), "{shape}");
    }
}
