//! A directory of tables whose creation was cut short.
//!
//! fjall makes its journal before it marks the directory as its own, and does not take a journal that it finds there
//! without the mark.

use std::fs;
use std::io;
use std::path::Path;

use super::journal;
use super::synced::Position;
use crate::error::{Result, StoreError};

/// Empties a directory if its creation was cut short: if it has no whole mark, no partition, and nothing in a journal.
///
/// # Errors
/// [`StoreError::Io`].
pub(crate) fn clear_unfinished(directory: &Path, partitions: &Path) -> Result<()> {
    if is_unfinished(directory, partitions)? {
        clear(directory).map_err(|error| StoreError::io("empty an unfinished directory", error))?;
    }
    Ok(())
}

fn is_unfinished(directory: &Path, partitions: &Path) -> Result<bool> {
    let mark = fs::read(directory.join("version")).unwrap_or_default();
    let has_partitions = fs::read_dir(partitions).is_ok_and(|mut folder| folder.next().is_some());
    let was_used = mark.iter().any(|byte| *byte != 0) || Position::read(directory).is_some();
    Ok(!was_used && !has_partitions && journal::all_empty(directory)?)
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
