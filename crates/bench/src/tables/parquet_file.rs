//! Writes a table as a Parquet file. Threads make and encode row groups, which reach the file in order.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{
    ArrowColumnChunk, ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves,
};
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use serde::Serialize;

use crate::data::temporary_beside;

/// Maximum rows of a row group, about.
const GROUP_ROWS_MAX: u64 = 1 << 20;
/// Minimum rows of a row group of a table that has several.
const GROUP_ROWS_MIN: u64 = 1 << 17;
/// Row groups of a table of medium size: as many as threads of a usual machine can read at once.
const GROUPS: u64 = 8;

/// Batches of rows of one row group.
pub type Batches = Box<dyn Iterator<Item = Result<RecordBatch>>>;

/// A table that can be made in parts.
pub struct Table {
    /// Name of the table, and of its file.
    pub name: &'static str,
    /// Columns of the table.
    pub schema: SchemaRef,
    /// Number of row groups.
    pub groups: u64,
    /// Returns the rows of a row group; the groups count from 0.
    pub rows: Box<dyn Fn(u64) -> Batches + Sync>,
}

/// What was written.
#[derive(Clone, Debug, Serialize)]
pub struct Written {
    /// Name of the table.
    pub table: &'static str,
    /// Number of rows.
    pub rows: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Seconds from the start to the finished file.
    pub seconds: f64,
}

/// Returns into how many row groups a table of `rows` rows is divided.
pub fn group_count(rows: u64) -> u64 {
    let several = (rows / GROUP_ROWS_MIN).min(GROUPS);
    rows.div_ceil(GROUP_ROWS_MAX).max(several).max(1)
}

/// Writes `table` to `<name>.parquet` in `folder`; on failure, an older file is unchanged.
///
/// # Errors
/// If a row cannot be made, the disk is full, or a thread cannot be started.
pub fn write(table: &Table, folder: &Path, threads: usize) -> Result<Written> {
    let start = Instant::now();
    let path = folder.join(format!("{}.parquet", table.name));
    let temporary = temporary_beside(&path)?;
    let rows = encode(table, temporary.as_file(), threads)
        .with_context(|| format!("writing {}", path.display()))?;
    readable_by_all(temporary.as_file())?;
    let file = temporary.persist(&path);
    let file = file.with_context(|| format!("writing {}", path.display()))?;
    Ok(Written {
        table: table.name,
        rows,
        bytes: file.metadata()?.len(),
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// Gives a temporary file, which only its owner can read, the usual permissions. A server of another user reads it.
fn readable_by_all(file: &File) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(file.set_permissions(fs::Permissions::from_mode(0o644))?)
}

fn encode(table: &Table, file: &File, threads: usize) -> Result<u64> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .build();
    let buffered = BufWriter::new(file);
    let writer = ArrowWriter::try_new(buffered, table.schema.clone(), Some(properties))?;
    let (mut writer, factory) = writer.into_serialized_writer()?;
    thread::scope(|scope| {
        let workers = threads.clamp(1, usize::try_from(table.groups).unwrap_or(usize::MAX));
        let mut receivers = Vec::new();
        for worker in 0..workers {
            let (sender, receiver) = sync_channel(1);
            let groups = (worker as u64..table.groups).step_by(workers);
            let factory = &factory;
            let work = move || send_groups(table, factory, groups, &sender);
            thread::Builder::new().spawn_scoped(scope, work)?;
            receivers.push(receiver);
        }
        collect(&mut writer, table.groups, &receivers)
    })?;
    let rows = writer
        .flushed_row_groups()
        .iter()
        .map(|group| group.num_rows());
    let rows = rows.sum::<i64>().try_into()?;
    writer.into_inner()?.flush()?;
    Ok(rows)
}

/// Makes row groups and sends them, until all are made or the receiver is gone because of an error.
fn send_groups(
    table: &Table,
    factory: &ArrowRowGroupWriterFactory,
    groups: impl Iterator<Item = u64>,
    sender: &SyncSender<Result<Vec<ArrowColumnChunk>>>,
) {
    for group in groups {
        if sender.send(encode_group(table, factory, group)).is_err() {
            return;
        }
    }
}

fn encode_group(
    table: &Table,
    factory: &ArrowRowGroupWriterFactory,
    group: u64,
) -> Result<Vec<ArrowColumnChunk>> {
    let mut writers = factory.create_column_writers(usize::try_from(group)?)?;
    for batch in (table.rows)(group) {
        write_batch(&mut writers, &batch?)?;
    }
    let chunks = writers.into_iter().map(ArrowColumnWriter::close);
    Ok(chunks.collect::<Result<_, _>>()?)
}

fn write_batch(writers: &mut [ArrowColumnWriter], batch: &RecordBatch) -> Result<()> {
    let schema = batch.schema();
    let mut writers = writers.iter_mut();
    for (field, column) in schema.fields().iter().zip(batch.columns()) {
        for leaf in compute_leaves(field, column)? {
            let writer = writers.next().context("a column has no writer")?;
            writer.write(&leaf)?;
        }
    }
    Ok(())
}

/// Takes the row groups in order and appends them to the file.
fn collect<W: Write + Send>(
    writer: &mut SerializedFileWriter<W>,
    groups: u64,
    receivers: &[Receiver<Result<Vec<ArrowColumnChunk>>>],
) -> Result<()> {
    for (_, receiver) in (0..groups).zip(receivers.iter().cycle()) {
        let chunks = receiver.recv().context("a thread has ended early")??;
        let mut group = writer.next_row_group()?;
        for chunk in chunks {
            chunk.append_to_row_group(&mut group)?;
        }
        group.close()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_neither_large_nor_many() {
        assert_eq!(group_count(0), 1);
        assert_eq!(group_count(200_000), 1);
        assert_eq!(group_count(600_000), 4);
        assert_eq!(group_count(6_000_000), 8);
        assert_eq!(group_count(60_000_000), 58);
    }
}
