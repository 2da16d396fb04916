//! Files through the ring into the memory of a GPU, by every storage path. Without libcufile, the tests of cuFile print
//! why they are skipped; with `FOREBAY_REQUIRE_CUFILE=1` they fail.

use std::error::Error;
use std::sync::Arc;

use forebay_cancel::Stop;
use forebay_device::cuda::cufile::CuFile;
use forebay_device::cuda::{Cuda, DeviceBuffer, DeviceView, Stream, Transfer};
use forebay_device::{Device, JobError};
use forebay_movement::method::run_on_device;
use forebay_movement::storage::{DirectMode, DirectSource, FileSource};
use forebay_movement::{Chunk, Consumer, MoveError, RingOptions, Source, StagingRing};

use super::{BYTES, byte, readers, table};
use crate::common::{gpu, is_required};

/// Copies each chunk to its place in one buffer of the GPU.
struct Gathered {
    all: DeviceBuffer<u8>,
}

impl Consumer for Gathered {
    fn enqueue(
        &self,
        cuda: &mut Cuda,
        stream: &Stream,
        chunk: Chunk,
        bytes: &DeviceView<u8>,
    ) -> Result<(), JobError> {
        let begin = chunk.offset as usize;
        let to = self.all.view(begin..begin + chunk.bytes);
        // Waiting for the copy blocks the device's thread, which only a test may do.
        Transfer::begin(cuda, bytes.clone(), to, stream)?.finish()?;
        Ok(())
    }

    fn process(&self, _: Chunk, _: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        Err("the device is a GPU".into())
    }
}

/// Bytes of the pinned pool.
const PINNED_BYTES: u64 = 8 << 20;

/// Returns the ways of reading by cuFile that work here.
fn modes() -> Vec<(Arc<CuFile>, DirectMode)> {
    match CuFile::open() {
        Ok(cufile) => [DirectMode::Sync, DirectMode::Async, DirectMode::Batch]
            .map(|mode| (Arc::clone(&cufile), mode))
            .into(),
        Err(error) => {
            assert!(!is_required("FOREBAY_REQUIRE_CUFILE"), "{error}");
            println!("skipped: {error}");
            Vec::new()
        }
    }
}

/// Moves a source to the GPU and returns its bytes.
fn gathered(
    device: &Arc<Device>,
    ring: &mut StagingRing,
    source: &dyn Source,
) -> Result<Vec<u8>, MoveError> {
    let all = run_on_device(device, |cuda| Ok(cuda.buffer::<u8>(BYTES)?))?;
    let view = all.view(0..source.bytes() as usize);
    ring.run(source, &Arc::new(Gathered { all }), &Stop::never())?;
    run_on_device(device, move |cuda| {
        let to = cuda.host_buffer(view.len())?;
        let copy = Transfer::begin(cuda, view, to, cuda.downloads())?;
        Ok(copy.finish()?.1.to_vec())
    })
}

fn ring(device: &Arc<Device>) -> StagingRing {
    let options = RingOptions {
        slots: 4,
        slot_bytes: 16_384,
    };
    StagingRing::lease(device, options).expect("memory")
}

/// Returns the sources of a range of a file, with the names of their paths.
fn sources(table: &super::Table, start: usize, end: usize) -> Vec<(String, Box<dyn Source>)> {
    let range = start as u64..end as u64;
    let mut all: Vec<(String, Box<dyn Source>)> = Vec::new();
    for reader in readers() {
        let source = FileSource::range(table.open(), range.clone(), reader);
        all.push((format!("{reader:?}"), Box::new(source)));
    }
    for (cufile, mode) in modes() {
        match DirectSource::range(&cufile, table.open(), range.clone(), (mode, 2)) {
            Ok(source) => all.push((format!("{mode:?}"), Box::new(source))),
            Err(error) => {
                assert!(!is_required("FOREBAY_REQUIRE_CUFILE"), "{error}");
                println!("skipped: {error}");
            }
        }
    }
    all
}

#[test]
fn a_file_reaches_the_gpu_by_every_path() {
    let Some((_devices, device)) = gpu(PINNED_BYTES) else {
        return;
    };
    let table = table();
    let mut ring = ring(&device);
    for (start, end) in [(0, BYTES), (0, 0), (4095, 4097), (100_001, 250_000)] {
        for (name, source) in sources(&table, start, end) {
            let moved = gathered(&device, &mut ring, &*source);
            let found = moved.unwrap_or_else(|error| panic!("{name}: {error}"));
            let expected: Vec<u8> = (start..end).map(byte).collect();
            assert!(found == expected, "{start}..{end} by {name}");
        }
    }
    drop(ring);
    assert_eq!(device.memory_used_bytes(), 0, "all memory is free");
}

#[test]
fn a_file_that_shrinks_fails_on_every_path_and_the_ring_stays_usable() {
    let Some((_devices, device)) = gpu(PINNED_BYTES) else {
        return;
    };
    let mut ring = ring(&device);
    let count = sources(&table(), 0, BYTES).len();
    for path in 0..count {
        let table = table();
        let (name, source) = sources(&table, 0, BYTES).remove(path);
        table.truncate(100_000);
        let moved = gathered(&device, &mut ring, &*source);
        let text = moved.expect_err("the file is shorter").to_string();
        assert!(
            text.contains(": the file ends at byte 100000, and had 300077 bytes"),
            "{name}: {text}"
        );
        let (_, again) = sources(&table, 0, 100_000).remove(path);
        let found = gathered(&device, &mut ring, &*again);
        let found = found.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(
            found == (0..100_000).map(byte).collect::<Vec<u8>>(),
            "{name}"
        );
    }
}
