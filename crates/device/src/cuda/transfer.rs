//! Asynchronous copies that own their source and destination.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys;

use super::library::{DriverError, check};
use super::{
    Cuda, DeviceMemory, DeviceType, DeviceView, Divisible, Event, HostMemory, HostMemoryMut,
    HostRegistration, Part, Pinned, RegisteredPart, Stream,
};
use crate::{Class, DeviceContext, DeviceFault, Job, JobError, Step};

/// Source or destination of a copy.
#[derive(Debug)]
pub struct End<'a> {
    address: u64,
    bytes: usize,
    memory: Memory<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Memory<'a> {
    Host,
    Device(&'a DeviceMemory),
    Fill(u8),
}

/// The source of a [`Transfer`]: [`Pinned`] or [registered](HostRegistration) memory or a range of it, a
/// [`Part`] of host memory, a [`DeviceView`], or [`Fill`].
pub trait Source: Send + 'static {
    #[doc(hidden)]
    fn source(&self) -> End<'_>;
}

/// The destination of a [`Transfer`]: [`Pinned`] memory or a range of it, [registered](HostRegistration) memory with a
/// single owner, a [`Part`] of host memory, or a [`DeviceView`].
pub trait Destination: Send + 'static {
    #[doc(hidden)]
    fn destination(&mut self) -> End<'_>;
}

/// A source that repeats one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill(pub u8);

/// A range of a pinned buffer; owns the buffer.
#[derive(Debug)]
pub struct PinnedPart {
    buffer: Pinned,
    range: Range<usize>,
}

impl PinnedPart {
    /// Returns a range of a buffer.
    ///
    /// # Panics
    /// If the range exceeds the buffer.
    pub fn new(buffer: Pinned, range: Range<usize>) -> PinnedPart {
        assert!(
            buffer.get(range.clone()).is_some(),
            "{range:?} of {}",
            buffer.len()
        );
        PinnedPart { buffer, range }
    }

    /// Returns the buffer.
    pub fn into_buffer(self) -> Pinned {
        self.buffer
    }
}

fn host(bytes: &[u8]) -> End<'_> {
    End {
        address: bytes.as_ptr().addr() as u64,
        bytes: bytes.len(),
        memory: Memory::Host,
    }
}

fn device<T: DeviceType>(view: &DeviceView<T>) -> End<'_> {
    End {
        address: view.address(),
        bytes: view.bytes(),
        memory: Memory::Device(view.memory()),
    }
}

impl Source for Pinned {
    fn source(&self) -> End<'_> {
        host(self)
    }
}

impl Source for Arc<Pinned> {
    fn source(&self) -> End<'_> {
        host(self)
    }
}

impl Source for PinnedPart {
    fn source(&self) -> End<'_> {
        host(&self.buffer[self.range.clone()])
    }
}

impl<M: HostMemory> Source for HostRegistration<M> {
    fn source(&self) -> End<'_> {
        host(self)
    }
}

impl<M: HostMemory> Source for RegisteredPart<M> {
    fn source(&self) -> End<'_> {
        host(self)
    }
}

/// A part of memory that is not pinned is copied slowly, and the call that begins the copy blocks for most of it.
impl<M: Divisible> Source for Part<M> {
    fn source(&self) -> End<'_> {
        host(self)
    }
}

impl<M: Divisible> Destination for Part<M> {
    fn destination(&mut self) -> End<'_> {
        host(self)
    }
}

impl<T: DeviceType + 'static> Source for DeviceView<T> {
    fn source(&self) -> End<'_> {
        device(self)
    }
}

impl Source for Fill {
    fn source(&self) -> End<'_> {
        End {
            address: 0,
            bytes: 0,
            memory: Memory::Fill(self.0),
        }
    }
}

impl Destination for Pinned {
    fn destination(&mut self) -> End<'_> {
        host(self)
    }
}

impl Destination for PinnedPart {
    fn destination(&mut self) -> End<'_> {
        host(&self.buffer[self.range.clone()])
    }
}

impl<M: HostMemoryMut> Destination for HostRegistration<M> {
    fn destination(&mut self) -> End<'_> {
        host(self)
    }
}

impl<T: DeviceType + 'static> Destination for DeviceView<T> {
    fn destination(&mut self) -> End<'_> {
        device(self)
    }
}

/// A copy in flight. It owns source and destination until the copy is done; dropping it waits for the copy.
///
/// Copies on one stream run in order, concurrently with the work of other streams.
pub struct Transfer<F, T> {
    /// Source and destination; `None` after the copy is done.
    ends: Option<(F, T)>,
    event: Arc<Event>,
}

impl<F: Source, T: Destination> Transfer<F, T> {
    /// Queues a copy of the whole of `from` into `to` and returns at once. At least one end must be memory of this
    /// device. The other end may be memory of another device: the copy then goes from card to card, or through the host
    /// if the cards are not [peers](crate::Device::reaches). [`Fill`] also writes the memory of a peer.
    ///
    /// # Errors
    /// A fault of the device.
    ///
    /// # Panics
    /// If the ends differ in length, neither is memory of this device or of a peer that is filled, or the stream
    /// belongs to another device.
    pub fn begin(
        cuda: &Cuda,
        from: F,
        mut to: T,
        stream: &Stream,
    ) -> Result<Transfer<F, T>, DeviceFault> {
        // SAFETY: both ends are moved into the result, which returns or drops them only after the event that follows
        // the copy. If recording the event fails, this function waits for the stream.
        unsafe { enqueue(cuda, &from.source(), &to.destination(), stream) }?;
        match cuda.mark(stream) {
            Ok(event) => Ok(Transfer {
                ends: Some((from, to)),
                event,
            }),
            Err(fault) => {
                // The device is lost, whatever this call returns.
                let _ = cuda.synchronize(stream);
                Err(fault)
            }
        }
    }
}

impl<F, T> Transfer<F, T> {
    /// Returns the event that completes when the copy is done.
    pub fn event(&self) -> &Arc<Event> {
        &self.event
    }

    /// Blocks until the copy is done, and returns both ends.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn finish(mut self) -> Result<(F, T), DeviceFault> {
        self.event.wait()?;
        Ok(self
            .ends
            .take()
            .expect("a transfer has both ends until it is finished"))
    }
}

impl<F, T> fmt::Debug for Transfer<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("event", &self.event)
            .finish_non_exhaustive()
    }
}

impl<F, T> Drop for Transfer<F, T> {
    fn drop(&mut self) {
        if self.ends.is_some() {
            // On a failed device no copy runs, so the error is ignored.
            let _ = self.event.wait();
        }
    }
}

/// Queues a copy.
///
/// # Safety
/// Both ends must stay allocated, and no other code may access them, until the copy is done.
unsafe fn enqueue(
    cuda: &Cuda,
    from: &End<'_>,
    to: &End<'_>,
    stream: &Stream,
) -> Result<(), DriverError> {
    let is_fill = matches!(from.memory, Memory::Fill(_));
    assert!(
        is_fill || from.bytes == to.bytes,
        "a source of {} bytes cannot be copied to a destination of {} bytes",
        from.bytes,
        to.bytes
    );
    let is_usable = |memory| matches!(memory, Memory::Device(it) if cuda.owns(it) || is_fill && cuda.reaches(it));
    assert!(
        is_usable(from.memory) || is_usable(to.memory),
        "neither end is memory of this device"
    );
    let is_foreign = |memory| matches!(memory, Memory::Device(memory) if !cuda.owns(memory) && !memory.is_for_peers());
    assert!(
        !is_foreign(from.memory) && !is_foreign(to.memory),
        "hybrid memory of another device"
    );
    let (bytes, raw) = (to.bytes, cuda.own_stream(stream).raw());
    if bytes == 0 {
        return Ok(());
    }
    let host = |address: u64| address as usize as *mut std::ffi::c_void;
    // SAFETY: in each case the stream is live and its context is current. The caller promises that each end has `bytes`
    // bytes at its address, and that they are in the kind of memory that the end names.
    let (operation, code) = unsafe {
        match (from.memory, to.memory) {
            (Memory::Host, Memory::Device(_)) => (
                "cuMemcpyHtoDAsync",
                sys::cuMemcpyHtoDAsync_v2(to.address, host(from.address), bytes, raw),
            ),
            (Memory::Device(_), Memory::Host) => (
                "cuMemcpyDtoHAsync",
                sys::cuMemcpyDtoHAsync_v2(host(to.address), from.address, bytes, raw),
            ),
            (Memory::Device(source), Memory::Device(target))
                if source.is_on_same_device(target) =>
            {
                (
                    "cuMemcpyDtoDAsync",
                    sys::cuMemcpyDtoDAsync_v2(to.address, from.address, bytes, raw),
                )
            }
            (Memory::Device(source), Memory::Device(target)) => (
                "cuMemcpyPeerAsync",
                sys::cuMemcpyPeerAsync(
                    to.address,
                    target.context().raw(),
                    from.address,
                    source.context().raw(),
                    bytes,
                    raw,
                ),
            ),
            (Memory::Fill(byte), _) => (
                "cuMemsetD8Async",
                sys::cuMemsetD8Async(to.address, byte, bytes, raw),
            ),
            (Memory::Host, _) | (_, Memory::Fill(_)) => {
                unreachable!("one end is memory of this device")
            }
        }
    };
    check(operation, code)
}

/// Callback that receives both ends after a copy.
type Done<F, T> = Box<dyn FnOnce(F, T) + Send>;

/// A job that copies. Several copies can be in flight at the same time, and other jobs run in between.
///
/// It owns both ends until the copy is done. If the device is lost first, the ends are dropped.
pub struct TransferJob<F, T> {
    /// Source and destination before the copy begins, then `None`.
    ends: Option<(F, T)>,
    /// The copy while it is in flight, otherwise `None`.
    begun: Option<Transfer<F, T>>,
    done: Option<Done<F, T>>,
}

impl<F: Source, T: Destination> TransferJob<F, T> {
    /// Returns a job that copies the whole of `from` into `to`, as [`Transfer::begin`] does. The copy runs on the
    /// upload stream if `to` is device memory, otherwise on the download stream. `done` is called on the device's
    /// thread with `from` and `to`.
    pub fn new(from: F, to: T, done: impl FnOnce(F, T) + Send + 'static) -> TransferJob<F, T> {
        TransferJob {
            ends: Some((from, to)),
            begun: None,
            done: Some(Box::new(done)),
        }
    }
}

impl<F: Source, T: Destination> Job for TransferJob<F, T> {
    fn class(&self) -> Class {
        Class::Load
    }

    fn run(&mut self, context: &mut DeviceContext) -> Result<Step, JobError> {
        let Some(cuda) = context.parts().cuda else {
            return Ok(Step::Done);
        };
        if let Some((from, mut to)) = self.ends.take() {
            let stream = match to.destination().memory {
                Memory::Device(_) => cuda.uploads(),
                Memory::Host | Memory::Fill(_) => cuda.downloads(),
            };
            let begun = Transfer::begin(cuda, from, to, stream)?;
            let event = Arc::clone(begun.event());
            self.begun = Some(begun);
            return Ok(Step::wait_for(event));
        }
        if let (Some(begun), Some(done)) = (self.begun.take(), self.done.take()) {
            let (from, to) = begun.finish()?;
            done(from, to);
        }
        Ok(Step::Done)
    }
}

impl<F, T> fmt::Debug for TransferJob<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferJob")
            .field("begun", &self.begun)
            .finish_non_exhaustive()
    }
}
