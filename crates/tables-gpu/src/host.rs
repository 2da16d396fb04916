//! Pinned memory of the host, for columns that the memory of a GPU has no room for. Kernels read it over the bus.

use std::sync::Arc;

use forebay_device::Device;
use forebay_device::cuda::{Pinned, PinnedPool};
use forebay_memory::Share;
use parking_lot::Mutex;

use crate::reason::Reason;

/// Minimum bytes of a segment.
const SEGMENT_BYTES: u64 = 1 << 30;

/// Memory of the host for packed columns. It grows by segments, which are kept until the server stops.
#[derive(Debug)]
pub(crate) struct Host {
    device: Arc<Device>,
    /// The bytes of all segments, in the account of the process's memory.
    share: Share,
    segments: Mutex<Vec<Arc<PinnedPool>>>,
}

impl Host {
    pub(crate) fn new(device: Arc<Device>, share: Share) -> Host {
        Host {
            device,
            share,
            segments: Mutex::default(),
        }
    }

    /// Copies words to the memory. Blocks while more memory is pinned.
    ///
    /// # Errors
    /// If there is no room.
    pub(crate) fn store(&self, words: &[u32]) -> Result<Pinned, Reason> {
        let bytes = 4 * words.len();
        let mut memory = self.take(bytes)?;
        for (bytes, word) in memory.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        Ok(memory)
    }

    /// Returns memory of this many bytes. Blocks while more memory is pinned.
    ///
    /// # Errors
    /// If there is no room.
    pub(crate) fn take(&self, bytes: usize) -> Result<Pinned, Reason> {
        let mut segments = self.segments.lock();
        // The last segment has the most room.
        let taken = segments.iter().rev().find_map(|it| it.try_take(bytes));
        if let Some(taken) = taken {
            return Ok(taken);
        }
        let no_room = || Reason::no_room("there is no room in the pinned memory of the host");
        let segment_bytes = SEGMENT_BYTES.max(bytes.next_multiple_of(4096) as u64);
        if !self.share.grow_if_room(segment_bytes as usize) {
            return Err(no_room());
        }
        let Some(segment) = self.device.pinned_pool(segment_bytes) else {
            self.share.shrink(segment_bytes as usize);
            return Err(no_room());
        };
        let taken = segment.try_take(bytes);
        segments.push(segment);
        taken.ok_or_else(no_room)
    }
}
