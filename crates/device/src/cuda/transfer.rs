//! Copies that own what they copy from and to.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys;

use super::library::{DriverError, check};
use super::{Cuda, DeviceMemory, DeviceType, DeviceView, Event, Pinned, Stream};
use crate::{Class, DeviceContext, DeviceFault, Job, JobError, Step};

/// What bytes come from or go to.
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

/// What a [`Transfer`] copies from: [`Pinned`] memory, some of it, a [`DeviceView`], or [`Fill`].
pub trait Source: Send + 'static {
    #[doc(hidden)]
    fn source(&self) -> End<'_>;
}

/// What a [`Transfer`] copies to: [`Pinned`] memory, some of it, or a [`DeviceView`].
pub trait Destination: Send + 'static {
    #[doc(hidden)]
    fn destination(&mut self) -> End<'_>;
}

/// A source of one byte again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill(pub u8);

/// Some bytes of a pinned buffer, which it owns.
#[derive(Debug)]
pub struct PinnedPart {
    buffer: Pinned,
    range: Range<usize>,
}

impl PinnedPart {
    /// Some bytes of a buffer.
    ///
    /// # Panics
    /// If the buffer ends before the range does.
    pub fn new(buffer: Pinned, range: Range<usize>) -> PinnedPart {
        assert!(
            buffer.get(range.clone()).is_some(),
            "{range:?} of {}",
            buffer.len()
        );
        PinnedPart { buffer, range }
    }

    /// The buffer.
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

impl<T: DeviceType + 'static> Destination for DeviceView<T> {
    fn destination(&mut self) -> End<'_> {
        device(self)
    }
}

/// A copy on its way. It owns both ends until the copy is done: dropping it before waits for that.
///
/// Copies run in the order of their stream, beside the work of other streams.
pub struct Transfer<F, T> {
    /// Taken when the copy is done.
    ends: Option<(F, T)>,
    event: Arc<Event>,
}

impl<F: Source, T: Destination> Transfer<F, T> {
    /// Queues a copy of all of `from` to `to` and returns at once. At least one end is memory of this device; the other may
    /// be of another device: then the copy goes from card to card, or through the host where the cards have no way.
    ///
    /// # Errors
    /// A fault of the device.
    ///
    /// # Panics
    /// If the ends have not the same number of bytes, no end is memory of this device, or the stream is another device's.
    pub fn begin(
        cuda: &Cuda,
        from: F,
        mut to: T,
        stream: &Stream,
    ) -> Result<Transfer<F, T>, DeviceFault> {
        // SAFETY: both ends are moved into the result, which gives them back, or drops them, only when the event behind the
        // copy has come; if there is no event, the stream is waited for here.
        unsafe { enqueue(cuda, &from.source(), &to.destination(), stream) }?;
        match cuda.mark(stream) {
            Ok(event) => Ok(Transfer {
                ends: Some((from, to)),
                event,
            }),
            Err(fault) => {
                // Whatever this says, the device is lost.
                let _ = cuda.synchronize(stream);
                Err(fault)
            }
        }
    }
}

impl<F, T> Transfer<F, T> {
    /// The event behind the copy.
    pub fn event(&self) -> &Arc<Event> {
        &self.event
    }

    /// Waits for the copy, if it is not done yet, and gives both ends back.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn finish(mut self) -> Result<(F, T), DeviceFault> {
        self.event.wait()?;
        Ok(self.ends.take().expect("they are taken only here"))
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
            // A device that has failed copies no more.
            let _ = self.event.wait();
        }
    }
}

/// Queues a copy.
///
/// # Safety
/// Both ends stay allocated, and no other code touches them, until the stream has done the copy.
unsafe fn enqueue(
    cuda: &Cuda,
    from: &End<'_>,
    to: &End<'_>,
    stream: &Stream,
) -> Result<(), DriverError> {
    let is_fill = matches!(from.memory, Memory::Fill(_));
    assert!(
        is_fill || from.bytes == to.bytes,
        "{} bytes do not go to {}",
        from.bytes,
        to.bytes
    );
    let own = |memory| matches!(memory, Memory::Device(memory) if cuda.owns(memory));
    assert!(
        own(from.memory) || own(to.memory),
        "neither end is of this device"
    );
    let (bytes, raw) = (to.bytes, cuda.own_stream(stream).raw());
    if bytes == 0 {
        return Ok(());
    }
    let host = |address: u64| address as usize as *mut std::ffi::c_void;
    // SAFETY: in each case the stream is live and its context current, and each end has `bytes` bytes at its address, in
    // memory of its kind, as the caller promises.
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
            (Memory::Device(source), Memory::Device(target)) if source.is_beside(target) => (
                "cuMemcpyDtoDAsync",
                sys::cuMemcpyDtoDAsync_v2(to.address, from.address, bytes, raw),
            ),
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
            (Memory::Host, _) | (_, Memory::Fill(_)) => unreachable!("one end is of this device"),
        }
    };
    check(operation, code)
}

/// What is done with both ends behind a copy.
type Done<F, T> = Box<dyn FnOnce(F, T) + Send>;

/// A job that copies. Several are on their way at the same time, and other jobs run between them.
///
/// It owns both ends until the copy is done. If the device is lost before, they are dropped.
pub struct TransferJob<F, T> {
    /// Before the copy begins.
    ends: Option<(F, T)>,
    /// While the copy is on its way.
    begun: Option<Transfer<F, T>>,
    done: Option<Done<F, T>>,
}

impl<F: Source, T: Destination> TransferJob<F, T> {
    /// A copy of all of `from` to `to`, as by [`Transfer::begin`], on the stream for uploads if `to` is memory of a device,
    /// else on that for downloads. `done` is called on the device's thread and gets both ends back.
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
