//! Disjoint parts of host memory with one owner, so that several threads and copies use the memory at the same time.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use super::{DevicePointerMut, HostMemoryMut, HostRegistration, Managed, Pinned};

mod sealed {
    pub trait Sealed {}
    impl Sealed for Box<[u8]> {}
    impl Sealed for super::Pinned {}
    impl Sealed for super::Managed {}
    impl<M: super::HostMemoryMut> Sealed for super::HostRegistration<M> {}
}

/// Host memory that can be divided into [`Part`]s: `Box<[u8]>`, [`Pinned`], [`Managed`] and registered memory. Its
/// bytes do not move when the value does.
pub trait Divisible: sealed::Sealed + Send + Sync + 'static {
    #[doc(hidden)]
    fn all_bytes(&mut self) -> &mut [u8];

    /// Returns the address at which kernels access the memory.
    #[doc(hidden)]
    fn kernel_address(&self) -> u64;
}

impl Divisible for Box<[u8]> {
    fn all_bytes(&mut self) -> &mut [u8] {
        self
    }

    fn kernel_address(&self) -> u64 {
        self.as_ptr().addr() as u64
    }
}

impl Divisible for Pinned {
    fn all_bytes(&mut self) -> &mut [u8] {
        self
    }

    fn kernel_address(&self) -> u64 {
        self.address()
    }
}

impl Divisible for Managed {
    fn all_bytes(&mut self) -> &mut [u8] {
        self
    }

    fn kernel_address(&self) -> u64 {
        self.address()
    }
}

impl<M: HostMemoryMut> Divisible for HostRegistration<M> {
    fn all_bytes(&mut self) -> &mut [u8] {
        self
    }

    fn kernel_address(&self) -> u64 {
        self.device_address()
    }
}

/// A range of memory, to which it has exclusive access. All parts together own the memory.
pub struct Part<M> {
    memory: Arc<M>,
    pointer: NonNull<u8>,
    kernel_address: u64,
    range: Range<usize>,
}

// SAFETY: a part is like a mutable slice of its range, and the memory may be dropped on any thread.
unsafe impl<M: Send + Sync> Send for Part<M> {}
// SAFETY: a shared reference only reads.
unsafe impl<M: Send + Sync> Sync for Part<M> {}

impl<M: Divisible> Part<M> {
    /// Divides memory at `cuts`, which are offsets in ascending order. Returns one part more than there are cuts.
    ///
    /// # Panics
    /// If the cuts are not in ascending order, or exceed the memory.
    pub fn divide(memory: M, cuts: &[usize]) -> Vec<Part<M>> {
        let mut memory = Arc::new(memory);
        let whole = Arc::get_mut(&mut memory).expect("the memory has no other owner yet");
        let kernel_address = whole.kernel_address();
        let bytes = whole.all_bytes();
        let (pointer, len) = (NonNull::from(&mut *bytes).cast::<u8>(), bytes.len());
        let starts = [0].into_iter().chain(cuts.iter().copied());
        let ends = cuts.iter().copied().chain([len]);
        let part = |(start, end): (usize, usize)| {
            assert!(
                start <= end && end <= len,
                "cut {start}..{end} of {len} bytes"
            );
            Part {
                memory: Arc::clone(&memory),
                // SAFETY: `start` is at most the length of the memory.
                pointer: unsafe { pointer.add(start) },
                kernel_address: kernel_address + start as u64,
                range: start..end,
            }
        };
        starts.zip(ends).map(part).collect()
    }

    /// Returns the memory of parts, in any order.
    ///
    /// # Panics
    /// If the list is empty, or a part of the memory is missing.
    pub fn join(mut parts: Vec<Part<M>>) -> M {
        let last = parts.pop().expect("at least one part").memory;
        drop(parts);
        Arc::into_inner(last).expect("all parts of the memory")
    }

    /// Returns the offset of the part in the whole memory.
    pub fn offset(&self) -> usize {
        self.range.start
    }

    /// Returns the address at which kernels access the part. The caller of the launch must keep the part, and must not
    /// access it, until the kernel has finished. Memory that is neither pinned nor managed can be accessed only by a
    /// GPU that [reads pageable memory](super::Gpu::reads_pageable_memory).
    pub fn device_pointer<T>(&mut self) -> DevicePointerMut<T> {
        DevicePointerMut::new(self.kernel_address)
    }

    /// Returns the whole memory's value, not its bytes, which other parts may be writing.
    pub(super) fn memory(&self) -> &M {
        &self.memory
    }
}

impl Part<Managed> {
    /// Queues a move of the pages of the part, as [`Managed::prefetch`] does.
    ///
    /// # Errors
    /// A fault of the device.
    ///
    /// # Panics
    /// If the stream belongs to another device.
    pub fn prefetch(
        &self,
        cuda: &super::Cuda,
        place: super::Place,
        stream: &super::Stream,
    ) -> Result<(), crate::DeviceFault> {
        self.memory()
            .prefetch(cuda, self.range.clone(), place, stream)
    }
}

impl<M> Deref for Part<M> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `divide` gives out each range once. The memory lives as long as the part, and its bytes are reached
        // only through parts while there are any.
        unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.range.len()) }
    }
}

impl<M> DerefMut for Part<M> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.pointer.as_ptr(), self.range.len()) }
    }
}

impl<M> fmt::Debug for Part<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part")
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn threads_write_parts_and_the_whole_comes_back() {
        let memory = vec![0_u8; 1000].into_boxed_slice();
        let address = memory.as_ptr();
        let mut parts = Part::divide(memory, &[0, 10, 10, 999]);
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        assert_eq!(lengths, [0, 10, 0, 989, 1]);
        thread::scope(|scope| {
            for part in &mut parts {
                let value = part.offset() as u8 ^ 0x55;
                scope.spawn(move || part.fill(value));
            }
        });
        assert_eq!(
            parts[3].device_pointer::<u8>().address(),
            address.addr() as u64 + 10
        );
        parts.reverse();
        let memory = Part::join(parts);
        assert_eq!(memory.as_ptr(), address, "the bytes did not move");
        let expected = |index: usize| match index {
            0..10 => 0x55,
            10..999 => 10 ^ 0x55,
            _ => 999_usize as u8 ^ 0x55,
        };
        assert!((0..1000).all(|index| memory[index] == expected(index)));
    }

    #[test]
    #[should_panic(expected = "all parts of the memory")]
    fn a_missing_part_is_noticed() {
        let mut parts = Part::divide(vec![0_u8; 8].into_boxed_slice(), &[4]);
        let kept = parts.pop();
        drop(Part::join(parts));
        drop(kept);
    }

    #[test]
    #[should_panic(expected = "cut")]
    fn cuts_beyond_the_memory_are_refused() {
        Part::divide(vec![0_u8; 8].into_boxed_slice(), &[9]);
    }

    #[test]
    #[should_panic(expected = "cut")]
    fn cuts_that_overlap_are_refused() {
        Part::divide(vec![0_u8; 8].into_boxed_slice(), &[5, 4]);
    }
}
