//! Reads by kernels.

use std::sync::Arc;
use std::time::Duration;

use forebay_device::Device;
use forebay_device::cuda::{DevicePointerMut, DeviceView, Pinned};

use super::{Pattern, Plan, Reading, measure_pattern};
use crate::MoveError;
use crate::kernels::has_bulk;
use crate::kernels::launch::{self, Task};
use crate::method::{PeerLink, link, run_on_device};

/// Memory that a kernel reads.
#[derive(Debug)]
pub(crate) enum Memory {
    /// Memory of the device that runs the kernel.
    Device(DeviceView<u8>),
    /// Pinned host memory.
    Host(Pinned),
    /// Memory of another device, which this one [reaches](Device::reaches).
    Peer(DeviceView<u8>),
}

/// Why [`measure`] has the memory: nothing follows a read that fails.
const KEPT: &str = "a read that succeeds gives the memory back";

/// How much more often device memory is read at random than memory over a link.
const LINK_FACTOR: u64 = 64;

impl Memory {
    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Memory::Device(view) | Memory::Peer(view) => view.len(),
            Memory::Host(pinned) => pinned.len(),
        }
    }

    pub(crate) fn device_pointer(&mut self) -> DevicePointerMut<u32> {
        match self {
            Memory::Device(view) | Memory::Peer(view) => {
                DevicePointerMut::new(view.pointer_mut().address())
            }
            Memory::Host(pinned) => pinned.device_pointer(),
        }
    }

    /// Returns the number of random reads of a plan.
    fn accesses(&self, plan: &Plan) -> u64 {
        match self {
            Memory::Device(_) => plan.accesses,
            Memory::Host(_) | Memory::Peer(_) => (plan.accesses / LINK_FACTOR).max(1),
        }
    }
}

/// Measures reads by kernels of a GPU: of its own memory if `of_host` is false, otherwise of pinned host memory. Each
/// step of the iterator measures one pattern, and blocks; each read runs alone on the device's thread. Nothing follows
/// an error.
///
/// # Errors
/// [`MoveError`] if there is too little memory, or [`MoveError::WrongSum`] if a read took other bytes.
pub fn read_by_device(
    device: &Arc<Device>,
    of_host: bool,
    plan: Plan,
) -> Result<impl Iterator<Item = Result<Reading, MoveError>>, MoveError> {
    let memory = match of_host {
        true => Memory::Host(device.pinned(plan.host_bytes)?),
        false => Memory::Device(allocate(device, plan.device_bytes)?),
    };
    Ok(read(device, memory, plan))
}

/// Measures reads of the memory of `peer` by kernels of `device`; `None` if the cards cannot access each other's
/// memory. Blocks as [`read_by_device`].
///
/// # Errors
/// As for [`read_by_device`].
pub fn read_peer(
    device: &Arc<Device>,
    peer: &Arc<Device>,
    plan: Plan,
) -> Result<Option<impl Iterator<Item = Result<Reading, MoveError>>>, MoveError> {
    if link(peer, device) != Some(PeerLink::Direct) {
        return Ok(None);
    }
    let memory = Memory::Peer(allocate(peer, plan.device_bytes)?);
    Ok(Some(read(device, memory, plan)))
}

fn allocate(device: &Arc<Device>, bytes: usize) -> Result<DeviceView<u8>, MoveError> {
    let memory = device.allocate(bytes as u64)?;
    Ok(DeviceView::of(&Arc::new(memory), 0..bytes))
}

/// Measures one pattern after another, until one fails.
fn read(
    device: &Arc<Device>,
    memory: Memory,
    plan: Plan,
) -> impl Iterator<Item = Result<Reading, MoveError>> {
    let device = Arc::clone(device);
    let has_bulk = device.details().is_some_and(|gpu| has_bulk(gpu.arch));
    let random = memory.accesses(&plan);
    let patterns = Pattern::ALL.into_iter();
    let patterns = patterns.filter(move |pattern| *pattern != Pattern::SequentialBulk || has_bulk);
    let mut memory = Some(memory);
    patterns.map_while(move |pattern| {
        let measured = measure(&device, memory.take()?, pattern, random, plan);
        Some(measured.map(|(back, reading)| {
            memory = Some(back);
            reading
        }))
    })
}

/// Measures one pattern; returns the memory too.
fn measure(
    device: &Device,
    mut memory: Memory,
    pattern: Pattern,
    random: u64,
    plan: Plan,
) -> Result<(Memory, Reading), MoveError> {
    // The first pattern of each filling fills the memory.
    if matches!(pattern, Pattern::Sequential | Pattern::Dependent) {
        (memory, _) = run(device, memory, Task::Fill(pattern))?;
    }
    let bytes = (memory.len(), random);
    let mut kept = Some(memory);
    let reader = format!("device {}", device.name());
    let reading = measure_pattern(pattern, bytes, plan, &reader, |reads| {
        let memory = kept.take().expect(KEPT);
        let (back, timed) = run(device, memory, Task::Read(reads))?;
        kept = Some(back);
        Ok(timed)
    })?;
    Ok((kept.expect(KEPT), reading))
}

/// Runs a kernel over memory; returns the memory, the kernel's time, and the sum of what it read.
fn run(
    device: &Device,
    mut memory: Memory,
    task: Task,
) -> Result<(Memory, (Duration, u64)), MoveError> {
    run_on_device(device, move |cuda| {
        let (ms, sum) = launch::run(cuda, &mut memory, task)?;
        Ok((memory, (Duration::from_secs_f64(ms / 1e3), sum)))
    })
}
