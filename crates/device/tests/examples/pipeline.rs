//! Sums numbers on a GPU: a pipeline of copies and kernels, ordered by events.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_device::cuda::{
    Cuda, DeviceBuffer, DevicePointer, DevicePointerMut, DeviceType, DeviceView, Event, Fill,
    KernelArguments, LaunchShape, Pinned, Priority, Program, ProgramSpec, Stream, Transfer,
};
use forebay_device::{Device, DeviceContext, JobError, Step, kernel_arguments};

kernel_arguments! {
    /// Arguments of the kernel.
    pub struct Summing {
        /// The numbers of a chunk.
        pub numbers: DevicePointer<u32>,
        /// Number of numbers.
        pub count: u64,
        /// The sum, to which the kernel adds.
        pub sum: DevicePointerMut<u64>,
    }
}

const SOURCE: &str = r#"
#include "arguments.h"
extern "C" __global__ void sum(const __grid_constant__ Summing arguments) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < arguments.count) atomicAdd(arguments.sum, (unsigned long long)arguments.numbers[i]);
}
"#;

/// Numbers per chunk.
const CHUNK: usize = 1 << 16;

/// Number of chunks on the device at the same time.
const SLOTS: usize = 3;

/// A chunk in flight: the copy that fills the chunk's slot, and the event recorded after the kernel that reads the
/// slot.
type InFlight = (Transfer<Pinned, DeviceView<u32>>, Arc<Event>);

fn program() -> Program {
    Program::new(ProgramSpec {
        name: "example/sum".to_owned(),
        source: SOURCE.into(),
        headers: vec![("arguments.h".to_owned(), Summing::header())],
        options: Vec::new(),
        entries: vec!["sum".to_owned()],
    })
}

fn launch(
    cuda: &mut Cuda,
    numbers: &DeviceView<u32>,
    sum: DevicePointerMut<u64>,
    stream: &Stream,
) -> Result<(), JobError> {
    let kernel = cuda.kernel(&program(), "sum")?;
    let shape = LaunchShape {
        blocks: (numbers.len() as u64).div_ceil(256),
        threads: 256,
        ..LaunchShape::default()
    };
    let arguments = Summing {
        numbers: numbers.pointer(),
        count: numbers.len() as u64,
        sum,
    };
    // SAFETY: the kernel takes `Summing`, reads `count` numbers and adds to one sum; the caller keeps both until the
    // kernel has finished.
    unsafe { cuda.launch(&kernel, &shape, &arguments, stream) }
}

/// Sums numbers chunk by chunk. Copies run on one stream and kernels on another: kernel `i` waits for copy `i`, and
/// copy `i + SLOTS` waits for kernel `i`, both on the device. The host waits only until a pinned buffer can be
/// refilled.
fn sum(cuda: &mut Cuda, numbers: &[u32]) -> Result<u64, JobError> {
    let (copies, kernels) = (cuda.stream(Priority::Normal)?, cuda.stream(Priority::High)?);
    let sum = cuda.buffer::<u64>(1)?;
    Transfer::begin(cuda, Fill(0), sum.all(), &kernels)?.finish()?;
    let slots = cuda.buffer::<u32>(SLOTS * CHUNK)?;
    let queued = queue(
        cuda,
        numbers,
        &slots,
        sum.pointer_mut(),
        (&copies, &kernels),
    );
    // Wait even after an error, because kernels that were already queued read the slots.
    cuda.synchronize(&kernels)?;
    queued?;
    let host = cuda.host_buffer(size_of::<u64>())?;
    let (_, host) = Transfer::begin(cuda, sum.all(), host, &kernels)?.finish()?;
    Ok(u64::read(&host))
}

fn queue(
    cuda: &mut Cuda,
    numbers: &[u32],
    slots: &DeviceBuffer<u32>,
    sum: DevicePointerMut<u64>,
    (copies, kernels): (&Stream, &Stream),
) -> Result<(), JobError> {
    let mut flying: VecDeque<InFlight> = VecDeque::new();
    for (index, chunk) in numbers.chunks(CHUNK).enumerate() {
        let at = index % SLOTS * CHUNK;
        let slot = slots.view(at..at + chunk.len());
        if flying.len() == SLOTS
            && let Some((copy, read)) = flying.pop_front()
        {
            cuda.wait(copies, &read)?;
            copy.finish()?;
        }
        let mut host = cuda.host_buffer(size_of_val(chunk))?;
        host.copy_from_slice(&u32::bytes_of(chunk));
        let copy = Transfer::begin(cuda, host, slot.clone(), copies)?;
        cuda.wait(kernels, copy.event())?;
        launch(cuda, &slot, sum, kernels)?;
        flying.push_back((copy, cuda.mark(kernels)?));
    }
    Ok(())
}

/// Runs `sum` as a job; returns `None` if the job fails or the device is lost.
pub fn run(device: &Device, numbers: Vec<u32>) -> Option<u64> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let program = program();
    let job = move |context: &mut DeviceContext| {
        let cuda = context.parts().cuda.expect("the device is a GPU");
        if let Some(compiled) = cuda.load(&program)? {
            return Ok(Step::wait_for(compiled));
        }
        // The receiver is gone if the caller gave up.
        let _ = sender.send(sum(cuda, &numbers)?);
        Ok(Step::Done)
    };
    device.submit(Box::new(job)).ok()?;
    receiver.recv().ok()
}
