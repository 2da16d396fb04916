//! Directories of tables whose creation was cut short, or met a failed sync.
//!
//! fjall creates its journal before it marks the directory as its own, and refuses a journal in a directory without
//! the mark.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::journal;
use super::synced::Position;
use crate::error::{Result, StoreError};

/// File with which fjall marks a directory as its own.
const MARK: &str = "version";

/// Completes a directory before it is opened: syncs again what an earlier run may have failed to sync, or empties the
/// directory if its creation was cut short.
///
/// # Errors
/// [`StoreError::Io`] and [`StoreError::DiskFull`].
pub(crate) fn finish(directory: &Path, partitions: &Path) -> Result<()> {
    if is_unfinished(directory, partitions)? {
        return clear(directory)
            .map_err(|error| StoreError::io("empty an unfinished directory", error));
    }
    // The note is written when the tables have been opened for the first time.
    if Position::read(directory)?.is_none() {
        write_mark_again(directory).map_err(|error| StoreError::io("mark the tables", error))?;
    }
    for partition in entries(partitions)? {
        crate::directory::sync(&partition)
            .map_err(|error| StoreError::io("sync a partition", error))?;
    }
    Ok(())
}

/// Returns whether the directory has no complete mark, no partition, and only empty journals.
fn is_unfinished(directory: &Path, partitions: &Path) -> Result<bool> {
    let mark = read_mark(directory).map_err(|error| StoreError::io("read the mark", error))?;
    let was_used = mark.iter().any(|byte| *byte != 0) || Position::read(directory)?.is_some();
    Ok(!was_used && entries(partitions)?.is_empty() && journal::all_empty(directory)?)
}

fn read_mark(directory: &Path) -> io::Result<Vec<u8>> {
    match fs::read(directory.join(MARK)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        mark => mark,
    }
}

/// Writes the mark into a new file: after a failed sync, another sync of the same file proves nothing.
fn write_mark_again(directory: &Path) -> io::Result<()> {
    let mark = read_mark(directory)?;
    if mark.is_empty() {
        return Ok(());
    }
    let new = directory.join("version.new");
    let mut file = File::create(&new)?;
    file.write_all(&mark)?;
    file.sync_all()?;
    fs::rename(&new, directory.join(MARK))?;
    crate::directory::sync(directory)
}

/// Paths of the entries of a folder; empty if it does not exist.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries,
    };
    let paths = entries.and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    paths.map_err(|error| StoreError::io("list the partitions", error))
}

fn clear(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            fs::remove_dir(path)?
        } else {
            fs::remove_file(path)?
        }
    }
    Ok(())
}
