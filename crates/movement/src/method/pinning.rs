//! Dynamic pinning: pageable memory is pinned chunk by chunk. Pages that the memory fills only in part are copied
//! without pinning.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_device::Device;
use forebay_device::cuda::{DeviceView, HostRegistration, Part, Transfer};

use super::Direction;
use super::chunks::{self, by_copies, stream_of, with_view};
use super::job::run_on_device;
use super::moving::is_whole_pages;
use crate::MoveError;

/// Maximum chunks that are pinned at the same time: one is copied while the next is pinned.
const PINNED_MAX: usize = 3;

type Bytes = Box<[u8]>;
type Registered = HostRegistration<Part<Bytes>>;

/// A copy in either direction.
enum CopyInFlight {
    ToDevice(Transfer<Registered, DeviceView<u8>>),
    ToHost(Transfer<DeviceView<u8>, Registered>),
}

impl CopyInFlight {
    /// Waits for the copy.
    fn wait(&self, device: &Device) -> Result<(), MoveError> {
        let event = match self {
            CopyInFlight::ToDevice(transfer) => transfer.event(),
            CopyInFlight::ToHost(transfer) => transfer.event(),
        };
        event.wait().map_err(|fault| MoveError::lost(device, fault))
    }

    /// Waits for the copy, and unpins the memory.
    fn finish(self, device: &Device) -> Result<Part<Bytes>, MoveError> {
        let registered = match self {
            CopyInFlight::ToDevice(transfer) => transfer.finish().map(|(registered, _)| registered),
            CopyInFlight::ToHost(transfer) => transfer.finish().map(|(_, registered)| registered),
        };
        let registered = registered.map_err(|fault| MoveError::lost(device, fault))?;
        Ok(registered.into_inner())
    }
}

/// Pins, copies and unpins all parts that are whole pages, and copies the others. Returns them, and the time that
/// pinning and unpinning took. Blocks the calling thread.
pub(super) fn run(
    device: &Arc<Device>,
    parts: Vec<Part<Bytes>>,
    device_memory: &DeviceView<u8>,
    direction: Direction,
) -> Result<(Vec<Part<Bytes>>, Duration), MoveError> {
    let (mut in_flight, mut moved) = (VecDeque::new(), Vec::new());
    let mut pinning = Duration::ZERO;
    let (pages, ends): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| is_whole_pages(part));
    moved.extend(chunks::run(device, ends, device_memory, by_copies(direction))?.0);
    for part in pages {
        if in_flight.len() == PINNED_MAX {
            moved.extend(end(&mut in_flight, device, &mut pinning)?);
        }
        let (part, view) = with_view(part, device_memory);
        let start = Instant::now();
        let registered = device.register(part).map_err(|(_, error)| error)?;
        pinning += start.elapsed();
        in_flight.push_back(begin(device, registered, view, direction)?);
    }
    while !in_flight.is_empty() {
        moved.extend(end(&mut in_flight, device, &mut pinning)?);
    }
    Ok((moved, pinning))
}

fn begin(
    device: &Device,
    registered: Registered,
    view: DeviceView<u8>,
    direction: Direction,
) -> Result<CopyInFlight, MoveError> {
    run_on_device(device, move |cuda| {
        let stream = stream_of(cuda, direction);
        Ok(match direction {
            Direction::ToDevice => {
                CopyInFlight::ToDevice(Transfer::begin(cuda, registered, view, &stream)?)
            }
            Direction::ToHost => {
                CopyInFlight::ToHost(Transfer::begin(cuda, view, registered, &stream)?)
            }
        })
    })
}

/// Ends the oldest copy, and counts the time of unpinning.
fn end(
    in_flight: &mut VecDeque<CopyInFlight>,
    device: &Device,
    pinning: &mut Duration,
) -> Result<Option<Part<Bytes>>, MoveError> {
    let Some(oldest) = in_flight.pop_front() else {
        return Ok(None);
    };
    oldest.wait(device)?;
    let start = Instant::now();
    let part = oldest.finish(device)?;
    *pinning += start.elapsed();
    Ok(Some(part))
}
