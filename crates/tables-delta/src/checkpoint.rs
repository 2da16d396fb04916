//! Checkpoints: the state of a table at a version in one file, from which readers go on.
//!
//! Actions become rows of Parquet by way of their JSON, of which the log consists.

use std::fs::File;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema};
use arrow::json::{LineDelimitedWriter, ReaderBuilder};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use crate::error::{Error, Result, of_io};
use crate::folder::Folder;
use crate::log::{self, Action, checkpoint_path};

/// Name of the file that tells readers the last checkpoint.
const LAST: &str = "_last_checkpoint";

fn field(name: &str, data_type: DataType) -> Field {
    Field::new(name, data_type, true)
}

fn text(name: &str) -> Field {
    field(name, DataType::Utf8)
}

fn map(name: &str) -> Field {
    let (key, value) = (Field::new("key", DataType::Utf8, false), text("value"));
    let entries = DataType::Struct(Fields::from(vec![key, value]));
    let entries = Field::new("key_value", entries, false);
    field(name, DataType::Map(Arc::new(entries), false))
}

fn texts(name: &str) -> Field {
    let item = Field::new("element", DataType::Utf8, true);
    field(name, DataType::List(Arc::new(item)))
}

fn group(name: &str, fields: Vec<Field>) -> Field {
    field(name, DataType::Struct(Fields::from(fields)))
}

/// Returns the columns of a checkpoint.
fn columns() -> Schema {
    let add = vec![
        text("path"),
        map("partitionValues"),
        field("size", DataType::Int64),
        field("modificationTime", DataType::Int64),
        field("dataChange", DataType::Boolean),
        text("stats"),
    ];
    let remove = vec![
        text("path"),
        field("deletionTimestamp", DataType::Int64),
        field("dataChange", DataType::Boolean),
    ];
    let meta_data = vec![
        text("id"),
        text("name"),
        group("format", vec![text("provider"), map("options")]),
        text("schemaString"),
        texts("partitionColumns"),
        field("createdTime", DataType::Int64),
        map("configuration"),
    ];
    let protocol = vec![
        field("minReaderVersion", DataType::Int32),
        field("minWriterVersion", DataType::Int32),
        texts("readerFeatures"),
        texts("writerFeatures"),
    ];
    Schema::new(vec![
        group("add", add),
        group("remove", remove),
        group("metaData", meta_data),
        group("protocol", protocol),
    ])
}

/// Writes the checkpoint of a version.
///
/// # Errors
/// If it cannot be written. There is then none.
pub(crate) fn write(folder: &Folder, version: u64, actions: &[Action]) -> Result<()> {
    let path = checkpoint_path(&folder.log(), version);
    let content = encoded(actions).map_err(|error| Error::damaged(&path, error))?;
    log::replace(folder, &path, &content)?;
    let last = serde_json::json!({ "version": version, "size": actions.len() });
    log::replace(
        folder,
        &folder.log().join(LAST),
        last.to_string().as_bytes(),
    )
}

/// Returns actions as a Parquet file.
fn encoded(actions: &[Action]) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let schema = Arc::new(columns());
    let text = log::to_text(actions)?;
    let rows = ReaderBuilder::new(Arc::clone(&schema)).build(Cursor::new(text))?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema, Some(properties))?;
    for batch in rows {
        writer.write(&batch?)?;
    }
    Ok(writer.into_inner()?)
}

/// Reads the actions of a checkpoint.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn read(log: &Path, version: u64) -> Result<Vec<Action>> {
    let path = checkpoint_path(log, version);
    let file = File::open(&path).map_err(of_io(&path))?;
    let text = decoded(file).map_err(|error| Error::damaged(&path, error))?;
    log::parse(&path, &text)
}

fn decoded(file: File) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut writer = LineDelimitedWriter::new(Vec::new());
    for batch in ParquetRecordBatchReaderBuilder::try_new(file)?.build()? {
        writer.write(&batch?)?;
    }
    writer.finish()?;
    Ok(writer.into_inner())
}
