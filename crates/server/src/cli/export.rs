//! `forebay export`: writes a collection of a running server to a file.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bson::{Bson, Document, RawDocument, RawDocumentBuf, bson};
use clap::{Args, ValueEnum};
use forebay_terminal::{OutputError, note};
use forebay_wire_mongo::Limits;
use forebay_wire_mongo::validate::validate_document;
use futures_util::TryStreamExt;
use mongodb::Cursor;
use tempfile::NamedTempFile;

use super::client::ServerArgs;
use super::documents;
use crate::stop::Stop;

/// The last date that relaxed extended JSON writes as text: the end of the year 9999, in milliseconds since 1970.
const TEXT_DATE_MS_MAX: i64 = 253_402_300_799_999;
/// Error message for a document that nests too deeply or has a string that is not UTF-8.
const NOT_AS_JSON: &str = "a document cannot be written as JSON; --format bson writes it";
/// Number of documents per batch.
const BATCH_COUNT: u32 = 10_000;

/// Export a collection as JSON lines or BSON
#[derive(Debug, Args)]
pub struct ExportArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Database to export from.
    #[arg(long)]
    db: String,
    /// Collection to export.
    #[arg(long)]
    collection: String,
    /// Only documents that match this filter, in extended JSON.
    #[arg(long, value_name = "JSON", default_value = "{}")]
    query: String,
    /// Format of the output.
    #[arg(long, value_enum, default_value = "relaxed")]
    format: Output,
    /// File to write; standard output by default.
    ///
    /// The file is written under a temporary name beside it and renamed at the end. If an export ends early, an
    /// existing file stays as it was.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// JSON lines in relaxed extended JSON: plain numbers, readable dates.
    Relaxed,
    /// JSON lines in canonical extended JSON: every type is kept.
    Canonical,
    /// Concatenated BSON documents.
    Bson,
}

/// Runs the export.
///
/// # Errors
/// - If the server refuses, or the file cannot be written.
/// - If a stop was requested while a file was written.
pub async fn run(args: &ExportArgs, stop: &Stop) -> Result<()> {
    let filter = parse_filter(&args.query).context("--query")?;
    let client = args.server.connect().await?;
    let collection = client
        .database(&args.db)
        .collection::<RawDocumentBuf>(&args.collection);
    // Ignore the error of a user who may not list collections, but may be allowed to read this one.
    if let Ok(names) = client.database(&args.db).list_collection_names().await
        && !names.contains(&args.collection)
    {
        bail!("there is no collection {}.{}", args.db, args.collection);
    }
    let cursor = collection.find(filter).batch_size(BATCH_COUNT).await?;
    let count = match &args.out {
        Some(path) if is_replaceable(path) => {
            let mut stopped = stop.listen();
            let mut file = Replacement::of(path)?;
            let count = tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => bail!("interrupted"),
                count = write_all(cursor, &mut file.new, args.format) => count?,
            };
            file.commit()?;
            count
        }
        Some(path) => {
            let file = File::create(path).with_context(|| cannot_write(path))?;
            write_all(cursor, file, args.format).await?
        }
        None => write_all(cursor, io::stdout(), args.format).await?,
    };
    note(format_args!("{} exported", documents(count)));
    Ok(())
}

/// Writes the documents of a cursor. Returns their number.
async fn write_all(
    mut cursor: Cursor<RawDocumentBuf>,
    out: impl Write,
    format: Output,
) -> Result<u64> {
    let mut out = BufWriter::new(out);
    let mut count = 0;
    while let Some(document) = cursor.try_next().await? {
        write(&mut out, &document, format).map_err(of_writing)?;
        count += 1;
    }
    out.flush().map_err(|error| of_writing(error.into()))?;
    Ok(count)
}

/// Describes why the output cannot be written. A pipe breaks if its reader, such as `head`, ends early.
fn of_writing(error: anyhow::Error) -> anyhow::Error {
    let kind = error.downcast_ref().map(io::Error::kind);
    let of_json = || error.downcast_ref::<serde_json::Error>()?.io_error_kind();
    match kind.or_else(of_json) {
        Some(kind @ io::ErrorKind::BrokenPipe) => OutputError(kind.into()).into(),
        _ => error.context("writing"),
    }
}

/// Returns whether `path` is a file or does not exist. Pipes and devices cannot be replaced.
fn is_replaceable(path: &Path) -> bool {
    fs::metadata(path).map_or(true, |metadata| metadata.is_file())
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// A temporary file beside the file that it will replace. Dropping it removes the temporary file.
struct Replacement {
    new: NamedTempFile,
    path: PathBuf,
}

impl Replacement {
    /// Creates the temporary file with the permissions of the file at `path`. Follows links to that file.
    fn of(path: &Path) -> Result<Replacement> {
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let permissions = fs::metadata(&path).map(|metadata| metadata.permissions());
        let new = tempfile::Builder::new()
            .prefix(".forebay-export-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder_of(&path))
            .with_context(|| cannot_write(&path))?;
        if let Ok(permissions) = permissions {
            let set = new.as_file().set_permissions(permissions);
            set.with_context(|| cannot_write(&path))?;
        }
        Ok(Replacement { new, path })
    }

    /// Replaces the file. Returns after the new content is durable.
    fn commit(self) -> Result<()> {
        let Replacement { new, path } = self;
        let replace = || -> io::Result<()> {
            new.as_file().sync_all()?;
            new.persist(&path)?;
            File::open(folder_of(&path))?.sync_all()
        };
        replace().with_context(|| cannot_write(&path))
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

fn parse_filter(text: &str) -> Result<Document> {
    let value: serde_json::Value = serde_json::from_str(text)?;
    let serde_json::Value::Object(object) = value else {
        bail!("the filter must be a JSON object");
    };
    Ok(Document::try_from(object)?)
}

fn write(out: &mut impl Write, document: &RawDocument, format: Output) -> Result<()> {
    if format == Output::Bson {
        out.write_all(document.as_bytes())?;
        return Ok(());
    }
    validate_document(document.as_bytes(), &Limits::default()).context(NOT_AS_JSON)?;
    let mut value = Bson::Document(Document::try_from(document).context(NOT_AS_JSON)?);
    let value = match format {
        Output::Canonical => value.into_canonical_extjson(),
        _ => {
            number_late_dates(&mut value);
            value.into_relaxed_extjson()
        }
    };
    serde_json::to_writer(&mut *out, &value)?;
    out.write_all(b"\n")?;
    Ok(())
}

/// Replaces dates after the year 9999 with their form as numbers. The BSON library would change them to the last day of
/// that year.
fn number_late_dates(value: &mut Bson) {
    match value {
        Bson::DateTime(date) if date.timestamp_millis() > TEXT_DATE_MS_MAX => {
            let milliseconds = date.timestamp_millis().to_string();
            *value = bson!({ "$date": { "$numberLong": milliseconds } });
        }
        Bson::Array(values) => values.iter_mut().for_each(number_late_dates),
        Bson::Document(document) => number_in(document),
        Bson::JavaScriptCodeWithScope(code) => number_in(&mut code.scope),
        _ => {}
    }
}

fn number_in(document: &mut Document) {
    document
        .iter_mut()
        .for_each(|(_, value)| number_late_dates(value));
}

#[cfg(test)]
mod tests {
    use bson::{DateTime, JavaScriptCodeWithScope, doc};

    use super::*;

    #[test]
    fn dates_after_the_year_9999_stay_as_they_are() {
        let late = DateTime::from_millis(TEXT_DATE_MS_MAX + 1);
        let scoped = JavaScriptCodeWithScope {
            code: String::new(),
            scope: doc! { "d": late },
        };
        let document = doc! {
            "last": DateTime::from_millis(TEXT_DATE_MS_MAX), "first": late, "max": [{ "d": DateTime::MAX }], "code": scoped,
        };
        let document = RawDocumentBuf::try_from(&document).expect("valid");
        let mut out = Vec::new();
        write(&mut out, &document, Output::Relaxed).expect("memory takes bytes");
        let first = r#"{"$date":{"$numberLong":"253402300800000"}}"#;
        let expected = format!(
            "{{\"last\":{{\"$date\":\"9999-12-31T23:59:59.999Z\"}},\"first\":{first},\"max\":[{{\"d\":{{\"$date\":\
             {{\"$numberLong\":\"9223372036854775807\"}}}}}}],\"code\":{{\"$code\":\"\",\"$scope\":{{\"d\":{first}}}}}}}\n"
        );
        assert_eq!(String::from_utf8(out).expect("UTF-8"), expected);
    }

    #[test]
    fn a_file_is_replaced_only_at_the_end() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old").expect("written");
        fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("set");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        for (is_complete, content) in [(false, "old"), (true, "new")] {
            let mut replacement = Replacement::of(&link).expect("a temporary file");
            replacement.new.write_all(b"new").expect("written");
            match is_complete {
                true => replacement.commit().expect("renamed"),
                false => drop(replacement),
            }
            assert_eq!(fs::read_to_string(&file).expect("read"), content);
            assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 2);
        }
        let mode = fs::metadata(&file).expect("read").permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert!(link.is_symlink());
        assert!(!is_replaceable(Path::new("/dev/null")));
    }

    /// A store written by a release without the depth limit may contain documents that nest too deeply for JSON.
    #[test]
    fn what_nests_too_deep_is_exported_as_bson_only() {
        const LEVELS: usize = 100_000;
        let mut bytes = Vec::new();
        for level in (0..LEVELS).rev() {
            bytes.extend_from_slice(&(8 * level as i32 + 5).to_le_bytes());
            bytes.extend_from_slice(if level > 0 { b"\x03x\0" } else { b"" });
        }
        bytes.resize(bytes.len() + LEVELS, 0);
        let deep = RawDocumentBuf::from_bytes(bytes).expect("a frame");
        let mut out = Vec::new();
        for format in [Output::Relaxed, Output::Canonical] {
            let error = write(&mut out, &deep, format).expect_err("too deep");
            assert!(
                format!("{error:#}").contains("deeper than 200"),
                "{error:#}"
            );
        }
        assert!(out.is_empty());
        write(&mut out, &deep, Output::Bson).expect("BSON has no depth limit");
        assert_eq!(out, deep.as_bytes());
    }
}
