//! Comparisons of rows, such as `(a, b) = (1, 2)`, which DataFusion takes for values that are never NULL.

use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, UnaryOperator};

use super::{binary, taken};

/// Returns the comparison of two rows as comparisons of their parts; `None` if a side is no row.
pub(super) fn compared(left: &mut Expr, op: &BinaryOperator, right: &mut Expr) -> Option<Expr> {
    let (left, right) = parts(left, right)?;
    let pairs = left.iter().zip(right.iter());
    let pairs = pairs.map(|(left, right)| binary(left.clone(), op.clone(), right.clone()));
    let joined = match op {
        BinaryOperator::Eq => linked(pairs, &BinaryOperator::And),
        BinaryOperator::NotEq => linked(pairs, &BinaryOperator::Or),
        BinaryOperator::Lt | BinaryOperator::LtEq => ordered(left, right, &BinaryOperator::Lt, op),
        BinaryOperator::Gt | BinaryOperator::GtEq => ordered(left, right, &BinaryOperator::Gt, op),
        _ => None,
    };
    joined.map(nested)
}

/// Returns whether a row is in a list of rows.
pub(super) fn listed(row: &mut Expr, list: &mut [Expr], is_negated: bool) -> Option<Expr> {
    if !matches!(row, Expr::Tuple(_)) {
        return None;
    }
    let equal = list
        .iter_mut()
        .map(|item| compared(row, &BinaryOperator::Eq, item));
    let equal: Vec<Expr> = equal.collect::<Option<_>>()?;
    let any = nested(linked(equal.into_iter(), &BinaryOperator::Or)?);
    Some(match is_negated {
        true => nested(Expr::UnaryOp {
            op: UnaryOperator::Not,
            expr: Box::new(any),
        }),
        false => any,
    })
}

/// Returns whether all parts of a row are NULL, or none is if `is_negated`.
pub(super) fn null(row: &mut Expr, is_negated: bool) -> Option<Expr> {
    let Expr::Tuple(parts) = row else {
        return None;
    };
    let test = |part: &mut Expr| match is_negated {
        true => Expr::IsNotNull(Box::new(taken(part))),
        false => Expr::IsNull(Box::new(taken(part))),
    };
    linked(parts.iter_mut().map(test), &BinaryOperator::And).map(nested)
}

/// Returns the parts of two rows of the same length.
fn parts<'a>(left: &'a mut Expr, right: &'a mut Expr) -> Option<(&'a [Expr], &'a [Expr])> {
    match (left, right) {
        (Expr::Tuple(left), Expr::Tuple(right)) if left.len() == right.len() => Some((left, right)),
        _ => None,
    }
}

/// Compares the first parts that differ; the last ones by `last`.
fn ordered(
    left: &[Expr],
    right: &[Expr],
    strict: &BinaryOperator,
    last: &BinaryOperator,
) -> Option<Expr> {
    let ([first, left @ ..], [second, right @ ..]) = (left, right) else {
        return None;
    };
    let compared = |op: &BinaryOperator| binary(first.clone(), op.clone(), second.clone());
    let Some(rest) = ordered(left, right, strict, last) else {
        return Some(compared(last));
    };
    let equal = binary(
        compared(&BinaryOperator::Eq),
        BinaryOperator::And,
        nested(rest),
    );
    Some(binary(compared(strict), BinaryOperator::Or, nested(equal)))
}

fn linked(exprs: impl Iterator<Item = Expr>, op: &BinaryOperator) -> Option<Expr> {
    exprs.reduce(|left, right| binary(left, op.clone(), right))
}

fn nested(expr: Expr) -> Expr {
    Expr::Nested(Box::new(expr))
}
