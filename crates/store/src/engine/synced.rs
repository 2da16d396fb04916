//! Forcing the journals to the disk beside writers, and remembering how far they are there.
//!
//! fjall syncs under the lock of its writer. This module syncs through a handle of its own, which stays open from one sync
//! to the next: a sync then needs no new file descriptor, and the kernel tells it of every failed write-back.
//!
//! How far the journals are on the disk is noted in the file `synced` after each sync. The note itself is never synced: an
//! older one is right too, as it claims less. Recovery takes it to tell damage from what a power failure left of batches
//! that were never synced.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::Dir;
use xxhash_rust::xxh3::xxh3_64;

use super::journal;
use crate::error::{Result, StoreError};

/// Name of the file with the note.
const NOTE: &str = "synced";
/// Number of the journal, length, checksum of both.
const NOTE_BYTES: usize = 24;
/// How much of the journal is read first when looking for the end of its whole batches.
const LOOK_BYTES: usize = 16 << 10;

/// A place between two batches: the journals before it, and this one up to `length`, are on the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    /// Number of the journal.
    pub(crate) journal: u64,
    /// Bytes of it.
    pub(crate) length: u64,
}

impl Position {
    /// Reads the note in a directory; `None` if there is none, or not a whole one.
    pub(crate) fn read(directory: &Path) -> Option<Self> {
        let note = std::fs::read(directory.join(NOTE)).ok()?;
        let note: [u8; NOTE_BYTES] = note.try_into().ok()?;
        let number = |at: usize| note[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        (number(16)? == xxh3_64(&note[..16])).then_some(Self {
            journal: number(0)?,
            length: number(8)?,
        })
    }

    fn encode(self) -> [u8; NOTE_BYTES] {
        let mut note = [0; NOTE_BYTES];
        note[..8].copy_from_slice(&self.journal.to_le_bytes());
        note[8..16].copy_from_slice(&self.length.to_le_bytes());
        let checksum = xxh3_64(&note[..16]);
        note[16..].copy_from_slice(&checksum.to_le_bytes());
        note
    }
}

/// Whether an earlier sync has covered the newest journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Journal {
    Known,
    New,
}

/// Forces the journal to the disk without taking the writer's lock.
pub(crate) struct JournalSync {
    open: Mutex<Open>,
    /// The first sync that failed in the kernel. The kernel counts what it could not write as written, so that no later sync of
    /// this run would prove anything: the next run writes it again.
    failure: Mutex<Option<StoreError>>,
}

struct Open {
    path: PathBuf,
    listing: Dir,
    note: File,
    newest: Option<Newest>,
}

/// The journal that is written to.
struct Newest {
    id: u64,
    file: File,
    /// End of the batches that are known to be whole.
    whole: u64,
}

impl JournalSync {
    /// Opens the journals of a directory, of which everything up to `synced` is on the disk.
    ///
    /// # Errors
    /// [`StoreError::Io`] and [`StoreError::DiskFull`].
    pub(crate) fn open(directory: &Path, synced: Position) -> Result<Self> {
        let open = Open::new(directory, synced)
            .map_err(|error| StoreError::io("open the journal", error))?;
        Ok(Self {
            open: Mutex::new(open),
            failure: Mutex::new(None),
        })
    }

    /// Whether syncs may still succeed.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] after one that the kernel failed to do.
    pub(crate) fn check(&self) -> Result<()> {
        self.failure.lock().as_ref().map_or(Ok(()), |first| {
            Err(StoreError::ReadOnly {
                why: first.to_string(),
            })
        })
    }

    /// Returns when everything handed to the operating system before the call is on the disk.
    ///
    /// Only the newest journal can hold such data: fjall syncs a journal before it starts the next one.
    ///
    /// # Errors
    /// [`StoreError::Io`] and [`StoreError::DiskFull`]: the next sync may succeed if this one did not begin.
    /// [`StoreError::ReadOnly`] if it cannot.
    pub(crate) fn sync(&self) -> Result<Journal> {
        let mut open = self.open.lock();
        self.check()?;
        let journal = open
            .follow()
            .map_err(|error| StoreError::io("open the journal", error))?;
        open.sync(&self.failure)?;
        Ok(journal)
    }
}

impl Open {
    fn new(directory: &Path, synced: Position) -> io::Result<Self> {
        let folder = File::open(directory)?;
        let note = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(directory.join(NOTE))?;
        note.write_all_at(&synced.encode(), 0)?;
        note.sync_all()?;
        folder.sync_all()?;
        let mut open = Self {
            path: directory.to_owned(),
            listing: Dir::new(OwnedFd::from(folder))?,
            note,
            newest: None,
        };
        open.follow()?;
        if let Some(newest) = open
            .newest
            .as_mut()
            .filter(|newest| newest.id == synced.journal)
        {
            newest.whole = synced.length;
        }
        Ok(open)
    }

    fn sync(&mut self, failure: &Mutex<Option<StoreError>>) -> Result<()> {
        let Some(newest) = &mut self.newest else {
            return Ok(());
        };
        let whole = newest
            .find_end()
            .map_err(|error| StoreError::io("read the journal", error))?;
        if let Err(error) = newest.file.sync_data() {
            let error = StoreError::io("sync the journal", error);
            *failure.lock() = Some(error.clone());
            return Err(error);
        }
        newest.whole = whole;
        let synced = Position {
            journal: newest.id,
            length: whole,
        };
        // An older note is right too.
        if let Err(error) = self.note.write_all_at(&synced.encode(), 0) {
            tracing::debug!(%error, "cannot note how far the journal is synced");
        }
        Ok(())
    }

    /// Opens the newest journal unless it is open.
    fn follow(&mut self) -> io::Result<Journal> {
        let id = self.newest_id()?;
        if id == self.newest.as_ref().map(|newest| newest.id) {
            return Ok(Journal::Known);
        }
        self.newest = match id {
            Some(id) => Newest::open(&self.path, id)?,
            None => None,
        };
        Ok(Journal::New)
    }

    fn newest_id(&mut self) -> io::Result<Option<u64>> {
        self.listing.rewind();
        let mut newest = None;
        while let Some(entry) = self.listing.read() {
            let id = entry?.file_name().to_str().ok().and_then(journal::id_of);
            newest = newest.max(id);
        }
        Ok(newest)
    }
}

impl Newest {
    /// Opens a journal, unless it was evicted meanwhile: then all of it is in synced tables.
    fn open(directory: &Path, id: u64) -> io::Result<Option<Self>> {
        match File::open(directory.join(journal::name_of(id))) {
            Ok(file) => Ok(Some(Self { id, file, whole: 0 })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Where the whole batches end that are in the hands of the operating system now.
    fn find_end(&self) -> io::Result<u64> {
        let mut end = self.whole;
        let mut look_bytes = LOOK_BYTES;
        loop {
            let mut bytes = vec![0; look_bytes];
            let read = read_at(&self.file, &mut bytes, end)?;
            let whole = journal::whole_batches(&bytes[..read]);
            end += whole as u64;
            if read < look_bytes || !journal::may_go_on(&bytes[whole..read]) {
                return Ok(end);
            }
            if whole == 0 {
                look_bytes *= 2;
            }
        }
    }
}

/// Reads until the buffer is full or the file ends.
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], at + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}
