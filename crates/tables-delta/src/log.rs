//! The files of the log: one for each version, with the actions that lead to it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::error::{Error, Result, of_io};
use crate::folder::{Folder, Step, sync_names};

/// Begins the names of temporary files in the folder of the log.
const TEMPORARY: &str = ".tmp-";
/// Features that readers of a table must know, of which this crate has these.
const READER_FEATURES: [&str; 1] = ["timestampNtz"];
/// Features that writers must know.
const WRITER_FEATURES: [&str; 4] = [
    "timestampNtz",
    "allowColumnDefaults",
    "appendOnly",
    "invariants",
];

/// An action of the log. Exactly one of the fields is there; others are actions without a meaning here.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Action {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) commit_info: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) protocol: Option<Protocol>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta_data: Option<MetaData>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) add: Option<Add>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remove: Option<Remove>,
}

/// What readers and writers must know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Protocol {
    pub(crate) min_reader_version: u32,
    pub(crate) min_writer_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reader_features: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) writer_features: Option<Vec<String>>,
}

impl Protocol {
    /// Returns the protocol of a new table.
    pub(crate) fn new(has_times_without_zone: bool, has_defaults: bool) -> Protocol {
        let named = |is_there: bool, name: &str| is_there.then(|| name.to_owned());
        let times = named(has_times_without_zone, "timestampNtz");
        let writer = [times.clone(), named(has_defaults, "allowColumnDefaults")];
        let writer: Vec<String> = writer.into_iter().flatten().collect();
        let has_features = !writer.is_empty();
        Protocol {
            min_reader_version: if times.is_some() { 3 } else { 1 },
            min_writer_version: if has_features { 7 } else { 2 },
            reader_features: times.map(|times| vec![times]),
            writer_features: has_features.then_some(writer),
        }
    }

    fn check(&self) -> Result<()> {
        let readers = self.reader_features.iter().flatten();
        let writers = self.writer_features.iter().flatten();
        let unknown = readers
            .filter(|name| !READER_FEATURES.contains(&name.as_str()))
            .chain(writers.filter(|name| !WRITER_FEATURES.contains(&name.as_str())))
            .next();
        if let Some(unknown) = unknown {
            return Err(Error::Unsupported(format!(
                "Delta Lake's feature {unknown}"
            )));
        }
        match (self.min_reader_version, self.min_writer_version) {
            (1 | 3, 1 | 2 | 7) => Ok(()),
            (reader, writer) => Err(Error::Unsupported(format!(
                "Delta Lake's protocol {reader}, {writer}"
            ))),
        }
    }
}

/// What a table is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MetaData {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) name: Option<String>,
    pub(crate) format: Format,
    pub(crate) schema_string: String,
    pub(crate) partition_columns: Vec<String>,
    #[serde(default)]
    pub(crate) created_time: Option<i64>,
    #[serde(default)]
    pub(crate) configuration: BTreeMap<String, String>,
}

impl MetaData {
    fn check(&self) -> Result<()> {
        if !self.partition_columns.is_empty() {
            return Err(Error::Unsupported("partitioning".to_owned()));
        }
        match &*self.format.provider {
            "parquet" => Ok(()),
            other => Err(Error::Unsupported(format!("the format {other}"))),
        }
    }
}

/// The format of the data files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Format {
    pub(crate) provider: String,
    #[serde(default)]
    pub(crate) options: BTreeMap<String, String>,
}

/// A file that belongs to the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Add {
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) partition_values: BTreeMap<String, Option<String>>,
    pub(crate) size: u64,
    pub(crate) modification_time: i64,
    pub(crate) data_change: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stats: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) deletion_vector: Option<Value>,
}

/// A file that no longer belongs to the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Remove {
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) deletion_timestamp: Option<i64>,
    pub(crate) data_change: bool,
}

/// The state of a table at a version, as the log tells it.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) protocol: Option<Protocol>,
    pub(crate) meta_data: Option<MetaData>,
    /// The files in the order in which they were added.
    files: BTreeMap<u64, Add>,
    places: BTreeMap<String, u64>,
    next: u64,
}

impl State {
    /// Applies an action.
    ///
    /// # Errors
    /// If the action needs a feature that this crate does not have.
    pub(crate) fn apply(&mut self, action: Action) -> Result<()> {
        if let Some(protocol) = action.protocol {
            protocol.check()?;
            self.protocol = Some(protocol);
        }
        if let Some(meta_data) = action.meta_data {
            meta_data.check()?;
            self.meta_data = Some(meta_data);
        }
        if let Some(remove) = action.remove
            && let Some(place) = self.places.remove(&remove.path)
        {
            self.files.remove(&place);
        }
        if let Some(add) = action.add {
            if add.deletion_vector.is_some() {
                return Err(Error::Unsupported("a deletion vector".to_owned()));
            }
            if let Some(place) = self.places.insert(add.path.clone(), self.next) {
                self.files.remove(&place);
            }
            self.files.insert(self.next, add);
            self.next += 1;
        }
        Ok(())
    }

    /// Returns the files in the order in which they were added.
    pub(crate) fn into_files(self) -> impl Iterator<Item = Add> {
        self.files.into_values()
    }
}

/// Returns the path of the file of a version.
pub(crate) fn version_path(log: &Path, version: u64) -> PathBuf {
    log.join(format!("{version:020}.json"))
}

/// Returns the path of the checkpoint of a version.
pub(crate) fn checkpoint_path(log: &Path, version: u64) -> PathBuf {
    log.join(format!("{version:020}.checkpoint.parquet"))
}

/// The files of a log.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    pub(crate) versions: Vec<u64>,
    pub(crate) checkpoints: Vec<u64>,
    temporary: Vec<PathBuf>,
}

impl Listed {
    /// Lists the files of a log, sorted.
    pub(crate) fn new(log: &Path) -> Result<Listed> {
        let mut listed = Listed::default();
        for entry in fs::read_dir(log).map_err(of_io(log))? {
            let path = entry.map_err(of_io(log))?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            if name.starts_with(TEMPORARY) {
                listed.temporary.push(path);
                continue;
            }
            let Some((version, kind)) = name.split_once('.') else {
                continue;
            };
            match (version.parse(), kind) {
                (Ok(version), "json") => listed.versions.push(version),
                (Ok(version), "checkpoint.parquet") => listed.checkpoints.push(version),
                _ => {}
            }
        }
        listed.versions.sort_unstable();
        listed.checkpoints.sort_unstable();
        Ok(listed)
    }

    /// Deletes what a process left that was killed.
    pub(crate) fn remove_temporary(&self) {
        for path in &self.temporary {
            let _ = fs::remove_file(path);
        }
    }
}

/// Reads the actions of a version; `None` if there is no such version.
///
/// # Errors
/// If the file is damaged.
pub(crate) fn read(log: &Path, version: u64) -> Result<Option<Vec<Action>>> {
    let path = version_path(log, version);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(of_io(&path)(error)),
    };
    parse(&path, &text).map(Some)
}

/// Parses actions, one a line.
pub(crate) fn parse(path: &Path, text: &[u8]) -> Result<Vec<Action>> {
    let lines = text.lines().map(|line| {
        let line = line.map_err(of_io(path))?;
        serde_json::from_str(&line).map_err(|error| Error::damaged(path, error))
    });
    lines.collect()
}

/// Returns the text of actions, one a line.
pub(crate) fn to_text(actions: &[Action]) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    for action in actions {
        serde_json::to_writer(&mut text, action)
            .map_err(|error| Error::Unsupported(error.to_string()))?;
        text.push(b'\n');
    }
    Ok(text)
}

/// Writes the actions of a version. Returns false if there is such a version already: another writer was faster.
///
/// # Errors
/// [`Error::Io`]; there is then no such version. [`Error::Stuck`] if the version is there, and whether it stays after
/// a power failure is unknown.
pub(crate) fn write(folder: &Folder, version: u64, actions: &[Action]) -> Result<bool> {
    let log = folder.log();
    let path = version_path(&log, version);
    let file = temporary(folder, &to_text(actions)?, Step::WriteLog)?;
    folder.step(Step::SyncLog, &path)?;
    file.as_file().sync_all().map_err(of_io(&path))?;
    folder.step(Step::Publish, &path)?;
    match file.persist_noclobber(&path) {
        Ok(_) => {}
        Err(failed) if failed.error.kind() == std::io::ErrorKind::AlreadyExists => {
            return Ok(false);
        }
        Err(failed) => return Err(of_io(&path)(failed.error)),
    }
    let synced = folder
        .step(Step::SyncLogFolder, &path)
        .and_then(|()| sync_names(&log));
    match synced {
        Ok(()) => Ok(true),
        Err(error) => match fs::remove_file(&path) {
            Ok(()) => Err(error),
            Err(_) => Err(Error::Stuck(error.to_string())),
        },
    }
}

/// Writes a temporary file in the folder of the log.
fn temporary(folder: &Folder, content: &[u8], step: Step) -> Result<NamedTempFile> {
    let log = folder.log();
    folder.step(step, &log)?;
    let builder = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(&log);
    let mut file = builder.map_err(of_io(&log))?;
    file.write_all(content).map_err(of_io(&log))?;
    Ok(file)
}

/// Writes a file of the log in one step, in place of one that there may be.
pub(crate) fn replace(folder: &Folder, path: &Path, content: &[u8]) -> Result<()> {
    let file = temporary(folder, content, Step::WriteCheckpoint)?;
    file.as_file().sync_all().map_err(of_io(path))?;
    file.persist(path)
        .map_err(|failed| of_io(path)(failed.error))?;
    sync_names(&folder.log())
}
