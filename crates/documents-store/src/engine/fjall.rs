//! The engine on disk: fjall, a log-structured merge tree a partition and one journal for all.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fjall::config::{BlockSizePolicy, CompressionPolicy};
use fjall::{
    AbstractTree, CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode,
};
use parking_lot::{Mutex, RwLock};

use super::journal::Dropped;
use super::{
    Batch, Bytes, Direction, Engine, KeyRange, Page, PageLimit, Partition, PartitionId,
    PartitionKind, archive, creation, journal, manifest, synced,
};
use crate::error::{Result, StoreError};
use crate::options::StoreOptions;

/// Documents are scanned more than looked up: larger blocks compress better.
const RECORD_BLOCK_BYTES: u32 = 16 << 10;
/// Index entries are looked up one by one.
const INDEX_BLOCK_BYTES: u32 = 4 << 10;
/// The catalogue is small, and its few hot keys are rewritten by every batch.
const CATALOGUE_BUFFER_BYTES: u64 = 4 << 20;
/// The smallest journal limit that fjall takes.
const JOURNAL_BYTES_MIN: u64 = 64 << 20;

/// Write buffers of one partition that may wait to be written out. fjall itself stops writers at 4, in a loop that no
/// failure ends.
const SEALED_BUFFERS_MAX: usize = 3;
/// Runs of new tables of one partition that may wait to be merged. fjall itself stops writers at 30, likewise.
const NEW_RUNS_MAX: usize = 24;
/// How often a writer that waits for background work looks again.
const THROTTLE_STEP: Duration = Duration::from_millis(2);
/// Threads that write buffers out and merge tables. More than one would be wrong: a thread ends at its first failure, and
/// another one would write the manifest of the failed attempt again, in place.
///
/// PERF: `examples/bulk.rs 1500000 random 2`, two cores: 11.4 and 15.0 us a document with two threads, 11.9 and 12.6 with one.
const BACKGROUND_THREADS: usize = 1;
/// What a probe for free space writes.
const PROBE_BYTES: usize = 1 << 20;

/// A dropped partition below this, and without tables, is emptied by removing its entries.
const SMALL_TREE: PageLimit = PageLimit {
    entries: 1_000,
    bytes: 1 << 20,
};
/// Empty trees to keep for new partitions.
const SPARES_MAX: usize = 32;

/// The folder of the partitions, in that of the tables.
const PARTITIONS: &str = "keyspaces";
/// The folder of the tree that lists the partitions, in theirs.
pub(crate) const LIST: &str = "0";

/// What an operator can do about damaged files.
pub(crate) const REMEDY: &str =
    "restore the data directory from a backup, or start on an empty one and import again";

/// A store of partitions in one directory.
pub struct FjallEngine {
    directory: PathBuf,
    database: Database,
    write_buffer_bytes: u64,
    /// Holds up a writer that is ahead of the background work.
    pause: fn(Duration),
    partitions: RwLock<Partitions>,
    journal: synced::JournalSync,
    dropped: Dropped,
    /// The first failed write: none is taken after it.
    write_failure: Mutex<Option<StoreError>>,
    /// Held while the list of partitions changes.
    list: Mutex<List>,
}

/// What is known of the manifest of fjall's list of partitions.
#[derive(Default)]
struct List {
    /// The number that its manifest had before it was set aside, if it is.
    aside: Option<u64>,
    /// Why the list must not change any more in this run, if so.
    failure: Option<StoreError>,
}

impl List {
    /// Sets the manifest aside after a change that may have left it to be written again in place.
    fn keep_safe(&mut self, folder: &Path, before: u64, is_changed: bool) -> Result<()> {
        let number = manifest::number(folder)?;
        if number == before {
            return Ok(());
        }
        // A change takes one number, and a merge another one. If a manifest was set aside, fjall may have taken it for not
        // written: then its number comes again.
        let unmerged = self.aside.take().unwrap_or(before + 1);
        if !is_changed || number != unmerged {
            manifest::set_aside(folder)?;
            self.aside = Some(number);
        }
        Ok(())
    }
}

/// The open partitions. A dropped one is emptied and kept as a spare: making and deleting a tree takes dozens of syncs.
#[derive(Default)]
struct Partitions {
    next_id: u32,
    names: HashMap<String, PartitionId>,
    keyspaces: HashMap<PartitionId, Keyspace>,
    spares: Vec<Keyspace>,
}

impl Partitions {
    fn add(&mut self, keyspace: Keyspace) -> Partition {
        let id = PartitionId(self.next_id);
        let name = keyspace.name().to_string();
        self.next_id += 1;
        self.names.insert(name.clone(), id);
        self.keyspaces.insert(id, keyspace);
        Partition { id, name }
    }

    fn keyspace(&self, partition: PartitionId) -> Result<&Keyspace> {
        self.keyspaces
            .get(&partition)
            .ok_or(StoreError::PartitionDropped)
    }

    fn spare(&mut self, kind: PartitionKind) -> Option<Keyspace> {
        let at = self
            .spares
            .iter()
            .position(|spare| spare.name().starts_with(letter(kind)))?;
        Some(self.spares.swap_remove(at))
    }
}

/// The first letter of the names of partitions of a kind.
fn letter(kind: PartitionKind) -> &'static str {
    match kind {
        PartitionKind::Records => "r",
        PartitionKind::Index => "i",
        PartitionKind::Catalogue => "c",
        PartitionKind::History => "h",
    }
}

impl FjallEngine {
    /// Opens or creates the tables in `directory`, checking the journals first.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for damaged files, [`StoreError::DiskFull`] and [`StoreError::Io`] as they come.
    pub fn open(directory: &Path, options: &StoreOptions) -> Result<Self> {
        let partitions = directory.join(PARTITIONS);
        creation::finish(directory, &partitions)?;
        check_names(directory)?;
        manifest::check(&partitions)?;
        archive::check(&partitions)?;
        let list_sequence = manifest::list_sequence(&partitions)?;
        let journals = journal::check(directory)?;
        let database = open_database(directory, options)?;
        check_tables(directory, &database, journals)?;
        // fjall counts on from the highest number in its tables, which may be lower than that of a batch to a
        // partition that is gone. Numbers that only rise are what tells a damaged one in a journal.
        database
            .supervisor
            .seqno
            .fetch_max(journals.last_sequence.max(list_sequence) + 1);
        // fjall syncs folders, but not that they are in theirs.
        sync_folder(&partitions)?;
        journals.dropped.report();
        Ok(Self {
            database,
            directory: directory.to_owned(),
            write_buffer_bytes: options.write_buffer_bytes,
            pause: options.pause,
            partitions: RwLock::default(),
            journal: synced::JournalSync::open(directory, journals.synced)?,
            dropped: journals.dropped,
            write_failure: Mutex::new(None),
            list: Mutex::default(),
        })
    }

    /// What opening dropped of the journal.
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    fn keyspace_options(&self, kind: PartitionKind) -> KeyspaceCreateOptions {
        let (block_bytes, buffer_bytes) = match kind {
            PartitionKind::Records | PartitionKind::History => {
                (RECORD_BLOCK_BYTES, self.write_buffer_bytes)
            }
            PartitionKind::Index => (INDEX_BLOCK_BYTES, self.write_buffer_bytes),
            PartitionKind::Catalogue => (INDEX_BLOCK_BYTES, CATALOGUE_BUFFER_BYTES),
        };
        KeyspaceCreateOptions::default()
            .data_block_size_policy(BlockSizePolicy::all(block_bytes))
            .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
            .max_memtable_size(buffer_bytes)
    }

    fn failed(&self, action: &'static str, error: fjall::Error) -> StoreError {
        translate(&self.directory, action, error)
    }

    /// Translates the error of a write and remembers the first, after which fjall takes no more.
    fn write_failed(&self, action: &'static str, error: fjall::Error) -> StoreError {
        if matches!(error, fjall::Error::Poisoned) {
            return self.refused();
        }
        let error = self.failed(action, error);
        self.write_failure
            .lock()
            .get_or_insert_with(|| error.clone());
        error
    }

    /// Why no writes are taken: the disk is full still, or something failed.
    fn refused(&self) -> StoreError {
        if let Err(error @ StoreError::DiskFull { .. }) = self.probe() {
            return error;
        }
        let first = self.write_failure.lock().clone();
        StoreError::ReadOnly {
            why: first.map_or_else(
                || "writing tables failed".to_owned(),
                |first| first.to_string(),
            ),
        }
    }

    /// Tries if the disk takes a file.
    fn probe(&self) -> Result<()> {
        let file = self.directory.join("probe");
        let written = std::fs::write(&file, vec![1; PROBE_BYTES]);
        let removed = std::fs::remove_file(&file);
        written
            .and(removed)
            .map_err(|error| StoreError::io("write a probe", error))
    }

    /// Lets background work catch up with the partitions of a batch, as long as there is hope that it does.
    fn throttle(&self, keyspaces: &[Keyspace]) -> Result<()> {
        let behind = |keyspace: &Keyspace| {
            keyspace.tree.sealed_memtable_count() >= SEALED_BUFFERS_MAX
                || keyspace.tree.l0_run_count() >= NEW_RUNS_MAX
        };
        while keyspaces.iter().any(behind) {
            self.check_background()?;
            (self.pause)(THROTTLE_STEP);
        }
        Ok(())
    }

    /// Asks if the background threads are well; writes nothing.
    fn check_background(&self) -> Result<()> {
        let well = self.database.persist(PersistMode::Buffer);
        well.map_err(|error| self.write_failed("write tables", error))
    }

    fn open_keyspace(&self, name: &str, kind: PartitionKind) -> Result<Keyspace> {
        let keyspace = self.change_list("create a partition", || {
            self.database.keyspace(name, || self.keyspace_options(kind))
        })?;
        // fjall syncs the folder of a partition, but not that it is in its own.
        sync_folder(&self.directory.join(PARTITIONS))?;
        Ok(keyspace)
    }

    /// Creates or deletes a partition. None is created or deleted after a failure of the background thread.
    ///
    /// fjall lists the partitions in a tree of its own, whose manifest it may write again in place after a failure: that of a
    /// merge of this tree, which it does not report, included. So the manifest that counts is set aside where it may be the
    /// one of a failed attempt: after an error, and after a merge.
    fn change_list<T>(
        &self,
        action: &'static str,
        change: impl FnOnce() -> fjall::Result<T>,
    ) -> Result<T> {
        let mut list = self.list.lock();
        if let Some(first) = &list.failure {
            return Err(StoreError::ReadOnly {
                why: first.to_string(),
            });
        }
        self.check_background()?;
        let folder = self.directory.join(PARTITIONS).join(LIST);
        let before = manifest::number(&folder)?;
        let changed = change().map_err(|error| self.write_failed(action, error));
        if let Err(error) = list.keep_safe(&folder, before, changed.is_ok()) {
            tracing::error!(%error, "no partition is created or deleted before a restart");
            list.failure = Some(error);
        }
        changed
    }

    /// A name that no partition has.
    fn free_name(&self, kind: PartitionKind) -> String {
        let number = self.database.keyspace_count();
        let names = (number..).map(|number| format!("{}{number}", letter(kind)));
        names
            .into_iter()
            .find(|name| !self.database.keyspace_exists(name))
            .expect("numbers do not end")
    }

    /// Frees a tree: a small one is emptied by a batch, which takes no sync, and kept as a spare; others are deleted.
    fn recycle(&self, keyspace: Keyspace) -> Result<()> {
        let room = self.partitions.read().spares.len() < SPARES_MAX;
        match self.small_contents(&keyspace)? {
            Some(entries) if room => {
                self.remove_all(&keyspace, entries)?;
                self.partitions.write().spares.push(keyspace);
                Ok(())
            }
            _ => self.delete(keyspace),
        }
    }

    /// All entries of a tree, unless there are many or some are in tables or on the way there.
    fn small_contents(&self, keyspace: &Keyspace) -> Result<Option<Page>> {
        if keyspace.disk_space() > 0 || keyspace.tree.sealed_memtable_count() > 0 {
            return Ok(None);
        }
        let entries = take_page(keyspace.iter(), SMALL_TREE)
            .map_err(|error| self.failed("empty a partition", error))?;
        let bytes: usize = entries
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        Ok((entries.len() < SMALL_TREE.entries && bytes < SMALL_TREE.bytes).then_some(entries))
    }

    fn remove_all(&self, keyspace: &Keyspace, entries: Page) -> Result<()> {
        let mut writes = self.database.batch();
        for (key, _) in entries {
            writes.remove(keyspace, key);
        }
        writes
            .commit()
            .map_err(|error| self.write_failed("empty a partition", error))
    }

    fn delete(&self, keyspace: Keyspace) -> Result<()> {
        // Files go at once: what let them go must be on the disk before.
        self.sync()?;
        self.change_list("delete a partition", || {
            self.database.delete_keyspace(keyspace)
        })
    }

    /// A batch as fjall takes it, and the partitions it touches.
    fn prepare(&self, batch: Batch) -> (fjall::OwnedWriteBatch, Vec<Keyspace>) {
        let mut writes =
            fjall::OwnedWriteBatch::with_capacity(self.database.clone(), batch.writes.len())
                .durability(Some(PersistMode::Buffer));
        let partitions = self.partitions.read();
        let mut touched: Vec<PartitionId> = Vec::new();
        for write in batch.writes {
            let Some(keyspace) = partitions.keyspaces.get(&write.partition) else {
                continue;
            };
            if !touched.contains(&write.partition) {
                touched.push(write.partition);
            }
            match write.value {
                Some(value) => writes.insert(keyspace, write.key, value),
                None => writes.remove(keyspace, write.key),
            }
        }
        let keyspaces = touched
            .iter()
            .filter_map(|partition| partitions.keyspaces.get(partition).cloned());
        (writes, keyspaces.collect())
    }
}

/// Opens the database. fjall asserts on some kinds of damage, so a panic is an answer too.
fn open_database(directory: &Path, options: &StoreOptions) -> Result<Database> {
    let builder = Database::builder(directory)
        .cache_size(options.cache_bytes)
        .worker_threads(BACKGROUND_THREADS)
        .max_journaling_size(options.journal_bytes_max.max(JOURNAL_BYTES_MIN))
        // A damaged compressed value would end recovery in silence; the checksum of a batch is only over plain ones.
        .journal_compression(CompressionType::None)
        .manual_journal_persist(false);
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.open())) {
        Ok(opened) => opened.map_err(|error| translate(directory, "open the tables", error)),
        Err(_) => Err(corrupt(
            directory,
            "its tables do not fit together".to_owned(),
        )),
    }
}

fn sync_folder(folder: &Path) -> Result<()> {
    crate::directory::sync(folder).map_err(|error| StoreError::io("sync a folder", error))
}

/// Checks that the tree with the names of all trees is there, because fjall deletes trees without a name.
fn check_names(directory: &Path) -> Result<()> {
    let trees = directory.join(PARTITIONS);
    let names = trees.join(LIST);
    let entries = match std::fs::read_dir(&trees) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(StoreError::io("list the partitions", error)),
    };
    let others = entries.flatten().any(|entry| entry.path() != names);
    if others && !names.join("current").exists() {
        return Err(corrupt(
            &names,
            "the list of partitions is missing".to_owned(),
        ));
    }
    Ok(())
}

/// Checks that no table is newer than the journals, which would have lost their end otherwise.
fn check_tables(directory: &Path, database: &Database, journals: journal::Journals) -> Result<()> {
    for name in database.list_keyspace_names() {
        let opened = database.keyspace(&name, KeyspaceCreateOptions::default);
        let keyspace = opened.map_err(|error| translate(directory, "open a partition", error))?;
        let newest = keyspace.tree.get_highest_persisted_seqno();
        if newest.is_some_and(|newest| !journals.fit(newest)) {
            return Err(corrupt(
                directory,
                "the journal ends before the tables do".to_owned(),
            ));
        }
    }
    Ok(())
}

fn corrupt(file: &Path, why: String) -> StoreError {
    StoreError::Corrupt {
        file: file.to_owned(),
        why,
        remedy: REMEDY,
    }
}

fn translate(directory: &Path, action: &'static str, error: fjall::Error) -> StoreError {
    match error {
        fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source)) => {
            io_error(directory, action, source)
        }
        fjall::Error::Poisoned => StoreError::ReadOnly {
            why: "an earlier write failed".to_owned(),
        },
        fjall::Error::Locked => StoreError::Locked {
            directory: directory.to_owned(),
            process: None,
        },
        fjall::Error::InvalidVersion(version) => StoreError::UnknownFormat {
            file: directory.join("version"),
            why: format!("table format {version:?}"),
        },
        other => corrupt(directory, other.to_string()),
    }
}

/// Files that end too early or are gone are damage, not trouble with the device.
fn io_error(directory: &Path, action: &'static str, source: io::Error) -> StoreError {
    use io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};
    match source.kind() {
        InvalidData | NotFound | UnexpectedEof => corrupt(directory, source.to_string()),
        _ => StoreError::io(action, source),
    }
}

impl Engine for FjallEngine {
    fn create_partition(&self, kind: PartitionKind) -> Result<Partition> {
        let mut partitions = self.partitions.write();
        let keyspace = match partitions.spare(kind) {
            Some(spare) => spare,
            None => self.open_keyspace(&self.free_name(kind), kind)?,
        };
        Ok(partitions.add(keyspace))
    }

    fn open_partition(&self, name: &str, kind: PartitionKind) -> Result<Partition> {
        let mut partitions = self.partitions.write();
        if let Some(id) = partitions.names.get(name).copied() {
            return Ok(Partition {
                id,
                name: name.to_owned(),
            });
        }
        let keyspace = self.open_keyspace(name, kind)?;
        Ok(partitions.add(keyspace))
    }

    fn existing_partition(&self, name: &str) -> Result<Option<Partition>> {
        if !self.database.keyspace_exists(name) {
            return Ok(None);
        }
        // The kind counts for new trees only.
        self.open_partition(name, PartitionKind::Index).map(Some)
    }

    fn drop_partition(&self, partition: PartitionId) -> Result<()> {
        // Readers hold the lock for a page at most: none sees what a next user of the tree writes.
        let keyspace = {
            let mut partitions = self.partitions.write();
            partitions.names.retain(|_, id| *id != partition);
            partitions.keyspaces.remove(&partition)
        };
        keyspace.map_or(Ok(()), |keyspace| self.recycle(keyspace))
    }

    fn has_other_partitions(&self, name: &str) -> bool {
        self.database
            .list_keyspace_names()
            .iter()
            .any(|other| **other != *name)
    }

    fn retain_partitions(&self, names: &HashSet<String>) -> Result<()> {
        let known = self.database.list_keyspace_names();
        for name in known.iter().filter(|name| !names.contains(&***name)) {
            // The kind counts for new trees only.
            self.recycle(self.open_keyspace(name, PartitionKind::Index)?)?;
        }
        Ok(())
    }

    fn get(&self, partition: PartitionId, key: &[u8]) -> Result<Option<Bytes>> {
        let partitions = self.partitions.read();
        partitions
            .keyspace(partition)?
            .get(key)
            .map_err(|error| self.failed("read a key", error))
    }

    fn page(
        &self,
        partition: PartitionId,
        range: &KeyRange,
        direction: Direction,
        limit: PageLimit,
    ) -> Result<Page> {
        let partitions = self.partitions.read();
        let keyspace = partitions.keyspace(partition)?;
        if range.is_empty() {
            return Ok(Page::new());
        }
        let end = range
            .end
            .as_deref()
            .map_or(Bound::Unbounded, Bound::Excluded);
        let entries = keyspace.range::<&[u8], _>((Bound::Included(range.start.as_slice()), end));
        let page = match direction {
            Direction::Forward => take_page(entries, limit),
            Direction::Backward => take_page(entries.rev(), limit),
        };
        page.map_err(|error| self.failed("read a page", error))
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        self.journal.check()?;
        let (writes, keyspaces) = self.prepare(batch);
        self.throttle(&keyspaces)?;
        writes
            .commit()
            .map_err(|error| self.write_failed("write a batch", error))
    }

    fn check_writable(&self) -> Result<()> {
        self.journal.check()?;
        self.check_background()
    }

    fn sync(&self) -> Result<()> {
        self.journal.sync(|| self.check_background())
    }

    fn bytes(&self, partition: PartitionId) -> u64 {
        self.partitions
            .read()
            .keyspaces
            .get(&partition)
            .map_or(0, |keyspace| keyspace.disk_space())
    }
}

fn take_page(entries: impl Iterator<Item = fjall::Guard>, limit: PageLimit) -> fjall::Result<Page> {
    let mut page = Page::new();
    let mut bytes = 0;
    for entry in entries.take(limit.entries) {
        let (key, value) = entry.into_inner()?;
        bytes += key.len() + value.len();
        page.push((key, value));
        if bytes >= limit.bytes {
            break;
        }
    }
    Ok(page)
}
