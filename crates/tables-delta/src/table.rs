//! Tables and their versions.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::datatypes::SchemaRef;
use parking_lot::{Mutex, RwLock};
use serde_json::json;

use crate::checkpoint;
use crate::error::{Error, Result, of_io};
use crate::folder::{Folder, Probe, sync_names};
use crate::log::{
    self, Action, Add, Format, Listed, MetaData, Protocol, Remove, State, checkpoint_path,
    version_path,
};
use crate::schema;
use crate::stats::FileStats;
use crate::writer::{PREFIX, Writer, milliseconds};

/// Number of versions from one checkpoint to the next.
const CHECKPOINT_VERSIONS: u64 = 100;
/// The log keeps no tombstones: a file is deleted when no snapshot has it.
const CONFIGURATION: [(&str, &str); 2] = [
    ("delta.deletedFileRetentionDuration", "interval 0 seconds"),
    ("delta.logRetentionDuration", "interval 0 seconds"),
];

/// A table in a folder, which one process writes at a time. Other tools may read it, and also append to it.
#[derive(Debug)]
pub struct Table {
    folder: Arc<Folder>,
    current: RwLock<Arc<Snapshot>>,
    /// Held while a version is written.
    commits: Mutex<Commits>,
}

#[derive(Debug, Default)]
struct Commits {
    /// Why no further version may be written.
    stuck: Option<String>,
    /// Version of the last checkpoint, and of the one before.
    checkpoints: [u64; 2],
}

/// A version of a table. Its files are there as long as it is in use.
#[derive(Debug, Clone)]
pub struct Snapshot {
    version: u64,
    protocol: Protocol,
    meta_data: MetaData,
    schema: SchemaRef,
    files: Vec<Arc<DataFile>>,
}

/// A data file. It is deleted when it is dropped and belongs to no table.
#[derive(Debug)]
pub struct DataFile {
    folder: Arc<Folder>,
    add: Add,
    /// Name in the folder.
    name: String,
    is_unused: AtomicBool,
}

/// A change of the files of a table.
#[derive(Debug)]
pub struct Change {
    /// What the log tells about it, such as `WRITE`.
    pub operation: &'static str,
    /// Files that become part of the table.
    pub added: Vec<Arc<DataFile>>,
    /// Files that are no longer part of it.
    pub removed: Vec<Arc<DataFile>>,
    /// Whether rows change, not only files.
    pub is_data_change: bool,
}

impl Table {
    /// Creates an empty table in a new folder. `probe` is called before each step of a write.
    ///
    /// # Errors
    /// If the folder exists or cannot be written, or a column has a type that tables do not have.
    pub fn create(
        path: &Path,
        name: &str,
        schema: &SchemaRef,
        probe: Option<Probe>,
    ) -> Result<Table> {
        let protocol = Protocol::new(
            schema::has_times_without_zone(schema),
            schema::has_defaults(schema),
        );
        let configuration = CONFIGURATION.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let meta_data = MetaData {
            id: unique_id(),
            name: Some(name.to_owned()),
            format: Format {
                provider: "parquet".to_owned(),
                options: BTreeMap::new(),
            },
            schema_string: schema::to_text(schema)?,
            partition_columns: Vec::new(),
            created_time: Some(milliseconds()),
            configuration: BTreeMap::from(configuration),
        };
        let folder = Arc::new(Folder::new(path, probe));
        fs::create_dir_all(folder.log()).map_err(of_io(path))?;
        let actions = [
            commit_info("CREATE TABLE"),
            Action {
                protocol: Some(protocol.clone()),
                ..Action::default()
            },
            Action {
                meta_data: Some(meta_data.clone()),
                ..Action::default()
            },
        ];
        if !log::write(&folder, 0, &actions)? {
            return Err(Error::damaged(path, "there is a table already"));
        }
        sync_names(path)?;
        if let Some(parent) = path.parent() {
            sync_names(parent)?;
        }
        let snapshot = Snapshot {
            version: 0,
            protocol,
            meta_data,
            schema: Arc::clone(schema),
            files: Vec::new(),
        };
        Ok(Table {
            folder,
            current: RwLock::new(Arc::new(snapshot)),
            commits: Mutex::default(),
        })
    }

    /// Opens a table. Deletes files of this process's kind that belong to no version: a writer was killed.
    ///
    /// # Errors
    /// If the log is damaged, or uses features that this crate does not have.
    pub fn open(path: &Path, probe: Option<Probe>) -> Result<Table> {
        let folder = Arc::new(Folder::new(path, probe));
        let log = folder.log();
        let listed = Listed::new(&log)?;
        let mut state = State::default();
        let checkpoint = listed.checkpoints.last().copied();
        if let Some(version) = checkpoint {
            for action in checkpoint::read(&log, version)? {
                state.apply(action)?;
            }
        }
        let first = checkpoint.map_or(0, |version| version + 1);
        let mut next = first;
        for &version in listed.versions.iter().filter(|version| **version >= first) {
            if version != next {
                return Err(Error::damaged(&log, format!("version {next} is missing")));
            }
            for action in log::read(&log, version)?.unwrap_or_default() {
                state.apply(action)?;
            }
            next += 1;
        }
        let Some(version) = next.checked_sub(1) else {
            return Err(Error::damaged(&log, "it has no version"));
        };
        let snapshot = Snapshot::of_state(&folder, version, state)?;
        remove_leftovers(path, &snapshot);
        listed.remove_temporary();
        let before = listed.checkpoints.iter().rev().nth(1).copied();
        Ok(Table {
            folder,
            current: RwLock::new(Arc::new(snapshot)),
            commits: Mutex::new(Commits {
                checkpoints: [checkpoint.unwrap_or(0), before.unwrap_or(0)],
                ..Commits::default()
            }),
        })
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the columns.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.current.read().schema)
    }

    /// Returns the current version, with what other processes wrote.
    ///
    /// # Errors
    /// If the table was dropped, or another process wrote a version that this crate cannot read.
    pub fn snapshot(&self) -> Result<Arc<Snapshot>> {
        let current = Arc::clone(&self.current.read());
        // A table that is dropped from now on leaves this snapshot its files.
        if self.folder.is_unwanted() {
            return Err(Error::Dropped);
        }
        if !version_path(&self.folder.log(), current.version + 1).exists() {
            return Ok(current);
        }
        let _commits = self.commits.lock();
        if self.folder.is_unwanted() {
            return Err(Error::Dropped);
        }
        self.catch_up()
    }

    /// Returns a writer of files.
    pub fn writer(&self) -> Writer {
        Writer::new(&self.folder, &self.schema())
    }

    /// Makes a change in one step, and syncs it. Files that were added since the removed ones were read stay.
    ///
    /// # Errors
    /// [`Error::Conflict`] if a removed file is no longer in the table, [`Error::Dropped`], and errors of the disk.
    /// Nothing is then changed, except after [`Error::Stuck`], when the change may be there after a restart.
    pub fn commit(&self, change: &Change) -> Result<()> {
        let mut commits = self.commits.lock();
        if self.folder.is_unwanted() {
            return Err(Error::Dropped);
        }
        if let Some(why) = &commits.stuck {
            return Err(Error::Stuck(why.clone()));
        }
        loop {
            let before = Arc::clone(&self.current.read());
            let after = before.changed(change)?;
            match log::write(&self.folder, after.version, &change.actions()) {
                Ok(true) => {
                    change.mark();
                    let after = Arc::new(after);
                    *self.current.write() = Arc::clone(&after);
                    self.checkpoint(&mut commits, &after);
                    return Ok(());
                }
                Ok(false) => drop(self.catch_up()?),
                Err(Error::Stuck(why)) => {
                    // The version may be read after a restart: its files stay.
                    change.mark_added();
                    commits.stuck = Some(why.clone());
                    return Err(Error::Stuck(why));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Refuses all further changes and snapshots. Deletes each data file when no snapshot uses it, and the folder when
    /// the table and the last snapshot are no longer in use.
    pub fn delete(&self) {
        let _commits = self.commits.lock();
        self.folder.delete_at_the_end();
        let mut current = self.current.write();
        for file in &current.files {
            file.is_unused.store(true, Ordering::Relaxed);
        }
        *current = Arc::new(Snapshot {
            files: Vec::new(),
            ..Snapshot::clone(&current)
        });
    }

    /// Reads the versions that others wrote. The caller holds the lock of the commits.
    fn catch_up(&self) -> Result<Arc<Snapshot>> {
        let mut current = Arc::clone(&self.current.read());
        while let Some(actions) = log::read(&self.folder.log(), current.version + 1)? {
            current = Arc::new(current.followed_by(&self.folder, actions)?);
        }
        *self.current.write() = Arc::clone(&current);
        Ok(current)
    }

    /// Writes a checkpoint if it is time to, and deletes what readers then no longer need.
    fn checkpoint(&self, commits: &mut Commits, snapshot: &Snapshot) {
        let [last, before] = commits.checkpoints;
        if snapshot.version < last + CHECKPOINT_VERSIONS {
            return;
        }
        let written = checkpoint::write(&self.folder, snapshot.version, &snapshot.actions());
        if let Err(error) = written {
            tracing::warn!(%error, "a checkpoint of a table cannot be written; the next commit tries again");
            return;
        }
        commits.checkpoints = [snapshot.version, last];
        // Readers that began at the checkpoint before still find the versions since then.
        let log = self.folder.log();
        for version in before..last {
            let _ = fs::remove_file(version_path(&log, version));
            let _ = fs::remove_file(checkpoint_path(&log, version));
        }
    }
}

impl Snapshot {
    fn of_state(folder: &Arc<Folder>, version: u64, mut state: State) -> Result<Snapshot> {
        let log = folder.log();
        let missing = || Error::damaged(&log, "it does not tell what the table is");
        let protocol = state.protocol.take().ok_or_else(missing)?;
        let meta_data = state.meta_data.take().ok_or_else(missing)?;
        let files = state
            .into_files()
            .map(|add| Ok(Arc::new(DataFile::used(folder, add)?)));
        Ok(Snapshot {
            version,
            schema: schema::of_text(&meta_data.schema_string)?,
            protocol,
            meta_data,
            files: files.collect::<Result<_>>()?,
        })
    }

    /// Returns the number of the version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the files in the order in which they were added.
    pub fn files(&self) -> &[Arc<DataFile>] {
        &self.files
    }

    /// Returns the next version, in which files were changed.
    fn changed(&self, change: &Change) -> Result<Snapshot> {
        let removed: HashSet<&str> = change.removed.iter().map(|file| &*file.add.path).collect();
        let kept = self
            .files
            .iter()
            .filter(|file| !removed.contains(&*file.add.path));
        let mut files: Vec<_> = kept.cloned().collect();
        if files.len() + removed.len() != self.files.len() {
            return Err(Error::Conflict);
        }
        files.extend(change.added.iter().cloned());
        Ok(Snapshot {
            version: self.version + 1,
            protocol: self.protocol.clone(),
            meta_data: self.meta_data.clone(),
            schema: Arc::clone(&self.schema),
            files,
        })
    }

    /// Returns the next version, which another process wrote.
    fn followed_by(&self, folder: &Arc<Folder>, actions: Vec<Action>) -> Result<Snapshot> {
        let mut state = State::default();
        for action in self.actions().into_iter().chain(actions) {
            state.apply(action)?;
        }
        let mut next = Snapshot::of_state(folder, self.version + 1, state)?;
        // Both versions share a file, so that it is deleted once.
        for file in &mut next.files {
            if let Some(same) = self
                .files
                .iter()
                .find(|same| same.add.path == file.add.path)
            {
                *file = Arc::clone(same);
            }
        }
        Ok(next)
    }

    /// Returns actions that lead to this version.
    fn actions(&self) -> Vec<Action> {
        let mut actions = vec![
            Action {
                protocol: Some(self.protocol.clone()),
                ..Action::default()
            },
            Action {
                meta_data: Some(self.meta_data.clone()),
                ..Action::default()
            },
        ];
        actions.extend(self.files.iter().map(|file| added(file, false)));
        actions
    }
}

impl DataFile {
    fn used(folder: &Arc<Folder>, add: Add) -> Result<DataFile> {
        let file = DataFile::unused(folder, add)?;
        file.is_unused.store(false, Ordering::Relaxed);
        Ok(file)
    }

    /// Returns a file that belongs to no version yet.
    pub(crate) fn unused(folder: &Arc<Folder>, add: Add) -> Result<DataFile> {
        let name = decoded(&add.path).filter(|name| !name.contains("..") && !name.starts_with('/'));
        let Some(name) = name.filter(|name| !name.contains("://")) else {
            return Err(Error::Unsupported(format!("the data file {:?}", add.path)));
        };
        Ok(DataFile {
            folder: Arc::clone(folder),
            add,
            name,
            is_unused: AtomicBool::new(true),
        })
    }

    /// Returns the path.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join(&self.name)
    }

    /// Returns the bytes of the file.
    pub fn size_bytes(&self) -> u64 {
        self.add.size
    }

    /// Returns the statistics, if there are some.
    pub fn stats(&self) -> Option<FileStats> {
        serde_json::from_str(self.add.stats.as_deref()?).ok()
    }
}

impl Drop for DataFile {
    fn drop(&mut self) {
        if *self.is_unused.get_mut() {
            let _ = fs::remove_file(self.path());
        }
    }
}

impl Change {
    fn actions(&self) -> Vec<Action> {
        let removed = self.removed.iter().map(|file| Action {
            remove: Some(Remove {
                path: file.add.path.clone(),
                deletion_timestamp: Some(milliseconds()),
                data_change: self.is_data_change,
            }),
            ..Action::default()
        });
        let added = self
            .added
            .iter()
            .map(|file| added(file, self.is_data_change));
        let info = std::iter::once(commit_info(self.operation));
        info.chain(removed).chain(added).collect()
    }

    fn mark(&self) {
        self.mark_added();
        for file in &self.removed {
            file.is_unused.store(true, Ordering::Relaxed);
        }
    }

    fn mark_added(&self) {
        for file in &self.added {
            file.is_unused.store(false, Ordering::Relaxed);
        }
    }
}

fn added(file: &DataFile, is_data_change: bool) -> Action {
    Action {
        add: Some(Add {
            data_change: is_data_change,
            ..file.add.clone()
        }),
        ..Action::default()
    }
}

fn commit_info(operation: &str) -> Action {
    let info = json!({
        "timestamp": milliseconds(),
        "operation": operation,
        "operationParameters": {},
        "engineInfo": concat!("forebay/", env!("CARGO_PKG_VERSION")),
    });
    Action {
        commit_info: Some(info),
        ..Action::default()
    }
}

/// Returns a random identifier in the form of a UUID of version 4.
fn unique_id() -> String {
    let bits = fastrand::u128(..) & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let digits = format!("{bits:032x}");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    parts.join("-")
}

/// Decodes the `%` escapes of a path.
fn decoded(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let digits = str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// Deletes files of this crate that no version has.
fn remove_leftovers(path: &Path, snapshot: &Snapshot) {
    let used: HashSet<&str> = snapshot.files.iter().map(|file| &*file.name).collect();
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(PREFIX) && name.ends_with(".parquet") && !used.contains(&*name) {
            let _ = fs::remove_file(entry.path());
        }
    }
}
