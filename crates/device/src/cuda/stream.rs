//! Streams: ordered queues of work on a device.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{self, CUstream, CUstream_flags};

use super::library::{DriverError, check};
use super::{Context, Event};

/// Priority among streams whose work can run at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// For work that can wait, such as batches.
    Low,
    /// Between low and high.
    Normal,
    /// For work that a client waits for.
    High,
}

/// An ordered queue of work on one device; see [`Cuda::stream`](super::Cuda::stream).
///
/// Work on one stream runs in order; work on different streams runs concurrently unless an event orders it
/// ([`Cuda::wait`](super::Cuda::wait)). Clones share the stream, which is destroyed with the last clone; work in flight
/// still completes.
#[derive(Debug, Clone)]
pub struct Stream {
    handle: Arc<Handle>,
}

/// Owned driver handle of a stream.
#[derive(Debug)]
struct Handle {
    context: Arc<Context>,
    raw: CUstream,
    /// Identifies the stream. Unlike the driver's handle, the number is never reused.
    number: u64,
    /// Number of event records in the stream so far.
    records: AtomicU64,
}

/// Number of streams that the process has created.
static STREAMS: AtomicU64 = AtomicU64::new(0);

// SAFETY: the driver allows calls on a stream from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above; concurrent calls are allowed too.
unsafe impl Sync for Handle {}

impl Stream {
    /// Creates a stream that does not synchronise with the driver's default stream.
    pub(super) fn create(context: Arc<Context>, priority: Priority) -> Result<Stream, DriverError> {
        let entered = context.enter()?;
        let mut raw = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let number = driver_priority(priority)?;
        // SAFETY: a context is current, and `raw` outlives the call; the driver clamps the priority to its range.
        check("cuStreamCreateWithPriority", unsafe {
            sys::cuStreamCreateWithPriority(&mut raw, flags, number)
        })?;
        drop(entered);
        let handle = Arc::new(Handle {
            context,
            raw,
            number: STREAMS.fetch_add(1, Ordering::Relaxed) + 1,
            records: AtomicU64::new(0),
        });
        Ok(Stream { handle })
    }

    /// Counts an event record. Returns the stream's number, which starts at 1, and the record's position in the stream.
    pub(super) fn next_position(&self) -> (u64, u64) {
        let position = self.handle.records.fetch_add(1, Ordering::Relaxed);
        (self.handle.number, position)
    }

    pub(super) fn raw(&self) -> CUstream {
        self.handle.raw
    }

    /// Returns whether the stream belongs to this context.
    pub(super) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.handle.context, context)
    }

    /// Blocks until all queued work is done.
    pub(super) fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: the stream is live.
        let code = unsafe { sys::cuStreamSynchronize(self.raw()) };
        check("cuStreamSynchronize", code)
    }

    /// Makes work that is queued from now on wait for an event. The device waits, not the caller.
    pub(super) fn wait(&self, event: &Event) -> Result<(), DriverError> {
        // SAFETY: stream and event are live; 0 is the only allowed flag.
        let code = unsafe { sys::cuStreamWaitEvent(self.raw(), event.raw(), 0) };
        check("cuStreamWaitEvent", code)
    }
}

/// Returns the driver's number for a priority in the current context; lower numbers are more urgent.
fn driver_priority(priority: Priority) -> Result<i32, DriverError> {
    let (mut least, mut greatest) = (0, 0);
    // SAFETY: a context is current, and both numbers outlive the call.
    let code = unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) };
    check("cuCtxGetStreamPriorityRange", code)?;
    Ok(match priority {
        Priority::Low => least,
        Priority::Normal => least.midpoint(greatest),
        Priority::High => greatest,
    })
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: this was the last owner; the driver finishes queued work.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}
