//! The transfer methods.

#[path = "../common/mod.rs"]
mod common;
mod gpu;

use forebay_movement::method::{
    HostBuffer, Missing, PeerLink, TransferMethod, available, lacks, link, run_on_device,
};
use forebay_movement::{MoveError, Tier};

#[test]
fn a_host_device_has_no_method_and_says_so() {
    let (_devices, list) = common::start("host:1", 0);
    let device = &list[0];
    for (method, result) in available(device) {
        assert_eq!(result, Err(Missing::HostDevice), "{method}");
        assert_eq!(lacks(device, method), Some(Missing::HostDevice));
    }
    let error = run_on_device(device, |_| Ok(())).expect_err("there is no GPU");
    assert!(matches!(error, MoveError::HostDevice { .. }), "{error}");
    assert_eq!(link(device, device), None::<PeerLink>);
    let pinned = HostBuffer::allocate(device, TransferMethod::PinnedCopy, 10);
    assert!(matches!(pinned, Err(MoveError::Register(_))));
    let pageable = HostBuffer::allocate(device, TransferMethod::StagedCopy, 10);
    let pageable = pageable.expect("ordinary memory");
    assert_eq!(
        (pageable.tier(), &pageable[..]),
        (Tier::Pageable, &[0; 10][..])
    );
}
