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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use datafusion::DATAFUSION_VERSION;
use nix::sys::statvfs::statvfs;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::column_file::{Place, UNFINISHED, Unusable, Writer};
use crate::columns::ColumnKey;
use crate::halves::Half;
use crate::load::RANGE_BYTES;
use crate::packed::CHUNK_ROWS;
use crate::texts::Texts;

/// Version of what is packed: another if the same values give other numbers.
const PACKING: u32 = 1;
/// Files that were used within this time are not deleted for others.
const USED_LATELY: Duration = Duration::from_secs(600);
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
    /// Returns the name of the file of a column, or of a half of one. Returns `None` if something else is computed of
    /// it, or the table is versioned: the numbers of versions begin again when the server starts.
    pub(crate) fn of(key: &ColumnKey) -> Option<Name> {
        if key.is_of_version() {
            return None;
        }
        let (mut column, version) = key.texts();
        if let Some(computed) = &key.computed {
            column += Half::name_of(computed)?;
        }
        // A file is packed in ranges and chunks, which all its columns share.
        // What is packed depends on the program, too.
        let program = [env!("CARGO_PKG_VERSION"), DATAFUSION_VERSION];
        let key = format!("{column} {version} {RANGE_BYTES} {CHUNK_ROWS} {PACKING} {program:?}");
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

/// Returns the first 64 bits of the SHA-256 of a text, as hexadecimal digits.
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
    held: Weak<HeldFile>,
}

/// A file that is not deleted while queries read it.
#[derive(Debug)]
pub(crate) struct HeldFile {
    pub(crate) name: Name,
    pub(crate) path: PathBuf,
    /// Whether it could not be read.
    pub(crate) is_unusable: AtomicBool,
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
            if found.is_file() && name.starts_with(UNFINISHED) {
                // The server was ended while it wrote.
                remove(&entry.path());
            } else if found.is_file() && name.ends_with(&format!(".{EXTENSION}")) {
                let (bytes, used, held) = (found.len(), found.modified()?, Weak::new());
                files.insert(name, Entry { bytes, used, held });
            }
        }
        let disk = Disk {
            folder,
            max_bytes,
            files: Mutex::new(files),
            writing: tokio::sync::Mutex::default(),
        };
        disk.free(max_bytes, 0, Duration::ZERO);
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

    /// Makes room for a file of this many bytes. Returns whether there is. Blocks.
    pub(crate) fn make_room(&self, bytes: u64) -> bool {
        let left = self.max_bytes.checked_sub(bytes);
        left.is_some_and(|left| self.free(left, bytes, USED_LATELY))
    }

    /// Deletes the files that were used longest ago, until the others have at most `left` bytes, and the file system
    /// has room for `wanted`; but none that queries read, or that were used `lately`. Returns whether there is room.
    fn free(&self, left: u64, wanted: u64, lately: Duration) -> bool {
        let now = SystemTime::now();
        let mut victims = Vec::new();
        let has_room = {
            let mut files = self.files.lock();
            let mut held: u64 = files.values().map(|it| it.bytes).sum();
            let mut missing = wanted.saturating_sub(self.available_bytes());
            // A time to come is that of a clock that was set back.
            let age = |it: &Entry| now.duration_since(it.used).unwrap_or(Duration::MAX);
            let is_old = |it: &Entry| age(it) >= lately && it.held.strong_count() == 0;
            let old = files.iter().filter(|(_, it)| is_old(it));
            let mut oldest: Vec<_> = old.map(|(name, it)| (it.used, name.clone())).collect();
            oldest.sort_unstable();
            for (_, name) in oldest {
                if held <= left && missing == 0 {
                    break;
                }
                let freed = files.remove(&name).map_or(0, |it| it.bytes);
                (held, missing) = (held - freed, missing.saturating_sub(freed));
                victims.push(name);
            }
            held <= left && missing == 0
        };
        let victims = victims.into_iter().map(|name| self.folder.join(name));
        victims.for_each(|path| remove(&path));
        has_room
    }

    /// Returns the bytes of the file system that column files may take.
    fn available_bytes(&self) -> u64 {
        statvfs(&self.folder).map_or(0, |disk| {
            let of_blocks = |count: u64| count.saturating_mul(disk.fragment_size());
            let (free, all) = (of_blocks(disk.blocks_available()), of_blocks(disk.blocks()));
            free.saturating_sub(all / FREE_PART)
        })
    }

    /// Adds a file that was written, and deletes those of other versions of the table's file. Blocks.
    fn add(&self, name: &Name, bytes: u64) {
        let (file, column) = (name.file(), format!("{}-", name.column));
        let (used, held) = (SystemTime::now(), Weak::new());
        let old: Vec<String> = {
            let mut files = self.files.lock();
            files.insert(file.clone(), Entry { bytes, used, held });
            let is_old = |name: &String, _: &mut Entry| name.starts_with(&column) && *name != file;
            files.extract_if(is_old).map(|(name, _)| name).collect()
        };
        old.iter().for_each(|name| remove(&self.folder.join(name)));
    }

    /// Finishes a file, and adds it. Returns where its chunks are. Blocks.
    ///
    /// # Errors
    /// If the disk is full, or fails.
    pub(crate) fn finish(
        &self,
        writer: Writer,
        name: &Name,
        texts: &Texts,
    ) -> io::Result<Vec<Place>> {
        let (bytes, places) = writer.finish(name.key.clone(), texts, &self.path(name))?;
        self.add(name, bytes);
        Ok(places)
    }

    /// Returns a file, which is not deleted to make room until the result is dropped.
    pub(crate) fn hold(&self, name: &Name) -> Arc<HeldFile> {
        let mut files = self.files.lock();
        let entry = files.get_mut(&name.file());
        let held = entry.as_ref().and_then(|it| it.held.upgrade());
        if let Some(held) = held.filter(|it| !it.is_unusable.load(Ordering::Relaxed)) {
            return held;
        }
        let held = Arc::new(HeldFile {
            name: name.clone(),
            path: self.path(name),
            is_unusable: AtomicBool::new(false),
        });
        if let Some(entry) = entry {
            entry.held = Arc::downgrade(&held);
        }
        held
    }

    /// Notes that a file is used, also for the next start of the server. Blocks.
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

    /// Marks a file that could not be read, so that the column is read from the table. One that is damaged is deleted,
    /// and written again.
    pub(crate) fn forget(&self, file: &Arc<HeldFile>, why: &Unusable) {
        tracing::warn!(%why, file = %file.path.display(), "a column file is not read");
        file.is_unusable.store(true, Ordering::Relaxed);
        let is_gone = matches!(why, Unusable::Io(error) if error.kind() == io::ErrorKind::NotFound);
        if !is_gone && !matches!(why, Unusable::Damaged) {
            return;
        }
        let mut files = self.files.lock();
        let entry = files.get(&file.name.file());
        // It may have been written again meanwhile.
        if entry.is_some_and(|it| it.held.ptr_eq(&Arc::downgrade(file))) {
            files.remove(&file.name.file());
            if !is_gone {
                remove(&file.path);
            }
        }
    }
}

fn remove(path: &Path) {
    if let Err(why) = fs::remove_file(path) {
        tracing::warn!(%why, file = %path.display(), "a column file is not deleted");
    }
}
