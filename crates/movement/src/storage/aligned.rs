//! Heap memory that begins at a page.

use std::ops::{Deref, DerefMut};

use crate::ring::PAGE_BYTES;

/// Heap memory that begins at a page and is a multiple of pages long, as reads that bypass the page cache need it.
#[derive(Debug)]
pub struct AlignedBytes {
    allocation: Vec<u8>,
    begin: usize,
    bytes: usize,
}

impl AlignedBytes {
    /// Returns zeroed memory of at least `bytes`, rounded up to whole pages.
    pub fn zeroed(bytes: usize) -> AlignedBytes {
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        let allocation = vec![0; bytes + PAGE_BYTES - 1];
        let address = allocation.as_ptr().addr();
        AlignedBytes {
            begin: address.next_multiple_of(PAGE_BYTES) - address,
            allocation,
            bytes,
        }
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.allocation[self.begin..self.begin + self.bytes]
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.allocation[self.begin..self.begin + self.bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_begins_and_ends_at_a_page() {
        for (asked, given) in [(0, 0), (1, 4096), (4096, 4096), (4097, 8192)] {
            let memory = AlignedBytes::zeroed(asked);
            assert_eq!(memory.len(), given, "{asked} bytes");
            assert!(memory.is_empty() || memory.as_ptr().addr().is_multiple_of(PAGE_BYTES));
        }
    }
}
