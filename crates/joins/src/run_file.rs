//! The temporary file of the runs that are on disk.

use std::ops::Deref;

use forebay_movement::storage::{Access, DataFile, FileError};

use crate::JoinError;
use crate::crew::Crew;
use crate::loads::Load;

/// Maximum number of threads that read and write, and so of operations in flight.
const THREADS: usize = 8;
/// Maximum size of a read or write. A stopped join waits for those in flight.
const PIECE_BYTES: usize = 4 << 20;

/// A file of runs, each at a multiple of their size.
#[derive(Debug)]
pub(crate) struct RunFile {
    file: DataFile,
    run_bytes: u64,
}

impl RunFile {
    /// Returns an empty file of runs of this size.
    pub(crate) fn new(file: DataFile, run_bytes: u64) -> RunFile {
        RunFile { file, run_bytes }
    }

    /// Writes runs, each of which comes with its index in the file. Blocks. If the disk is full or fails, the error
    /// goes to the crew.
    pub(crate) fn write<M: Deref<Target = [u8]>>(&self, runs: &[(usize, M)], crew: &Crew<'_>) {
        let mut pieces: Vec<(u64, &[u8])> = Vec::new();
        for (run, bytes) in runs {
            let offsets = (*run as u64 * self.run_bytes..).step_by(PIECE_BYTES);
            pieces.extend(offsets.zip(bytes.chunks(PIECE_BYTES)));
        }
        each(pieces, crew, |(offset, from)| {
            self.file.write_all_at(offset, from)
        });
    }

    /// Waits for the drive if the file system writes through the page cache: errors of such writes are known only
    /// then, and what was not written could read as zeros. Called after all writes.
    ///
    /// # Errors
    /// If the disk is full or fails.
    pub(crate) fn end_writes(&self) -> Result<(), JoinError> {
        match self.file.access() {
            Access::Direct => Ok(()),
            Access::Buffered { .. } => Ok(self.file.sync()?),
        }
    }

    /// Reads the pages of a load into the memory from its first byte on. Blocks. If the disk fails, the error goes to
    /// the crew.
    ///
    /// # Panics
    /// If the memory is too small.
    pub(crate) fn read(&self, load: &Load, into: &mut [u8], crew: &Crew<'_>) {
        let (mut pieces, mut rest): (Vec<(u64, &mut [u8])>, _) = (Vec::new(), into);
        for pages in load.sides.iter().flat_map(|side| &side.pages) {
            let (into, behind) = std::mem::take(&mut rest).split_at_mut(pages.at.len());
            rest = behind;
            let begin = pages.run_in_file as u64 * self.run_bytes + pages.first;
            let offsets = (begin..).step_by(PIECE_BYTES);
            pieces.extend(offsets.zip(into.chunks_mut(PIECE_BYTES)));
        }
        each(pieces, crew, |(offset, into)| {
            self.file.read_exact_at(offset, into)
        });
    }
}

/// Processes pieces on several threads of a crew, until none is left or the crew must end. Blocks.
fn each<P: Send>(
    pieces: Vec<P>,
    crew: &Crew<'_>,
    work: impl Fn(P) -> Result<(), FileError> + Sync,
) {
    crew.each(pieces, THREADS, |piece| Ok(work(piece)?));
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use forebay_cancel::Stop;
    use forebay_device::AlignedBytes;
    use forebay_movement::storage::{FileCause, PageCache};

    use super::*;
    use crate::loads::loads;

    /// Bytes of a run: two pieces and a page.
    const RUN_BYTES: usize = 2 * PIECE_BYTES + 4096;

    fn file() -> RunFile {
        let folder = std::env::temp_dir();
        let file = DataFile::temporary(&folder, PageCache::Bypass).expect("room");
        RunFile::new(file, RUN_BYTES as u64)
    }

    /// Returns a run, each of whose words tells where it is.
    fn run(index: usize) -> (usize, AlignedBytes) {
        let mut bytes = AlignedBytes::zeroed(RUN_BYTES);
        for (word, to) in bytes.chunks_exact_mut(8).enumerate() {
            to.copy_from_slice(&((index << 32) | word).to_le_bytes());
        }
        (index, bytes)
    }

    /// Returns one load of half of the bytes of each run: of one on the build side, and two on the probe side.
    fn load() -> Load {
        let bytes = |_: usize, run: usize, _: Range<usize>| {
            let begin = (run as u64 + 1) * 8192 + 512;
            begin..begin + RUN_BYTES as u64 / 2
        };
        let mut loads = loads(2, [1, 2], u64::MAX, bytes);
        assert_eq!(loads.len(), 1);
        loads.remove(0)
    }

    #[test]
    fn runs_come_back_by_pages_wherever_they_were_written() {
        let (file, stop) = (file(), Stop::never());
        let crew = Crew::new(&stop);
        file.write(&[run(2), run(0)], &crew);
        file.write(&[run(1)], &crew);
        file.write::<AlignedBytes>(&[], &crew);
        file.end_writes().expect("room");
        let load = load();
        let mut back = AlignedBytes::zeroed(2 * RUN_BYTES);
        file.read(&load, &mut back, &crew);
        crew.end().expect("just written");
        let pages: Vec<_> = load.sides.iter().flat_map(|side| &side.pages).collect();
        assert_eq!(pages.len(), 3);
        for pages in pages {
            let (_, expected) = run(pages.run_in_file);
            let first = pages.first as usize;
            let expected = &expected[first..first + pages.at.len()];
            assert!(back[pages.at.clone()] == *expected, "{pages:?}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_or_has_ended_is_an_error() {
        let stop = Stop::never();
        let path = std::env::current_exe().expect("it runs");
        let read_only = DataFile::open(&path, PageCache::Use).expect("it can be read");
        let crew = Crew::new(&stop);
        RunFile::new(read_only, RUN_BYTES as u64).write(&[run(0)], &crew);
        let error = crew.end().expect_err("it is read-only");
        assert!(matches!(error, JoinError::File(_)), "{error}");
        let (file, crew) = (file(), Crew::new(&stop));
        file.write(&[run(0)], &crew);
        assert!(crew.may_continue(), "there is room");
        file.read(&load(), &mut AlignedBytes::zeroed(2 * RUN_BYTES), &crew);
        let error = crew.end().expect_err("two runs are missing");
        let JoinError::File(FileError { cause, .. }) = &error else {
            panic!("{error}");
        };
        assert!(matches!(cause, FileCause::Shrunk { .. }), "{error}");
    }

    #[test]
    fn a_full_disk_is_an_error_that_says_what_to_do() {
        let stop = Stop::never();
        for room in [0, PIECE_BYTES, RUN_BYTES + PIECE_BYTES] {
            let file = DataFile::temporary(&std::env::temp_dir(), PageCache::Bypass);
            let mut file = file.expect("a folder");
            file.inject_full_disk(room as u64);
            let (file, crew) = (RunFile::new(file, RUN_BYTES as u64), Crew::new(&stop));
            file.write(&[run(0), run(1)], &crew);
            let error = crew.end().expect_err("it is full");
            assert!(matches!(error, JoinError::File(_)), "{error}");
            let text = error.to_string();
            assert!(text.contains("no space is left"), "{text}");
            assert!(text.contains("free some, or choose a folder"), "{text}");
        }
    }

    #[test]
    fn a_stop_and_the_first_error_end_reads_and_writes() {
        let (stop, done) = (Stop::never(), AtomicUsize::new(0));
        let crew = Crew::new(&stop);
        each((0..10_000).collect(), &crew, |_: usize| {
            if done.fetch_add(1, Ordering::Relaxed) == 100 {
                stop.cancelled.store(true, Ordering::Relaxed);
            }
            Ok(())
        });
        let error = crew.end().expect_err("it is stopped");
        assert!(matches!(error, JoinError::Stopped(_)), "{error}");
        assert!(done.load(Ordering::Relaxed) < 200);
        let (stop, done) = (Stop::never(), AtomicUsize::new(0));
        let crew = Crew::new(&stop);
        each((0..10_000).collect(), &crew, |_: usize| {
            match done.fetch_add(1, Ordering::Relaxed) {
                100 => Err(FileError {
                    path: "/spill".into(),
                    offset: 7,
                    cause: FileCause::Missing,
                }),
                _ => Ok(()),
            }
        });
        let error = crew.end().expect_err("a piece fails").to_string();
        assert!(error.contains("partitions: /spill"), "{error}");
    }
}
