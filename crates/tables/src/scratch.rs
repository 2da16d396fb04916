//! Temporary folders of processes without a data directory.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tempfile::TempDir;

/// Beginning of the names of the folders.
const PREFIX: &str = "forebay-sql-";
/// File that the process keeps locked, and its name before it is locked. Data directories have none of this name.
const LOCK: &str = "forebay-scratch.lock";
const NOT_LOCKED: &str = "forebay-scratch.new";

/// A temporary folder, which is removed when the value is dropped. That of a process that was killed is removed when
/// the next one is made.
#[derive(Debug)]
pub struct Scratch {
    folder: TempDir,
    /// `None` if the file system has no locks: other processes then leave the folder alone.
    _lock: Option<File>,
}

impl Scratch {
    /// Makes a folder in that of the system's temporary files (`TMPDIR`).
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new() -> io::Result<Scratch> {
        Scratch::within(&std::env::temp_dir())
    }

    fn within(parent: &Path) -> io::Result<Scratch> {
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        let lock = lock(folder.path()).ok();
        remove_abandoned(parent, fs::metadata(folder.path())?.uid());
        Ok(Scratch {
            folder,
            _lock: lock,
        })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Locks a new folder. Other processes see the file only when it is locked.
fn lock(folder: &Path) -> io::Result<File> {
    let new = folder.join(NOT_LOCKED);
    let file = File::create_new(&new)?;
    file.lock()?;
    fs::rename(new, folder.join(LOCK))?;
    Ok(file)
}

/// Removes the folders of a user that no process has locked any more. What cannot be removed stays for the next
/// process.
fn remove_abandoned(parent: &Path, user: u32) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_named = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let found = entry.metadata();
        if is_named
            && found.is_ok_and(|found| found.is_dir() && found.uid() == user)
            && let Ok(lock) = File::open(entry.path().join(LOCK))
            && lock.try_lock().is_ok()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_whose_process_has_ended_are_removed_and_others_stay() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let made = |name: &str, lock: &str| {
            let folder = parent.path().join(name);
            fs::create_dir(&folder).expect("room");
            fs::write(folder.join(lock), "").expect("room");
            fs::write(folder.join("rows"), "1,2,3").expect("room");
            folder
        };
        let killed = made("forebay-sql-killed", LOCK);
        let others = [
            made("forebay-sql-begun", NOT_LOCKED),
            made("of another program", LOCK),
            made("forebay-sql-data", "LOCK"),
        ];
        let first = Scratch::within(parent.path()).expect("room");
        assert!(!killed.exists());
        let second = Scratch::within(parent.path()).expect("room");
        assert!(others.iter().all(|folder| folder.join("rows").exists()));
        let used = [first.path().to_owned(), second.path().to_owned()];
        assert!(used.iter().all(|folder| folder.exists()));
        drop((first, second));
        assert!(!used.iter().any(|folder| folder.exists()));
    }
}
