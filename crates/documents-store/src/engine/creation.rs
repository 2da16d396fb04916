//! What makes a directory one of tables, and one whose creation was cut short.
//!
//! fjall makes its journal before it marks the directory as its own, and does not take a journal that it finds there
//! without the mark.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::journal;
use super::synced::Position;
use crate::error::{Result, StoreError};

/// The file by which fjall knows a directory as its own.
const MARK: &str = "version";

/// Has on the disk what makes a directory one of tables, before it is opened: a sync of that may have failed in an earlier
/// run. Empties a directory if its creation was cut short.
///
/// # Errors
/// [`StoreError::Io`] and [`StoreError::DiskFull`].
pub(crate) fn finish(directory: &Path, partitions: &Path) -> Result<()> {
    if is_unfinished(directory, partitions)? {
        return clear(directory)
            .map_err(|error| StoreError::io("empty an unfinished directory", error));
    }
    // The note is made when all has been opened for the first time.
    if Position::read(directory)?.is_none() {
        write_mark_again(directory).map_err(|error| StoreError::io("mark the tables", error))?;
    }
    for partition in entries(partitions)? {
        crate::directory::sync(&partition)
            .map_err(|error| StoreError::io("sync a partition", error))?;
    }
    Ok(())
}

/// Whether the directory has no whole mark, no partition, and nothing in a journal.
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

/// Into a new file: a sync of one that another has failed to write proves nothing.
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

/// What is in a folder, if there is one.
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
        match path.is_dir() {
            true => fs::remove_dir(path)?,
            false => fs::remove_file(path)?,
        }
    }
    Ok(())
}
