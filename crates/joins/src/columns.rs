//! The sides of a join in pinned host memory.

use std::ops::Range;
use std::sync::Arc;

use forebay_device::cuda::{Cuda, DeviceView, HostRegistration, RegisteredPart, Stream, Transfer};
use forebay_device::{AlignedBytes, JobError};
use forebay_hash_index::{Column, DeviceRows, HostRows, Width};
use forebay_movement::ring::Kept;
use forebay_movement::{Feed, Slots, Source, Unread};

/// A side: keys and payloads, as many, in pinned host memory. As the source of a ring, a chunk is some keys, followed
/// by as many payloads.
#[derive(Debug, Clone)]
pub struct PinnedColumns {
    keys: Arc<HostRegistration<AlignedBytes>>,
    payloads: Arc<HostRegistration<AlignedBytes>>,
    /// Byte range of each column in its memory.
    range: Range<usize>,
}

impl PinnedColumns {
    /// Returns the side whose columns are the first `bytes` bytes of each memory.
    ///
    /// # Panics
    /// If a memory is smaller.
    pub fn new(
        keys: Arc<HostRegistration<AlignedBytes>>,
        payloads: Arc<HostRegistration<AlignedBytes>>,
        bytes: usize,
    ) -> PinnedColumns {
        let least = keys.len().min(payloads.len());
        assert!(bytes <= least, "{bytes} bytes of {least}");
        PinnedColumns {
            keys,
            payloads,
            range: 0..bytes,
        }
    }

    /// Returns the rows, which kernels read over the bus.
    pub fn rows(&self) -> DeviceRows {
        let column = |memory: &Arc<HostRegistration<AlignedBytes>>| {
            Column::Pinned(Arc::clone(memory), self.range.clone())
        };
        DeviceRows {
            keys: column(&self.keys),
            payloads: column(&self.payloads),
        }
    }

    /// Copies the rows to memory of the device. Blocks.
    ///
    /// # Errors
    /// If device memory is too small, or the device fails.
    pub fn copy(&self, cuda: &Cuda) -> Result<DeviceRows, JobError> {
        let column = |memory: &Arc<HostRegistration<AlignedBytes>>| -> Result<Column, JobError> {
            let to: DeviceView<u8> = cuda.buffer::<u8>(self.range.len())?.all();
            let from = RegisteredPart::new(memory, self.range.clone());
            Transfer::begin(cuda, from, to.clone(), cuda.uploads())?.finish()?;
            Ok(Column::Device(to))
        };
        Ok(DeviceRows {
            keys: column(&self.keys)?,
            payloads: column(&self.payloads)?,
        })
    }

    /// Returns the rows as the CPU reads them.
    pub fn host_rows(&self) -> HostRows<'_> {
        HostRows {
            keys: &self.keys[self.range.clone()],
            payloads: &self.payloads[self.range.clone()],
        }
    }

    /// Returns keys and payloads of some rows, as the sources of copies.
    ///
    /// # Panics
    /// If the memory does not have these rows.
    pub(crate) fn part(
        &self,
        width: Width,
        rows: &Range<u64>,
    ) -> [RegisteredPart<AlignedBytes>; 2] {
        let at = |row: u64| self.range.start + (row * width.bytes()) as usize;
        let (begin, end) = (at(rows.start), at(rows.end));
        [&self.keys, &self.payloads].map(|column| RegisteredPart::new(column, begin..end))
    }

    /// Returns the part of the side that a ring with slots of `slot_bytes` bytes moves in these chunks. Chunks beyond
    /// the last one are ignored.
    pub(crate) fn chunks(&self, slot_bytes: usize, chunks: Range<usize>) -> PinnedColumns {
        let at = |chunk: usize| (self.range.start + chunk * slot_bytes / 2).min(self.range.end);
        PinnedColumns {
            range: at(chunks.start)..at(chunks.end),
            ..self.clone()
        }
    }

    /// Returns the rows of a chunk in device memory.
    pub fn rows_of_chunk(chunk: &DeviceView<u8>) -> DeviceRows {
        let half = chunk.len() / 2;
        DeviceRows {
            keys: Column::Device(chunk.view(0..half)),
            payloads: Column::Device(chunk.view(half..2 * half)),
        }
    }
}

impl Source for PinnedColumns {
    fn name(&self) -> String {
        format!("two columns of {} bytes of pinned memory", self.range.len())
    }

    fn bytes(&self) -> u64 {
        2 * self.range.len() as u64
    }

    fn threads(&self) -> usize {
        1
    }

    fn fill(&self, slots: &Slots<'_>) -> Result<(), Unread> {
        while let Some(slot) = slots.next() {
            // Slots are whole pages, and so half a chunk is whole values.
            let half = slot.chunk().bytes / 2;
            let begin = self.range.start + slot.chunk().offset as usize / 2;
            let keys = RegisteredPart::new(&self.keys, begin..begin + half);
            let payloads = RegisteredPart::new(&self.payloads, begin..begin + half);
            let copies = move |cuda: &Cuda,
                               stream: &Stream,
                               to: &DeviceView<u8>|
                  -> Result<Kept, JobError> {
                let keys = Transfer::begin(cuda, keys, to.view(0..half), stream)?;
                let payloads = Transfer::begin(cuda, payloads, to.view(half..2 * half), stream)?;
                Ok(Box::new((keys, payloads)))
            };
            slots.filled(slot, Feed::Enqueue(Box::new(copies)));
        }
        Ok(())
    }
}
