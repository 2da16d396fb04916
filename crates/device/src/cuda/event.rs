//! Events: points in a stream that can be polled, waited for and timed.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult};

use super::library::{DriverError, check};
use super::{Context, Stream};
use crate::DeviceFault;

/// Whether an event records a timestamp, which costs the device a little time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clock {
    Timed,
    Untimed,
}

/// A point in a stream. An event that was never recorded counts as done.
///
/// [`Cuda::event`](super::Cuda::event) creates an event, [`Cuda::record`](super::Cuda::record) records it. An event may
/// be polled and dropped on any thread, even after its device is lost.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    raw: CUevent,
    /// Number of the stream in which the event was last recorded; 0 before the first record.
    stream: AtomicU64,
    /// How many events had been recorded in that stream when this event was last recorded.
    position: AtomicU64,
}

// SAFETY: the driver allows calls on an event from any thread.
unsafe impl Send for Event {}
// SAFETY: as above; concurrent calls are allowed too.
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn create(context: Arc<Context>, clock: Clock) -> Result<Event, DriverError> {
        let entered = context.enter()?;
        let mut raw = ptr::null_mut();
        let flags = match clock {
            Clock::Timed => CUevent_flags::CU_EVENT_DEFAULT,
            Clock::Untimed => CUevent_flags::CU_EVENT_DISABLE_TIMING,
        };
        // SAFETY: a context is current, and `raw` outlives the call.
        check("cuEventCreate", unsafe {
            sys::cuEventCreate(&mut raw, flags as u32)
        })?;
        drop(entered);
        Ok(Event {
            context,
            raw,
            stream: AtomicU64::new(0),
            position: AtomicU64::new(0),
        })
    }

    /// Records the event after the work queued on the stream so far.
    pub(super) fn record(&self, stream: &Stream) -> Result<(), DriverError> {
        // SAFETY: event and stream are live and belong to the same context.
        let code = unsafe { sys::cuEventRecord(self.raw, stream.raw()) };
        check("cuEventRecord", code)?;
        let (stream, position) = stream.next_position();
        self.stream.store(stream, Ordering::Relaxed);
        self.position.store(position, Ordering::Relaxed);
        Ok(())
    }

    /// Returns whether this event comes after `other` in the same stream, and so cannot complete before `other`.
    pub(crate) fn follows(&self, other: &Event) -> bool {
        let stream = self.stream.load(Ordering::Relaxed);
        stream != 0
            && stream == other.stream.load(Ordering::Relaxed)
            && self.position.load(Ordering::Relaxed) > other.position.load(Ordering::Relaxed)
    }

    pub(super) fn raw(&self) -> CUevent {
        self.raw
    }

    /// Returns whether the device has reached the event. Does not block.
    ///
    /// # Errors
    /// The fault of earlier work on the device.
    pub fn is_done(&self) -> Result<bool, DeviceFault> {
        let _entered = self.context.enter()?;
        // SAFETY: the event is live.
        match unsafe { sys::cuEventQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => Ok(check("cuEventQuery", code).map(|()| true)?),
        }
    }

    /// Blocks until the device has reached the event.
    ///
    /// # Errors
    /// The fault of earlier work on the device.
    pub fn wait(&self) -> Result<(), DeviceFault> {
        let _entered = self.context.enter()?;
        // SAFETY: the event is live.
        let code = unsafe { sys::cuEventSynchronize(self.raw) };
        Ok(check("cuEventSynchronize", code)?)
    }

    /// Returns the device time in milliseconds from `start` to this event, accurate to about half a microsecond. Both
    /// events must be done.
    ///
    /// # Errors
    /// A fault if one of the events is not done, was never recorded or is not timed; a fault of earlier work.
    pub fn elapsed_ms(&self, start: &Event) -> Result<f32, DeviceFault> {
        let _entered = self.context.enter()?;
        let mut ms = 0.0;
        // SAFETY: both events are live, and `ms` outlives the call.
        let code = unsafe { sys::cuEventElapsedTime_v2(&mut ms, start.raw, self.raw) };
        check("cuEventElapsedTime", code)?;
        Ok(ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: this was the only owner; the driver keeps what in-flight work needs.
            let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}
