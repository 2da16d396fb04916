//! CUDA context of a device; it owns all of the device's driver objects.

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use parking_lot::Mutex;

use super::gpu;
use super::library::{DriverError, check};
use super::managed::ManagedBytes;
use cudarc::driver::sys::{self, CUcontext, CUresult};

/// Number of contexts so far.
static CONTEXTS: AtomicU64 = AtomicU64::new(0);

/// A context on one GPU. All of its objects hold it by `Arc`, so it is destroyed last.
///
/// It is not the GPU's primary context, so that the loss of a device does not affect other CUDA code in the process.
#[derive(Debug)]
pub(crate) struct Context {
    raw: CUcontext,
    /// NUMA node for pinned memory; `None` leaves the choice to the driver.
    host_node: Option<u32>,
    /// Managed memory that is allocated.
    pub(super) managed: ManagedBytes,
    /// Distinguishes it from all other contexts, also from those that were destroyed.
    number: u64,
    /// The numbers of the contexts whose memory kernels of this one access.
    peers: Mutex<Vec<u64>>,
}

// SAFETY: the driver allows calls on a context from any thread; `raw` never changes.
unsafe impl Send for Context {}
// SAFETY: as above; concurrent calls are allowed too.
unsafe impl Sync for Context {}

/// Free and total bytes of a card's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CardMemory {
    pub(crate) free_bytes: u64,
    pub(crate) total_bytes: u64,
}

impl Context {
    /// Creates a context on a GPU that [`gpu::gpus`] listed. Blocks for some hundred milliseconds.
    pub(crate) fn create(ordinal: u32, host_node: Option<u32>) -> Result<Context, DriverError> {
        let device = gpu::handle(ordinal)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the driver is initialised, because `handle` returned a GPU. The null pointer asks for a plain
        // context, and 0 lets the driver choose how to wait. `raw` outlives the call.
        let code = unsafe { sys::cuCtxCreate_v4(&mut raw, ptr::null_mut(), 0, device) };
        check("cuCtxCreate", code)?;
        let context = Context {
            raw,
            host_node,
            managed: ManagedBytes::default(),
            number: CONTEXTS.fetch_add(1, Ordering::Relaxed),
            peers: Mutex::default(),
        };
        pop()?;
        Ok(context)
    }

    pub(super) fn host_node(&self) -> Option<u32> {
        self.host_node
    }

    /// Lets kernels and copies of this context access the memory of `peer`, a context on a peer GPU.
    pub(crate) fn enable_peer(&self, peer: &Context) -> Result<(), DriverError> {
        let _entered = self.enter()?;
        // SAFETY: both contexts are live, and 0 is the only allowed flag. Access ends when either
        // context is destroyed.
        match unsafe { sys::cuCtxEnablePeerAccess(peer.raw, 0) } {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => (),
            code => check("cuCtxEnablePeerAccess", code)?,
        }
        self.peers.lock().push(peer.number);
        Ok(())
    }

    /// Returns whether kernels and copies of this context access the memory of another one.
    pub(crate) fn reaches(&self, other: &Context) -> bool {
        self.peers.lock().contains(&other.number)
    }

    pub(super) fn raw(&self) -> CUcontext {
        self.raw
    }

    /// Makes the context current on the calling thread permanently. Called on the thread that owns the device.
    pub(crate) fn make_current(&self) -> Result<(), DriverError> {
        // SAFETY: `raw` is a live context.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.raw) })
    }

    /// Makes the context current on the calling thread until the result is dropped.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, DriverError> {
        // SAFETY: `raw` is a live context.
        let code = unsafe { sys::cuCtxPushCurrent_v2(self.raw) };
        check("cuCtxPushCurrent", code)?;
        Ok(Entered {
            _context: PhantomData,
        })
    }

    /// Waits for all work of the context.
    pub(crate) fn synchronize(&self) -> Result<(), DriverError> {
        let _entered = self.enter()?;
        // SAFETY: a context is current.
        check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }

    /// Waits for all work of the context if the calling thread is unwinding: in-flight work of a job that panicked may
    /// use the memory that is about to be freed.
    pub(crate) fn settle_if_panicking(&self) {
        if thread::panicking() {
            // On a failed context no work runs, so the error is ignored.
            let _ = self.synchronize();
        }
    }

    /// Returns the free and total memory of the card.
    pub(crate) fn memory(&self) -> Result<CardMemory, DriverError> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current, and both numbers outlive the call.
        let code = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
        check("cuMemGetInfo", code)?;
        Ok(CardMemory {
            free_bytes: free as u64,
            total_bytes: total as u64,
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: this was the last user of the context. After a fault, the call fails with the same fault, which is
        // already recorded.
        let _ = unsafe { sys::cuCtxDestroy_v2(self.raw) };
    }
}

/// While this guard exists, the context is current on the calling thread. The guard must stay on that thread.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    _context: PhantomData<(&'a Context, *const ())>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // A context that cannot be popped has failed; the next call on it returns the error.
        let _ = pop();
    }
}

fn pop() -> Result<(), DriverError> {
    let mut popped = ptr::null_mut();
    // SAFETY: the calling thread pushed or created a context before, and `popped` outlives the call.
    let code = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
    check("cuCtxPopCurrent", code)
}
