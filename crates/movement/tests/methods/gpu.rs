//! The methods on a GPU.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use forebay_device::cuda::DeviceBuffer;
use forebay_device::{Device, Fault};
use forebay_movement::method::{
    Direction, HostBuffer, Missing, MoveRequest, Moved, StagedOptions, TransferMethod, available,
    checksum_on, lacks, move_bytes, run_on_device,
};
use forebay_movement::{MoveError, checksum};

use crate::common::gpu;

/// Bytes of the pinned pool.
const PINNED_BYTES: u64 = 8 << 20;

const STAGED: StagedOptions = StagedOptions {
    threads: 3,
    buffers: 2,
    buffer_bytes: 128 << 10,
};

fn buffer(device: &Device, bytes: usize) -> DeviceBuffer<u8> {
    run_on_device(device, move |cuda| Ok(cuda.buffer::<u8>(bytes)?)).expect("the budget is larger")
}

fn request(
    method: TransferMethod,
    direction: Direction,
    host: HostBuffer,
    device_memory: &DeviceBuffer<u8>,
) -> MoveRequest {
    MoveRequest {
        method,
        direction,
        host,
        device_memory: device_memory.all(),
        chunk_bytes: 256 << 10,
        staged: STAGED,
    }
}

fn fill(host: &mut HostBuffer, seed: u64) {
    fastrand::Rng::with_seed(seed).fill(host);
}

/// Moves random bytes there and back, and compares them.
fn there_and_back(device: &Arc<Device>, method: TransferMethod, bytes: usize) {
    let device_memory = buffer(device, bytes);
    let mut host = HostBuffer::allocate(device, method, bytes).expect("a little memory");
    fill(&mut host, bytes as u64);
    let sum = checksum(&host);
    let up = request(method, Direction::ToDevice, host, &device_memory);
    let Moved {
        mut host,
        took,
        pinning,
    } = move_bytes(device, up).unwrap_or_else(|error| panic!("{method}: {error}"));
    assert_eq!(checksum(&host), sum, "{method} changes the source");
    let arrived = checksum_on(device, device_memory.all()).expect("the device works");
    assert_eq!(arrived, sum, "{method} of {bytes} bytes to the device");
    assert!(pinning <= took && (method == TransferMethod::DynamicPinning || pinning.is_zero()));
    host.fill(0);
    let down = request(method, Direction::ToHost, host, &device_memory);
    let moved = move_bytes(device, down).unwrap_or_else(|error| panic!("{method}: {error}"));
    assert_eq!(checksum(&moved.host), sum, "{method} of {bytes} bytes back");
}

#[test]
fn every_method_of_the_gpu_moves_bytes_both_ways() {
    let Some((_devices, device)) = gpu(PINNED_BYTES) else {
        return;
    };
    for (method, result) in available(&device) {
        match result {
            Err(missing) => {
                println!("{method}: {missing}");
                assert!(
                    !matches!(missing, Missing::Failed(_) | Missing::WrongBytes(_)),
                    "{method}: {missing}"
                );
            }
            Ok(()) => {
                for bytes in [1, 15, 16, 4096, 65_537, (3 << 20) + 13] {
                    there_and_back(&device, method, bytes);
                }
            }
        }
    }
    assert_eq!(device.memory_used_bytes(), 0, "all device memory came back");
}

#[test]
fn two_moves_at_once_and_moves_on_their_own_threads() {
    let Some((_devices, device)) = gpu(PINNED_BYTES) else {
        return;
    };
    const BYTES: usize = 4 << 20;
    let (sender, done) = channel();
    let mut expected = Vec::new();
    let memories: Vec<_> = (0..4).map(|_| buffer(&device, BYTES)).collect();
    for (index, device_memory) in memories.iter().enumerate() {
        let method = TransferMethod::ALL[1 + index % 3];
        let mut host = HostBuffer::allocate(&device, method, BYTES).expect("4 MiB");
        fill(&mut host, index as u64);
        expected.push(checksum(&host));
        let sender = sender.clone();
        let request = request(method, Direction::ToDevice, host, device_memory);
        let device = Arc::clone(&device);
        thread::spawn(move || {
            let moved = move_bytes(&device, request);
            sender.send(moved.is_ok()).expect("the test listens");
        });
    }
    drop(sender);
    assert_eq!(done.iter().collect::<Vec<_>>(), [true; 4]);
    for (device_memory, expected) in memories.iter().zip(expected) {
        let sum = checksum_on(&device, device_memory.all()).expect("the device works");
        assert_eq!(sum, expected);
    }
}

#[test]
fn a_method_that_is_missing_is_an_error() {
    let Some((_devices, device)) = gpu(PINNED_BYTES) else {
        return;
    };
    let missing = TransferMethod::ALL.into_iter().find_map(|method| {
        let why = lacks(&device, method)?;
        Some((method, why))
    });
    let Some((method, why)) = missing else {
        println!("skipped: the GPU has every method");
        return;
    };
    let host = HostBuffer::Pageable(vec![0; 10].into_boxed_slice());
    if host.tier() != method.tier() {
        println!("skipped: {method} does not work on pageable memory");
        return;
    }
    let request = request(method, Direction::ToDevice, host, &buffer(&device, 10));
    match move_bytes(&device, request) {
        Err(MoveError::Method { why: found, .. }) => assert_eq!(found, why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pinned_pool_that_is_too_small_is_an_error_and_nothing_leaks() {
    let Some((_devices, device)) = gpu(PINNED_BYTES) else {
        return;
    };
    let device_memory = buffer(&device, 1 << 20);
    let host = HostBuffer::Pageable(vec![0; 1 << 20].into_boxed_slice());
    let mut request = request(
        TransferMethod::StagedCopy,
        Direction::ToDevice,
        host,
        &device_memory,
    );
    request.staged.buffers = 1000;
    let error = move_bytes(&device, request).expect_err("the pool has 8 MiB");
    assert!(matches!(error, MoveError::PinnedMemory { .. }), "{error}");
    assert!(
        device.stage(PINNED_BYTES as usize).is_some(),
        "the whole pool is free"
    );
}

#[test]
fn a_device_that_is_lost_in_the_middle_ends_every_move_with_an_error() {
    for method in TransferMethod::ALL {
        let Some((_devices, device)) = gpu(PINNED_BYTES) else {
            return;
        };
        if lacks(&device, method).is_some() {
            continue;
        }
        let device_memory = buffer(&device, 1 << 20);
        let host = HostBuffer::allocate(&device, method, 1 << 20).expect("1 MiB");
        device.inject(Fault::FailAfter { checks: 1 });
        let moved = move_bytes(
            &device,
            request(method, Direction::ToDevice, host, &device_memory),
        );
        assert!(
            matches!(moved, Err(MoveError::DeviceLost { .. })),
            "{method}: {moved:?}"
        );
    }
}
