//! The host path, and the staged paths on a machine without a GPU: they end in CPU memory.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use forebay_movement::checksum;
use forebay_movement::storage::{AlignedBytes, DataFile, IoQueue, PageCache, StoragePath};

use super::cell::{Cache, Cell, Operation};
use super::content;
use super::measure::{Clock, Found, Task, Trace, on_threads};

/// A buffer, and the offset of the operation that used it last.
pub(super) type Used<B> = (B, u64);

/// Opens the file of a cell, and brings the page cache into the state that the cell asks for.
pub(super) fn open(task: &Task<'_>) -> Result<DataFile> {
    let (cell, files) = (task.cell, task.files);
    let cache = match cell.cache {
        Cache::Bypass => PageCache::Bypass,
        Cache::Cold | Cache::Hot => PageCache::Use,
    };
    let file = match cell.operation {
        Operation::Read => DataFile::open(&files.read, cache)?,
        Operation::Write => DataFile::create(&files.write, cache)?,
    };
    match cell.cache {
        Cache::Bypass => {}
        Cache::Cold => file.evict()?,
        Cache::Hot => warm(&file)?,
    }
    Ok(file)
}

/// Reads the whole file into the page cache.
fn warm(file: &DataFile) -> Result<()> {
    let mut buffer = vec![0; 8 << 20];
    let mut offset = 0;
    while offset < file.bytes() {
        let read = file.read_at(offset, &mut buffer)?;
        ensure!(read > 0, "{} has become shorter", file.path().display());
        offset += read as u64;
    }
    Ok(())
}

/// Measures a cell between the file and CPU memory.
///
/// # Errors
/// If an operation fails, or moves wrong bytes.
pub(super) fn measure(task: &Task<'_>) -> Result<Found> {
    let cell = task.cell;
    let file = open(task)?;
    let buffer = |_| {
        let mut buffer = AlignedBytes::zeroed(cell.bytes);
        if cell.operation == Operation::Write {
            content::fill(&mut buffer, task.seed, 0);
        }
        Ok(buffer)
    };
    let (traces, used, usage) = match cell.path {
        StoragePath::StagedUring => on_threads(
            1,
            task.extent,
            |_| (0..cell.parallel).map(buffer).collect::<Result<Vec<_>>>(),
            |_, buffers, clock| queue(task, &file, buffers, clock),
        )?,
        _ => on_threads(
            cell.parallel,
            task.extent,
            buffer,
            |thread, buffer, clock| calls(task, &file, thread, buffer, clock),
        )?,
    };
    for (buffer, offset) in used.iter().flatten() {
        check(cell, buffer, *offset)?;
    }
    check_written(task, &traces)?;
    Found::new(&traces, usage, cell.bytes)
}

/// One operation at a time.
fn calls(
    task: &Task<'_>,
    file: &DataFile,
    thread: usize,
    mut buffer: AlignedBytes,
    clock: Clock,
) -> Result<(Trace, Vec<Used<AlignedBytes>>)> {
    let mut trace = Trace::default();
    let mut offsets = task.offsets(thread, task.cell.parallel);
    let operation = task.cell.operation;
    let mut last = 0;
    while clock.continues(trace.latencies.len()) {
        let Some(offset) = offsets.next() else { break };
        let began = Instant::now();
        match operation {
            Operation::Read => file.read_exact_at(offset, &mut buffer)?,
            Operation::Write => file.write_all_at(offset, &buffer)?,
        }
        trace.latencies.push(began.elapsed());
        if operation == Operation::Write {
            trace.written.insert(offset);
        }
        task.check_each(|| check(task.cell, &buffer, offset))?;
        last = offset;
    }
    Ok((trace, vec![(buffer, last)]))
}

/// As many operations in flight as there are buffers.
fn queue(
    task: &Task<'_>,
    file: &DataFile,
    mut buffers: Vec<AlignedBytes>,
    clock: Clock,
) -> Result<(Trace, Vec<Used<AlignedBytes>>)> {
    let cell = task.cell;
    let mut queue = IoQueue::new(file, cell.parallel)?;
    let mut offsets = task.offsets(0, 1);
    let mut flights = Flights::default();
    let (mut trace, mut used) = (Trace::default(), Vec::new());
    loop {
        while let Some(buffer) = buffers.pop() {
            let next = match clock.continues(flights.begun()) {
                true => offsets.next(),
                false => None,
            };
            // In random order, a block may still be in flight.
            let Some(offset) = next else { break };
            let tag = flights.begin(offset);
            match cell.operation {
                Operation::Read => queue.read(offset, buffer, 0..cell.bytes, tag)?,
                Operation::Write => queue.write(offset, buffer, 0..cell.bytes, tag)?,
            }
        }
        let Some(done) = queue.wait()? else { break };
        done.result?;
        let offset = flights.end(done.tag, &mut trace);
        if cell.operation == Operation::Write {
            trace.written.insert(offset);
        }
        task.check_each(|| check(cell, &done.buffer, offset))?;
        match clock.continues(flights.begun()) {
            true => buffers.push(done.buffer),
            false => used.push((done.buffer, offset)),
        }
    }
    Ok((trace, used))
}

/// The beginnings and offsets of operations, by their tags.
#[derive(Debug, Default)]
pub(super) struct Flights {
    begun: Vec<(Instant, u64)>,
}

impl Flights {
    /// Returns the number of operations so far.
    pub(super) fn begun(&self) -> usize {
        self.begun.len()
    }

    /// Begins an operation and returns its tag.
    pub(super) fn begin(&mut self, offset: u64) -> u64 {
        self.begun.push((Instant::now(), offset));
        self.begun.len() as u64 - 1
    }

    /// Ends an operation, and returns its offset.
    pub(super) fn end(&self, tag: u64, trace: &mut Trace) -> u64 {
        let (began, offset) = self.begun[tag as usize];
        trace.latencies.push(began.elapsed());
        offset
    }
}

/// Checks the bytes that an operation read into a buffer, which may be larger.
fn check(cell: &Cell, buffer: &[u8], offset: u64) -> Result<()> {
    check_sum(cell, offset, || Ok(checksum(&buffer[..cell.bytes])))
}

/// Checks the checksum of the bytes that an operation read.
pub(super) fn check_sum(cell: &Cell, offset: u64, sum: impl FnOnce() -> Result<u64>) -> Result<()> {
    if cell.operation == Operation::Read {
        let right = content::expected_of_file(cell.bytes, offset);
        ensure!(
            sum()? == right,
            "{cell}: the bytes at offset {offset} are not those of the file; if it was changed, remove it, and it is made again"
        );
    }
    Ok(())
}

/// Checks the blocks that were written.
pub(super) fn check_written(task: &Task<'_>, traces: &[Trace]) -> Result<()> {
    let written = traces.iter().flat_map(|trace| &trace.written);
    let written: Vec<u64> = written.copied().collect();
    let (cell, path) = (task.cell, &task.files.write);
    content::check_written(path, &written, cell.bytes, task.seed).with_context(|| cell.to_string())
}

#[cfg(test)]
mod tests {
    use forebay_movement::storage::FileReader;

    use std::time::Duration;

    use super::super::cell::Pattern;
    use super::super::content::Files;
    use super::super::measure::Extent;
    use super::*;

    #[test]
    fn every_cell_of_the_host_moves_the_right_bytes() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let files = Files::make(folder.path(), 1 << 20).expect("room");
        let mut seed = 1;
        for path in [
            StoragePath::Host,
            StoragePath::StagedThreads,
            StoragePath::StagedUring,
        ] {
            let uring = FileReader::Uring { depth: 1 }.check();
            if let (StoragePath::StagedUring, Err(why)) = (path, uring) {
                println!("skipped: {why}");
                continue;
            }
            for (operation, cache) in [
                (Operation::Read, Cache::Bypass),
                (Operation::Read, Cache::Cold),
                (Operation::Read, Cache::Hot),
                (Operation::Write, Cache::Bypass),
            ] {
                for pattern in [Pattern::Sequential, Pattern::Random] {
                    let cell = Cell {
                        path,
                        cache,
                        pattern,
                        operation,
                        bytes: 16_384,
                        parallel: 3,
                    };
                    for extent in [Extent::Time(Duration::from_millis(3)), Extent::Checked] {
                        seed += 1;
                        let task = Task {
                            cell: &cell,
                            files: &files,
                            seed,
                            extent,
                        };
                        let found = measure(&task).unwrap_or_else(|error| panic!("{error:#}"));
                        let least = if extent == Extent::Checked { 64 } else { 1 };
                        assert!(found.operations() >= least && found.mb_per_s() > 0.0);
                    }
                }
            }
        }
    }

    #[test]
    fn a_changed_byte_is_found() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let files = Files::make(folder.path(), 65_536).expect("room");
        let mut bytes = std::fs::read(&files.read).expect("it is made");
        // No last buffer of a thread has this byte.
        bytes[20_000] ^= 1;
        std::fs::write(&files.read, bytes).expect("room");
        let has_uring = FileReader::Uring { depth: 1 }.check().is_ok();
        for path in [StoragePath::Host, StoragePath::StagedUring] {
            if path == StoragePath::StagedUring && !has_uring {
                println!("skipped: no io_uring");
                continue;
            }
            let cell = Cell {
                path,
                cache: Cache::Bypass,
                pattern: Pattern::Sequential,
                operation: Operation::Read,
                bytes: 4096,
                parallel: 2,
            };
            let run = |extent| {
                measure(&Task {
                    cell: &cell,
                    files: &files,
                    seed: 1,
                    extent,
                })
            };
            run(Extent::Time(Duration::ZERO)).expect("the first blocks are right");
            let text = run(Extent::Checked).expect_err("other content").to_string();
            assert!(text.contains("at offset 16384 are not"), "{text}");
        }
    }
}
