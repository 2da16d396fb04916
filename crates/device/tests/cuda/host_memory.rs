//! Host memory that a GPU accesses: registered memory, and pinned memory on a chosen NUMA node.

use std::sync::Arc;
use std::sync::mpsc::channel;

use forebay_device::cuda::{
    Cuda, DevicePointerMut, HostRegistration, LaunchShape, Priority, Program, RegisterError,
    RegisteredPart, Transfer, TransferJob,
};
use forebay_device::{Devices, JobError};

use crate::common::{ask, gpu_is_there, options};
use crate::{Arguments, THREADS, gpu, spec, words};

const BYTES: usize = (3 << 20) + 5;

fn pattern(index: usize) -> u8 {
    (index % 251) as u8
}

/// Returns memory that shares no page with other memory of these tests, because the driver registers whole pages.
fn apart(bytes: impl Iterator<Item = u8>) -> Vec<u8> {
    const TWO_PAGES: usize = 8192;
    let mut memory = Vec::with_capacity(BYTES + TWO_PAGES);
    memory.extend(bytes);
    memory
}

/// Writes the numbers 0 to `count - 1` to host memory, with a kernel and without a copy.
pub fn number(cuda: &mut Cuda, out: DevicePointerMut<u32>, count: u64) -> Result<(), JobError> {
    let stream = cuda.stream(Priority::Normal)?;
    let kernel = cuda.kernel(&Program::new(spec()), "number")?;
    let shape = LaunchShape {
        blocks: count.div_ceil(THREADS.into()),
        threads: THREADS,
        ..LaunchShape::default()
    };
    let arguments = Arguments {
        out,
        count,
        addends: [0; 3],
    };
    // SAFETY: the kernel takes `Arguments` and writes `count` words, which the caller keeps until this returns.
    unsafe { cuda.launch(&kernel, &shape, &arguments, &stream) }?;
    Ok(cuda.synchronize(&stream)?)
}

#[test]
fn registered_memory_is_copied_both_ways_and_given_back() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let memory = apart((0..BYTES).map(pattern));
    let mut from = Some(device.register(memory).expect("the host pins 3 MiB"));
    let back = device.register(apart((0..BYTES).map(|_| 0)));
    let mut back = Some(back.expect("the host pins 3 MiB more"));
    let ends = ask(&device, move |cuda| {
        let stream = cuda.stream(Priority::Normal)?;
        let there = cuda.buffer::<u8>(BYTES)?;
        let from = from.take().expect("one step");
        let up = Transfer::begin(cuda, from, there.all(), &stream)?;
        let back = back.take().expect("one step");
        let down = Transfer::begin(cuda, there.all(), back, &stream)?;
        Ok((up.finish()?.0, down.finish()?.1))
    });
    let (from, back) = ends.expect("the device works");
    let (from, back) = (from.into_inner(), back.into_inner());
    assert!(from == back, "the copy came back unchanged");
    // `into_inner` ended the registration, so the same pages can be registered again.
    let again = device
        .register(from)
        .expect("the memory is no longer registered");
    assert!(
        again
            .iter()
            .enumerate()
            .all(|(i, byte)| *byte == pattern(i))
    );
}

#[test]
fn parts_of_shared_memory_are_copied_by_jobs() {
    const PART: usize = 1 << 20;
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let memory: Arc<[u8]> = (0..BYTES).map(pattern).collect();
    let registered = device.register(Arc::clone(&memory));
    let registered = Arc::new(registered.expect("the host pins 3 MiB"));
    let there = Arc::new(device.allocate(BYTES as u64).expect("all is free"));
    let (sender, done) = channel();
    for start in (0..BYTES).step_by(PART) {
        let range = start..BYTES.min(start + PART);
        let to = forebay_device::cuda::DeviceView::of(&there, range.clone());
        let from = RegisteredPart::new(&registered, range);
        let sender = sender.clone();
        let report = move |_, _| sender.send(start).expect("the test listens");
        let job = TransferJob::new(from, to, report);
        device.submit(Box::new(job)).expect("room");
    }
    drop(sender);
    assert_eq!(done.iter().count(), BYTES.div_ceil(PART));
    let mut back = vec![0; BYTES];
    let back = ask(&device, move |cuda| {
        cuda.read(&there, 0, &mut back, cuda.downloads())?;
        Ok(std::mem::take(&mut back))
    });
    assert!(back.expect("the device works") == *memory, "all parts went");
}

#[test]
fn kernels_write_registered_memory_without_a_copy() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let count = 100_000;
    let memory = device.register(vec![0_u8; 4 * count].into_boxed_slice());
    let mut memory = Some(memory.expect("the host pins 400 KB"));
    let written = ask(&device, move |cuda| {
        let mut memory: HostRegistration<Box<[u8]>> = memory.take().expect("one step");
        number(cuda, memory.device_pointer_mut(), count as u64)?;
        Ok(memory.into_inner())
    });
    let written = words(&written.expect("the device works"));
    assert_eq!(written, (0..count as u32).collect::<Vec<_>>());
}

#[test]
fn memory_that_is_registered_already_is_refused_and_comes_back() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let memory: Arc<[u8]> = (0..BYTES).map(pattern).collect();
    let first = device.register(Arc::clone(&memory)).expect("once");
    let (given_back, error) = device.register(Arc::clone(&memory)).expect_err("twice");
    assert!(Arc::ptr_eq(&given_back, &memory));
    assert!(
        matches!(error, RegisterError::Refused { bytes: BYTES, .. }),
        "{error}"
    );
    drop(first);
    assert!(
        device.register(given_back).is_ok(),
        "the memory is free again"
    );
    assert!(device.register(Vec::new()).is_ok(), "nothing is pinned");
}

#[test]
fn pinned_memory_can_come_from_a_chosen_node() {
    if !gpu_is_there() {
        return;
    }
    let mut options = options();
    options.pinned_numa_node = Some(0);
    let spec = "cuda:0".parse().expect("valid");
    let devices = Devices::new(&spec, options).expect("node 0 is there");
    let device = devices.list().remove(0);
    println!("{:?}", device.details().map(|gpu| gpu.numa_node));
    let mut staged = device.stage(BYTES).expect("the pool is larger");
    for (index, byte) in staged.iter_mut().enumerate() {
        *byte = pattern(index);
    }
    let mut staged = Some(staged);
    let back = ask(&device, move |cuda| {
        let stream = cuda.stream(Priority::Normal)?;
        let there = cuda.buffer::<u8>(BYTES)?;
        let staged = staged.take().expect("one step");
        let (staged, _) = Transfer::begin(cuda, staged, there.all(), &stream)?.finish()?;
        let back = cuda.host_buffer(BYTES)?;
        let (_, back) = Transfer::begin(cuda, there.all(), back, &stream)?.finish()?;
        assert!(*staged == *back, "the copy came back unchanged");
        let host = cuda.host_buffer(4 * 1000)?;
        number(cuda, host.device_pointer(), 1000)?;
        Ok(words(&host))
    });
    assert_eq!(back, Some((0..1000).collect::<Vec<u32>>()));
}
