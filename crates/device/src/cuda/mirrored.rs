//! A pinned buffer and its counterpart on a GPU.

use super::{Cuda, DeviceMemory, Event, Pinned, Stream};
use crate::DeviceFault;

/// Memory of a GPU and a pinned buffer of the same size, with copies between the two on one stream: see
/// [`Cuda::mirrored`].
#[derive(Debug)]
pub struct Mirrored {
    device: DeviceMemory,
    host: Pinned,
    stream: Stream,
    /// Done when the last sent bytes are on the device. Until then the buffer is not written, and neither is freed.
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

    /// Returns the address of the memory on the device.
    pub fn address(&self) -> u64 {
        self.device.address()
    }

    /// Returns the buffer.
    pub fn host(&self) -> &[u8] {
        &self.host
    }

    /// Returns the buffer for writing, after the bytes of the last [`send`](Mirrored::send) are on the device.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn host_mut(&mut self) -> Result<&mut [u8], DeviceFault> {
        self.sent.wait()?;
        Ok(&mut self.host)
    }

    /// Queues a copy of the first bytes of the buffer to the device, and returns at once.
    ///
    /// # Errors
    /// A fault of the device.
    ///
    /// # Panics
    /// If the buffer is shorter, or the memory is another device's.
    pub fn send(&mut self, cuda: &Cuda, bytes: usize) -> Result<(), DeviceFault> {
        let to = cuda.own(&self.device).address_of(0, bytes);
        // SAFETY: the memory has room, as was checked. Until the event that follows the copy is done, this value keeps
        // both and lends no one the buffer for writing; the copies and kernels of a stream run in order.
        unsafe { cuda.copy_to_device_async(&self.host[..bytes], to, &self.stream) }?;
        let recorded = cuda.record(&self.sent, &self.stream);
        if recorded.is_err() {
            // No event follows the copy, so this waits for the stream, whatever that returns.
            let _ = cuda.synchronize(&self.stream);
        }
        recorded
    }

    /// Copies the first bytes of the device's memory to the buffer, after the earlier work of the stream. Blocks until
    /// the copy is done.
    ///
    /// # Errors
    /// A fault of the device.
    ///
    /// # Panics
    /// If the buffer is shorter, or the memory is another device's.
    pub fn fetch(&mut self, cuda: &Cuda, bytes: usize) -> Result<(), DeviceFault> {
        cuda.read(&self.device, 0, &mut self.host[..bytes], &self.stream)
    }
}

impl Drop for Mirrored {
    fn drop(&mut self) {
        // A device that has failed copies no more.
        let _ = self.sent.wait();
    }
}
