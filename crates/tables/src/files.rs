//! Tables over files: where they are, in which format, and whether they changed.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::catalog::{Session, TableProvider, TableProviderFactory};
use datafusion::common::TableReference;
use datafusion::common::{Constraints, DFSchema};
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::datasource::listing_table_factory::ListingTableFactory;
use datafusion::execution::SessionState;
use datafusion::logical_expr::CreateExternalTable;
use futures_util::TryStreamExt;
use parking_lot::Mutex;

use crate::error::{Code, Result, SqlError};
use crate::headers;
use crate::paths::Paths;
use crate::s3::{Files, Location};

/// A format of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Format {
    /// Endings of names, without the dot.
    endings: &'static [&'static str],
    /// Name of the format in `STORED AS`.
    name: &'static str,
    options: &'static [(&'static str, &'static str)],
}

/// Cells of CSV may contain line breaks. A file is then read by one thread.
const CSV: &[(&str, &str)] = &[
    ("format.has_header", "true"),
    ("format.newlines_in_values", "true"),
];
const TSV: &[(&str, &str)] = &[
    ("format.has_header", "true"),
    ("format.newlines_in_values", "true"),
    ("format.delimiter", "\t"),
];

const FORMATS: [Format; 5] = [
    Format {
        endings: &["parquet", "parq"],
        name: "PARQUET",
        options: &[],
    },
    Format {
        endings: &["arrow", "arrows", "ipc", "feather"],
        name: "ARROW",
        options: &[],
    },
    Format {
        endings: &["csv"],
        name: "CSV",
        options: CSV,
    },
    Format {
        endings: &["tsv"],
        name: "CSV",
        options: TSV,
    },
    Format {
        endings: &["jsonl", "ndjson", "json"],
        name: "JSON",
        options: &[],
    },
];

/// Endings of compressed text files, and the names of the compressions.
const COMPRESSIONS: [(&str, &str); 4] = [
    ("gz", "gzip"),
    ("bz2", "bzip2"),
    ("xz", "xz"),
    ("zst", "zstd"),
];

/// Maximum number of files of a pattern with folders in it, and of a folder in S3.
pub(crate) const FILES_MAX: usize = 100_000;
/// Characters that make a path a pattern.
pub(crate) const PATTERN: [char; 3] = ['*', '?', '['];
pub(crate) const PATTERN_OPTIONS: glob::MatchOptions = glob::MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// The pattern of names in a folder that are not hidden.
const SHOWN: &str = "[!._]*";

/// A table over files.
#[derive(Debug)]
pub(crate) struct FileTable {
    command: CreateExternalTable,
    /// A pattern with folders in it, which DataFusion would not look into.
    pattern: Option<String>,
    /// The path of a table of one local file.
    file: Option<PathBuf>,
    made: Mutex<Option<Made>>,
}

/// A provider, and the files that it was made for.
#[derive(Debug, Clone)]
struct Made {
    fingerprint: u64,
    /// The only file as it was before.
    stamp: Option<Stamp>,
    provider: Arc<dyn TableProvider>,
}

/// What changes with the content of a local file: device, inode, bytes, and the times of the last changes of the
/// content and of the inode, in seconds and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp(u64, u64, u64, [i64; 4]);

impl Stamp {
    /// Returns the stamp of a file; `None` if it is none.
    fn of(path: &Path) -> Option<Stamp> {
        let found = std::fs::metadata(path).ok().filter(|it| it.is_file())?;
        let times = [
            found.mtime(),
            found.mtime_nsec(),
            found.ctime(),
            found.ctime_nsec(),
        ];
        Some(Stamp(found.dev(), found.ino(), found.len(), times))
    }
}

impl FileTable {
    /// Returns the table of a `CREATE EXTERNAL TABLE`.
    pub(crate) fn new(command: CreateExternalTable) -> FileTable {
        let pattern = match &*command.locations {
            [location] if has_folder_in_pattern(location) => Some(location.clone()),
            _ => None,
        };
        let file = match &*command.locations {
            [location] if location.starts_with('/') && !location.contains(PATTERN) => {
                Some(PathBuf::from(location))
            }
            _ => None,
        };
        FileTable {
            command,
            pattern,
            file,
            made: Mutex::default(),
        }
    }

    /// Returns the table of a path: a file, a folder, or a pattern with `*`; `None` if the path names no format that is
    /// known. A folder's format is that of its first file.
    ///
    /// # Errors
    /// If a folder cannot be listed.
    pub(crate) async fn at(
        path: &str,
        name: TableReference,
        state: &SessionState,
    ) -> Result<Option<FileTable>> {
        let Some((format, compression, location)) = recognised(path, state).await? else {
            return Ok(None);
        };
        let schema = Arc::new(DFSchema::empty());
        let options = format.options.iter().copied();
        let compressed = compression.map(|name| ("format.compression", name));
        let options: HashMap<String, String> = options
            .chain(compressed)
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let command = CreateExternalTable::builder(name, location, format.name, schema)
            .with_options(options)
            .with_constraints(Constraints::default())
            .build();
        Ok(Some(FileTable::new(command)))
    }

    /// Returns the provider of the files as they are now.
    ///
    /// # Errors
    /// If there are no files, or their schema cannot be read.
    pub(crate) async fn provider(
        &self,
        state: &SessionState,
        paths: &Paths,
    ) -> Result<Arc<dyn TableProvider>> {
        let stamp = self.file.as_deref().and_then(Stamp::of);
        // Without a listing, where one file tells as much.
        if let (Some(file), Some(_)) = (&self.file, stamp) {
            paths.check_file(file)?;
            let made = self.made.lock().clone();
            if let Some(made) = made.filter(|made| made.stamp == stamp) {
                return Ok(made.provider);
            }
        }
        let mut command = self.command.clone();
        if let Some(pattern) = &self.pattern {
            command.locations = expanded(pattern)?;
        }
        let is_readable = |name: &str| is_of(&command, name);
        let in_s3 = Files::listed(&command.locations, state, is_readable).await?;
        let fingerprint = match &in_s3 {
            Some(files) => files.fingerprint(),
            None => fingerprint(&command, state, paths).await?,
        };
        if let Some(made) = &mut *self.made.lock()
            && made.fingerprint == fingerprint
        {
            made.stamp = stamp;
            return Ok(Arc::clone(&made.provider));
        }
        let provider = match in_s3 {
            Some(files) => files.table(command, state).await?,
            None => {
                let files = headers::check(&command, state).await?;
                let created = ListingTableFactory::new().create(state, &command).await;
                match created {
                    Ok(provider) => provider,
                    Err(error) => return Err(located(error.into(), &files, command, state).await),
                }
            }
        };
        *self.made.lock() = Some(Made {
            fingerprint,
            stamp,
            provider: Arc::clone(&provider),
        });
        Ok(provider)
    }
}

/// Names the file of `files` that has an error, if there is one: DataFusion does not name it.
async fn located(
    mut error: SqlError,
    files: &[PathBuf],
    mut command: CreateExternalTable,
    state: &SessionState,
) -> SqlError {
    let is_of_content = matches!(
        error.code,
        Code::DataCorrupted | Code::BadCopyFileFormat | Code::InvalidTextRepresentation
    );
    if !is_of_content {
        return error;
    }
    command.table_partition_cols.clear();
    for file in files {
        command.locations = vec![glob::Pattern::escape(&file.to_string_lossy())];
        let alone = ListingTableFactory::new().create(state, &command).await;
        let cause = alone.err().map(SqlError::from);
        if cause.is_some_and(|cause| cause.message == error.message) {
            error.message = format!("{}: {}", file.display(), error.message);
            return error;
        }
    }
    error
}

/// Returns a number that changes when a file is added, removed or replaced.
async fn fingerprint(
    command: &CreateExternalTable,
    state: &SessionState,
    paths: &Paths,
) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    let mut found = false;
    for location in &command.locations {
        let url = ListingTableUrl::parse(location)?;
        if url.scheme() != "file" {
            let message = format!("reading {}://", url.scheme());
            return Err(SqlError::unsupported(message)
                .with_hint("name files by their path, or as in s3://BUCKET/KEY"));
        }
        let store = state.runtime_env().object_store(&url)?;
        let files = url.list_all_files(state, &*store, "").await?;
        let files: Vec<_> = files.try_collect().await?;
        found |= !files.is_empty();
        for file in files {
            paths.check_file(&Path::new("/").join(file.location.as_ref()))?;
            let changed = file.last_modified.timestamp_nanos_opt();
            (file.location, file.size, changed, file.e_tag).hash(&mut hasher);
        }
    }
    match found {
        true => Ok(hasher.finish()),
        false => Err(no_file(&command.locations.join(", "))),
    }
}

fn no_file(path: &str) -> SqlError {
    SqlError::new(Code::UndefinedFile, format!("there is no file {path}"))
}

/// Returns whether a path has a `/` after its first `*`, `?` or `[`.
fn has_folder_in_pattern(path: &str) -> bool {
    let first = path.find(PATTERN);
    first.is_some_and(|first| !path.contains("://") && path[first..].contains('/'))
}

/// Returns the files that match a pattern, at most [`FILES_MAX`].
fn expanded(pattern: &str) -> Result<Vec<String>> {
    let found =
        glob::glob_with(pattern, PATTERN_OPTIONS).map_err(|error| wrong(pattern, &error))?;
    let files = found.flatten().filter(|path| path.is_file());
    let files: Vec<String> = files
        .take(FILES_MAX)
        .map(|path| glob::Pattern::escape(&path.to_string_lossy()))
        .collect();
    match files.is_empty() {
        true => Err(no_file(pattern)),
        false => Ok(files),
    }
}

/// Returns the pattern of a text.
///
/// # Errors
/// If the text is no pattern.
pub(crate) fn pattern_of(text: &str) -> Result<glob::Pattern> {
    glob::Pattern::new(text).map_err(|error| wrong(text, &error))
}

fn wrong(pattern: &str, error: &glob::PatternError) -> SqlError {
    let message = format!("the pattern {pattern} is wrong: {error}");
    SqlError::new(Code::InvalidParameterValue, message)
}

/// Returns whether the end of a name tells the format and the compression of a table.
fn is_of(command: &CreateExternalTable, name: &str) -> bool {
    let wanted = command
        .options
        .get("format.compression")
        .map(|it| it.to_ascii_lowercase());
    format_of(name).is_some_and(|(format, compression)| {
        format.name.eq_ignore_ascii_case(&command.file_type) && compression == wanted.as_deref()
    })
}

/// Returns the format of a path, its compression, and the location for DataFusion.
async fn recognised(
    path: &str,
    state: &SessionState,
) -> Result<Option<(Format, Option<&'static str>, String)>> {
    if let Some((format, compression)) = format_of(path) {
        return Ok(Some((format, compression, path.to_owned())));
    }
    // `name` is that of a file in the folder, or in folders of it.
    let of_file = |name: &str, folder: &str| {
        let (format, compression) = format_of(name).filter(|_| !is_hidden(name))?;
        let ending = ending_of(name, format);
        let shown = if name.starts_with('_') { "*" } else { SHOWN };
        Some((format, compression, format!("{folder}{shown}{ending}")))
    };
    let folder = format!("{}/", path.trim_end_matches('/'));
    let is_folder = path.ends_with('/') || Path::new(path).is_dir();
    if let Some(location) = Location::parse(&folder)? {
        let found = location.first(state, |name| of_file(name, &folder)).await?;
        return found.map_or_else(|| Err(no_file(path)), |found| Ok(Some(found)));
    }
    if !is_folder {
        return Ok(None);
    }
    let url = ListingTableUrl::parse(&folder)?;
    let folders = url.prefix().parts().count();
    let store = state.runtime_env().object_store(&url)?;
    let mut files = url
        .list_all_files(state as &dyn Session, &*store, "")
        .await?;
    while let Some(file) = files.try_next().await? {
        let name: Vec<_> = file.location.parts().skip(folders).collect();
        let name: Vec<&str> = name.iter().map(AsRef::as_ref).collect();
        if let Some(found) = of_file(&name.join("/"), &folder) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Returns whether a file is none of the table of its folder: other tools write their own there, such as
/// `_delta_log/00000000000000000000.json`. `_year=2026` is a partition.
fn is_hidden(name: &str) -> bool {
    let mut parts = name.split('/');
    parts.any(|part| part.starts_with('.') || part.starts_with('_') && !part.contains('='))
}

/// Returns the end of a name from the dot of its format on, as in `.csv.gz`.
fn ending_of(name: &str, format: Format) -> &str {
    let mut dots = format
        .endings
        .iter()
        .map(|ending| name.rfind(&format!(".{ending}")));
    let dot = dots.find_map(|dot| dot).unwrap_or(name.len());
    &name[dot..]
}

/// Returns the name of the table of a file: its name without format and compression; `None` if it has no format that is
/// known.
pub(crate) fn table_name(file: &str) -> Option<&str> {
    let (format, _) = format_of(file)?;
    Some(&file[..file.len() - ending_of(file, format).len()])
}

/// Returns whether the name of a table is a path: it has a folder, or the ending of a format.
pub(crate) fn is_path(name: &str) -> bool {
    name.contains('/') || format_of(name).is_some()
}

/// Returns the format and the compression that the end of a name tells.
fn format_of(name: &str) -> Option<(Format, Option<&'static str>)> {
    let file = name.rsplit('/').next()?;
    let (mut stem, mut ending) = file.rsplit_once('.')?;
    let compression = COMPRESSIONS.iter().find(|(known, _)| *known == ending);
    if compression.is_some() {
        (stem, ending) = stem.rsplit_once('.')?;
    }
    let format = FORMATS
        .into_iter()
        .find(|format| format.endings.contains(&ending))?;
    let is_text = matches!(format.name, "CSV" | "JSON");
    (!stem.is_empty() && (is_text || compression.is_none()))
        .then_some((format, compression.map(|(_, name)| *name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_format_and_compression() {
        let of = |name| format_of(name).map(|(format, compression)| (format.name, compression));
        assert_eq!(of("a/b.parquet"), Some(("PARQUET", None)));
        assert_eq!(of("s3://bucket/b.csv.gz"), Some(("CSV", Some("gzip"))));
        assert_eq!(of("*.jsonl"), Some(("JSON", None)));
        for unknown in ["b", "b.txt", ".csv", "b.parquet.gz", "a.csv/b"] {
            assert_eq!(of(unknown), None, "{unknown}");
        }
        let csv = format_of("x.csv.zst").expect("a format").0;
        assert_eq!(ending_of("dir/x.csv.zst", csv), ".csv.zst");
    }
}
