//! `forebay export`: writes a collection of a running server to a file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use bson::{Bson, Document, RawDocument, RawDocumentBuf, bson};
use clap::{Args, ValueEnum};
use forebay_wire_mongo::Limits;
use forebay_wire_mongo::validate::validate_document;
use futures_util::TryStreamExt;

use super::client::ServerArgs;

/// The last date that relaxed extended JSON writes as text: the end of the year 9999, in milliseconds since 1970.
const TEXT_DATE_MS_MAX: i64 = 253_402_300_799_999;
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
/// If the server refuses, or the file cannot be written.
pub async fn run(args: &ExportArgs) -> Result<()> {
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
    let mut cursor = collection.find(filter).batch_size(BATCH_COUNT).await?;
    let mut out = open(args)?;
    let mut count: u64 = 0;
    while let Some(document) = cursor.try_next().await? {
        write(&mut out, &document, args.format).context("writing")?;
        count += 1;
    }
    out.flush().context("writing")?;
    eprintln!("{count} documents exported");
    Ok(())
}

fn parse_filter(text: &str) -> Result<Document> {
    let value: serde_json::Value = serde_json::from_str(text)?;
    let serde_json::Value::Object(object) = value else {
        bail!("a filter is a JSON object");
    };
    Ok(Document::try_from(object)?)
}

fn open(args: &ExportArgs) -> Result<Box<dyn Write + Send>> {
    match &args.out {
        None => Ok(Box::new(BufWriter::new(io::stdout()))),
        Some(path) => {
            let file =
                File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
            Ok(Box::new(BufWriter::new(file)))
        }
    }
}

fn write(out: &mut impl Write, document: &RawDocument, format: Output) -> Result<()> {
    if format == Output::Bson {
        out.write_all(document.as_bytes())?;
        return Ok(());
    }
    validate_document(document.as_bytes(), &Limits::default())
        .context("a document cannot be written as JSON; --format bson writes it")?;
    let mut value = Bson::Document(Document::try_from(document)?);
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
