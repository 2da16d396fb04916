//! The declared tables: external tables over files, managed tables and views, kept in one file of the data directory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion::common::ResolvedTableReference;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use tokio::sync::OnceCell;

use crate::declaration::Declaration;
use crate::error::{Code, Result, SqlError};
use crate::files::FileTable;
use crate::managed::ManagedProvider;

/// The schema in which tables are created and looked up, unless a statement names another.
pub(crate) const PUBLIC: &str = "public";
/// Schemas that the server fills.
const RESERVED: [&str; 2] = ["information_schema", "pg_catalog"];
/// Name of the file in the folder of the tables.
const FILE_NAME: &str = "catalogue.json";
/// Version of the file's content.
const VERSION: u32 = 1;
/// Maximum number of tables. Each change writes the whole catalogue.
const TABLES_MAX: usize = 10_000;
/// Maximum number of tables that declare something of GPUs, and bytes of the names of their columns.
const DECLARED_MAX: usize = 1_000;
const DECLARED_BYTES_MAX: usize = 1 << 20;

/// A declared table.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// What it is.
    pub(crate) kind: Kind,
    /// The statement that made it. For a managed table, the name of its folder; for one of a source, its id.
    pub(crate) definition: String,
    /// What it declares of GPUs.
    pub(crate) gpu: Option<Declaration>,
    /// The user who declared a table of a source. GPUs read it with the rights of this user.
    pub(crate) user: Option<String>,
    /// The files of an external table, made at the first use.
    pub(crate) files: Arc<OnceCell<FileTable>>,
    /// A managed table, opened at the first use.
    pub(crate) managed: Arc<OnceCell<Arc<ManagedProvider>>>,
}

/// The kind of a declared table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// A table over files.
    External,
    /// A table of `CREATE TABLE`.
    Managed,
    /// A query.
    View,
    /// A table of the engine's [`Source`](crate::Source). It has an entry only while it declares something of GPUs.
    Source,
}

type Schemas = BTreeMap<String, BTreeMap<String, Arc<Entry>>>;
/// Tables of the source, by schema and name.
type OfSource = BTreeMap<(String, String), Arc<Entry>>;

/// The declared tables of all schemas.
#[derive(Debug)]
pub(crate) struct Catalogue {
    schemas: RwLock<Schemas>,
    /// The tables of the source that declare something of GPUs. Locked after `schemas`.
    of_source: RwLock<OfSource>,
    /// Number of changes so far.
    changes: AtomicU64,
    /// `None` if the catalogue is in memory only.
    folder: Option<PathBuf>,
}

/// The content of the file.
#[derive(Serialize, Deserialize)]
struct Saved {
    version: u32,
    schemas: Vec<String>,
    tables: Vec<SavedTable>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    of_source: Vec<SavedTable>,
}

#[derive(Serialize, Deserialize)]
struct SavedTable {
    schema: String,
    name: String,
    kind: Kind,
    definition: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gpu: Option<Declaration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
}

impl SavedTable {
    fn new(schema: &str, name: &str, entry: &Entry) -> SavedTable {
        SavedTable {
            schema: schema.to_owned(),
            name: name.to_owned(),
            kind: entry.kind,
            definition: entry.definition.clone(),
            gpu: entry.gpu.clone(),
            user: entry.user.clone(),
        }
    }

    /// Returns the schema, the name and the table.
    fn opened(self) -> (String, String, Arc<Entry>) {
        let entry = Entry {
            gpu: self.gpu,
            user: self.user,
            ..Entry::new(self.kind, self.definition)
        };
        (self.schema, self.name, Arc::new(entry))
    }
}

impl Catalogue {
    /// Opens the catalogue of a folder; an empty one if there is no file. Without a folder, nothing is kept.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, or of another version.
    pub(crate) fn open(folder: Option<&Path>) -> io::Result<Catalogue> {
        let mut schemas = Schemas::from([(PUBLIC.to_owned(), BTreeMap::new())]);
        let mut of_source = OfSource::new();
        if let Some(saved) = folder.map(read).transpose()?.flatten() {
            for schema in saved.schemas {
                schemas.entry(schema).or_default();
            }
            for table in saved.tables {
                let (schema, name, entry) = table.opened();
                schemas.entry(schema).or_default().insert(name, entry);
            }
            for table in saved.of_source {
                let (schema, name, entry) = table.opened();
                of_source.insert((schema, name), entry);
            }
        }
        Ok(Catalogue {
            schemas: RwLock::new(schemas),
            of_source: RwLock::new(of_source),
            changes: AtomicU64::new(0),
            folder: folder.map(Path::to_owned),
        })
    }

    /// Returns the number of changes so far.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(crate) fn schema_names(&self) -> Vec<String> {
        self.schemas.read().keys().cloned().collect()
    }

    pub(crate) fn has_schema(&self, name: &str) -> bool {
        self.schemas.read().contains_key(name)
    }

    pub(crate) fn table_names(&self, schema: &str) -> Vec<String> {
        let schemas = self.schemas.read();
        let tables = schemas.get(schema);
        tables.map_or_else(Vec::new, |tables| tables.keys().cloned().collect())
    }

    pub(crate) fn table(&self, schema: &str, name: &str) -> Option<Arc<Entry>> {
        self.schemas.read().get(schema)?.get(name).cloned()
    }

    pub(crate) fn has_table(&self, schema: &str, name: &str) -> bool {
        let schemas = self.schemas.read();
        schemas
            .get(schema)
            .is_some_and(|tables| tables.contains_key(name))
    }

    /// Returns the tables of a schema.
    pub(crate) fn tables_of(&self, schema: &str) -> Vec<Arc<Entry>> {
        let schemas = self.schemas.read();
        let tables = schemas.get(schema);
        tables.map_or_else(Vec::new, |tables| tables.values().cloned().collect())
    }

    /// Returns whether a managed table has its files in the folder with this name.
    pub(crate) fn has_folder(&self, name: &str) -> bool {
        let schemas = self.schemas.read();
        let mut entries = schemas.values().flat_map(BTreeMap::values);
        entries.any(|entry| entry.kind == Kind::Managed && entry.definition == name)
    }

    /// Returns the managed table, with its schema, whose files are in the folder with this name.
    pub(crate) fn table_of_folder(&self, folder: &str) -> Option<String> {
        let schemas = self.schemas.read();
        schemas.iter().find_map(|(schema, tables)| {
            let is_of = |entry: &Entry| entry.kind == Kind::Managed && entry.definition == folder;
            let (name, _) = tables.iter().find(|(_, entry)| is_of(entry))?;
            Some(format!("{schema}.{name}"))
        })
    }

    /// Refuses a schema in which no table can be created.
    ///
    /// # Errors
    /// If it does not exist.
    pub(crate) fn check_schema(&self, name: &str) -> Result<()> {
        match self.has_schema(name) {
            true => Ok(()),
            false => Err(no_schema(name)),
        }
    }

    /// Adds a schema.
    ///
    /// # Errors
    /// If it exists, or the catalogue cannot be written.
    pub(crate) fn add_schema(&self, name: &str) -> Result<()> {
        let exists = || {
            let message = format!("schema \"{name}\" already exists");
            SqlError::new(Code::DuplicateSchema, message)
        };
        if RESERVED.contains(&name) {
            return Err(exists());
        }
        self.change(|schemas| match schemas.contains_key(name) {
            true => Err(exists()),
            false => {
                schemas.insert(name.to_owned(), BTreeMap::new());
                Ok(())
            }
        })
    }

    /// Removes a schema, with its tables if `cascade`.
    ///
    /// # Errors
    /// If it does not exist or has tables, or the catalogue cannot be written.
    pub(crate) fn remove_schema(&self, name: &str, cascade: bool) -> Result<()> {
        self.change(|schemas| {
            let tables = schemas.get(name).ok_or_else(|| no_schema(name))?;
            if name == PUBLIC {
                return Err(SqlError::unsupported("dropping the schema public"));
            }
            if !cascade && !tables.is_empty() {
                let message = format!("schema \"{name}\" has {} tables", tables.len());
                return Err(SqlError::new(Code::ObjectInUse, message)
                    .with_hint("drop them first, or use DROP SCHEMA ... CASCADE"));
            }
            schemas.remove(name);
            Ok(())
        })
    }

    /// Adds a table, or replaces one if `or_replace`.
    ///
    /// # Errors
    /// If the schema does not exist or a table does, there are too many tables, or the catalogue cannot be written.
    pub(crate) fn add(
        &self,
        schema: &str,
        name: &str,
        entry: Entry,
        or_replace: bool,
    ) -> Result<()> {
        self.change(|schemas| {
            let count: usize = schemas.values().map(BTreeMap::len).sum();
            if count >= TABLES_MAX {
                let message = format!("there are {TABLES_MAX} tables already");
                return Err(SqlError::new(Code::LimitExceeded, message));
            }
            let tables = schemas.get_mut(schema).ok_or_else(|| no_schema(schema))?;
            if !or_replace && tables.contains_key(name) {
                let message = format!("relation \"{name}\" already exists");
                return Err(SqlError::new(Code::DuplicateTable, message));
            }
            if let Some(found) = tables.get(name)
                && (found.kind != entry.kind || entry.kind == Kind::Managed)
            {
                let message = format!("\"{name}\" is another kind of table or view");
                return Err(
                    SqlError::new(Code::WrongObjectType, message).with_hint("drop it first")
                );
            }
            tables.insert(name.to_owned(), Arc::new(entry));
            Ok(())
        })
    }

    /// Sets what a table declares of GPUs. `known` is the table as the caller has seen it.
    ///
    /// # Errors
    /// If the table is another one by now, too much is declared, or the catalogue cannot be written.
    pub(crate) fn declare(
        &self,
        schema: &str,
        name: &str,
        known: &Arc<Entry>,
        declaration: Option<Declaration>,
    ) -> Result<()> {
        self.change_all(|schemas, of_source| {
            let found = schemas.get_mut(schema).and_then(|it| it.get_mut(name));
            let Some(found) = found.filter(|found| Arc::ptr_eq(found, known)) else {
                let message = format!("relation \"{name}\" was changed meanwhile");
                return Err(
                    SqlError::new(Code::SerializationFailure, message).with_hint("try again")
                );
            };
            *found = Arc::new(Entry {
                gpu: declaration,
                ..Entry::clone(known)
            });
            check_declared(schemas, of_source)
        })
    }

    /// Sets the entry of a table of the source that declares something of GPUs; `None` if the table declares nothing.
    ///
    /// # Errors
    /// If too much is declared, or the catalogue cannot be written.
    pub(crate) fn declare_of_source(
        &self,
        schema: &str,
        name: &str,
        entry: Option<Entry>,
    ) -> Result<()> {
        self.change_all(|schemas, of_source| {
            let key = (schema.to_owned(), name.to_owned());
            match entry {
                Some(entry) => of_source.insert(key, Arc::new(entry)),
                None => of_source.remove(&key),
            };
            check_declared(schemas, of_source)
        })
    }

    /// Ends a declaration of a table of the source, unless another one has replaced it.
    ///
    /// # Errors
    /// If the catalogue cannot be written.
    pub(crate) fn end_of_source(&self, ended: &Arc<Entry>) -> Result<()> {
        self.change_all(|_, of_source| {
            of_source.retain(|_, entry| !Arc::ptr_eq(entry, ended));
            Ok(())
        })
    }

    /// Returns the tables that declare something of GPUs, with their schemas and names.
    pub(crate) fn declared(&self) -> Vec<(String, String, Arc<Entry>)> {
        let schemas = self.schemas.read();
        let tables = schemas.iter().flat_map(|(schema, tables)| {
            let tables = tables.iter().filter(|(_, entry)| entry.gpu.is_some());
            tables.map(|(name, entry)| (schema.clone(), name.clone(), Arc::clone(entry)))
        });
        let of_source = self.of_source.read();
        let of_source = of_source
            .iter()
            .map(|((schema, name), entry)| (schema.clone(), name.clone(), Arc::clone(entry)));
        tables.chain(of_source).collect()
    }

    /// Removes tables of this kind, all or none.
    ///
    /// # Errors
    /// If there is none, or the catalogue cannot be written.
    pub(crate) fn remove(&self, tables: &[ResolvedTableReference], is_view: bool) -> Result<()> {
        if tables.is_empty() {
            return Ok(());
        }
        self.change(|schemas| {
            for name in tables {
                let found = schemas.get_mut(&*name.schema);
                let found = found.and_then(|tables| tables.remove(&*name.table));
                let found = found.ok_or_else(|| no_table(&name.table, is_view))?;
                if is_view != (found.kind == Kind::View) {
                    let (is, not) = match is_view {
                        true => ("table", "view"),
                        false => ("view", "table"),
                    };
                    let message = format!("\"{}\" is not a {not}", name.table);
                    return Err(SqlError::new(Code::WrongObjectType, message)
                        .with_hint(format!("use DROP {}", is.to_uppercase())));
                }
            }
            Ok(())
        })
    }

    /// Makes a change and writes the catalogue. After an error, nothing is changed.
    fn change(&self, change: impl FnOnce(&mut Schemas) -> Result<()>) -> Result<()> {
        self.change_all(|schemas, _| change(schemas))
    }

    /// Makes a change as [`Catalogue::change`] does, which may also concern tables of the source.
    fn change_all(
        &self,
        change: impl FnOnce(&mut Schemas, &mut OfSource) -> Result<()>,
    ) -> Result<()> {
        let mut schemas = self.schemas.write();
        let mut of_source = self.of_source.write();
        let (mut changed, mut changed_of_source) = (schemas.clone(), of_source.clone());
        change(&mut changed, &mut changed_of_source)?;
        if let Some(folder) = &self.folder {
            write(folder, &changed, &changed_of_source).map_err(|error| {
                let message = format!(
                    "the catalogue in {} cannot be written: {error}",
                    folder.display()
                );
                SqlError::new(Code::of_io(&error), message)
            })?;
        }
        *schemas = changed;
        *of_source = changed_of_source;
        self.changes.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
}

fn check_declared(schemas: &Schemas, of_source: &OfSource) -> Result<()> {
    let entries = schemas.values().flat_map(BTreeMap::values);
    let entries = entries.chain(of_source.values());
    let declared = entries.filter_map(|entry| entry.gpu.as_ref());
    let (count, bytes) =
        declared.fold((0, 0), |(count, bytes), it| (count + 1, bytes + it.bytes()));
    if count <= DECLARED_MAX && bytes <= DECLARED_BYTES_MAX {
        return Ok(());
    }
    let message = format!(
        "{DECLARED_MAX} tables may declare the parameter gpu, with {DECLARED_BYTES_MAX} bytes of names"
    );
    Err(SqlError::new(Code::LimitExceeded, message).with_hint("reset others first"))
}

impl Entry {
    /// Returns a table that the statement `definition` made.
    pub(crate) fn new(kind: Kind, definition: String) -> Entry {
        Entry {
            kind,
            definition,
            gpu: None,
            user: None,
            files: Arc::default(),
            managed: Arc::default(),
        }
    }

    /// Returns whether GPUs leave the table to the CPU.
    pub(crate) fn is_off(&self) -> bool {
        self.gpu == Some(Declaration::Off)
    }
}

/// Returns the error of a table or view that does not exist.
pub(crate) fn no_table(name: &str, is_view: bool) -> SqlError {
    let what = if is_view { "view" } else { "table" };
    let message = format!("{what} \"{name}\" does not exist");
    SqlError::new(Code::UndefinedTable, message)
}

fn no_schema(name: &str) -> SqlError {
    SqlError::new(
        Code::InvalidSchemaName,
        format!("schema \"{name}\" does not exist"),
    )
}

fn read(folder: &Path) -> io::Result<Option<Saved>> {
    let path = folder.join(FILE_NAME);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let damaged = |why: String| {
        let message = format!("{} is damaged: {why}", path.display());
        io::Error::new(io::ErrorKind::InvalidData, message)
    };
    let saved: Saved = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
    match saved.version {
        VERSION => Ok(Some(saved)),
        version => Err(damaged(format!(
            "it has version {version}, this release reads {VERSION}"
        ))),
    }
}

/// Writes the catalogue in one step: after a power failure, the old or the new one is there.
fn write(folder: &Path, schemas: &Schemas, of_source: &OfSource) -> io::Result<()> {
    let tables = schemas.iter().flat_map(|(schema, tables)| {
        tables
            .iter()
            .map(move |(name, entry)| SavedTable::new(schema, name, entry))
    });
    let of_source = of_source.iter();
    let of_source = of_source.map(|((schema, name), entry)| SavedTable::new(schema, name, entry));
    let saved = Saved {
        version: VERSION,
        schemas: schemas.keys().cloned().collect(),
        tables: tables.collect(),
        of_source: of_source.collect(),
    };
    fs::create_dir_all(folder)?;
    let mut file = NamedTempFile::new_in(folder)?;
    serde_json::to_writer_pretty(&mut file, &saved)?;
    file.write_all(b"\n")?;
    file.as_file().sync_all()?;
    file.persist(folder.join(FILE_NAME))?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::common::TableReference;

    fn entry(kind: Kind) -> Entry {
        Entry::new(kind, "CREATE ...".to_owned())
    }

    #[test]
    fn changes_are_kept() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let folder = folder.path().join("tables");
        let catalogue = Catalogue::open(Some(&folder)).expect("a new one");
        catalogue.add_schema("s").expect("new");
        catalogue
            .add("s", "t", entry(Kind::External), false)
            .expect("new");
        catalogue
            .add(PUBLIC, "v", entry(Kind::View), false)
            .expect("new");
        let again = Catalogue::open(Some(&folder)).expect("it was written");
        assert_eq!(again.schema_names(), ["public", "s"]);
        assert_eq!(again.table_names("s"), ["t"]);
        let table = again.table("s", "t").expect("it was written");
        let columns = Declaration::Columns(vec!["a".to_owned()]);
        let declare = |gpu| again.declare("s", "t", &table, gpu);
        declare(Some(columns.clone())).expect("it is there");
        let changed = declare(None).expect_err("it is another entry");
        assert_eq!(changed.code, Code::SerializationFailure);
        let table = again.table("s", "t").expect("it is there");
        let long = Declaration::Columns(vec!["a".repeat(DECLARED_BYTES_MAX + 1)]);
        let many = again.declare("s", "t", &table, Some(long));
        assert_eq!(many.expect_err("too long").code, Code::LimitExceeded);
        let third = Catalogue::open(Some(&folder)).expect("it was written");
        let (schema, name, entry) = third.declared().remove(0);
        assert_eq!((&*schema, &*name, &entry.gpu), ("s", "t", &Some(columns)));
        let found = again.table(PUBLIC, "v").expect("it was written");
        assert_eq!((found.kind, &*found.definition), (Kind::View, "CREATE ..."));
        again.remove_schema("s", true).expect("it exists");
        assert_eq!(
            Catalogue::open(Some(&folder))
                .expect("readable")
                .schema_names(),
            ["public"]
        );
    }

    #[test]
    fn declarations_of_tables_of_a_source_are_kept() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let open = || Catalogue::open(Some(folder.path())).expect("readable");
        let of_source = |gpu| Entry {
            gpu: Some(gpu),
            user: Some("ada".to_owned()),
            ..Entry::new(Kind::Source, "an id".to_owned())
        };
        let declare = |catalogue: &Catalogue, gpu: Option<Declaration>| {
            catalogue.declare_of_source("shop", "items", gpu.map(of_source))
        };
        let catalogue = open();
        declare(&catalogue, Some(Declaration::Off)).expect("room");
        let long = Declaration::Columns(vec!["a".repeat(DECLARED_BYTES_MAX + 1)]);
        let many = declare(&catalogue, Some(long)).expect_err("too long");
        assert_eq!(many.code, Code::LimitExceeded);
        let (schema, name, before) = open().declared().remove(0);
        assert_eq!((&*schema, &*name, before.is_off()), ("shop", "items", true));
        assert_eq!(
            (before.kind, &*before.definition, before.user.as_deref()),
            (Kind::Source, "an id", Some("ada"))
        );
        // It makes no schema.
        assert!(!catalogue.has_schema("shop"));
        let (_, _, first) = catalogue.declared().remove(0);
        declare(&catalogue, Some(Declaration::On)).expect("room");
        // Another declaration has replaced this one.
        catalogue.end_of_source(&first).expect("room");
        let (_, _, second) = open().declared().remove(0);
        assert_eq!(second.gpu, Some(Declaration::On));
        let (_, _, second) = catalogue.declared().remove(0);
        catalogue.end_of_source(&second).expect("room");
        assert!(open().declared().is_empty());
        declare(&catalogue, Some(Declaration::On)).expect("room");
        declare(&catalogue, None).expect("room");
        assert!(open().declared().is_empty());
    }

    fn named(table: &str) -> ResolvedTableReference {
        TableReference::bare(table).resolve("", PUBLIC)
    }

    #[test]
    fn a_change_that_fails_changes_nothing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let catalogue = Catalogue::open(Some(folder.path())).expect("a new one");
        catalogue
            .add(PUBLIC, "t", entry(Kind::External), false)
            .expect("new");
        let codes = [
            catalogue.add(PUBLIC, "t", entry(Kind::View), false),
            catalogue.add("s", "t", entry(Kind::View), false),
            catalogue.remove(&[named("t")], true),
            catalogue.remove(&[named("u")], false),
            catalogue.add_schema("pg_catalog"),
            catalogue.remove_schema(PUBLIC, true),
        ]
        .map(|result| result.expect_err("refused").code);
        assert_eq!(
            codes,
            [
                Code::DuplicateTable,
                Code::InvalidSchemaName,
                Code::WrongObjectType,
                Code::UndefinedTable,
                Code::DuplicateSchema,
                Code::FeatureNotSupported,
            ]
        );
        assert_eq!(catalogue.table_names(PUBLIC), ["t"]);
        drop(folder);
        let error = catalogue.add(PUBLIC, "u", entry(Kind::View), false);
        // The folder is made again if it can be.
        error.expect("a parent folder exists");
    }

    #[test]
    fn a_damaged_catalogue_is_an_error_that_names_the_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for damaged in ["{", r#"{"version":9,"schemas":[],"tables":[]}"#] {
            fs::write(folder.path().join(FILE_NAME), damaged).expect("room");
            let error = Catalogue::open(Some(folder.path())).expect_err(damaged);
            assert!(
                error.to_string().contains("catalogue.json is damaged"),
                "{error}"
            );
        }
    }
}
