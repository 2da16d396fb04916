//! Files as sources of the staging ring, on a host device; with a GPU, on that too.

#[path = "../common/mod.rs"]
mod common;
mod gpu;

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_cancel::Stop;
use forebay_device::cuda::{Cuda, DeviceView, Stream};
use forebay_device::{Device, DeviceOptions, Devices, JobError};
use forebay_movement::storage::{DataFile, FileCause, FileReader, FileSource, PageCache};
use forebay_movement::{Chunk, Consumer, MoveError, RingOptions, Source, StagingRing};
use parking_lot::Mutex;
use tempfile::TempDir;

/// Bytes of the file; it ends in the middle of a page.
pub const BYTES: usize = 300_077;

/// Returns the byte of the file at an offset.
pub fn byte(offset: usize) -> u8 {
    (offset * 31 % 253) as u8
}

/// Collects the bytes of all chunks.
#[derive(Default)]
struct Collected {
    bytes: Mutex<Vec<u8>>,
    cancels: Option<Arc<AtomicBool>>,
}

impl Consumer for Collected {
    fn enqueue(
        &self,
        _: &mut Cuda,
        _: &Stream,
        _: Chunk,
        _: &DeviceView<u8>,
    ) -> Result<(), JobError> {
        Ok(())
    }

    fn process(&self, chunk: Chunk, bytes: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut all = self.bytes.lock();
        let begin = chunk.offset as usize;
        let end = begin + bytes.len();
        if all.len() < end {
            all.resize(end, 0);
        }
        all[begin..end].copy_from_slice(bytes);
        if let Some(cancels) = &self.cancels {
            cancels.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// A file with known bytes.
pub struct Table {
    /// Path of the file.
    pub path: PathBuf,
    _folder: TempDir,
}

/// Writes the file.
pub fn table() -> Table {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("table");
    fs::write(&path, (0..BYTES).map(byte).collect::<Vec<u8>>()).expect("room");
    Table {
        path,
        _folder: folder,
    }
}

impl Table {
    /// Opens the file.
    pub fn open(&self) -> Arc<DataFile> {
        let file = DataFile::open(&self.path, PageCache::Bypass);
        Arc::new(file.unwrap_or_else(|error| panic!("{error}")))
    }

    /// Cuts the file off.
    pub fn truncate(&self, bytes: u64) {
        let file = OpenOptions::new().write(true).open(&self.path);
        let truncated = file.and_then(|file| file.set_len(bytes));
        truncated.expect("the file is writable");
    }
}

/// Returns the ways of reading that work in this process.
pub fn readers() -> Vec<FileReader> {
    let all = [
        FileReader::Threads { threads: 1 },
        FileReader::Threads { threads: 4 },
        FileReader::Uring { depth: 1 },
        FileReader::Uring { depth: 4 },
    ];
    let work = |reader: &FileReader| {
        reader
            .check()
            .inspect_err(|cause| println!("skipped: {cause}"))
            .is_ok()
    };
    all.into_iter().filter(work).collect()
}

fn host_ring() -> (Devices, Arc<Device>, StagingRing) {
    let spec = "host:1".parse().expect("a valid specification");
    let devices = Devices::new(&spec, DeviceOptions::default()).expect("host devices start");
    let device = devices.list().remove(0);
    let options = RingOptions {
        slots: 3,
        slot_bytes: 16_384,
    };
    let ring = StagingRing::lease(&device, options).expect("memory");
    (devices, device, ring)
}

#[test]
fn any_range_of_a_file_passes_through_the_ring() {
    let table = table();
    let (_devices, _device, mut ring) = host_ring();
    for reader in readers() {
        for range in [
            0..BYTES,
            0..0,
            1..2,
            4096..8192,
            4095..4097,
            100_000..BYTES,
            BYTES - 1..BYTES,
        ] {
            let (start, end) = (range.start, range.end);
            let source = FileSource::range(table.open(), start as u64..end as u64, reader);
            let consumer = Arc::new(Collected::default());
            let moved = ring.run(&source, &consumer, &Stop::never());
            let report = moved.unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(report.bytes, (end - start) as u64);
            let expected: Vec<u8> = range.map(byte).collect();
            assert!(
                *consumer.bytes.lock() == expected,
                "{start}..{end} by {reader:?}"
            );
        }
    }
}

#[test]
fn a_file_that_shrinks_fails_once_and_the_ring_stays_usable() {
    let (_devices, _device, mut ring) = host_ring();
    for reader in readers() {
        let table = table();
        let source = FileSource::new(table.open(), reader);
        table.truncate(100_000);
        let moved = ring.run(&source, &Arc::new(Collected::default()), &Stop::never());
        let error = moved.expect_err("the file is shorter");
        let MoveError::Source { offset, why, .. } = &error else {
            panic!("{error}");
        };
        let cause = why.downcast_ref::<FileCause>();
        assert!(matches!(cause, Some(FileCause::Shrunk { .. })), "{error}");
        assert!(*offset >= 100_000, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("table, at byte ") && text.contains("let its writer finish"),
            "{text}"
        );
        let again = FileSource::new(table.open(), reader);
        let consumer = Arc::new(Collected::default());
        ring.run(&again, &consumer, &Stop::never())
            .expect("the ring works");
        assert_eq!(consumer.bytes.lock().len(), 100_000);
    }
}

#[test]
fn a_cancelled_move_ends_with_reads_in_flight() {
    let table = table();
    let (_devices, _device, mut ring) = host_ring();
    for reader in readers() {
        let stop = Stop::never();
        let consumer = Arc::new(Collected {
            cancels: Some(Arc::clone(&stop.cancelled)),
            ..Collected::default()
        });
        let moved = ring.run(&FileSource::new(table.open(), reader), &consumer, &stop);
        assert!(matches!(moved, Err(MoveError::Stopped(_))), "{moved:?}");
    }
}

#[test]
fn a_range_beyond_the_end_is_an_error_that_names_the_range() {
    let table = table();
    let (_devices, _device, mut ring) = host_ring();
    for reader in readers() {
        let source = FileSource::range(table.open(), 300_000..400_000, reader);
        assert_eq!(source.bytes(), 100_000);
        let moved = ring.run(&source, &Arc::new(Collected::default()), &Stop::never());
        let text = moved.expect_err("the file ends before").to_string();
        assert!(text.contains("table from byte 300000, at byte "), "{text}");
    }
}
