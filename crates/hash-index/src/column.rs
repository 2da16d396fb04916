//! The columns of a join's side.

use std::ops::Range;
use std::sync::Arc;

use forebay_device::AlignedBytes;
use forebay_device::cuda::{Cuda, DevicePointer, DeviceView, HostRegistration};

use crate::Width;
use crate::kernels::Rows;

/// A column that kernels read.
#[derive(Debug, Clone)]
pub enum Column {
    /// In memory of the device, or of another GPU that the device [reaches](forebay_device::Device::reaches).
    Device(DeviceView<u8>),
    /// In pinned host memory, which kernels read over the bus: a range of it, in bytes.
    Pinned(Arc<HostRegistration<AlignedBytes>>, Range<usize>),
}

impl Column {
    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Column::Device(view) => view.len() as u64,
            Column::Pinned(_, range) => range.len() as u64,
        }
    }

    /// Returns a range of its bytes.
    ///
    /// # Panics
    /// If the range exceeds the column.
    fn part(&self, bytes: Range<usize>) -> Column {
        match self {
            Column::Device(view) => Column::Device(view.view(bytes)),
            Column::Pinned(memory, range) => {
                assert!(bytes.start <= bytes.end && bytes.end <= range.len());
                let part = range.start + bytes.start..range.start + bytes.end;
                Column::Pinned(Arc::clone(memory), part)
            }
        }
    }

    /// Asserts that kernels of this device may read it.
    ///
    /// # Panics
    /// If it is in memory of another device that this one does not reach.
    pub(crate) fn assert_reaches(&self, cuda: &Cuda) {
        if let Column::Device(view) = self {
            cuda.assert_reaches(view);
        }
    }

    /// Returns the address on the device.
    ///
    /// # Panics
    /// If the range exceeds the pinned memory.
    pub(crate) fn pointer(&self) -> DevicePointer<u8> {
        match self {
            Column::Device(view) => view.pointer(),
            Column::Pinned(memory, range) => {
                let is_inside = memory.get(range.clone()).is_some();
                assert!(is_inside, "{range:?} of {} bytes", memory.len());
                DevicePointer::new(memory.device_pointer::<u8>().address() + range.start as u64)
            }
        }
    }
}

/// A key and a payload of each row, for kernels. Columns whose addresses are multiples of 16 are read faster.
#[derive(Debug, Clone)]
pub struct DeviceRows {
    /// The keys.
    pub keys: Column,
    /// The payloads, as many.
    pub payloads: Column,
}

impl DeviceRows {
    /// Returns some rows.
    ///
    /// # Panics
    /// If there are not as many, or the columns are not as [`DeviceRows::count`] says.
    pub fn part(&self, width: Width, rows: Range<u64>) -> DeviceRows {
        let (keys, payloads) = parts_of(width, rows, self.count(width));
        DeviceRows {
            keys: self.keys.part(keys),
            payloads: self.payloads.part(payloads),
        }
    }

    /// Returns the number of rows.
    ///
    /// # Panics
    /// If the columns differ in their number of values, are not whole values of this width or not aligned to it.
    pub fn count(&self, width: Width) -> u64 {
        self.rows(width).count
    }

    /// Returns what kernels take.
    ///
    /// # Panics
    /// As for [`DeviceRows::count`].
    pub(crate) fn rows(&self, width: Width) -> Rows {
        let (keys, payloads) = (self.keys.pointer(), self.payloads.pointer());
        let count = count_of(width, self.keys.bytes(), self.payloads.bytes());
        // A composite key is aligned as its numbers are.
        let is_aligned = keys.address().is_multiple_of(width.key_bytes().min(8))
            && payloads.address().is_multiple_of(width.payload_bytes());
        assert!(is_aligned, "columns at {keys:?} and {payloads:?}");
        Rows {
            keys,
            payloads,
            count,
        }
    }
}

/// A key and a payload of each row, in host memory: little-endian numbers, two for a composite key.
#[derive(Debug, Clone, Copy)]
pub struct HostRows<'a> {
    /// The keys.
    pub keys: &'a [u8],
    /// The payloads, as many.
    pub payloads: &'a [u8],
}

impl<'a> HostRows<'a> {
    /// Returns a range of the rows.
    ///
    /// # Panics
    /// If the range ends behind the last row, or the columns are not as [`HostRows::count`] says.
    pub fn part(&self, width: Width, rows: Range<u64>) -> HostRows<'a> {
        let (keys, payloads) = parts_of(width, rows, self.count(width));
        HostRows {
            keys: &self.keys[keys],
            payloads: &self.payloads[payloads],
        }
    }

    /// Returns the number of rows.
    ///
    /// # Panics
    /// If the columns differ in their number of values, or are not whole values of this width.
    pub fn count(&self, width: Width) -> u64 {
        count_of(width, self.keys.len() as u64, self.payloads.len() as u64)
    }
}

/// Returns the number of rows of two columns.
fn count_of(width: Width, keys_bytes: u64, payloads_bytes: u64) -> u64 {
    let count = payloads_bytes / width.payload_bytes();
    assert!(
        (keys_bytes, payloads_bytes) == (count * width.key_bytes(), count * width.payload_bytes()),
        "columns of {keys_bytes} and {payloads_bytes} bytes, values of {} and {} bytes",
        width.key_bytes(),
        width.payload_bytes()
    );
    count
}

/// Returns where the keys and the payloads of some rows are in columns of `count` rows, in bytes.
///
/// # Panics
/// If there are not as many rows.
fn parts_of(width: Width, rows: Range<u64>, count: u64) -> (Range<usize>, Range<usize>) {
    assert!(
        rows.start <= rows.end && rows.end <= count,
        "rows {rows:?} of {count}"
    );
    let part = |bytes: u64| (rows.start * bytes) as usize..(rows.end * bytes) as usize;
    (part(width.key_bytes()), part(width.payload_bytes()))
}
