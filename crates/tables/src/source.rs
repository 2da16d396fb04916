//! Tables of another part of the server, such as its collections of documents.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, SchemaProvider, TableProvider};
use datafusion::error::Result;
use datafusion::optimizer::OptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::planned;
use crate::versioned::VersionedScan;

tokio::task_local! {
    /// The user whose statement is planned or runs.
    static USER: String;
}

/// Runs a part of a statement of this user.
pub(crate) async fn as_user<T>(user: String, work: impl Future<Output = T>) -> T {
    USER.scope(user, work).await
}

/// Returns `work`, a task that this one starts, as one of the same user: lists of tables are made while a query runs.
pub(crate) fn of_this_user<T: 'static>(work: BoxFuture<'static, T>) -> BoxFuture<'static, T> {
    match this_user() {
        Some(user) => USER.scope(user, work).boxed(),
        None => work,
    }
}

/// Returns the user whose statement is being planned or run.
pub(crate) fn this_user() -> Option<String> {
    USER.try_with(Clone::clone).ok()
}

/// Returns the id of the table of a source that a plan scans; `None` if GPUs cannot keep the table's columns.
pub(crate) fn id_of(scan: &Arc<dyn ExecutionPlan>) -> Option<&str> {
    let scan = scan.downcast_ref::<VersionedScan>()?;
    Some(&scan.table().version().id)
}

/// Tables that need no declaration. `documents.shop.names` is the table `names` in the schema `shop` of the source
/// `documents`. Without a name of the source, `shop.names` is the same table, unless a schema `shop` was created.
#[async_trait]
pub trait Source: Debug + Send + Sync {
    /// Returns the name of the source.
    fn name(&self) -> &str;

    /// Returns the names of the schemas that `user` may see; without a user, those that every user may see.
    fn listed(&self, user: Option<&str>) -> Vec<String>;

    /// Returns whether there is a schema of this name.
    fn has_schema(&self, name: &str) -> bool;

    /// Returns the names of a schema's tables.
    fn tables(&self, schema: &str) -> Vec<String>;

    /// Returns the rules that rewrite plans over the tables.
    fn rules(&self) -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
        Vec::new()
    }

    /// Returns a table as `user` sees it; `None` if it does not exist. The user is `None` when tables are listed for
    /// all users. Returns the same provider while plans over it are right: the table's columns, the user's rights, and
    /// what the provider knows of the rows have not changed.
    ///
    /// # Errors
    /// If the user may not read the table, or the table cannot be read.
    async fn table(
        &self,
        user: Option<&str>,
        schema: &str,
        name: &str,
    ) -> Result<Option<Arc<dyn TableProvider>>>;
}

/// A source as a database.
#[derive(Debug)]
pub(crate) struct Database(pub(crate) Arc<dyn Source>);

impl Database {
    pub(crate) fn name(&self) -> &str {
        self.0.name()
    }
}

impl CatalogProvider for Database {
    fn schema_names(&self) -> Vec<String> {
        self.0.listed(this_user().as_deref())
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        self.0.has_schema(name).then(|| {
            Arc::new(Schema {
                source: Arc::clone(&self.0),
                name: name.to_owned(),
            }) as Arc<dyn SchemaProvider>
        })
    }
}

/// A schema of a source.
#[derive(Debug, Clone)]
struct Schema {
    source: Arc<dyn Source>,
    name: String,
}

#[async_trait]
impl SchemaProvider for Schema {
    fn table_names(&self) -> Vec<String> {
        self.source.tables(&self.name)
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let user = this_user();
        let table = self.source.table(user.as_deref(), &self.name, name).await?;
        if let Some(table) = &table {
            planned::looked_up(Arc::new(self.clone()), name, table);
        }
        Ok(table)
    }

    fn table_exist(&self, name: &str) -> bool {
        self.source
            .tables(&self.name)
            .iter()
            .any(|table| table == name)
    }
}
