//! Copies, streams and waits between them.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Instant;

use forebay_device::cuda::{
    Cuda, DeviceView, Fill, LaunchShape, Pinned, PinnedPart, Priority, Program, ProgramSpec,
    Stream, Transfer, TransferJob,
};
use forebay_device::{Device, DeviceContext, Job, JobError, Step};

use crate::common::ask;
use crate::{Arguments, THREADS, gpu, spec, two_gpus, words};

/// Returns a buffer from the pool whose bytes count up from `first`.
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
        // The copied words go to the middle of the second buffer; 0xff bytes surround them.
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

/// A kernel that takes a while: adds one to each of `count` words many times.
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
    // SAFETY: the kernel takes `Arguments` and writes `count` words, which the caller keeps until the kernel has
    // finished.
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
            // The work alternates between the two streams. Each step is queued before the step that it depends on is
            // done.
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

/// Returns a view of `len` zeroed words.
fn zeros(cuda: &mut Cuda, len: usize, stream: &Stream) -> Result<DeviceView<u32>, JobError> {
    let words = cuda.buffer::<u32>(len)?.all();
    Transfer::begin(cuda, Fill(0), words.clone(), stream)?.finish()?;
    Ok(words)
}

/// A job that starts a kernel of some milliseconds, is parked until the kernel has finished, and reports how often its
/// `run` was called.
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
        let words = zeros(cuda, 1024, &stream)?;
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
    assert_eq!(
        ask(&device, |_| Ok(7)),
        Some(7),
        "other jobs run during that time"
    );
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
    let same = Arc::clone(&device);
    let used = ask(&device, move |cuda| {
        let stream = cuda.stream(Priority::Normal)?;
        let words = zeros(cuda, 1 << 20, &stream)?;
        add(cuda, &words, 20_000, &stream)?;
        let event = cuda.mark(&stream)?;
        cuda.retire(words, event);
        Ok(same.memory_used_bytes())
    });
    assert_eq!(used, Some(4 << 20));
    // No further job arrives, so the thread must poll the event by itself.
    while device.memory_used_bytes() > 0 {
        thread::yield_now();
    }
}

#[test]
fn bytes_go_from_one_gpu_to_another() {
    let Some(devices) = two_gpus() else {
        return;
    };
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
