//! The engine on disk: fjall, with an LSM tree for each partition and one journal for all partitions.

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
    PartitionKind, archive, buffers, creation, journal, manifest, sealing, synced,
};
use crate::error::{Result, StoreError};
use crate::options::StoreOptions;

/// Block size of document tables. Documents are scanned more often than looked up, and larger blocks compress better.
const RECORD_BLOCK_BYTES: u32 = 16 << 10;
/// Block size of index tables, whose entries are looked up one by one.
const INDEX_BLOCK_BYTES: u32 = 4 << 10;
/// Write buffer size of the catalogue. The catalogue is small, and every batch rewrites a few of its keys.
const CATALOGUE_BUFFER_BYTES: u64 = 4 << 20;
/// The lowest journal limit that fjall accepts.
const JOURNAL_BYTES_MIN: u64 = 64 << 20;

/// Maximum number of level-0 runs of a partition that wait for compaction. fjall itself stops writers at 30.
const NEW_RUNS_MAX: usize = 24;
/// Interval at which a writer that waits for the background thread checks again.
const THROTTLE_STEP: Duration = Duration::from_millis(2);
/// Number of threads that flush write buffers and compact tables. More than one would be wrong: a thread ends at its
/// first failure, and another thread would then overwrite the manifest of the failed attempt (see [`manifest`]).
///
/// PERF: `examples/bulk.rs 2500000 random 3`, two shared cores, November 2026: 17.3, 15.7 and 16.1 us per document with
/// one thread, 16.6, 17.5 and 17.0 us with two.
const BACKGROUND_THREADS: usize = 1;
/// Bytes written to check that the disk is not full.
const PROBE_BYTES: usize = 1 << 20;

/// If a dropped partition is below these limits and has no tables, its entries are removed and the partition is reused.
const SMALL_TREE: PageLimit = PageLimit {
    entries: 1_000,
    bytes: 1 << 20,
};
/// Minimum size of a dropped tree whose disk space is freed at once. Freeing it at once requires a flush of all write
/// buffers.
const LARGE_TREE_BYTES: u64 = 16 << 20;
/// Maximum number of empty trees that are kept for reuse by new partitions.
const SPARES_MAX: usize = 32;

/// Folder of the partitions, within the folder of the tables.
const PARTITIONS: &str = "keyspaces";
/// Folder of the tree that lists the partitions, within the folder of the partitions.
pub(crate) const LIST: &str = "0";

/// Advice to the operator about damaged files.
pub(crate) const REMEDY: &str =
    "restore a backup of the data directory, or import again into an empty data directory";

/// An engine that stores its partitions in one directory.
pub struct FjallEngine {
    directory: PathBuf,
    database: Database,
    write_buffer_bytes: u64,
    buffers: buffers::Buffers,
    sealing: sealing::Sealing,
    /// Sleeps for the duration. Called by a writer that outruns the background thread.
    pause: fn(Duration),
    partitions: RwLock<Partitions>,
    journal: synced::JournalSync,
    dropped: Dropped,
    /// Error of the first write that failed. After a failed write, all writes are refused.
    write_failure: Mutex<Option<StoreError>>,
    /// Locked while the list of partitions is changed.
    list: Mutex<List>,
}

/// State of fjall's tree that lists the partitions.
#[derive(Default)]
struct List {
    /// Former number of the list's manifest, if the manifest was moved to another number.
    aside: Option<u64>,
    /// The failure after which the list must not change until a restart.
    failure: Option<StoreError>,
}

impl List {
    /// Called after a change of the list. Moves the list's manifest to another number if fjall might overwrite it.
    fn keep_safe(&mut self, folder: &Path, before: u64, is_changed: bool) -> Result<()> {
        let number = manifest::number(folder)?;
        if number == before {
            return Ok(());
        }
        // A change uses the next manifest number, and a compaction of the list uses the one after that. If the manifest
        // was moved to another number before, fjall may instead use the manifest's former number again.
        let unmerged = self.aside.take().unwrap_or(before + 1);
        if !is_changed || number != unmerged {
            manifest::set_aside(folder)?;
            self.aside = Some(number);
        }
        Ok(())
    }
}

/// The open partitions. A small partition that is dropped is emptied and kept as a spare, because creating and deleting
/// a tree takes dozens of syncs.
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

/// Returns the letter with which the name of each partition of this kind begins.
fn letter(kind: PartitionKind) -> &'static str {
    match kind {
        PartitionKind::Records => "r",
        PartitionKind::Index => "i",
        PartitionKind::Catalogue => "c",
        PartitionKind::History => "h",
    }
}

/// Logs and records the failure after which fjall refuses all writes, unless one is recorded. Returns the recorded one.
fn record_failure(
    first: &mut Option<StoreError>,
    error: impl FnOnce() -> StoreError,
) -> &StoreError {
    first.get_or_insert_with(|| {
        let error = error();
        tracing::error!(%error, "a write failed: writes are refused until a restart");
        error
    })
}

impl FjallEngine {
    /// Opens or creates the tables in `directory`. Checks the journals first.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for damaged files, [`StoreError::DiskFull`] and [`StoreError::Io`].
    pub fn open(directory: &Path, options: &StoreOptions) -> Result<Self> {
        let partitions = directory.join(PARTITIONS);
        creation::finish(directory, &partitions)?;
        check_names(directory)?;
        archive::check(&partitions)?;
        manifest::check(&partitions)?;
        let list_sequence = manifest::list_sequence(&partitions)?;
        let journals = journal::check(directory)?;
        let database = open_database(directory, options)?;
        check_tables(directory, &database, journals)?;
        // Sequence numbers must only rise. fjall continues from the highest sequence number in the partitions' tables.
        // A batch for a dropped partition, or an entry of the list of partitions, may have a higher number, so raise
        // fjall's counter above both.
        database
            .supervisor
            .seqno
            .fetch_max(journals.last_sequence.max(list_sequence) + 1);
        // fjall syncs the content of the partitions' folders, but not their directory entries.
        sync_folder(&partitions)?;
        journals.dropped.report();
        Ok(Self {
            database,
            directory: directory.to_owned(),
            write_buffer_bytes: options.write_buffer_bytes,
            buffers: buffers::Buffers::new(options.write_buffers_bytes_max),
            sealing: sealing::Sealing::default(),
            pause: options.pause,
            partitions: RwLock::default(),
            journal: synced::JournalSync::open(directory, journals.synced)?,
            dropped: journals.dropped,
            write_failure: Mutex::new(None),
            list: Mutex::default(),
        })
    }

    /// Returns the size of the unsynced end that was cut off the journal when it was opened.
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    #[cfg(test)]
    pub(super) fn buffers(&self) -> &buffers::Buffers {
        &self.buffers
    }

    #[cfg(test)]
    pub(super) fn database(&self) -> &Database {
        &self.database
    }

    fn keyspace_options(&self, kind: PartitionKind) -> KeyspaceCreateOptions {
        let block_bytes = match kind {
            PartitionKind::Records | PartitionKind::History => RECORD_BLOCK_BYTES,
            PartitionKind::Index | PartitionKind::Catalogue => INDEX_BLOCK_BYTES,
        };
        // Twice the size at which writers seal the buffer, so that fjall itself never seals it.
        let asked_bytes = self.buffer_bytes(letter(kind)).saturating_mul(2);
        KeyspaceCreateOptions::default()
            .data_block_size_policy(BlockSizePolicy::all(block_bytes))
            .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
            .max_memtable_size(asked_bytes)
    }

    /// Returns the size in bytes above which the write buffer of this partition is sealed.
    fn buffer_bytes(&self, name: &str) -> u64 {
        if name.starts_with(letter(PartitionKind::Catalogue)) {
            CATALOGUE_BUFFER_BYTES
        } else {
            self.write_buffer_bytes
        }
    }

    fn failed(&self, action: &'static str, error: fjall::Error) -> StoreError {
        translate(&self.directory, action, error)
    }

    /// Translates the error of a write. Records it if fjall refuses all writes after it.
    fn write_failed(&self, action: &'static str, error: fjall::Error) -> StoreError {
        let is_poisoned = |error: &fjall::Error| matches!(error, fjall::Error::Poisoned);
        let mut first = self.write_failure.lock();
        if is_poisoned(&error) {
            return self.refused(&mut first);
        }
        let error = self.failed(action, error);
        let next = self.database.persist(PersistMode::Buffer);
        if next.is_err_and(|next| is_poisoned(&next)) {
            record_failure(&mut first, || error.clone());
        }
        error
    }

    /// Returns why fjall refuses writes: the disk is full, or an earlier write failed.
    fn refused(&self, first: &mut Option<StoreError>) -> StoreError {
        if let Err(full @ StoreError::DiskFull { .. }) = self.probe() {
            record_failure(first, || full.clone());
            return full;
        }
        let unknown = || StoreError::ReadOnly {
            why: "an earlier write of tables failed".to_owned(),
        };
        match record_failure(first, unknown) {
            refused @ StoreError::ReadOnly { .. } => refused.clone(),
            first => StoreError::ReadOnly {
                why: first.to_string(),
            },
        }
    }

    /// Checks that a file can be written to the disk. The caller holds the lock of `write_failure`, so nothing else
    /// uses the file.
    fn probe(&self) -> Result<()> {
        let file = self.directory.join("probe");
        let written = std::fs::write(&file, vec![1; PROBE_BYTES]);
        let removed = std::fs::remove_file(&file);
        written
            .and(removed)
            .map_err(|error| StoreError::io("write a test file", error))
    }

    /// Waits until the background thread has caught up with the partitions of a batch, then seals the full write
    /// buffers of these partitions.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::DiskFull`] if the background thread has failed; the errors of a sync.
    fn throttle(&self, keyspaces: &[Keyspace]) -> Result<()> {
        let is_full = |keyspace: &Keyspace| {
            keyspace.tree.active_memtable().size() > self.buffer_bytes(keyspace.name())
        };
        let is_behind = |keyspace: &Keyspace| {
            sealing::is_behind(keyspace)
                || keyspace.tree.l0_run_count() >= NEW_RUNS_MAX
                || is_full(keyspace) && sealing::is_queue_full(&self.database)
        };
        self.wait_while(|| keyspaces.iter().any(is_behind))?;
        let full = keyspaces.iter().filter(|keyspace| is_full(keyspace));
        let full: Vec<_> = full.map(sealing::Buffer::of).collect();
        if full.is_empty() {
            return Ok(());
        }
        self.seal(&full)
    }

    /// Seals write buffers, so that the background thread flushes them.
    fn seal(&self, buffers: &[sealing::Buffer]) -> Result<()> {
        let sealed = self.sealing.seal(&self.database, buffers, || self.sync())?;
        sealed.map_err(|error| self.write_failed("write tables", error))
    }

    /// Waits for the background thread while `is_behind` returns true. Fails if that thread has failed.
    fn wait_while(&self, is_behind: impl Fn() -> bool) -> Result<()> {
        while is_behind() {
            self.check_background()?;
            (self.pause)(THROTTLE_STEP);
        }
        Ok(())
    }

    /// Waits until the write buffers have space for a batch.
    fn admit(&self, bytes: u64) -> Result<buffers::Admitted<'_>> {
        loop {
            match self.buffers.admit(&self.database, bytes) {
                buffers::Admission::Granted(admitted) => return Ok(admitted),
                buffers::Admission::Full(largest) => self.seal(&largest)?,
            }
            self.check_background()?;
            (self.pause)(THROTTLE_STEP);
        }
    }

    /// Checks that the background thread has not failed. Writes nothing.
    fn check_background(&self) -> Result<()> {
        let well = self.database.persist(PersistMode::Buffer);
        well.map_err(|error| self.write_failed("write tables", error))
    }

    fn open_keyspace(&self, name: &str, kind: PartitionKind) -> Result<Keyspace> {
        let keyspace = self.change_list("create a partition", || {
            self.database.keyspace(name, || self.keyspace_options(kind))
        })?;
        // fjall syncs the content of a partition's folder, but not its directory entry.
        sync_folder(&self.directory.join(PARTITIONS))?;
        Ok(keyspace)
    }

    /// Calls `change`, which creates or deletes a partition. Fails if the background thread has failed.
    ///
    /// fjall lists the partitions in a separate tree. After a failed change or a failed compaction of the list, fjall
    /// may overwrite the list's current manifest. fjall does not report failed compactions. This function therefore
    /// moves the manifest to another number after every error and every compaction.
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
            tracing::error!(%error, "no partition can be created or deleted until a restart");
            list.failure = Some(error);
        }
        changed
    }

    /// Returns a name that no partition has.
    fn free_name(&self, kind: PartitionKind) -> String {
        let number = self.database.keyspace_count();
        let names = (number..).map(|number| format!("{}{number}", letter(kind)));
        names
            .into_iter()
            .find(|name| !self.database.keyspace_exists(name))
            .expect("some number is unused")
    }

    /// Frees a tree. A small tree is emptied by a batch, which needs no sync, and kept as a spare. Other trees are
    /// deleted.
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

    /// Returns all entries of a tree. Returns `None` if the tree has many entries, or has tables or sealed buffers.
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
        let removed = self.sealing.write(writes);
        removed.map_err(|error| self.write_failed("empty a partition", error))
    }

    fn delete(&self, keyspace: Keyspace) -> Result<()> {
        // fjall removes the files at once, so the batch that removed the partition from the catalogue must be synced
        // first.
        self.sync()?;
        let is_large = keyspace.disk_space() >= LARGE_TREE_BYTES;
        self.change_list("delete a partition", || {
            self.database.delete_keyspace(keyspace)
        })?;
        if is_large && self.database.journal_count() > 1 {
            self.release_journals()?;
        }
        Ok(())
    }

    /// Seals all write buffers for flushing. After the flush, fjall removes its older journals. Until then, the
    /// journals keep the files of deleted trees alive.
    fn release_journals(&self) -> Result<()> {
        let keyspaces: Vec<Keyspace> = {
            let partitions = self.partitions.read();
            let open = partitions.keyspaces.values();
            open.chain(&partitions.spares).cloned().collect()
        };
        for some in keyspaces.chunks(sealing::AT_ONCE_MAX) {
            self.wait_while(|| {
                sealing::is_queue_full(&self.database) || some.iter().any(sealing::is_behind)
            })?;
            let buffers: Vec<_> = some.iter().map(sealing::Buffer::of).collect();
            self.seal(&buffers)?;
        }
        Ok(())
    }

    /// Converts a batch to fjall's type. Also returns the partitions that the batch changes.
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

/// Opens the database. fjall panics on some kinds of damage; a panic is reported as damage.
fn open_database(directory: &Path, options: &StoreOptions) -> Result<Database> {
    let builder = Database::builder(directory)
        .cache_size(options.cache_bytes)
        .worker_threads(BACKGROUND_THREADS)
        .max_journaling_size(options.journal_bytes_max.max(JOURNAL_BYTES_MIN))
        // Compression is off, because a batch's checksum covers only uncompressed values. Recovery would silently stop
        // at a damaged compressed value.
        .journal_compression(CompressionType::None)
        .manual_journal_persist(false);
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.open())) {
        Ok(opened) => opened.map_err(|error| translate(directory, "open the tables", error)),
        Err(_) => Err(corrupt(directory, "the tables are inconsistent".to_owned())),
    }
}

fn sync_folder(folder: &Path) -> Result<()> {
    crate::directory::sync(folder).map_err(|error| StoreError::io("sync a folder", error))
}

/// Checks that the list of partitions exists, because fjall deletes partitions that are not listed.
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

/// Checks that no table has a newer sequence number than the journals. If a table has a newer one, the end of the
/// journals is lost.
fn check_tables(directory: &Path, database: &Database, journals: journal::Journals) -> Result<()> {
    for name in database.list_keyspace_names() {
        let opened = database.keyspace(&name, KeyspaceCreateOptions::default);
        let keyspace = opened.map_err(|error| translate(directory, "open a partition", error))?;
        let newest = keyspace.tree.get_highest_persisted_seqno();
        if newest.is_some_and(|newest| !journals.fit(newest)) {
            return Err(corrupt(
                directory,
                "the tables have newer batches than the journal".to_owned(),
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

pub(super) fn translate(directory: &Path, action: &'static str, error: fjall::Error) -> StoreError {
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

/// Translates an I/O error. Files that are missing or end too early are damaged data, not failures of the disk.
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
        // The kind matters only for new trees, and this tree exists.
        self.open_partition(name, PartitionKind::Index).map(Some)
    }

    fn drop_partition(&self, partition: PartitionId) -> Result<()> {
        // The write lock waits for readers, which hold the lock while they read a page. So no reader of this partition
        // sees entries of a later partition that uses the same tree.
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
            // The kind matters only for new trees, and this tree exists.
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
        let admitted = self.admit(buffers::batch_bytes(&batch))?;
        let (writes, keyspaces) = self.prepare(batch);
        self.throttle(&keyspaces)?;
        let written = self.sealing.write(writes);
        drop(admitted);
        self.buffers.release_written(&self.database);
        written.map_err(|error| self.write_failed("write a batch", error))
    }

    fn free_memory(&self) -> Result<()> {
        let sealed = self.seal(&self.buffers.surplus(&self.database));
        if self.buffers.keeps_written() {
            self.sealing.pass_flushes(&self.database);
        }
        self.buffers.release_written(&self.database);
        sealed
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
