//! The methods on a GPU.

use std::env;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use forebay_device::cuda::{DeviceBuffer, gpus};
use forebay_device::{Device, Devices, Fault};
use forebay_movement::method::{
    Direction, HostBuffer, Missing, Moved, Order, StagedOptions, TransferMethod, ask, available,
    checksum_on, lacks, move_bytes,
};
use forebay_movement::{MoveError, checksum};

use super::device;

/// A GPU for a test; `None` if there is none.
fn gpu() -> Option<(Devices, Arc<Device>)> {
    if let Err(error) = gpus() {
        let required = env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|value| value == "1");
        assert!(!required, "{error}");
        println!("skipped: no GPU");
        return None;
    }
    Some(device("cuda:0"))
}

const STAGED: StagedOptions = StagedOptions {
    threads: 3,
    buffers: 2,
    buffer_bytes: 128 << 10,
};

fn buffer(device: &Device, bytes: usize) -> DeviceBuffer<u8> {
    ask(device, move |cuda| Ok(cuda.buffer::<u8>(bytes)?)).expect("the budget is larger")
}

fn order(
    method: TransferMethod,
    direction: Direction,
    host: HostBuffer,
    there: &DeviceBuffer<u8>,
) -> Order {
    Order {
        method,
        direction,
        host,
        there: there.all(),
        chunk_bytes: 256 << 10,
        staged: STAGED,
    }
}

fn fill(host: &mut HostBuffer, seed: u64) {
    fastrand::Rng::with_seed(seed).fill(host);
}

/// Moves random bytes there and back, and compares them.
fn there_and_back(device: &Arc<Device>, method: TransferMethod, bytes: usize) {
    let there = buffer(device, bytes);
    let mut host = HostBuffer::allocate(device, method, bytes).expect("a little memory");
    fill(&mut host, bytes as u64);
    let sum = checksum(&host);
    let up = order(method, Direction::ToDevice, host, &there);
    let Moved {
        mut host,
        took,
        pinning,
    } = move_bytes(device, up).unwrap_or_else(|error| panic!("{method}: {error}"));
    assert_eq!(checksum(&host), sum, "{method} changes the source");
    let arrived = checksum_on(device, there.all()).expect("the device works");
    assert_eq!(arrived, sum, "{method} of {bytes} bytes to the device");
    assert!(pinning <= took && (method == TransferMethod::DynamicPinning || pinning.is_zero()));
    host.fill(0);
    let down = order(method, Direction::ToHost, host, &there);
    let moved = move_bytes(device, down).unwrap_or_else(|error| panic!("{method}: {error}"));
    assert_eq!(checksum(&moved.host), sum, "{method} of {bytes} bytes back");
}

#[test]
fn every_method_of_the_gpu_moves_bytes_both_ways() {
    let Some((_devices, device)) = gpu() else {
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
    let Some((_devices, device)) = gpu() else {
        return;
    };
    const BYTES: usize = 4 << 20;
    let (sender, done) = channel();
    let mut expected = Vec::new();
    let theres: Vec<_> = (0..4).map(|_| buffer(&device, BYTES)).collect();
    for (index, there) in theres.iter().enumerate() {
        let method = TransferMethod::ALL[1 + index % 3];
        let mut host = HostBuffer::allocate(&device, method, BYTES).expect("4 MiB");
        fill(&mut host, index as u64);
        expected.push(checksum(&host));
        let sender = sender.clone();
        let order = order(method, Direction::ToDevice, host, there);
        let device = Arc::clone(&device);
        thread::spawn(move || {
            let moved = move_bytes(&device, order);
            sender.send(moved.is_ok()).expect("the test listens");
        });
    }
    drop(sender);
    assert_eq!(done.iter().collect::<Vec<_>>(), [true; 4]);
    for (there, expected) in theres.iter().zip(expected) {
        let sum = checksum_on(&device, there.all()).expect("the device works");
        assert_eq!(sum, expected);
    }
}

#[test]
fn a_method_that_is_missing_is_an_error() {
    let Some((_devices, device)) = gpu() else {
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
    let order = order(method, Direction::ToDevice, host, &buffer(&device, 10));
    match move_bytes(&device, order) {
        Err(MoveError::Method { why: found, .. }) => assert_eq!(found, why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pinned_pool_that_is_too_small_is_an_error_and_nothing_leaks() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let there = buffer(&device, 1 << 20);
    let host = HostBuffer::Pageable(vec![0; 1 << 20].into_boxed_slice());
    let mut order = order(
        TransferMethod::StagedCopy,
        Direction::ToDevice,
        host,
        &there,
    );
    order.staged.buffers = 1000;
    let error = move_bytes(&device, order).expect_err("the pool has 8 MiB");
    assert!(matches!(error, MoveError::PinnedMemory { .. }), "{error}");
    assert!(device.stage(8 << 20).is_some(), "the whole pool is free");
}

#[test]
fn a_device_that_is_lost_in_the_middle_ends_every_move_with_an_error() {
    for method in TransferMethod::ALL {
        let Some((_devices, device)) = gpu() else {
            return;
        };
        if lacks(&device, method).is_some() {
            continue;
        }
        let there = buffer(&device, 1 << 20);
        let host = HostBuffer::allocate(&device, method, 1 << 20).expect("1 MiB");
        device.inject(Fault::FailAfter { checks: 1 });
        let moved = move_bytes(&device, order(method, Direction::ToDevice, host, &there));
        assert!(
            matches!(moved, Err(MoveError::DeviceLost { .. })),
            "{method}: {moved:?}"
        );
    }
}
