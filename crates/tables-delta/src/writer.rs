//! Writes rows to data files.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use arrow::array::RecordBatch;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use crate::error::{Error, Result, of_io};
use crate::folder::{Folder, Step, sync_names};
use crate::log::Add;
use crate::stats::FileStats;
use crate::table::DataFile;

/// Begins the names of data files of this crate. Those that belong to no version are deleted when a table is opened.
pub(crate) const PREFIX: &str = "forebay-";
/// Bytes of a file, after which the next one begins. A changed row rewrites its file.
const FILE_BYTES: usize = 64 << 20;
/// Maximum bytes of a group of rows, which is in memory until it is written.
const GROUP_BYTES_MAX: usize = 16 << 20;
/// Maximum rows of a group.
const GROUP_ROWS_MAX: usize = 256 << 10;

/// Writes rows to data files of a table. They belong to it after [`Table::commit`](crate::Table::commit), and are
/// deleted if they are dropped before.
#[derive(Debug)]
pub struct Writer {
    folder: Arc<Folder>,
    schema: SchemaRef,
    open: Option<Open>,
    done: Vec<Arc<DataFile>>,
    rows: u64,
}

/// A file in progress.
struct Open {
    writer: ArrowWriter<File>,
    file: Unfinished,
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.file.0.fmt(f)
    }
}

/// The path of a file that is deleted unless it is finished.
#[derive(Debug)]
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Writer {
    pub(crate) fn new(folder: &Arc<Folder>, schema: &SchemaRef) -> Writer {
        Writer {
            folder: Arc::clone(folder),
            schema: Arc::clone(schema),
            open: None,
            done: Vec::new(),
            rows: 0,
        }
    }

    /// Returns the number of rows that were written.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the bytes of rows that are in memory.
    pub fn memory_bytes(&self) -> usize {
        self.open
            .as_ref()
            .map_or(0, |open| open.writer.memory_size())
    }

    /// Writes rows. Columns are cast to the types of the table.
    ///
    /// # Errors
    /// If the disk does not take them, or a value does not fit the type of its column.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let batch = self.conformed(batch)?;
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.begin()?,
        };
        let path = open.file.0.clone();
        self.folder.step(Step::WriteData, &path)?;
        let written = open.writer.write(&batch).and_then(|()| {
            match open.writer.memory_size() > GROUP_BYTES_MAX {
                true => open.writer.flush(),
                false => Ok(()),
            }
        });
        written.map_err(|error| Error::of_parquet(&path, error))?;
        self.rows += batch.num_rows() as u64;
        match open.writer.bytes_written() + open.writer.in_progress_size() >= FILE_BYTES {
            true => self.end(open),
            false => {
                self.open = Some(open);
                Ok(())
            }
        }
    }

    /// Syncs the files and returns them.
    ///
    /// # Errors
    /// If the disk does not take them.
    pub fn finish(mut self) -> Result<Vec<Arc<DataFile>>> {
        if let Some(open) = self.open.take() {
            self.end(open)?;
        }
        if !self.done.is_empty() {
            self.folder.step(Step::SyncFolder, self.folder.path())?;
            sync_names(self.folder.path())?;
        }
        Ok(self.done)
    }

    fn conformed(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let fields = self.schema.fields().iter();
        // A value that does not fit is an error, not null.
        let options = CastOptions {
            safe: false,
            ..CastOptions::default()
        };
        let columns = fields.zip(batch.columns()).map(|(field, column)| {
            match column.data_type() == field.data_type() {
                true => Ok(Arc::clone(column)),
                false => cast_with_options(column, field.data_type(), &options),
            }
        });
        let columns = columns.collect::<Result<Vec<_>, _>>();
        let batch =
            columns.and_then(|columns| RecordBatch::try_new(Arc::clone(&self.schema), columns));
        batch.map_err(|error| Error::Unsupported(format!("this row ({error})")))
    }

    fn begin(&self) -> Result<Open> {
        let name = format!("{PREFIX}{:032x}.parquet", fastrand::u128(..));
        let path = self.folder.path().join(name);
        self.folder.step(Step::WriteData, &path)?;
        let file = File::create_new(&path).map_err(of_io(&path))?;
        let unfinished = Unfinished(path.clone());
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some(GROUP_ROWS_MAX))
            .build();
        // Other tools take the types from the log.
        let options = ArrowWriterOptions::new()
            .with_properties(properties)
            .with_skip_arrow_metadata(true);
        let writer = ArrowWriter::try_new_with_options(file, Arc::clone(&self.schema), options);
        Ok(Open {
            writer: writer.map_err(|error| Error::of_parquet(&path, error))?,
            file: unfinished,
        })
    }

    /// Ends and syncs a file.
    fn end(&mut self, open: Open) -> Result<()> {
        let Open { mut writer, file } = open;
        let path = &file.0;
        self.folder.step(Step::WriteData, path)?;
        let footer = writer
            .finish()
            .map_err(|error| Error::of_parquet(path, error))?;
        self.folder.step(Step::SyncData, path)?;
        writer.inner().sync_all().map_err(of_io(path))?;
        let size = writer.inner().metadata().map_err(of_io(path))?.len();
        let stats = FileStats::of_footer(&self.schema, &footer);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let add = Add {
            path: name.into_owned(),
            partition_values: Default::default(),
            size,
            modification_time: milliseconds(),
            data_change: true,
            stats: serde_json::to_string(&stats).ok(),
            deletion_vector: None,
        };
        self.done
            .push(Arc::new(DataFile::unused(&self.folder, add)?));
        // From here on, the file is deleted with its `DataFile`.
        std::mem::forget(file);
        Ok(())
    }
}

/// Returns the milliseconds since 1970.
pub(crate) fn milliseconds() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    })
}
