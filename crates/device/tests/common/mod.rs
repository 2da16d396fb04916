//! A GPU for tests, and jobs that return a value.

use std::env;
use std::sync::Arc;
use std::sync::mpsc::channel;

use forebay_device::cuda::{Cuda, gpus};
use forebay_device::{Device, DeviceContext, DeviceOptions, Devices, JobError, Step};

/// Starts the devices of a specification with little memory each; returns `None` if there is no GPU.
///
/// With `FOREBAY_REQUIRE_GPU=1` a missing GPU fails the test.
pub fn devices(spec: &str) -> Option<Devices> {
    if !gpu_is_there() {
        return None;
    }
    let spec = spec.parse().expect("a valid specification");
    Some(Devices::new(&spec, options()).unwrap_or_else(|error| panic!("{error}")))
}

/// Returns whether there is a GPU. If not, prints that the test is skipped, or panics if `FOREBAY_REQUIRE_GPU=1`.
pub fn gpu_is_there() -> bool {
    let found = gpus();
    if let Err(error) = &found {
        let required = env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|value| value == "1");
        assert!(!required, "{error}");
        println!("skipped: no GPU");
    }
    found.is_ok()
}

/// Returns options with little memory for each GPU.
pub fn options() -> DeviceOptions {
    DeviceOptions {
        cuda_memory_budget_bytes: Some(64 << 20),
        pinned_pool_bytes: 8 << 20,
        ..DeviceOptions::default()
    }
}

/// Runs `work` as a one-step job on the GPU and returns its result; `None` if the job fails or the device is lost.
pub fn ask<T, F>(device: &Arc<Device>, mut work: F) -> Option<T>
where
    T: Send + 'static,
    F: FnMut(&mut Cuda) -> Result<T, JobError> + Send + 'static,
{
    let (sender, receiver) = channel();
    let job = move |context: &mut DeviceContext| {
        let cuda = context.parts().cuda.expect("the device is a GPU");
        sender.send(work(cuda)?).expect("the test listens");
        Ok(Step::Done)
    };
    device.submit(Box::new(job)).ok()?;
    receiver.recv().ok()
}
