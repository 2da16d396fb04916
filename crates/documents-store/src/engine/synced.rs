//! Syncing the journals while writers proceed, and recording how far they are synced.
//!
//! fjall syncs while it holds its writer's lock. This module syncs through a second file handle, which stays open
//! between syncs. A sync thus needs no new file descriptor, and the kernel reports every failed write-back to this
//! handle.
//!
//! After each sync, the file `synced` records how far the journals are synced. That record itself is not synced. An
//! older record is also correct, because it claims less. Recovery uses the record to distinguish damage from unsynced
//! batches that a power failure left incomplete.

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

/// Name of the file that records the synced position.
const NOTE: &str = "synced";
/// Bytes of the record: number of the journal, length, checksum of both.
const NOTE_BYTES: usize = 24;
/// To find the end of the journal's complete batches, this number of bytes is read first.
const LOOK_BYTES: usize = 16 << 10;

/// A position between two batches of a journal. All earlier journals, and this journal up to `length`, are synced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    /// Number of the journal.
    pub(crate) journal: u64,
    /// Synced bytes of the journal.
    pub(crate) length: u64,
}

impl Position {
    /// Reads the record in a directory. Returns `None` if it is missing or incomplete.
    ///
    /// # Errors
    /// [`StoreError::Io`]. The caller must not ignore this error: without the record, damage to the journal would be
    /// mistaken for the journal's end.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>> {
        match std::fs::read(directory.join(NOTE)) {
            Ok(note) => Ok(Self::decode(&note)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io("read the synced position", error)),
        }
    }

    fn decode(note: &[u8]) -> Option<Self> {
        let note: [u8; NOTE_BYTES] = note.try_into().ok()?;
        let number = |at: usize| note[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        (number(16)? == xxh3_64(&note[..16])).then_some(Self {
            journal: number(0)?,
            length: number(8)?,
        })
    }

    pub(super) fn encode(self) -> [u8; NOTE_BYTES] {
        let mut note = [0; NOTE_BYTES];
        note[..8].copy_from_slice(&self.journal.to_le_bytes());
        note[8..16].copy_from_slice(&self.length.to_le_bytes());
        let checksum = xxh3_64(&note[..16]);
        note[16..].copy_from_slice(&checksum.to_le_bytes());
        note
    }
}

/// Whether a sync has already covered the newest journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Journal {
    Known,
    New,
}

/// Syncs the journal without taking the writer's lock.
pub(crate) struct JournalSync {
    open: Mutex<Open>,
    /// The error of the first sync that failed in the kernel. The kernel marks the failed pages as clean, so no later
    /// sync of this process would prove anything. The next start writes the pages again.
    failure: Mutex<Option<StoreError>>,
}

struct Open {
    path: PathBuf,
    listing: Dir,
    note: File,
    newest: Option<Newest>,
}

/// The newest journal, which takes new batches.
struct Newest {
    id: u64,
    file: File,
    /// End of the batches that are known to be complete.
    whole: u64,
}

impl JournalSync {
    /// Opens the journals of a directory, which are synced up to `synced`.
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

    /// Checks whether syncs may still succeed.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] after a sync that failed in the kernel.
    pub(crate) fn check(&self) -> Result<()> {
        self.failure.lock().as_ref().map_or(Ok(()), |first| {
            Err(StoreError::ReadOnly {
                why: first.to_string(),
            })
        })
    }

    /// Waits until everything written before the call is on disk.
    ///
    /// Only the newest journal can hold unsynced data: fjall syncs a journal before it starts the next one. A sync of a
    /// new journal does not report two kinds of failure: a write error before this module opened the journal, and a
    /// failure of fjall to start the journal. `check_writer` reports both. No sync of a new journal counts until
    /// `check_writer` succeeds.
    ///
    /// # Errors
    /// [`StoreError::Io`] and [`StoreError::DiskFull`]; the next sync may succeed unless this one failed in the kernel.
    /// [`StoreError::ReadOnly`] if no sync can succeed before a restart. The errors of `check_writer`.
    pub(crate) fn sync(&self, check_writer: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut open = self.open.lock();
        self.check()?;
        let journal = open
            .follow()
            .map_err(|error| StoreError::io("open the journal", error))?;
        let synced = open.sync(&self.failure)?;
        if journal == Journal::New
            && let Err(error) = check_writer()
        {
            open.newest = None;
            return Err(error);
        }
        open.take_note(synced);
        Ok(())
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

    /// Syncs the newest journal. Returns how far it is synced, or `None` if there is no journal any more.
    fn sync(&mut self, failure: &Mutex<Option<StoreError>>) -> Result<Option<Position>> {
        let Some(newest) = &mut self.newest else {
            return Ok(None);
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
        Ok(Some(Position {
            journal: newest.id,
            length: whole,
        }))
    }

    fn take_note(&self, synced: Option<Position>) {
        let written = synced.map_or(Ok(()), |synced| self.note.write_all_at(&synced.encode(), 0));
        // A failed write is harmless, because the older record stays correct.
        if let Err(error) = written {
            tracing::debug!(%error, "cannot record how far the journal is synced");
        }
    }

    /// Opens the newest journal if it is not open already.
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
    /// Opens a journal. Returns `None` if fjall has removed it because all of its batches are in synced tables.
    fn open(directory: &Path, id: u64) -> io::Result<Option<Self>> {
        match File::open(directory.join(journal::name_of(id))) {
            Ok(file) => Ok(Some(Self { id, file, whole: 0 })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the current end of the complete batches.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Result<()> {
        Err(StoreError::ReadOnly {
            why: "the writer has failed".to_owned(),
        })
    }

    #[test]
    fn a_new_journal_is_not_noted_as_synced_before_its_writer_is_well() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path();
        let begin = |id| std::fs::write(path.join(journal::name_of(id)), []).expect("writes");
        let noted = || Position::read(path).expect("reads").expect("is noted");
        begin(0);
        let sync = JournalSync::open(path, Position::default()).expect("opens");
        sync.sync(refused).expect("this journal is known");
        begin(1);
        for _ in 0..2 {
            assert!(sync.sync(refused).is_err());
            assert_eq!(noted().journal, 0);
        }
        sync.sync(|| Ok(())).expect("the writer is well");
        assert_eq!(noted().journal, 1);
        sync.sync(refused).expect("this journal is known");
    }

    #[test]
    fn a_note_that_cannot_be_read_is_no_torn_one() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let note = directory.path().join(NOTE);
        assert_eq!(Position::read(directory.path()).expect("reads"), None);
        std::fs::write(&note, [1; NOTE_BYTES]).expect("writes");
        assert_eq!(Position::read(directory.path()).expect("reads"), None);
        std::fs::remove_file(&note).expect("removes");
        std::fs::create_dir(&note).expect("creates");
        assert!(Position::read(directory.path()).is_err());
    }
}
