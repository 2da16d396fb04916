//! Comparisons with the items of a constant array, as in `x = ANY ('{1,2}'::int[])`.
//!
//! They become lists and comparisons, which are pushed down to the files, take every operator, and treat nulls as
//! PostgreSQL does. This is how postgres_fdw sends `IN`.

use datafusion::sql::sqlparser::ast::{
    Array, ArrayElemTypeDef, BinaryOperator, CastKind, DataType, Expr, Value,
};

use super::{binary, taken};

/// Maximum items of an array that is compared item by item.
const ITEMS_MAX: usize = 1_000;

/// Returns the comparison without the array: with each of its items if `is_all`, or else with any of them. Returns
/// `None` if the array is not constant.
pub(super) fn compared(
    left: &mut Expr,
    op: &BinaryOperator,
    right: &mut Expr,
    is_all: bool,
) -> Option<Expr> {
    let (items, item_type) = constant(right)?;
    if items.is_empty() {
        return Some(Expr::value(Value::Boolean(is_all)));
    }
    let is_list = match op {
        BinaryOperator::Eq => !is_all,
        BinaryOperator::NotEq => is_all,
        _ => false,
    };
    // A function such as `random` is called once for all items.
    if !is_list && (items.len() > ITEMS_MAX || calls(left)) {
        return None;
    }
    let items: Vec<Expr> = items.iter_mut().map(|item| cast(item, item_type)).collect();
    if is_list {
        return Some(Expr::InList {
            expr: Box::new(taken(left)),
            list: items,
            negated: is_all,
        });
    }
    let compared = items
        .into_iter()
        .map(|item| binary(left.clone(), op.clone(), item));
    let link = match is_all {
        true => BinaryOperator::And,
        false => BinaryOperator::Or,
    };
    linked(&mut compared.collect::<Vec<_>>(), &link)
}

/// Returns the items of a constant array, and the type to which they are cast.
fn constant(expr: &mut Expr) -> Option<(&mut Vec<Expr>, Option<&DataType>)> {
    match expr {
        Expr::Nested(inner) => constant(inner),
        Expr::Array(Array { elem, .. }) => {
            let is_flat = elem.iter().all(|item| !matches!(item, Expr::Array(_)));
            is_flat.then_some((elem, None))
        }
        Expr::Cast {
            expr: inner,
            data_type: DataType::Array(ArrayElemTypeDef::SquareBracket(item_type, _)),
            ..
        } => {
            let (items, _) = constant(inner)?;
            (!matches!(**item_type, DataType::Array(_))).then_some((items, Some(item_type)))
        }
        _ => None,
    }
}

fn calls(expr: &Expr) -> bool {
    !matches!(
        expr,
        Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Value(_)
    )
}

fn cast(item: &mut Expr, data_type: Option<&DataType>) -> Expr {
    let item = taken(item);
    match data_type {
        Some(data_type) => Expr::Cast {
            kind: CastKind::DoubleColon,
            expr: Box::new(item),
            data_type: data_type.clone(),
            array: false,
            format: None,
        },
        None => item,
    }
}

/// Links conditions in a balanced tree, whose depth is small.
fn linked(conditions: &mut [Expr], link: &BinaryOperator) -> Option<Expr> {
    match conditions {
        [] => None,
        [one] => Some(Expr::Nested(Box::new(taken(one)))),
        many => {
            let (first, second) = many.split_at_mut(many.len() / 2);
            let (first, second) = (linked(first, link)?, linked(second, link)?);
            let both = binary(first, link.clone(), second);
            Some(Expr::Nested(Box::new(both)))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::parse::{Body, parse};
    use crate::rewrite::rewrite;

    fn rewritten(condition: &str) -> String {
        let parsed = parse(&format!("SELECT {condition}")).expect(condition);
        let Some(Body::Sql(mut statement)) = parsed.into_iter().next().map(|parsed| parsed.body)
        else {
            panic!("{condition} is no statement");
        };
        rewrite(&mut statement).expect("the server has all of it");
        let text = statement.to_string();
        text.trim_start_matches("SELECT ").to_owned()
    }

    #[test]
    fn arrays_become_lists_and_comparisons() {
        for (condition, expected) in [
            (
                "x = ANY ('{MAIL,\"a b\",NULL}'::text[])",
                "x IN ('MAIL'::TEXT, 'a b'::TEXT, NULL::TEXT)",
            ),
            ("x <> ALL (ARRAY[1, 2])", "x NOT IN (1, 2)"),
            ("x = ANY ('{}'::int[])", "false"),
            ("x > ALL (ARRAY[]::int[])", "true"),
            ("x > ANY (ARRAY[1, y])", "((x > 1) OR (x > y))"),
            (
                "x <= ALL ('{1,2,3}'::int[])",
                "((x <= '1'::INT) AND ((x <= '2'::INT) AND (x <= '3'::INT)))",
            ),
            ("x ~~ ANY (ARRAY['a%'])", "(x ~~ 'a%')"),
            ("f(x) = ANY (ARRAY[1])", "f(x) IN (1)"),
            ("f(x) > ANY (ARRAY[1])", "f(x) > ANY(ARRAY[1])"),
            ("x = ANY ($1::int[])", "x = ANY($1::INT[])"),
        ] {
            assert_eq!(rewritten(condition), expected, "{condition}");
        }
    }
}
