//! The data directory: its lock against a second server, and its format.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Result, StoreError};

/// Content of the file `FORMAT`. The number rises with each change of format that older releases cannot read.
const FORMAT: &str = "forebay store 1\n";
/// Name of the engine's folder.
const TABLES: &str = "tables";
/// Mode of the directories.
const OWNER_ONLY: u32 = 0o700;

/// A locked data directory. Dropping the value releases the lock, and so does the end of the process.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    _lock: File,
}

impl Directory {
    /// Creates the directory if it does not exist, locks it and checks its format.
    ///
    /// # Errors
    /// [`StoreError::NotWritable`], [`StoreError::Locked`] or [`StoreError::UnknownFormat`].
    pub fn open(path: &Path) -> Result<Self> {
        let not_writable = |source| not_writable(path, source);
        create(path).map_err(not_writable)?;
        let lock = lock(path)?;
        let directory = Self {
            path: path.to_owned(),
            _lock: lock,
        };
        directory.check_format()?;
        directory.create_tables().map_err(not_writable)?;
        Ok(directory)
    }

    /// The folder for the engine's files.
    pub fn tables(&self) -> PathBuf {
        self.path.join(TABLES)
    }

    /// Creates the engine's folder if it does not exist, and syncs its name: the engine syncs only the content.
    /// `FORMAT` is synced first, as a folder without it is refused.
    fn create_tables(&self) -> io::Result<()> {
        sync(&self.path)?;
        create(&self.tables())?;
        sync(&self.path)
    }

    fn check_format(&self) -> Result<()> {
        let file = self.path.join("FORMAT");
        match std::fs::read(&file) {
            Ok(found) if found == FORMAT.as_bytes() => Ok(()),
            Ok(found) => Err(StoreError::UnknownFormat {
                why: format!(
                    "its format is {:?}, and this release reads {:?}; open it with the release that wrote it",
                    String::from_utf8_lossy(&found).trim_end(),
                    FORMAT.trim_end()
                ),
                file,
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.write_format(&file),
            Err(error) => Err(not_writable(&self.path, error)),
        }
    }

    /// Writes the format of a new directory. Tables without it are refused: they are another program's, or the file
    /// was lost.
    fn write_format(&self, file: &Path) -> Result<()> {
        if self.tables().exists() {
            return Err(StoreError::UnknownFormat {
                file: file.to_owned(),
                why: "the file is missing, but there are tables in the directory".to_owned(),
            });
        }
        let write = || {
            sync_ancestors(&self.path)?;
            let temporary = self.path.join("FORMAT.new");
            let mut mark = File::create(&temporary)?;
            mark.write_all(FORMAT.as_bytes())?;
            mark.sync_all()?;
            std::fs::rename(&temporary, file)?;
            sync(&self.path)
        };
        write().map_err(|source| not_writable(&self.path, source))
    }
}

/// Creates a directory that only its owner may enter, with its parents, and syncs their names. Takes the rights of
/// other accounts away from one that exists.
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

/// Syncs the directories above this one, up to the first that may not be read: a sync may have failed in the run that
/// created them.
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

/// Takes the rights of other accounts away from a directory: it holds documents and the keys of users.
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

/// Syncs the entries of a directory.
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
        .open(path.join("LOCK"));
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
