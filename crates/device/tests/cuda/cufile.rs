//! Reads and writes by cuFile. Without libcufile, or on a file system that it refuses, these tests print why and pass;
//! with `FOREBAY_REQUIRE_CUFILE=1` they fail.

use std::env;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_device::cuda::cufile::{
    CuFile, CuFileBatch, CuFileDirection, CuFileError, CuFileHandle, CuFileMemory, CuFileOperation,
    CuFileStream, CuFileTransfer, DirectSupport, PathTaken,
};
use forebay_device::cuda::{DeviceView, Priority, Transfer};
use forebay_device::{Device, Devices, JobError};
use tempfile::TempDir;

use crate::common::ask;
use crate::gpu;

/// Bytes of the file; it ends in the middle of a block.
const BYTES: usize = (5 << 20) + 123;

fn pattern(index: usize) -> u8 {
    (index * 7 % 251) as u8
}

/// A GPU, and a file that cuFile can read.
struct Fixture {
    cufile: Arc<CuFile>,
    handle: Arc<CuFileHandle>,
    path: PathBuf,
    device: Arc<Device>,
    _devices: Devices,
    _folder: TempDir,
}

impl Fixture {
    /// Returns `None` if there is no GPU or cuFile does not work here.
    fn create() -> Option<Fixture> {
        let (devices, device) = gpu()?;
        let cufile = skip_if_failed(CuFile::open())?;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("table");
        let bytes: Vec<u8> = (0..BYTES).map(pattern).collect();
        fs::write(&path, bytes).expect("room for 5 MiB");
        let file = File::options().read(true).write(true).open(&path);
        let handle = cufile.register(file.expect("it was just written"), &path);
        Some(Fixture {
            handle: Arc::new(skip_if_failed(handle)?),
            cufile,
            path,
            device,
            _devices: devices,
            _folder: folder,
        })
    }

    /// Returns registered memory of the GPU.
    fn memory(&self, bytes: usize) -> CuFileMemory {
        let memory = self.device.allocate(bytes as u64).expect("all is free");
        let view = DeviceView::of(&Arc::new(memory), 0..bytes);
        let registered = self.cufile.register_memory(view);
        registered.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the bytes of GPU memory.
    fn fetch(&self, memory: &CuFileMemory) -> Vec<u8> {
        let (view, len) = (memory.view().clone(), memory.len());
        let fetched = ask(&self.device, move |cuda| {
            let to = cuda.host_buffer(len)?;
            let down = Transfer::begin(cuda, view.clone(), to, cuda.downloads())?;
            Ok(down.finish()?.1.to_vec())
        });
        fetched.expect("the device works")
    }

    /// Asserts that GPU memory has the bytes of the file from an offset on.
    fn assert_is_of_file(&self, memory: &CuFileMemory, offset: usize) {
        let found = self.fetch(memory);
        let wrong = (0..found.len()).find(|&index| found[index] != pattern(offset + index));
        assert_eq!(
            wrong,
            None,
            "first wrong byte of {} at {offset}",
            found.len()
        );
    }
}

fn skip_if_failed<T, E: std::fmt::Display>(result: Result<T, E>) -> Option<T> {
    let required = env::var_os("FOREBAY_REQUIRE_CUFILE").is_some_and(|value| value == "1");
    match result {
        Ok(value) => Some(value),
        Err(error) if required => panic!("{error}"),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

#[test]
fn any_range_of_a_file_is_read_into_the_middle_of_registered_memory() {
    let Some(fixture) = Fixture::create() else {
        return;
    };
    let memory = fixture.memory(3 << 20);
    for (offset, start, bytes) in [
        (0, 0, 3 << 20),
        (4096, 8192, 1 << 20),
        (1, 3, 70_001),
        (4095, 4097, 2),
        (2 << 20, 1 << 20, 12_345),
    ] {
        let part = memory.part(start..start + bytes);
        let read = fixture.handle.read(offset as u64, &part);
        assert_eq!(read.unwrap_or_else(|error| panic!("{error}")), bytes);
        fixture.assert_is_of_file(&part, offset);
    }
    let part = CuFileMemory::unregistered(memory.view().view(0..5000));
    assert_eq!(fixture.handle.read(17, &part).expect("readable"), 5000);
    fixture.assert_is_of_file(&part, 17);
    drop((memory, part));
    assert_eq!(fixture.device.memory_used_bytes(), 0, "all memory is free");
}

#[test]
fn the_end_of_the_file_ends_a_read() {
    let Some(fixture) = Fixture::create() else {
        return;
    };
    let memory = fixture.memory(1 << 20);
    let offset = BYTES - 1000;
    let read = fixture.handle.read(offset as u64, &memory);
    assert_eq!(read.expect("readable"), 1000);
    fixture.assert_is_of_file(&memory.part(0..1000), offset);
}

#[test]
fn memory_is_written_to_a_file() {
    let Some(fixture) = Fixture::create() else {
        return;
    };
    let memory = fixture.memory(1 << 20);
    fixture.handle.read(0, &memory).expect("readable");
    for (offset, bytes) in [(0, 1 << 20), (10_001, 5003)] {
        let path = fixture.path.with_extension(format!("copy{offset}"));
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path);
        let copy = fixture.cufile.register(file.expect("a new file"), &path);
        let copy = copy.unwrap_or_else(|error| panic!("{error}"));
        let written = copy.write(offset, &memory.part(0..bytes));
        assert_eq!(written.unwrap_or_else(|error| panic!("{error}")), bytes);
        drop(copy);
        let found = fs::read(&path).expect("it was just written");
        let start = offset as usize;
        assert_eq!(found.len(), start + bytes);
        let expected: Vec<u8> = (0..bytes).map(pattern).collect();
        assert!(found[start..] == expected, "{bytes} bytes at {offset}");
    }
}

#[test]
fn reads_and_writes_on_a_stream_are_ordered_with_its_copies() {
    let Some(fixture) = Fixture::create() else {
        return;
    };
    let memory = fixture.memory(2 << 20);
    let (handle, cufile) = (Arc::clone(&fixture.handle), Arc::clone(&fixture.cufile));
    let moved = ask(&fixture.device, move |cuda| {
        let stream = cuda.stream(Priority::Normal)?;
        let registered = CuFileStream::register(cuda, &cufile, stream.clone()).map_err(fault)?;
        let parts = [
            memory.part(0..1 << 20),
            memory.part(1 << 20..(1 << 20) + 4097),
        ];
        let reads = [(4096, parts[0].clone()), (777, parts[1].clone())];
        let reads = reads.map(|(offset, part)| {
            CuFileTransfer::read(cuda, &handle, offset, part, &registered).expect("it is queued")
        });
        let to = cuda.host_buffer(1 << 20)?;
        let copy = Transfer::begin(cuda, parts[0].view().clone(), to, &stream)?;
        let copied = copy.finish()?.1;
        let bytes = reads.map(|read| read.finish().expect("the file is long enough"));
        let is_right = |(index, byte): (usize, &u8)| *byte == pattern(4096 + index);
        Ok((bytes, copied.iter().enumerate().all(is_right), parts))
    });
    let (bytes, copied, parts) = moved.expect("the device works");
    assert_eq!(bytes, [1 << 20, 4097]);
    assert!(copied, "the copy on the stream came after the read");
    fixture.assert_is_of_file(&parts[0], 4096);
    fixture.assert_is_of_file(&parts[1], 777);
}

fn fault(error: CuFileError) -> JobError {
    panic!("{error}")
}

#[test]
fn a_batch_reads_many_ranges_and_is_used_again() {
    const PART: usize = 64 << 10;
    let Some(fixture) = Fixture::create() else {
        return;
    };
    let memory = fixture.memory(16 * PART);
    let mut batch =
        CuFileBatch::create(&fixture.cufile, 16).unwrap_or_else(|error| panic!("{error}"));
    for round in 0..3 {
        let operations = (0..16).map(|part| CuFileOperation {
            direction: CuFileDirection::Read,
            handle: Arc::clone(&fixture.handle),
            offset: ((15 - part) * PART + round) as u64,
            memory: memory.part(part * PART..(part + 1) * PART),
        });
        let moved = batch.run(operations.collect());
        assert_eq!(moved.unwrap_or_else(|error| panic!("{error}")), [PART; 16]);
        for part in 0..16 {
            let memory = memory.part(part * PART..(part + 1) * PART);
            fixture.assert_is_of_file(&memory, (15 - part) * PART + round);
        }
    }
    let none = batch.run(Vec::new()).expect("nothing to do");
    assert!(none.is_empty());
}

#[test]
fn the_library_says_which_path_it_took() {
    let Some(fixture) = Fixture::create() else {
        return;
    };
    let before = match fixture.cufile.counts() {
        Err(CuFileError::NoStatistics { version }) => {
            println!("skipped: libcufile {version} has no statistics");
            return;
        }
        counts => counts.unwrap_or_else(|error| panic!("{error}")),
    };
    let memory = fixture.memory(1 << 20);
    fixture.handle.read(0, &memory).expect("readable");
    let taken = fixture.cufile.counts().expect("they were just read") - before;
    println!("{}: {taken:?}", taken.path());
    assert_ne!(taken.path(), PathTaken::Unknown);
    let support = DirectSupport::detect();
    println!("{support}");
    match (support, taken.path()) {
        (DirectSupport::Unavailable { why }, _) => panic!("{why}"),
        (DirectSupport::Compat(_), path) => assert_eq!(path, PathTaken::Posix),
        (_, _) => {}
    }
}

#[test]
fn an_error_names_the_file_and_the_offset() {
    let Some(fixture) = Fixture::create() else {
        return;
    };
    let memory = fixture.memory(4096);
    let file = File::open(&fixture.path).expect("the fixture wrote it");
    let read_only = fixture.cufile.register(file, &fixture.path);
    let read_only = read_only.unwrap_or_else(|error| panic!("{error}"));
    let error = read_only.write(8192, &memory).expect_err("it is read only");
    let text = error.to_string();
    assert!(
        text.contains("offset 8192 of ") && text.contains("table"),
        "{text}"
    );
    let folder = folder_of(&fixture.path);
    let refused = fixture
        .cufile
        .register(File::open(folder).expect("a folder"), folder);
    let text = refused.expect_err("it is a folder").to_string();
    assert!(text.contains(&*folder.to_string_lossy()), "{text}");
    // The failures left everything usable.
    assert_eq!(fixture.handle.read(0, &memory).expect("readable"), 4096);
    File::create(&fixture.path)
        .and_then(|mut file| file.write_all(b"short"))
        .expect("writable");
    assert_eq!(fixture.handle.read(0, &memory).expect("readable"), 5);
}

fn folder_of(path: &Path) -> &Path {
    path.parent().expect("the file lies in a folder")
}
