//! Columns that are written to column files, and read from them.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_movement::Tier;
use futures_util::future::try_join_all;

use crate::column::Chunk;
use crate::column_file::{self, Footer, Place, Unusable, Writer};
use crate::columns::{ColumnKey, Columns, Read};
use crate::disk::{Disk, HeldFile, Name};
use crate::engine::{FileRead, FilesRead, Memory};
use crate::giving_way::Need;
use crate::placement::NO_ROOM;
use crate::reason::Reason;

/// Maximum number of columns that are read at once.
const COLUMNS_AT_ONCE: usize = 64;
/// Minimum bytes of a table's file whose columns get files: smaller ones are decoded as fast.
const FILE_BYTES_MIN: u64 = if cfg!(test) { 1 } else { 4 << 20 };

type Result<T> = std::result::Result<T, Reason>;

/// What was read from column files.
#[derive(Debug, Clone, Default)]
pub(crate) struct FromDisk {
    pub(crate) bytes: u64,
    pub(crate) took: Duration,
    /// The storage path.
    pub(crate) path: &'static str,
}

/// Where a chunk is that is in a column file alone.
#[derive(Debug)]
pub(crate) struct OnDisk {
    pub(crate) file: Arc<HeldFile>,
    pub(crate) place: Place,
}

impl OnDisk {
    /// Returns the chunk as one that kernels read pass by pass.
    pub(crate) fn chunk(file: &Arc<HeldFile>, place: &Place) -> Chunk {
        place.chunk(Memory {
            address: 0,
            device: 0,
            tier: Tier::File,
            held: Arc::new(OnDisk {
                file: Arc::clone(file),
                place: place.clone(),
            }),
        })
    }

    /// Returns where a chunk is; `None` if it is in memory.
    pub(crate) fn of(memory: &Memory) -> Option<&OnDisk> {
        memory.held.downcast_ref()
    }
}

/// Chunks of a column file, each with memory of the device that it goes to.
pub(crate) struct Chunks {
    pub(crate) file: Arc<HeldFile>,
    pub(crate) to: Vec<(Place, Memory)>,
}

impl Columns {
    /// Returns the file of a column that is not here.
    pub(crate) fn file_of(&self, key: &ColumnKey) -> Option<Name> {
        let disk = self.disk.as_ref()?;
        Name::of(key).filter(|name| disk.has(name))
    }

    /// Brings the columns that are missing, and have files, to the engine. Those without room stay in their files.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) async fn read_files(&self, reads: &[Read], need: Need) -> Result<FromDisk> {
        let mut all = FromDisk::default();
        let Some(disk) = self.disk.as_ref() else {
            return Ok(all);
        };
        // What footers tell, such as texts, is in memory of the host meanwhile.
        for batch in self.missing_with_files(reads).chunks(COLUMNS_AT_ONCE) {
            let mut to_device = Vec::new();
            for (key, name) in batch {
                let file = disk.hold(name);
                let (disk, held) = (Arc::clone(disk), Arc::clone(&file));
                let footer = blocking(move || {
                    disk.mark_used(&held.name);
                    Footer::read(&held.path, &held.name.key)
                });
                match footer.await? {
                    Err(why) => self.forget(&file, &why),
                    Ok(footer) => match self.memory_of(&footer, need) {
                        Some(memory) => {
                            let to = footer.chunks.iter().cloned().zip(memory).collect();
                            to_device.push((key.clone(), footer, Chunks { file, to }));
                        }
                        None => {
                            let read = self.read_to_host(key.clone(), footer, &file, need);
                            all.add(read.await?);
                        }
                    },
                }
            }
            let chunks: Vec<_> = to_device.iter().map(|(.., chunks)| chunks).collect();
            all.add(self.read_chunks(&chunks).await?);
            for (key, footer, chunks) in to_device {
                if !chunks.file.is_unusable.load(Ordering::Relaxed) {
                    let to = chunks.to.into_iter();
                    let chunks = to.map(|(place, memory)| place.chunk(memory));
                    let chunks = chunks.collect();
                    self.put_chunks(key, chunks, footer, need).await?;
                }
            }
        }
        Ok(all)
    }

    /// Reads chunks into memory of the device. Files that cannot be read are marked.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) async fn read_chunks(&self, columns: &[&Chunks]) -> Result<FromDisk> {
        let (mut runs, mut ranges) = (Vec::new(), Vec::new());
        for column in columns {
            let chunks = column.to.iter().filter(|(place, _)| place.bytes > 0);
            let chunks: Vec<&(Place, Memory)> = chunks.collect();
            // Chunks that follow each other in the file are read at once, if they go to the same device.
            let are_one = |one: &&(Place, Memory), next: &&(Place, Memory)| {
                one.0.pages().end == next.0.offset && one.1.device == next.1.device
            };
            for run in chunks.chunk_by(are_one) {
                let range = run[0].0.offset..run[run.len() - 1].0.pages().end;
                let sums = run.iter().map(|(place, _)| place.sum);
                runs.push((&column.file, range.clone(), sums.fold(0, u64::wrapping_add)));
                let pieces = run.iter().map(|(place, to)| (place.range(), to.clone()));
                ranges.push(FileRead {
                    path: column.file.path.clone(),
                    range,
                    pieces: pieces.collect(),
                });
            }
        }
        if ranges.is_empty() {
            return Ok(FromDisk::default());
        }
        let FilesRead { sums, took, path } = self.read_ranges(ranges).await?;
        let mut bytes = 0;
        for ((file, range, wanted), sum) in runs.into_iter().zip(sums) {
            match sum {
                Ok(sum) if sum == wanted => bytes += range.end - range.start,
                Ok(_) => self.forget(file, &Unusable::Damaged),
                Err(why) => self.forget(file, &Unusable::Unread(why)),
            }
        }
        Ok(FromDisk { bytes, took, path })
    }

    /// Reads ranges of files, each into memory of one device: all devices at once.
    async fn read_ranges(&self, ranges: Vec<FileRead>) -> Result<FilesRead> {
        let mut of_devices: Vec<(Vec<usize>, Vec<FileRead>)> = Vec::new();
        of_devices.resize_with(self.engines.len(), Default::default);
        let mut sums = Vec::new();
        for (index, range) in ranges.into_iter().enumerate() {
            let device = range.pieces.first().map_or(0, |(_, to)| to.device);
            of_devices[device].0.push(index);
            of_devices[device].1.push(range);
            sums.push(Err(Reason::of("it was not read")));
        }
        let reads = self.engines.iter().zip(of_devices);
        let reads = reads.filter(|(_, (indexes, _))| !indexes.is_empty());
        let reads = reads.map(|(engine, (indexes, ranges))| {
            let reading = engine.read_files(ranges);
            async move { Ok::<_, Reason>((indexes, reading.await?)) }
        });
        let (mut took, mut path) = (Duration::ZERO, "");
        for (indexes, read) in try_join_all(reads).await? {
            for (index, sum) in indexes.into_iter().zip(read.sums) {
                sums[index] = sum;
            }
            (took, path) = (took.max(read.took), read.path);
        }
        Ok(FilesRead { sums, took, path })
    }

    fn forget(&self, file: &Arc<HeldFile>, why: &Unusable) {
        if let Some(disk) = &self.disk {
            disk.forget(file, why);
        }
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
                        && !self.is_put_off(&key)
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

    /// Allocates memory of devices for each chunk; `None` if there is no room for all.
    fn memory_of(&self, footer: &Footer, need: Need) -> Option<Vec<Memory>> {
        let chunks = footer.chunks.iter();
        if !self.have_room(chunks.clone().map(|it| (it.stripe, it.bytes)), need) {
            return None;
        }
        let memory = chunks.map(|it| self.room_of_column(it.stripe, it.bytes, need));
        memory.collect()
    }

    /// Reads a column into memory of the host that kernels read, chunk by chunk. Without room, all stay in the file.
    async fn read_to_host(
        &self,
        key: ColumnKey,
        footer: Footer,
        file: &Arc<HeldFile>,
        need: Need,
    ) -> Result<FromDisk> {
        let clock = Instant::now();
        let (mut chunks, mut bytes) = (Vec::new(), 0);
        for place in &footer.chunks {
            let words = match words(file, place).await? {
                Ok(words) => words,
                Err(why) => {
                    self.forget(file, &why);
                    return Ok(FromDisk::default());
                }
            };
            bytes += place.bytes;
            match self.placed(&words, place.stripe, need).await {
                Ok(memory) => chunks.push(place.chunk(memory)),
                Err(reason) if reason.is(NO_ROOM) => {
                    let places = footer.chunks.iter();
                    chunks = places.map(|it| OnDisk::chunk(file, it)).collect();
                    break;
                }
                Err(reason) => return Err(reason),
            }
        }
        self.put_chunks(key, chunks, footer, need).await?;
        Ok(FromDisk {
            bytes,
            took: clock.elapsed(),
            path: "host",
        })
    }

    /// Puts a column among those that are here.
    async fn put_chunks(
        &self,
        key: ColumnKey,
        chunks: Vec<Chunk>,
        mut footer: Footer,
        need: Need,
    ) -> Result<()> {
        let texts = Arc::new(footer.texts());
        let column = self.column(chunks, texts, need).await?;
        self.put(key, column, need);
        Ok(())
    }

    /// Returns the words of a chunk, wherever it is.
    ///
    /// # Errors
    /// If the device or the disk fails.
    pub(crate) async fn words(&self, chunk: &Chunk) -> Result<Vec<u32>> {
        let Some(OnDisk { file, place }) = OnDisk::of(&chunk.memory) else {
            let engine = self.engine_of(&chunk.memory);
            return engine.read(&chunk.memory, chunk.bytes).await;
        };
        let words = words(file, place).await?;
        words.map_err(|why| {
            self.forget(file, &why);
            Reason::of(why)
        })
    }

    /// Returns the columns of sources that have no file and are large enough for one.
    pub(crate) fn to_write(&self, reads: &[Read]) -> Vec<(ColumnKey, Name)> {
        let Some(disk) = self.disk.as_ref() else {
            return Vec::new();
        };
        let mut keys = Vec::new();
        for (source, files) in reads {
            for (file, _) in files {
                let of_file = source.columns.iter();
                let of_file = of_file.map(|it| Columns::key(file, source, *it));
                let large = of_file.filter(|it| it.file_bytes() >= FILE_BYTES_MIN);
                let named = large.filter_map(|key| Name::of(&key).map(|name| (key, name)));
                keys.extend(named.filter(|(_, name)| !disk.has(name)));
            }
        }
        keys
    }

    /// Makes room for a column file. Columns that are in files alone, and were not used lately, give way. Returns
    /// whether there is room.
    pub(crate) async fn make_room_on_disk(
        &self,
        disk: &Arc<Disk>,
        bytes: u64,
        need: Need,
    ) -> Result<bool> {
        let make_room = || {
            let disk = Arc::clone(disk);
            blocking(move || disk.make_room(bytes))
        };
        if make_room().await? {
            return Ok(true);
        }
        self.known
            .lock()
            .free(bytes, need.stale(), |it| it.bytes.disk);
        make_room().await
    }

    /// Writes columns that are here, and have no file, to files.
    pub(crate) async fn write_files(self: Arc<Self>, columns: Vec<(ColumnKey, Name)>, need: Need) {
        let Some(disk) = self.disk.as_ref().filter(|_| !columns.is_empty()) else {
            return;
        };
        let _writing = disk.writing.lock().await;
        for (key, name) in &columns {
            if let Err(reason) = self.write_file(disk, (key, name), need).await {
                tracing::warn!(%reason, "columns are not written to the disk");
                return;
            }
        }
    }

    async fn write_file(
        &self,
        disk: &Arc<Disk>,
        (key, name): (&ColumnKey, &Name),
        need: Need,
    ) -> Result<()> {
        let column = self.column_here(key).filter(|it| !it.is_on_disk);
        let Some(column) = column.filter(|_| !disk.has(name)) else {
            return Ok(());
        };
        let bytes = column.bytes.device + column.bytes.host + column.texts.bytes() as u64;
        let (count, texts) = (column.chunks.len(), Arc::clone(&column.texts));
        // Its memory is free to go meanwhile.
        let column = {
            let weak = Arc::downgrade(&column);
            drop(column);
            weak
        };
        if !self.make_room_on_disk(disk, bytes, need).await? {
            return Err(Reason::no_room("column files have no room on the disk"));
        }
        let here = Arc::clone(disk);
        let begun = blocking(move || Writer::new(here.folder())).await?;
        let mut writer = begun.map_err(Reason::of)?;
        for index in 0..count {
            let chunk = column.upgrade().map(|it| it.chunks[index].clone());
            let Some(chunk) = chunk else {
                return Ok(());
            };
            let engine = self.engine_of(&chunk.memory);
            let words = engine.read(&chunk.memory, chunk.bytes).await?;
            let written = blocking(move || writer.push(&chunk, &words).map(|()| writer));
            writer = written.await?.map_err(Reason::of)?;
        }
        let (disk, name) = (Arc::clone(disk), name.clone());
        let finished = blocking(move || disk.finish(writer, &name, &texts).map(drop));
        finished.await?.map_err(Reason::of)
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

/// Reads a chunk on a thread for work that blocks.
async fn words(
    file: &Arc<HeldFile>,
    place: &Place,
) -> Result<std::result::Result<Vec<u32>, Unusable>> {
    let (path, place): (PathBuf, Place) = (file.path.clone(), place.clone());
    blocking(move || column_file::words(&path, &place)).await
}

/// Runs work that blocks on a thread for such work.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(Reason::of)
}
