//! Streams: work on a device in order.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUstream, CUstream_flags};

use super::Context;
use super::library::{DriverError, check};

/// The two streams of a device. Work of one runs in order; work of different ones runs side by side unless an event
/// orders it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Searches.
    Compute,
    /// Data on its way to the device.
    Load,
}

/// The driver's handle of a stream.
#[derive(Debug)]
pub(super) struct OwnedStream {
    context: Arc<Context>,
    raw: CUstream,
}

// SAFETY: the driver allows the calls on a stream from any thread.
unsafe impl Send for OwnedStream {}

impl OwnedStream {
    /// A stream that does not wait for the driver's default stream.
    pub(super) fn create(context: Arc<Context>) -> Result<OwnedStream, DriverError> {
        let entered = context.enter()?;
        let mut raw = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a context is current, and `raw` lives through the call.
        check("cuStreamCreate", unsafe {
            sys::cuStreamCreate(&mut raw, flags)
        })?;
        drop(entered);
        Ok(OwnedStream { context, raw })
    }

    pub(super) fn raw(&self) -> CUstream {
        self.raw
    }

    /// Waits until all that was queued is done.
    pub(super) fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: the stream is live.
        let code = unsafe { sys::cuStreamSynchronize(self.raw) };
        check("cuStreamSynchronize", code)
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: this was the only owner; the driver finishes what is queued.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}
