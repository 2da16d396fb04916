//! The data directory: its format, and the lock that keeps a second server out.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Result, StoreError};

/// Content of the file `FORMAT`. The number is incremented when older releases cannot read the new format.
const FORMAT: &str = "forebay store 1\n";
/// Name of the file that a process keeps locked while it has the store open.
const LOCK: &str = "LOCK";
/// Name of the subdirectory for the engine's files.
const TABLES: &str = "tables";
/// Name of the subdirectory in which a Forebay proxy keeps its caches. It is a data directory too.
const CACHES: &str = "upstream-caches";
/// Names that a directory without a complete store may contain, besides `LOCK` and `CACHES`: files that the store
/// creates before `FORMAT`, files of a Forebay proxy, those of `forebay doctor --measure`, and the folder
/// that file systems create in the root of a disk.
const NAMES_WITHOUT_STORE: [&str; 8] = [
    "FORMAT.new",
    "movement.json",
    "movement.json.new",
    "movement.json.scratch",
    "sql",
    "upstream-caches.jsonl",
    "upstream-caches.new",
    "lost+found",
];
/// Mode of the directories that the store creates.
const OWNER_ONLY: u32 = 0o700;

/// The lock of a data directory. It is released when the value is dropped or the process ends.
#[derive(Debug)]
pub struct DirectoryLock {
    _file: File,
}

/// Creates the data directory of a proxy if it does not exist, and locks it.
///
/// # Errors
/// [`StoreError::NotWritable`] or [`StoreError::Locked`].
pub fn lock_directory(path: &Path) -> Result<DirectoryLock> {
    create(path).map_err(|source| not_writable(path, source))?;
    Ok(DirectoryLock { _file: lock(path)? })
}

/// A locked data directory. The lock is released when the value is dropped or the process ends.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    _lock: File,
}

impl Directory {
    /// Creates the directory if it does not exist, locks it and checks its format. If it refuses a directory because of
    /// the directory's content, it changes nothing there.
    ///
    /// # Errors
    /// [`StoreError::ForeignFiles`], [`StoreError::UnknownFormat`], [`StoreError::NotWritable`] or
    /// [`StoreError::Locked`].
    pub fn open(path: &Path) -> Result<Self> {
        let not_writable = |source| not_writable(path, source);
        holds_store(path)?;
        create(path).map_err(not_writable)?;
        let directory = Self {
            path: path.to_owned(),
            _lock: lock(path)?,
        };
        // Checks again, because another server may have created a store before this one acquired the lock.
        if !holds_store(path)? {
            directory.write_format().map_err(not_writable)?;
        }
        directory.create_tables().map_err(not_writable)?;
        Ok(directory)
    }

    /// Returns the path of the subdirectory for the engine's files.
    pub fn tables(&self) -> PathBuf {
        self.path.join(TABLES)
    }

    /// Creates the engine's subdirectory if it does not exist, and syncs the data directory: the engine syncs only the
    /// content of its subdirectory. `FORMAT` is synced first, because a subdirectory without a `FORMAT` file is
    /// refused.
    fn create_tables(&self) -> io::Result<()> {
        sync(&self.path)?;
        create(&self.tables())?;
        sync(&self.path)
    }

    /// Marks a new directory as a store.
    fn write_format(&self) -> io::Result<()> {
        sync_ancestors(&self.path)?;
        let temporary = self.path.join("FORMAT.new");
        let mut mark = File::create(&temporary)?;
        mark.write_all(FORMAT.as_bytes())?;
        mark.sync_all()?;
        std::fs::rename(&temporary, self.path.join("FORMAT"))?;
        sync(&self.path)
    }
}

/// Returns whether there is a store in a directory. Returns false if the directory does not exist, is empty, or has
/// only files of a Forebay proxy or of a store whose creation was interrupted. Changes nothing.
///
/// # Errors
/// [`StoreError::ForeignFiles`], [`StoreError::UnknownFormat`], or [`StoreError::NotWritable`] if the directory cannot
/// be read.
pub fn holds_store(path: &Path) -> Result<bool> {
    let file = path.join("FORMAT");
    match std::fs::read(&file) {
        Ok(found) if found == FORMAT.as_bytes() => Ok(true),
        Ok(found) => Err(StoreError::UnknownFormat {
            why: format!(
                "the format is {:?}, and this release reads {:?}; open the store with the release that wrote it",
                String::from_utf8_lossy(&found).trim_end(),
                FORMAT.trim_end()
            ),
            file,
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            refuse_foreign(path)?;
            Ok(false)
        }
        Err(error) => Err(not_writable(path, error)),
    }
}

/// Refuses a directory without `FORMAT` that contains tables (`FORMAT` was lost) or files of another program.
fn refuse_foreign(path: &Path) -> Result<()> {
    let not_writable = |source| not_writable(path, source);
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(not_writable)?,
    };
    for entry in entries {
        let name = entry.map_err(not_writable)?.file_name();
        if name == TABLES {
            return Err(StoreError::UnknownFormat {
                file: path.join("FORMAT"),
                why: "the file is missing, but there are tables in the directory".to_owned(),
            });
        }
        let is_own = match name.to_str() {
            Some(LOCK) => is_own_lock(&path.join(LOCK)).map_err(not_writable)?,
            Some(CACHES) => is_own_folder(&path.join(CACHES))?,
            Some(name) => NAMES_WITHOUT_STORE.contains(&name),
            None => false,
        };
        if !is_own {
            return Err(StoreError::ForeignFiles {
                directory: path.to_owned(),
                name,
            });
        }
    }
    Ok(())
}

/// Returns whether `path` is a directory that a store can be opened in, or does not exist any more.
fn is_own_folder(path: &Path) -> Result<bool> {
    if path.is_file() {
        return Ok(false);
    }
    match holds_store(path) {
        Err(StoreError::ForeignFiles { .. }) => Ok(false),
        held => held.map(|_| true),
    }
}

/// Returns whether a file is a lock file of a store: a regular file that is empty or holds the id of a process. After a
/// power failure, bytes of the id may be NUL, because the file is not synced.
fn is_own_lock(file: &Path) -> io::Result<bool> {
    let kind = match std::fs::symlink_metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        metadata => metadata?.file_type(),
    };
    if !kind.is_file() {
        return Ok(false);
    }
    let mut id = Vec::new();
    File::open(file)?.take(32).read_to_end(&mut id)?;
    let is_of_id = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'\n' | b'\0');
    Ok(id.len() < 32 && id.iter().all(is_of_id))
}

/// Creates a directory that only its owner may enter, and its missing parents, and syncs each parent. If the directory
/// exists, removes the access rights of other accounts.
///
/// # Errors
/// Those of the operating system.
fn create(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return tighten(path);
    }
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    if !parent.is_dir() {
        create(parent)?;
    }
    match DirBuilder::new().mode(OWNER_ONLY).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => created?,
    }
    sync(parent)
}

/// Syncs the ancestors of the directory, up to the first without read permission. An earlier process may have created
/// them and failed to sync them.
fn sync_ancestors(path: &Path) -> io::Result<()> {
    let path = path.canonicalize()?;
    for ancestor in path.ancestors().skip(1) {
        match sync(ancestor) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
            synced => synced?,
        }
    }
    Ok(())
}

/// Removes the access rights of other accounts from a directory: it holds documents and users' keys.
fn tighten(path: &Path) -> io::Result<()> {
    let mode = std::fs::metadata(path)?.permissions().mode() & 0o777;
    if mode & !OWNER_ONLY == 0 {
        return Ok(());
    }
    let tightened = std::fs::set_permissions(path, Permissions::from_mode(mode & OWNER_ONLY));
    let directory = path.display();
    match tightened {
        Ok(()) => {
            tracing::warn!(%directory, "other accounts could read the data directory: its mode was {mode:o}, and is now {:o}", mode & OWNER_ONLY)
        }
        Err(error) => {
            tracing::warn!(%directory, %error, "other accounts can read the data directory: its mode is {mode:o}")
        }
    }
    Ok(())
}

/// Syncs a directory's list of entries.
pub(crate) fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn lock(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    let opened = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path.join(LOCK));
    let mut file = opened.map_err(|source| not_writable(path, source))?;
    match file.try_lock() {
        Ok(()) => {
            write_holder(&mut file).map_err(|source| not_writable(path, source))?;
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked {
            directory: path.to_owned(),
            process: read_holder(&mut file),
        }),
        Err(TryLockError::Error(source)) => Err(not_writable(path, source)),
    }
}

fn write_holder(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn read_holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn not_writable(path: &Path, source: io::Error) -> StoreError {
    match StoreError::io("write to the data directory", source) {
        StoreError::Io { source, .. } => StoreError::NotWritable {
            directory: path.to_owned(),
            source: Arc::clone(&source),
        },
        other => other,
    }
}
