//! Files that appear under their name only when they are complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use nix::sys::statvfs::statvfs;

/// What the name of an unfinished file ends with.
const PART: &str = ".forebay-part";

/// A file that is being written under another name. It is removed when it is dropped before it is complete. A killed
/// process leaves it, and the next run writes over it.
pub(super) struct NewFile {
    path: PathBuf,
    part: PathBuf,
    file: File,
    is_complete: bool,
}

impl NewFile {
    /// Creates the file beside `path`, after a check that the file system has room for `bytes` bytes.
    ///
    /// # Errors
    /// If there is too little room, `path` names something else than a file, another process writes the file, or it
    /// cannot be created.
    pub(super) fn create(path: &Path, bytes: u64) -> Result<NewFile> {
        refuse_other_than_files(path)?;
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        check_room(folder, path, bytes)?;
        let mut part = path.as_os_str().to_owned();
        part.push(PART);
        let part = PathBuf::from(part);
        refuse_other_than_files(&part)?;
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false);
        let file = options.custom_flags(O_NOFOLLOW | O_NONBLOCK).open(&part);
        let file = file.with_context(|| format!("creating {}", part.display()))?;
        // Another process may have completed the file, and so renamed it, since it was opened here.
        let inode = |found: fs::Metadata| (found.dev(), found.ino());
        let is_same = || Ok::<_, io::Error>(inode(file.metadata()?) == inode(fs::metadata(&part)?));
        ensure!(
            file.try_lock().is_ok() && is_same().unwrap_or(false),
            "another process writes {}; wait until it ends",
            part.display()
        );
        let new = NewFile {
            path: path.to_owned(),
            part,
            file,
            is_complete: false,
        };
        new.file.set_len(0).with_context(|| new.writing())?;
        Ok(new)
    }

    /// Moves the complete file to its name, in place of an older one, when it is on the drive.
    ///
    /// # Errors
    /// If the drive fails or is full.
    pub(super) fn complete(mut self) -> Result<()> {
        self.file.sync_all().with_context(|| self.writing())?;
        fs::rename(&self.part, &self.path).with_context(|| self.writing())?;
        self.is_complete = true;
        Ok(())
    }

    /// Returns the context of an error of a write.
    pub(super) fn writing(&self) -> String {
        format!(
            "writing {} (if no space is left: free some, or choose another folder)",
            self.path.display()
        )
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_complete {
            let _ = fs::remove_file(&self.part);
        }
    }
}

/// Returns an error if a path names a folder, a pipe or something else that is no file. To open a pipe would block.
pub(super) fn refuse_other_than_files(path: &Path) -> Result<()> {
    let is_other = fs::metadata(path).is_ok_and(|found| !found.is_file());
    ensure!(
        !is_other,
        "{} is not a regular file; name a regular file, or choose another folder",
        path.display()
    );
    Ok(())
}

/// Returns an error if the file system of a folder has less than `bytes` bytes free.
fn check_room(folder: &Path, path: &Path, bytes: u64) -> Result<()> {
    let disk =
        statvfs(folder).with_context(|| format!("asking for the room in {}", folder.display()))?;
    let free = disk.blocks_available().saturating_mul(disk.fragment_size());
    ensure!(
        bytes <= free,
        "{} needs {bytes} bytes, and its file system has {free} free; free some, choose another folder, or a smaller \
         --scale-factor",
        path.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("a folder");
        let name = |entry: io::Result<fs::DirEntry>| entry.expect("readable").file_name();
        let names = entries.map(|entry| name(entry).into_string().expect("UTF-8"));
        names.collect()
    }

    #[test]
    fn a_file_appears_when_it_is_complete() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("table");
        fs::write(
            folder.path().join("table.forebay-part"),
            "left by a killed process",
        )
        .expect("room");
        let mut new = NewFile::create(&path, 3).expect("room");
        new.write_all(b"new").expect("room");
        assert!(NewFile::create(&path, 3).is_err(), "two write one file");
        assert!(!path.exists());
        new.complete().expect("room");
        assert_eq!(fs::read(&path).expect("it is there"), b"new");
        assert_eq!(names(folder.path()), ["table"]);
    }

    #[test]
    fn an_error_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("table");
        fs::write(&path, "old").expect("room");
        let mut new = NewFile::create(&path, 3).expect("room");
        new.write_all(b"ne").expect("room");
        drop(new);
        assert_eq!(fs::read(&path).expect("it is there"), b"old");
        assert_eq!(names(folder.path()), ["table"]);
    }

    #[test]
    fn too_little_room_is_an_error_that_names_the_bytes() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let error = NewFile::create(&folder.path().join("table"), u64::MAX).err();
        let text = error.expect("no disk is so large").to_string();
        assert!(text.contains("needs 18446744073709551615 bytes"), "{text}");
        assert_eq!(names(folder.path()), [""; 0]);
    }

    #[test]
    fn pipes_and_folders_are_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        for path in [&pipe, folder.path()] {
            let error = NewFile::create(path, 3).err().expect("no file");
            assert!(error.to_string().contains("not a regular file"), "{error}");
        }
    }
}
