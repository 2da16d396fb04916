//! Defaults of columns.

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::{DFSchema, TableReference};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, ExprSchemable};
use datafusion::sql::parser::Statement;
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast::{
    self, Assignment, AssignmentTarget, FromTable, Insert, ObjectName, SetExpr, TableFactor,
    TableObject, Values,
};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use forebay_tables_delta::COLUMN_DEFAULT;

use super::provider::ManagedProvider;
use crate::error::{Code, Result, SqlError};
use crate::parse::{failed, folded};
use crate::types::type_name;

fn parsed(text: &str) -> Result<ast::Expr, ParserError> {
    Parser::new(&PostgreSqlDialect {})
        .try_with_sql(text)?
        .parse_expr()
}

/// Returns the plan of a default.
///
/// # Errors
/// If it names a column.
pub(super) fn planned(state: &SessionState, text: &str) -> Result<Expr> {
    let sql = ast::ExprWithAlias {
        expr: parsed(text).map_err(failed)?,
        alias: None,
    };
    Ok(state.create_logical_expr_from_sql_expr(sql, &DFSchema::empty())?)
}

/// Refuses a default that does not fit the type of its column.
///
/// # Errors
/// If it is no constant expression, or cannot be cast to the type.
pub(super) fn check(state: &SessionState, text: &str, data_type: &DataType) -> Result<()> {
    let schema = DFSchema::empty();
    let default = planned(state, text)?;
    let refused = |error: SqlError| SqlError {
        message: format!("the default {text}: {}", error.message),
        ..error
    };
    let checked = default
        .cast_to(data_type, &schema)
        .and_then(|default| state.create_physical_expr(default, &schema));
    checked.map_err(|error| refused(error.into())).map(drop)
}

/// Finds the table that an `INSERT`, `UPDATE` or `DELETE` changes, and writes the defaults of its columns in place of
/// `DEFAULT`. Other statements stay as they are.
///
/// # Errors
/// If there is no such table, it is another kind of table, or a column does not exist.
pub(crate) async fn with_defaults(state: &SessionState, statement: &mut Statement) -> Result<()> {
    let Statement::Statement(sql) = statement else {
        return Ok(());
    };
    let Some(name) = target(sql) else {
        return Ok(());
    };
    let table = table(state, name).await?;
    match &mut **sql {
        ast::Statement::Insert(insert) => of_insert(&table, insert),
        ast::Statement::Update(update) => {
            for Assignment { target, value } in &mut update.assignments {
                if let AssignmentTarget::ColumnName(column) = target
                    && is_default(value)
                {
                    *value = default_of(&table, &column_name(column))?;
                }
                if let AssignmentTarget::ColumnName(column) = target {
                    check_constant(value, &column_name(column), &table.described())?;
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Returns the name of the table that a statement changes; `None` if it changes none.
fn target(sql: &ast::Statement) -> Option<&ObjectName> {
    let factor = match sql {
        ast::Statement::Insert(insert) => {
            return match &insert.table {
                TableObject::TableName(name) => Some(name),
                _ => None,
            };
        }
        ast::Statement::Update(update) => &update.table.relation,
        ast::Statement::Delete(delete) => match &delete.from {
            FromTable::WithFromKeyword(tables) | FromTable::WithoutKeyword(tables) => {
                &tables.first()?.relation
            }
        },
        _ => return None,
    };
    match factor {
        TableFactor::Table { name, .. } => Some(name),
        _ => None,
    }
}

fn column_name(name: &ObjectName) -> String {
    let part = name.0.last().and_then(|part| part.as_ident());
    part.map(folded).unwrap_or_default()
}

fn of_insert(table: &ManagedProvider, insert: &mut Insert) -> Result<()> {
    if insert.source.is_none() && insert.assignments.is_empty() {
        // DEFAULT VALUES
        let query = Parser::new(&PostgreSqlDialect {})
            .try_with_sql("VALUES (DEFAULT)")
            .and_then(|mut parser| parser.parse_query());
        insert.source = Some(query.map_err(failed)?);
    }
    let values = insert.source.as_mut().map(|source| &mut *source.body);
    let Some(SetExpr::Values(Values { rows, .. })) = values else {
        return Ok(());
    };
    let schema = table.described();
    if insert.columns.is_empty() {
        // The last columns may be left out.
        let given = rows.first().map_or(0, |row| row.content.len());
        let names = schema.fields().iter().take(given);
        let names =
            names.map(|field| ObjectName::from(vec![ast::Ident::with_quote('"', field.name())]));
        insert.columns = names.collect();
    }
    let columns: Vec<String> = insert.columns.iter().map(column_name).collect();
    for row in rows {
        if row.content.len() != columns.len() {
            let what = if row.content.len() > columns.len() {
                "more"
            } else {
                "fewer"
            };
            let message = format!("INSERT has {what} expressions than target columns");
            return Err(SqlError::new(Code::SyntaxError, message));
        }
        for (value, column) in row.content.iter_mut().zip(&columns) {
            if is_default(value) {
                *value = default_of(table, column)?;
            }
            check_constant(value, column, &schema)?;
        }
    }
    Ok(())
}

/// Refuses a constant of a type that is not assigned to that of its column.
fn check_constant(value: &ast::Expr, column: &str, schema: &Schema) -> Result<()> {
    let (ast::Expr::Value(constant), Ok(field)) = (value, schema.field_with_name(column)) else {
        return Ok(());
    };
    let data_type = field.data_type();
    let (given, fits) = match &constant.value {
        ast::Value::Boolean(_) => ("boolean", *data_type == DataType::Boolean),
        ast::Value::Number(..) => ("numeric", data_type.is_numeric()),
        _ => return Ok(()),
    };
    if fits || *data_type == DataType::Utf8View {
        return Ok(());
    }
    let wanted = type_name(data_type);
    let message =
        format!("column \"{column}\" is of type {wanted} but expression is of type {given}");
    Err(SqlError::new(Code::DatatypeMismatch, message).with_hint("cast the expression"))
}

fn is_default(value: &ast::Expr) -> bool {
    matches!(value, ast::Expr::Identifier(name) if name.quote_style.is_none() && name.value.eq_ignore_ascii_case("default"))
}

fn default_of(table: &ManagedProvider, column: &str) -> Result<ast::Expr> {
    let schema = table.described();
    let field = schema.field_with_name(column).map_err(|_| {
        let message = format!(
            "column \"{column}\" of relation \"{}\" does not exist",
            table.name()
        );
        SqlError::new(Code::UndefinedColumn, message)
    })?;
    let text = field.metadata().get(COLUMN_DEFAULT);
    parsed(text.map_or("NULL", |text| text)).map_err(failed)
}

/// Returns the managed table of a name.
///
/// # Errors
/// If there is no table of this name, or it is another kind of table.
pub(super) async fn table(state: &SessionState, name: &ObjectName) -> Result<ManagedProvider> {
    let name: TableReference = object_name_to_table_reference(name.clone(), true)?;
    let schema = state.schema_for_ref(name.clone())?;
    let Some(found) = schema.table(name.table()).await? else {
        let message = format!("relation \"{}\" does not exist", name.table());
        return Err(SqlError::new(Code::UndefinedTable, message));
    };
    match found.downcast_ref::<ManagedProvider>() {
        Some(table) => Ok(table.clone()),
        None => Err(not_managed(name.table())),
    }
}

/// Returns the error of a change of a table over files, of a view or of a collection.
pub(super) fn not_managed(name: &str) -> SqlError {
    let message = format!("\"{name}\" cannot be changed by SQL: it is no managed table");
    SqlError::new(Code::WrongObjectType, message).with_hint(
        "tables of CREATE TABLE can; those over files, views and collections are read only",
    )
}
