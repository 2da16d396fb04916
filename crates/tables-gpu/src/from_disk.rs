//! Columns that are written to column files, and read from them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::column_file::{self, Footer, Unusable, Writer};
use crate::columns::{ColumnKey, Columns, Read};
use crate::disk::{Disk, Name};
use crate::engine::{FileRead, Memory};
use crate::reason::Reason;

type Result<T> = std::result::Result<T, Reason>;

/// What was read from column files.
#[derive(Debug, Clone, Default)]
pub(crate) struct FromDisk {
    pub(crate) bytes: u64,
    pub(crate) took: Duration,
    /// The storage path.
    pub(crate) path: &'static str,
}

/// A column that is read from its file.
struct Reading {
    key: ColumnKey,
    name: Name,
    footer: Footer,
}

impl Columns {
    /// Returns the file of a column that is not here.
    pub(crate) fn file_of(&self, key: &ColumnKey) -> Option<Name> {
        let name = Name::of(key)?;
        self.disk.as_ref()?.has(&name).then_some(name)
    }

    /// Brings the columns that are missing, and have files, to the engine.
    ///
    /// # Errors
    /// If there is no room, or the device fails.
    pub(crate) async fn read_files(&self, reads: &[Read], began: u64) -> Result<FromDisk> {
        let mut all = FromDisk::default();
        let Some(disk) = self.disk.as_ref() else {
            return Ok(all);
        };
        let (mut to_device, mut ranges) = (Vec::new(), Vec::new());
        for (key, name) in self.missing_with_files(reads) {
            let (path, key_text) = (disk.path(&name), name.key.clone());
            let footer = blocking(move || Footer::read(&path, &key_text)).await?;
            let Ok(footer) = footer.map_err(|why| unusable(disk, &name, &why)) else {
                continue;
            };
            disk.mark_used(&name);
            let reading = Reading { key, name, footer };
            match self.memory_of(&reading.footer, began) {
                Some(memory) => {
                    ranges.push(file_read(disk, &reading, &memory));
                    to_device.push((reading, memory));
                }
                None => all.add(self.read_to_host(disk, reading, began).await?),
            }
        }
        if to_device.is_empty() {
            return Ok(all);
        }
        let read = self.engine.read_files(ranges).await?;
        let mut bytes = 0;
        for ((reading, memory), sum) in to_device.into_iter().zip(read.sums) {
            match sum {
                Ok(sum) if sum == reading.footer.sum => {
                    bytes += reading.footer.data_bytes;
                    self.put_read(reading, memory, began).await?;
                }
                Ok(_) => unusable(disk, &reading.name, &Unusable::Damaged),
                Err(why) => unusable(disk, &reading.name, &Unusable::Unread(why)),
            }
        }
        all.add(FromDisk {
            bytes,
            took: read.took,
            path: read.path,
        });
        Ok(all)
    }

    /// Returns the columns of sources that are missing and have files, each once.
    fn missing_with_files(&self, reads: &[Read]) -> Vec<(ColumnKey, Name)> {
        let mut known = HashSet::new();
        let mut missing = Vec::new();
        for (source, files) in reads {
            for (file, _) in files {
                for column in &source.columns {
                    let key = Columns::key(file, source, *column);
                    if !self.is_settled(&key)
                        && let Some(name) = self.file_of(&key)
                        && known.insert(name.clone())
                    {
                        missing.push((key, name));
                    }
                }
            }
        }
        missing
    }

    /// Allocates memory of the device for each chunk; `None` if there is no room for all.
    fn memory_of(&self, footer: &Footer, began: u64) -> Option<Vec<Memory>> {
        if !self.has_room(footer.data_bytes, began) {
            return None;
        }
        let chunks = footer.chunks.iter();
        chunks
            .map(|chunk| self.room_of_column(chunk.bytes, began))
            .collect()
    }

    /// Reads a column into memory of the host that kernels read.
    async fn read_to_host(&self, disk: &Disk, reading: Reading, began: u64) -> Result<FromDisk> {
        let clock = std::time::Instant::now();
        let path = disk.path(&reading.name);
        let read = blocking(move || {
            let words = column_file::words(&path, &reading.footer);
            (words, reading)
        });
        let (words, reading) = read.await?;
        let words = match words {
            Ok(words) => words,
            Err(why) => {
                unusable(disk, &reading.name, &why);
                return Ok(FromDisk::default());
            }
        };
        let mut memory = Vec::new();
        for words in words {
            match self.placed(&words, began).await {
                Ok(placed) => memory.push(placed),
                Err(reason) => {
                    self.put_off(reading.key);
                    return Err(reason);
                }
            }
        }
        let bytes = reading.footer.data_bytes;
        self.put_read(reading, memory, began).await?;
        Ok(FromDisk {
            bytes,
            took: clock.elapsed(),
            path: "host",
        })
    }

    /// Puts a column whose chunks are in memory among those that are here.
    async fn put_read(&self, mut reading: Reading, memory: Vec<Memory>, began: u64) -> Result<()> {
        let texts = Arc::new(reading.footer.texts());
        let chunks = reading.footer.chunks.iter().zip(memory);
        let chunks = chunks.map(|(place, memory)| place.chunk(memory)).collect();
        let column = self.column(chunks, texts, began).await?;
        self.put(reading.key, column);
        Ok(())
    }

    /// Writes the columns of sources that are here, and have no file, to files.
    pub(crate) async fn write_files(self: Arc<Self>, reads: Vec<Read>) {
        let Some(disk) = self.disk.as_ref() else {
            return;
        };
        let _writing = disk.writing.lock().await;
        for (source, files) in &reads {
            for (file, _) in files {
                for column in &source.columns {
                    let key = Columns::key(file, source, *column);
                    if let Err(reason) = self.write_file(disk, &key).await {
                        tracing::warn!(%reason, "columns are not written to the disk");
                        return;
                    }
                }
            }
        }
    }

    async fn write_file(&self, disk: &Disk, key: &ColumnKey) -> Result<()> {
        let Some(name) = Name::of(key).filter(|it| !disk.has(it)) else {
            return Ok(());
        };
        let Some(column) = self.column_here(key) else {
            return Ok(());
        };
        if !disk.make_room(column.bytes.device + column.bytes.host + column.texts.bytes() as u64) {
            return Err(Reason::new("column files have no room on the disk"));
        }
        let folder = disk.folder().to_owned();
        let mut writer = blocking(move || Writer::new(&folder))
            .await?
            .map_err(Reason::of)?;
        for chunk in &column.chunks {
            let words = self.engine.read(&chunk.memory, chunk.bytes).await?;
            let chunk = chunk.clone();
            let written = blocking(move || writer.push(&chunk, &words).map(|()| writer));
            writer = written.await?.map_err(Reason::of)?;
        }
        let (texts, path) = (Arc::clone(&column.texts), disk.path(&name));
        let key = name.key.clone();
        let finished = blocking(move || writer.finish(key, &texts, &path));
        let bytes = finished.await?.map_err(Reason::of)?;
        disk.add(&name, bytes);
        Ok(())
    }
}

impl FromDisk {
    pub(crate) fn add(&mut self, other: FromDisk) {
        self.bytes += other.bytes;
        self.took += other.took;
        if other.bytes > 0 {
            self.path = other.path;
        }
    }
}

fn file_read(disk: &Disk, reading: &Reading, memory: &[Memory]) -> FileRead {
    let ranges = reading.footer.chunks.iter().map(|it| it.range());
    FileRead {
        path: disk.path(&reading.name),
        bytes: reading.footer.data_bytes,
        pieces: ranges.zip(memory.iter().cloned()).collect(),
    }
}

/// Forgets a file that cannot be used: the column is read from the table, and written again.
fn unusable(disk: &Disk, name: &Name, why: &Unusable) {
    tracing::warn!(%why, file = %disk.path(name).display(), "a column file cannot be used");
    disk.forget(name);
}

/// Runs work that blocks on a thread for such work.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(Reason::of)
}
