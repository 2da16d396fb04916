//! The ring on a GPU: a kernel adds up the chunks.

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

use forebay_cancel::Stop;
use forebay_device::cuda::{
    Cuda, DeviceBuffer, DevicePointer, DevicePointerMut, DeviceType, DeviceView, Fill,
    KernelArguments, LaunchShape, Program, ProgramSpec, Stream, Transfer,
};
use forebay_device::{Device, Fault, JobError, kernel_arguments};
use forebay_movement::method::{checksum_on, run_on_device};
use forebay_movement::{
    Chunk, Consumer, MoveError, Pageable, Piece, PinnedSource, RingOptions, Source, StagingRing,
    checksum, part_checksum, scatter,
};

use super::{Sum, Tricky, bytes, tricky, weighed};
use crate::common::gpu;

kernel_arguments! {
    /// Arguments of the kernel.
    pub struct Weighing {
        /// The bytes of a chunk.
        pub bytes: DevicePointer<u8>,
        /// Number of bytes.
        pub count: u64,
        /// Offset of the first byte in the source.
        pub offset: u64,
        /// The sum, to which the kernel adds.
        pub sum: DevicePointerMut<u64>,
    }
}

const SOURCE: &str = r#"
#include "arguments.h"
extern "C" __global__ void weigh(const __grid_constant__ Weighing arguments) {
    unsigned long long sum = 0, step = gridDim.x * (unsigned long long)blockDim.x;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < arguments.count; i += step)
        sum += arguments.bytes[i] * (arguments.offset + i + 1);
    atomicAdd(arguments.sum, sum);
}
"#;

/// The sum on the device.
struct GpuSum {
    program: Program,
    sum: DeviceBuffer<u64>,
}

impl Consumer for GpuSum {
    fn enqueue(
        &self,
        cuda: &mut Cuda,
        stream: &Stream,
        chunk: Chunk,
        bytes: &DeviceView<u8>,
    ) -> Result<(), JobError> {
        let kernel = cuda.kernel(&self.program, "weigh")?;
        let shape = LaunchShape {
            blocks: 8,
            threads: 128,
            ..LaunchShape::default()
        };
        let arguments = Weighing {
            bytes: bytes.pointer(),
            count: bytes.len() as u64,
            offset: chunk.offset,
            sum: self.sum.pointer_mut(),
        };
        // SAFETY: the kernel takes `Weighing`, reads `count` bytes, which the ring keeps until the stream is done, and
        // adds to one sum, which lives as long as this consumer.
        unsafe { cuda.launch(&kernel, &shape, &arguments, stream) }
    }

    fn process(&self, _: Chunk, _: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        Err("the device is a GPU".into())
    }
}

/// Bytes of the pinned pool.
const PINNED_BYTES: u64 = 8 << 20;

/// Runs `work` on the device's thread.
fn run<T: Send + 'static>(
    device: &Device,
    work: impl FnOnce(&mut Cuda) -> Result<T, JobError> + Send + 'static,
) -> T {
    run_on_device(device, work).unwrap_or_else(|error| panic!("{error}"))
}

fn gpu_sum(device: &Device) -> Arc<GpuSum> {
    let sum = run(device, |cuda| {
        let sum = cuda.buffer::<u64>(1)?;
        Transfer::begin(cuda, Fill(0), sum.all(), cuda.uploads())?.finish()?;
        Ok(sum)
    });
    let program = Program::new(ProgramSpec {
        name: "movement-test".to_owned(),
        source: SOURCE.into(),
        headers: vec![("arguments.h".to_owned(), Weighing::header())],
        options: Vec::new(),
        entries: vec!["weigh".to_owned()],
    });
    Arc::new(GpuSum { program, sum })
}

fn value(device: &Device, sum: &GpuSum) -> u64 {
    let from = sum.sum.all();
    run(device, move |cuda| {
        let host = cuda.host_buffer(8)?;
        let (_, host) = Transfer::begin(cuda, from, host, cuda.downloads())?.finish()?;
        Ok(u64::read(&host))
    })
}

fn ring(device: &Arc<Device>, slots: usize) -> StagingRing {
    let options = RingOptions {
        slots,
        slot_bytes: 64 << 10,
    };
    StagingRing::lease(device, options).expect("memory")
}

#[test]
fn a_gpu_sums_pageable_and_pinned_memory() {
    let Some((_devices, device)) = gpu(PINNED_BYTES) else {
        return;
    };
    let data = bytes(5_000_001);
    for slots in [1, 2, 8] {
        let sum = gpu_sum(&device);
        let source = Pageable {
            bytes: &data,
            threads: 3,
        };
        let report = ring(&device, slots).run(&source, &sum, &Stop::never());
        assert_eq!(report.expect("memory can be read").bytes, 5_000_001);
        assert_eq!(value(&device, &sum), weighed(0, &data), "{slots} slots");
        let sum = gpu_sum(&device);
        let pinned = device
            .register(data.clone())
            .unwrap_or_else(|(_, error)| panic!("{error}"));
        let source = PinnedSource {
            bytes: Arc::new(pinned),
        };
        let report = ring(&device, slots).run(&source, &sum, &Stop::never());
        let report = report.expect("memory can be read");
        assert_eq!(
            value(&device, &sum),
            weighed(0, &data),
            "{slots} slots, pinned"
        );
        assert!(
            report.copy.as_nanos() > 0 && report.work.as_nanos() > 0,
            "{report:?}"
        );
    }
    assert_all_is_back(&device);
}

#[test]
fn a_source_goes_to_many_places() {
    let Some((_devices, device)) = gpu(PINNED_BYTES) else {
        return;
    };
    let data = bytes(1_000_003);
    let source = Pageable {
        bytes: &data,
        threads: 3,
    };
    // Within a slot, over several, empty, side by side, and up to the end.
    let ranges = [
        0..10,
        10..10,
        60_000..270_000,
        270_000..270_001,
        999_000..1_000_003,
    ];
    for slots in [1, 8] {
        let memory = |range: &Range<u64>| {
            let bytes = range.end - range.start;
            let memory = device.allocate(bytes.max(1)).expect("memory");
            DeviceView::of(&Arc::new(memory), 0..bytes as usize)
        };
        let pieces = ranges.iter().map(|range| Piece {
            range: range.clone(),
            to: memory(range),
        });
        let pieces: Vec<Piece> = pieces.collect();
        let views: Vec<_> = pieces.iter().map(|piece| piece.to.clone()).collect();
        let with = (&source as &dyn Source, 8 << 20);
        let moved = scatter(
            &device,
            &mut ring(&device, slots),
            with,
            pieces,
            &Stop::never(),
        );
        let (report, sum) = moved.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(report.bytes, 1_000_003);
        assert_eq!(sum, part_checksum(&data, 8 << 20));
        for (range, view) in ranges.iter().zip(views) {
            let piece = &data[range.start as usize..range.end as usize];
            let there = checksum_on(&device, view).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(there, checksum(piece), "{range:?} with {slots} slots");
        }
    }
    assert_all_is_back(&device);
}

#[test]
fn after_an_error_the_ring_works_again_and_nothing_leaks() {
    let Some((_devices, device)) = gpu(PINNED_BYTES) else {
        return;
    };
    fails_and_works_again(&device);
    assert_all_is_back(&device);
}

/// Asserts that no device memory and no pinned memory is in use.
fn assert_all_is_back(device: &Device) {
    assert_eq!(device.memory_used_bytes(), 0, "device memory is in use");
    let whole_pool = device.stage(PINNED_BYTES as usize);
    assert!(whole_pool.is_some(), "pinned memory is in use");
}

fn fails_and_works_again(device: &Arc<Device>) {
    let data = bytes(3_000_000);
    let mut ring = ring(device, 3);
    let broken = Tricky {
        fails_at: Some(1_000_000),
        ..tricky(&data)
    };
    let error = ring.run(&broken, &gpu_sum(device), &Stop::never());
    let error = error.expect_err("the source fails").to_string();
    assert!(error.starts_with("tricky, at byte "), "{error}");
    device.inject(Fault::OutOfMemory);
    assert!(StagingRing::lease(device, ring.options()).is_err());
    let sum = gpu_sum(device);
    ring.run(&tricky(&data), &sum, &Stop::never())
        .expect("the ring works again");
    assert_eq!(value(device, &sum), weighed(0, &data));
    let sum = Arc::new(Refuses);
    let error = ring.run(&tricky(&data), &sum, &Stop::never());
    let error = error.expect_err("the consumer fails").to_string();
    assert!(error.contains("no kernel missing"), "{error}");
    let sum = gpu_sum(device);
    ring.run(&tricky(&data), &sum, &Stop::never())
        .expect("the ring works again");
    assert_eq!(value(device, &sum), weighed(0, &data));
}

/// A consumer whose kernel does not exist.
struct Refuses;

impl Consumer for Refuses {
    fn enqueue(
        &self,
        cuda: &mut Cuda,
        _: &Stream,
        _: Chunk,
        _: &DeviceView<u8>,
    ) -> Result<(), JobError> {
        let program = Program::new(ProgramSpec {
            name: "movement-test".to_owned(),
            source: SOURCE.into(),
            headers: vec![("arguments.h".to_owned(), Weighing::header())],
            options: Vec::new(),
            entries: vec!["weigh".to_owned()],
        });
        cuda.kernel(&program, "missing").map(|_| ())
    }

    fn process(&self, _: Chunk, _: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }
}

#[test]
fn a_device_that_is_lost_ends_the_move() {
    let Some((_devices, device)) = gpu(PINNED_BYTES) else {
        return;
    };
    let data = bytes(5_000_000);
    let mut ring = ring(&device, 3);
    device.inject(Fault::FailAfter { checks: 20 });
    let error = ring.run(&tricky(&data), &Arc::new(Sum::default()), &Stop::never());
    let error = error.expect_err("the device is lost");
    assert!(matches!(error, MoveError::DeviceLost { .. }), "{error}");
    assert!(
        ring.run(&tricky(&data), &Arc::new(Sum::default()), &Stop::never())
            .is_err()
    );
}
