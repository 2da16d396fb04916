//! GPU memory shared by tenants.

use std::cmp::Reverse;
use std::sync::Arc;

use forebay_device::cuda::DeviceMemory;
use forebay_device::{PoolOptions, Reclaim};
use parking_lot::Mutex;

use crate::gpu;

const MIB: u64 = 1 << 20;

fn tenant(name: &str, min_bytes: u64, max_bytes: u64) -> PoolOptions {
    PoolOptions {
        name: name.to_owned(),
        min_bytes,
        share_bytes: 0,
        max_bytes,
    }
}

/// Returns a callback that drops the latest allocations.
fn reclaim(kept: &Arc<Mutex<Vec<DeviceMemory>>>) -> Reclaim {
    let kept = Arc::clone(kept);
    Box::new(move |bytes| {
        let mut freed = 0;
        while freed < bytes
            && let Some(part) = kept.lock().pop()
        {
            freed += part.bytes();
        }
    })
}

#[test]
fn tenants_share_the_memory_of_a_gpu_and_give_it_back() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    // A cache that takes all memory except other tenants' minimums.
    let kept = Arc::new(Mutex::new(Vec::<DeviceMemory>::new()));
    let cache = device.open_pool(tenant("cache", 0, u64::MAX), Some(reclaim(&kept)));
    let cache = cache.expect("no minimum");
    let joins = device.open_pool(tenant("joins", 16 * MIB, 40 * MIB), None);
    let joins = joins.expect("all is free");
    while let Ok(part) = cache.allocate(MIB) {
        kept.lock().push(part);
    }
    assert_eq!(cache.used_bytes(), 48 * MIB, "64 MiB less the minimum");
    assert!(cache.reserve(1).is_err(), "memory of a GPU is allocated");
    let own = joins.buffer::<u32>((16 * MIB / 4) as usize).expect("kept");
    assert!(joins.allocate(24 * MIB).is_err(), "the cache has it");
    assert!(!joins.make_room(25 * MIB), "more than its maximum");
    assert!(joins.make_room(24 * MIB));
    let table = joins.allocate(24 * MIB).expect("the cache gave back");
    assert_eq!(table.bytes(), 24 * MIB);
    assert!(cache.used_bytes() <= 24 * MIB && cache.used_bytes() > 0);
    drop((own, table, joins));
    kept.lock().clear();
    assert_eq!(device.memory_used_bytes(), 0);
    let all = cache.allocate(64 * MIB).expect("one part again");
    assert_eq!(all.bytes(), device.memory_budget_bytes());
}

#[test]
fn room_is_made_in_one_part() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let kept = Arc::new(Mutex::new(Vec::<DeviceMemory>::new()));
    let cache = device.open_pool(tenant("cache", 0, u64::MAX), Some(reclaim(&kept)));
    let cache = cache.expect("no minimum");
    let parts = (0..64).map(|_| cache.allocate(MIB).expect("free"));
    let mut parts: Vec<_> = parts.enumerate().collect();
    // Every second allocation is freed: half of the memory is free, in ranges of 1 MiB. The first ranges that the cache
    // releases are not adjacent.
    parts.retain(|(index, _)| index % 2 == 1);
    parts.sort_by_key(|(index, _)| Reverse(index / 2 % 8));
    *kept.lock() = parts.into_iter().map(|(_, part)| part).collect();
    let other = device.open_pool(tenant("other", 0, u64::MAX), None);
    let other = other.expect("no minimum");
    assert!(other.allocate(4 * MIB).is_err(), "no part is as large");
    assert!(other.make_room(4 * MIB));
    assert!(other.allocate(4 * MIB).is_ok());
}
