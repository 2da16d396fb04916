//! A buffer in host memory and its image on a GPU.

use super::{Cuda, DeviceMemory, Event, Pinned, Stream};
use crate::DeviceFault;

/// Memory of a GPU and a pinned buffer of the same size, between which bytes go on one stream: see [`Cuda::mirrored`].
#[derive(Debug)]
pub struct Mirrored {
    device: DeviceMemory,
    host: Pinned,
    stream: Stream,
    /// Passed when the bytes sent last are on the device; until then nobody writes the buffer or frees either.
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

    /// Address of the memory on the device.
    pub fn address(&self) -> u64 {
        self.device.address()
    }

    /// The buffer.
    pub fn host(&self) -> &[u8] {
        &self.host
    }

    /// The buffer, to be written; waits until what was sent before is on the device.
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
    /// If there are not so many bytes, or the memory is another device's.
    pub fn send(&mut self, cuda: &Cuda, bytes: usize) -> Result<(), DeviceFault> {
        let to = cuda.own(&self.device).address_of(0, bytes);
        // SAFETY: the memory has room, as was seen. Until the event behind the copy has passed, this value keeps both, and
        // gives nobody the buffer to write; the copies and kernels of a stream follow one another.
        unsafe { cuda.copy_to_device_async(&self.host[..bytes], to, &self.stream) }?;
        let recorded = cuda.record(&self.sent, &self.stream);
        if recorded.is_err() {
            // Nothing stands for the copy now: it is waited for here, whatever that says.
            let _ = cuda.synchronize(&self.stream);
        }
        recorded
    }

    /// Fills the first bytes of the buffer from the device, after what the stream was given before. Blocks until they are
    /// there.
    ///
    /// # Errors
    /// A fault of the device.
    ///
    /// # Panics
    /// If there are not so many bytes, or the memory is another device's.
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
