//! A kernel that faults. It runs in its own process, because after a fault CUDA guarantees nothing to the rest of the
//! process.

mod common;

use std::sync::mpsc::channel;

use common::{ask, devices};
use forebay_device::cuda::{
    Cuda, DevicePointerMut, KernelArguments, LaunchShape, Priority, Program, ProgramSpec,
};
use forebay_device::{DeviceContext, JobError, Step, SubmitError, kernel_arguments};

kernel_arguments! {
    /// Arguments of the kernel.
    pub struct Arguments {
        /// Address that the kernel writes to.
        pub out: DevicePointerMut<u32>,
    }
}

const SOURCE: &str = r#"
#include "arguments.h"
extern "C" __global__ void write_one(const __grid_constant__ Arguments arguments) { *arguments.out = 1; }
"#;

fn write_to_null(cuda: &mut Cuda) -> Result<(), JobError> {
    let spec = ProgramSpec {
        name: "device-test-fault".to_owned(),
        source: SOURCE.into(),
        headers: vec![("arguments.h".to_owned(), Arguments::header())],
        options: Vec::new(),
        entries: vec!["write_one".to_owned()],
    };
    let kernel = cuda.kernel(&Program::new(spec), "write_one")?;
    let shape = LaunchShape {
        blocks: 1,
        threads: 1,
        shared_bytes: 0,
        ..LaunchShape::default()
    };
    let arguments = Arguments {
        out: DevicePointerMut::new(0),
    };
    let stream = cuda.stream(Priority::Normal)?;
    // SAFETY: nothing is allocated at address 0 on the device, so the kernel faults without touching memory. The test
    // needs this fault.
    unsafe { cuda.launch(&kernel, &shape, &arguments, &stream)? };
    Ok(cuda.synchronize(&stream)?)
}

#[test]
fn a_kernel_that_faults_loses_its_device_alone() {
    let Some(devices) = devices("cuda:0,host:1") else {
        return;
    };
    let [gpu, host] = &devices.list()[..] else {
        panic!("two devices");
    };
    let memory = gpu.allocate(1000).expect("all is free");
    let pinned = gpu.stage(1000).expect("all is free");
    let event = ask(gpu, |cuda| Ok(cuda.event()?)).expect("the device works");
    assert!(ask(gpu, write_to_null).is_none());
    let state = gpu.state().to_string();
    assert!(state.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{state}");
    assert!(gpu.stage(1).is_none(), "nothing can be loaded any more");
    let refused = gpu.submit(Box::new(|_: &mut DeviceContext| Ok(Step::Done)));
    assert!(matches!(refused, Err(SubmitError::Lost { .. })));
    let (sender, receiver) = channel();
    let job = move |_: &mut DeviceContext| {
        sender.send(()).expect("the test listens");
        Ok(Step::Done)
    };
    host.submit(Box::new(job)).expect("the host continues");
    assert_eq!(receiver.recv(), Ok(()));
    // Handles of the GPU can still be dropped and polled: polling returns the fault.
    assert!(event.wait().is_err());
    drop((event, pinned, memory));
}
