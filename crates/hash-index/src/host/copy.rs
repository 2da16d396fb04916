//! Copies of a device's tables in host memory, with the slots as they are on the device.

use std::marker::PhantomData;

use forebay_device::cuda::{Cuda, DeviceView, Divisible, Part, Stream, Transfer};
use forebay_device::{DeviceFault, JobError, prefetch};

use super::linear::{Chains, Slot};
use super::{CompositeRow, Lookup, Word, probe_rows};
use crate::column::HostRows;
use crate::index::{Contents, HashIndex};
use crate::kernels::JoinTotals;
use crate::shape::{TableMethod, TableShape, Width};

impl HashIndex {
    /// Queues a copy of a table with linear probing to host memory, where the CPU can probe it, and returns at once.
    /// The result keeps the table until the copy is done. A copy to pinned memory runs beside kernels of other
    /// streams.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If the table is not one with linear probing, the memory has another size than [`TableShape::slot_bytes`], or
    /// the table or the stream is that of another device.
    pub fn copy_async<M: Divisible>(
        &self,
        cuda: &Cuda,
        to: Part<M>,
        stream: &Stream,
    ) -> Result<CopyInFlight<M>, JobError> {
        let (shape, slots, contents) = self.parts();
        assert_eq!(shape.method(), TableMethod::LinearProbing);
        Ok(CopyInFlight {
            transfer: Transfer::begin(cuda, slots.clone(), to, stream)?,
            contents,
            shape,
        })
    }
}

/// A copy of a table in flight. Dropping it waits for the copy.
#[derive(Debug)]
pub struct CopyInFlight<M> {
    transfer: Transfer<DeviceView<u8>, Part<M>>,
    contents: Contents,
    shape: TableShape,
}

impl<M: Divisible> CopyInFlight<M> {
    /// Blocks until the copy is done, and returns it.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn finish(self) -> Result<HostCopy<M>, DeviceFault> {
        let (_, slots) = self.transfer.finish()?;
        Ok(HostCopy {
            slots,
            contents: self.contents,
            shape: self.shape,
        })
    }
}

/// A copy of a device's table in host memory, for probes alone.
#[derive(Debug)]
pub struct HostCopy<M> {
    slots: Part<M>,
    contents: Contents,
    shape: TableShape,
}

impl<M: Divisible> HostCopy<M> {
    /// Returns the matches of rows, on the calling thread. Several threads may call this at the same time.
    ///
    /// # Panics
    /// If the columns are not as [`HostRows::count`] says.
    pub fn probe_here(&self, rows: HostRows<'_>) -> JoinTotals {
        rows.count(self.shape.width());
        match self.shape.width() {
            Width::Four => self.probe::<(u32, u32)>(rows),
            Width::Eight => self.probe::<(u64, u64)>(rows),
            Width::FourEight => self.probe::<(u32, u64)>(rows),
            Width::EightFour => self.probe::<(u64, u32)>(rows),
            Width::Composite => self.probe::<CompositeRow>(rows),
        }
    }

    /// Returns the memory.
    pub fn into_memory(self) -> Part<M> {
        self.slots
    }

    fn probe<S: Slot>(&self, rows: HostRows<'_>) -> JoinTotals {
        let slots = CopiedSlots::<S> {
            bytes: &self.slots,
            chains: Chains::new(self.shape, 0),
            slot: PhantomData,
        };
        probe_rows(&slots, rows, &self.contents)
    }
}

#[cfg(test)]
impl HostCopy<Box<[u8]>> {
    /// Returns a copy of a table in host memory, which must be one with linear probing.
    pub(crate) fn of_host(index: &super::HostIndex) -> HostCopy<Box<[u8]>> {
        let mut parts = Part::divide(index.table.slot_bytes(), &[]);
        HostCopy {
            slots: parts.pop().expect("one part"),
            contents: index.contents,
            shape: index.shape,
        }
    }
}

/// Bytes of a word of a slot.
const WORD_BYTES: usize = 8;

/// The slots of a copy.
struct CopiedSlots<'a, S> {
    bytes: &'a [u8],
    chains: Chains,
    slot: PhantomData<S>,
}

impl<S: Slot> CopiedSlots<'_, S> {
    #[inline]
    fn slot(&self, slot: u64) -> &[u8] {
        let first = slot as usize * S::WORDS * WORD_BYTES;
        &self.bytes[first..first + S::WORDS * WORD_BYTES]
    }
}

impl<S: Slot> Lookup for CopiedSlots<'_, S> {
    type Row = S;

    #[inline]
    fn prefetch(&self, key: S::Key) {
        prefetch(&self.slot(self.chains.home::<S>(key))[0]);
    }

    #[inline]
    fn probe(&self, key: S::Key, contents: &Contents) -> (u64, u64) {
        let load = |slot| {
            let slot = self.slot(slot);
            S::load(|word| u64::read(&slot[word * WORD_BYTES..]))
        };
        self.chains.probe::<S>(key, contents, load)
    }
}
