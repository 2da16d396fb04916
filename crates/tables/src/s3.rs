//! Tables over files in S3. Buckets are read with the credentials, and at the endpoint, of the process's environment.
//!
//! A table has the files that were listed when the statement looked it up. They are read on condition that their ETag
//! is still the same, so that no statement sees two versions of a file.

mod bucket;
mod location;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider, TableProviderFactory};
use datafusion::common::{Constraints, internal_datafusion_err};
use datafusion::datasource::TableType;
use datafusion::datasource::listing_table_factory::ListingTableFactory;
use datafusion::error::Result;
use datafusion::execution::object_store::DefaultObjectStoreRegistry;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::{CreateExternalTable, Expr, TableProviderFilterPushDown};

pub(crate) use self::location::Location;

use self::bucket::Bucket;
use crate::boxed;
use crate::error::SqlError;

/// The files of a table, as they are at a moment.
#[derive(Debug)]
pub(crate) struct Files {
    /// Name of the bucket.
    name: String,
    /// URLs of the folders in which the files are.
    folders: Vec<String>,
    files: Bucket,
    fingerprint: u64,
}

impl Files {
    /// Lists the files of a table; `None` if they are not in S3. Those of a folder pass `is_readable`.
    ///
    /// # Errors
    /// If there are no files, they are in several buckets, or S3 does not list them.
    pub(crate) async fn listed(
        names: &[String],
        state: &SessionState,
        is_readable: impl Fn(&str) -> bool,
    ) -> crate::Result<Option<Files>> {
        let locations = names.iter().map(|name| Location::parse(name));
        let locations: Vec<Option<Location>> = locations.collect::<crate::Result<_>>()?;
        let Some(name) = locations.iter().flatten().map(Location::bucket).next() else {
            return Ok(None);
        };
        let bucket = bucket::opened(name, state)?;
        let (mut files, mut folders) = (Vec::new(), Vec::new());
        for location in &locations {
            let location = location
                .as_ref()
                .filter(|location| location.bucket() == name);
            let Some(location) = location else {
                return Err(SqlError::unsupported("a table in several buckets"));
            };
            files.extend(location.files(&*bucket, &is_readable).await?);
            folders.push(location.folder_url());
        }
        folders.sort();
        folders.dedup();
        files.sort_by(|one, other| one.location.cmp(&other.location));
        files.dedup_by(|one, other| one.location == other.location);
        let mut hasher = DefaultHasher::new();
        for file in &files {
            let changed = file.last_modified.timestamp_nanos_opt();
            (&file.location, file.size, changed, &file.e_tag).hash(&mut hasher);
        }
        Ok(Some(Files {
            name: name.to_owned(),
            folders,
            files: Bucket::of_files(name, bucket, files),
            fingerprint: hasher.finish(),
        }))
    }

    /// Returns a number that changes when a file is added, removed or replaced.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Returns the table of the files.
    ///
    /// # Errors
    /// If their schema cannot be read.
    pub(crate) async fn table(
        self,
        mut command: CreateExternalTable,
        state: &SessionState,
    ) -> crate::Result<Arc<dyn TableProvider>> {
        command.locations = self.folders;
        let mut environment = RuntimeEnv::clone(state.runtime_env());
        environment.object_store_registry = Arc::new(DefaultObjectStoreRegistry::new());
        let url = bucket::url(&self.name)?;
        environment.register_object_store(url.as_ref(), Arc::new(self.files));
        let environment = Arc::new(environment);
        let state = seen(state, &environment)?;
        let table = ListingTableFactory::new().create(&state, &command).await?;
        Ok(Arc::new(Table { table, environment }))
    }
}

/// A table over files in S3.
#[derive(Debug)]
struct Table {
    table: Arc<dyn TableProvider>,
    /// Where planning finds the files.
    environment: Arc<RuntimeEnv>,
}

/// Returns the state of a session that sees the files of a table alone.
fn seen(session: &dyn Session, environment: &Arc<RuntimeEnv>) -> Result<SessionState> {
    let state = session.as_any().downcast_ref::<SessionState>();
    let state = state.ok_or_else(|| internal_datafusion_err!("a session of another kind"))?;
    let mut config = state.config().clone();
    // The list has the files of the table alone, whatever folder they are in.
    config
        .options_mut()
        .execution
        .listing_table_ignore_subdirectory = false;
    Ok(SessionStateBuilder::new_from_existing(state.clone())
        .with_config(config)
        .with_runtime_env(Arc::clone(environment))
        .build())
}

impl Table {
    fn scanned<'all>(
        &'all self,
        state: &'all dyn Session,
        projection: Option<&'all Vec<usize>>,
        filters: &'all [Expr],
        limit: Option<usize>,
    ) -> boxed::Scan<'all> {
        Box::pin(async move {
            let state = seen(state, &self.environment)?;
            self.table.scan(&state, projection, filters, limit).await
        })
    }
}

impl TableProvider for Table {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn table_type(&self) -> TableType {
        self.table.table_type()
    }

    fn constraints(&self) -> Option<&Constraints> {
        self.table.constraints()
    }

    fn get_table_definition(&self) -> Option<&str> {
        self.table.get_table_definition()
    }

    fn get_column_default(&self, column: &str) -> Option<&Expr> {
        self.table.get_column_default(column)
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        self.table.supports_filters_pushdown(filters)
    }

    boxed::scan!(scanned);
}
