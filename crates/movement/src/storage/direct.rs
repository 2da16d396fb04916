//! A range of a file as a source of the staging ring, read into the slots' device memory by cuFile.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use forebay_device::JobError;
use forebay_device::cuda::cufile::{
    CuFile, CuFileBatch, CuFileDirection, CuFileError, CuFileHandle, CuFileMemory, CuFileOperation,
    CuFileStream, CuFileTransfer,
};
use forebay_device::cuda::{Cuda, DeviceView, Stream};
use parking_lot::Mutex;

use super::source::next_slot;
use super::{DataFile, DirectMode};
use crate::MoveError;
use crate::ring::{Chunk, Feed, Kept, PAGE_BYTES, Slot, Slots, Source, Unread};

/// A range of a file that cuFile reads. Only for GPUs.
///
/// It registers the memory and the stream of a ring at its first use, and keeps them until it is dropped.
#[derive(Debug)]
pub struct DirectSource {
    file: Arc<DataFile>,
    range: Range<u64>,
    mode: DirectMode,
    /// Number of threads, or of the operations of a batch.
    parallel: usize,
    cufile: Arc<CuFile>,
    handle: Arc<CuFileHandle>,
    memory: Mutex<Vec<CuFileMemory>>,
    stream: Arc<Mutex<Option<Arc<CuFileStream>>>>,
}

/// A read that was queued on a stream, or why it was not.
type Queued = (Chunk, Result<CuFileTransfer, CuFileError>);

impl DirectSource {
    /// Returns a source of a range of a file. `parallel` is the number of threads that read, or in the batch mode the
    /// number of operations of a batch; the asynchronous mode does not use it.
    ///
    /// # Errors
    /// [`MoveError::Source`] if cuFile cannot use the file.
    pub fn range(
        cufile: &Arc<CuFile>,
        file: Arc<DataFile>,
        range: Range<u64>,
        (mode, parallel): (DirectMode, usize),
    ) -> Result<DirectSource, MoveError> {
        let failed = |why| MoveError::Source {
            source_name: file.path().display().to_string(),
            offset: 0,
            why,
        };
        let descriptor = file
            .descriptor()
            .map_err(|error| failed(error.cause.into()))?;
        let handle = cufile.register(descriptor, file.path());
        let handle = handle.map_err(|error| failed(error.into()))?;
        Ok(DirectSource {
            range: range.start..range.end.max(range.start),
            file,
            mode,
            parallel: parallel.max(1),
            cufile: Arc::clone(cufile),
            handle: Arc::new(handle),
            memory: Mutex::new(Vec::new()),
            stream: Arc::default(),
        })
    }

    /// Returns the registered device memory of a slot, as long as its chunk.
    fn memory(&self, slot: &Slot<'_>) -> Result<CuFileMemory, Unread> {
        let chunk = slot.chunk();
        let view = slot.device().map_err(|fault| unread(&chunk, fault))?;
        let view =
            view.ok_or_else(|| unread(&chunk, "cuFile reads into the memory of GPUs only"))?;
        let mut known = self.memory.lock();
        let found = known.iter().find(|memory| memory.is_of(&view)).cloned();
        let memory = match found {
            Some(memory) => memory,
            None => {
                // Memory that cannot be registered is read through cuFile's own buffers.
                let registered = self.cufile.register_memory(view.clone());
                let memory = registered.unwrap_or_else(|why| {
                    tracing::warn!(%why, "cuFile reads through its own buffers");
                    CuFileMemory::unregistered(view)
                });
                known.push(memory.clone());
                memory
            }
        };
        Ok(memory.part(0..chunk.bytes))
    }

    fn offset(&self, chunk: &Chunk) -> u64 {
        self.range.start + chunk.offset
    }

    /// Returns an error unless a chunk was read as a whole.
    fn check(&self, chunk: &Chunk, read: Result<usize, CuFileError>) -> Result<(), Unread> {
        let offset = self.offset(chunk);
        let read = read.map_err(|error| {
            // cuFile does not say that a file ends before the range.
            match self.file.ends_before(offset + chunk.bytes as u64) {
                Some(cause) => unread(chunk, cause),
                None => unread(chunk, error),
            }
        })?;
        let whole = self.file.check_whole(offset, read, chunk.bytes);
        whole.map_err(|error| Unread {
            offset: chunk.offset + read as u64,
            why: error.cause.into(),
        })
    }

    fn fill_by_calls(&self, slots: &Slots<'_>) -> Result<(), Unread> {
        while let Some(slot) = slots.next() {
            let memory = self.memory(&slot)?;
            let read = self.handle.read(self.offset(&slot.chunk()), &memory);
            self.check(&slot.chunk(), read)?;
            slots.filled(slot, Feed::Device);
        }
        Ok(())
    }

    fn fill_by_batches(&self, slots: &Slots<'_>) -> Result<(), Unread> {
        let nothing = Chunk {
            index: 0,
            offset: 0,
            bytes: 0,
        };
        let batch = CuFileBatch::create(&self.cufile, self.parallel);
        let mut batch = batch.map_err(|error| unread(&nothing, error))?;
        loop {
            let mut taken = Vec::new();
            while taken.len() < self.parallel {
                match next_slot(slots, taken.is_empty()) {
                    Some(slot) => taken.push(slot),
                    None => break,
                }
            }
            let Some(first) = taken.first().map(Slot::chunk) else {
                return Ok(());
            };
            let operations = taken.iter().map(|slot| self.operation(slot));
            let read = batch.run(operations.collect::<Result<_, Unread>>()?);
            let read = match read {
                Ok(read) => read,
                Err(error) => {
                    let last = taken.last().map_or(first, Slot::chunk);
                    let end = self.offset(&last) + last.bytes as u64;
                    if batch.is_abandoned() {
                        taken.into_iter().for_each(Slot::abandon);
                    }
                    return Err(match self.file.ends_before(end) {
                        Some(cause) => unread(&first, cause),
                        None => unread(&first, error),
                    });
                }
            };
            for (slot, bytes) in taken.into_iter().zip(read) {
                self.check(&slot.chunk(), Ok(bytes))?;
                slots.filled(slot, Feed::Device);
            }
        }
    }

    fn operation(&self, slot: &Slot<'_>) -> Result<CuFileOperation, Unread> {
        Ok(CuFileOperation {
            direction: CuFileDirection::Read,
            handle: Arc::clone(&self.handle),
            offset: self.offset(&slot.chunk()),
            memory: self.memory(slot)?,
        })
    }

    /// Queues the reads on the ring's stream of copies. Their results are known only when they are done.
    fn fill_on_stream(&self, slots: &Slots<'_>) -> Result<(), Unread> {
        let (sender, queued) = channel();
        let mut in_flight = VecDeque::new();
        while let Some(slot) = slots.next() {
            let enqueue = self.enqueue(&slot, sender.clone())?;
            slots.filled(slot, enqueue);
            in_flight.extend(queued.try_iter());
            while let Some(done) = in_flight.pop_front_if(|queued| is_done(queued)) {
                self.check_done(done)?;
            }
        }
        drop(sender);
        // The channel ends when no job can queue a read any more.
        let mut rest = in_flight.into_iter().chain(queued);
        rest.try_for_each(|queued| self.check_done(queued))
    }

    fn enqueue(&self, slot: &Slot<'_>, sender: Sender<Queued>) -> Result<Feed, Unread> {
        let (chunk, offset) = (slot.chunk(), self.offset(&slot.chunk()));
        let (cufile, handle) = (Arc::clone(&self.cufile), Arc::clone(&self.handle));
        let (memory, registered) = (self.memory(slot)?, Arc::clone(&self.stream));
        let enqueue =
            move |cuda: &Cuda, stream: &Stream, _: &DeviceView<u8>| -> Result<Kept, JobError> {
                let stream = register(cuda, &cufile, stream, &registered);
                let read = stream.and_then(|stream| {
                    CuFileTransfer::read(cuda, &handle, offset, memory, &stream)
                });
                // A reader that has ended does not ask for the result; dropping the transfer waits for it.
                let _ = sender.send((chunk, read));
                Ok(Box::new(()))
            };
        Ok(Feed::Enqueue(Box::new(enqueue)))
    }

    /// Waits for a read, and returns an error unless it read the whole chunk.
    fn check_done(&self, (chunk, read): Queued) -> Result<(), Unread> {
        self.check(&chunk, read.and_then(CuFileTransfer::finish))
    }
}

/// Returns whether a read needs no waiting: it is done or failed.
fn is_done((_, read): &Queued) -> bool {
    read.as_ref()
        .map_or(true, |transfer| transfer.event().is_done().unwrap_or(true))
}

/// Returns the registration of a stream, which is made at its first use.
fn register(
    cuda: &Cuda,
    cufile: &Arc<CuFile>,
    stream: &Stream,
    registered: &Mutex<Option<Arc<CuFileStream>>>,
) -> Result<Arc<CuFileStream>, CuFileError> {
    let mut known = registered.lock();
    if let Some(known) = known.as_ref().filter(|known| known.is_of(stream)) {
        return Ok(Arc::clone(known));
    }
    let new = CuFileStream::register(cuda, cufile, stream.clone())?;
    *known = Some(Arc::clone(&new));
    Ok(new)
}

fn unread(chunk: &Chunk, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Unread {
    Unread {
        offset: chunk.offset,
        why: why.into(),
    }
}

impl Source for DirectSource {
    fn name(&self) -> String {
        super::source::name(&self.file, self.range.start)
    }

    fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn lead_bytes(&self) -> usize {
        (self.range.start % PAGE_BYTES as u64) as usize
    }

    fn threads(&self) -> usize {
        match self.mode {
            DirectMode::Sync => self.parallel,
            DirectMode::Async | DirectMode::Batch => 1,
        }
    }

    fn fill(&self, slots: &Slots<'_>) -> Result<(), Unread> {
        match self.mode {
            DirectMode::Sync => self.fill_by_calls(slots),
            DirectMode::Async => self.fill_on_stream(slots),
            DirectMode::Batch => self.fill_by_batches(slots),
        }
    }
}
