//! Typed GPU memory.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use super::{DeviceMemory, DevicePointer, DevicePointerMut, DeviceType};

/// GPU memory for values of one type. The initial content is undefined.
///
/// The memory is freed when the buffer and all its [views](DeviceView) are dropped. The device does not track which
/// work uses the memory: the owner of in-flight work must keep a view, or [retire](super::Cuda::retire) the memory.
pub struct DeviceBuffer<T> {
    all: DeviceView<T>,
}

impl<T: DeviceType> DeviceBuffer<T> {
    pub(crate) fn new(memory: DeviceMemory, len: usize) -> DeviceBuffer<T> {
        let all = DeviceView {
            memory: Arc::new(memory),
            start: 0,
            len,
            values: PhantomData,
        };
        DeviceBuffer { all }
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.all.len
    }

    /// Returns whether the buffer has no values.
    pub fn is_empty(&self) -> bool {
        self.all.len == 0
    }

    /// Returns a view of all values.
    pub fn all(&self) -> DeviceView<T> {
        self.all.clone()
    }

    /// Returns a view of a range of values.
    ///
    /// # Panics
    /// If the range exceeds the buffer.
    pub fn view(&self, range: Range<usize>) -> DeviceView<T> {
        self.all.view(range)
    }

    /// Returns the address of the first value, for kernels that read the values.
    pub fn pointer(&self) -> DevicePointer<T> {
        self.all.pointer()
    }

    /// Returns the address of the first value, for kernels that write the values.
    pub fn pointer_mut(&self) -> DevicePointerMut<T> {
        self.all.pointer_mut()
    }
}

impl<T> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("all", &self.all)
            .finish()
    }
}

/// A range of values in GPU memory. The memory stays allocated while a view of it exists.
pub struct DeviceView<T> {
    memory: Arc<DeviceMemory>,
    /// Byte offset of the first value.
    start: usize,
    len: usize,
    values: PhantomData<fn() -> T>,
}

impl DeviceView<u8> {
    /// Returns a view of a range of bytes of untyped memory.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    pub fn of(memory: &Arc<DeviceMemory>, bytes: Range<usize>) -> DeviceView<u8> {
        memory.address_of(bytes.start, bytes.len());
        DeviceView {
            memory: Arc::clone(memory),
            start: bytes.start,
            len: bytes.len(),
            values: PhantomData,
        }
    }
}

impl<T: DeviceType> DeviceView<T> {
    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the view has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a view of a range of this view's values.
    ///
    /// # Panics
    /// If the range exceeds this view.
    pub fn view(&self, range: Range<usize>) -> DeviceView<T> {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "values {range:?} of {}",
            self.len
        );
        DeviceView {
            memory: Arc::clone(&self.memory),
            start: self.start + range.start * size_of::<T>(),
            len: range.len(),
            values: PhantomData,
        }
    }

    /// Returns the address of the first value, for kernels that read the values.
    pub fn pointer(&self) -> DevicePointer<T> {
        DevicePointer::new(self.address())
    }

    /// Returns the address of the first value, for kernels that write the values.
    pub fn pointer_mut(&self) -> DevicePointerMut<T> {
        DevicePointerMut::new(self.address())
    }

    pub(super) fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    pub(super) fn address(&self) -> u64 {
        self.memory.address_of(self.start, self.bytes())
    }

    pub(super) fn memory(&self) -> &DeviceMemory {
        &self.memory
    }
}

impl<T> Clone for DeviceView<T> {
    fn clone(&self) -> Self {
        DeviceView {
            memory: Arc::clone(&self.memory),
            start: self.start,
            len: self.len,
            values: PhantomData,
        }
    }
}

impl<T> fmt::Debug for DeviceView<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceView")
            .field("memory", &self.memory)
            .field("start", &self.start)
            .field("len", &self.len)
            .finish()
    }
}
