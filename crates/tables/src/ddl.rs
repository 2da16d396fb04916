//! Statements that change the catalogue.

use std::sync::Arc;

use datafusion::common::{ResolvedTableReference, TableReference};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{self as logical, DdlStatement, LogicalPlan};
use datafusion::sql::parser::{CreateExternalTable, Statement};
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast::{self, Ident, ObjectName, Value};

use crate::catalogue::{Entry, Kind};
use crate::command::with_absolute_locations;
use crate::engine::Shared;
use crate::error::{Code, Result, SqlError};
use crate::files::FileTable;
use crate::provider::DATABASE;
use crate::rows::Running;
use crate::session::{Outcome, Session};
use crate::source::as_user;
use crate::{catalogue, managed, names};

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
            && let Some(drop) = DropTables::of(sql)
        {
            let names = drop.names.iter().map(|name| {
                let name = object_name_to_table_reference(name.clone(), true)?;
                Ok(resolve(name))
            });
            let names: Result<Vec<_>> = names.collect();
            return drop.run(&shared, names?);
        }
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
    let work = as_user(session.user().to_owned(), work);
    let (tag, notices) = Running::start_blocking(&threads, work).end().await??;
    for notice in notices {
        session.notice(notice);
    }
    Ok(Outcome::Done(tag.to_owned()))
}

/// The tag, and notices for the client.
type Applied = (&'static str, Vec<SqlError>);

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
        return Ok(("CREATE TABLE", vec![skipped(&name)]));
    }
    let (definition, or_replace) = (definition(&table), table.or_replace);
    // The files must be there, and of this format.
    let files = FileTable::new(external_table(state, table).await?);
    files.provider(shared.base(), &shared.paths).await?;
    add(
        shared,
        &name,
        Entry::new(Kind::External, definition),
        or_replace,
    )?;
    Ok(("CREATE TABLE", Vec::new()))
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
            crate::plan::check_inputs(&view.input)?;
            let name = resolve(view.name);
            add(
                shared,
                &name,
                Entry::new(Kind::View, definition),
                view.or_replace,
            )?;
            Ok(("CREATE VIEW", Vec::new()))
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

/// Returns the statement of an external table. DataFusion's own text leaves out columns and options.
fn definition(table: &CreateExternalTable) -> String {
    let quoted = |text: &String| Value::SingleQuotedString(text.clone()).to_string();
    let columns = table.columns.iter().map(ToString::to_string);
    let partitions = table.table_partition_cols.iter();
    let partitions = partitions.map(|name| Ident::with_quote('"', name).to_string());
    let options = table.options.iter();
    let options = options.map(|(key, value)| format!("{} {value}", quoted(key)));
    let mut text = format!("CREATE EXTERNAL TABLE {}", table.name);
    text += &listed("", columns);
    text += &format!(" STORED AS {}", table.file_type);
    text += &listed(" PARTITIONED BY", partitions);
    for order in &table.order_exprs {
        text += &listed(" WITH ORDER", order.iter().map(ToString::to_string));
    }
    text += &listed(" OPTIONS", options);
    match &*table.locations {
        [location] => text + " LOCATION " + &quoted(location),
        locations => text + &listed(" LOCATION", locations.iter().map(quoted)),
    }
}

/// Returns a clause with its items; nothing if there are none.
fn listed(clause: &str, items: impl Iterator<Item = String>) -> String {
    let items = items.collect::<Vec<_>>().join(", ");
    match items.is_empty() {
        true => items,
        false => format!("{clause} ({items})"),
    }
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

/// A `DROP TABLE` or `DROP VIEW`.
struct DropTables<'a> {
    names: &'a [ObjectName],
    if_exists: bool,
    is_view: bool,
}

impl<'a> DropTables<'a> {
    fn of(statement: &'a ast::Statement) -> Option<DropTables<'a>> {
        match statement {
            ast::Statement::Drop {
                object_type: object @ (ast::ObjectType::Table | ast::ObjectType::View),
                if_exists,
                names,
                ..
            } => Some(DropTables {
                names,
                if_exists: *if_exists,
                is_view: *object == ast::ObjectType::View,
            }),
            _ => None,
        }
    }

    /// Removes the tables, all or none.
    fn run(&self, shared: &Shared, names: Vec<ResolvedTableReference>) -> Result<Applied> {
        let (mut entries, mut removed, mut notices) = (Vec::new(), Vec::new(), Vec::new());
        for name in names {
            check_database(&name)?;
            let found = shared.catalogue.table(&name.schema, &name.table);
            if found.is_none() && self.if_exists {
                notices.push(skipping(catalogue::no_table(&name.table, self.is_view)));
            } else if !removed.contains(&name) {
                entries.extend(found);
                removed.push(name);
            }
        }
        managed::forget(&shared.place, &entries, || {
            shared.catalogue.remove(&removed, self.is_view)
        })?;
        let tag = if self.is_view {
            "DROP VIEW"
        } else {
            "DROP TABLE"
        };
        Ok((tag, notices))
    }
}

pub(crate) fn skipping(error: SqlError) -> SqlError {
    SqlError {
        message: format!("{}, skipping", error.message),
        ..error
    }
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
fn unless_skipped(result: Result<()>, is_quiet: bool) -> Result<Vec<SqlError>> {
    match result {
        Ok(()) => Ok(Vec::new()),
        Err(error)
            if is_quiet
                && matches!(error.code, Code::InvalidSchemaName | Code::DuplicateSchema) =>
        {
            Ok(vec![skipping(error)])
        }
        Err(error) => Err(error),
    }
}
