//! Compaction: many small files become one, so that reading a table stays quick after many small writes.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::error::{Error, Result, of_io};
use crate::table::{Change, DataFile, Snapshot, Table};
use crate::writer::Writer;

/// Number of files of about the same size that become one.
const FILES: usize = 32;
/// Files of at least these bytes stay.
const LARGE_BYTES: u64 = 16 << 20;
/// Rows that are read at once.
const BATCH_ROWS: usize = 8_192;

impl Table {
    /// Merges small files if there are many. Returns whether it did. Changes that remove files must not run meanwhile,
    /// or one of both fails with [`Error::Conflict`].
    ///
    /// # Errors
    /// If a file cannot be read or written. The table is then as before.
    pub fn compact(&self) -> Result<bool> {
        let snapshot = self.snapshot()?;
        let Some(small) = small_files(&snapshot) else {
            return Ok(false);
        };
        let mut writer = self.writer();
        for file in &small {
            copy(file, &mut writer)?;
        }
        self.commit(&Change {
            operation: "OPTIMIZE",
            added: writer.finish()?,
            removed: small,
            is_data_change: false,
        })?;
        Ok(true)
    }

    /// Returns whether [`Table::compact`] has something to do.
    pub fn needs_compaction(&self) -> bool {
        self.snapshot()
            .is_ok_and(|snapshot| small_files(&snapshot).is_some())
    }
}

/// Returns files of about the same size, within a factor of 16, if there are enough of them.
fn small_files(snapshot: &Snapshot) -> Option<Vec<Arc<DataFile>>> {
    let mut by_size: BTreeMap<u32, Vec<Arc<DataFile>>> = BTreeMap::new();
    let small = snapshot.files().iter();
    for file in small.filter(|file| file.size_bytes() < LARGE_BYTES) {
        let magnitude = file.size_bytes().max(1).ilog2().max(12) / 4;
        by_size.entry(magnitude).or_default().push(Arc::clone(file));
    }
    by_size.into_values().find(|files| files.len() >= FILES)
}

fn copy(file: &DataFile, writer: &mut Writer) -> Result<()> {
    let path = file.path();
    let opened = File::open(&path).map_err(of_io(&path))?;
    let damaged = |error| Error::of_parquet(&path, error);
    let reader = ParquetRecordBatchReaderBuilder::try_new(opened).map_err(damaged)?;
    let reader = reader
        .with_batch_size(BATCH_ROWS)
        .build()
        .map_err(damaged)?;
    for batch in reader {
        writer.write(&batch.map_err(|error| Error::damaged(&path, error))?)?;
    }
    Ok(())
}
