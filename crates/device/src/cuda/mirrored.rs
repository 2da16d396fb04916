//! A buffer on a GPU paired with a pinned host buffer.

use super::{Cuda, DeviceMemory, Event, Pinned, Stream};
use crate::DeviceFault;

/// GPU memory and a pinned buffer of the same size, with copies between the two on one stream; see [`Cuda::mirrored`].
#[derive(Debug)]
pub struct Mirrored {
    device: DeviceMemory,
    host: Pinned,
    stream: Stream,
    /// Completes when the last sent bytes are on the device. Until then, the pinned buffer must not be written, and
    /// neither the buffer nor the device memory may be freed.
    sent: Event,
}

impl Mirrored {
    pub(super) fn new(device: DeviceMemory, host: Pinned, stream: Stream, sent: Event) -> Self {
        Mirrored {
            device,
            host,
            stream,
            sent,
        }
    }

    /// Returns the device address of the GPU memory.
    pub fn address(&self) -> u64 {
        self.device.address()
    }

    /// Returns the pinned buffer.
    pub fn host(&self) -> &[u8] {
        &self.host
    }

    /// Returns the pinned buffer for writing; first blocks until the last [`send`](Mirrored::send) is done.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn host_mut(&mut self) -> Result<&mut [u8], DeviceFault> {
        self.sent.wait()?;
        Ok(&mut self.host)
    }

    /// Queues a copy of the buffer's first `bytes` bytes to the device, and returns at once.
    ///
    /// # Errors
    /// A fault of the device.
    ///
    /// # Panics
    /// If the buffer is shorter than `bytes`, or the memory belongs to another device.
    pub fn send(&mut self, cuda: &Cuda, bytes: usize) -> Result<(), DeviceFault> {
        let to = cuda.own(&self.device).address_of(0, bytes);
        // SAFETY: the memory has room, as checked above. This value keeps both memories, and does not lend the buffer
        // for writing, until the event that follows the copy has completed. The event completes after the copy, because
        // the work of a stream runs in order.
        unsafe { cuda.copy_to_device_async(&self.host[..bytes], to, &self.stream) }?;
        let recorded = cuda.record(&self.sent, &self.stream);
        if recorded.is_err() {
            // Recording the event failed, so wait for the stream instead. The result of the wait does not matter: the
            // failed recording makes the device lost.
            let _ = cuda.synchronize(&self.stream);
        }
        recorded
    }

    /// Copies the first `bytes` bytes of the device memory to the buffer, after the earlier work of the stream. Blocks
    /// until the copy is done.
    ///
    /// # Errors
    /// A fault of the device.
    ///
    /// # Panics
    /// If the buffer is shorter than `bytes`, or the memory belongs to another device.
    pub fn fetch(&mut self, cuda: &Cuda, bytes: usize) -> Result<(), DeviceFault> {
        cuda.read(&self.device, 0, &mut self.host[..bytes], &self.stream)
    }
}

impl Drop for Mirrored {
    fn drop(&mut self) {
        // On a failed device no copy runs, so the error is ignored.
        let _ = self.sent.wait();
    }
}
