//! A GPU as jobs and loaders use it. Without one, these tests say so and pass.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Instant;

use common::{ask, devices};
use forebay_device::cuda::{
    Cuda, DeviceMemory, DevicePointerMut, DeviceView, Fill, KernelArguments, LaunchShape, Pinned,
    PinnedPart, Priority, Program, ProgramSpec, Stream, Transfer, TransferJob, gpus,
};
use forebay_device::{
    Device, DeviceContext, DeviceError, DeviceKind, DeviceState, Devices, Fault, Job, JobError,
    JobFailure, Step, kernel_arguments,
};

/// Threads of a block in these tests.
const THREADS: u32 = 128;

kernel_arguments! {
    /// What the kernels of these tests take.
    pub struct Arguments {
        /// One number for each item, and one more that stays as it is.
        pub out: DevicePointerMut<u32>,
        /// Items.
        pub count: u64,
        /// What is added to the number of the item, in turn.
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

fn words(bytes: &[u8]) -> Vec<u32> {
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    bytes.chunks_exact(4).map(word).collect()
}

/// Runs a kernel over `count` items and returns what it wrote, and the number behind it, which was set to ones.
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
    // SAFETY: the kernels take `Arguments` and write `count` words of `memory`, which is longer and lives until they are
    // read.
    unsafe { cuda.launch(&kernel, &shape, &arguments, &stream) }?;
    let mut result = vec![0; bytes];
    cuda.read(&memory, 0, &mut result, &stream)?;
    Ok(words(&result))
}

#[test]
fn a_gpu_says_what_it_is() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let details = device.details().expect("it is a GPU");
    assert_eq!((device.kind(), device.name()), (DeviceKind::Cuda, "cuda:0"));
    assert_eq!(gpus().expect("there is one")[0], *details);
    assert_eq!(device.memory_budget_bytes(), 64 << 20);
    let arch = details.arch;
    assert_eq!(ask(&device, |cuda| Ok(cuda.arch())), Some(arch));
    assert!(details.multiprocessors > 0 && details.memory_bytes > 1 << 30);
    assert!(details.shared_bytes_per_block_max > 48 << 10 && details.l2_bytes > 0);
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
    assert_eq!(back, Some(None), "the round whose bytes were others");
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
    assert!(device.allocate(1).is_err(), "a test asked for it");
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
    // The loader holds all or waits for more than there is; only the loss ends that.
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

/// Runs one step that fails, beside other jobs; returns the message of its failure.
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

/// What a job does.
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

/// Kernels one after the other, each with the right numbers, until `ends` is set; returns their number.
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

/// Each way in which a job can fail on its own.
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
    assert_eq!(message, "program device-test has no entry absent");
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
    // What is left of the lost device goes after the new one has come.
    drop((memory, event, device));
    assert_eq!(ask(&added[0], |_| Ok(1)), Some(1));
}

/// A buffer of the pool that begins with `first` and goes on with the next numbers.
fn counting(device: &Device, bytes: usize, first: u8) -> Pinned {
    let mut staged = device.stage(bytes).expect("the pool is larger");
    for (index, byte) in staged.iter_mut().enumerate() {
        *byte = first.wrapping_add(index as u8);
    }
    staged
}

#[test]
fn transfers_go_each_way_and_give_both_ends_back() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let bytes = 1 << 20;
    let mut staged = Some(counting(&device, bytes, 3));
    let back = ask(&device, move |cuda| {
        let stream = cuda.stream(Priority::Normal)?;
        let (first, second) = (cuda.buffer::<u8>(bytes)?, cuda.buffer::<u32>(bytes / 4)?);
        let staged = staged.take().expect("one step");
        let up = Transfer::begin(cuda, staged, first.all(), &stream)?;
        // The words stand in the middle of the second buffer, and ones around them.
        let filled = Transfer::begin(cuda, Fill(0xff), second.all(), &stream)?;
        let words = second.view(100..second.len() - 100);
        let across = Transfer::begin(cuda, first.view(400..bytes - 400), words, &stream)?;
        let part = PinnedPart::new(cuda.host_buffer(bytes + 2)?, 1..bytes + 1);
        let down = Transfer::begin(cuda, second.all(), part, &stream)?;
        let (_, part) = down.finish()?;
        assert!(up.event().is_done()? && filled.event().is_done()? && across.event().is_done()?);
        let (staged, _) = up.finish()?;
        assert_eq!(staged[0], 3);
        Ok(part.into_buffer())
    });
    let back = back.expect("the device works");
    assert_eq!((back[0], back[bytes + 1]), (0, 0), "around the part");
    let expected = |index: usize| match index {
        400.. if index < bytes - 400 => 3_u8.wrapping_add(index as u8),
        _ => 0xff,
    };
    let wrong = (0..bytes).find(|&index| back[index + 1] != expected(index));
    assert_eq!(wrong, None, "the first byte that is wrong");
    drop(back);
    assert_eq!(device.memory_used_bytes(), 0);
}

#[test]
fn transfers_as_jobs_wait_aside_and_report_when_they_are_done() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let memory = Arc::new(device.allocate(64 << 20).expect("all is free"));
    let (sender, done) = channel();
    for piece in 0..64_usize {
        let staged = counting(&device, 1 << 20, piece as u8);
        let to = DeviceView::of(&memory, piece << 20..(piece + 1) << 20);
        let sender = sender.clone();
        let report = move |_, _| sender.send(piece).expect("the test listens");
        let job = TransferJob::new(staged, to, report);
        device.submit(Box::new(job)).expect("room");
    }
    drop(sender);
    let mut done: Vec<usize> = done.iter().collect();
    done.sort_unstable();
    assert_eq!(done, (0..64).collect::<Vec<_>>());
    let (sender, back) = channel();
    let host = device.stage(1 << 20).expect("all is free");
    let from = DeviceView::of(&memory, 63 << 20..64 << 20);
    let report = move |_, host| sender.send(host).expect("the test listens");
    let job = TransferJob::new(from, host, report);
    device.submit(Box::new(job)).expect("room");
    let back: Pinned = back.recv().expect("the device works");
    let wrong = (0..back.len()).find(|&index| back[index] != (63 + index) as u8);
    assert_eq!(wrong, None, "the first byte that is wrong");
}

/// Adds one to each of `count` words many times over: a kernel that takes a while.
const SLOW: &str = r#"
#include "arguments.h"
extern "C" __global__ void add(const __grid_constant__ Arguments arguments) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i >= arguments.count) return;
    volatile unsigned int* word = arguments.out + i;
    for (unsigned int round = 0; round < arguments.addends[0]; round++) *word = *word + 1;
}
"#;

fn add(
    cuda: &mut Cuda,
    words: &DeviceView<u32>,
    rounds: u32,
    stream: &Stream,
) -> Result<(), JobError> {
    let spec = ProgramSpec {
        name: "device-test-slow".to_owned(),
        source: SLOW.into(),
        entries: vec!["add".to_owned()],
        ..spec()
    };
    let kernel = cuda.kernel(&Program::new(spec), "add")?;
    let shape = LaunchShape {
        blocks: (words.len() as u64).div_ceil(THREADS.into()),
        threads: THREADS,
        shared_bytes: 0,
        ..LaunchShape::default()
    };
    let arguments = Arguments {
        out: words.pointer_mut(),
        count: words.len() as u64,
        addends: [rounds, 0, 0],
    };
    // SAFETY: the kernel takes `Arguments` and writes `count` words, which the caller keeps until the stream is done.
    unsafe { cuda.launch(&kernel, &shape, &arguments, stream) }
}

#[test]
fn streams_wait_for_each_other_on_the_device() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let count = 1 << 16;
    let found = ask(&device, move |cuda| {
        let (copies, kernels) = (cuda.stream(Priority::Normal)?, cuda.stream(Priority::High)?);
        let words = cuda.buffer::<u32>(count)?;
        let mut downs = Vec::new();
        for round in 0..20 {
            // Each step is queued before the one before it is done, on the other stream.
            let fill = Transfer::begin(cuda, Fill(0), words.all(), &copies)?;
            cuda.wait(&kernels, fill.event())?;
            add(cuda, &words.all(), 1000 + round, &kernels)?;
            let added = cuda.mark(&kernels)?;
            cuda.wait(&copies, &added)?;
            let to = cuda.host_buffer(4 * count)?;
            downs.push(Transfer::begin(cuda, words.all(), to, &copies)?);
        }
        let hosts = downs.into_iter().map(|down| Ok(down.finish()?.1));
        hosts.collect::<Result<Vec<Pinned>, JobError>>()
    });
    for (round, host) in found.expect("the device works").iter().enumerate() {
        assert_eq!(
            words(host),
            vec![1000 + round as u32; count],
            "round {round}"
        );
    }
}

/// A job that starts a kernel of some milliseconds, waits for it aside, and reports how often it ran.
struct Waits {
    steps: usize,
    words: Option<DeviceView<u32>>,
    report: Sender<usize>,
}

impl Job for Waits {
    fn run(&mut self, context: &mut DeviceContext) -> Result<Step, JobError> {
        self.steps += 1;
        if self.words.is_some() {
            self.report.send(self.steps).expect("the test listens");
            return Ok(Step::Done);
        }
        let cuda = context.parts().cuda.expect("the device is a GPU");
        let stream = cuda.stream(Priority::Low)?;
        let words = cuda.buffer::<u32>(1024)?.all();
        add(cuda, &words, 200_000, &stream)?;
        self.words = Some(words);
        Ok(Step::wait_for(cuda.mark(&stream)?))
    }
}

#[test]
fn a_job_that_waits_for_an_event_runs_twice_and_costs_the_thread_little() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let began = Instant::now();
    let (report, steps) = channel();
    let job = Waits {
        steps: 0,
        words: None,
        report,
    };
    device.submit(Box::new(job)).expect("room");
    assert_eq!(ask(&device, |_| Ok(7)), Some(7), "others run meanwhile");
    assert_eq!(steps.recv(), Ok(2));
    println!(
        "waited {:?}, busy {:?}",
        began.elapsed(),
        device.busy_time()
    );
}

#[test]
fn retired_memory_is_given_back_when_its_event_has_come() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let used = ask(&device, |cuda| {
        let stream = cuda.stream(Priority::Normal)?;
        let words = cuda.buffer::<u32>(1 << 20)?;
        add(cuda, &words.all(), 20_000, &stream)?;
        let event = cuda.mark(&stream)?;
        cuda.retire(words, event);
        Ok(())
    });
    assert_eq!((used, device.memory_used_bytes()), (Some(()), 4 << 20));
    // No job comes: the thread looks by itself.
    while device.memory_used_bytes() > 0 {
        thread::yield_now();
    }
}

#[test]
fn bytes_go_from_one_gpu_to_another() {
    if gpus().map_or(0, |gpus| gpus.len()) < 2 {
        println!("skipped: no two GPUs");
        return;
    }
    let devices = devices("cuda:0,cuda:1").expect("there are two");
    let list = devices.list();
    let bytes = 1 << 20;
    let source = Arc::new(list[0].allocate(bytes as u64).expect("all is free"));
    let target = Arc::new(list[1].allocate(bytes as u64).expect("all is free"));
    let mut staged = Some(counting(&list[0], bytes, 9));
    let view = DeviceView::of(&source, 0..bytes);
    let put = ask(&list[0], move |cuda| {
        let staged = staged.take().expect("one step");
        Transfer::begin(cuda, staged, view.clone(), cuda.uploads())?.finish()?;
        Ok(())
    });
    assert_eq!(put, Some(()));
    let (from, to) = (
        DeviceView::of(&source, 0..bytes),
        DeviceView::of(&target, 0..bytes),
    );
    let back = ask(&list[1], move |cuda| {
        let stream = cuda.stream(Priority::Normal)?;
        Transfer::begin(cuda, from.clone(), to.clone(), &stream)?.finish()?;
        let host = cuda.host_buffer(bytes)?;
        Ok(Transfer::begin(cuda, to.clone(), host, &stream)?
            .finish()?
            .1)
    });
    let back = back.expect("the device works");
    let wrong = (0..bytes).find(|&index| back[index] != (9 + index) as u8);
    assert_eq!(wrong, None, "the first byte that is wrong");
}
