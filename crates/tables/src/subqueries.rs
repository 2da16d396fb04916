//! `IN` and `EXISTS` where DataFusion answers them wrongly, or not at all.
//!
//! As a condition, `IN` is a join, which DataFusion gets right with `AND` and `OR` around it. `NOT IN` it gets right
//! only if nothing is around it, it is not correlated, and its value is a column: other forms become `NOT EXISTS`,
//! with NULL told apart. In lists of columns, where DataFusion has neither `IN` nor `EXISTS`, they become counts.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Spans};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, Expr, ExprSchemable, Filter, Join, JoinType, LogicalPlan,
    LogicalPlanBuilder, Operator, Projection, Subquery, SubqueryAlias, Union, Values, lit, when,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::scalar::ScalarValue;

/// Name of a subquery whose column is compared.
const INSIDE: &str = "__forebay_inside";

/// Rewrites subqueries. It runs before types are made to fit.
#[derive(Debug)]
pub(crate) struct Subqueries;

impl AnalyzerRule for Subqueries {
    fn analyze(&self, plan: LogicalPlan, _options: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(rewritten).data()
    }

    fn name(&self) -> &str {
        "forebay_subqueries"
    }
}

fn rewritten(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let plan = match plan {
        LogicalPlan::Join(join) => return filtered_join(join),
        LogicalPlan::Aggregate(aggregate) => return projected_aggregate(aggregate),
        LogicalPlan::Values(values) => return selected_values(values),
        plan => plan,
    };
    let plan = plan.map_expressions(|expr| expr.transform_up(renamed_comparison))?;
    let is_renamed = plan.transformed;
    let plan = plan.data;
    let is_condition = matches!(plan, LogicalPlan::Filter(_));
    let input = match &plan {
        LogicalPlan::Filter(Filter { input, .. })
        | LogicalPlan::Projection(Projection { input, .. }) => input,
        _ => {
            return Ok(Transformed::new(
                plan,
                is_renamed,
                TreeNodeRecursion::Continue,
            ));
        }
    };
    let schema = Arc::clone(input.schema());
    let names = NamePreserver::new(&plan);
    let rewritten = plan.map_expressions(|expr| {
        if !has_subquery(&expr)? {
            return Ok(Transformed::no(expr));
        }
        let name = names.save(&expr);
        let expr = expr.transform_up(sure).data()?;
        let expr = match is_condition {
            true => condition(expr, &schema, true)?,
            false => value(expr, &schema, Form::Count)?,
        };
        Ok(Transformed::yes(name.restore(expr)))
    })?;
    match rewritten.transformed {
        true => rewritten.map_data(LogicalPlan::recompute_schema),
        false => Ok(Transformed::new(
            rewritten.data,
            is_renamed,
            TreeNodeRecursion::Continue,
        )),
    }
}

/// Gives the column of `ANY` or `ALL` a name that its value does not have.
fn renamed_comparison(expr: Expr) -> Result<Transformed<Expr>> {
    let Expr::SetComparison(mut comparison) = expr else {
        return Ok(Transformed::no(expr));
    };
    comparison.subquery = renamed(&comparison.subquery, &comparison.expr)?;
    Ok(Transformed::yes(Expr::SetComparison(comparison)))
}

/// Returns a subquery under a name of its own. With the name of a table that is outside as well,
/// `id IN (SELECT id ...)` would compare a column with itself. A correlated subquery keeps its names if `value` has
/// none of them: DataFusion does not find what it is correlated with below another name.
fn renamed(subquery: &Subquery, value: &Expr) -> Result<Subquery> {
    let column = Column::from(subquery.subquery.schema().qualified_field(0));
    let is_correlated = !subquery.outer_ref_columns.is_empty();
    if is_correlated && !value.column_refs().contains(&column) {
        return Ok(subquery.clone());
    }
    let plan = subquery.subquery.as_ref().clone();
    let plan = LogicalPlanBuilder::from(plan).alias(INSIDE)?.build()?;
    Ok(Subquery {
        subquery: Arc::new(plan),
        ..subquery.clone()
    })
}

/// Returns `EXISTS` of a subquery that always has a row as a constant.
fn sure(expr: Expr) -> Result<Transformed<Expr>> {
    Ok(match expr {
        Expr::Exists(Exists { subquery, negated }) if always_has_a_row(&subquery.subquery) => {
            Transformed::yes(lit(!negated))
        }
        other => Transformed::no(other),
    })
}

/// Returns whether a plan has a row also if its tables have none.
pub(crate) fn always_has_a_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        LogicalPlan::EmptyRelation(empty) => empty.produce_one_row,
        LogicalPlan::Projection(Projection { input, .. })
        | LogicalPlan::SubqueryAlias(SubqueryAlias { input, .. }) => always_has_a_row(input),
        _ => false,
    }
}

/// Makes subqueries in the condition of a join conditions of its rows.
fn filtered_join(mut join: Join) -> Result<Transformed<LogicalPlan>> {
    let has_subquery = match &join.filter {
        Some(filter) if join.join_type == JoinType::Inner => has_subquery(filter)?,
        _ => false,
    };
    let Some(filter) = join.filter.take_if(|_| has_subquery) else {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    };
    let filter = Filter::try_new(filter, Arc::new(LogicalPlan::Join(join)))?;
    let rewritten = rewritten(LogicalPlan::Filter(filter))?;
    Ok(Transformed::yes(rewritten.data))
}

/// Makes subqueries in the arguments of aggregates columns of their input.
fn projected_aggregate(aggregate: Aggregate) -> Result<Transformed<LogicalPlan>> {
    let exprs = aggregate.group_expr.iter().chain(&aggregate.aggr_expr);
    let found = exprs.map(has_subquery).collect::<Result<Vec<_>>>()?;
    if !found.contains(&true) {
        return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    }
    let names = NamePreserver::new_for_projection();
    let mut columns: Vec<Expr> = aggregate
        .input
        .schema()
        .columns()
        .into_iter()
        .map(Expr::from)
        .collect();
    let mut extract = |expr: Expr| {
        let name = names.save(&expr);
        let extracted = expr.transform_down(|inner| {
            let is_inside = matches!(inner, Expr::AggregateFunction(_) | Expr::Alias(_));
            if is_inside || !has_subquery(&inner)? {
                return Ok(Transformed::no(inner));
            }
            let alias = format!("__forebay_{}", columns.len());
            let column = Expr::from(Column::from_name(&alias));
            columns.push(inner.alias(alias));
            Ok(Transformed::new(column, true, TreeNodeRecursion::Jump))
        })?;
        Ok(match extracted.transformed {
            true => name.restore(extracted.data),
            false => extracted.data,
        })
    };
    let groups = aggregate.group_expr.into_iter().map(&mut extract);
    let groups = groups.collect::<Result<Vec<_>>>()?;
    let aggregates = aggregate.aggr_expr.into_iter().map(&mut extract);
    let aggregates = aggregates.collect::<Result<Vec<_>>>()?;
    let input = Projection::try_new(columns, aggregate.input)?;
    let input = rewritten(LogicalPlan::Projection(input))?.data;
    let aggregate = Aggregate::try_new(Arc::new(input), groups, aggregates)?;
    Ok(Transformed::yes(LogicalPlan::Aggregate(aggregate)))
}

fn has_subquery(expr: &Expr) -> Result<bool> {
    expr.exists(|inner| Ok(matches!(inner, Expr::InSubquery(_) | Expr::Exists(_))))
}

/// Rewrites a condition, of which NULL means the same as `false`. `is_top` tells that only `AND` is around it.
fn condition(expr: Expr, schema: &DFSchema, is_top: bool) -> Result<Expr> {
    match expr {
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: op @ (Operator::And | Operator::Or),
            right,
        }) => {
            let is_top = is_top && op == Operator::And;
            let left = condition(*left, schema, is_top)?;
            let right = condition(*right, schema, is_top)?;
            Ok(Expr::BinaryExpr(BinaryExpr::new(
                Box::new(left),
                op,
                Box::new(right),
            )))
        }
        Expr::Not(inner) => match *inner {
            Expr::InSubquery(found) => {
                let negated = !found.negated;
                condition(
                    Expr::InSubquery(InSubquery { negated, ..found }),
                    schema,
                    is_top,
                )
            }
            inner => value(Expr::Not(Box::new(inner)), schema, Form::Exists),
        },
        Expr::InSubquery(found) if !found.negated => Ok(Expr::InSubquery(found)),
        Expr::InSubquery(found) => {
            let is_right = is_top
                && !found.expr.column_refs().is_empty()
                && found.subquery.outer_ref_columns.is_empty();
            if is_right {
                return Ok(Expr::InSubquery(found));
            }
            let parts = Parts::new(&found, schema)?;
            let matching = match parts.unknown() {
                Some(unknown) => parts.equal().or(unknown),
                None => parts.equal(),
            };
            Ok(Expr::Exists(Exists {
                subquery: parts.filtered(matching)?,
                negated: true,
            }))
        }
        other => value(other, schema, Form::Exists),
    }
}

/// What tells whether a subquery has rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Exists,
    Count,
}

impl Form {
    fn has_rows(self, subquery: Subquery) -> Result<Expr> {
        if self == Form::Exists {
            return Ok(Expr::Exists(Exists {
                subquery,
                negated: false,
            }));
        }
        let counted = LogicalPlanBuilder::from(Arc::unwrap_or_clone(subquery.subquery))
            .aggregate(Vec::<Expr>::new(), vec![count(lit(1_i64))])?
            .build()?;
        let counted = Expr::ScalarSubquery(Subquery {
            subquery: Arc::new(counted),
            ..subquery
        });
        Ok(counted.gt(lit(0_i64)))
    }
}

/// Rewrites an expression of which NULL is a value of its own.
fn value(expr: Expr, schema: &DFSchema, form: Form) -> Result<Expr> {
    let rewritten = expr.transform_up(|inner| match inner {
        Expr::InSubquery(found) => {
            let is_negated = found.negated;
            let value = is_in(&found, schema, form)?;
            Ok(Transformed::yes(negated_if(is_negated, value)))
        }
        Expr::Exists(Exists { subquery, negated }) if form == Form::Count => {
            let value = form.has_rows(subquery)?;
            Ok(Transformed::yes(negated_if(negated, value)))
        }
        other => Ok(Transformed::no(other)),
    });
    rewritten.data()
}

fn negated_if(is_negated: bool, expr: Expr) -> Expr {
    match is_negated {
        true => Expr::Not(Box::new(expr)),
        false => expr,
    }
}

fn is_in(found: &InSubquery, schema: &DFSchema, form: Form) -> Result<Expr> {
    let parts = Parts::new(found, schema)?;
    let is_equal = form.has_rows(parts.filtered(parts.equal())?)?;
    let mut case = when(is_equal, lit(true));
    if let Some(unknown) = parts.unknown_inside() {
        let is_unknown = form.has_rows(parts.filtered(unknown)?)?;
        case = case.when(is_unknown, lit(ScalarValue::Boolean(None)));
    }
    if parts.value_is_nullable {
        let has_rows = form.has_rows(found.subquery.clone())?;
        let is_unknown = found.expr.as_ref().clone().is_null().and(has_rows);
        case = case.when(is_unknown, lit(ScalarValue::Boolean(None)));
    }
    case.otherwise(lit(false))
}

/// The parts of `value IN (subquery)`.
struct Parts {
    subquery: Subquery,
    /// The value, as the subquery names it.
    value: Expr,
    value_is_nullable: bool,
    /// The column of the subquery.
    column: Expr,
    column_is_nullable: bool,
}

impl Parts {
    fn new(found: &InSubquery, schema: &DFSchema) -> Result<Parts> {
        let subquery = renamed(&found.subquery, &found.expr)?;
        let (qualifier, field) = subquery.subquery.schema().qualified_field(0);
        let (column, column_is_nullable) = (Expr::from((qualifier, field)), field.is_nullable());
        let value = found.expr.as_ref().clone();
        Ok(Parts {
            value_is_nullable: value.nullable(schema).unwrap_or(true),
            value: outer(value, schema)?,
            column,
            column_is_nullable,
            subquery,
        })
    }

    fn equal(&self) -> Expr {
        self.column.clone().eq(self.value.clone())
    }

    /// Returns whether a row's value is NULL; `None` if none can be.
    fn unknown_inside(&self) -> Option<Expr> {
        self.column_is_nullable
            .then(|| self.column.clone().is_null())
    }

    /// Returns whether a row makes the result NULL; `None` if none can.
    fn unknown(&self) -> Option<Expr> {
        let value = self.value_is_nullable.then(|| self.value.clone().is_null());
        match (self.unknown_inside(), value) {
            (Some(column), Some(value)) => Some(column.or(value)),
            (column, value) => column.or(value),
        }
    }

    /// Returns the subquery's rows that fulfil a condition.
    fn filtered(&self, condition: Expr) -> Result<Subquery> {
        let plan = self.subquery.subquery.as_ref().clone();
        let plan = LogicalPlanBuilder::from(plan).filter(condition)?.build()?;
        Ok(Subquery {
            outer_ref_columns: plan.all_out_ref_exprs(),
            subquery: Arc::new(plan),
            spans: Spans::new(),
        })
    }
}

/// Returns an expression as a subquery names its columns.
fn outer(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    let outer = expr.transform_up(|inner| match inner {
        Expr::Column(column) => {
            let (_, field) = schema.qualified_field_from_column(&column)?;
            let field = Arc::clone(field);
            Ok(Transformed::yes(Expr::OuterReferenceColumn(field, column)))
        }
        other => Ok(Transformed::no(other)),
    });
    outer.data()
}

/// Rewrites `VALUES` with a subquery to a `SELECT` for each row: DataFusion computes values before subqueries.
fn selected_values(values: Values) -> Result<Transformed<LogicalPlan>> {
    let has_subquery =
        |expr: &Expr| expr.exists(|inner| Ok(matches!(inner, Expr::ScalarSubquery(_))));
    let mut is_found = false;
    for expr in values.values.iter().flatten() {
        is_found |= has_subquery(expr)?;
    }
    if !is_found {
        return Ok(Transformed::no(LogicalPlan::Values(values)));
    }
    let schema = values.schema;
    let selected = values.values.into_iter().map(|row| {
        let columns = row.into_iter().zip(schema.fields()).map(|(expr, field)| {
            let value = expr.cast_to(field.data_type(), &DFSchema::empty())?;
            Ok(value.alias(field.name()))
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        Ok(Arc::new(
            LogicalPlanBuilder::empty(true).project(columns)?.build()?,
        ))
    });
    let mut inputs = selected.collect::<Result<Vec<_>>>()?;
    let plan = match inputs.len() {
        1 => Arc::unwrap_or_clone(inputs.remove(0)),
        _ => LogicalPlan::Union(Union { inputs, schema }),
    };
    Ok(Transformed::yes(plan))
}
