//! What identifies the files of tables, and the versions of versioned tables.

use std::collections::HashMap;

use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::FileScanConfig;
use forebay_tables::TableVersion;

use crate::reason::Reason;

/// A file as it was when a scan listed it, or a version of a versioned table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct FileKey {
    pub(crate) store: String,
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) modified: Option<i64>,
    pub(crate) tag: Option<String>,
    pub(crate) version: Option<String>,
    /// The number of the version of a versioned table; `None` of a file.
    pub(crate) number: Option<u64>,
}

impl FileKey {
    fn new(scan: &FileScanConfig, file: &PartitionedFile) -> FileKey {
        let object = &file.object_meta;
        FileKey {
            store: scan.object_store_url.as_str().to_owned(),
            path: object.location.to_string(),
            bytes: object.size,
            modified: object.last_modified.timestamp_nanos_opt(),
            tag: object.e_tag.clone(),
            version: object.version.clone(),
            number: None,
        }
    }

    pub(crate) fn of_version(version: &TableVersion) -> FileKey {
        FileKey {
            store: String::new(),
            path: version.name.clone(),
            bytes: version.bytes,
            modified: None,
            tag: Some(version.id.clone()),
            version: None,
            number: Some(version.number),
        }
    }

    /// Returns whether this is a version of a versioned table, and `other` a later one.
    pub(crate) fn is_before(&self, other: &FileKey) -> bool {
        let is_table = self.number.is_some() && other.number.is_some() && self.path == other.path;
        is_table && (self.tag != other.tag || self.number < other.number)
    }
}

/// Returns the files of a scan, each once.
///
/// # Errors
/// If the scan reads only a part of a file.
pub(crate) fn files(scan: &FileScanConfig) -> Result<Vec<(FileKey, PartitionedFile)>, Reason> {
    let mut found: Vec<(FileKey, PartitionedFile, u64)> = Vec::new();
    let mut known: HashMap<FileKey, usize> = HashMap::new();
    for file in scan.file_groups.iter().flat_map(|group| group.iter()) {
        let key = FileKey::new(scan, file);
        let bytes = file.object_meta.size;
        let read = match &file.range {
            Some(range) => (range.end - range.start).unsigned_abs(),
            None => bytes,
        };
        match known.get(&key) {
            Some(index) => found[*index].2 += read,
            None => {
                known.insert(key.clone(), found.len());
                let mut whole = file.clone();
                whole.range = None;
                found.push((key, whole, read));
            }
        }
    }
    let is_whole = |(key, _, read): &(FileKey, PartitionedFile, u64)| *read == key.bytes;
    match found.iter().all(is_whole) {
        true => Ok(found
            .into_iter()
            .map(|(key, file, _)| (key, file))
            .collect()),
        false => Err(Reason::new("the scan reads parts of files, or some twice")),
    }
}
