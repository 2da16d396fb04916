//! Pinned (page-locked) host memory, which the GPU accesses without the CPU.

use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use cudarc::driver::sys;
use parking_lot::{Condvar, Mutex};

use super::library::{DriverError, OUT_OF_MEMORY, check};
use super::pages::Pages;
use super::ranges::{Range, Ranges};
use super::registration::RegisteredPages;
use super::{Context, DevicePointerMut};

/// Alignment of every buffer of the pool: one page.
const GRANULE_BYTES: u64 = 4096;

/// Page-locked memory, usable by every context and cached by the CPU.
#[derive(Debug)]
enum HostAllocation {
    Driver(DriverAllocation),
    /// Memory on the GPU's NUMA node, if the machine has several.
    OnNode(RegisteredPages),
}

impl HostAllocation {
    /// Allocates `bytes` zeroed bytes.
    fn create(context: Arc<Context>, bytes: usize) -> Result<HostAllocation, DriverError> {
        let Some(node) = context.host_node() else {
            let allocation = DriverAllocation::create(context, bytes)?;
            return Ok(HostAllocation::Driver(allocation));
        };
        let pages = Pages::map(bytes, node).map_err(|_| DriverError {
            operation: "mmap",
            code: OUT_OF_MEMORY.to_owned(),
        })?;
        let pages = RegisteredPages::create(context, pages)?;
        Ok(HostAllocation::OnNode(pages))
    }

    fn pointer(&self) -> NonNull<u8> {
        match self {
            HostAllocation::Driver(allocation) => allocation.pointer,
            HostAllocation::OnNode(pages) => pages.pointer(),
        }
    }

    /// Returns the address at which kernels access the memory.
    fn device_address(&self) -> u64 {
        match self {
            HostAllocation::Driver(allocation) => allocation.device_address,
            HostAllocation::OnNode(pages) => pages.device_address(),
        }
    }
}

/// Page-locked memory from the driver.
#[derive(Debug)]
struct DriverAllocation {
    context: Arc<Context>,
    pointer: NonNull<u8>,
    /// Address at which kernels access the memory.
    device_address: u64,
}

// SAFETY: the allocation is plain memory of this process, owned only by this value.
unsafe impl Send for DriverAllocation {}
// SAFETY: a shared reference gives no access to the memory.
unsafe impl Sync for DriverAllocation {}

impl DriverAllocation {
    fn create(context: Arc<Context>, bytes: usize) -> Result<DriverAllocation, DriverError> {
        let entered = context.enter()?;
        let mut pointer = ptr::null_mut();
        let size = bytes.max(1);
        // SAFETY: a context is current, and `pointer` outlives the call.
        let code =
            unsafe { sys::cuMemHostAlloc(&mut pointer, size, sys::CU_MEMHOSTALLOC_PORTABLE) };
        check("cuMemHostAlloc", code)?;
        let pointer = NonNull::new(pointer.cast::<u8>()).ok_or_else(|| DriverError {
            operation: "cuMemHostAlloc",
            code: "no address".to_owned(),
        })?;
        let allocation = DriverAllocation {
            device_address: device_address(pointer)?,
            context: Arc::clone(&context),
            pointer,
        };
        drop(entered);
        // SAFETY: the driver allocated `size` bytes at this address, and no other code has the address yet.
        unsafe { pointer.write_bytes(0, size) };
        Ok(allocation)
    }
}

/// Returns the address at which kernels of the current context access pinned memory.
pub(super) fn device_address(pointer: NonNull<u8>) -> Result<u64, DriverError> {
    let mut address = 0;
    // SAFETY: a context is current, the memory is pinned, and `address` outlives the call.
    let code =
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, pointer.as_ptr().cast(), 0) };
    check("cuMemHostGetDevicePointer", code)?;
    Ok(address)
}

impl Drop for DriverAllocation {
    fn drop(&mut self) {
        self.context.settle_if_panicking();
        // If the context cannot be entered, it has failed; destroying it frees its memory.
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the pointer came from `cuMemHostAlloc` in this context, and this was its only owner.
            let _ = unsafe { sys::cuMemFreeHost(self.pointer.as_ptr().cast()) };
        }
    }
}

/// Pinned memory of a fixed size, given out in buffers. Loaders share the pool of a device.
#[derive(Debug)]
pub struct PinnedPool {
    context: Arc<Context>,
    allocation: HostAllocation,
    bytes: u64,
    /// Held by the thread whose request is served next, so that small requests cannot starve a large one.
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
            allocation: HostAllocation::create(Arc::clone(&context), size)?,
            context,
            bytes,
            turn: Mutex::new(()),
            state: Mutex::new(PoolState {
                ranges: Ranges::new(bytes, GRANULE_BYTES),
                closed: false,
            }),
            changed: Condvar::new(),
        })
    }

    /// Takes a buffer; blocks until there is room. Returns `None` if the pool is closed or smaller than `bytes`.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Option<Pinned> {
        self.take_ring(1, bytes)?.pop()
    }

    /// Takes a buffer. Returns `None` if there is no room now; does not wait.
    pub fn try_take(self: &Arc<Self>, bytes: usize) -> Option<Pinned> {
        let range = self.state.lock().ranges.take(bytes.max(1) as u64)?;
        Some(self.give_out(range, bytes))
    }

    /// Takes a ring of `slots` buffers, all in one step; blocks until there is room. Returns `None` if the pool is
    /// closed or smaller than the ring.
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

    /// Returns a buffer for a range that was taken from the pool.
    fn give_out(self: &Arc<Self>, range: Range, bytes: usize) -> Pinned {
        // SAFETY: the offset lies within the allocation.
        let pointer = unsafe { self.allocation.pointer().add(range.offset as usize) };
        let device_address = self.allocation.device_address() + range.offset;
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

    /// Closes the pool: threads that wait for a buffer get `None`.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }
}

/// A range of a pool that is in use.
#[derive(Debug)]
struct Part {
    pool: Arc<PinnedPool>,
    range: Option<Range>,
}

impl Drop for Part {
    fn drop(&mut self) {
        self.pool.context.settle_if_panicking();
        if let Some(range) = self.range.take() {
            self.pool.state.lock().ranges.give_back(range);
            self.pool.changed.notify_all();
        }
    }
}

/// The owner of a buffer's memory.
#[derive(Debug)]
enum Owner {
    Pool(#[expect(dead_code, reason = "held only to be dropped")] Part),
    Itself(#[expect(dead_code, reason = "held only to be dropped")] HostAllocation),
}

/// A buffer of pinned host memory. Copies between it and the GPU run at full speed and concurrently with other work.
///
/// A buffer from the pool returns to it on drop; its initial content is undefined. Other buffers are freed on drop and
/// are initially zero. The CPU caches the memory. A [`Transfer`](super::Transfer) owns the buffer until the copy is
/// done.
#[derive(Debug)]
pub struct Pinned {
    pointer: NonNull<u8>,
    bytes: usize,
    device_address: u64,
    _owner: Owner,
}

// SAFETY: a buffer has exclusive access to its bytes; the owner of the memory may be dropped on any thread.
unsafe impl Send for Pinned {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Allocates a zeroed buffer outside of the pool.
    pub(crate) fn create(context: Arc<Context>, bytes: usize) -> Result<Pinned, DriverError> {
        let allocation = HostAllocation::create(context, bytes)?;
        Ok(Pinned {
            pointer: allocation.pointer(),
            bytes,
            device_address: allocation.device_address(),
            _owner: Owner::Itself(allocation),
        })
    }

    pub(super) fn address(&self) -> u64 {
        self.device_address
    }

    /// Returns the address at which kernels access the buffer over the bus, without a copy. The caller of the launch
    /// must keep the buffer, and must not access it, until the kernel has finished.
    pub fn device_pointer<T>(&self) -> DevicePointerMut<T> {
        DevicePointerMut::new(self.device_address)
    }
}

impl Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the `bytes` bytes at `pointer` belong to this buffer alone, were zeroed when they were allocated, and
        // live as long as the owner. Asynchronous copies own the buffer until they are done.
        unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.pointer.as_ptr(), self.bytes) }
    }
}
