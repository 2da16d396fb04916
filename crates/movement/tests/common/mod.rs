//! GPUs for tests. With `FOREBAY_REQUIRE_GPU=1` a missing GPU is an error; without it, tests on a GPU print that they
//! are skipped, and pass.

use std::env;
use std::sync::Arc;

use forebay_device::cuda;
use forebay_device::{Device, DeviceOptions, Devices};

/// Starts the first `count` GPUs with 64 MiB of memory each; returns `None` if there are fewer.
pub fn gpus(count: usize, pinned_pool_bytes: u64) -> Option<(Devices, Vec<Arc<Device>>)> {
    let found = cuda::gpus();
    if let Err(error) = &found {
        assert!(!is_required("FOREBAY_REQUIRE_GPU"), "{error}");
    }
    if found.map_or(0, |gpus| gpus.len()) < count {
        println!("skipped: no GPU, or fewer than {count}");
        return None;
    }
    let names: Vec<String> = (0..count).map(|gpu| format!("cuda:{gpu}")).collect();
    Some(start(&names.join(","), pinned_pool_bytes))
}

/// Starts the first GPU; returns `None` if there is none.
pub fn gpu(pinned_pool_bytes: u64) -> Option<(Devices, Arc<Device>)> {
    let (devices, mut list) = gpus(1, pinned_pool_bytes)?;
    Some((devices, list.remove(0)))
}

/// Starts the devices of a specification with little memory.
pub fn start(spec: &str, pinned_pool_bytes: u64) -> (Devices, Vec<Arc<Device>>) {
    let options = DeviceOptions {
        cuda_memory_budget_bytes: Some(64 << 20),
        pinned_pool_bytes,
        ..DeviceOptions::default()
    };
    let spec = spec.parse().expect("a valid specification");
    let devices = Devices::new(&spec, options).unwrap_or_else(|error| panic!("{error}"));
    let list = devices.list();
    (devices, list)
}

/// Returns whether an environment variable asks for what is missing.
pub fn is_required(name: &str) -> bool {
    env::var_os(name).is_some_and(|value| value == "1")
}
