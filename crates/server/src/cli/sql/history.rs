//! The file of statements that were typed in the shell. Statements may hold secrets, so only the user can read it: the
//! line editor creates it with mode 0600.

use std::env;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

/// Name of the file.
const FILE: &str = "sql_history";

/// Returns the path of the file, whose folder exists afterwards; `None` if the user has no home.
///
/// # Errors
/// If the folder cannot be created.
pub fn path() -> io::Result<Option<PathBuf>> {
    let Some(folder) = state_folder() else {
        return Ok(None);
    };
    let folder = folder.join("forebay");
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700).create(&folder)?;
    Ok(Some(folder.join(FILE)))
}

/// Returns the folder for the state of programs (XDG base directories).
fn state_folder() -> Option<PathBuf> {
    let absolute = |name: &str| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))
}
