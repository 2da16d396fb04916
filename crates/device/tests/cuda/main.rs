//! A GPU as used by jobs and loaders. Without a GPU these tests print `skipped: no GPU` and pass; with
//! `FOREBAY_REQUIRE_GPU=1` they fail.

#[path = "../common/mod.rs"]
mod common;
mod cufile;
#[path = "../examples/first_kernel.rs"]
mod first_kernel;
mod host_memory;
mod managed;
mod peers;
#[path = "../examples/pipeline.rs"]
mod pipeline;
mod pools;
mod transfers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use common::{ask, devices, gpu_is_there};
use forebay_device::cuda::{
    Cuda, DeviceMemory, DevicePointerMut, KernelArguments, LaunchShape, Pinned, Priority, Program,
    ProgramSpec, gpus,
};
use forebay_device::{
    Device, DeviceContext, DeviceError, DeviceKind, DeviceState, Devices, Fault, HaltingDevices,
    Job, JobError, JobFailure, Step, kernel_arguments,
};

/// Threads of a block in these tests.
const THREADS: u32 = 128;

kernel_arguments! {
    /// Arguments of these tests' kernels.
    pub struct Arguments {
        /// One number for each item, and one more that must stay unchanged.
        pub out: DevicePointerMut<u32>,
        /// Number of items.
        pub count: u64,
        /// Addends, used by the items in rotation.
        pub addends: [u32; 3],
    }
}

const SOURCE: &str = r#"
#include "arguments.h"
extern "C" __global__ void number(const __grid_constant__ Arguments arguments) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < arguments.count) arguments.out[i] = (unsigned int)i + arguments.addends[i % 3];
}
extern "C" __global__ void reverse(const __grid_constant__ Arguments arguments) {
    extern __shared__ unsigned int numbers[];
    for (unsigned long long i = threadIdx.x; i < arguments.count; i += blockDim.x) numbers[i] = (unsigned int)i;
    __syncthreads();
    for (unsigned long long i = threadIdx.x; i < arguments.count; i += blockDim.x)
        arguments.out[i] = numbers[arguments.count - 1 - i];
}
"#;

fn spec() -> ProgramSpec {
    ProgramSpec {
        name: "device-test".to_owned(),
        source: SOURCE.into(),
        headers: vec![("arguments.h".to_owned(), Arguments::header())],
        options: Vec::new(),
        entries: vec!["number".to_owned(), "reverse".to_owned()],
    }
}

fn gpu() -> Option<(Devices, Arc<Device>)> {
    let devices = devices("cuda:0")?;
    let device = devices.list().remove(0);
    Some((devices, device))
}

/// Returns two GPUs; `None` if there are fewer. With `FOREBAY_REQUIRE_GPU=1` there must be at least one.
fn two_gpus() -> Option<Devices> {
    if !gpu_is_there() {
        return None;
    }
    if gpus().map_or(0, |gpus| gpus.len()) < 2 {
        println!("skipped: no two GPUs");
        return None;
    }
    devices("cuda:0,cuda:1")
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    bytes.chunks_exact(4).map(word).collect()
}

/// Runs a kernel over `count` items. Returns the kernel's output, and the number after the output, which was set to all
/// ones before the launch.
fn run(cuda: &mut Cuda, entry: &str, count: u64, shape: LaunchShape) -> Result<Vec<u32>, JobError> {
    let kernel = cuda.kernel(&Program::new(spec()), entry)?;
    let bytes = 4 * (count as usize + 1);
    let memory = cuda.allocate(bytes as u64).expect("the budget is larger");
    let arguments = Arguments {
        out: DevicePointerMut::new(memory.address()),
        count,
        addends: [10, 20, 30],
    };
    let stream = cuda.stream(Priority::Normal)?;
    cuda.write(&vec![0xff; bytes], &memory, 0, &stream)?;
    // SAFETY: the kernels take `Arguments` and write `count` words of `memory`, which is longer and lives until the
    // words are read.
    unsafe { cuda.launch(&kernel, &shape, &arguments, &stream) }?;
    let mut result = vec![0; bytes];
    cuda.read(&memory, 0, &mut result, &stream)?;
    Ok(words(&result))
}

#[test]
fn halting_devices_wait_for_the_step_of_a_gpu() {
    let Some((devices, device)) = gpu() else {
        return;
    };
    let (begun, is_running) = channel();
    let (release, released) = channel::<()>();
    let step = move |_: &mut DeviceContext| -> Result<Step, JobError> {
        begun.send(()).expect("the test listens");
        // Ends when the test drops the sender.
        let _ = released.recv();
        Ok(Step::Done)
    };
    device.submit(Box::new(step)).expect("room");
    is_running.recv().expect("the job runs");
    let queued = device.queued_jobs();
    let halting = thread::spawn(move || drop(HaltingDevices::from(devices)));
    while device.queued_jobs() == queued && !halting.is_finished() {
        thread::yield_now();
    }
    assert!(!halting.is_finished(), "the step runs");
    drop(release);
    halting.join().expect("the thread of the GPU halts");
}

#[test]
fn a_gpu_says_what_it_is() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let details = device.details().expect("the device is a GPU");
    assert_eq!((device.kind(), device.name()), (DeviceKind::Cuda, "cuda:0"));
    assert_eq!(gpus().expect("a GPU")[0], *details);
    assert_eq!(device.memory_budget_bytes(), 64 << 20);
    let arch = details.arch;
    assert_eq!(ask(&device, |cuda| Ok(cuda.arch())), Some(arch));
    assert!(details.multiprocessors > 0 && details.memory_bytes > 1 << 30);
    assert!(details.shared_bytes_per_block_max > 48 << 10 && details.l2_bytes > 0);
    assert!(details.pci_address.contains(':') && details.copy_engines > 0);
    assert!(!details.peers.contains(&0), "a GPU is not its own peer");
    println!("{details:?}");
}

#[test]
fn bytes_go_there_and_back() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let bytes = (1 << 20) + 3;
    let mut staged = device.stage(bytes).expect("the pool is larger");
    let pattern = |index: usize| (index % 251) as u8;
    for (index, byte) in staged.iter_mut().enumerate() {
        *byte = pattern(index);
    }
    let memory = device.allocate(bytes as u64).expect("the budget is larger");
    assert_eq!((memory.bytes(), memory.address() % 256), (bytes as u64, 0));
    let mut load = Some((staged, memory));
    let back = ask(&device, move |cuda| {
        let (staged, memory) = load.take().expect("one step");
        there_and_back(cuda, &staged, &memory)
    });
    let back = back.expect("the device works");
    assert!(
        back.iter()
            .enumerate()
            .all(|(index, byte)| *byte == pattern(index))
    );
    assert_eq!((back.len(), device.memory_used_bytes()), (bytes, 0));
}

fn there_and_back(cuda: &Cuda, staged: &Pinned, memory: &DeviceMemory) -> Result<Pinned, JobError> {
    let mut back = cuda.host_buffer(staged.len())?;
    let (first, second) = staged.split_at(1000);
    let (one, other) = (cuda.stream(Priority::Low)?, cuda.stream(Priority::High)?);
    cuda.write(second, memory, first.len(), &one)?;
    cuda.write(first, memory, 0, &other)?;
    let (first, second) = back.split_at_mut(70_001);
    cuda.read(memory, first.len(), second, &one)?;
    cuda.read(memory, 0, first, &other)?;
    Ok(back)
}

#[test]
fn a_buffer_is_written_again_only_when_it_has_been_sent() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let bytes = 16 << 20;
    let back = ask(&device, move |cuda| {
        let memory = cuda.allocate(bytes as u64).expect("the budget is larger");
        let mut mirrored = cuda.mirrored(memory, &cuda.stream(Priority::Normal)?)?;
        for round in 1..=20 {
            mirrored.host_mut()?.fill(round);
            mirrored.send(cuda, bytes)?;
            mirrored.host_mut()?.fill(0);
            mirrored.fetch(cuda, bytes)?;
            if mirrored.host().iter().any(|byte| *byte != round) {
                return Ok(Some(round));
            }
        }
        Ok(None)
    });
    assert_eq!(back, Some(None), "the first round with wrong bytes");
}

#[test]
fn a_kernel_writes_its_items_and_no_more() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    for count in [
        0_u64, 1, 31, 32, 33, 127, 128, 129, 1023, 1024, 1025, 100_000,
    ] {
        let shape = LaunchShape {
            blocks: count.div_ceil(THREADS.into()),
            threads: THREADS,
            shared_bytes: 0,
            ..LaunchShape::default()
        };
        let found = ask(&device, move |cuda| run(cuda, "number", count, shape));
        let numbers = (0..count as u32).map(|i| i + [10, 20, 30][i as usize % 3]);
        let expected: Vec<u32> = numbers.chain([u32::MAX]).collect();
        assert_eq!(found, Some(expected), "{count} items");
    }
}

#[test]
fn a_block_can_have_much_shared_memory() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let count = 20_000_u64;
    let shape = LaunchShape {
        blocks: 1,
        threads: THREADS,
        shared_bytes: 4 * count as u32,
        ..LaunchShape::default()
    };
    let found = ask(&device, move |cuda| run(cuda, "reverse", count, shape));
    let expected: Vec<u32> = (0..count as u32).rev().chain([u32::MAX]).collect();
    assert_eq!(found, Some(expected));
}

#[test]
fn a_kernel_is_loaded_once() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let same = ask(&device, |cuda| {
        let first = cuda.kernel(&Program::new(spec()), "number")?;
        Ok(Arc::ptr_eq(
            &first,
            &cuda.kernel(&Program::new(spec()), "number")?,
        ))
    });
    assert_eq!(same, Some(true));
}

#[test]
fn events_tell_the_time() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let times = ask(&device, |cuda| {
        let (start, end) = (cuda.event()?, cuda.event()?);
        let memory = cuda.allocate(32 << 20).expect("the budget is larger");
        let stream = cuda.stream(Priority::Normal)?;
        cuda.record(&start, &stream)?;
        cuda.write(&vec![1; 32 << 20], &memory, 0, &stream)?;
        cuda.record(&end, &stream)?;
        end.wait()?;
        Ok((start.is_done()?, end.is_done()?, end.elapsed_ms(&start)?))
    });
    let (start_done, end_done, ms) = times.expect("the device works");
    assert!(start_done && end_done);
    assert!(ms > 0.0 && ms < 1000.0, "{ms} ms");
}

#[test]
fn memory_runs_out_and_comes_back() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let most = device.allocate(48 << 20).expect("all is free");
    let refused = device.allocate(17 << 20).expect_err("16 MiB are left");
    assert_eq!(
        (refused.free_bytes, refused.budget_bytes),
        (16 << 20, 64 << 20)
    );
    assert_eq!(device.memory_used_bytes(), 48 << 20);
    drop(most);
    device.inject(Fault::OutOfMemory);
    assert!(device.allocate(1).is_err(), "a test injected it");
    assert!(device.allocate(64 << 20).is_ok());
    assert_eq!(device.memory_used_bytes(), 0);
}

#[test]
fn loaders_wait_for_pinned_memory_and_wake_when_the_device_is_lost() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    assert!(device.stage((8 << 20) + 1).is_none(), "more than the pool");
    let all = device.stage(8 << 20).expect("all is free");
    let (sender, receiver) = channel();
    let waiting = Arc::clone(&device);
    let loader = thread::spawn(move || {
        let served = waiting.stage(4 << 20).map(|pinned| pinned.len());
        sender.send(served).expect("the test listens");
        let _rest = waiting.stage(8 << 20);
        waiting.stage(8 << 20).is_none()
    });
    assert!(receiver.try_recv().is_err(), "there is no room yet");
    drop(all);
    assert_eq!(receiver.recv(), Ok(Some(4 << 20)));
    // The loader either holds all pinned memory or waits for more than is free. Only the loss of the device can end
    // the wait.
    device.inject(Fault::Fail);
    assert!(ask(&device, |_| Ok(())).is_none());
    assert!(loader.join().expect("the loader ends"));
}

#[test]
fn an_injected_launch_failure_loses_the_device() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    device.inject(Fault::LaunchFails);
    let shape = LaunchShape {
        blocks: 1,
        threads: 1,
        shared_bytes: 0,
        ..LaunchShape::default()
    };
    assert!(ask(&device, move |cuda| run(cuda, "number", 1, shape)).is_none());
    assert!(device.state().to_string().contains("injected"));
}

/// Runs a job that fails, and returns the message of its failure.
fn failure(
    device: &Arc<Device>,
    work: impl FnMut(&mut Cuda) -> Result<(), JobError> + Send + 'static,
) -> String {
    let (report, reported) = channel();
    let job = Failing {
        work: Box::new(work),
        report,
    };
    device.submit(Box::new(job)).expect("the device works");
    reported
        .recv()
        .expect("the job fails and the device does not")
}

/// The work of a job.
type Work = Box<dyn FnMut(&mut Cuda) -> Result<(), JobError> + Send>;

struct Failing {
    work: Work,
    report: Sender<String>,
}

impl Job for Failing {
    fn run(&mut self, context: &mut DeviceContext) -> Result<Step, JobError> {
        let cuda = context.parts().cuda.expect("the device is a GPU");
        (self.work)(cuda)?;
        Ok(Step::Done)
    }

    fn fail(&mut self, failure: &JobFailure) {
        self.report
            .send(failure.to_string())
            .expect("the test listens");
    }
}

/// Runs kernels one after the other until `ends` is set, and checks the output of each; returns the number of kernels.
fn storm(device: &Arc<Device>, ends: &AtomicBool) -> usize {
    let mut runs = 0;
    while !ends.load(Ordering::Relaxed) {
        let shape = LaunchShape {
            blocks: 8,
            threads: THREADS,
            shared_bytes: 0,
            ..LaunchShape::default()
        };
        let found = ask(device, move |cuda| run(cuda, "number", 1024, shape));
        let numbers = (0..1024).map(|i| i + [10, 20, 30][i as usize % 3]);
        assert_eq!(
            found,
            Some(numbers.chain([u32::MAX]).collect()),
            "run {runs}"
        );
        runs += 1;
    }
    runs
}

/// Runs jobs that fail in each way in which a job can fail without losing the device.
fn fail_in_each_way(device: &Arc<Device>) {
    let wrong = Program::new(ProgramSpec {
        name: "device-test-wrong".to_owned(),
        source: "extern \"C\" __global__ void number() { no_such_thing(); }".into(),
        ..spec()
    });
    let compile = move |cuda: &mut Cuda| cuda.kernel(&wrong, "number").map(|_| ());
    let message = failure(device, compile);
    assert!(
        message.contains("device-test-wrong") && message.contains("no_such_thing"),
        "{message}"
    );
    let message = failure(device, |cuda| {
        cuda.kernel(&Program::new(spec()), "absent").map(|_| ())
    });
    assert_eq!(message, "program device-test has no kernel absent");
    let shape = LaunchShape {
        blocks: 1,
        threads: 1025,
        shared_bytes: 0,
        ..LaunchShape::default()
    };
    let message = failure(device, move |cuda| {
        run(cuda, "number", 1, shape).map(|_| ())
    });
    assert!(
        message.contains("kernel number") && message.contains("1025 threads"),
        "{message}"
    );
    let message = failure(device, |cuda| Ok(cuda.allocate(1 << 40).map(|_| ())?));
    assert!(message.contains("bytes left"), "{message}");
    let message = failure(device, |cuda| {
        let shape = LaunchShape {
            blocks: 8,
            threads: THREADS,
            shared_bytes: 0,
            ..LaunchShape::default()
        };
        run(cuda, "number", 1000, shape)?;
        panic!("oops")
    });
    assert_eq!(message, "a job panicked: oops");
}

#[test]
fn jobs_that_fail_or_panic_take_no_other_job_with_them() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let storms: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| storm(&device, &ends)))
            .collect();
        for _ in 0..20 {
            fail_in_each_way(&device);
        }
        ends.store(true, Ordering::Relaxed);
        for storm in storms {
            assert!(storm.join().expect("every kernel ran") > 0);
        }
    });
    assert_eq!(device.state(), DeviceState::Ready);
    while device.queued_jobs() > 0 {
        thread::yield_now();
    }
    assert_eq!(device.memory_used_bytes(), 0, "failed jobs leave no memory");
}

#[test]
fn a_gpu_is_one_device_and_can_come_back_after_a_loss() {
    let Some((devices, device)) = gpu() else {
        return;
    };
    let again = "cuda:0".parse().expect("valid");
    let taken = DeviceError::Taken {
        name: "cuda:0".to_owned(),
    };
    assert_eq!(devices.add(&again).err(), Some(taken));
    let memory = device.allocate(1000).expect("all is free");
    let event = ask(&device, |cuda| Ok(cuda.event()?)).expect("the device works");
    device.inject(Fault::Fail);
    assert!(ask(&device, |_| Ok(())).is_none());
    let why = "injected fault".to_owned();
    assert_eq!(device.state(), DeviceState::Lost { why });
    devices.remove(device.id()).expect("a member");
    let added = devices.add(&again).expect("the GPU itself works");
    assert_eq!(ask(&added[0], |cuda| Ok(cuda.gpu().ordinal)), Some(0));
    // Drop the handles of the lost device only now, after the new device has started.
    drop((memory, event, device));
    assert_eq!(ask(&added[0], |_| Ok(1)), Some(1));
}

#[test]
fn the_first_example_doubles_numbers() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    for count in [1, 255, 256, 257, 100_000_u32] {
        let doubled = first_kernel::run(&device, (0..count).collect());
        assert_eq!(doubled, Some((0..count).map(|number| 2 * number).collect()));
    }
    assert_eq!(device.state(), DeviceState::Ready);
}

#[test]
fn the_pipeline_of_the_second_example_sums_numbers() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    for count in [1, 1 << 16, (1 << 20) + 7_u32] {
        let sum = pipeline::run(&device, (0..count).collect());
        assert_eq!(sum, Some(u64::from(count) * u64::from(count - 1) / 2));
    }
}

#[test]
fn a_ring_of_slots_is_taken_at_once_and_goes_back_slot_by_slot() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    assert!(
        device.stage_ring(9, 1 << 20).is_none(),
        "more than the pool"
    );
    let mut ring = device.stage_ring(8, (1 << 20) - 1).expect("all is free");
    let bytes: usize = ring.iter().map(|slot| slot.len()).sum();
    assert_eq!(bytes, 8 * ((1 << 20) - 1));
    for (index, slot) in ring.iter_mut().enumerate() {
        slot.fill(index as u8);
    }
    for (index, slot) in ring.iter().enumerate() {
        assert!(slot.iter().all(|byte| *byte == index as u8), "slot {index}");
    }
    drop(ring.pop());
    assert!(device.stage(1 << 20).is_some(), "one slot is free");
    drop(ring);
    assert!(device.stage_ring(2, 4 << 20).is_some());
}

#[test]
fn kernels_write_pinned_memory_without_a_copy() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let found = ask(&device, |cuda| {
        let stream = cuda.stream(Priority::Normal)?;
        let kernel = cuda.kernel(&Program::new(spec()), "number")?;
        let mut shape = kernel.persistent_shape(THREADS, 0)?;
        shape.cooperative = true;
        let count = shape.blocks * u64::from(THREADS);
        let host = cuda.host_buffer(4 * count as usize)?;
        let arguments = Arguments {
            out: host.device_pointer(),
            count,
            addends: [0; 3],
        };
        // SAFETY: the kernel takes `Arguments` and writes `count` words of the buffer, which is kept until the kernel
        // has finished.
        unsafe { cuda.launch(&kernel, &shape, &arguments, &stream) }?;
        cuda.synchronize(&stream)?;
        Ok(words(&host))
    });
    let found = found.expect("the device works");
    assert_eq!(found, (0..found.len() as u32).collect::<Vec<_>>());
}

#[test]
fn clusters_run_where_the_architecture_has_them() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let has_clusters = device.details().expect("the device is a GPU").arch.major >= 9;
    let shape = LaunchShape {
        blocks: 16,
        threads: THREADS,
        cluster: 8,
        ..LaunchShape::default()
    };
    let count = 16 * u64::from(THREADS);
    let found = ask(&device, move |cuda| run(cuda, "number", count, shape));
    assert_eq!(found.is_some(), has_clusters);
    assert_eq!(device.state(), DeviceState::Ready);
}
