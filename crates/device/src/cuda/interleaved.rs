//! Memory of several GPUs at one range of addresses.

use std::sync::Arc;

use super::chunks::{Chunks, Home};
use super::{DeviceMemory, DeviceView};
use crate::Device;
use crate::error::JobError;

/// Memory of several GPUs at one range of addresses: the first chunk is on the first GPU, the next one on the next.
///
/// Kernels and copies of each of these GPUs use all of it as device memory. They read and write what lies on another
/// GPU over NVLink or PCIe, also by atomic operations of the system's scope if all are
/// [`atomic_peers`](super::Gpu::atomic_peers). The memory is not of the devices' budgets
/// and comes from what these leave of the cards. The initial content is undefined. The memory is freed when this value
/// and all views of it are dropped, which waits for all work of the devices.
#[derive(Debug, Clone)]
pub struct InterleavedMemory {
    /// The same memory for each GPU.
    memories: Vec<Arc<DeviceMemory>>,
    chunks: Arc<Chunks>,
}

impl InterleavedMemory {
    /// Allocates at least `bytes`, in chunks of 2 MiB or more.
    ///
    /// # Errors
    /// [`JobFailure::NoRoomOnCard`](crate::JobFailure::NoRoomOnCard) if a card has too little memory beside its
    /// budget; a fault of a device.
    ///
    /// # Panics
    /// If there is no device, or one is not a GPU that [reaches](Device::reaches) all others.
    pub fn new(devices: &[Arc<Device>], bytes: u64) -> Result<InterleavedMemory, JobError> {
        for device in devices {
            let mut others = devices.iter().filter(|it| it.id() != device.id());
            assert!(others.all(|it| device.reaches(it)), "{device:?}");
        }
        let gpus = devices.iter().map(|it| it.gpu_parts().expect("a GPU"));
        let (contexts, arenas): (Vec<_>, Vec<_>) = gpus.unzip();
        let chunks = Chunks::reserve(contexts.into_iter().map(Arc::clone).collect(), bytes, false)?;
        chunks.fill((0..devices.len()).cycle().map(Home::Gpu))?;
        let chunks = Arc::new(chunks);
        let of_gpu = |arena| Arc::new(DeviceMemory::of_chunks(arena, Arc::clone(&chunks), bytes));
        Ok(InterleavedMemory {
            memories: arenas.into_iter().map(of_gpu).collect(),
            chunks,
        })
    }

    /// Returns the number of GPUs.
    pub fn gpus(&self) -> usize {
        self.memories.len()
    }

    /// Returns a view of all bytes for kernels and copies of a GPU.
    ///
    /// # Panics
    /// If there is no GPU with this index.
    pub fn all(&self, gpu: usize) -> DeviceView<u8> {
        let memory = &self.memories[gpu];
        DeviceView::of(memory, 0..memory.bytes() as usize)
    }

    /// Returns the bytes of a chunk; the last one may have fewer.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunks.chunk_bytes()
    }
}
