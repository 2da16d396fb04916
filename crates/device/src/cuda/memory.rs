//! GPU memory: one allocation made at start, and the ranges of it in use.

use std::sync::Arc;

use cudarc::driver::sys;
use parking_lot::Mutex;

use super::Context;
use super::chunks::Chunks;
use super::library::{DriverError, check};
use super::ranges::{Range, Ranges};
use crate::device::Shared;
use crate::memory::{Budget, Reservation, ShareId};
use crate::{DeviceError, OutOfMemory};

/// Alignment of every range, equal to that of memory from the driver.
const GRANULE_BYTES: u64 = 256;

/// Allocator of a device's memory.
#[derive(Debug)]
pub(crate) struct Arena {
    context: Arc<Context>,
    shared: Arc<Shared>,
    budget: Arc<Budget>,
    address: u64,
    ranges: Mutex<Ranges>,
}

impl Arena {
    /// Allocates `wanted_bytes` of the card's memory; `None` means four fifths of the card's free memory.
    pub(crate) fn create(
        context: Arc<Context>,
        shared: Arc<Shared>,
        wanted_bytes: Option<u64>,
    ) -> Result<Arena, DeviceError> {
        let failed = |source| DeviceError::start(&shared.name, source);
        let card = context.memory().map_err(failed)?;
        let bytes = wanted_bytes.unwrap_or(card.free_bytes / 5 * 4);
        let bytes = bytes.max(1).next_multiple_of(GRANULE_BYTES);
        let address = take_from_card(&context, bytes).map_err(failed)?;
        let address = address.ok_or_else(|| DeviceError::CardMemory {
            name: shared.name.clone(),
            wanted_bytes: bytes,
            free_bytes: card.free_bytes,
            total_bytes: card.total_bytes,
        })?;
        Ok(Arena {
            budget: Budget::new(bytes),
            ranges: Mutex::new(Ranges::new(bytes, GRANULE_BYTES)),
            context,
            shared,
            address,
        })
    }

    /// Returns the budget that allocations are charged to; it is as large as the arena.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Allocates at least `bytes`, charged to a share of the budget.
    pub(crate) fn allocate(
        self: &Arc<Self>,
        share: ShareId,
        bytes: u64,
    ) -> Result<DeviceMemory, OutOfMemory> {
        let injected = self.shared.faults.take_out_of_memory();
        let memory = if injected {
            None
        } else {
            self.take(share, bytes)
        };
        memory.ok_or_else(|| OutOfMemory {
            device: self.shared.name.clone(),
            wanted_bytes: bytes,
            free_bytes: self.free_bytes(share),
            budget_bytes: self.budget.budget_bytes(),
        })
    }

    /// Returns the maximum number of bytes that can be allocated for a share now.
    fn free_bytes(&self, share: ShareId) -> u64 {
        let largest = self.ranges.lock().largest_free_bytes();
        largest.min(self.budget.available_bytes(share))
    }

    /// Returns whether an allocation of `bytes` for a share would succeed now.
    pub(crate) fn has_room(&self, share: ShareId, bytes: u64) -> bool {
        let ranges = self.ranges.lock();
        ranges.rounded(bytes).is_some_and(|rounded| {
            rounded
                <= self
                    .budget
                    .available_bytes(share)
                    .min(ranges.largest_free_bytes())
        })
    }

    fn take(self: &Arc<Self>, share: ShareId, bytes: u64) -> Option<DeviceMemory> {
        let mut ranges = self.ranges.lock();
        let reservation = self.budget.reserve(share, ranges.rounded(bytes)?)?;
        let range = ranges.take(bytes)?;
        Some(DeviceMemory {
            address: self.address + range.offset,
            bytes,
            held: Held::Range {
                range: Some(range),
                _reservation: reservation,
            },
            arena: Arc::clone(self),
        })
    }
}

/// Allocates memory from the driver and returns its address; `None` if the card has too little.
fn take_from_card(context: &Context, bytes: u64) -> Result<Option<u64>, DriverError> {
    let _entered = context.enter()?;
    let mut address = 0;
    let size = usize::try_from(bytes).unwrap_or(usize::MAX);
    // SAFETY: a context is current, and `address` outlives the call.
    match unsafe { sys::cuMemAlloc_v2(&mut address, size) } {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(None),
        code => check("cuMemAlloc", code).map(|()| Some(address)),
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // A context that cannot be entered has failed, and its memory is lost.
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the address came from `cuMemAlloc` in this context. No range is in use, because each range holds
            // the arena. The driver waits for in-flight work.
            let _ = unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// A range of a GPU's memory, which is freed immediately when this value is dropped.
///
/// The device does not track which work uses the range: the caller of a launch must keep the range until the kernel has
/// finished, or [retire](super::Cuda::retire) it. The initial content is undefined.
#[derive(Debug)]
pub struct DeviceMemory {
    arena: Arc<Arena>,
    held: Held,
    address: u64,
    bytes: u64,
}

/// What a value of [`DeviceMemory`] keeps.
#[derive(Debug)]
enum Held {
    /// A range of the arena and its part of the budget.
    Range {
        range: Option<Range>,
        _reservation: Reservation,
    },
    /// Chunks, which are not of the arena.
    Chunks { _chunks: Arc<Chunks> },
}

impl DeviceMemory {
    /// Returns the first bytes of chunks, which a device uses as its memory.
    pub(super) fn of_chunks(arena: &Arc<Arena>, chunks: Arc<Chunks>, bytes: u64) -> DeviceMemory {
        DeviceMemory {
            arena: Arc::clone(arena),
            address: chunks.address(),
            bytes,
            held: Held::Chunks { _chunks: chunks },
        }
    }

    /// Returns the address on the device, a multiple of 256.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns whether this memory belongs to `arena`.
    pub(super) fn is_of(&self, arena: &Arc<Arena>) -> bool {
        Arc::ptr_eq(&self.arena, arena)
    }

    /// Returns whether other devices may use this memory.
    pub(super) fn is_for_peers(&self) -> bool {
        matches!(self.held, Held::Range { .. })
    }

    /// Returns whether both ranges are memory of the same device.
    pub(super) fn is_on_same_device(&self, other: &DeviceMemory) -> bool {
        Arc::ptr_eq(&self.arena, &other.arena)
    }

    pub(super) fn context(&self) -> &Context {
        &self.arena.context
    }

    /// Returns the address of the `bytes` bytes that start at byte `offset`.
    ///
    /// # Panics
    /// If the range ends before these bytes do.
    pub(super) fn address_of(&self, offset: usize, bytes: usize) -> u64 {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end as u64 <= self.bytes),
            "{bytes} bytes at offset {offset} exceed a memory range of {} bytes",
            self.bytes
        );
        self.address + offset as u64
    }

    /// Returns the requested number of bytes; the budget is charged for the next multiple of 256.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.arena.context.settle_if_panicking();
        let Held::Range { range, .. } = &mut self.held else {
            return;
        };
        if let Some(range) = range.take() {
            self.arena.ranges.lock().give_back(range);
        }
    }
}
