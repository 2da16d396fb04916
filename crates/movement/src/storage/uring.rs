//! io_uring: operations that the kernel completes while the thread does other things.

use std::fs::File;
use std::io;
use std::mem;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::thread;

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

    /// Gives the memory up for ever, because the kernel may still access it.
    fn abandon(self)
    where
        Self: Sized,
    {
        mem::forget(self);
    }
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

    fn abandon(self) {
        Slot::abandon(self);
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
    /// Buffers of operations in flight, by the index of their entry.
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

    /// Returns the maximum number of operations in flight.
    pub(super) fn depth(&self) -> usize {
        self.lent.len()
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.lent.len() - self.free.len()
    }

    /// Queues an operation on a range of a buffer; the kernel learns of it at the next [`Uring::wait`] or
    /// [`Uring::submit`]. Returns the index of its entry. The file may be closed before the operation is done, but not
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

    /// Tells the kernel of the queued operations. If it has no room now, it learns of them at the next [`Uring::wait`].
    pub(super) fn submit(&mut self) -> io::Result<()> {
        match retry(|| self.ring.submit()) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(()),
            result => result.map(|_| ()),
        }
    }

    /// Blocks until an operation is done, and returns its buffer and entry. Returns `None` if none is in flight.
    pub(super) fn wait(&mut self) -> io::Result<Option<Completed<B>>> {
        while self.in_flight() > 0 {
            if let Some(completed) = self.take() {
                return Ok(Some(completed));
            }
            match retry(|| self.ring.submit_and_wait(1)) {
                // Full completions are taken first.
                Err(error)
                    if error.raw_os_error() == Some(libc::EBUSY)
                        && !self.ring.completion().is_empty() => {}
                result => drop(result?),
            }
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

/// Maximum calls of [`retry`]. The kernel needs a few at most, unless it has no memory left.
const RETRIES: usize = 10_000;

/// Calls again what a signal interrupted, or what the kernel had no memory or no room for at that time.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut calls = 1;
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error)
                if calls < RETRIES
                    && matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) =>
            {
                calls += 1;
                thread::yield_now();
            }
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
                    self.lent.drain(..).flatten().for_each(B::abandon);
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Memory that counts how it ends.
    struct Counted {
        bytes: AlignedBytes,
        dropped: Arc<AtomicUsize>,
        abandoned: Arc<AtomicUsize>,
    }

    // SAFETY: as for `AlignedBytes`.
    unsafe impl StableBytes for Counted {
        fn stable_bytes(&mut self) -> &mut [u8] {
            self.bytes.stable_bytes()
        }

        fn abandon(self) {
            self.abandoned.fetch_add(1, Ordering::Relaxed);
            mem::forget(self);
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Drops a ring with four reads of `bytes` bytes in flight, after `change` changed it. Returns the numbers of
    /// dropped and of abandoned buffers; `None` without io_uring.
    fn end(change: impl FnOnce(&mut Uring<Counted>)) -> Option<(usize, usize)> {
        let mut ring = match Uring::new(4) {
            Ok(ring) => ring,
            Err(error) => {
                println!("skipped: no io_uring: {error}");
                return None;
            }
        };
        let file = tempfile::tempfile().expect("a temporary file");
        let (dropped, abandoned) = (Arc::default(), Arc::default());
        for _ in 0..4 {
            let buffer = Counted {
                bytes: AlignedBytes::zeroed(4096),
                dropped: Arc::clone(&dropped),
                abandoned: Arc::clone(&abandoned),
            };
            ring.push(Kind::Read, &file, 0, buffer, 0..4096);
        }
        ring.submit().expect("a working queue");
        change(&mut ring);
        drop(ring);
        let count = |of: Arc<AtomicUsize>| of.load(Ordering::Relaxed);
        Some((count(dropped), count(abandoned)))
    }

    #[test]
    fn a_dropped_ring_waits_and_drops_its_buffers() {
        assert!(end(|_| {}).is_none_or(|ended| ended == (4, 0)));
    }

    #[test]
    fn a_ring_that_fails_abandons_its_buffers() {
        // A descriptor that is no ring makes every further call fail.
        let ended = end(|ring| {
            let other = File::open("/dev/null").expect("a device of Linux");
            // SAFETY: both descriptors are open; the ring's memory stays mapped.
            let replaced = unsafe { libc::dup2(other.as_raw_fd(), ring.ring.as_raw_fd()) };
            assert!(replaced >= 0);
            while ring.ring.completion().next().is_some() {}
        });
        assert!(ended.is_none_or(|ended| ended == (0, 4)), "{ended:?}");
    }

    #[test]
    fn calls_without_room_are_made_again() {
        let codes = [libc::EAGAIN, libc::EBUSY, libc::EINTR];
        let mut left = codes.iter();
        let called = retry(|| match left.next() {
            Some(code) => Err(io::Error::from_raw_os_error(*code)),
            None => Ok(5),
        });
        assert_eq!(called.expect("the fourth call succeeds"), 5);
        let never = retry(|| -> io::Result<()> { Err(io::Error::from_raw_os_error(libc::EAGAIN)) });
        assert!(never.is_err());
    }
}
