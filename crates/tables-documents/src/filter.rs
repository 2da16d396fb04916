//! Conditions of SQL as filters of MongoDB.
//!
//! A condition is true, false or unknown. A filter selects the documents for which a condition is true, or those for
//! which it is false; both leave out those for which it is unknown. On a column whose field is cached and holds only
//! strings, filters mean exactly the same as conditions. Otherwise filters may select more, for example a document
//! whose array contains the string, and the engine evaluates the condition again.

use bson::{Bson, DateTime, Document, Regex, doc, oid::ObjectId};
use datafusion::logical_expr::expr::{InList, Like};
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};
use datafusion::scalar::ScalarValue;

use crate::column::{Column, Columns, Kind};
use crate::pattern::{self, Pattern};

/// A filter that selects at least the documents for which a condition is true.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Filter {
    /// The filter.
    pub(crate) document: Document,
    /// Whether it selects exactly these documents.
    pub(crate) is_exact: bool,
}

/// Translates a condition. Returns `None` if a filter cannot leave out documents for which it is not true.
pub(crate) fn filter(condition: &Expr, columns: &Columns) -> Option<Filter> {
    translate(condition, columns, true)
}

/// Returns the filter of documents that all filters select.
pub(crate) fn all(mut filters: Vec<Document>) -> Document {
    match filters.len() {
        0 => Document::new(),
        1 => filters.remove(0),
        _ => doc! { "$and": filters },
    }
}

/// Translates a condition that is to be true, or false if `wanted` is `false`.
fn translate(condition: &Expr, columns: &Columns, wanted: bool) -> Option<Filter> {
    match condition {
        Expr::Not(inner) => translate(inner, columns, !wanted),
        Expr::IsNull(inner) => null(column(inner, columns)?, wanted),
        Expr::IsNotNull(inner) => null(column(inner, columns)?, !wanted),
        Expr::Like(like) => {
            let pattern = like_pattern(like)?;
            matching(
                column(&like.expr, columns)?,
                pattern,
                wanted != like.negated,
            )
        }
        Expr::InList(list) => in_list(list, columns, wanted != list.negated),
        Expr::BinaryExpr(binary) => operator(binary, columns, wanted),
        Expr::Column(found) => {
            let found = columns.get(&found.name)?;
            let test = doc! { &found.name: wanted };
            (found.kind == Kind::Bool && found.has_path()).then(|| inexact(test))
        }
        _ => None,
    }
}

fn operator(binary: &BinaryExpr, columns: &Columns, wanted: bool) -> Option<Filter> {
    let (left, right) = (&*binary.left, &*binary.right);
    let both = |wanted| {
        (
            translate(left, columns, wanted),
            translate(right, columns, wanted),
        )
    };
    match (binary.op, wanted) {
        (Operator::And, true) => conjunction(both(true)),
        (Operator::And, false) => disjunction(both(false)),
        (Operator::Or, true) => disjunction(both(true)),
        (Operator::Or, false) => conjunction(both(false)),
        (op, _) => match right {
            Expr::Literal(value, _) => comparison(column(left, columns)?, op, value, wanted),
            _ => match left {
                Expr::Literal(value, _) => {
                    comparison(column(right, columns)?, op.swap()?, value, wanted)
                }
                _ => None,
            },
        },
    }
}

fn conjunction(parts: (Option<Filter>, Option<Filter>)) -> Option<Filter> {
    match parts {
        (Some(left), Some(right)) => Some(Filter {
            is_exact: left.is_exact && right.is_exact,
            document: doc! { "$and": [left.document, right.document] },
        }),
        (Some(one), None) | (None, Some(one)) => Some(inexact(one.document)),
        (None, None) => None,
    }
}

fn disjunction(parts: (Option<Filter>, Option<Filter>)) -> Option<Filter> {
    let (left, right) = (parts.0?, parts.1?);
    Some(Filter {
        is_exact: left.is_exact && right.is_exact,
        document: doc! { "$or": [left.document, right.document] },
    })
}

fn inexact(document: Document) -> Filter {
    Filter {
        document,
        is_exact: false,
    }
}

/// Returns the column that an expression is, also in a cast between types of text.
fn column<'a>(expression: &Expr, columns: &'a Columns) -> Option<&'a Column> {
    match expression {
        Expr::Column(column) => columns.get(&column.name).filter(|column| column.has_path()),
        Expr::Cast(cast) if is_text(cast.field.data_type()) => {
            let inner = column(&cast.expr, columns)?;
            (inner.kind == Kind::Text).then_some(inner)
        }
        _ => None,
    }
}

fn is_text(data_type: &datafusion::arrow::datatypes::DataType) -> bool {
    use datafusion::arrow::datatypes::DataType;
    matches!(
        data_type,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
    )
}

/// Translates `IS NULL`, or `IS NOT NULL` if not `wanted`.
fn null(column: &Column, wanted: bool) -> Option<Filter> {
    let name = &column.name;
    Some(Filter {
        document: match (wanted, column.kind) {
            (true, _) => doc! { name: Bson::Null },
            // An array that contains null is not null itself.
            (false, Kind::Json) => doc! { name: { "$exists": true } },
            (false, _) => doc! { name: { "$ne": Bson::Null } },
        },
        is_exact: column.is_exact,
    })
}

fn like_pattern(like: &Like) -> Option<Pattern> {
    let Expr::Literal(value, _) = &*like.pattern else {
        return None;
    };
    let escape = like.escape_char.unwrap_or('\\');
    pattern::like(text(value)?, escape, like.case_insensitive)
}

fn text(value: &ScalarValue) -> Option<&str> {
    value.try_as_str().flatten()
}

/// Translates a match with a pattern, or its absence if not `wanted`.
fn matching(column: &Column, pattern: Pattern, wanted: bool) -> Option<Filter> {
    if column.kind != Kind::Text {
        return None;
    }
    let regex = |source: String| {
        Some(Bson::RegularExpression(Regex {
            pattern: source.try_into().ok()?,
            options: pattern.options.to_owned().try_into().ok()?,
        }))
    };
    let name = &column.name;
    let document = match wanted {
        // Every string matches.
        _ if pattern.source.is_empty() => match wanted {
            true => doc! { name: { "$ne": Bson::Null } },
            false => doc! { name: { "$in": [] } },
        },
        true => doc! { name: regex(pattern.source)? },
        false => doc! { name: { "$not": regex(pattern.source)?, "$ne": Bson::Null } },
    };
    Some(Filter {
        document,
        is_exact: column.is_exact,
    })
}

fn in_list(list: &InList, columns: &Columns, wanted: bool) -> Option<Filter> {
    let column = column(&list.expr, columns)?;
    let values: Option<Vec<Bson>> = list
        .list
        .iter()
        .map(|value| match value {
            Expr::Literal(value, _) => literal(column, value),
            _ => None,
        })
        .collect();
    Some(membership(column, values?, wanted))
}

/// Translates `IN` a list of `values`, or `NOT IN` if not `wanted`.
fn membership(column: &Column, mut values: Vec<Bson>, wanted: bool) -> Filter {
    let name = &column.name;
    let document = match wanted {
        true if values.len() == 1 => doc! { name: { "$eq": values.remove(0) } },
        true => doc! { name: { "$in": values } },
        false => {
            values.push(Bson::Null);
            doc! { name: { "$nin": values } }
        }
    };
    Filter {
        document,
        is_exact: column.is_exact,
    }
}

/// Translates a comparison of a column with a constant.
fn comparison(
    column: &Column,
    operator: Operator,
    value: &ScalarValue,
    wanted: bool,
) -> Option<Filter> {
    let with_regex = |ignore_case, wanted| {
        let pattern = pattern::regex(text(value)?, ignore_case)?;
        matching(column, pattern, wanted)
    };
    let with_like = |ignore_case, wanted| {
        let pattern = pattern::like(text(value)?, '\\', ignore_case)?;
        matching(column, pattern, wanted)
    };
    match operator {
        Operator::Eq => Some(membership(column, vec![literal(column, value)?], wanted)),
        Operator::NotEq => Some(membership(column, vec![literal(column, value)?], !wanted)),
        Operator::RegexMatch => with_regex(false, wanted),
        Operator::RegexIMatch => with_regex(true, wanted),
        Operator::RegexNotMatch => with_regex(false, !wanted),
        Operator::RegexNotIMatch => with_regex(true, !wanted),
        Operator::LikeMatch => with_like(false, wanted),
        Operator::ILikeMatch => with_like(true, wanted),
        Operator::NotLikeMatch => with_like(false, !wanted),
        Operator::NotILikeMatch => with_like(true, !wanted),
        Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq => {
            let operator = if wanted { operator } else { operator.negate()? };
            range(column, operator, value)
        }
        _ => None,
    }
}

/// Translates a comparison of order. The order of texts is left to the engine.
fn range(column: &Column, operator: Operator, value: &ScalarValue) -> Option<Filter> {
    if !matches!(column.kind, Kind::Int | Kind::Date) {
        return None;
    }
    let operator = match operator {
        Operator::Lt => "$lt",
        Operator::LtEq => "$lte",
        Operator::Gt => "$gt",
        Operator::GtEq => "$gte",
        _ => return None,
    };
    let value = literal(column, value)?;
    Some(inexact(doc! { &column.name: { operator: value } }))
}

/// Returns a constant as a value of the column's kind; `None` if it is null, or of another kind. Numbers with fractions
/// are left to the engine: it rounds integers of 64 bits in such a column, and has an order of NaN.
fn literal(column: &Column, value: &ScalarValue) -> Option<Bson> {
    Some(match (column.kind, value) {
        (Kind::Text, value) => Bson::String(text(value)?.to_owned()),
        (Kind::ObjectId, value) => Bson::ObjectId(object_id(text(value)?)?),
        (Kind::Bool, ScalarValue::Boolean(Some(value))) => Bson::Boolean(*value),
        (Kind::Int, ScalarValue::Int64(Some(value))) => Bson::Int64(*value),
        (Kind::Int, ScalarValue::Int32(Some(value))) => Bson::Int32(*value),
        (Kind::Date, ScalarValue::TimestampMillisecond(Some(value), _)) => {
            Bson::DateTime(DateTime::from_millis(*value))
        }
        _ => return None,
    })
}

/// Returns the identifier with these digits. Digits in upper case are those of no identifier.
fn object_id(digits: &str) -> Option<ObjectId> {
    let id = ObjectId::parse_str(digits).ok()?;
    (id.to_hex() == digits).then_some(id)
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;
    use datafusion::prelude::{col, lit};

    use super::*;

    fn columns() -> Columns {
        let sample = rawdoc! {
            "_id": ObjectId::from_bytes([1; 12]), "name": "x", "other": "y", "age": 1, "ok": true, "j": [1], "f": 1.5,
            "a.b": "x",
        };
        Columns::of([sample.as_ref()], &["name".to_owned()])
    }

    fn translated(condition: Expr) -> Option<(Document, bool)> {
        filter(&condition, &columns()).map(|filter| (filter.document, filter.is_exact))
    }

    fn regex(pattern: &str, options: &str) -> Bson {
        Bson::RegularExpression(Regex {
            pattern: pattern.to_owned().try_into().expect("no NUL"),
            options: options.to_owned().try_into().expect("no NUL"),
        })
    }

    #[test]
    fn conditions_on_a_cached_field_of_strings_are_exact() {
        let name = || col("name");
        let null = Bson::Null;
        for (condition, expected) in [
            (name().eq(lit("a")), doc! { "name": { "$eq": "a" } }),
            (
                name().not_eq(lit("a")),
                doc! { "name": { "$nin": ["a", &null] } },
            ),
            (
                name().in_list(vec![lit("a"), lit("b")], false),
                doc! { "name": { "$in": ["a", "b"] } },
            ),
            (
                name().in_list(vec![lit("a"), lit("b")], true),
                doc! { "name": { "$nin": ["a", "b", &null] } },
            ),
            (name().is_null(), doc! { "name": &null }),
            (name().is_not_null(), doc! { "name": { "$ne": &null } }),
            (
                name().like(lit("%web%")),
                doc! { "name": regex("web", "s") },
            ),
            (
                name().ilike(lit("web%")),
                doc! { "name": regex("^web", "is") },
            ),
            (
                name().not_like(lit("web%")),
                doc! { "name": { "$not": regex("^web", "s"), "$ne": &null } },
            ),
            (name().like(lit("%")), doc! { "name": { "$ne": &null } }),
            (name().not_like(lit("%")), doc! { "name": { "$in": [] } }),
            (
                !name().like(lit("a%")).or(name().eq(lit("b"))),
                doc! { "$and": [
                    { "name": { "$not": regex("^a", "s"), "$ne": &null } },
                    { "name": { "$nin": ["b", &null] } },
                ] },
            ),
        ] {
            let text = condition.to_string();
            assert_eq!(translated(condition), Some((expected, true)), "{text}");
        }
    }

    #[test]
    fn other_conditions_select_at_least_the_rows() {
        for (condition, expected) in [
            (col("other").eq(lit("a")), doc! { "other": { "$eq": "a" } }),
            (col("age").gt(lit(5_i64)), doc! { "age": { "$gt": 5_i64 } }),
            (
                !col("age").gt(lit(5_i64)),
                doc! { "age": { "$lte": 5_i64 } },
            ),
            (lit(5_i64).gt(col("age")), doc! { "age": { "$lt": 5_i64 } }),
            (col("ok"), doc! { "ok": true }),
            (col("j").is_not_null(), doc! { "j": { "$exists": true } }),
            (
                col("_id").eq(lit("010101010101010101010101")),
                doc! { "_id": { "$eq": ObjectId::from_bytes([1; 12]) } },
            ),
            (
                col("name").eq(lit("a")).and(col("f").gt(lit(1.0))),
                doc! { "name": { "$eq": "a" } },
            ),
        ] {
            let text = condition.to_string();
            assert_eq!(translated(condition), Some((expected, false)), "{text}");
        }
        for condition in [
            col("f").gt(lit(1.0)),
            col("j").eq(lit("a")),
            col("a.b").eq(lit("a")),
            col("name").gt(lit("a")),
            col("name").eq(lit(ScalarValue::Utf8(None))),
            col("name").in_list(vec![lit("a"), lit(ScalarValue::Utf8(None))], true),
            col("name").eq(lit("a")).or(col("f").gt(lit(1.0))),
            col("document").like(lit("%a%")),
        ] {
            let text = condition.to_string();
            assert_eq!(translated(condition), None, "{text}");
        }
    }
}
