//! Values of different types beside each other: floats and decimals, days and times.
//!
//! DataFusion makes decimals of floats, in which small ones are 0 and large ones an error. PostgreSQL makes floats of
//! 64 bits of both. Days beside times become times in nanoseconds, which end in the year 2262, so they are microseconds
//! here, as in PostgreSQL.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Decimal128Type, DecimalType, TimeUnit};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::{
    Expr, ExprSchemable, Join, LogicalPlan, Projection, Union, cast, lit,
};
use datafusion::scalar::ScalarValue;

/// Returns the type in which values are compared; `None` if DataFusion finds it.
pub(super) fn common(types: &[DataType]) -> Option<DataType> {
    let (mut has_float, mut has_decimal, mut has_day) = (false, false, false);
    let mut zone = None;
    for data_type in types {
        match data_type {
            DataType::Float32 | DataType::Float64 => has_float = true,
            DataType::Decimal128(..) | DataType::Decimal256(..) => has_decimal = true,
            DataType::Date32 => has_day = true,
            DataType::Timestamp(_, found) => {
                zone = Some(zone.flatten().or_else(|| found.clone()));
            }
            _ => {}
        }
    }
    if has_float && has_decimal {
        return Some(DataType::Float64);
    }
    let zone = zone.filter(|_| has_day)?;
    Some(DataType::Timestamp(TimeUnit::Microsecond, zone))
}

/// Returns whether a value of a type becomes one of the common type.
fn is_cast(from: &DataType, to: &DataType) -> bool {
    from != to
        && match to {
            DataType::Float32 | DataType::Float64 => from.is_numeric(),
            _ => matches!(from, DataType::Date32 | DataType::Timestamp(..)),
        }
}

/// Returns a value in the common type; `None` if it has it, or DataFusion casts it.
pub(super) fn fitted(expr: &Expr, from: &DataType, to: &DataType) -> Option<Expr> {
    if !is_cast(from, to) {
        return None;
    }
    if let Expr::Literal(ScalarValue::Decimal128(Some(value), precision, scale), _) = expr {
        let text = Decimal128Type::format_decimal(*value, *precision, *scale);
        match to {
            DataType::Float32 => return text.parse::<f32>().ok().map(lit),
            DataType::Float64 => return text.parse::<f64>().ok().map(lit),
            _ => {}
        }
    }
    Some(cast(expr.clone(), to.clone()))
}

/// Casts the operands of a comparison to their common type. Returns whether they changed.
pub(super) fn fit(values: &mut [&mut Expr], schema: &DFSchema) -> Result<bool> {
    fit_as(values, schema, common)
}

/// Casts the branches of a `CASE`, or the items of an `IN` list, to their common type. Returns whether they changed.
pub(super) fn fit_one(values: &mut [&mut Expr], schema: &DFSchema) -> Result<bool> {
    fit_as(values, schema, common_of_one)
}

/// Returns the common type of the branches of a `CASE`, or the items of an `IN` list. `real` stays `real`, as in
/// PostgreSQL.
fn common_of_one(types: &[DataType]) -> Option<DataType> {
    match common(types)? {
        DataType::Float64 if !types.contains(&DataType::Float64) => Some(DataType::Float32),
        other => Some(other),
    }
}

fn fit_as(
    values: &mut [&mut Expr],
    schema: &DFSchema,
    common: fn(&[DataType]) -> Option<DataType>,
) -> Result<bool> {
    let types = values.iter().map(|value| value.get_type(schema));
    let types = types.collect::<Result<Vec<_>>>()?;
    let Some(to) = common(&types) else {
        return Ok(false);
    };
    let mut is_changed = false;
    for (value, from) in values.iter_mut().zip(&types) {
        if let Some(expr) = fitted(value, from, &to) {
            **value = expr;
            is_changed = true;
        }
    }
    Ok(is_changed)
}

/// Gives the columns of a `UNION` their common types.
pub(super) fn union(union: Union) -> Result<Transformed<LogicalPlan>> {
    let count = union.schema.fields().len();
    let to: Vec<Option<DataType>> = (0..count)
        .map(|index| {
            let fields = union.inputs.iter();
            let fields = fields.filter_map(|input| input.schema().fields().get(index));
            let types: Vec<DataType> = fields.map(|field| field.data_type().clone()).collect();
            // DataFusion finds this type as well, but only after conditions above were given theirs.
            let is_float = types.iter().any(|data_type| data_type.is_floating())
                && types.iter().any(|data_type| data_type.is_integer());
            match is_float {
                true if types.contains(&DataType::Float64) => Some(DataType::Float64),
                true => Some(DataType::Float32),
                false => common_of_one(&types),
            }
        })
        .collect();
    let first = union.inputs.first().map(|input| input.schema().fields());
    let is_stale = first
        .into_iter()
        .flatten()
        .zip(union.schema.fields())
        .any(|(new, old)| new.data_type() != old.data_type());
    if !is_stale && to.iter().all(Option::is_none) {
        return Ok(Transformed::no(LogicalPlan::Union(union)));
    }
    let inputs = union.inputs.into_iter().map(|input| {
        let columns = input.schema().iter().zip(&to).map(|((table, field), to)| {
            let column = Expr::from((table, field));
            let fitted = to
                .as_ref()
                .and_then(|to| fitted(&column, field.data_type(), to));
            match fitted {
                Some(fitted) => fitted.alias_qualified(table.cloned(), field.name()),
                None => column,
            }
        });
        let columns = columns.collect();
        let projection = Projection::try_new(columns, input)?;
        Ok(Arc::new(LogicalPlan::Projection(projection)))
    });
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let union = Union::try_new_with_loose_types(inputs)?;
    Ok(Transformed::yes(LogicalPlan::Union(union)))
}

/// Gives the keys of a join their common types.
pub(super) fn keys(mut join: Join) -> Result<Transformed<LogicalPlan>> {
    let mut is_changed = false;
    for (left, right) in &mut join.on {
        let types = [
            left.get_type(join.left.schema())?,
            right.get_type(join.right.schema())?,
        ];
        let Some(to) = common(&types) else {
            continue;
        };
        for (key, from) in [left, right].into_iter().zip(&types) {
            if let Some(expr) = fitted(key, from, &to) {
                *key = expr;
                is_changed = true;
            }
        }
    }
    let join = LogicalPlan::Join(join);
    Ok(match is_changed {
        true => Transformed::yes(join),
        false => Transformed::no(join),
    })
}
