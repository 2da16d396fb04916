//! Reads and writes of a file that are in flight at once, from one thread.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::OnceLock;

use super::uring::{Kind, Uring};
use super::{AlignedBytes, DataFile, FileCause, FileError, StableBytes};
use crate::ring::PAGE_BYTES;

/// Reads and writes of one file, by io_uring. Each buffer belongs to the queue while its operation is in flight.
pub struct IoQueue<'f, B: StableBytes> {
    file: &'f DataFile,
    ring: Uring<B>,
    /// What each entry of the ring does.
    operations: Vec<Operation>,
}

#[derive(Debug, Clone)]
struct Operation {
    kind: Kind,
    offset: u64,
    /// The caller's range of the buffer.
    range: Range<usize>,
    is_direct: bool,
    tag: u64,
}

/// A finished operation.
#[derive(Debug)]
pub struct Done<B> {
    /// The buffer.
    pub buffer: B,
    /// The caller's tag of the operation.
    pub tag: u64,
    /// Whether all bytes were moved.
    pub result: Result<(), FileError>,
}

impl<'f, B: StableBytes> IoQueue<'f, B> {
    /// Creates a queue of at most `depth` operations in flight.
    ///
    /// # Errors
    /// [`FileCause::NoUring`], or [`FileCause::TooManyOpen`].
    pub fn new(file: &'f DataFile, depth: usize) -> Result<IoQueue<'f, B>, FileError> {
        let ring = Uring::new(depth)
            .map_err(|error| FileError::new(file.path(), 0, FileCause::of_uring(error)))?;
        let none = Operation {
            kind: Kind::Read,
            offset: 0,
            range: 0..0,
            is_direct: false,
            tag: 0,
        };
        Ok(IoQueue {
            file,
            operations: vec![none; ring.depth()],
            ring,
        })
    }

    /// Returns whether another operation can be queued.
    pub fn has_room(&self) -> bool {
        self.ring.has_room()
    }

    /// Returns the number of operations in flight.
    pub fn in_flight(&self) -> usize {
        self.ring.in_flight()
    }

    /// Queues a read that fills a range of a buffer from an offset of the file on.
    ///
    /// # Errors
    /// If the kernel does not take the operation.
    ///
    /// # Panics
    /// If there is no room, or the range exceeds the buffer.
    pub fn read(
        &mut self,
        offset: u64,
        buffer: B,
        range: Range<usize>,
        tag: u64,
    ) -> Result<(), FileError> {
        self.push(Kind::Read, offset, buffer, range, tag)
    }

    /// Queues a write of a range of a buffer at an offset of the file.
    ///
    /// # Errors
    /// If the kernel does not take the operation.
    ///
    /// # Panics
    /// If there is no room, or the range exceeds the buffer.
    pub fn write(
        &mut self,
        offset: u64,
        buffer: B,
        range: Range<usize>,
        tag: u64,
    ) -> Result<(), FileError> {
        self.push(Kind::Write, offset, buffer, range, tag)
    }

    fn push(
        &mut self,
        kind: Kind,
        offset: u64,
        mut buffer: B,
        range: Range<usize>,
        tag: u64,
    ) -> Result<(), FileError> {
        let all = buffer.stable_bytes();
        let is_aligned = offset.is_multiple_of(PAGE_BYTES as u64)
            && all[range.clone()]
                .as_ptr()
                .addr()
                .is_multiple_of(PAGE_BYTES);
        // A read may fill the rest of the buffer's last page; a write may not write it.
        let padded = range.start..range.end.next_multiple_of(PAGE_BYTES);
        let whole = match kind {
            Kind::Read => padded.end <= all.len(),
            Kind::Write => padded == range,
        };
        let direct = self.file.direct_file().filter(|_| is_aligned && whole);
        let (file, given) = match direct {
            Some(direct) => (direct, padded),
            None => (self.file.buffered_file(), range.clone()),
        };
        let entry = self.ring.push(kind, file, offset, buffer, given);
        self.operations[entry] = Operation {
            kind,
            offset,
            range,
            is_direct: direct.is_some(),
            tag,
        };
        self.ring
            .submit()
            .map_err(|error| self.file.failed(offset, error))
    }

    /// Blocks until an operation is done; returns `None` if none is in flight.
    ///
    /// # Errors
    /// If the kernel's queue fails. The error of an operation is in [`Done::result`].
    pub fn wait(&mut self) -> Result<Option<Done<B>>, FileError> {
        let completed = self
            .ring
            .wait()
            .map_err(|error| self.file.failed(0, error))?;
        Ok(completed.map(|(buffer, entry, moved)| self.finish(buffer, entry, moved)))
    }

    fn finish(&self, mut buffer: B, entry: usize, moved: io::Result<usize>) -> Done<B> {
        let operation = &self.operations[entry];
        let bytes = &mut buffer.stable_bytes()[operation.range.clone()];
        let result = match moved {
            Ok(moved) if moved >= bytes.len() => Ok(()),
            Ok(moved) => self.complete(operation, bytes, moved),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINVAL) if operation.is_direct => {
                    self.file.refuse_direct();
                    self.complete(operation, bytes, 0)
                }
                Some(libc::EINTR | libc::EAGAIN) => self.complete(operation, bytes, 0),
                _ => Err(self.file.failed(operation.offset, error)),
            },
        };
        Done {
            tag: operation.tag,
            buffer,
            result,
        }
    }

    /// Moves the bytes that an operation did not, with calls that block.
    fn complete(
        &self,
        operation: &Operation,
        bytes: &mut [u8],
        moved: usize,
    ) -> Result<(), FileError> {
        let (offset, rest) = (operation.offset + moved as u64, &mut bytes[moved..]);
        match operation.kind {
            Kind::Read => self.file.read_exact_at(offset, rest),
            Kind::Write => self.file.write_all_at(offset, rest),
        }
    }
}

impl<B: StableBytes> fmt::Debug for IoQueue<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoQueue")
            .field("file", &self.file.path())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

/// Returns whether io_uring works in this process; if not, the system's error. Tried once.
pub(super) fn uring_works() -> Result<(), io::Error> {
    static WORKS: OnceLock<Option<i32>> = OnceLock::new();
    let refused = WORKS.get_or_init(|| {
        let tried = Uring::<AlignedBytes>::new(1);
        tried
            .err()
            .map(|error| error.raw_os_error().unwrap_or(libc::ENOSYS))
    });
    refused.map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(code)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::PageCache;
    use super::*;

    const PART: usize = 8192;

    fn byte(index: usize) -> u8 {
        (index * 31 % 253) as u8
    }

    fn is_there() -> bool {
        uring_works()
            .inspect_err(|error| println!("skipped: no io_uring: {error}"))
            .is_ok()
    }

    #[test]
    fn many_writes_and_reads_are_in_flight_at_once() {
        if !is_there() {
            return;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("table");
        let file = DataFile::create(&path, PageCache::Bypass).expect("a new file");
        let mut writes = IoQueue::new(&file, 3).expect("a queue");
        let (mut next, mut parts) = (0, Vec::new());
        while next < 10 || writes.in_flight() > 0 {
            while next < 10 && writes.has_room() {
                let mut buffer = AlignedBytes::zeroed(PART);
                let begin = next * PART;
                buffer
                    .iter_mut()
                    .enumerate()
                    .for_each(|(at, to)| *to = byte(begin + at));
                // The last part is not a multiple of pages.
                let bytes = if next == 9 { 5001 } else { PART };
                writes
                    .write(begin as u64, buffer, 0..bytes, next as u64)
                    .expect("queued");
                next += 1;
            }
            let done = writes.wait().expect("a working queue").expect("in flight");
            done.result.expect("room");
            parts.push(done.tag);
        }
        parts.sort_unstable();
        assert_eq!(parts, (0..10).collect::<Vec<u64>>());
        let expected: Vec<u8> = (0..9 * PART + 5001).map(byte).collect();
        assert!(fs::read(&path).expect("just written") == expected);
        let file = DataFile::open(&path, PageCache::Bypass).expect("just written");
        let mut reads = IoQueue::new(&file, 2).expect("a queue");
        for (tag, (offset, range)) in [(9 * PART, 0..5001), (4097, 3..5000)]
            .into_iter()
            .enumerate()
        {
            let buffer = AlignedBytes::zeroed(PART);
            reads
                .read(offset as u64, buffer, range, tag as u64)
                .expect("queued");
        }
        while let Some(mut done) = reads.wait().expect("a working queue") {
            done.result.expect("the file is long enough");
            let (offset, range) = [(9 * PART, 0..5001), (4097, 3..5000)][done.tag as usize].clone();
            let found = &done.buffer.stable_bytes()[range.clone()];
            assert!(
                *found == expected[offset..offset + range.len()],
                "read {}",
                done.tag
            );
        }
    }

    #[test]
    fn a_short_file_is_an_error_and_a_full_queue_has_no_room() {
        if !is_there() {
            return;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("table");
        fs::write(&path, vec![7; 10_000]).expect("room");
        let file = DataFile::open(&path, PageCache::Bypass).expect("just written");
        let mut queue = IoQueue::new(&file, 4).expect("a queue");
        let buffer = AlignedBytes::zeroed(16_384);
        queue.read(0, buffer, 0..12_000, 5).expect("queued");
        let done = queue.wait().expect("a working queue").expect("in flight");
        let error = done.result.expect_err("the file is shorter");
        assert!(
            matches!(error.cause, FileCause::Shrunk { end: 10_000, .. }),
            "{error}"
        );
        for _ in 0..4 {
            queue
                .read(0, AlignedBytes::zeroed(4096), 0..4096, 0)
                .expect("queued");
        }
        assert_eq!((queue.in_flight(), queue.has_room()), (4, false));
    }
}
