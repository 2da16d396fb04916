//! The sides of a join in pinned host memory.

use std::ops::Range;
use std::sync::Arc;

use forebay_device::cuda::{Cuda, DeviceView, HostRegistration, RegisteredPart, Stream, Transfer};
use forebay_device::{AlignedBytes, JobError, PAGE_BYTES};
use forebay_hash_index::{Column, DeviceRows, HostRows, Width};
use forebay_movement::ring::Kept;
use forebay_movement::{Feed, Slots, Source, Unread};

/// A side: keys and payloads, as many, in pinned host memory. As the source of a ring, a chunk is some keys, followed
/// by as many payloads; payloads come first if they are wider. The slots of the ring must hold whole rows.
#[derive(Debug, Clone)]
pub struct PinnedColumns {
    keys: Arc<HostRegistration<AlignedBytes>>,
    payloads: Arc<HostRegistration<AlignedBytes>>,
    width: Width,
    /// The rows, as numbered in the memory.
    rows: Range<u64>,
}

/// Returns the bytes of a ring's slot that holds whole rows in whole pages: at most `slot_bytes`, or those of the
/// smallest such slot.
pub(crate) fn slot_of_rows(width: Width, slot_bytes: usize) -> usize {
    // A row has 8 or 16 bytes, or three times a power of two.
    let unit = match width.row_bytes() % 3 {
        0 => 3 * PAGE_BYTES,
        _ => PAGE_BYTES,
    };
    (slot_bytes / unit).max(1) * unit
}

/// Returns where the keys and the payloads of a chunk are in it.
fn column_ranges(width: Width, chunk_bytes: usize) -> [Range<usize>; 2] {
    let rows = chunk_bytes as u64 / width.row_bytes();
    let [keys, payloads] =
        [width.key_bytes(), width.payload_bytes()].map(|it| (rows * it) as usize);
    // The wider column is first, so that both are aligned.
    match keys < payloads {
        true => [payloads..payloads + keys, 0..payloads],
        false => [0..keys, keys..keys + payloads],
    }
}

impl PinnedColumns {
    /// Returns the side whose columns are the first values of each memory, of `rows` rows.
    ///
    /// # Panics
    /// If a memory is smaller.
    pub fn new(
        keys: Arc<HostRegistration<AlignedBytes>>,
        payloads: Arc<HostRegistration<AlignedBytes>>,
        width: Width,
        rows: u64,
    ) -> PinnedColumns {
        let room = (keys.len() as u64 / width.key_bytes())
            .min(payloads.len() as u64 / width.payload_bytes());
        assert!(rows <= room, "{rows} rows of {room}");
        PinnedColumns {
            keys,
            payloads,
            width,
            rows: 0..rows,
        }
    }

    /// Returns the rows, which kernels read over the bus.
    pub fn rows(&self) -> DeviceRows {
        let [keys, payloads] = self.bytes_of(&self.rows);
        DeviceRows {
            keys: Column::Pinned(Arc::clone(&self.keys), keys),
            payloads: Column::Pinned(Arc::clone(&self.payloads), payloads),
        }
    }

    /// Returns the side of the first rows.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn first(&self, rows: u64) -> PinnedColumns {
        assert!(rows <= self.count(), "{rows} rows of {}", self.count());
        PinnedColumns {
            rows: self.rows.start..self.rows.start + rows,
            ..self.clone()
        }
    }

    /// Returns the bytes of the keys and of the payloads of some rows of the memory.
    fn bytes_of(&self, rows: &Range<u64>) -> [Range<usize>; 2] {
        [self.width.key_bytes(), self.width.payload_bytes()]
            .map(|bytes| (rows.start * bytes) as usize..(rows.end * bytes) as usize)
    }

    fn count(&self) -> u64 {
        self.rows.end - self.rows.start
    }

    /// Copies the rows to memory of the device. Blocks.
    ///
    /// # Errors
    /// If device memory is too small, or the device fails.
    pub fn copy(&self, cuda: &Cuda) -> Result<DeviceRows, JobError> {
        let column = |from: RegisteredPart<AlignedBytes>| -> Result<Column, JobError> {
            let to: DeviceView<u8> = cuda.buffer::<u8>(from.len())?.all();
            Transfer::begin(cuda, from, to.clone(), cuda.uploads())?.finish()?;
            Ok(Column::Device(to))
        };
        let [keys, payloads] = self.part(&(0..self.count()));
        Ok(DeviceRows {
            keys: column(keys)?,
            payloads: column(payloads)?,
        })
    }

    /// Returns the rows as the CPU reads them.
    pub fn host_rows(&self) -> HostRows<'_> {
        let [keys, payloads] = self.bytes_of(&self.rows);
        HostRows {
            keys: &self.keys[keys],
            payloads: &self.payloads[payloads],
        }
    }

    /// Returns keys and payloads of some rows, as the sources of copies.
    ///
    /// # Panics
    /// If the memory does not have these rows.
    pub(crate) fn part(&self, rows: &Range<u64>) -> [RegisteredPart<AlignedBytes>; 2] {
        let first = self.rows.start;
        let [keys, payloads] = self.bytes_of(&(first + rows.start..first + rows.end));
        [
            RegisteredPart::new(&self.keys, keys),
            RegisteredPart::new(&self.payloads, payloads),
        ]
    }

    /// Returns the width of the rows.
    pub(crate) fn width(&self) -> Width {
        self.width
    }

    /// Returns the part of the side that a ring with slots of `slot_bytes` bytes moves in these chunks. Chunks beyond
    /// the last one are ignored.
    pub(crate) fn chunks(&self, slot_bytes: usize, chunks: Range<usize>) -> PinnedColumns {
        let of_chunk = slot_bytes as u64 / self.width.row_bytes();
        let at = |chunk: usize| (self.rows.start + chunk as u64 * of_chunk).min(self.rows.end);
        PinnedColumns {
            rows: at(chunks.start)..at(chunks.end),
            ..self.clone()
        }
    }

    /// Returns the rows of a chunk in device memory.
    pub fn rows_of_chunk(width: Width, chunk: &DeviceView<u8>) -> DeviceRows {
        let [keys, payloads] = column_ranges(width, chunk.len());
        DeviceRows {
            keys: Column::Device(chunk.view(keys)),
            payloads: Column::Device(chunk.view(payloads)),
        }
    }
}

impl Source for PinnedColumns {
    fn name(&self) -> String {
        format!("two columns of {} rows in pinned memory", self.count())
    }

    fn bytes(&self) -> u64 {
        self.count() * self.width.row_bytes()
    }

    fn threads(&self) -> usize {
        1
    }

    fn fill(&self, slots: &Slots<'_>) -> Result<(), Unread> {
        while let Some(slot) = slots.next() {
            let (chunk, row_bytes) = (slot.chunk(), self.width.row_bytes());
            let bytes = chunk.offset..chunk.offset + chunk.bytes as u64;
            let is_whole =
                bytes.start.is_multiple_of(row_bytes) && bytes.end.is_multiple_of(row_bytes);
            assert!(is_whole, "{bytes:?} of rows of {row_bytes} bytes");
            let [keys, payloads] = self.part(&(bytes.start / row_bytes..bytes.end / row_bytes));
            let [to_keys, to_payloads] = column_ranges(self.width, chunk.bytes);
            let copies = move |cuda: &Cuda,
                               stream: &Stream,
                               to: &DeviceView<u8>|
                  -> Result<Kept, JobError> {
                let keys = Transfer::begin(cuda, keys, to.view(to_keys), stream)?;
                let payloads = Transfer::begin(cuda, payloads, to.view(to_payloads), stream)?;
                Ok(Box::new((keys, payloads)))
            };
            slots.filled(slot, Feed::Enqueue(Box::new(copies)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_whole_rows_and_columns_of_chunks_are_aligned() {
        for width in Width::ALL {
            for slot_bytes in [4096, 64 << 10, 16 << 20] {
                let slot = slot_of_rows(width, slot_bytes);
                assert!(slot <= slot_bytes.max(3 * PAGE_BYTES), "{width:?}: {slot}");
                assert!(slot + 3 * PAGE_BYTES > slot_bytes, "{width:?}: {slot}");
                assert!(slot.is_multiple_of(PAGE_BYTES));
                assert!((slot as u64).is_multiple_of(width.row_bytes()));
            }
            for rows in [0, 1, 3, 1000] {
                let chunk = (rows * width.row_bytes()) as usize;
                let [keys, payloads] = column_ranges(width, chunk);
                assert_eq!(keys.len() as u64, rows * width.key_bytes());
                assert_eq!(payloads.len() as u64, rows * width.payload_bytes());
                let (first, second) = (keys.start.min(payloads.start), keys.end.max(payloads.end));
                assert_eq!((first, second), (0, chunk), "{width:?}");
                assert!(keys.end == payloads.start || payloads.end == keys.start);
                assert!((keys.start as u64).is_multiple_of(width.key_bytes().min(8)));
                assert!((payloads.start as u64).is_multiple_of(width.payload_bytes()));
            }
        }
    }
}
