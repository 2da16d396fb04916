//! Sources in host memory, and how a filled slot reaches the device.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use forebay_device::JobError;
use forebay_device::cuda::{
    Cuda, DeviceView, HostMemory, HostRegistration, RegisteredPart, Stream, Transfer,
};

use super::{Slots, Source, Unread};

/// What queued work uses until it is done, such as the source of a copy.
pub type Kept = Box<dyn Any + Send>;

/// Queues the copy of a chunk to the device memory of its slot on a stream; returns what the copy uses.
type Enqueue = Box<dyn FnOnce(&Cuda, &Stream, &DeviceView<u8>) -> Result<Kept, JobError> + Send>;

/// Where the bytes of a filled slot are.
pub enum Feed {
    /// In the slot's host memory, at this range.
    Host(Range<usize>),
    /// In the slot's device memory, from its first byte. Before it wrote there, the reader called
    /// [`Slot::device`](super::Slot::device), which waits for the consumer's earlier work.
    Device,
    /// Nowhere yet: this queues work that brings them to the slot's device memory. It runs on the device's thread.
    Enqueue(Enqueue),
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Feed::Host(_) => "Host",
            Feed::Device => "Device",
            Feed::Enqueue(_) => "Enqueue",
        })
    }
}

/// Pageable host memory as a source: threads copy it into the slots.
#[derive(Debug, Clone, Copy)]
pub struct Pageable<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// Number of threads that copy.
    pub threads: usize,
}

impl Source for Pageable<'_> {
    fn name(&self) -> String {
        format!("{} bytes of host memory", self.bytes.len())
    }

    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn threads(&self) -> usize {
        self.threads.max(1)
    }

    fn fill(&self, slots: &Slots<'_>) -> Result<(), Unread> {
        while let Some(mut slot) = slots.next() {
            let chunk = slot.chunk();
            let begin = chunk.offset as usize;
            slot.host()[..chunk.bytes].copy_from_slice(&self.bytes[begin..begin + chunk.bytes]);
            slots.filled(slot, Feed::Host(0..chunk.bytes));
        }
        Ok(())
    }
}

/// Registered (pinned) host memory as a source: it is copied to the device without the CPU. Only for GPUs.
#[derive(Debug)]
pub struct PinnedSource<M: HostMemory> {
    /// The bytes.
    pub bytes: Arc<HostRegistration<M>>,
}

impl<M: HostMemory> Source for PinnedSource<M> {
    fn name(&self) -> String {
        format!("{} bytes of pinned memory", self.bytes.len())
    }

    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn threads(&self) -> usize {
        1
    }

    fn fill(&self, slots: &Slots<'_>) -> Result<(), Unread> {
        while let Some(slot) = slots.next() {
            let (begin, len) = (slot.chunk().offset as usize, slot.chunk().bytes);
            let part = RegisteredPart::new(&self.bytes, begin..begin + len);
            let copy = move |cuda: &Cuda,
                             stream: &Stream,
                             to: &DeviceView<u8>|
                  -> Result<Kept, JobError> {
                Ok(Box::new(Transfer::begin(cuda, part, to.clone(), stream)?))
            };
            slots.filled(slot, Feed::Enqueue(Box::new(copy)));
        }
        Ok(())
    }
}
