//! io_uring: operations that the kernel completes while the thread does other things.

use std::fs::File;
use std::io;
use std::mem;
use std::ops::Range;
use std::os::fd::AsRawFd;

use forebay_device::cuda::Pinned;
use io_uring::{IoUring, opcode, types};

use super::AlignedBytes;
use crate::ring::Slot;

/// Memory that the kernel may access until its owner is dropped.
///
/// # Safety
/// The bytes do not move when the owner moves, are not freed before the owner is dropped (not even if it is forgotten),
/// and are accessed by no other code while the owner is borrowed or lent.
pub unsafe trait StableBytes {
    /// Returns the bytes, always the same ones.
    fn stable_bytes(&mut self) -> &mut [u8];
}

// SAFETY: the bytes are in a heap allocation that the value owns.
unsafe impl StableBytes for AlignedBytes {
    fn stable_bytes(&mut self) -> &mut [u8] {
        self
    }
}

// SAFETY: the bytes are in an allocation of the driver that the value owns.
unsafe impl StableBytes for Pinned {
    fn stable_bytes(&mut self) -> &mut [u8] {
        self
    }
}

// SAFETY: the slot owns its memory, on the heap or pinned, until it is dropped or filled.
unsafe impl StableBytes for Slot<'_> {
    fn stable_bytes(&mut self) -> &mut [u8] {
        self.host()
    }
}

/// A read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
}

/// The kernel's queue of operations, each with the buffer that it owns while the operation is in flight.
pub(super) struct Uring<B: StableBytes> {
    ring: IoUring,
    /// Buffers of operations in flight, by the number of their entry.
    lent: Vec<Option<B>>,
    free: Vec<usize>,
}

/// A buffer whose operation is done: the number of bytes moved, or the error.
pub(super) type Completed<B> = (B, usize, io::Result<usize>);

impl<B: StableBytes> Uring<B> {
    /// Creates a queue for at most `depth` operations in flight.
    pub(super) fn new(depth: usize) -> io::Result<Uring<B>> {
        let depth = depth.clamp(1, 4096);
        Ok(Uring {
            ring: IoUring::new(depth.next_power_of_two() as u32)?,
            lent: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
        })
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.lent.len() - self.free.len()
    }

    /// Queues an operation on a range of a buffer; the kernel learns of it at the next [`Uring::wait`] or
    /// [`Uring::submit`]. Returns the number of its entry. The file may be closed before the operation is done, but not
    /// before it is submitted.
    ///
    /// # Panics
    /// If there is no room, or the range exceeds the buffer.
    pub(super) fn push(
        &mut self,
        kind: Kind,
        file: &File,
        offset: u64,
        mut buffer: B,
        range: Range<usize>,
    ) -> usize {
        let entry = self.free.pop().expect("the caller asked for room");
        let bytes = &mut buffer.stable_bytes()[range];
        let fd = types::Fd(file.as_raw_fd());
        let length = u32::try_from(bytes.len()).unwrap_or(1 << 30);
        let operation = match kind {
            Kind::Read => opcode::Read::new(fd, bytes.as_mut_ptr(), length)
                .offset(offset)
                .build(),
            Kind::Write => opcode::Write::new(fd, bytes.as_ptr(), length)
                .offset(offset)
                .build(),
        };
        self.lent[entry] = Some(buffer);
        // SAFETY: the range is within the buffer. This value owns the buffer until the kernel has completed the
        // operation, and its bytes do not move.
        let pushed = unsafe {
            self.ring
                .submission()
                .push(&operation.user_data(entry as u64))
        };
        pushed.expect("the queue has an entry for each operation in flight");
        entry
    }

    /// Tells the kernel of the queued operations.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        retry(|| self.ring.submit()).map(|_| ())
    }

    /// Blocks until an operation is done, and returns its buffer and entry. Returns `None` if none is in flight.
    pub(super) fn wait(&mut self) -> io::Result<Option<Completed<B>>> {
        while self.in_flight() > 0 {
            if let Some(completed) = self.take() {
                return Ok(Some(completed));
            }
            retry(|| self.ring.submit_and_wait(1))?;
        }
        Ok(None)
    }

    /// Returns an operation that is done now.
    fn take(&mut self) -> Option<Completed<B>> {
        let done = self.ring.completion().next()?;
        let entry = done.user_data() as usize;
        let buffer = self.lent.get_mut(entry)?.take()?;
        self.free.push(entry);
        let result = match done.result() {
            moved @ 0.. => Ok(moved as usize),
            error => Err(io::Error::from_raw_os_error(-error)),
        };
        Some((buffer, entry, result))
    }
}

/// Calls again what a signal interrupted.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

impl<B: StableBytes> Drop for Uring<B> {
    fn drop(&mut self) {
        loop {
            match self.wait() {
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(_) => {
                    // The kernel may still access the buffers, so they are never freed.
                    mem::forget(mem::take(&mut self.lent));
                    return;
                }
            }
        }
    }
}
