//! Managed memory, and copies of parts of host memory.

use forebay_device::cuda::{
    Cuda, Divisible, Managed, ManagedError, Part, Place, Priority, Transfer,
};
use forebay_device::{Device, Devices, JobError};

use crate::common::ask;
use crate::host_memory::number;
use crate::{gpu, words};

const BYTES: usize = (3 << 20) + 4;

/// Returns managed memory of a GPU; `None`, with the reason, if the GPU has none.
fn managed(device: &Device, bytes: usize) -> Option<Managed> {
    match device.managed(bytes) {
        Err(error @ ManagedError::NotConcurrent { .. }) => {
            println!("skipped: {error}");
            None
        }
        memory => Some(memory.unwrap_or_else(|error| panic!("{error}"))),
    }
}

#[test]
fn the_cpu_and_kernels_use_the_same_memory() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let Some(memory) = managed(&device, BYTES) else {
        return;
    };
    assert!(memory.iter().all(|byte| *byte == 0));
    assert!(managed(&device, 0).is_some_and(|empty| empty.is_empty()));
    let mut memory = Some(memory);
    let written = ask(&device, move |cuda| {
        let mut memory = memory.take().expect("one step");
        let stream = cuda.stream(Priority::Normal)?;
        memory.prefetch(cuda, 0..BYTES, Place::Device, &stream)?;
        cuda.synchronize(&stream)?;
        number(cuda, memory.device_pointer(), BYTES as u64 / 4)?;
        memory.prefetch(cuda, 0..BYTES, Place::Host, &stream)?;
        cuda.synchronize(&stream)?;
        Ok(memory)
    });
    let written = words(&written.expect("the device works"));
    assert!((0..).zip(&written).all(|(index, word)| index == *word));
    assert_eq!(written.len(), BYTES / 4);
}

#[test]
fn memory_that_does_not_fit_on_the_card_is_refused() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let Some(_first) = managed(&device, 1 << 20) else {
        return;
    };
    let too_large = |bytes: usize| match device.managed(bytes) {
        Err(ManagedError::TooLarge { free_bytes, .. }) => free_bytes,
        other => panic!("{other:?}"),
    };
    let card_bytes = device.details().expect("a GPU").memory_bytes;
    let free_bytes = too_large(usize::MAX);
    assert!(free_bytes < card_bytes, "{free_bytes}");
    too_large(card_bytes as usize);
    assert!(managed(&device, 1 << 20).is_some(), "a little more fits");
}

#[test]
fn a_host_device_has_no_managed_or_pinned_memory() {
    let spec = "host:1".parse().expect("valid");
    let devices = Devices::new(&spec, crate::common::options()).expect("a thread");
    let device = devices.list().remove(0);
    assert!(matches!(
        device.managed(1),
        Err(ManagedError::HostDevice { device }) if device == "host:0"
    ));
    assert!(device.pinned(1).is_err());
}

/// Copies all parts of `from` to the device and back to the parts of `to`.
fn copy_parts<M: Divisible>(cuda: &Cuda, from: M, to: M) -> Result<(M, M), JobError> {
    let stream = cuda.stream(Priority::Normal)?;
    let there = cuda.buffer::<u8>(BYTES)?;
    let cuts = [1, 4096, 1 << 20];
    let (mut sources, mut targets) = (Vec::new(), Vec::new());
    for part in Part::divide(from, &cuts) {
        let view = there.view(part.offset()..part.offset() + part.len());
        sources.push(Transfer::begin(cuda, part, view, &stream)?.finish()?.0);
    }
    for part in Part::divide(to, &cuts) {
        let view = there.view(part.offset()..part.offset() + part.len());
        targets.push(Transfer::begin(cuda, view, part, &stream)?);
    }
    let targets: Result<Vec<_>, _> = targets.into_iter().map(Transfer::finish).collect();
    let targets = targets?.into_iter().map(|(_, part)| part).collect();
    Ok((Part::join(sources), Part::join(targets)))
}

fn fill(bytes: &mut [u8]) {
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = (index % 253) as u8;
    }
}

#[test]
fn parts_of_pageable_and_pinned_memory_are_copied_both_ways() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let mut pinned = device.pinned(BYTES).expect("the host pins 3 MiB");
    let back = device.pinned(BYTES).expect("the host pins 3 MiB more");
    fill(&mut pinned);
    let mut pageable = vec![0; BYTES].into_boxed_slice();
    fill(&mut pageable);
    let mut ends = Some((pinned, back, pageable));
    let equal = ask(&device, move |cuda| {
        let (pinned, back, pageable) = ends.take().expect("one step");
        let (pinned, back) = copy_parts(cuda, pinned, back)?;
        let (sent, came) = copy_parts(cuda, pageable, vec![0; BYTES].into_boxed_slice())?;
        Ok(*pinned == *back && sent == came && sent[BYTES - 1] != 0)
    });
    assert_eq!(equal, Some(true));
}

#[test]
fn parts_of_pageable_memory_are_registered_apart() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    const PAGE: usize = 4096;
    let memory = vec![7_u8; 10 * PAGE].into_boxed_slice();
    // The driver pins whole pages, and the first and the last page may hold other memory too.
    let first = memory.as_ptr().align_offset(PAGE);
    let mut parts = Part::divide(memory, &[first, first + PAGE, first + 8 * PAGE]);
    let last = parts.pop();
    let register = |part| device.register(part).map_err(|(_, error)| error);
    let registered: Result<Vec<_>, _> = parts.drain(1..).map(register).collect();
    let registered = registered.expect("the parts share no page");
    assert_eq!(registered.len(), 2);
    parts.extend(registered.into_iter().map(|part| part.into_inner()));
    parts.extend(last);
    assert_eq!(Part::join(parts).len(), 10 * PAGE);
}
