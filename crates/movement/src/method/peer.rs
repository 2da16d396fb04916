//! Copies from one GPU to another.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_device::Device;
use forebay_device::cuda::{DeviceView, Transfer};

use super::job::run_on_device;
use crate::MoveError;

/// How copies go from one GPU to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PeerLink {
    /// From card to card (peer access).
    Direct,
    /// Through host memory, because the cards cannot access each other's memory.
    ThroughHost,
}

/// Returns how copies go from `from` to `to`; `None` if one of them is not a GPU.
pub fn link(from: &Device, to: &Device) -> Option<PeerLink> {
    from.details().and(to.details())?;
    Some(match to.reaches(from) {
        true => PeerLink::Direct,
        false => PeerLink::ThroughHost,
    })
}

/// Copies memory of another GPU to memory of `device`, in chunks; returns the time. Blocks the calling thread.
///
/// # Errors
/// As for [`run_on_device`].
///
/// # Panics
/// If the views differ in length, or `to` is not memory of `device`.
pub fn copy_between(
    device: &Arc<Device>,
    from: DeviceView<u8>,
    to: DeviceView<u8>,
    chunk_bytes: usize,
) -> Result<Duration, MoveError> {
    assert_eq!(from.len(), to.len(), "both ends of a copy have one length");
    run_on_device(device, move |cuda| {
        let start = Instant::now();
        let mut in_flight = Vec::new();
        for offset in (0..from.len()).step_by(chunk_bytes.max(1)) {
            let range = offset..from.len().min(offset + chunk_bytes.max(1));
            let (source, target) = (from.view(range.clone()), to.view(range));
            in_flight.push(Transfer::begin(cuda, source, target, cuda.uploads())?);
        }
        for transfer in in_flight {
            transfer.finish()?;
        }
        Ok(start.elapsed())
    })
}
