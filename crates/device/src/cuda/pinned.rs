//! Host memory that the GPU reads and writes by itself.

use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use cudarc::driver::sys;
use parking_lot::{Condvar, Mutex};

use super::library::{DriverError, check};
use super::ranges::{Range, Ranges};
use super::{Context, DevicePointerMut};

/// What every buffer of the pool begins at a multiple of: a page.
const GRANULE_BYTES: u64 = 4096;

/// Page-locked memory from the driver, usable by every context, cached by the CPU.
#[derive(Debug)]
struct HostAllocation {
    context: Arc<Context>,
    pointer: NonNull<u8>,
    /// Where kernels see it.
    device_address: u64,
}

// SAFETY: the allocation is plain memory of this process, owned by this value alone.
unsafe impl Send for HostAllocation {}
// SAFETY: a shared reference gives no access to the memory.
unsafe impl Sync for HostAllocation {}

impl HostAllocation {
    /// Takes `bytes` of zeros.
    fn create(context: Arc<Context>, bytes: usize) -> Result<HostAllocation, DriverError> {
        let entered = context.enter()?;
        let mut pointer = ptr::null_mut();
        let size = bytes.max(1);
        // SAFETY: a context is current, and `pointer` lives through the call.
        let code =
            unsafe { sys::cuMemHostAlloc(&mut pointer, size, sys::CU_MEMHOSTALLOC_PORTABLE) };
        check("cuMemHostAlloc", code)?;
        let pointer = NonNull::new(pointer.cast::<u8>()).ok_or_else(|| DriverError {
            operation: "cuMemHostAlloc",
            code: "no address".to_owned(),
        })?;
        let allocation = HostAllocation {
            device_address: device_address(pointer)?,
            context: Arc::clone(&context),
            pointer,
        };
        drop(entered);
        // SAFETY: the driver gave `size` bytes at this address, and nobody else knows them yet.
        unsafe { pointer.write_bytes(0, size) };
        Ok(allocation)
    }
}

/// Where kernels of the current context see pinned memory.
fn device_address(pointer: NonNull<u8>) -> Result<u64, DriverError> {
    let mut address = 0;
    // SAFETY: a context is current, the driver gave the pointer, and `address` lives through the call.
    let code =
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, pointer.as_ptr().cast(), 0) };
    check("cuMemHostGetDevicePointer", code)?;
    Ok(address)
}

impl Drop for HostAllocation {
    fn drop(&mut self) {
        self.context.settle_if_panicking();
        // A context that cannot be entered has failed; destroying it frees its memory.
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the pointer came from `cuMemHostAlloc` in this context, and this was its only owner.
            let _ = unsafe { sys::cuMemFreeHost(self.pointer.as_ptr().cast()) };
        }
    }
}

/// The pinned memory of a device that loaders share. Its size is set at start.
#[derive(Debug)]
pub(crate) struct PinnedPool {
    allocation: HostAllocation,
    bytes: u64,
    /// The thread that holds it is served next, so that small requests do not overtake a large one for ever.
    turn: Mutex<()>,
    state: Mutex<PoolState>,
    changed: Condvar,
}

#[derive(Debug)]
struct PoolState {
    ranges: Ranges,
    closed: bool,
}

impl PinnedPool {
    pub(crate) fn create(context: Arc<Context>, bytes: u64) -> Result<PinnedPool, DriverError> {
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(PinnedPool {
            allocation: HostAllocation::create(context, size)?,
            bytes,
            turn: Mutex::new(()),
            state: Mutex::new(PoolState {
                ranges: Ranges::new(bytes, GRANULE_BYTES),
                closed: false,
            }),
            changed: Condvar::new(),
        })
    }

    /// Waits for room; `None` when the pool is closed or smaller than `bytes`.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Option<Pinned> {
        self.take_ring(1, bytes)?.pop()
    }

    /// Waits for room for all slots and takes them at once; `None` when the pool is closed or smaller.
    pub(crate) fn take_ring(self: &Arc<Self>, slots: usize, bytes: usize) -> Option<Vec<Pinned>> {
        let slot_bytes = (bytes.max(1) as u64).checked_next_multiple_of(GRANULE_BYTES)?;
        let ring_bytes = slot_bytes.checked_mul(slots as u64)?;
        if ring_bytes > self.bytes - self.bytes % GRANULE_BYTES {
            return None;
        }
        if slots == 0 {
            return Some(Vec::new());
        }
        let _turn = self.turn.lock();
        let ring = self.wait_for(ring_bytes)?;
        let ranges = (0..slots as u64).map(|slot| Range {
            offset: ring.offset + slot * slot_bytes,
            bytes: slot_bytes,
        });
        Some(ranges.map(|range| self.give_out(range, bytes)).collect())
    }

    /// Gives out a range that was taken.
    fn give_out(self: &Arc<Self>, range: Range, bytes: usize) -> Pinned {
        // SAFETY: the offset lies within the allocation.
        let pointer = unsafe { self.allocation.pointer.add(range.offset as usize) };
        let device_address = self.allocation.device_address + range.offset;
        let part = Part {
            pool: Arc::clone(self),
            range: Some(range),
        };
        Pinned {
            pointer,
            bytes,
            device_address,
            _owner: Owner::Pool(part),
        }
    }

    fn wait_for(&self, bytes: u64) -> Option<Range> {
        let mut state = self.state.lock();
        while !state.closed {
            if let Some(range) = state.ranges.take(bytes) {
                return Some(range);
            }
            self.changed.wait(&mut state);
        }
        None
    }

    /// Gives out no more, and wakes those who wait.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }
}

/// A part of a pool that is given out.
#[derive(Debug)]
struct Part {
    pool: Arc<PinnedPool>,
    range: Option<Range>,
}

impl Drop for Part {
    fn drop(&mut self) {
        self.pool.allocation.context.settle_if_panicking();
        if let Some(range) = self.range.take() {
            self.pool.state.lock().ranges.give_back(range);
            self.pool.changed.notify_all();
        }
    }
}

/// What keeps the memory of a buffer.
#[derive(Debug)]
enum Owner {
    Pool(#[expect(dead_code, reason = "it is there to be dropped")] Part),
    Itself(#[expect(dead_code, reason = "it is there to be dropped")] HostAllocation),
}

/// A buffer of pinned host memory: copies between it and the GPU run at full speed and beside other work.
///
/// A buffer of the pool goes back there when it is dropped, and holds at first what was in it before; another one is
/// freed. The memory is cached by the CPU. A [`Transfer`](super::Transfer) owns the buffer until the copy is done.
#[derive(Debug)]
pub struct Pinned {
    pointer: NonNull<u8>,
    bytes: usize,
    device_address: u64,
    _owner: Owner,
}

// SAFETY: a buffer is the only one with access to its bytes; what owns the memory may be dropped on any thread.
unsafe impl Send for Pinned {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// A buffer of zeros of its own.
    pub(crate) fn create(context: Arc<Context>, bytes: usize) -> Result<Pinned, DriverError> {
        let allocation = HostAllocation::create(context, bytes)?;
        Ok(Pinned {
            pointer: allocation.pointer,
            bytes,
            device_address: allocation.device_address,
            _owner: Owner::Itself(allocation),
        })
    }

    /// Where kernels of the device read and write the buffer without a copy, over the bus. The caller of the launch
    /// keeps the buffer, and leaves it alone, until the stream is done.
    pub fn device_pointer<T>(&self) -> DevicePointerMut<T> {
        DevicePointerMut::new(self.device_address)
    }
}

impl Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` bytes from `pointer` on are this buffer's alone, were set to zero when they were taken from
        // the driver, and live as long as the owner. Asynchronous copies that write them are promised to be over.
        unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; asynchronous copies that read them are promised to be over too.
        unsafe { slice::from_raw_parts_mut(self.pointer.as_ptr(), self.bytes) }
    }
}
