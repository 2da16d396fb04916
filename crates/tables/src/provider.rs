//! The declared tables, as DataFusion looks them up.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use datafusion::catalog::view::ViewTable;
use datafusion::catalog::{CatalogProvider, CatalogProviderList, SchemaProvider, TableProvider};
use datafusion::common::TableReference;
use datafusion::datasource::TableType;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{DdlStatement, LogicalPlan};
use datafusion::sql::parser::Statement;
use futures_util::future::{BoxFuture, ready};
use parking_lot::{Mutex, RwLock};

use crate::boxed;
use crate::catalogue::{Entry, Kind, PUBLIC};
use crate::engine::Shared;
use crate::error::{Code, SqlError};
use crate::files::FileTable;
use crate::managed::{Managed, ManagedProvider, listed};
use crate::parse::{self, Body};
use crate::paths::Paths;
use crate::{planned, source};

/// Name of the database.
pub(crate) const DATABASE: &str = "forebay";
/// Maximum number of files and folders whose schemas are remembered.
const REMEMBERED_MAX: usize = 1_000;
/// Maximum depth of views of views.
const VIEW_DEPTH_MAX: u32 = 16;

tokio::task_local! {
    /// Number of views that are being looked up, one inside the other.
    static VIEW_DEPTH: Cell<u32>;
}

fn failed(error: SqlError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// The databases: one.
#[derive(Debug)]
pub(crate) struct Catalogs {
    database: Arc<Database>,
}

impl Catalogs {
    pub(crate) fn new(shared: Weak<Shared>) -> Catalogs {
        Catalogs {
            database: Arc::new(Database {
                shared,
                registered: Arc::default(),
                is_lenient: false,
            }),
        }
    }

    /// Returns the same databases for lists of all tables, which leave out those that cannot be read.
    pub(crate) fn lenient(&self) -> Catalogs {
        Catalogs {
            database: Arc::new(Database {
                shared: self.database.shared.clone(),
                registered: Arc::clone(&self.database.registered),
                is_lenient: true,
            }),
        }
    }

    /// Returns a schema of the database.
    pub(crate) fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        self.database.schema(name)
    }
}

impl CatalogProviderList for Catalogs {
    fn register_catalog(
        &self,
        _name: String,
        _catalog: Arc<dyn CatalogProvider>,
    ) -> Option<Arc<dyn CatalogProvider>> {
        None
    }

    fn catalog_names(&self) -> Vec<String> {
        vec![DATABASE.to_owned()]
    }

    fn catalog(&self, name: &str) -> Option<Arc<dyn CatalogProvider>> {
        if name == DATABASE {
            return Some(Arc::clone(&self.database) as _);
        }
        let source = self.database.source()?;
        (name == source.name()).then(|| Arc::new(source) as _)
    }
}

#[derive(Debug)]
struct Database {
    shared: Weak<Shared>,
    /// Schemas of the server, such as `pg_catalog`.
    registered: Arc<RwLock<BTreeMap<String, Arc<dyn SchemaProvider>>>>,
    /// Whether a table that cannot be read is left out.
    is_lenient: bool,
}

impl Database {
    fn source(&self) -> Option<source::Database> {
        let source = self.shared.upgrade()?.source.clone();
        source.map(source::Database)
    }
}

impl CatalogProvider for Database {
    fn schema_names(&self) -> Vec<String> {
        let shared = self.shared.upgrade();
        let mut names = shared.map_or_else(Vec::new, |shared| shared.catalogue.schema_names());
        names.extend(self.registered.read().keys().cloned());
        let listed = self.source().map(|source| source.schema_names());
        let mut listed = listed.unwrap_or_default();
        listed.retain(|name| !names.contains(name));
        names.extend(listed);
        names
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        if let Some(schema) = self.registered.read().get(name) {
            planned::looked_up_other();
            return Some(Arc::clone(schema));
        }
        if !self.shared.upgrade()?.catalogue.has_schema(name) {
            return self.source()?.schema(name);
        }
        Some(Arc::new(Schema {
            shared: self.shared.clone(),
            name: name.to_owned(),
            is_lenient: self.is_lenient,
        }))
    }

    fn register_schema(
        &self,
        name: &str,
        schema: Arc<dyn SchemaProvider>,
    ) -> Result<Option<Arc<dyn SchemaProvider>>> {
        Ok(self.registered.write().insert(name.to_owned(), schema))
    }
}

#[derive(Debug, Clone)]
struct Schema {
    shared: Weak<Shared>,
    name: String,
    is_lenient: bool,
}

impl Schema {
    async fn found(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let Some(shared) = self.shared.upgrade() else {
            return Ok(None);
        };
        if let Some(entry) = shared.catalogue.table(&self.name, name) {
            return Ok(Some(declared(&shared, name, &entry).await?));
        }
        if self.name != PUBLIC {
            return Ok(None);
        }
        shared.folder.table(name, &shared).await.map_err(failed)
    }
}

impl Schema {
    /// Logs why lists leave out a table, unless that was logged.
    fn warn_once(&self, table: &str, error: &str) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        let name = format!("{}.{table}", self.name);
        let mut unlisted = shared.folder.unlisted.lock();
        if unlisted.len() >= REMEMBERED_MAX {
            unlisted.clear();
        }
        let before = unlisted.insert(name, error.to_owned());
        if before.is_none_or(|before| before != error) {
            tracing::warn!(
                table,
                error,
                "a table is left out of lists: it cannot be read"
            );
        }
    }

    fn looked_up<'all>(&'all self, name: &'all str) -> boxed::Table<'all> {
        Box::pin(async move {
            match self.found(name).await {
                Err(error) if self.is_lenient => {
                    self.warn_once(name, &SqlError::from(error).to_string());
                    Ok(None)
                }
                Ok(Some(found)) if self.is_lenient => Ok(Some(listed(found))),
                Ok(Some(table)) => {
                    planned::looked_up(Arc::new(self.clone()), name, &table);
                    Ok(Some(table))
                }
                found => found,
            }
        })
    }
}

impl SchemaProvider for Schema {
    fn table_names(&self) -> Vec<String> {
        let Some(shared) = self.shared.upgrade() else {
            return Vec::new();
        };
        let mut names = shared.catalogue.table_names(&self.name);
        if self.name == PUBLIC {
            let mut more = shared.folder.names();
            more.retain(|name| !shared.catalogue.has_table(PUBLIC, name));
            names.extend(more);
        }
        names
    }

    boxed::table!(looked_up);

    fn table_type<'schema, 'name, 'all>(
        &'schema self,
        name: &'name str,
    ) -> BoxFuture<'all, Result<Option<TableType>>>
    where
        'schema: 'all,
        'name: 'all,
        Self: 'all,
    {
        let found = self.shared.upgrade().map(|shared| {
            let entry = shared.catalogue.table(&self.name, name);
            match entry.map(|entry| entry.kind) {
                Some(Kind::View) => TableType::View,
                _ => TableType::Base,
            }
        });
        Box::pin(ready(Ok(found)))
    }

    fn table_exist(&self, name: &str) -> bool {
        let Some(shared) = self.shared.upgrade() else {
            return false;
        };
        shared.catalogue.has_table(&self.name, name)
            || (self.name == PUBLIC && shared.folder.path_of(name).is_some())
    }
}

/// Returns the provider of a declared table.
pub(crate) async fn declared(
    shared: &Arc<Shared>,
    name: &str,
    entry: &Entry,
) -> Result<Arc<dyn TableProvider>> {
    match entry.kind {
        Kind::External => {
            let files = entry.files.get_or_try_init(|| made(shared, entry)).await?;
            files
                .provider(shared.base(), &shared.paths)
                .await
                .map_err(failed)
        }
        Kind::Managed => {
            let open = async {
                let folder = shared.place.path_of(&entry.definition)?;
                let opened = Managed::open(name, &folder, shared.base())?;
                Ok::<_, SqlError>(Arc::new(ManagedProvider::new(Arc::new(opened))))
            };
            let managed = entry.managed.get_or_try_init(|| open).await;
            Ok(Arc::clone(managed.map_err(failed)?) as _)
        }
        Kind::View => {
            let depth = VIEW_DEPTH.try_with(Cell::get).unwrap_or(0);
            if depth >= VIEW_DEPTH_MAX {
                let message = format!("views nest more than {VIEW_DEPTH_MAX} deep, or without end");
                return Err(failed(SqlError::new(Code::StatementTooComplex, message)));
            }
            let plan = Box::pin(plan_of(shared, &entry.definition));
            match VIEW_DEPTH.scope(Cell::new(depth + 1), plan).await? {
                LogicalPlan::Ddl(DdlStatement::CreateView(view)) => {
                    crate::plan::check_inputs(&view.input).map_err(failed)?;
                    let plan = Arc::unwrap_or_clone(view.input);
                    Ok(Arc::new(ViewTable::new(plan, view.definition)))
                }
                _ => Err(DataFusionError::Internal(
                    "the definition is no view".to_owned(),
                )),
            }
        }
        Kind::Source => Err(DataFusionError::Internal(
            "the catalogue has no table of a source".to_owned(),
        )),
    }
}

async fn made(shared: &Arc<Shared>, entry: &Entry) -> Result<FileTable> {
    match parsed(&entry.definition)? {
        Statement::CreateExternalTable(table) => {
            for location in &table.locations {
                shared.paths.check(location).map_err(failed)?;
            }
            let command = crate::ddl::external_table(shared.base(), table).await;
            Ok(FileTable::new(command.map_err(failed)?))
        }
        _ => Err(DataFusionError::Internal(
            "the definition is no external table".to_owned(),
        )),
    }
}

/// Returns the plan of a definition that the catalogue keeps.
async fn plan_of(shared: &Arc<Shared>, definition: &str) -> Result<LogicalPlan> {
    let statement = crate::plan::understood(parsed(definition)?).map_err(failed)?;
    shared.base().statement_to_plan(statement).await
}

fn parsed(definition: &str) -> Result<Statement> {
    let parsed = parse::parse(definition).map_err(failed)?.pop();
    match parsed.map(|parsed| parsed.body) {
        Some(Body::Sql(statement)) => Ok(statement),
        _ => Err(DataFusionError::Internal(
            "the definition is no statement".to_owned(),
        )),
    }
}

/// The tables that need no declaration: those of a folder, and those that a statement names by their path.
#[derive(Debug)]
pub(crate) struct Folder {
    folder: Option<PathBuf>,
    /// By path.
    remembered: Mutex<HashMap<String, Arc<FileTable>>>,
    /// Why lists leave out tables, by their names.
    unlisted: Mutex<HashMap<String, String>>,
}

impl Folder {
    pub(crate) fn new(folder: Option<PathBuf>) -> Folder {
        Folder {
            folder,
            remembered: Mutex::default(),
            unlisted: Mutex::default(),
        }
    }

    /// Returns the names of the folder's tables. A folder that cannot be read has no tables.
    fn names(&self) -> Vec<String> {
        let names = self.entries().into_iter().map(|(name, _)| name);
        let mut names: Vec<String> = names.collect();
        names.sort();
        names.dedup();
        names
    }

    /// Returns the names and paths of the files and folders in the folder. Skips hidden entries.
    fn entries(&self) -> Vec<(String, PathBuf)> {
        let listed = self
            .folder
            .as_ref()
            .and_then(|folder| std::fs::read_dir(folder).ok());
        let table = |entry: DirEntry| {
            let path = entry.path();
            let file = path.file_name()?.to_str()?;
            if file.starts_with(['.', '_']) {
                return None;
            }
            let is_folder = match entry.file_type() {
                Ok(found) if !found.is_symlink() => found.is_dir(),
                _ => path.is_dir(),
            };
            let name = match is_folder {
                true => file,
                false => crate::files::table_name(file)?,
            };
            Some((name.to_owned(), path))
        };
        listed
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(table)
            .collect()
    }

    /// Returns the path of the table with this name, in any case if none has it exactly.
    fn path_of(&self, name: &str) -> Option<PathBuf> {
        let mut entries = self.entries();
        entries.sort();
        let exact = entries.iter().position(|(found, _)| found == name);
        let found = exact.or_else(|| {
            let mut found = entries.iter();
            found.position(|(found, _)| found.eq_ignore_ascii_case(name))
        })?;
        Some(entries.swap_remove(found).1)
    }

    /// Returns the table of the folder with this name, or of this path; `None` if it is neither.
    async fn table(
        &self,
        name: &str,
        shared: &Arc<Shared>,
    ) -> crate::Result<Option<Arc<dyn TableProvider>>> {
        if !name.contains('/')
            && let Some(path) = self.path_of(name)
        {
            return self.at(&path.to_string_lossy(), shared).await;
        }
        // Names of tables have no dot and no slash, unless they are paths.
        if !name.contains(['.', '/']) {
            return Ok(None);
        }
        if shared.paths != Paths::Any && !crate::files::is_path(name) {
            return Ok(None);
        }
        shared.paths.check(name)?;
        self.at(name, shared).await
    }

    async fn at(
        &self,
        path: &str,
        shared: &Arc<Shared>,
    ) -> crate::Result<Option<Arc<dyn TableProvider>>> {
        let remembered = self.remembered.lock().get(path).cloned();
        let table = match remembered {
            Some(table) => table,
            None => {
                let name = TableReference::bare(table_label(path));
                let Some(table) = FileTable::at(path, name, shared.base()).await? else {
                    return Ok(None);
                };
                let table = Arc::new(table);
                let mut remembered = self.remembered.lock();
                if remembered.len() >= REMEMBERED_MAX {
                    remembered.clear();
                }
                remembered.insert(path.to_owned(), Arc::clone(&table));
                table
            }
        };
        Ok(Some(table.provider(shared.base(), &shared.paths).await?))
    }
}

/// Returns the last part of a path, for messages.
fn table_label(path: &str) -> String {
    let name = Path::new(path).file_name();
    name.map_or_else(
        || path.to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}
