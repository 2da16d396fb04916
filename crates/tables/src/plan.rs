//! Planning of queries, and the types of their parameters and columns.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::tree_node::{TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ParamValues};
use datafusion::execution::SessionState;
use datafusion::execution::context::SQLOptions;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Volatility,
};
use datafusion::scalar::ScalarValue;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast;
use datafusion_pg_catalog::sql::PostgresCompatibilityParser;

use crate::error::{Code, Result, SqlError};
use crate::sized::Limits;
use crate::{names, rewrite};

/// Maximum number of a parameter.
const PARAMETERS_MAX: usize = 65_535;
/// Maximum number of inputs of a plan, such as tables, those of views counted. Views that name each other several
/// times are plans whose size grows with a power of their depth.
const INPUTS_MAX: usize = 2_000;

/// What statements mention that must be rewritten so that DataFusion can answer what clients ask of `pg_catalog`.
const POSTGRES_WORDS: [&str; 8] = [
    "pg_",
    "information_schema",
    "regclass",
    "regproc",
    "regtype",
    "regnamespace",
    "current_schema",
    "current_database",
];

/// Maximum depth of parentheses in a statement that is rewritten. The rewriter's parser takes twice the time for each.
const REWRITTEN_PARENTHESES_MAX: usize = 14;

static REWRITER: LazyLock<PostgresCompatibilityParser> =
    LazyLock::new(PostgresCompatibilityParser::new);

/// Plans a query, or a change of a managed table. `may_copy` allows `COPY ... TO` a file.
///
/// # Errors
/// If the statement cannot be planned, or changes something else.
pub(crate) async fn query(
    state: &SessionState,
    text: &str,
    statement: Statement,
    may_copy: bool,
) -> Result<LogicalPlan> {
    let is_copy = matches!(statement, Statement::CopyTo(_));
    let is_write = is_write(&statement);
    if is_copy && !may_copy {
        return Err(SqlError::unsupported("COPY TO a file on the server")
            .with_hint("use SELECT, and let the client write the file"));
    }
    if let Statement::CopyTo(copy) = &statement
        && copy.target.starts_with("s3://")
    {
        return Err(
            SqlError::unsupported("COPY TO a file in S3").with_hint("copy a local file there")
        );
    }
    let statement = understood(rewritten(text, statement)?)?;
    let plan = state.statement_to_plan(statement).await?;
    check_inputs(&plan)?;
    let options = SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_statements(false);
    let verified = options
        .with_allow_dml(is_copy || is_write)
        .verify_plan(&plan);
    verified
        .map_err(|error| SqlError::unsupported(format!("this ({})", error.strip_backtrace())))?;
    Ok(plan)
}

/// Refuses a plan that would take long to optimize, which no cancellation ends.
///
/// # Errors
/// If it has too many inputs.
pub(crate) fn check_inputs(plan: &LogicalPlan) -> Result<()> {
    let mut count = 0;
    plan.apply_with_subqueries(|node| {
        count += usize::from(node.inputs().is_empty());
        Ok(if count > INPUTS_MAX {
            TreeNodeRecursion::Stop
        } else {
            TreeNodeRecursion::Continue
        })
    })?;
    if count <= INPUTS_MAX {
        return Ok(());
    }
    let message =
        format!("the statement reads more than {INPUTS_MAX} tables, those of views counted");
    Err(SqlError::new(Code::StatementTooComplex, message))
}

/// Returns whether a statement is an `INSERT`, `UPDATE` or `DELETE`.
fn is_write(statement: &Statement) -> bool {
    let Statement::Statement(sql) = statement else {
        return false;
    };
    matches!(
        **sql,
        ast::Statement::Insert(_) | ast::Statement::Update(_) | ast::Statement::Delete(_)
    )
}

/// Returns a statement whose columns have PostgreSQL's names, and whose expressions DataFusion understands.
///
/// # Errors
/// If the statement has a name of several columns, or what the server does not have.
pub(crate) fn understood(mut statement: Statement) -> Result<Statement> {
    names::name_columns(&mut statement)?;
    rewrite::rewrite(&mut statement)?;
    Ok(statement)
}

/// Rewrites a statement of a client's catalogue queries.
fn rewritten(text: &str, statement: Statement) -> Result<Statement> {
    let Statement::Statement(sql) = statement else {
        return Ok(statement);
    };
    let folded = text.to_ascii_lowercase();
    let is_for_catalogue = POSTGRES_WORDS.iter().any(|word| folded.contains(word));
    if !is_for_catalogue || parentheses(text) > REWRITTEN_PARENTHESES_MAX {
        return Ok(Statement::Statement(sql));
    }
    // The rewriter knows some queries of clients by their text.
    let parsed = match &*sql {
        ast::Statement::Query(_) if !folded.starts_with("declare") => REWRITER.parse(text),
        sql => REWRITER.parse(&sql.to_string()),
    };
    match parsed.ok().and_then(|mut statements| statements.pop()) {
        Some(rewritten) => Ok(Statement::Statement(Box::new(rewritten))),
        None => Ok(Statement::Statement(sql)),
    }
}

/// Returns the depth of parentheses in a text, those in quotes counted.
fn parentheses(text: &str) -> usize {
    let mut depth: usize = 0;
    let depths = text.bytes().map(|byte| {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth
    });
    depths.max().unwrap_or(0)
}

/// Returns the types of a plan's parameters, from `$1` on. The client's types come first.
///
/// # Errors
/// If a parameter has no number, or too high a one.
pub(crate) fn parameters(
    plan: &LogicalPlan,
    declared: &[Option<DataType>],
) -> Result<Vec<Option<DataType>>> {
    let mut inferred = plan.get_parameter_types()?;
    infer_from_casts(plan, &mut inferred)?;
    crate::inference::infer_arrays(plan, &mut inferred)?;
    let mut types = declared.to_vec();
    let mut numbered = HashMap::new();
    for (name, data_type) in inferred {
        let number = name
            .strip_prefix('$')
            .and_then(|number| number.parse().ok());
        let number: usize = number
            .filter(|number| (1..=PARAMETERS_MAX).contains(number))
            .ok_or_else(|| {
                let message = format!("there is no parameter {name}");
                SqlError::new(Code::UndefinedParameter, message)
            })?;
        numbered.insert(number, data_type);
    }
    let count = numbered
        .keys()
        .copied()
        .max()
        .unwrap_or(0)
        .max(declared.len());
    types.resize(count, None);
    for (index, known) in types.iter_mut().enumerate() {
        if known.is_none() {
            *known = numbered.remove(&(index + 1)).flatten();
        }
    }
    Ok(types)
}

/// Adds the types of parameters that are cast, as in `$1::int`, which DataFusion does not infer.
fn infer_from_casts(
    plan: &LogicalPlan,
    types: &mut HashMap<String, Option<DataType>>,
) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expression| {
            expression.apply(|inner| {
                if let Expr::Cast(cast) = inner
                    && let Expr::Placeholder(parameter) = &*cast.expr
                    && let Some(known) = types.get_mut(&parameter.id)
                {
                    known.get_or_insert_with(|| cast.field.data_type().clone());
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(())
}

/// Returns the columns of a plan whose parameters have these types. Those without a type are texts.
///
/// # Errors
/// If the types do not fit.
pub(crate) fn columns(
    state: &SessionState,
    plan: &LogicalPlan,
    parameters: &[Option<DataType>],
) -> Result<SchemaRef> {
    Ok(names::shown(&planned_columns(state, plan, parameters)?))
}

fn planned_columns(
    state: &SessionState,
    plan: &LogicalPlan,
    parameters: &[Option<DataType>],
) -> Result<SchemaRef> {
    if parameters.is_empty() {
        return analyzed(state, plan.clone());
    }
    let nulls = parameters.iter().map(|data_type| {
        let data_type = data_type.as_ref().unwrap_or(&DataType::Utf8);
        ScalarValue::try_from(data_type)
    });
    let nulls: Result<Vec<ScalarValue>, _> = nulls.collect();
    let plan = plan
        .clone()
        .replace_params_with_values(&ParamValues::from(nulls?))?;
    analyzed(state, plan)
}

/// Returns the columns of a plan after its types were made to fit, as in a `UNION` of different types.
fn analyzed(state: &SessionState, plan: LogicalPlan) -> Result<SchemaRef> {
    if matches!(plan, LogicalPlan::Explain(_) | LogicalPlan::Analyze(_)) {
        return Ok(Arc::clone(plan.schema().inner()));
    }
    let options = state.config_options();
    let plan = state
        .analyzer()
        .execute_and_check(plan, options, |_, _| {})?;
    Ok(Arc::clone(plan.schema().inner()))
}

/// Returns whether a plan reads or changes tables.
pub(crate) fn reads_tables(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        found = matches!(node, LogicalPlan::TableScan(_) | LogicalPlan::Dml(_));
        Ok(if found {
            TreeNodeRecursion::Stop
        } else {
            TreeNodeRecursion::Continue
        })
    })?;
    Ok(found)
}

/// Returns whether a plan reads no tables, and calls only functions that return the same for the same arguments.
pub(crate) fn is_immutable(plan: &LogicalPlan) -> Result<bool> {
    Ok(is_repeatable(plan)? && !reads_tables(plan)?)
}

/// Returns whether a plan may run again while its tables are the same: it is a query, and calls only functions that
/// return the same for the same arguments.
pub(crate) fn is_repeatable(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        found |= matches!(
            node,
            LogicalPlan::Explain(_)
                | LogicalPlan::Analyze(_)
                | LogicalPlan::Copy(_)
                | LogicalPlan::Dml(_)
        );
        node.apply_expressions(|expression| {
            expression.apply(|inner| {
                if let Expr::ScalarFunction(call) = inner {
                    found |= call.func.signature().volatility != Volatility::Immutable;
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(!found)
}

/// Computes constant expressions, the arguments of `EXECUTE`.
///
/// # Errors
/// If they are no constants, or not of these types.
pub(crate) fn values(
    state: &SessionState,
    expressions: &[ast::Expr],
    types: &[Option<DataType>],
) -> Result<Vec<ScalarValue>> {
    if expressions.len() != types.len() {
        let message = format!(
            "wrong number of parameters: {} given, {} wanted",
            expressions.len(),
            types.len()
        );
        return Err(SqlError::new(Code::SyntaxError, message));
    }
    let computed = expressions
        .iter()
        .zip(types)
        .map(|(expression, data_type)| {
            let value = value(state, expression)?;
            match data_type {
                Some(data_type) => Ok(value.cast_to(data_type)?),
                None => Ok(value),
            }
        });
    computed.collect()
}

fn value(state: &SessionState, expression: &ast::Expr) -> Result<ScalarValue> {
    let schema = DFSchema::empty();
    let sql = ast::ExprWithAlias {
        expr: expression.clone(),
        alias: None,
    };
    let expression = state.create_logical_expr_from_sql_expr(sql, &schema)?;
    evaluated(state, expression)
}

/// Computes a constant expression as a value of a type.
///
/// # Errors
/// If it is no constant, or does not fit the type.
pub(crate) fn constant(
    state: &SessionState,
    expression: Expr,
    data_type: &DataType,
) -> Result<ScalarValue> {
    let expression = expression.cast_to(data_type, &DFSchema::empty())?;
    evaluated(state, expression)
}

fn evaluated(state: &SessionState, expression: Expr) -> Result<ScalarValue> {
    let plan = LogicalPlanBuilder::empty(true).project([expression])?;
    let expression = match state.optimize(&plan.build()?)? {
        LogicalPlan::Projection(row) => row.expr.into_iter().next(),
        _ => None,
    };
    let expression = expression.ok_or_else(|| SqlError::unsupported("this constant"))?;
    let expression = match state.config().get_extension::<Limits>() {
        Some(limits) => expression
            .transform_up(|inner| limits.limit(inner, &DFSchema::empty()))
            .data()?,
        None => expression,
    };
    let expression = state.create_physical_expr(expression, &DFSchema::empty())?;
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    let row = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options);
    let row = row.map_err(datafusion::error::DataFusionError::from)?;
    match expression.evaluate(&row)? {
        ColumnarValue::Scalar(value) => Ok(value),
        ColumnarValue::Array(values) => Ok(ScalarValue::try_from_array(&values, 0)?),
    }
}

/// Returns the Arrow type of a type that `PREPARE` names.
///
/// # Errors
/// If the server does not have the type.
pub(crate) fn arrow_type(sql: &ast::DataType) -> Result<Option<DataType>> {
    use ast::DataType as Sql;
    use datafusion::arrow::datatypes::TimeUnit;
    Ok(Some(match sql {
        Sql::Boolean | Sql::Bool => DataType::Boolean,
        Sql::SmallInt(_) | Sql::Int2(_) => DataType::Int16,
        Sql::Int(_) | Sql::Integer(_) | Sql::Int4(_) => DataType::Int32,
        Sql::BigInt(_) | Sql::Int8(_) => DataType::Int64,
        Sql::Real | Sql::Float4 => DataType::Float32,
        Sql::DoublePrecision | Sql::Float8 | Sql::Double(_) | Sql::Float(_) => DataType::Float64,
        Sql::Text | Sql::Varchar(_) | Sql::Char(_) | Sql::CharacterVarying(_) => DataType::Utf8,
        Sql::Bytea => DataType::Binary,
        Sql::Date => DataType::Date32,
        Sql::Timestamp(_, ast::TimezoneInfo::None | ast::TimezoneInfo::WithoutTimeZone) => {
            DataType::Timestamp(TimeUnit::Microsecond, None)
        }
        // The value tells precision and scale.
        Sql::Numeric(_) | Sql::Decimal(_) => return Ok(None),
        Sql::Custom(name, _) if name.to_string().eq_ignore_ascii_case("unknown") => {
            return Ok(None);
        }
        other => {
            return Err(SqlError::unsupported(format!(
                "a parameter of type {other}"
            )));
        }
    }))
}
