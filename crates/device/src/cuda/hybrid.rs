//! Memory that lies partly on a device and partly in host memory, at one range of addresses.
//!
//! The driver maps chunks of physical memory to the range. The chunks on the device are interleaved with those of the
//! host: every part of the range has about the same share on the device, however its bytes are used. After Lutz et al.
//! (SIGMOD 2020, section 5.2), whose hybrid table has one border instead.

use std::sync::Arc;

use super::chunks::{Chunks, Home};
use super::{Arena, Context, Cuda, DeviceMemory, DeviceView};
use crate::error::JobError;

/// Memory of a device and of its host at one range of addresses.
///
/// Kernels and copies of the device use all of it as device memory; what lies in host memory they read and write over
/// the bus, also by atomic operations. Other devices cannot use it. The bytes on the device come from what the budget
/// leaves of the card. The initial content is undefined. The memory is freed when this value and all views of it are
/// dropped, which waits for all work of the device.
#[derive(Debug, Clone)]
pub struct HybridMemory {
    memory: Arc<DeviceMemory>,
    chunks: Arc<Chunks>,
}

impl HybridMemory {
    /// Allocates the memory, as [`Cuda::hybrid_memory`] says.
    pub(super) fn create(
        (context, arena): (&Arc<Context>, &Arc<Arena>),
        bytes: u64,
        device_bytes: u64,
    ) -> Result<HybridMemory, JobError> {
        let chunks = Chunks::reserve(vec![Arc::clone(context)], bytes, true)?;
        chunks.fill(homes(chunks.count(), chunks.count_of(device_bytes)))?;
        let chunks = Arc::new(chunks);
        let memory = DeviceMemory::of_chunks(arena, Arc::clone(&chunks), bytes);
        Ok(HybridMemory {
            memory: Arc::new(memory),
            chunks,
        })
    }

    /// Returns a view of all bytes.
    pub fn all(&self) -> DeviceView<u8> {
        DeviceView::of(&self.memory, 0..self.memory.bytes() as usize)
    }

    /// Returns the bytes of the chunks on the device.
    pub fn device_bytes(&self) -> u64 {
        self.chunks.on_gpus() as u64 * self.chunks.chunk_bytes()
    }

    /// Returns the fraction of the chunks that are on the device.
    pub fn device_share(&self) -> f64 {
        self.chunks.on_gpus() as f64 / self.chunks.count() as f64
    }

    /// Moves chunks until at least `bytes` are on the device, and fewer than a chunk more. Their content and the
    /// addresses stay. Blocks: waits for all work of the device, then moves a chunk after the other.
    ///
    /// # Errors
    /// As for [`Cuda::hybrid_memory`]. Chunks that have moved stay where they are.
    ///
    /// # Panics
    /// If the memory belongs to another device.
    pub fn set_device_bytes(&self, cuda: &Cuda, bytes: u64) -> Result<(), JobError> {
        cuda.own(&self.memory);
        self.chunks.synchronize()?;
        let wanted = self.chunks.count_of(bytes);
        for (index, home) in homes(self.chunks.count(), wanted).enumerate() {
            self.chunks.move_chunk(index, home)?;
        }
        Ok(())
    }
}

/// Returns where each of `count` chunks is if `on_device` are on the device. With one more, one chunk differs.
fn homes(count: usize, on_device: usize) -> impl Iterator<Item = Home> {
    // Numbers with reversed bits follow each other far apart: those below any bound are spread evenly.
    let bits = count.next_power_of_two().trailing_zeros();
    let reversed = move |index: usize| match bits {
        0 => 0,
        bits => index.reverse_bits() >> (usize::BITS - bits),
    };
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|index| reversed(*index));
    let mut homes = vec![Home::Host; count];
    for index in &order[..on_device.min(count)] {
        homes[*index] = Home::Gpu(0);
    }
    homes.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_device(count: usize, wanted: usize) -> Vec<bool> {
        homes(count, wanted).map(|it| it != Home::Host).collect()
    }

    #[test]
    fn every_part_has_about_the_same_share_on_the_device() {
        for count in [1, 2, 3, 7, 64, 100, 1000] {
            for wanted in 0..=count {
                let places = on_device(count, wanted);
                assert_eq!(places.iter().filter(|it| **it).count(), wanted);
                for part in places.chunks(count.div_ceil(4)) {
                    let found = part.iter().filter(|it| **it).count();
                    let even = wanted * part.len() / count;
                    assert!(found.abs_diff(even) <= 2, "{found} of {wanted} of {count}");
                }
            }
        }
    }

    #[test]
    fn a_larger_share_moves_no_chunk_to_the_host() {
        for wanted in 0..37 {
            let (fewer, more) = (on_device(37, wanted), on_device(37, wanted + 1));
            let moved = fewer.iter().zip(&more).filter(|(few, more)| few != more);
            assert_eq!(moved.count(), 1);
            assert!(fewer.iter().zip(&more).all(|(few, more)| *more || !few));
        }
    }
}
