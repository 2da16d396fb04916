//! The memory of a ring.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use forebay_device::cuda::{DeviceView, Event, Pinned, Priority, Stream};
use forebay_device::{Device, DeviceKind};

use super::RingOptions;
use crate::MoveError;
use crate::method::run_on_device;
use crate::storage::AlignedBytes;

/// The slots of a ring, and its streams on a GPU.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) slots: Vec<SlotMemory>,
    pub(super) slot_bytes: usize,
    pub(super) streams: Option<Streams>,
}

/// The two streams of a ring: copies and kernels of different chunks run at the same time.
#[derive(Debug, Clone)]
pub(super) struct Streams {
    pub(super) copies: Stream,
    pub(super) kernels: Stream,
}

/// The memory of one slot.
#[derive(Debug)]
pub(super) struct SlotMemory {
    pub(super) host: HostBytes,
    /// Device memory; `None` on a host device.
    pub(super) device: Option<DeviceView<u8>>,
    /// The consumer's last work on the device memory.
    pub(super) consumed: Option<Arc<Event>>,
}

/// Host memory of a slot, aligned to pages.
#[derive(Debug)]
pub(super) enum HostBytes {
    Pinned(Pinned),
    Heap(AlignedBytes),
}

impl Deref for HostBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            HostBytes::Pinned(pinned) => pinned,
            HostBytes::Heap(heap) => heap,
        }
    }
}

impl DerefMut for HostBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            HostBytes::Pinned(pinned) => pinned,
            HostBytes::Heap(heap) => heap,
        }
    }
}

impl Lease {
    pub(super) fn take(device: &Arc<Device>, options: RingOptions) -> Result<Lease, MoveError> {
        match device.kind() {
            DeviceKind::Cuda => Lease::on_gpu(device, options),
            _ => Ok(Lease::on_host(options)),
        }
    }

    fn on_host(options: RingOptions) -> Lease {
        let slot = |_| SlotMemory {
            host: HostBytes::Heap(AlignedBytes::zeroed(options.slot_bytes)),
            device: None,
            consumed: None,
        };
        Lease {
            slots: (0..options.slots).map(slot).collect(),
            slot_bytes: options.slot_bytes,
            streams: None,
        }
    }

    fn on_gpu(device: &Arc<Device>, options: RingOptions) -> Result<Lease, MoveError> {
        let RingOptions { slots, slot_bytes } = options;
        let bytes = slots.saturating_mul(slot_bytes);
        let pinned = device.stage_ring(slots, slot_bytes).ok_or_else(|| {
            MoveError::if_lost(device).unwrap_or_else(|| MoveError::PinnedMemory {
                device: device.name().to_owned(),
                bytes,
            })
        })?;
        let memory = Arc::new(device.allocate(bytes as u64)?);
        let slot = |(index, host)| {
            let begin = index * slot_bytes;
            SlotMemory {
                host: HostBytes::Pinned(host),
                device: Some(DeviceView::of(&memory, begin..begin + slot_bytes)),
                consumed: None,
            }
        };
        Ok(Lease {
            slots: pinned.into_iter().enumerate().map(slot).collect(),
            slot_bytes,
            streams: Some(streams(device)?),
        })
    }
}

/// Creates the streams of a ring on the device's thread.
fn streams(device: &Device) -> Result<Streams, MoveError> {
    run_on_device(device, |cuda| {
        Ok(Streams {
            copies: cuda.stream(Priority::Normal)?,
            kernels: cuda.stream(Priority::Normal)?,
        })
    })
}
