//! The meaning that PostgreSQL gives to expressions, where DataFusion gives another.
//!
//! [`BeforeTypes`] changes what has another type in PostgreSQL, so that types are made to fit after it. [`AfterTypes`]
//! keeps types, and replaces operators and casts by functions that compute what PostgreSQL does.

mod arithmetic;
mod beside;
mod counted;
mod days;
mod guarded;
mod input;
mod intervals;
pub(crate) mod native;
mod texts;
mod unknown;

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, DFSchemaRef, JoinType};
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::expr::{AggregateFunction, InList, ScalarFunction, WindowFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{
    conjunction, merge_schema, split_conjunction, split_conjunction_owned,
};
use datafusion::logical_expr::{
    Between, BinaryExpr, Case, Expr, ExprSchemable, Filter, LogicalPlan, Operator, Projection,
    ScalarUDF, Subquery, WindowFunctionDefinition, cast, lit,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::scalar::ScalarValue;

use crate::error::SqlError;
use crate::sized::Limits;
use crate::subqueries::always_has_a_row;

/// Digits after the point that a quotient of decimals has at least if there is room. PostgreSQL returns 16 significant
/// digits at least.
const QUOTIENT_SCALE: i8 = 16;
/// Digits after the point that Arrow adds to those of the dividend.
const QUOTIENT_SCALE_ADDED: i8 = 4;
/// Maximum digits of a decimal of 128 bits.
const DIGITS_MAX: u8 = 38;
/// The type of a sum's values that may exceed 64 bits.
const SUMMED: DataType = DataType::Decimal128(20, 0);

/// Changes expressions whose type in PostgreSQL is another.
#[derive(Debug)]
pub(crate) struct BeforeTypes;

impl AnalyzerRule for BeforeTypes {
    fn analyze(&self, plan: LogicalPlan, _options: &ConfigOptions) -> Result<LogicalPlan> {
        rewritten(plan, fitted, &before_types)
    }

    fn name(&self) -> &str {
        "forebay_before_types"
    }
}

/// Changes expressions that have the same type in PostgreSQL, but other values.
#[derive(Debug)]
pub(crate) struct AfterTypes(pub(crate) Limits);

impl AnalyzerRule for AfterTypes {
    fn analyze(&self, plan: LogicalPlan, _options: &ConfigOptions) -> Result<LogicalPlan> {
        rewritten(plan, filters, &|expr, schema, is_condition| {
            let expr = after_types(expr, schema, is_condition)?;
            expr.transform_data(|expr| self.0.limit(expr, schema))
        })
    }

    fn name(&self) -> &str {
        "forebay_after_types"
    }
}

/// Rewrites an expression. The last argument tells whether a plan uses it as a condition.
type Rewrite<'a> = &'a dyn Fn(Expr, &DFSchema, bool) -> Result<Transformed<Expr>>;

/// Rewrites a node of a plan.
type RewriteNode = fn(LogicalPlan) -> Result<Transformed<LogicalPlan>>;

fn rewritten(
    plan: LogicalPlan,
    rewrite_node: RewriteNode,
    rewrite: Rewrite,
) -> Result<LogicalPlan> {
    // Only then, nodes above may have other columns as well.
    let mut has_new_columns = false;
    let rewritten = plan.transform_up_with_subqueries(|node| {
        if matches!(&node, LogicalPlan::TableScan(scan) if scan.filters.is_empty()) {
            return Ok(Transformed::no(node));
        }
        let old = Arc::clone(node.schema());
        let schema = input_schema(&node, has_new_columns)?;
        let node = rewrite_node(node)?;
        let node = node.transform_data(|node| expressions(node, &schema, rewrite))?;
        let is_computed = node.transformed && computes_columns(&node.data);
        if !is_computed && !has_new_columns {
            return Ok(node);
        }
        let node = node.map_data(LogicalPlan::recompute_schema)?;
        has_new_columns |= **node.data.schema() != *old;
        Ok(node)
    });
    rewritten.data()
}

/// Returns the columns that a node's expressions may use. `is_stale` tells that those of its inputs changed.
fn input_schema(node: &LogicalPlan, is_stale: bool) -> Result<DFSchemaRef> {
    let inputs = node.inputs();
    Ok(match (node, &*inputs) {
        (LogicalPlan::TableScan(scan), _) => {
            let table = scan.table_name.clone();
            let columns = scan.source.schema();
            Arc::new(DFSchema::try_from_qualified_schema(table, &columns)?)
        }
        (LogicalPlan::Join(join), _) if !is_stale && returns_both_sides(join.join_type) => {
            Arc::clone(&join.schema)
        }
        (_, [input]) => Arc::clone(input.schema()),
        (_, inputs) => Arc::new(merge_schema(inputs)),
    })
}

fn returns_both_sides(join: JoinType) -> bool {
    matches!(
        join,
        JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full
    )
}

/// Returns whether the columns of a node depend on its expressions.
fn computes_columns(node: &LogicalPlan) -> bool {
    !matches!(
        node,
        LogicalPlan::Filter(_)
            | LogicalPlan::Join(_)
            | LogicalPlan::Sort(_)
            | LogicalPlan::Limit(_)
            | LogicalPlan::TableScan(_)
    )
}

fn expressions(
    node: LogicalPlan,
    schema: &DFSchema,
    rewrite: Rewrite,
) -> Result<Transformed<LogicalPlan>> {
    let is_condition = matches!(node, LogicalPlan::Filter(_) | LogicalPlan::Join(_));
    let names = NamePreserver::new(&node);
    node.map_expressions(|expr| {
        if matches!(expr, Expr::Column(_) | Expr::Literal(..)) {
            return Ok(Transformed::no(expr));
        }
        let name = names.save(&expr);
        let expr = expr.transform_up(|expr| rewrite(expr, schema, is_condition))?;
        Ok(match expr.transformed {
            true => expr.update_data(|expr| name.restore(expr)),
            false => expr,
        })
    })
}

/// Gives the columns that a node puts together their common types.
fn fitted(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    match node {
        LogicalPlan::Union(union) => beside::union(union),
        LogicalPlan::Join(join) if !join.on.is_empty() => beside::keys(join),
        LogicalPlan::Projection(projection) => counted::numbers_of_rows(projection),
        other => Ok(Transformed::no(other)),
    }
}

fn before_types(expr: Expr, schema: &DFSchema, _is_condition: bool) -> Result<Transformed<Expr>> {
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: Operator::Divide,
            right,
        }) => quotient(*left, *right, schema)?,
        Expr::AggregateFunction(mut call) => {
            let is_changed = widen_sum(call.func.name(), &mut call.params.args, schema)?;
            let call = AggregateFunction { ..call };
            transformed_if(is_changed, Expr::AggregateFunction(call))
        }
        Expr::WindowFunction(mut call) => {
            let is_changed = match &call.fun {
                WindowFunctionDefinition::AggregateUDF(function) => {
                    widen_sum(function.name(), &mut call.params.args, schema)?
                }
                WindowFunctionDefinition::WindowUDF(_) => false,
            };
            let call = Box::new(WindowFunction { ..*call });
            transformed_if(is_changed, Expr::WindowFunction(call))
        }
        Expr::ScalarSubquery(subquery) => nullable(subquery)?,
        Expr::ScalarFunction(call) => match call.func.name() {
            "timezone" => in_zone(call, schema)?,
            "date_part" => seconds(call, schema)?,
            "ceil" | "floor" => with_room(call, schema)?,
            "now" => in_micros(call, schema)?,
            "character_length" => octets(call, schema)?,
            "round" | "log" | "encode" => counted::constant(call),
            "array_length" | "array_position" | "array_ndims" | "cardinality" => {
                counted::number(call, schema)?
            }
            "coalesce" | "greatest" | "least" | "nullif" => alike(call, schema)?,
            _ => Transformed::no(Expr::ScalarFunction(call)),
        },
        Expr::Between(mut between) => {
            let is_text_typed = unknown::bounds_typed(&mut between, schema)?;
            let Between {
                expr, low, high, ..
            } = &mut between;
            let is_changed = beside::fit(&mut [expr, low, high], schema)? || is_text_typed;
            transformed_if(is_changed, Expr::Between(between))
        }
        Expr::Case(case) => alike_case(case, schema)?,
        other => unknown::typed(other, schema)?,
    })
}

/// Makes the value of a subquery that may have no rows one that may be NULL.
fn nullable(subquery: Subquery) -> Result<Transformed<Expr>> {
    let (qualifier, field) = subquery.subquery.schema().qualified_field(0);
    let is_done = field.is_nullable() || always_has_a_row(&subquery.subquery);
    if is_done || !subquery.outer_ref_columns.is_empty() {
        return Ok(Transformed::no(Expr::ScalarSubquery(subquery)));
    }
    let column = Expr::from((qualifier, field));
    let value = native::opaque()
        .call(vec![column.clone(), column])
        .alias(field.name());
    let input = Arc::clone(&subquery.subquery);
    let plan = LogicalPlan::Projection(Projection::try_new(vec![value], input)?);
    let subquery = Subquery {
        subquery: Arc::new(plan),
        ..subquery
    };
    Ok(Transformed::yes(Expr::ScalarSubquery(subquery)))
}

fn transformed_if(is_changed: bool, expr: Expr) -> Transformed<Expr> {
    match is_changed {
        true => Transformed::yes(expr),
        false => Transformed::no(expr),
    }
}

/// Returns a quotient. That of decimals gets more digits after the point.
fn quotient(left: Expr, right: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let scales = match left.get_type(schema)? {
        DataType::Decimal128(precision, scale) => match right.get_type(schema)? {
            DataType::Decimal128(_, other) => Some((precision, scale, other)),
            data_type if data_type.is_integer() => Some((precision, scale, 0)),
            _ => None,
        },
        data_type if data_type.is_integer() => match right.get_type(schema)? {
            DataType::Decimal128(_, other) => Some((20, 0, other)),
            _ => None,
        },
        _ => None,
    };
    let divided = |left, right| {
        let (left, right) = (Box::new(left), Box::new(right));
        Expr::BinaryExpr(BinaryExpr::new(left, Operator::Divide, right))
    };
    let Some((precision, scale, other)) = scales else {
        return Ok(Transformed::no(divided(left, right)));
    };
    // The dividend is multiplied so that the quotient has its digits and one more, and must not overflow.
    let room = i16::from(DIGITS_MAX) - i16::from(precision) + i16::from(scale) - i16::from(other);
    let wanted = room.min(i16::from(QUOTIENT_SCALE) + 1) - i16::from(QUOTIENT_SCALE_ADDED);
    let Some(added) = u8::try_from(wanted - i16::from(scale))
        .ok()
        .filter(|added| *added > 0)
    else {
        return Ok(Transformed::no(divided(left, right)));
    };
    let wide = DataType::Decimal128(
        (precision + added).min(DIGITS_MAX),
        i8::try_from(wanted).unwrap_or(scale),
    );
    let quotient = divided(cast(left, wide), right);
    // Arrow cuts the last digit, PostgreSQL rounds.
    let rounded = match quotient.get_type(schema)? {
        DataType::Decimal128(precision, scale) => DataType::Decimal128(precision, scale - 1),
        other => other,
    };
    Ok(Transformed::yes(cast(quotient, rounded)))
}

/// Makes the sum of 64-bit integers a decimal.
fn widen_sum(name: &str, arguments: &mut [Expr], schema: &DFSchema) -> Result<bool> {
    let [argument] = arguments else {
        return Ok(false);
    };
    if name != "sum"
        || !matches!(
            argument.get_type(schema)?,
            DataType::Int64 | DataType::UInt64
        )
    {
        return Ok(false);
    }
    let value = std::mem::replace(argument, lit(ScalarValue::Null));
    *argument = cast(value, SUMMED);
    Ok(true)
}

/// Returns the function of `AT TIME ZONE`. Plans have it only where the zone is not constant, which is refused.
pub(crate) fn timezone() -> ScalarUDF {
    let returns = |types: &[DataType]| {
        Ok(match &types[1] {
            DataType::Timestamp(_, None) => {
                DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into()))
            }
            _ => DataType::Timestamp(TimeUnit::Microsecond, None),
        })
    };
    let run = |_| {
        let error = SqlError::unsupported("AT TIME ZONE with a zone that is not constant");
        Err(DataFusionError::External(Box::new(error)))
    };
    Arc::unwrap_or_clone(native::native("timezone", 2, returns, run))
}

/// Returns `AT TIME ZONE`: a time in a zone becomes one without, and the reverse.
fn in_zone(call: ScalarFunction, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let [
        Expr::Literal(ScalarValue::Utf8(Some(zone)) | ScalarValue::Utf8View(Some(zone)), _),
        time,
    ] = &*call.args
    else {
        return Ok(Transformed::no(Expr::ScalarFunction(call)));
    };
    let of_zone = |zone: &str| DataType::Timestamp(TimeUnit::Microsecond, Some(zone.into()));
    let time = time.clone();
    let expr = match time.get_type(schema)? {
        DataType::Timestamp(_, None) => cast(cast(time, of_zone(zone)), of_zone("+00:00")),
        _ => {
            let local = cast(time, of_zone(zone));
            let function = datafusion::functions::datetime::to_local_time();
            Expr::ScalarFunction(ScalarFunction::new_udf(function, vec![local]))
        }
    };
    Ok(Transformed::yes(expr))
}

/// Returns the seconds of a time with their fraction.
fn seconds(mut call: ScalarFunction, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let is_second = match &*call.args {
        [Expr::Literal(part, _), _] => part
            .try_as_str()
            .flatten()
            .is_some_and(|part| matches!(&*part.to_lowercase(), "second" | "seconds")),
        _ => false,
    };
    let has_fraction = is_second
        && matches!(
            call.args[1].get_type(schema)?,
            DataType::Timestamp(..) | DataType::Time64(_) | DataType::Interval(_)
        );
    if !has_fraction {
        return Ok(Transformed::no(Expr::ScalarFunction(call)));
    }
    call.args[0] = lit("microsecond");
    let micros = cast(Expr::ScalarFunction(call), DataType::Decimal128(10, 0));
    let micro = lit(ScalarValue::Decimal128(Some(1), 7, 6));
    Ok(Transformed::yes(micros * micro))
}

/// Gives the argument of `ceil` or `floor` one more digit, as 9.9 becomes 10.
fn with_room(mut call: ScalarFunction, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let [argument] = &mut *call.args else {
        return Ok(Transformed::no(Expr::ScalarFunction(call)));
    };
    let is_changed = match argument.get_type(schema)? {
        DataType::Decimal128(precision, scale @ 1..) if precision < DIGITS_MAX => {
            let value = std::mem::replace(argument, lit(ScalarValue::Null));
            *argument = cast(value, DataType::Decimal128(precision + 1, scale));
            true
        }
        _ => false,
    };
    Ok(transformed_if(is_changed, Expr::ScalarFunction(call)))
}

/// Returns the length of bytes, which need not be a text.
fn octets(call: ScalarFunction, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let is_binary = match &*call.args {
        [value] => value.get_type(schema)?.is_binary(),
        _ => false,
    };
    Ok(match is_binary {
        true => Transformed::yes(input::octets().call(call.args)),
        false => Transformed::no(Expr::ScalarFunction(call)),
    })
}

/// Returns the time of a statement in microseconds. Beside it, others would be counted in nanoseconds.
fn in_micros(call: ScalarFunction, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let call = Expr::ScalarFunction(call);
    Ok(match call.get_type(schema)? {
        DataType::Timestamp(TimeUnit::Nanosecond, zone) => {
            Transformed::yes(cast(call, DataType::Timestamp(TimeUnit::Microsecond, zone)))
        }
        _ => Transformed::no(call),
    })
}

/// Gives the arguments of a function their common type.
fn alike(mut call: ScalarFunction, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let mut values: Vec<&mut Expr> = call.args.iter_mut().collect();
    let is_changed = beside::fit_one(&mut values, schema)?;
    Ok(transformed_if(is_changed, Expr::ScalarFunction(call)))
}

/// Gives the results of `CASE` their common type, and what it compares as well.
fn alike_case(mut case: Case, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let (mut compared, mut results) = (Vec::new(), Vec::new());
    for (when, then) in &mut case.when_then_expr {
        compared.push(&mut **when);
        results.push(&mut **then);
    }
    results.extend(case.else_expr.as_deref_mut());
    let mut is_changed = beside::fit_one(&mut results, schema)?;
    if let Some(expr) = &mut case.expr {
        compared.push(expr);
        is_changed |= beside::fit(&mut compared, schema)?;
    }
    Ok(transformed_if(is_changed, Expr::Case(case)))
}

fn after_types(expr: Expr, schema: &DFSchema, is_condition: bool) -> Result<Transformed<Expr>> {
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            operator(*left, op, *right, schema, is_condition)?
        }
        Expr::Cast(inner) => {
            let from = inner.expr.get_type(schema)?;
            let to = inner.field.data_type().clone();
            if from.is_integer() && to == DataType::Boolean {
                // DataFusion takes casts for ones that keep the order, and left out files with 0 between -1 and 1.
                let zero = lit(ScalarValue::new_zero(&from)?);
                return Ok(Transformed::yes(inner.expr.not_eq(zero)));
            }
            let function = texts::of_cast(&from, &to)
                .or_else(|| input::of_cast(&from, &to))
                .or_else(|| days::of_cast(&from, &to))
                .or_else(|| rounding(&from, &to));
            let Some(function) = function else {
                return Ok(Transformed::no(Expr::Cast(inner)));
            };
            if is_call_of(&inner.expr, function.name()) {
                return Ok(Transformed::no(Expr::Cast(inner)));
            }
            let value = function.call(vec![*inner.expr]);
            Transformed::yes(cast(value, to))
        }
        Expr::ScalarFunction(call) if call.func.name() == "round" && call.args.len() == 1 => {
            match call.args[0].get_type(schema)? {
                DataType::Float32 | DataType::Float64 => {
                    Transformed::yes(arithmetic::round_to_even().call(call.args))
                }
                _ => Transformed::no(Expr::ScalarFunction(call)),
            }
        }
        // DataFusion computes the items of a long list once, without rows.
        Expr::InList(list) if list.list.iter().any(depends_on_rows) => {
            Transformed::yes(alternatives(list))
        }
        Expr::Negative(inner) if !matches!(*inner, Expr::Literal(..)) => negative(*inner, schema)?,
        other => Transformed::no(other),
    })
}

/// Returns `-value`, which fails if the value is the smallest of its type.
fn negative(value: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let data_type = value.get_type(schema)?;
    match arithmetic::checked(Operator::Minus) {
        Some(minus) if data_type.is_signed_integer() => {
            let zero = lit(ScalarValue::new_zero(&data_type)?);
            Ok(Transformed::yes(minus.call(vec![zero, value])))
        }
        _ => Ok(Transformed::no(Expr::Negative(Box::new(value)))),
    }
}

fn depends_on_rows(expr: &Expr) -> bool {
    let depends = expr.exists(|inner| {
        Ok(matches!(
            inner,
            Expr::Column(_) | Expr::OuterReferenceColumn(..) | Expr::ScalarSubquery(_)
        ))
    });
    depends.unwrap_or(true)
}

/// Returns a list of values as comparisons with each.
fn alternatives(list: InList) -> Expr {
    let value = *list.expr;
    let equal = list.list.into_iter().map(|item| value.clone().eq(item));
    let any = equal.reduce(Expr::or).unwrap_or_else(|| lit(false));
    match list.negated {
        true => Expr::Not(Box::new(any)),
        false => any,
    }
}

/// Keeps the conditions of filters from where, or from rows for which, DataFusion should not evaluate them.
fn filters(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    kept_above(plan)?.transform_data(guarded::guarded)
}

/// Keeps conditions without columns above aggregates that return one row. Below them, they would only change its value.
fn kept_above(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    match plan {
        LogicalPlan::Filter(filter)
            if has_loose(&filter.predicate) && has_lone_aggregate(&filter.input) =>
        {
            let predicate = bound(filter.predicate, &filter.input);
            let filter = Filter::try_new(predicate, filter.input)?;
            Ok(Transformed::yes(LogicalPlan::Filter(filter)))
        }
        LogicalPlan::Join(mut join) => {
            let filter = join.filter.as_ref().filter(|filter| has_loose(filter));
            let side = filter.and_then(|_| {
                let mut sides = [&join.left, &join.right].into_iter();
                sides.find(|side| has_lone_aggregate(side))
            });
            let Some(side) = side.cloned() else {
                return Ok(Transformed::no(LogicalPlan::Join(join)));
            };
            join.filter = join.filter.map(|filter| bound(filter, &side));
            Ok(Transformed::yes(LogicalPlan::Join(join)))
        }
        plan => Ok(Transformed::no(plan)),
    }
}

/// Returns whether a part of a condition may move below any operator.
fn has_loose(predicate: &Expr) -> bool {
    split_conjunction(predicate).into_iter().any(is_loose)
}

fn is_loose(condition: &Expr) -> bool {
    let is_bound = condition.exists(|inner| {
        Ok(matches!(
            inner,
            Expr::Column(_)
                | Expr::OuterReferenceColumn(..)
                | Expr::Exists(_)
                | Expr::InSubquery(_)
        ))
    });
    !is_bound.unwrap_or(true)
        && !matches!(
            condition,
            Expr::Literal(ScalarValue::Boolean(Some(true)), _)
        )
}

fn has_lone_aggregate(plan: &LogicalPlan) -> bool {
    let found = plan.exists(|node| {
        Ok(match node {
            LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
            _ => false,
        })
    });
    found.unwrap_or(true)
}

/// Gives conditions without columns one of a plan. As conditions of a table's or an aggregate's column, they stay
/// above it.
fn bound(predicate: Expr, plan: &LogicalPlan) -> Expr {
    let column = Expr::from(plan.schema().qualified_field(0));
    let conditions = split_conjunction_owned(predicate).into_iter();
    let conditions = conditions.map(|condition| match is_loose(&condition) {
        true => native::opaque().call(vec![cast(condition, DataType::Boolean), column.clone()]),
        false => condition,
    });
    conjunction(conditions).unwrap_or_else(|| lit(true))
}

/// Returns an argument of an aggregate whose name tells its type. DataFusion names casts after what is cast, so that
/// `max(a)` and `max(a::text)` would have the same name.
pub(crate) fn typed(expr: Expr) -> Expr {
    let Expr::Cast(inner) = &expr else {
        return expr;
    };
    if matches!(*inner.expr, Expr::Literal(..) | Expr::Placeholder(_)) {
        return expr;
    }
    let name = match inner.field.data_type() {
        DataType::Boolean => "bool",
        DataType::Int16 => "int2",
        DataType::Int32 => "int4",
        DataType::Int64 => "int8",
        DataType::Float32 => "float4",
        DataType::Float64 => "float8",
        DataType::Decimal128(..) | DataType::Decimal256(..) => "numeric",
        DataType::Date32 => "date",
        DataType::Timestamp(_, None) => "timestamp",
        DataType::Timestamp(_, Some(_)) => "timestamptz",
        DataType::Utf8 | DataType::Utf8View => "varchar",
        _ => return expr,
    };
    native::named(name).call(vec![expr])
}

/// Returns whether an expression calls a function.
fn is_call_of(expr: &Expr, name: &str) -> bool {
    matches!(expr, Expr::ScalarFunction(call) if call.func.name() == name)
}

/// Returns the function that rounds before a cast to an integer.
fn rounding(from: &DataType, to: &DataType) -> Option<Arc<ScalarUDF>> {
    if !to.is_integer() {
        return None;
    }
    match from {
        DataType::Float32 | DataType::Float64 => Some(arithmetic::round_to_even()),
        DataType::Decimal128(_, 1..) => Some(arithmetic::round_decimal()),
        _ => None,
    }
}

fn operator(
    left: Expr,
    op: Operator,
    right: Expr,
    schema: &DFSchema,
    is_condition: bool,
) -> Result<Transformed<Expr>> {
    use Operator::{Divide, Eq, Gt, GtEq, Lt, LtEq, Minus, Multiply, NotEq, Plus};
    let same = |left, right| {
        let (left, right) = (Box::new(left), Box::new(right));
        Expr::BinaryExpr(BinaryExpr::new(left, op, right))
    };
    match op {
        Plus | Minus | Multiply | Divide => {
            let right_type = right.get_type(schema)?;
            let function = match op {
                Divide if right_type.is_floating() => Some(arithmetic::divide_floats()),
                Divide => None,
                _ if right_type.is_integer() => arithmetic::checked(op),
                _ => None,
            };
            match function {
                Some(function) if left.get_type(schema)? == right_type => {
                    Ok(Transformed::yes(function.call(vec![left, right])))
                }
                _ => Ok(Transformed::no(same(left, right))),
            }
        }
        Eq | NotEq | Lt | LtEq | Gt | GtEq
            if intervals::is_interval(&right.get_type(schema)?)
                && intervals::is_interval(&left.get_type(schema)?) =>
        {
            let length = |side| intervals::length().call(vec![side]);
            Ok(Transformed::yes(same(length(left), length(right))))
        }
        // As keys of a join, NULLs would be equal for its other keys as well.
        Operator::IsNotDistinctFrom
            if is_condition && left.any_column_refs() && right.any_column_refs() =>
        {
            let both_null = left.clone().is_null().and(right.clone().is_null());
            let equal = left.eq(right).is_true();
            Ok(Transformed::yes(equal.or(both_null)))
        }
        _ => Ok(Transformed::no(same(left, right))),
    }
}
