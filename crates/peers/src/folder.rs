//! The folder for fetched data and built programs.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

/// Returns the folder for fetched data and built programs: `$XDG_CACHE_HOME/forebay`, or `~/.cache/forebay` if unset.
///
/// # Errors
/// If neither `XDG_CACHE_HOME` nor `HOME` is set, or the folder cannot be created.
pub fn cache_folder() -> Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set: there is no folder for downloads")?;
    let folder = base.join("forebay");
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    Ok(folder)
}
