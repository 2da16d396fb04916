//! `CREATE TABLE` and `CREATE TABLE AS`.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::ResolvedTableReference;
use datafusion::execution::SessionState;
use datafusion::sql::parser::Statement;
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast::{self, TableConstraint};
use forebay_tables_delta::Table;

use super::Managed;
use super::provider::ManagedProvider;
use super::types::{self, NO_KEYS};
use super::write::{self, Write};
use crate::catalogue::{Entry, Kind};
use crate::ddl;
use crate::engine::Shared;
use crate::error::{Result, SqlError};
use crate::names;
use crate::session::{Outcome, Session};

/// Runs `CREATE TABLE`.
///
/// # Errors
/// If the table exists, a column has a type that tables do not have, or the query fails. There is then no table.
pub(crate) async fn create(session: &mut Session, sql: &ast::CreateTable) -> Result<Outcome> {
    check(sql)?;
    let (state, shared) = (
        Arc::clone(session.state()),
        Arc::clone(session.tables().shared()),
    );
    let sql = sql.clone();
    let created = write::run(session, async move |mut write| {
        let name = object_name_to_table_reference(sql.name.clone(), true)?;
        let defaults = &state.config_options().catalog;
        let name = name.resolve(&defaults.default_catalog, &defaults.default_schema);
        ddl::check_database(&name)?;
        shared.catalogue.check_schema(&name.schema)?;
        if shared.catalogue.has_table(&name.schema, &name.table) {
            return match sql.if_not_exists {
                true => Ok(("CREATE TABLE".to_owned(), vec![ddl::skipped(&name)])),
                false => Err(ddl::exists(&name)),
            };
        }
        match sql.query {
            None => {
                let (schema, notices) = types::columns(&state, &sql.columns)?;
                let new = New::make(&shared, &name, &schema)?;
                new.list(&shared)?;
                Ok(("CREATE TABLE".to_owned(), notices))
            }
            Some(query) => {
                let rows = create_as(&mut write, &state, &shared, name, query).await?;
                Ok((format!("SELECT {rows}"), Vec::new()))
            }
        }
    });
    let (tag, notices) = created.await?;
    for notice in notices {
        session.notice(notice);
    }
    Ok(Outcome::Done(tag))
}

async fn create_as(
    write: &mut Write,
    state: &SessionState,
    shared: &Arc<Shared>,
    name: ResolvedTableReference,
    query: Box<ast::Query>,
) -> Result<u64> {
    let text = query.to_string();
    let statement = Statement::Statement(Box::new(ast::Statement::Query(query)));
    let plan = crate::plan::query(state, &text, statement, false).await?;
    let analyzed = crate::plan::columns(state, &plan, &[])?;
    let schema = types::of_query(&names::shown(&analyzed))?;
    let new = New::make(shared, &name, &schema)?;
    let rows = write
        .insert(&ManagedProvider::new(Arc::clone(&new.managed)), plan)
        .await?;
    new.list(shared)?;
    Ok(rows)
}

/// Refuses what managed tables do not have.
fn check(sql: &ast::CreateTable) -> Result<()> {
    let constraint = sql.constraints.first().map(|constraint| match constraint {
        TableConstraint::PrimaryKey(_) => ("PRIMARY KEY", NO_KEYS),
        TableConstraint::Unique(_) => ("UNIQUE", NO_KEYS),
        TableConstraint::ForeignKey(_) => ("FOREIGN KEY", NO_KEYS),
        TableConstraint::Check(_) => ("CHECK", "check the rows before they are inserted"),
        _ => ("this constraint", "use NOT NULL"),
    });
    let refused = constraint.or_else(|| {
        let refused = [
            (sql.temporary, "TEMPORARY"),
            (sql.or_replace, "OR REPLACE"),
            (
                sql.query.is_some() && !sql.columns.is_empty(),
                "columns beside AS",
            ),
            (sql.like.is_some(), "LIKE"),
            (sql.inherits.is_some(), "INHERITS"),
            (
                sql.partition_by.is_some() || sql.partition_of.is_some(),
                "PARTITION",
            ),
            (sql.on_commit.is_some(), "ON COMMIT"),
        ];
        let found = refused.into_iter().find(|(is_there, _)| *is_there);
        found.map(|(_, name)| {
            (
                name,
                "use CREATE TABLE name (columns), or CREATE TABLE name AS SELECT ...",
            )
        })
    });
    match refused {
        Some((what, hint)) => {
            Err(SqlError::unsupported(format!("{what} in CREATE TABLE")).with_hint(hint))
        }
        None => Ok(()),
    }
}

/// A table that the catalogue does not have yet. Its folder is deleted unless it is listed.
struct New {
    name: ResolvedTableReference,
    folder: String,
    managed: Arc<Managed>,
    is_listed: bool,
}

impl New {
    fn make(shared: &Shared, name: &ResolvedTableReference, schema: &SchemaRef) -> Result<New> {
        let folder = shared.place.make(&name.table)?;
        let path = shared.place.path_of(&folder)?;
        let table = Table::create(&path, &name.table, schema, None)
            .map_err(SqlError::from)
            .and_then(|table| Managed::new(&name.table, table, shared.base()))
            .inspect_err(|_| shared.place.remove(&folder))?;
        Ok(New {
            managed: Arc::new(table),
            name: name.clone(),
            folder,
            is_listed: false,
        })
    }

    /// Adds the table to the catalogue.
    fn list(mut self, shared: &Shared) -> Result<()> {
        let entry = Entry::new(Kind::Managed, self.folder.clone());
        let provider = ManagedProvider::new(Arc::clone(&self.managed));
        let _ = entry.managed.set(Arc::new(provider));
        shared
            .catalogue
            .add(&self.name.schema, &self.name.table, entry, false)?;
        self.is_listed = true;
        shared.place.set_listed(&self.folder);
        Ok(())
    }
}

impl Drop for New {
    fn drop(&mut self) {
        if !self.is_listed {
            self.managed.delete();
        }
    }
}
