//! Statements that change the catalogue.

use std::sync::Arc;

use datafusion::common::{ResolvedTableReference, TableReference};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{self as logical, DdlStatement, LogicalPlan};
use datafusion::sql::parser::{CreateExternalTable, Statement};
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast::{self, Ident, ObjectName};

use crate::catalogue::{Entry, Kind};
use crate::command::with_absolute_locations;
use crate::engine::Shared;
use crate::error::{Code, Result, SqlError};
use crate::files::FileTable;
use crate::provider::DATABASE;
use crate::rows::Running;
use crate::session::{Outcome, Session};
use crate::source::planned_for;
use crate::{managed, names};

/// Maximum bytes of a definition. Each change writes all of them.
const DEFINITION_BYTES_MAX: usize = 64 << 10;

/// Runs a statement.
///
/// # Errors
/// If an object exists or does not, a file may not be read, or the catalogue cannot be written.
pub(crate) async fn run(
    session: &mut Session,
    statement: Statement,
    text: &str,
) -> Result<Outcome> {
    let definition = text.to_owned();
    let state = Arc::clone(session.state());
    let shared = Arc::clone(session.tables().shared());
    let work = async move {
        let resolve = |table: TableReference| {
            let defaults = &state.config_options().catalog;
            table.resolve(&defaults.default_catalog, &defaults.default_schema)
        };
        if let Statement::CreateExternalTable(table) = statement {
            let name = object_name_to_table_reference(table.name.clone(), true)?;
            return create_external(&shared, &state, resolve(name), table).await;
        }
        let statement = crate::plan::understood(statement)?;
        if let Statement::Statement(sql) = &statement
            && matches!(**sql, ast::Statement::CreateView(_))
        {
            // Later, the view is planned without a session.
            shared.base().statement_to_plan(statement.clone()).await?;
        }
        match state.statement_to_plan(statement).await? {
            LogicalPlan::Ddl(command) => apply(&shared, command, definition, resolve),
            _ => Err(SqlError::unsupported("this statement")),
        }
    };
    let threads = session.tables().threads().clone();
    let work = planned_for(session.user().to_owned(), work);
    let (tag, notice) = Running::start_blocking(&threads, work).end().await??;
    if let Some(notice) = notice {
        session.notice(notice);
    }
    Ok(Outcome::Done(tag.to_owned()))
}

/// The tag, and a notice for the client.
type Applied = (&'static str, Option<SqlError>);

/// Returns the table that a statement declares.
///
/// # Errors
/// If the statement is wrong.
pub(crate) async fn external_table(
    state: &SessionState,
    mut table: CreateExternalTable,
) -> Result<logical::CreateExternalTable> {
    // DataFusion would look the table up under its own name.
    table.name = ObjectName::from(vec![Ident::new("_")]);
    match state
        .statement_to_plan(Statement::CreateExternalTable(table))
        .await?
    {
        LogicalPlan::Ddl(DdlStatement::CreateExternalTable(command)) => Ok(*command),
        _ => Err(SqlError::unsupported("this statement")),
    }
}

async fn create_external(
    shared: &Shared,
    state: &SessionState,
    name: ResolvedTableReference,
    table: CreateExternalTable,
) -> Result<Applied> {
    if table.temporary || table.unbounded {
        return Err(SqlError::unsupported("a temporary or unbounded table"));
    }
    let table = with_absolute_locations(table)?;
    for location in &table.locations {
        shared.paths.check(location)?;
    }
    if table.if_not_exists && shared.catalogue.has_table(&name.schema, &name.table) {
        return Ok(("CREATE TABLE", Some(skipped(&name))));
    }
    let (definition, or_replace) = (table.to_string(), table.or_replace);
    // The files must be there, and of this format.
    let files = FileTable::new(external_table(state, table).await?);
    files.provider(shared.base(), &shared.paths).await?;
    add(
        shared,
        &name,
        Entry::new(Kind::External, definition),
        or_replace,
    )?;
    Ok(("CREATE TABLE", None))
}

fn apply(
    shared: &Shared,
    command: DdlStatement,
    definition: String,
    resolve: impl Fn(TableReference) -> ResolvedTableReference,
) -> Result<Applied> {
    match command {
        DdlStatement::CreateView(view) => {
            if view.temporary {
                return Err(SqlError::unsupported("a temporary view"));
            }
            names::check_unique(view.input.schema().as_arrow())?;
            let name = resolve(view.name);
            add(
                shared,
                &name,
                Entry::new(Kind::View, definition),
                view.or_replace,
            )?;
            Ok(("CREATE VIEW", None))
        }
        DdlStatement::DropTable(drop) => {
            let name = resolve(drop.name);
            Ok(("DROP TABLE", remove(shared, &name, drop.if_exists, false)?))
        }
        DdlStatement::DropView(drop) => {
            let name = resolve(drop.name);
            Ok(("DROP VIEW", remove(shared, &name, drop.if_exists, true)?))
        }
        DdlStatement::CreateCatalogSchema(schema) => {
            let added = shared.catalogue.add_schema(&schema.schema_name);
            Ok((
                "CREATE SCHEMA",
                unless_skipped(added, schema.if_not_exists)?,
            ))
        }
        DdlStatement::DropCatalogSchema(schema) => {
            let name = schema.name.schema_name();
            let tables = shared.catalogue.tables_of(name);
            let removed = managed::forget(&shared.place, &tables, || {
                shared.catalogue.remove_schema(name, schema.cascade)
            });
            Ok(("DROP SCHEMA", unless_skipped(removed, schema.if_exists)?))
        }
        other => Err(SqlError::unsupported(other.name())),
    }
}

/// Returns the error of a table that exists.
pub(crate) fn exists(name: &ResolvedTableReference) -> SqlError {
    let message = format!("relation \"{}\" already exists", name.table);
    SqlError::new(Code::DuplicateTable, message)
}

/// Returns the notice that a table exists, and is not created.
pub(crate) fn skipped(name: &ResolvedTableReference) -> SqlError {
    let message = format!("relation \"{}\" already exists, skipping", name.table);
    SqlError::new(Code::DuplicateTable, message)
}

fn add(
    shared: &Shared,
    name: &ResolvedTableReference,
    entry: Entry,
    or_replace: bool,
) -> Result<()> {
    if entry.definition.len() > DEFINITION_BYTES_MAX {
        let message = format!(
            "a definition of {} bytes is too long",
            entry.definition.len()
        );
        return Err(SqlError::new(Code::LimitExceeded, message)
            .with_hint(format!("{DEFINITION_BYTES_MAX} bytes are allowed")));
    }
    check_database(name)?;
    shared
        .catalogue
        .add(&name.schema, &name.table, entry, or_replace)
}

fn remove(
    shared: &Shared,
    name: &ResolvedTableReference,
    if_exists: bool,
    is_view: bool,
) -> Result<Option<SqlError>> {
    check_database(name)?;
    let found = shared.catalogue.table(&name.schema, &name.table);
    let found: Vec<_> = found.into_iter().collect();
    let removed = managed::forget(&shared.place, &found, || {
        shared.catalogue.remove(&name.schema, &name.table, is_view)
    });
    unless_skipped(removed, if_exists)
}

/// Refuses a name in another database.
pub(crate) fn check_database(name: &ResolvedTableReference) -> Result<()> {
    if *name.catalog == *DATABASE {
        return Ok(());
    }
    let message = format!("database \"{}\" does not exist", name.catalog);
    Err(SqlError::new(Code::InvalidCatalogName, message)
        .with_hint(format!("tables are in the database {DATABASE}")))
}

/// Turns the error of a statement with `IF EXISTS` or `IF NOT EXISTS` into a notice.
fn unless_skipped(result: Result<()>, is_quiet: bool) -> Result<Option<SqlError>> {
    match result {
        Ok(()) => Ok(None),
        Err(error) => {
            let is_about_existence = matches!(
                error.code,
                Code::UndefinedTable | Code::InvalidSchemaName | Code::DuplicateSchema
            );
            if is_quiet && is_about_existence {
                return Ok(Some(SqlError {
                    message: format!("{}, skipping", error.message),
                    ..error
                }));
            }
            Err(error)
        }
    }
}
