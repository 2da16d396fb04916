//! The folder of a table, and the steps of writes to it.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Result, of_io};

/// Name of the folder of the log.
const LOG_FOLDER: &str = "_delta_log";

/// A step of a write. After a failure or a kill before each of them, a table is as before the write or as after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Writes a data file.
    WriteData,
    /// Syncs a data file.
    SyncData,
    /// Syncs the folder of the data files.
    SyncFolder,
    /// Writes the file of a version under a temporary name.
    WriteLog,
    /// Syncs that file.
    SyncLog,
    /// Gives that file its name.
    Publish,
    /// Syncs the folder of the log.
    SyncLogFolder,
    /// Writes a checkpoint.
    WriteCheckpoint,
}

/// A function that is called before each step, for tests. Its error is the step's.
pub type Probe = Arc<dyn Fn(Step) -> io::Result<()> + Send + Sync>;

/// The folder of a table. It is deleted when it is dropped after the table was.
pub(crate) struct Folder {
    path: PathBuf,
    probe: Option<Probe>,
    is_unwanted: AtomicBool,
}

impl fmt::Debug for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

impl Folder {
    pub(crate) fn new(path: &Path, probe: Option<Probe>) -> Folder {
        Folder {
            path: path.to_owned(),
            probe,
            is_unwanted: AtomicBool::new(false),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path.join(LOG_FOLDER)
    }

    /// Deletes the folder when no table and no data file of it is in use.
    pub(crate) fn delete_at_the_end(&self) {
        self.is_unwanted.store(true, Ordering::Release);
    }

    /// Returns whether the table was dropped.
    pub(crate) fn is_unwanted(&self) -> bool {
        self.is_unwanted.load(Ordering::Acquire)
    }

    /// Announces a step on `path`.
    pub(crate) fn step(&self, step: Step, path: &Path) -> Result<()> {
        match &self.probe {
            Some(probe) => probe(step).map_err(of_io(path)),
            None => Ok(()),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if *self.is_unwanted.get_mut()
            && let Err(error) = remove_folder(&self.path)
        {
            tracing::warn!(folder = %self.path.display(), %error, "a dropped table cannot be deleted");
        }
    }
}

/// Deletes the folder of a table, if it is there. Files whose names begin with a dot are deleted last: one of them may
/// tell, after a kill in between, that the folder is to be deleted.
///
/// # Errors
/// If a file cannot be deleted.
pub fn remove_folder(path: &Path) -> io::Result<()> {
    let remove = || {
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else if !entry.file_name().as_encoded_bytes().starts_with(b".") {
                fs::remove_file(entry.path())?;
            }
        }
        fs::remove_dir_all(path)
    };
    match remove() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Syncs the names in a folder.
pub(crate) fn sync_names(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(of_io(folder))
}
