//! The folder of column files on the disk of the server.
//!
//! A column that was packed once is read from there when the server has started again, or its memory was given to
//! others: many times faster than from Parquet, which the CPU decodes. A file is known by what the column is of, and so
//! one of a table's file that has changed is not found. Those that were used longest ago give way to others.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::sys::statvfs::statvfs;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::column_file::UNFINISHED;
use crate::columns::ColumnKey;
use crate::load::RANGE_BYTES;
use crate::packed::CHUNK_ROWS;

/// Mode of the folder.
const OWNER_ONLY: u32 = 0o700;
/// End of the name of a file.
const EXTENSION: &str = "column";
/// Part of the file system that column files leave free.
const FREE_PART: u64 = 10;

/// What identifies the file of a column.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    /// Of all versions of the table's file.
    column: String,
    version: String,
    /// What the footer repeats.
    pub(crate) key: String,
}

impl Name {
    /// Returns the name of the file of a column; `None` if it is computed.
    pub(crate) fn of(key: &ColumnKey) -> Option<Name> {
        if key.computed.is_some() {
            return None;
        }
        let (column, version) = key.texts();
        // A file is packed in ranges and chunks, which all its columns share.
        let key = format!("{column} {version} {RANGE_BYTES} {CHUNK_ROWS}");
        Some(Name {
            column: digest(&column),
            version: digest(&key),
            key,
        })
    }

    fn file(&self) -> String {
        format!("{}-{}.{EXTENSION}", self.column, self.version)
    }
}

/// Returns 16 letters and digits that texts seldom share.
fn digest(text: &str) -> String {
    let bytes: [u8; 32] = Sha256::digest(text).into();
    bytes[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A file.
#[derive(Debug)]
struct Entry {
    bytes: u64,
    used: SystemTime,
}

/// The folder.
#[derive(Debug)]
pub(crate) struct Disk {
    folder: PathBuf,
    max_bytes: u64,
    files: Mutex<HashMap<String, Entry>>,
    /// Held by the one who writes.
    pub(crate) writing: tokio::sync::Mutex<()>,
}

impl Disk {
    /// Opens a folder for at most this many bytes of files, and makes it if there is none.
    ///
    /// # Errors
    /// If the folder cannot be read or written.
    pub(crate) fn open(folder: PathBuf, max_bytes: u64) -> io::Result<Disk> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(OWNER_ONLY).create(&folder)?;
        let mut files = HashMap::new();
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let found = entry.metadata()?;
            if name.ends_with(UNFINISHED) {
                // The server was ended while it wrote.
                fs::remove_file(entry.path())?;
            } else if found.is_file() && name.ends_with(&format!(".{EXTENSION}")) {
                let (bytes, used) = (found.len(), found.modified()?);
                files.insert(name, Entry { bytes, used });
            }
        }
        let disk = Disk {
            folder,
            max_bytes,
            files: Mutex::new(files),
            writing: tokio::sync::Mutex::default(),
        };
        disk.free(max_bytes);
        Ok(disk)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn path(&self, name: &Name) -> PathBuf {
        self.folder.join(name.file())
    }

    pub(crate) fn has(&self, name: &Name) -> bool {
        self.files.lock().contains_key(&name.file())
    }

    /// Returns the bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.lock().values().map(|it| it.bytes).sum()
    }

    /// Makes room for a file of this many bytes. Returns whether there is.
    pub(crate) fn make_room(&self, bytes: u64) -> bool {
        let Some(left) = self.max_bytes.checked_sub(bytes) else {
            return false;
        };
        self.free(left);
        statvfs(&self.folder).is_ok_and(|disk| {
            let of_blocks = |count: u64| count.saturating_mul(disk.fragment_size());
            let (free, all) = (of_blocks(disk.blocks_available()), of_blocks(disk.blocks()));
            free.saturating_sub(bytes) >= all / FREE_PART
        })
    }

    /// Deletes the files that were used longest ago, until the others have at most this many bytes.
    fn free(&self, left: u64) {
        let mut files = self.files.lock();
        let mut held: u64 = files.values().map(|it| it.bytes).sum();
        let mut oldest: Vec<_> = files
            .iter()
            .map(|(name, it)| (it.used, name.clone()))
            .collect();
        oldest.sort_unstable();
        for (_, name) in oldest {
            if held <= left {
                return;
            }
            held -= files.remove(&name).map_or(0, |it| it.bytes);
            remove(&self.folder.join(&name));
        }
    }

    /// Adds a file that was written, and deletes those of other versions of the table's file.
    pub(crate) fn add(&self, name: &Name, bytes: u64) {
        let mut files = self.files.lock();
        files.retain(|other, _| {
            let is_old = other.starts_with(&format!("{}-", name.column)) && *other != name.file();
            if is_old {
                remove(&self.folder.join(other));
            }
            !is_old
        });
        let used = SystemTime::now();
        files.insert(name.file(), Entry { bytes, used });
    }

    /// Notes that a file is used, also for the next start of the server.
    pub(crate) fn mark_used(&self, name: &Name) {
        let used = SystemTime::now();
        if let Some(entry) = self.files.lock().get_mut(&name.file()) {
            entry.used = used;
        }
        let marked = File::open(self.path(name)).and_then(|file| file.set_modified(used));
        if let Err(why) = marked {
            tracing::debug!(%why, "the use of a column file is not noted");
        }
    }

    /// Forgets a file that cannot be read until it is written again, or the server starts again.
    pub(crate) fn forget(&self, name: &Name) {
        self.files.lock().remove(&name.file());
    }
}

fn remove(path: &Path) {
    if let Err(why) = fs::remove_file(path) {
        tracing::warn!(%why, file = %path.display(), "a column file is not deleted");
    }
}
