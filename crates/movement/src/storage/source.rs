//! A range of a file as a source of the staging ring, read into the slots' host memory.

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

use forebay_device::cuda::cufile::CuFile;

use super::queue::uring_works;
use super::{DataFile, DirectSource, FileCause, FileError, IoQueue, StoragePath};
use crate::ring::{Chunk, Feed, Next, PAGE_BYTES, Slot, Slots, Source, Unread};

/// How a file is read into slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileReader {
    /// One thread keeps at most `depth` reads in flight.
    Uring {
        /// Maximum reads in flight.
        depth: usize,
    },
    /// Each of several threads reads one chunk at a time.
    Threads {
        /// Number of threads.
        threads: usize,
    },
}

impl FileReader {
    /// Returns whether this process can read this way.
    ///
    /// # Errors
    /// [`FileCause::NoUring`], or [`FileCause::TooManyOpen`].
    pub fn check(self) -> Result<(), FileCause> {
        match self {
            FileReader::Uring { .. } => uring_works().map_err(FileCause::of_uring),
            FileReader::Threads { .. } => Ok(()),
        }
    }
}

/// A range of a file, read past the page cache if the file was opened so.
#[derive(Debug, Clone)]
pub struct FileSource {
    file: Arc<DataFile>,
    range: Range<u64>,
    reader: FileReader,
}

impl FileSource {
    /// Returns a source of a whole file.
    pub fn new(file: Arc<DataFile>, reader: FileReader) -> FileSource {
        let range = 0..file.bytes();
        FileSource::range(file, range, reader)
    }

    /// Returns a source of a range of a file. A range beyond the file's end fails when it is read.
    pub fn range(file: Arc<DataFile>, range: Range<u64>, reader: FileReader) -> FileSource {
        FileSource {
            file,
            range: range.start..range.end.max(range.start),
            reader,
        }
    }

    /// Returns the place of a chunk: the aligned offset in the file, and the bytes in the slot.
    fn place(&self, chunk: &Chunk) -> (u64, Range<usize>) {
        let offset = self.range.start + chunk.offset;
        let lead = (offset % PAGE_BYTES as u64) as usize;
        (offset - lead as u64, lead..lead + chunk.bytes)
    }

    fn unread(&self, error: FileError) -> Unread {
        Unread {
            offset: error.offset.saturating_sub(self.range.start),
            why: error.cause.into(),
        }
    }

    fn fill_by_threads(&self, slots: &Slots<'_>) -> Result<(), Unread> {
        while let Some(mut slot) = slots.next() {
            let (offset, range) = self.place(&slot.chunk());
            let page_end = range.end.next_multiple_of(PAGE_BYTES);
            let into = slot.host();
            let into_end = page_end.min(into.len());
            let read = self.file.read_at(offset, &mut into[..into_end]);
            let read = read.and_then(|read| self.file.check_whole(offset, read, range.end));
            read.map_err(|error| self.unread(error))?;
            slots.filled(slot, Feed::Host(range));
        }
        Ok(())
    }

    fn fill_by_uring(&self, slots: &Slots<'_>, depth: usize) -> Result<(), Unread> {
        let queue = IoQueue::new(&self.file, depth);
        let mut queue = queue.map_err(|error| self.unread(error))?;
        loop {
            while queue.has_room() {
                match next_slot(slots, queue.in_flight() == 0) {
                    Some(slot) => self.begin(&mut queue, slot)?,
                    None => break,
                }
            }
            let done = queue.wait().map_err(|error| self.unread(error))?;
            let Some(done) = done else {
                return Ok(());
            };
            done.result.map_err(|error| self.unread(error))?;
            let (_, range) = self.place(&done.buffer.chunk());
            slots.filled(done.buffer, Feed::Host(range));
        }
    }

    fn begin<'s>(&self, queue: &mut IoQueue<'_, Slot<'s>>, slot: Slot<'s>) -> Result<(), Unread> {
        let (offset, range) = self.place(&slot.chunk());
        let queued = queue.read(offset, slot, 0..range.end, 0);
        queued.map_err(|error| self.unread(error))
    }
}

/// Returns a source that reads a range of a file by a path, with this many reads in flight. `cufile` is what the direct
/// paths use, or why it is not used.
///
/// # Errors
/// Why this machine lacks the path.
pub fn source_by(
    path: StoragePath,
    (file, range): (&Arc<DataFile>, Range<u64>),
    depth: usize,
    cufile: &Result<Arc<CuFile>, String>,
) -> Result<Box<dyn Source>, Box<dyn Error + Send + Sync>> {
    let file = Arc::clone(file);
    let reader = match path {
        StoragePath::StagedUring => FileReader::Uring { depth },
        StoragePath::Host | StoragePath::StagedThreads => FileReader::Threads { threads: depth },
        StoragePath::Direct(mode) => {
            let cufile = cufile.as_ref().map_err(String::clone)?;
            let source = DirectSource::range(cufile, file, range, (mode, depth))?;
            return Ok(Box::new(source));
        }
    };
    reader.check()?;
    Ok(Box::new(FileSource::range(file, range, reader)))
}

/// Returns a free slot; with `waits`, blocks until there is one. Returns `None` if no slot is free now, or if there are
/// no more chunks.
pub(super) fn next_slot<'a>(slots: &Slots<'a>, waits: bool) -> Option<Slot<'a>> {
    if waits {
        return slots.next();
    }
    match slots.try_next() {
        Next::Slot(slot) => Some(slot),
        Next::Busy | Next::End => None,
    }
}

/// Returns the name of a range of a file in errors; offsets there are relative to the range.
pub(super) fn name(file: &DataFile, start: u64) -> String {
    let path = file.path().display();
    match start {
        0 => path.to_string(),
        start => format!("{path} from byte {start}"),
    }
}

impl Source for FileSource {
    fn name(&self) -> String {
        name(&self.file, self.range.start)
    }

    fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn lead_bytes(&self) -> usize {
        (self.range.start % PAGE_BYTES as u64) as usize
    }

    fn threads(&self) -> usize {
        match self.reader {
            FileReader::Uring { .. } => 1,
            FileReader::Threads { threads } => threads.max(1),
        }
    }

    fn fill(&self, slots: &Slots<'_>) -> Result<(), Unread> {
        match self.reader {
            FileReader::Uring { depth } => self.fill_by_uring(slots, depth),
            FileReader::Threads { .. } => self.fill_by_threads(slots),
        }
    }
}
