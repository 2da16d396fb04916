//! Doubles numbers on a GPU: allocates, copies, launches, reads back.

use std::sync::mpsc::channel;

use forebay_device::cuda::{
    Cuda, DevicePointerMut, DeviceType, KernelArguments, LaunchShape, Priority, Program,
    ProgramSpec, Transfer,
};
use forebay_device::{Device, DeviceContext, JobError, Step, kernel_arguments};

kernel_arguments! {
    /// Arguments of the kernel.
    pub struct Doubling {
        /// The numbers, which are doubled in place.
        pub numbers: DevicePointerMut<u32>,
        /// Number of numbers.
        pub count: u64,
    }
}

const SOURCE: &str = r#"
#include "arguments.h"
extern "C" __global__ void double_all(const __grid_constant__ Doubling arguments) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < arguments.count) arguments.numbers[i] *= 2;
}
"#;

fn program() -> Program {
    Program::new(ProgramSpec {
        name: "example/double".to_owned(),
        source: SOURCE.into(),
        headers: vec![("arguments.h".to_owned(), Doubling::header())],
        options: Vec::new(),
        entries: vec!["double_all".to_owned()],
    })
}

/// Allocates, copies, launches and reads back; the stream runs them in order.
fn double_all(cuda: &mut Cuda, program: &Program, numbers: &[u32]) -> Result<Vec<u32>, JobError> {
    let stream = cuda.stream(Priority::Normal)?;
    let buffer = cuda.buffer::<u32>(numbers.len())?;
    let mut host = cuda.host_buffer(size_of_val(numbers))?;
    host.copy_from_slice(&u32::bytes_of(numbers));
    let up = Transfer::begin(cuda, host, buffer.all(), &stream)?;
    let kernel = cuda.kernel(program, "double_all")?;
    let shape = LaunchShape {
        blocks: (numbers.len() as u64).div_ceil(256),
        threads: 256,
        ..LaunchShape::default()
    };
    let arguments = Doubling {
        numbers: buffer.pointer_mut(),
        count: numbers.len() as u64,
    };
    // SAFETY: the kernel takes `Doubling` and accesses `count` numbers of the buffer, which lives until the copy after
    // the kernel is done.
    unsafe { cuda.launch(&kernel, &shape, &arguments, &stream) }?;
    let (host, _) = up.finish()?;
    let down = Transfer::begin(cuda, buffer.all(), host, &stream)?;
    let (_, host) = down.finish()?;
    Ok(host.chunks_exact(4).map(u32::read).collect())
}

/// Runs `double_all` as a job; returns `None` if the job fails or the device is lost.
pub fn run(device: &Device, numbers: Vec<u32>) -> Option<Vec<u32>> {
    let (sender, receiver) = channel();
    let program = program();
    let job = move |context: &mut DeviceContext| {
        let cuda = context.parts().cuda.expect("the device is a GPU");
        if let Some(compiled) = cuda.load(&program)? {
            return Ok(Step::wait_for(compiled));
        }
        let doubled = double_all(cuda, &program, &numbers)?;
        // The receiver is gone if the caller gave up.
        let _ = sender.send(doubled);
        Ok(Step::Done)
    };
    device.submit(Box::new(job)).ok()?;
    receiver.recv().ok()
}
