//! Why a table cannot be read or written.

use std::io;
use std::path::{Path, PathBuf};

use parquet::errors::ParquetError;

/// The result of an operation on a table.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a table cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused it, as when the disk is full.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file of the table is not what it must be.
    #[error("{} is damaged: {message}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The table uses a feature, or a column a type, that this crate does not have.
    #[error("{0} is not supported in a managed table")]
    Unsupported(String),
    /// A file to be removed is no longer in the table: another writer changed it.
    #[error("another writer changed the table at the same time")]
    Conflict,
    /// The table was dropped.
    #[error("the table was dropped")]
    Dropped,
    /// A commit could be neither completed nor taken back.
    #[error("the table takes no changes until it is opened again: {0}")]
    Stuck(String),
}

impl Error {
    pub(crate) fn damaged(path: &Path, message: impl ToString) -> Error {
        Error::Damaged {
            path: path.to_owned(),
            message: message.to_string(),
        }
    }

    /// Returns the error of a Parquet file at `path`.
    pub(crate) fn of_parquet(path: &Path, error: ParquetError) -> Error {
        match error {
            ParquetError::External(inner) => match inner.downcast::<io::Error>() {
                Ok(source) => of_io(path)(*source),
                Err(other) => Error::damaged(path, other),
            },
            other => Error::damaged(path, other),
        }
    }
}

/// Returns a function that adds the path to an error of the operating system.
pub(crate) fn of_io(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { path, source }
}
