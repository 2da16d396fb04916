//! Host memory of the tier that a method works on.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use forebay_device::Device;
use forebay_device::cuda::{Managed, Pinned};

use super::TransferMethod;
use crate::{MoveError, Tier};

/// Host memory of one tier.
#[derive(Debug)]
pub enum HostBuffer {
    /// Ordinary memory.
    Pageable(Box<[u8]>),
    /// Pinned memory.
    Pinned(Pinned),
    /// Unified memory.
    Managed(Managed),
}

impl HostBuffer {
    /// Allocates zeroed memory of the tier that a method works on. Pinning takes about half a second per GiB.
    ///
    /// # Errors
    /// [`MoveError`] if the host cannot pin the memory, or unified memory does not fit on the card.
    pub fn allocate(
        device: &Arc<Device>,
        method: TransferMethod,
        bytes: usize,
    ) -> Result<HostBuffer, MoveError> {
        Ok(match method.tier() {
            Tier::Pinned => HostBuffer::Pinned(device.pinned(bytes)?),
            Tier::Managed => HostBuffer::Managed(device.managed(bytes)?),
            _ => HostBuffer::Pageable(vec![0; bytes].into_boxed_slice()),
        })
    }

    /// Returns the tier of the memory.
    pub fn tier(&self) -> Tier {
        match self {
            HostBuffer::Pageable(_) => Tier::Pageable,
            HostBuffer::Pinned(_) => Tier::Pinned,
            HostBuffer::Managed(_) => Tier::Managed,
        }
    }
}

impl Deref for HostBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            HostBuffer::Pageable(bytes) => bytes,
            HostBuffer::Pinned(bytes) => bytes,
            HostBuffer::Managed(bytes) => bytes,
        }
    }
}

impl DerefMut for HostBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            HostBuffer::Pageable(bytes) => bytes,
            HostBuffer::Pinned(bytes) => bytes,
            HostBuffer::Managed(bytes) => bytes,
        }
    }
}
