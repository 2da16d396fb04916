//! Texts that are compared with values of other types: they are constants of these types, as in PostgreSQL.
//!
//! DataFusion does the same for numbers and dates. Its times end in the year 2262 then, as it counts nanoseconds, and
//! bytes and lists do not fit at all.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, ListArray, StringArray};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::compute;
use datafusion::arrow::datatypes::{DataType, FieldRef, TimeUnit};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::Transformed;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{Between, BinaryExpr, Expr, ExprSchemable, Operator, cast, lit};
use datafusion::scalar::ScalarValue;

use super::beside::{common, fit, fit_one, fitted};
use crate::bytea::bytea_of_text;
use crate::rewrite::array_items;

/// Gives the texts of a comparison the type of what they are compared with.
pub(super) fn typed(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right })
            if compares(op) || (op == Operator::Minus && (is_text(&left) || is_text(&right))) =>
        {
            let (left, right) = (*left, *right);
            let types = [left.get_type(schema)?, right.get_type(schema)?];
            let constant: fn(&Expr, &DataType) -> Result<Option<Expr>> = match op {
                Operator::Minus => |text: &Expr, other: &DataType| Ok(day(text, other)),
                _ => constant,
            };
            let (changed_left, changed_right) = match (is_text(&left), is_text(&right)) {
                (true, false) => (constant(&left, &types[1])?, None),
                (false, true) => (None, constant(&right, &types[0])?),
                _ => match common(&types) {
                    Some(to) => (
                        fitted(&left, &types[0], &to),
                        fitted(&right, &types[1], &to),
                    ),
                    None => (of_day(&left, &types), of_day(&right, &types)),
                },
            };
            let is_changed = changed_left.is_some() || changed_right.is_some();
            let left = Box::new(changed_left.unwrap_or(left));
            let right = Box::new(changed_right.unwrap_or(right));
            let expr = Expr::BinaryExpr(BinaryExpr::new(left, op, right));
            Ok(super::transformed_if(is_changed, expr))
        }
        Expr::InList(mut list) => {
            let mut is_changed = list_typed(&mut list, schema)?;
            let items = list.list.iter_mut();
            let mut values: Vec<&mut Expr> =
                std::iter::once(&mut *list.expr).chain(items).collect();
            is_changed |= match values.len() {
                2 => fit(&mut values, schema)?,
                _ => fit_one(&mut values, schema)?,
            };
            Ok(super::transformed_if(is_changed, Expr::InList(list)))
        }
        other => Ok(Transformed::no(other)),
    }
}

/// Gives the texts that bound a value its type. Returns whether they changed.
pub(super) fn bounds_typed(between: &mut Between, schema: &DFSchema) -> Result<bool> {
    let data_type = between.expr.get_type(schema)?;
    let mut is_changed = false;
    for bound in [&mut between.low, &mut between.high] {
        if let Some(constant) = constant(bound, &data_type)? {
            **bound = constant;
            is_changed = true;
        }
    }
    Ok(is_changed)
}

fn compares(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(
        op,
        Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom
    )
}

fn list_typed(list: &mut InList, schema: &DFSchema) -> Result<bool> {
    let data_type = list.expr.get_type(schema)?;
    let mut is_changed = false;
    for item in list.list.iter_mut().filter(|item| is_text(item)) {
        if let Some(constant) = constant(item, &data_type)? {
            *item = constant;
            is_changed = true;
        }
    }
    Ok(is_changed)
}

/// Returns whether an expression is a constant text.
fn is_text(expr: &Expr) -> bool {
    text(expr).is_some()
}

fn text(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Literal(value, _) => value.try_as_str().flatten(),
        _ => None,
    }
}

/// Returns the constant of a type that a text stands for; `None` if DataFusion finds it itself.
fn constant(expr: &Expr, data_type: &DataType) -> Result<Option<Expr>> {
    let Some(text) = text(expr) else {
        return Ok(None);
    };
    Ok(match data_type {
        DataType::Timestamp(..) | DataType::Time32(_) | DataType::Time64(_) => {
            Some(cast(expr.clone(), data_type.clone()))
        }
        DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => {
            let bytes = bytea_of_text(text);
            let bytes = bytes.map_err(|error| DataFusionError::External(Box::new(error)))?;
            Some(cast(
                lit(ScalarValue::Binary(Some(bytes))),
                data_type.clone(),
            ))
        }
        DataType::List(item) => match array_items(text) {
            Some(items) => Some(lit(list(items, item)?)),
            None => None,
        },
        _ => None,
    })
}

/// Returns the day that a text stands for, from which a day is subtracted, or the reverse.
fn day(expr: &Expr, other: &DataType) -> Option<Expr> {
    (*other == DataType::Date32).then(|| cast(expr.clone(), DataType::Date32))
}

/// Returns the list of items that are cast from texts.
fn list(items: Vec<Option<String>>, item: &FieldRef) -> Result<ScalarValue> {
    let offsets = OffsetBuffer::from_lengths([items.len()]);
    let texts: ArrayRef = Arc::new(StringArray::from(items));
    let values = compute::cast(&texts, item.data_type())?;
    let list = ListArray::try_new(Arc::clone(item), offsets, values, None)?;
    Ok(ScalarValue::List(Arc::new(list)))
}

/// Returns a time of day in nanoseconds if two are compared that differ in their units.
fn of_day(expr: &Expr, types: &[DataType; 2]) -> Option<Expr> {
    let [DataType::Time64(left), DataType::Time64(right)] = types else {
        return None;
    };
    (left != right).then(|| cast(expr.clone(), DataType::Time64(TimeUnit::Nanosecond)))
}
