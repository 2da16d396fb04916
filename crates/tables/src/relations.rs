//! The tables, views and columns of all schemas, for the tables that list them.

use std::sync::{Arc, Weak};

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::catalog::{CatalogProviderList, SchemaProvider, Session};
use datafusion::datasource::TableType;
use datafusion::error::Result;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast;

use crate::catalogue::{Entry, Kind};
use crate::computed::{Find, Rows, called};
use crate::engine::Shared;
use crate::managed::described;
use crate::parse::{Body, parse};
use crate::provider::DATABASE;

/// Where the lists come from.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    /// Databases that leave out what cannot be read.
    pub(crate) databases: Arc<dyn CatalogProviderList>,
    pub(crate) shared: Weak<Shared>,
}

/// A table or a view.
#[derive(Debug, Clone)]
pub(crate) struct Relation {
    pub(crate) database: String,
    pub(crate) schema: String,
    pub(crate) name: String,
    pub(crate) is_view: bool,
    /// Whether `INSERT` adds rows to it.
    pub(crate) is_managed: bool,
    /// The user who asks: who sees a table may read it.
    pub(crate) owner: String,
}

/// A view of a user, and its query.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) relation: Relation,
    pub(crate) query: Option<String>,
}

/// A column of a table or a view.
#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) relation: Relation,
    /// Counted from 1.
    pub(crate) position: i32,
    pub(crate) field: FieldRef,
}

/// A schema.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub(crate) database: String,
    pub(crate) name: String,
    pub(crate) owner: String,
}

/// Returns the name of the session's user.
pub(crate) fn user(state: &dyn Session) -> String {
    called(state, "current_user", &[]).unwrap_or_default()
}

impl Listed {
    fn schemas(&self) -> Vec<(String, String, Arc<dyn SchemaProvider>)> {
        let mut found = Vec::new();
        for database in self.databases.catalog_names() {
            let Some(provider) = self.databases.catalog(&database) else {
                continue;
            };
            let schemas = provider.schema_names().into_iter().filter_map(|name| {
                let schema = provider.schema(&name)?;
                Some((database.clone(), name, schema))
            });
            found.extend(schemas);
        }
        found
    }

    async fn relations(
        &self,
        state: &dyn Session,
    ) -> Result<Vec<(Relation, Arc<dyn SchemaProvider>)>> {
        let owner = user(state);
        let mut found = Vec::new();
        for (database, schema, provider) in self.schemas() {
            for name in provider.table_names() {
                let Some(kind) = provider.table_type(&name).await? else {
                    continue;
                };
                let relation = Relation {
                    is_managed: self.is_managed(&database, &schema, &name),
                    database: database.clone(),
                    schema: schema.clone(),
                    name,
                    is_view: kind == TableType::View,
                    owner: owner.clone(),
                };
                found.push((relation, Arc::clone(&provider)));
            }
        }
        Ok(found)
    }

    fn is_managed(&self, database: &str, schema: &str, name: &str) -> bool {
        let shared = self.shared.upgrade().filter(|_| database == DATABASE);
        let entry = shared.and_then(|shared| shared.catalogue.table(schema, name));
        entry.is_some_and(|entry| entry.kind == Kind::Managed)
    }

    /// Returns the schemas and names of tables that declare something of GPUs, and what they do.
    pub(crate) fn declared(&self) -> Vec<(String, String, String)> {
        let Some(shared) = self.shared.upgrade() else {
            return Vec::new();
        };
        let of = |(schema, table, entry): (String, _, Arc<Entry>)| {
            // A created schema hides the source's schema of this name.
            let is_hidden = entry.kind == Kind::Source && shared.catalogue.has_schema(&schema);
            let gpu = entry.gpu.as_ref().filter(|_| !is_hidden)?;
            Some((schema, table, gpu.to_string()))
        };
        let declared = shared.catalogue.declared().into_iter();
        declared.filter_map(of).collect()
    }

    /// Returns the query of a view that a user made; `None` if it is none.
    fn query(&self, relation: &Relation) -> Option<String> {
        let shared = self.shared.upgrade()?;
        let entry = shared.catalogue.table(&relation.schema, &relation.name)?;
        match entry.kind {
            Kind::View => view_query(&entry.definition),
            Kind::External | Kind::Managed | Kind::Source => None,
        }
    }
}

/// Returns the query of a statement `CREATE VIEW`, as PostgreSQL's `pg_get_viewdef` ends it.
fn view_query(definition: &str) -> Option<String> {
    let Body::Sql(Statement::Statement(sql)) = parse(definition).ok()?.pop()?.body else {
        return None;
    };
    match *sql {
        ast::Statement::CreateView(view) => Some(format!("{};", view.query)),
        _ => None,
    }
}

impl Find for Listed {
    type Row = Relation;

    fn rows<'all>(&'all self, state: &'all dyn Session) -> Rows<'all, Relation> {
        Box::pin(async move {
            let relations = self.relations(state).await?.into_iter();
            Ok(relations.map(|(relation, _)| relation).collect())
        })
    }
}

/// The tables that are no views.
#[derive(Debug)]
pub(crate) struct BaseTables(pub(crate) Listed);

impl Find for BaseTables {
    type Row = Relation;

    fn rows<'all>(&'all self, state: &'all dyn Session) -> Rows<'all, Relation> {
        Box::pin(async move {
            let mut relations = self.0.rows(state).await?;
            relations.retain(|relation| !relation.is_view);
            Ok(relations)
        })
    }
}

/// The views.
#[derive(Debug)]
pub(crate) struct Views(pub(crate) Listed);

impl Find for Views {
    type Row = View;

    fn rows<'all>(&'all self, state: &'all dyn Session) -> Rows<'all, View> {
        Box::pin(async move {
            let relations = self.0.rows(state).await?.into_iter();
            let views = relations
                .filter(|relation| relation.is_view)
                .map(|relation| View {
                    query: self.0.query(&relation),
                    relation,
                });
            Ok(views.collect())
        })
    }
}

/// The columns.
#[derive(Debug)]
pub(crate) struct Columns(pub(crate) Listed);

impl Find for Columns {
    type Row = Column;

    fn rows<'all>(&'all self, state: &'all dyn Session) -> Rows<'all, Column> {
        Box::pin(async move {
            let mut found = Vec::new();
            for (relation, provider) in self.0.relations(state).await? {
                let Some(table) = provider.table(&relation.name).await? else {
                    continue;
                };
                let schema = described(&*table);
                let columns = schema
                    .fields()
                    .iter()
                    .zip(1..)
                    .map(|(field, position)| Column {
                        relation: relation.clone(),
                        position,
                        field: Arc::clone(field),
                    });
                found.extend(columns);
            }
            Ok(found)
        })
    }
}

/// The schemas.
#[derive(Debug)]
pub(crate) struct Schemas(pub(crate) Listed);

impl Find for Schemas {
    type Row = Namespace;

    fn rows<'all>(&'all self, state: &'all dyn Session) -> Rows<'all, Namespace> {
        Box::pin(async move {
            let owner = user(state);
            let schemas = self.0.schemas().into_iter();
            Ok(schemas
                .map(|(database, name, _)| Namespace {
                    database,
                    name,
                    owner: owner.clone(),
                })
                .collect())
        })
    }
}

impl Column {
    pub(crate) fn data_type(&self) -> &DataType {
        self.field.data_type()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_of_a_view_is_found() {
        for (definition, expected) in [
            ("CREATE VIEW v AS SELECT a FROM t", Some("SELECT a FROM t;")),
            (
                "CREATE OR REPLACE VIEW s.v (b) AS SELECT 1",
                Some("SELECT 1;"),
            ),
            ("SELECT 1", None),
            ("SELEC", None),
        ] {
            assert_eq!(view_query(definition).as_deref(), expected, "{definition}");
        }
    }
}
