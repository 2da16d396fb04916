//! Functions that DataFusion gives other arguments or numbers than PostgreSQL.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema};
use datafusion::error::Result;
use datafusion::functions::math::log10;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Projection, cast, lit};
use datafusion::scalar::ScalarValue;

/// Changes a call whose constants mean something else. The digits of `round` decide its type, so they must not be a
/// cast. `log` of one number is exact only as `log10`. The text of `encode(..., 'base64')` has its padding.
pub(super) fn constant(mut call: ScalarFunction) -> Transformed<Expr> {
    let name = call.func.name().to_owned();
    match (&*name, &mut *call.args) {
        ("round", [_, digits @ Expr::Literal(ScalarValue::Int64(Some(_)), _)]) => {
            let Expr::Literal(ScalarValue::Int64(Some(count)), _) = *digits else {
                return Transformed::no(Expr::ScalarFunction(call));
            };
            let Ok(count) = i32::try_from(count) else {
                return Transformed::no(Expr::ScalarFunction(call));
            };
            *digits = lit(count);
        }
        ("log", [_]) => call.func = log10(),
        ("encode", [_, Expr::Literal(format, _)])
            if format.try_as_str().flatten() == Some("base64") =>
        {
            *format = ScalarValue::from("base64pad");
        }
        _ => return Transformed::no(Expr::ScalarFunction(call)),
    }
    Transformed::yes(Expr::ScalarFunction(call))
}

/// Makes the number that a function returns one with a sign. Without one, it would become a decimal beside others.
pub(super) fn number(call: ScalarFunction, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let call = Expr::ScalarFunction(call);
    Ok(match call.get_type(schema)? {
        DataType::UInt64 => Transformed::yes(cast(call, DataType::Int64)),
        _ => Transformed::no(call),
    })
}

/// Makes the numbers of `row_number`, `rank` and other functions of windows ones with a sign.
pub(super) fn numbers_of_rows(projection: Projection) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Window(window) = projection.input.as_ref() else {
        return Ok(Transformed::no(LogicalPlan::Projection(projection)));
    };
    // Functions over another window are in a node of their own.
    let mut input = &window.input;
    while let LogicalPlan::Window(inner) = input.as_ref() {
        input = &inner.input;
    }
    let inputs = input.schema().fields().len();
    let computed = window.schema.iter().skip(inputs);
    let numbers: Vec<Column> = computed
        .filter(|(_, field)| *field.data_type() == DataType::UInt64)
        .map(Column::from)
        .collect();
    if numbers.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Projection(projection)));
    }
    let signed = |expr: Expr| {
        let (qualifier, name) = expr.qualified_name();
        let signed = expr.transform_up(|inner| {
            Ok(match &inner {
                Expr::Column(column) if numbers.contains(column) => {
                    Transformed::yes(cast(inner, DataType::Int64))
                }
                _ => Transformed::no(inner),
            })
        });
        let signed = signed?;
        Ok(match signed.transformed {
            true => signed.data.alias_qualified(qualifier, name),
            false => signed.data,
        })
    };
    let expressions: Result<Vec<Expr>> = projection.expr.into_iter().map(signed).collect();
    let projection = Projection::try_new(expressions?, Arc::clone(&projection.input))?;
    Ok(Transformed::yes(LogicalPlan::Projection(projection)))
}
