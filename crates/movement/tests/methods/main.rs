//! The transfer methods. With `FOREBAY_REQUIRE_GPU=1` a missing GPU is an error; without it, tests on a GPU print
//! `skipped: no GPU` and pass.

mod gpu;

use std::sync::Arc;

use forebay_device::{Device, DeviceOptions, Devices};
use forebay_movement::method::{
    HostBuffer, Missing, PeerLink, TransferMethod, ask, available, lacks, link,
};
use forebay_movement::{MoveError, Tier};

/// Starts a device with little memory.
fn device(spec: &str) -> (Devices, Arc<Device>) {
    let options = DeviceOptions {
        cuda_memory_budget_bytes: Some(64 << 20),
        pinned_pool_bytes: 8 << 20,
        ..DeviceOptions::default()
    };
    let spec = spec.parse().expect("valid");
    let devices = Devices::new(&spec, options).unwrap_or_else(|error| panic!("{error}"));
    let device = devices.list().remove(0);
    (devices, device)
}

#[test]
fn a_host_device_has_no_method_and_says_so() {
    let (_devices, device) = device("host:1");
    for (method, result) in available(&device) {
        assert_eq!(result, Err(Missing::HostDevice), "{method}");
        assert_eq!(lacks(&device, method), Some(Missing::HostDevice));
    }
    let error = ask(&device, |_| Ok(())).expect_err("there is no GPU");
    assert!(matches!(error, MoveError::HostDevice { .. }), "{error}");
    assert_eq!(link(&device, &device), None::<PeerLink>);
    let pinned = HostBuffer::allocate(&device, TransferMethod::PinnedCopy, 10);
    assert!(matches!(pinned, Err(MoveError::Register(_))));
    let pageable = HostBuffer::allocate(&device, TransferMethod::StagedCopy, 10);
    let pageable = pageable.expect("ordinary memory");
    assert_eq!(
        (pageable.tier(), &pageable[..]),
        (Tier::Pageable, &[0; 10][..])
    );
}
