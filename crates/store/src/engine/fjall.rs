//! The engine on disk: fjall, a log-structured merge tree a partition and one journal for all.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use fjall::config::{BlockSizePolicy, CompressionPolicy};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use parking_lot::{Mutex, RwLock};

use super::{Batch, Bytes, Direction, Engine, KeyRange, Page, PageLimit, PartitionId, PartitionKind, journal};
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

/// What an operator can do about damaged files.
pub(crate) const REMEDY: &str = "restore the data directory from a backup, or start on an empty one and import again";

/// A store of partitions in one directory.
pub struct FjallEngine {
    directory: PathBuf,
    database: Database,
    write_buffer_bytes: u64,
    partitions: RwLock<Partitions>,
    journal: journal::JournalSync,
    failure: Mutex<Option<String>>,
}

#[derive(Default)]
struct Partitions {
    next_id: u32,
    names: HashMap<String, PartitionId>,
    keyspaces: HashMap<PartitionId, Keyspace>,
}

impl Partitions {
    fn add(&mut self, name: &str, keyspace: Keyspace) -> PartitionId {
        let id = PartitionId(self.next_id);
        self.next_id += 1;
        self.names.insert(name.to_owned(), id);
        self.keyspaces.insert(id, keyspace);
        id
    }
}

impl FjallEngine {
    /// Opens or creates the tables in `directory`, checking the journals first.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for damaged files, [`StoreError::DiskFull`] and [`StoreError::Io`] as they come.
    pub fn open(directory: &Path, options: &StoreOptions) -> Result<Self> {
        let last_sequence = journal::check(directory)?;
        let database = open_database(directory, options)?;
        // fjall counts on from the highest number in its tables, which may be lower than that of a batch to a
        // partition that is gone. Numbers that only rise are what tells a damaged one in a journal.
        database.supervisor.seqno.fetch_max(last_sequence + 1);
        Ok(Self {
            database,
            directory: directory.to_owned(),
            write_buffer_bytes: options.write_buffer_bytes,
            partitions: RwLock::default(),
            journal: journal::JournalSync::new(directory),
            failure: Mutex::new(None),
        })
    }

    fn keyspace(&self, partition: PartitionId) -> Option<Keyspace> {
        self.partitions.read().keyspaces.get(&partition).cloned()
    }

    fn keyspace_options(&self, kind: PartitionKind) -> KeyspaceCreateOptions {
        let (block_bytes, buffer_bytes) = match kind {
            PartitionKind::Records => (RECORD_BLOCK_BYTES, self.write_buffer_bytes),
            PartitionKind::Index => (INDEX_BLOCK_BYTES, self.write_buffer_bytes),
            PartitionKind::Catalogue => (INDEX_BLOCK_BYTES, CATALOGUE_BUFFER_BYTES),
        };
        KeyspaceCreateOptions::default()
            .data_block_size_policy(BlockSizePolicy::all(block_bytes))
            .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
            .max_memtable_size(buffer_bytes)
    }

    /// Translates an error, remembering the one that stops further writes.
    fn failed(&self, action: &'static str, error: fjall::Error) -> StoreError {
        if matches!(error, fjall::Error::Poisoned) {
            let why = self.failure.lock().clone();
            return StoreError::ReadOnly {
                why: why.unwrap_or_else(|| "a background task failed".to_owned()),
            };
        }
        translate(&self.directory, action, error)
    }

    fn write_failed(&self, action: &'static str, error: fjall::Error) -> StoreError {
        let error = self.failed(action, error);
        if !matches!(error, StoreError::ReadOnly { .. }) {
            self.failure.lock().get_or_insert_with(|| error.to_string());
        }
        error
    }
}

/// Opens the database. fjall asserts on some kinds of damage, so a panic is an answer too.
fn open_database(directory: &Path, options: &StoreOptions) -> Result<Database> {
    let builder = Database::builder(directory)
        .cache_size(options.cache_bytes)
        .worker_threads(options.worker_threads.max(1))
        .max_journaling_size(options.journal_bytes_max.max(JOURNAL_BYTES_MIN))
        // A damaged compressed value would end recovery in silence; the checksum of a batch is only over plain ones.
        .journal_compression(CompressionType::None)
        .manual_journal_persist(false);
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.open())) {
        Ok(opened) => opened.map_err(|error| translate(directory, "open the tables", error)),
        Err(_) => Err(corrupt(directory, "its tables do not fit together".to_owned())),
    }
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
        fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source)) => io_error(directory, action, source),
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
fn io_error(directory: &Path, action: &'static str, source: std::io::Error) -> StoreError {
    use std::io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};
    match source.kind() {
        InvalidData | NotFound | UnexpectedEof => corrupt(directory, source.to_string()),
        _ => StoreError::io(action, source),
    }
}

impl Engine for FjallEngine {
    fn open_partition(&self, name: &str, kind: PartitionKind) -> Result<PartitionId> {
        let mut partitions = self.partitions.write();
        if let Some(id) = partitions.names.get(name) {
            return Ok(*id);
        }
        let opened = self.database.keyspace(name, || self.keyspace_options(kind));
        let keyspace = opened.map_err(|error| self.failed("create a partition", error))?;
        Ok(partitions.add(name, keyspace))
    }

    fn drop_partition(&self, partition: PartitionId) -> Result<()> {
        let keyspace = {
            let mut partitions = self.partitions.write();
            partitions.names.retain(|_, id| *id != partition);
            partitions.keyspaces.remove(&partition)
        };
        let Some(keyspace) = keyspace else {
            return Ok(());
        };
        // Journals hold on to a deleted partition until they are evicted: empty it, so that its tables go now.
        keyspace.clear().map_err(|error| self.write_failed("clear a partition", error))?;
        let deleted = self.database.delete_keyspace(keyspace);
        deleted.map_err(|error| self.failed("delete a partition", error))
    }

    fn partition_names(&self) -> Vec<String> {
        let names = self.database.list_keyspace_names();
        names.iter().map(|name| name.to_string()).collect()
    }

    fn get(&self, partition: PartitionId, key: &[u8]) -> Result<Option<Bytes>> {
        let partitions = self.partitions.read();
        let Some(keyspace) = partitions.keyspaces.get(&partition) else {
            return Ok(None);
        };
        keyspace.get(key).map_err(|error| self.failed("read a key", error))
    }

    fn page(&self, partition: PartitionId, range: &KeyRange, direction: Direction, limit: PageLimit) -> Result<Page> {
        let Some(keyspace) = self.keyspace(partition).filter(|_| !range.is_empty()) else {
            return Ok(Page::new());
        };
        let start = std::ops::Bound::Included(range.start.as_slice());
        let end = range.end.as_deref().map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let entries = keyspace.range::<&[u8], _>((start, end));
        let page = match direction {
            Direction::Forward => take_page(entries, limit),
            Direction::Backward => take_page(entries.rev(), limit),
        };
        page.map_err(|error| self.failed("read a page", error))
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        let mut writes = fjall::OwnedWriteBatch::with_capacity(self.database.clone(), batch.writes.len())
            .durability(Some(PersistMode::Buffer));
        {
            let partitions = self.partitions.read();
            for write in batch.writes {
                let Some(keyspace) = partitions.keyspaces.get(&write.partition) else {
                    continue;
                };
                match write.value {
                    Some(value) => writes.insert(keyspace, write.key, value),
                    None => writes.remove(keyspace, write.key),
                }
            }
        }
        writes.commit().map_err(|error| self.write_failed("write a batch", error))
    }

    fn sync(&self) -> Result<()> {
        if let Some(why) = self.failure.lock().clone() {
            return Err(StoreError::ReadOnly { why });
        }
        self.journal.sync().inspect_err(|error| {
            // What a failed sync left behind is unknown, so nothing later may be acknowledged.
            self.failure.lock().get_or_insert_with(|| error.to_string());
        })
    }

    fn bytes(&self, partition: PartitionId) -> u64 {
        self.keyspace(partition).map_or(0, |keyspace| keyspace.disk_space())
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
