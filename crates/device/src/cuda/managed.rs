//! Unified (managed) memory: one address for the CPU and the GPU, between which the driver moves the pages.

use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUmemLocation, CUmemLocationType};
use parking_lot::{Mutex, MutexGuard};

use super::library::{DriverError, OUT_OF_MEMORY, check};
use super::{Context, Cuda, DevicePointerMut, Gpu, Stream};
use crate::DeviceFault;

/// Bytes of the card's memory that managed memory leaves to the driver and to other programs.
pub(super) const RESERVED_BYTES: u64 = 256 << 20;

/// Why managed memory could not be allocated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManagedError {
    /// The device is not a GPU.
    #[error("device {device} is not a GPU; only GPUs have managed memory")]
    HostDevice {
        /// Name of the device.
        device: String,
    },
    /// The CPU and the GPU cannot access managed memory at the same time.
    #[error(
        "device {device} lacks concurrent managed access, which needs Linux and a GPU of sm_60 or later"
    )]
    NotConcurrent {
        /// Name of the device.
        device: String,
    },
    /// The memory would not fit on the card. Managed memory beyond the free memory of a card can hang the GPU.
    #[error(
        "{wanted_bytes} bytes of managed memory do not fit in the {free_bytes} bytes that are free on the card; use a \
         smaller size, or let the device use less of the card"
    )]
    TooLarge {
        /// Bytes of the request.
        wanted_bytes: u64,
        /// Bytes of the card's memory that managed memory may still use.
        free_bytes: u64,
    },
    /// A call of the driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Bytes of managed memory that are allocated in a context.
#[derive(Debug, Default)]
pub(super) struct ManagedBytes {
    bytes: Mutex<u64>,
}

impl ManagedBytes {
    /// Counts `bytes` more, if all would fit in the `free_bytes` of the card; otherwise returns the bytes that are left
    /// as an error. Allocated pages that are already on the card count twice: here, and as memory that is not free.
    fn reserve(&self, bytes: u64, free_bytes: u64) -> Result<(), u64> {
        let mut counted = self.bytes.lock();
        let left_bytes = free_bytes.saturating_sub(*counted);
        if bytes > left_bytes {
            return Err(left_bytes);
        }
        *counted += bytes;
        Ok(())
    }

    /// Returns the number of bytes, which stays until the guard is dropped.
    pub(super) fn lock(&self) -> MutexGuard<'_, u64> {
        self.bytes.lock()
    }

    /// Ends the count of bytes that were freed.
    fn release(&self, bytes: u64) {
        *self.bytes.lock() -= bytes;
    }
}

/// Where the pages of managed memory lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// In the memory of the GPU that allocated them.
    Device,
    /// In host memory.
    Host,
}

/// Managed memory. It is freed on drop, after all work of the device; its initial content is zeros.
///
/// The CPU and kernels use the same address. An access moves the page to the processor that accesses it, unless the
/// page was [prefetched](Managed::prefetch). Allocations are limited to the card's free memory, so that no access makes
/// the driver evict pages.
#[derive(Debug)]
pub struct Managed {
    context: Arc<Context>,
    ordinal: u32,
    pointer: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory has a single owner, and both the CPU and the driver accept its address on any thread.
unsafe impl Send for Managed {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Managed {}

impl Managed {
    /// Allocates zeroed memory on a GPU whose device has this name.
    pub(crate) fn create(
        context: &Arc<Context>,
        gpu: &Gpu,
        device: &str,
        bytes: usize,
    ) -> Result<Managed, ManagedError> {
        if !gpu.has_concurrent_managed_access {
            let device = device.to_owned();
            return Err(ManagedError::NotConcurrent { device });
        }
        let free_bytes = context.memory()?.free_bytes.saturating_sub(RESERVED_BYTES);
        let reserved = context.managed.reserve(bytes as u64, free_bytes);
        reserved.map_err(|free_bytes| ManagedError::TooLarge {
            wanted_bytes: bytes as u64,
            free_bytes,
        })?;
        // The driver refuses 0 bytes.
        match allocate(context, bytes.max(1)) {
            Ok(pointer) => Ok(Managed {
                context: Arc::clone(context),
                ordinal: gpu.ordinal,
                pointer,
                bytes,
            }),
            Err(error) => {
                context.managed.release(bytes as u64);
                Err(error.into())
            }
        }
    }

    /// Returns the address at which kernels access the memory. The caller of the launch must keep the memory, and must
    /// not access it, until the kernel has finished.
    pub fn device_pointer<T>(&mut self) -> DevicePointerMut<T> {
        DevicePointerMut::new(self.address())
    }

    pub(super) fn address(&self) -> u64 {
        self.pointer.as_ptr().addr() as u64
    }

    /// Queues a move of the pages of `range` to `place` on a stream of the same device, and returns before the move is
    /// done.
    ///
    /// # Errors
    /// A fault of the device.
    ///
    /// # Panics
    /// If the range exceeds the memory, or the stream belongs to another device.
    pub fn prefetch(
        &self,
        cuda: &Cuda,
        range: Range<usize>,
        place: Place,
        stream: &Stream,
    ) -> Result<(), DeviceFault> {
        let (address, bytes) = self.checked(range);
        if bytes == 0 {
            return Ok(());
        }
        assert!(stream.is_of(&self.context), "stream of another device");
        let stream = cuda.own_stream(stream).raw();
        // SAFETY: the range lies in this memory, which is freed only after all work of its device, to which the stream
        // belongs; the stream is live.
        let code =
            unsafe { sys::cuMemPrefetchAsync_v2(address, bytes, self.location(place), 0, stream) };
        Ok(check("cuMemPrefetchAsync", code)?)
    }

    /// Returns the address and the length of a range of the memory.
    fn checked(&self, range: Range<usize>) -> (u64, usize) {
        assert!(
            range.start <= range.end && range.end <= self.bytes,
            "{range:?} of {} bytes",
            self.bytes
        );
        (self.address() + range.start as u64, range.len())
    }

    fn location(&self, place: Place) -> CUmemLocation {
        let (type_, id) = match place {
            Place::Device => (
                CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                self.ordinal.cast_signed(),
            ),
            Place::Host => (CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, 0),
        };
        CUmemLocation { type_, id }
    }
}

/// Allocates memory and fills it with zeros on the host.
fn allocate(context: &Context, bytes: usize) -> Result<NonNull<u8>, DriverError> {
    let _entered = context.enter()?;
    let mut address = 0;
    let flags = sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL as u32;
    // SAFETY: a context is current, and `address` outlives the call.
    let code = unsafe { sys::cuMemAllocManaged(&mut address, bytes, flags) };
    check("cuMemAllocManaged", code)?;
    let pointer = NonNull::new(address as usize as *mut u8).ok_or_else(|| DriverError {
        operation: "cuMemAllocManaged",
        code: OUT_OF_MEMORY.to_owned(),
    })?;
    // SAFETY: the driver allocated `bytes` bytes at this address, and no other code has the address yet.
    unsafe { pointer.write_bytes(0, bytes) };
    Ok(pointer)
}

impl Deref for Managed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes belong to this value alone and were zeroed. Callers of kernels promise not to access them
        // while a kernel does; a prefetch does not change them.
        unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Managed {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.pointer.as_ptr(), self.bytes) }
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        // Prefetches may still use the memory. A context that cannot be entered has failed, and its memory is lost.
        let _ = self.context.synchronize();
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the address came from `cuMemAllocManaged` in this context, and all work has ended.
            let _ = unsafe { sys::cuMemFree_v2(self.address()) };
        }
        self.context.managed.release(self.bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_managed_memory_together_fits_in_the_free_memory() {
        let managed = ManagedBytes::default();
        assert_eq!(managed.reserve(101, 100), Err(100));
        assert_eq!(managed.reserve(60, 100), Ok(()));
        assert_eq!(managed.reserve(41, 100), Err(40));
        assert_eq!(managed.reserve(u64::MAX, 100), Err(40));
        assert_eq!(
            managed.reserve(1, 50),
            Err(0),
            "another program took memory"
        );
        managed.release(60);
        assert_eq!(managed.reserve(100, 100), Ok(()));
    }
}
