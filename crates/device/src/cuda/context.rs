//! The driver's context of one device, which holds everything else of the device.

use std::marker::PhantomData;
use std::ptr;
use std::thread;

use cudarc::driver::sys::{self, CUcontext, CUresult};

use super::gpu;
use super::library::{DriverError, check};

/// A context on one GPU. Everything that belongs to it holds it by `Arc`, so it is destroyed last.
///
/// It is not the GPU's primary context, so the loss of a device harms no other user of CUDA in the process.
#[derive(Debug)]
pub(crate) struct Context {
    raw: CUcontext,
    /// The node that pinned memory is taken from; `None` leaves it to the driver.
    host_node: Option<u32>,
}

// SAFETY: the driver allows the calls on a context from any thread; `raw` is never changed.
unsafe impl Send for Context {}
// SAFETY: as above, also at the same time.
unsafe impl Sync for Context {}

/// Bytes of a card's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CardMemory {
    pub(crate) free_bytes: u64,
    pub(crate) total_bytes: u64,
}

impl Context {
    /// Makes a context on a GPU that [`gpu::gpus`] listed. Blocks for some hundred milliseconds.
    pub(crate) fn create(ordinal: u32, host_node: Option<u32>) -> Result<Context, DriverError> {
        let device = gpu::handle(ordinal)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the driver is started, as a handle of a GPU could be had; no parameters mean a plain context, and 0
        // lets the driver choose how to wait. `raw` lives through the call.
        let code = unsafe { sys::cuCtxCreate_v4(&mut raw, ptr::null_mut(), 0, device) };
        check("cuCtxCreate", code)?;
        let context = Context { raw, host_node };
        pop()?;
        Ok(context)
    }

    pub(super) fn host_node(&self) -> Option<u32> {
        self.host_node
    }

    /// Lets kernels and copies of this context use the memory of `peer`, a context on a peer GPU.
    pub(crate) fn enable_peer(&self, peer: &Context) -> Result<(), DriverError> {
        let _entered = self.enter()?;
        // SAFETY: both contexts are live, and 0 is the only flag that is allowed. Access ends with either context.
        match unsafe { sys::cuCtxEnablePeerAccess(peer.raw, 0) } {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => check("cuCtxEnablePeerAccess", code),
        }
    }

    pub(super) fn raw(&self) -> CUcontext {
        self.raw
    }

    /// Makes the context the calling thread's for good: for the thread that owns the device.
    pub(crate) fn make_current(&self) -> Result<(), DriverError> {
        // SAFETY: `raw` is a live context.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.raw) })
    }

    /// Makes the context the calling thread's until the result is dropped.
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

    /// Waits for all work of the context if the calling thread unwinds: work in flight of a job that panics may use the
    /// memory that is about to be freed.
    pub(crate) fn settle_if_panicking(&self) {
        if thread::panicking() {
            // A context that has failed does nothing more.
            let _ = self.synchronize();
        }
    }

    /// Returns the free and the total memory of the card.
    pub(crate) fn memory(&self) -> Result<CardMemory, DriverError> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current, and both numbers live through the call.
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
        // SAFETY: this was the last user of the context. After a fault the driver returns that fault again, which is
        // known already.
        let _ = unsafe { sys::cuCtxDestroy_v2(self.raw) };
    }
}

/// While it lives, the context is the calling thread's. It stays on that thread.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    _context: PhantomData<(&'a Context, *const ())>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // A context that cannot be popped has failed; the next call on it says so.
        let _ = pop();
    }
}

fn pop() -> Result<(), DriverError> {
    let mut popped = ptr::null_mut();
    // SAFETY: the calling thread pushed or created a context before, and `popped` lives through the call.
    let code = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
    check("cuCtxPopCurrent", code)
}
