//! Host memory pages on a chosen NUMA node.

use std::fs;
use std::io;
use std::ptr::{self, NonNull};

/// Bits of a node mask: the maximum number of nodes that Linux supports.
const NODES_MAX: usize = 1024;

/// Zeroed pages of this process.
#[derive(Debug)]
pub(super) struct Pages {
    pointer: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pages are plain memory of this process, owned only by this value.
unsafe impl Send for Pages {}
// SAFETY: a shared reference gives no access to the memory.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps pages for `bytes` bytes, from the NUMA node `node` while that node has free pages. If the system does not
    /// let a process choose the node, as in some containers, each page comes from the node of the thread that first
    /// writes it.
    pub(super) fn map(bytes: usize, node: u32) -> io::Result<Pages> {
        let bytes = bytes.max(1);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the system chooses does not overlap other memory.
        let address = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, kind, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let pointer = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let pages = Pages { pointer, bytes };
        if let Err(error) = pages.prefer(node) {
            tracing::warn!(%error, node, "pinned memory cannot be allocated on the NUMA node of the GPU");
        }
        Ok(pages)
    }

    pub(super) fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Asks the system to take the pages from a node when they are first written.
    #[cfg(target_os = "linux")]
    fn prefer(&self, node: u32) -> io::Result<()> {
        let mut mask = [0_u64; NODES_MAX / 64];
        let word = mask.get_mut(node as usize / 64);
        *word.ok_or(io::ErrorKind::InvalidInput)? |= 1 << (node % 64);
        // SAFETY: the pages belong to this value. The system reads one bit less of the mask than the given number of
        // bits.
        let code = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.pointer.as_ptr(),
                self.bytes,
                libc::MPOL_PREFERRED,
                mask.as_ptr(),
                NODES_MAX + 1,
                0,
            )
        };
        match code {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn prefer(&self, _node: u32) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value and is not referenced any more; its length is unchanged.
        let _ = unsafe { libc::munmap(self.pointer.as_ptr().cast(), self.bytes) };
    }
}

/// Returns whether this machine has several NUMA nodes.
pub(crate) fn has_several_nodes() -> bool {
    let online = fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    names_several(online.trim())
}

/// Returns whether a list such as `0`, `0-1` or `0,2` has several entries.
fn names_several(list: &str) -> bool {
    list.contains([',', '-'])
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Returns the NUMA node that holds the page at an address.
    fn node_of(pointer: NonNull<u8>) -> Option<i32> {
        // `MPOL_F_NODE | MPOL_F_ADDR`: return the node of the page.
        const NODE_OF_ADDRESS: libc::c_long = 1 | 2;
        let mut node = 0_i32;
        let no_mask = ptr::null::<u64>();
        // SAFETY: the system writes only the node, which outlives the call.
        let code = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut node,
                no_mask,
                0,
                pointer.as_ptr(),
                NODE_OF_ADDRESS,
            )
        };
        (code == 0).then_some(node)
    }

    #[test]
    fn pages_are_zeros_on_the_node_that_was_asked_for() {
        let pages = Pages::map(10_000, 0).expect("a little memory");
        assert_eq!(pages.bytes(), 10_000);
        // SAFETY: the pages belong to this test, and are at least this long.
        let bytes = unsafe { std::slice::from_raw_parts_mut(pages.pointer().as_ptr(), 10_000) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        bytes.fill(7);
        assert!(bytes.iter().all(|byte| *byte == 7));
        if pages.prefer(0).is_ok() {
            assert_eq!(node_of(pages.pointer()), Some(0));
        }
    }

    #[test]
    fn a_node_that_no_machine_has_is_refused() {
        let pages = Pages::map(1, 0).expect("a little memory");
        let refused = pages.prefer(NODES_MAX as u32);
        assert_eq!(
            refused.map_err(|error| error.kind()),
            Err(io::ErrorKind::InvalidInput)
        );
        let other = Pages::map(1, NODES_MAX as u32 - 1).expect("memory of another node");
        assert_eq!(other.bytes(), 1);
    }

    #[test]
    fn lists_of_nodes() {
        for (list, several) in [("0", false), ("0-1", true), ("0,2", true), ("", false)] {
            assert_eq!(names_several(list), several, "{list}");
        }
    }
}
