//! Managed tables: `CREATE TABLE`, `INSERT`, `UPDATE`, `DELETE`, `TRUNCATE` and `COPY ... FROM STDIN`.
//!
//! Their rows are in the format of Delta Lake, one folder a table (decision 0027). A statement writes new data files,
//! and then one version of the table that has them.

mod create;
mod defaults;
mod incoming;
mod place;
mod provider;
mod settled;
mod sink;
mod types;
mod write;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::execution::SessionState;
use datafusion::logical_expr::Expr;
use forebay_tables_delta::{COLUMN_DEFAULT, Error, Snapshot, Table};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, oneshot};

use crate::error::{Code, Result, SqlError};

pub(crate) use self::create::create;
pub(crate) use self::defaults::with_defaults;
pub use self::incoming::CopyIn;
pub(crate) use self::incoming::copy_in;
pub(crate) use self::place::{Place, forget};
pub(crate) use self::provider::{ManagedProvider, described, listed};
pub(crate) use self::write::{check, truncate, write};

/// A managed table.
#[derive(Debug)]
pub(crate) struct Managed {
    name: String,
    table: Table,
    /// Held by statements that remove files, so that each sees what the one before it did.
    changes: Arc<tokio::sync::Mutex<()>>,
    defaults: HashMap<String, Expr>,
}

impl Managed {
    fn new(name: &str, table: Table, state: &SessionState) -> Result<Managed> {
        let schema = table.schema();
        let fields = schema.fields().iter().filter_map(|field| {
            let text = field.metadata().get(COLUMN_DEFAULT)?;
            Some((field.name().clone(), text))
        });
        let defaults = fields.map(|(column, text)| Ok((column, defaults::planned(state, text)?)));
        Ok(Managed {
            name: name.to_owned(),
            defaults: defaults.collect::<Result<_>>()?,
            table,
            changes: Arc::default(),
        })
    }

    /// Opens the table in a folder.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn open(name: &str, folder: &Path, state: &SessionState) -> Result<Managed> {
        Managed::new(name, Table::open(folder, None)?, state)
    }

    /// Refuses all further changes. The files are deleted when nothing reads them any more.
    pub(crate) fn delete(&self) {
        self.table.delete();
    }

    pub(crate) fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    /// Waits until no other statement removes files.
    async fn turn(&self, stop: &mut Stop) -> Result<OwnedMutexGuard<()>> {
        stop.unless(Arc::clone(&self.changes).lock_owned()).await
    }

    /// Starts to merge small files, if there are many and no statement removes files.
    fn compact_later(self: &Arc<Self>, threads: &Handle) {
        if !self.table.needs_compaction() {
            return;
        }
        let Ok(turn) = Arc::clone(&self.changes).try_lock_owned() else {
            return;
        };
        let managed = Arc::clone(self);
        threads.spawn_blocking(move || {
            match managed.table.compact() {
                Ok(_) | Err(Error::Conflict | Error::Dropped) => {}
                Err(error) => {
                    tracing::warn!(table = managed.name, %error, "small files of a table cannot be merged");
                }
            }
            drop(turn);
        });
    }
}

/// The versions of tables that a statement or a transaction reads: that of its first read.
#[derive(Debug, Default)]
pub(crate) struct Snapshots(Mutex<HashMap<PathBuf, Arc<Snapshot>>>);

impl Snapshots {
    /// Forgets the versions. Queries that run keep the files that they read.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }

    fn of(&self, managed: &Managed) -> Result<Arc<Snapshot>> {
        let mut seen = self.0.lock();
        if let Some(snapshot) = seen.get(managed.table.path()) {
            return Ok(Arc::clone(snapshot));
        }
        let snapshot = managed.table.snapshot()?;
        seen.insert(managed.table.path().to_owned(), Arc::clone(&snapshot));
        Ok(snapshot)
    }
}

/// The version of a managed table that a statement reads.
#[derive(Debug)]
pub(crate) struct Version {
    managed: Arc<Managed>,
    snapshot: Arc<Snapshot>,
}

impl Version {
    /// Returns the version of a table that a statement of this session reads; `None` if the table is not managed.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn seen(table: &dyn TableProvider, state: &SessionState) -> Result<Option<Version>> {
        let Some(provider) = table.downcast_ref::<ManagedProvider>() else {
            return Ok(None);
        };
        let seen = state.config().get_extension::<Snapshots>();
        let managed = Arc::clone(provider.managed());
        let snapshot = seen.unwrap_or_default().of(&managed)?;
        Ok(Some(Version { managed, snapshot }))
    }

    /// Returns whether it is the last.
    pub(crate) fn is_current(&self) -> bool {
        let last = self.managed.table.snapshot();
        last.is_ok_and(|last| Arc::ptr_eq(&last, &self.snapshot))
    }
}

/// Returns the number of the last version of a managed table; `None` of other tables.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn last_version(table: &dyn TableProvider) -> Result<Option<u64>> {
    let Some(provider) = table.downcast_ref::<ManagedProvider>() else {
        return Ok(None);
    };
    Ok(Some(provider.managed().table.snapshot()?.version()))
}

impl PartialEq for Version {
    fn eq(&self, other: &Version) -> bool {
        Arc::ptr_eq(&self.snapshot, &other.snapshot)
    }
}

/// Tells a thread that writes when its statement ends early.
#[derive(Debug)]
struct Stop(oneshot::Receiver<()>);

impl Stop {
    /// Returns it, and what must be kept as long as the statement runs.
    fn new() -> (oneshot::Sender<()>, Stop) {
        let (running, stop) = oneshot::channel();
        (running, Stop(stop))
    }

    /// Waits for `work`.
    ///
    /// # Errors
    /// If the statement ends first.
    async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            biased;
            _ = &mut self.0 => Err(stopped()),
            done = work => Ok(done),
        }
    }

    fn check(&mut self) -> Result<()> {
        match self.0.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => Ok(()),
            _ => Err(stopped()),
        }
    }
}

fn stopped() -> SqlError {
    SqlError::new(Code::QueryCanceled, "the statement was canceled")
}

impl From<Error> for SqlError {
    fn from(error: Error) -> SqlError {
        let message = error.to_string();
        match error {
            Error::Io { source, .. } => match Code::of_io(&source) {
                Code::DiskFull => SqlError::new(Code::DiskFull, message)
                    .with_hint("nothing was changed; make room on the disk of --data"),
                code => SqlError::new(code, message),
            },
            Error::Damaged { .. } => SqlError::new(Code::DataCorrupted, message),
            Error::Unsupported(_) => SqlError::new(Code::FeatureNotSupported, message),
            Error::Conflict => {
                SqlError::new(Code::SerializationFailure, message).with_hint("try again")
            }
            Error::Dropped => SqlError::new(Code::UndefinedTable, message),
            Error::Stuck(_) => {
                SqlError::new(Code::IoError, message).with_hint("restart the server")
            }
        }
    }
}
