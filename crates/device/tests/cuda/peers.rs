//! Several GPUs of one machine.

use std::sync::Arc;

use forebay_device::cuda::{DeviceView, Fill, LaunchShape, Priority, Program, Transfer};

use crate::common::ask;
use crate::{Arguments, THREADS, spec, two_gpus};

#[test]
fn gpus_that_are_peers_reach_each_other() {
    let Some(devices) = two_gpus() else {
        return;
    };
    let [first, second] = &devices.list()[..] else {
        panic!("two devices");
    };
    for (from, to) in [(first, second), (second, first)] {
        let (own, other) = (from.details(), to.details());
        let peers = &own.expect("the device is a GPU").peers;
        let are_peers = peers.contains(&other.expect("the device is a GPU").ordinal);
        assert_eq!(from.reaches(to), are_peers, "{} {}", from.name(), to.name());
        assert!(!from.reaches(from));
        println!("{} reaches {}: {are_peers}", from.name(), to.name());
    }
}

#[test]
fn the_memory_of_a_peer_is_filled() {
    let Some(devices) = two_gpus() else {
        return;
    };
    let [first, second] = &devices.list()[..] else {
        panic!("two devices");
    };
    if !first.reaches(second) {
        println!("skipped: the two GPUs are not peers");
        return;
    }
    let memory = Arc::new(second.allocate(3 << 20).expect("all is free"));
    let view = DeviceView::of(&memory, 0..3 << 20);
    let filled = ask(first, move |cuda| {
        Transfer::begin(cuda, Fill(0xA5), view.clone(), cuda.uploads())?.finish()?;
        Ok(())
    });
    assert_eq!(filled, Some(()));
    let mut back = vec![0; 3 << 20];
    let is_filled = ask(second, move |cuda| {
        cuda.read(&memory, 0, &mut back, cuda.downloads())?;
        Ok(back.iter().all(|byte| *byte == 0xA5))
    });
    assert_eq!(is_filled, Some(true));
}

#[test]
fn kernels_write_the_memory_of_a_peer() {
    let Some(devices) = two_gpus() else {
        return;
    };
    let [first, second] = &devices.list()[..] else {
        panic!("two devices");
    };
    if !first.reaches(second) {
        println!("skipped: the two GPUs are not peers");
        return;
    }
    let count = 100_000_usize;
    let memory = Arc::new(second.allocate(4 * count as u64).expect("all is free"));
    let view = DeviceView::of(&memory, 0..4 * count);
    let filled = ask(second, move |cuda| {
        Transfer::begin(cuda, Fill(0xff), view.clone(), cuda.uploads())?.finish()?;
        Ok(())
    });
    assert_eq!(filled, Some(()));
    let there = Arc::clone(&memory);
    let written = ask(first, move |cuda| {
        let stream = cuda.stream(Priority::Normal)?;
        let kernel = cuda.kernel(&Program::new(spec()), "number")?;
        let shape = LaunchShape {
            blocks: (count as u64).div_ceil(THREADS.into()),
            threads: THREADS,
            ..LaunchShape::default()
        };
        let arguments = Arguments {
            out: forebay_device::cuda::DevicePointerMut::new(there.address()),
            count: count as u64,
            addends: [0; 3],
        };
        // SAFETY: the kernel takes `Arguments` and writes `count` words of a peer's memory, which is kept until the
        // kernel has finished.
        unsafe { cuda.launch(&kernel, &shape, &arguments, &stream) }?;
        Ok(cuda.synchronize(&stream)?)
    });
    assert_eq!(written, Some(()));
    let mut back = vec![0; 4 * count];
    let back = ask(second, move |cuda| {
        cuda.read(&memory, 0, &mut back, cuda.downloads())?;
        Ok(crate::words(&back))
    });
    assert_eq!(back, Some((0..count as u32).collect::<Vec<_>>()));
}
