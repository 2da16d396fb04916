//! Recovery of a tables directory after its creation was interrupted, or after a failed sync.
//!
//! fjall creates its journal before the marker file that identifies a directory as fjall's. fjall refuses a directory
//! that has a journal but no marker.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::journal;
use super::synced::Position;
use crate::error::{Result, StoreError};

/// Name of fjall's marker file.
const MARK: &str = "version";

/// Repairs a directory before fjall opens it. Empties the directory if its creation was interrupted. Otherwise, syncs
/// again the files and folders that an earlier process may have failed to sync.
///
/// # Errors
/// [`StoreError::Io`] and [`StoreError::DiskFull`].
pub(crate) fn finish(directory: &Path, partitions: &Path) -> Result<()> {
    if is_unfinished(directory, partitions)? {
        return clear(directory).map_err(|error| {
            StoreError::io("empty a directory whose creation was interrupted", error)
        });
    }
    // Without the file `synced`, no process has opened the tables completely, so the marker may not be synced yet.
    if Position::read(directory)?.is_none() {
        write_mark_again(directory)
            .map_err(|error| StoreError::io("write the marker file", error))?;
    }
    for partition in entries(partitions)? {
        crate::directory::sync(&partition)
            .map_err(|error| StoreError::io("sync a partition", error))?;
    }
    Ok(())
}

/// Returns whether the creation was interrupted: there is no complete marker and no partition, and all journals are
/// empty.
fn is_unfinished(directory: &Path, partitions: &Path) -> Result<bool> {
    let mark =
        read_mark(directory).map_err(|error| StoreError::io("read the marker file", error))?;
    let was_used = mark.iter().any(|byte| *byte != 0) || Position::read(directory)?.is_some();
    Ok(!was_used && entries(partitions)?.is_empty() && journal::all_empty(directory)?)
}

fn read_mark(directory: &Path) -> io::Result<Vec<u8>> {
    match fs::read(directory.join(MARK)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        mark => mark,
    }
}

/// Copies the marker to a new file and syncs the new file. A sync of the old file would prove nothing if an earlier
/// sync of it has failed.
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

/// Returns the paths of a folder's entries. Returns an empty list if the folder does not exist.
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
